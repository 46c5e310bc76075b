// Which kernel runs: device -> kernels that may run there -> the one the cost model likes best.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dispatch/kernel_descriptor.h"

namespace cutwheel {

// Work of direct convolutions for each 64 filters: output tiles, and for each of them steps of K (0: not known) of so many
// channels. No tiles: they cannot implement the problem.
struct DirectConvTiles {
  int output_tiles = 0, steps = 0, channels = 0;

  bool operator==(DirectConvTiles const& o) const {
    return output_tiles == o.output_tiles && steps == o.steps && channels == o.channels;
  }
};

// Pixels that taps of a row share: `positions` with those between the rows of an image, and how many taps read each. None:
// the taps share none, or too few.
struct SharedPixels {
  int positions = 0, taps = 0;

  bool operator==(SharedPixels const& o) const { return positions == o.positions && taps == o.taps; }
};

// Everything that selection looks at. Pointers and strides matter only for the 16-byte rule.
struct GemmRequest {
  Op op = Op::gemm;
  int device = 0;
  DType a = DType::bf16, b = DType::bf16;
  DType d = DType::bf16;
  Layout layout_a = Layout::row, layout_b = Layout::row;
  Addend addend = Addend::none;  // a bias (row) only with beta == 1
  Epilogue epilogue{};           // with Addend::other: the one that the kernel must have
  bool fast_accum = false;       // fp8: sums may stay in the tensor cores
  BlockScales scales = BlockScales::none;
  // Every contiguous extent is a multiple of 16 bytes, or padded so. TMA does not care, cp.async kernels do.
  bool extents_aligned = true;
  // Whether the operand begins on 16 bytes and all its strides are multiples of them; D also ends so. Others are copied,
  // but for kernels that take them as they lie.
  bool a_aligned = true, b_aligned = true, d_aligned = true;
  // For grouped GEMMs the extents of the mean group, since the host knows no others, and batch is the number of groups.
  int m = 0, n = 0, k = 0, batch = 1;
  Grouping grouping = Grouping::none;
  int groups = 0;
  // Convolutions, by the extents of their implicit GEMM. K of fprop and dgrad, and N of wgrad, is `taps` times channels.
  // `step`: stride_d * stride_h * stride_w.
  Direction direction = Direction::none;
  // With `groups`, K of fprop and dgrad, and N of wgrad, is that of one group; the other extents are those of all groups.
  int taps = 1, step = 1;
  bool tensor_maps = true;  // whether they have bits enough for padding, stride and dilation
  FilterPadding padded_filter = FilterPadding::none;
  DirectConvTiles direct_conv = {};     // of sm90_direct_conv where `step` is 1, else of sm90_strided_dgrad
  DirectConvTiles space_to_depth = {};  // of sm90_space_to_depth
  DirectConvTiles few_channels = {};    // of sm90_few_channels, and then of no other family: the image is read as it lies
  SharedPixels shared_pixels = {};      // of sm90_row_conv
  bool is_volume = false;               // with a depth, which some kernels alone read
  // Only kernels of one summation order are candidates: of `summation`, or, of a GEMM that names none, of the one that
  // invariant_order() has for it.
  bool batch_invariant = false;
  char const* summation = nullptr;
  bool pairs_apart = false;  // B is two matrices: gemm::Operand::pair_stride

  bool operator==(GemmRequest const& o) const {
    return op == o.op && device == o.device && a == o.a && b == o.b && d == o.d && layout_a == o.layout_a &&
           layout_b == o.layout_b && addend == o.addend && epilogue == o.epilogue && fast_accum == o.fast_accum &&
           scales == o.scales && extents_aligned == o.extents_aligned && a_aligned == o.a_aligned &&
           b_aligned == o.b_aligned && d_aligned == o.d_aligned && pairs_apart == o.pairs_apart && m == o.m && n == o.n &&
           k == o.k && batch == o.batch && grouping == o.grouping && groups == o.groups && direction == o.direction &&
           taps == o.taps && step == o.step && is_volume == o.is_volume && tensor_maps == o.tensor_maps &&
           padded_filter == o.padded_filter && direct_conv == o.direct_conv && space_to_depth == o.space_to_depth &&
           few_channels == o.few_channels && shared_pixels == o.shared_pixels && batch_invariant == o.batch_invariant &&
           summation == o.summation;
  }
};

// The longest K of one accumulator. Tensor cores truncate as they add, so a sum loses in proportion to its length. Measured
// on an H100 with wgmma and mma.sync, 16-bit and tf32 operands alike: of numbers of one sign 1.5e-3 of the result at this
// length (what rounding it to bfloat16 costs), 6e-3 at 2^20, half of it at 2^27; of both signs a fifth of that. Longer sums
// are split, and the parts are added with rounding. Half of this length would cost weight gradients of 2^18 rows 1.5 times
// their time: kernels that write float32 have fewer tiles.
constexpr int kLongestSum = 1 << 18;

// Bounds of what a table of measurements may ask for.
constexpr int kMaxSwizzle = 64, kMaxSplits = 16384;

struct GemmPlan {
  KernelDescriptor const* kernel = nullptr;
  KernelDescriptor const* reduce = nullptr;  // set with split-K: kernel writes float32 partial sums, reduce adds them up
  RasterOrder raster = RasterOrder::along_m;
  int swizzle = 1;
  int splits = 1;
  double predicted_us = 0;
};

// Whether A and B may be read 16 bytes at a time.
inline bool loads_aligned(GemmRequest const& r) { return r.a_aligned && r.b_aligned; }

// K of each split but the last, which takes the rest: whole tiles.
inline int split_slice(KernelDescriptor const& kernel, int k, int splits) {
  return round_up(ceil_div(k, splits), kernel.tile.k);
}

// Basis of a ranking's order.
enum class Basis : int {
  cost_model,
  estimate,  // the cost model, of a GPU or a kernel for which it has no figures of its own
  measured,  // this very request
  near       // the cost model, corrected by what was measured of a request with other extents
};

struct PlanSource {
  Basis basis = Basis::estimate;
  int m = 0, n = 0, k = 0;  // of the request that was measured
  std::string table;        // which says so
};

// "tuned (exact)", "tuned (near 4096x4096x4096)", "cost model", "cost model (estimated)".
std::string text_of(PlanSource const& source);

struct Rejection {
  KernelDescriptor const* kernel;
  std::string reason;
};

// All plans that can run, cheapest first. With `rejections`, every other kernel of the op and why it is not among them.
// With `source`, what the order rests on. The device is an argument so that the choice for a GPU that is not at hand can be
// asked for, and tested.
std::vector<GemmPlan> rank_plans(GemmRequest const& request, DeviceInfo const& device,
                                 std::vector<Rejection>* rejections = nullptr, PlanSource* source = nullptr);

// The cheapest plan, remembered per thread; nothing when no kernel can run.
std::optional<GemmPlan> choose_plan(GemmRequest const& request);

// The kernel that adds partial sums up and writes `d`, of one architecture or of the best that the device runs: with an
// epilogue, or with alpha, beta and C.
KernelDescriptor const* find_reduce_kernel(DeviceInfo const& device, DType d, std::optional<Arch> arch = std::nullopt,
                                           std::optional<Epilogue> epilogue = std::nullopt);

// The elementwise kernel of an epilogue that writes `d`, remembered per thread: native code of the newest architecture,
// else PTX; nullptr when there is none.
KernelDescriptor const* choose_elementwise_kernel(DeviceInfo const& device, DType d, Epilogue epilogue);

// The kernel that copies rows of bytes to rows on 16 bytes, likewise.
KernelDescriptor const* choose_pad_kernel(DeviceInfo const& device);

// The grouped GEMM that finds its rows by their numbers, likewise.
KernelDescriptor const* choose_gathered_kernel(DeviceInfo const& device, DType type, Epilogue epilogue);

// The kernel of a family that sorts rows by expert, or moves them; of the former `type` is s8.
KernelDescriptor const* choose_routing_kernel(DeviceInfo const& device, Family family, DType type);

// The kernel that sums columns of a type to an image of another, likewise.
KernelDescriptor const* choose_col2im_kernel(DeviceInfo const& device, DType columns, DType image);

// The kernel of depthwise or grouped convolutions for a direction and a tile, likewise.
KernelDescriptor const* choose_conv_kernel(DeviceInfo const& device, Family family, DType type, Direction direction,
                                           Extent3 tile);

// The kernel that quantizes, likewise.
KernelDescriptor const* choose_quantize_kernel(DeviceInfo const& device, DType in, DType out, QuantizeRecipe recipe);

// Whether the tensor cores multiply fp8, and the sentence for those that do not.
constexpr bool has_fp8(int major, int minor) { return major * 10 + minor >= 89; }
std::string fp8_miss(DeviceInfo const& device);

// "bf16", or "e4m3 x e5m2" where A and B differ.
std::string operands_text(GemmRequest const& request);

// Text for the error of a request that no kernel serves: what was asked, what the wheel holds, what to do.
std::string explain_miss(GemmRequest const& request, DeviceInfo const& device);

// Architectures of the kernels in this wheel that would serve the device, best first: "sm90a", "sm80 (PTX)".
std::vector<std::string> archs_served(int major, int minor);

}  // namespace cutwheel
