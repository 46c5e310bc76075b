#include "dispatch/can_implement.h"

#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "dispatch/thin.h"

namespace cutwheel {

bool has_machine_code(KernelDescriptor const& kernel, DeviceInfo const& device) {
  return runs_native(kernel.arch, device.major, device.minor) ||
         std::find(kernel.assembled.begin(), kernel.assembled.end(), device.major) != kernel.assembled.end();
}

Reason can_run_on(KernelDescriptor const& kernel, DeviceInfo const& device, bool ptx) {
  bool const native = has_machine_code(kernel, device);
  if (!native && !(kernel.has_ptx && runs_ptx(kernel.arch, device.major, device.minor))) return Reason::architecture;
  if (!native && !ptx) return Reason::native_is_there;
  return *kernel.shared_memory_bytes > device.shared_memory_bytes ? Reason::shared_memory : Reason::none;
}

bool has_epilogue_for(KernelDescriptor const& kernel, GemmRequest const& request) {
  // Kernels of convolutions take the operands of their own epilogue only.
  if (request.addend == Addend::other || request.direction != Direction::none) return kernel.epilogue == request.epilogue;
  // C as a matrix also does for a bias (stride 0 between its rows), and for none (beta == 0).
  Addend const adds = info_of(kernel.epilogue).addend;
  // Each group of rows has a row of its own, but a matrix has the rows of D.
  if (request.grouping == Grouping::rows && request.addend == Addend::row) return adds == Addend::row;
  return adds == request.addend || adds == Addend::matrix;
}

bool has_summation_of(KernelDescriptor const& kernel, GemmRequest const& request) {
  return kernel.summation && request.summation && std::strcmp(kernel.summation, request.summation) == 0;
}

// Whether one weight stays in shared memory, and leaves room for strips of rows.
bool is_thin(KernelDescriptor const& kernel, GemmRequest const& request) {
  constexpr int kVector = 8;
  if (request.batch != 1 || request.n % kVector != 0 || request.k % kVector != 0) return false;
  constexpr int kMostExtent = 4096;  // so that no number of bytes overflows
  gemm::ThinShape shape;
  return request.n <= kMostExtent && request.k <= kMostExtent && plan_thin(shape, kernel, request.n, request.k);
}

// Whether B may be two matrices (gemm::Operand::pair_stride).
bool reads_pairs(KernelDescriptor const& kernel, GemmRequest const& request, bool partial) {
  if (kernel.cluster.m * kernel.cluster.n > 1) return false;
  if (kernel.layout_b == Layout::row) {
    // Tiles of K lie in one half; slices are no batch, as that is what the halves are.
    bool const in_halves = kernel.family == Family::sm90_persistent && kernel.layout_a == Layout::row;
    return in_halves && request.batch == 1 && request.k % (2 * kernel.tile.k) == 0 && (!partial || takes_slices(kernel));
  }
  // Partial sums are those of kernels that know no pairs of columns.
  bool const in_pairs = kernel.family == Family::sm90_persistent || kernel.family == Family::sm90_grouped ||
                        kernel.family == Family::sm80_multistage || kernel.family == Family::sm80_grouped;
  return in_pairs && !partial && !kernel.swap_ab;
}

// Whether each tile and each step of K lies in one group of a convolution. Only dense kernels are asked: those of the
// families for groups have a request of their own.
bool has_tiles_of_groups(KernelDescriptor const& kernel, GemmRequest const& r) {
  constexpr int kBox = 64;  // channels that wgrad loads at once
  if (kernel.family != Family::sm90_conv) return false;
  int const channels = (r.direction == Direction::wgrad ? r.n : r.k) / r.taps;
  int const rows = r.m / r.groups, columns = r.n / r.groups;
  if (r.direction == Direction::wgrad) return rows % kernel.tile.m == 0 && channels % kBox == 0;
  return columns % kernel.tile.n == 0 && channels % kernel.tile.k == 0;
}

Reason can_implement(KernelDescriptor const& kernel, GemmRequest const& request, bool partial) {
  if (kernel.a != request.a || kernel.b != request.b) return Reason::operands;
  if (kernel.d != (partial ? DType::f32 : request.d)) return Reason::output;
  if (kernel.grouping != request.grouping) return Reason::grouping;
  if (kernel.direction != request.direction) return Reason::direction;
  bool const is_conv = request.direction != Direction::none;
  bool const same_layouts = kernel.layout_a == request.layout_a && kernel.layout_b == request.layout_b;
  if (!is_conv && !same_layouts) return Reason::layouts;
  // Partial sums have no addend yet, and beta == 0 leaves C out.
  Addend const adds = info_of(kernel.epilogue).addend;
  bool const serves =
      partial && !is_conv ? adds == Addend::none || adds == Addend::matrix : has_epilogue_for(kernel, request);
  if (!serves) return Reason::epilogue;
  if (kernel.scales != request.scales) return Reason::scales;
  // A kernel with accumulator promotion also serves callers who allow fast accumulation.
  if (kernel.fast_accum && !request.fast_accum) return Reason::accumulation;
  // TMA takes any extent; cp.async copies whole accesses.
  bool const copies_async = kernel.family == Family::sm80_multistage || kernel.family == Family::sm89_blockwise ||
                            kernel.family == Family::sm80_grouped;
  if (copies_async && !request.extents_aligned) return Reason::extents;
  bool const loads_any = kernel.family == Family::sm90_unaligned;
  if (loads_any && loads_aligned(request)) return Reason::aligned;
  if (!loads_any && !loads_aligned(request)) return Reason::unaligned;
  bool const stores_any = is_native_dense(kernel) && !has_operand(kernel.epilogue, OperandKind::store);
  if (!request.d_aligned && !stores_any) return Reason::unaligned_d;
  if (request.pairs_apart && !reads_pairs(kernel, request, partial)) return Reason::pairs_apart;
  if (kernel.cluster.k > 1 && request.k < kernel.cluster.k * kernel.tile.k) return Reason::short_k;
  if (kernel.cluster.k > 1 && request.direction == Direction::dgrad && request.step > 1) return Reason::strided_cluster;
  bool const gathers = kernel.family == Family::sm90_gather_conv;
  bool const maps_pixels = kernel.family == Family::sm90_conv || kernel.family == Family::sm90_row_conv;
  bool const reads_volumes = maps_pixels || (gathers && request.direction == Direction::fprop);
  if (request.is_volume && !reads_volumes) return Reason::volume;
  if (is_conv && request.groups > 1 && !has_tiles_of_groups(kernel, request)) return Reason::conv_groups;
  if (maps_pixels && !request.tensor_maps) return Reason::tensor_maps;
  bool const is_row_conv = kernel.family == Family::sm90_row_conv;
  if (is_row_conv && request.shared_pixels.positions == 0) return Reason::shared_pixels;
  FilterPadding const padding = request.padded_filter;
  bool const pads_as_read = padding == FilterPadding::none || (padding == FilterPadding::taps && maps_pixels) ||
                            (padding == FilterPadding::filters && gathers);
  if (!pads_as_read) return Reason::padded_filter;
  bool const is_direct = request.direct_conv.output_tiles > 0, is_strided = is_direct && request.step > 1;
  if (kernel.family == Family::sm90_direct_conv && (!is_direct || is_strided)) return Reason::direct_conv;
  if (kernel.family == Family::sm90_strided_dgrad && !is_strided) return Reason::strided_dgrad;
  if (kernel.family == Family::sm90_space_to_depth &&
      (request.space_to_depth.output_tiles == 0 || request.space_to_depth.channels != kernel.tile.k)) {
    return Reason::space_to_depth;
  }
  bool const has_few = request.few_channels.output_tiles > 0;
  if (kernel.family == Family::sm90_few_channels && !has_few) return Reason::few_channels;
  if (kernel.family != Family::sm90_few_channels && has_few) return Reason::gathered_image;
  if (kernel.family == Family::thin && !is_thin(kernel, request)) return Reason::thin;
  return Reason::none;
}

std::string text_of(Reason reason, KernelDescriptor const& kernel, GemmRequest const& request, DeviceInfo const& device) {
  switch (reason) {
    case Reason::none: break;
    case Reason::environment: return "CUTWHEEL_ARCH or CUTWHEEL_KERNEL excludes it";
    case Reason::architecture:
      return concat("built for ", name_of(kernel.arch), ", the device is compute capability ", device.major, '.',
                    device.minor);
    case Reason::native_is_there: return "would run through PTX, and kernels with machine code for this GPU are there";
    case Reason::shared_memory:
      return concat("needs ", *kernel.shared_memory_bytes, " bytes of shared memory, the device offers ",
                    device.shared_memory_bytes);
    case Reason::operands: return concat("operands are ", operands_text(request));
    case Reason::output: return concat("the output is ", name_of(request.d));
    case Reason::layouts:
      return concat("the operands' layouts are ", letter_of(request.layout_a), letter_of(request.layout_b));
    case Reason::epilogue:
      if (request.addend == Addend::other || request.direction != Direction::none) {
        return concat("the epilogue is ", info_of(request.epilogue).name);
      }
      if (info_of(kernel.epilogue).addend == Addend::other) return "its epilogue is chosen by name only";
      return concat("the addend is ", name_of(request.addend), ", its epilogue adds ",
                    name_of(info_of(kernel.epilogue).addend));
    case Reason::scales:
      return concat("the scales along K are ", name_of(request.scales), ", it applies ", name_of(kernel.scales));
    case Reason::accumulation: return "sums in the tensor cores alone, and use_fast_accum is False";
    case Reason::grouping:
      return concat("groups are along ", name_of(request.grouping), ", its own along ", name_of(kernel.grouping));
    case Reason::direction:
      return concat("the direction is ", name_of(request.direction), ", its own is ", name_of(kernel.direction));
    case Reason::extents: return "a contiguous extent is no multiple of 16 bytes";
    case Reason::unaligned: return "A or B does not lie on 16 bytes";
    case Reason::aligned: return "A and B lie on 16 bytes, which others read faster";
    case Reason::unaligned_d: return "D does not lie on 16 bytes";
    case Reason::pairs_apart: return "B is two matrices, which it does not read where they lie";
    case Reason::short_k:
      return concat("K = ", request.k, ", and a cluster shares ", kernel.cluster.k * kernel.tile.k, " or more");
    case Reason::strided_cluster: return "a stride makes several products of few taps, whose K a cluster does not share";
    case Reason::volume: return "it convolves images, and this is a volume";
    case Reason::conv_groups: return "its tiles are not those of one group";
    case Reason::padded_filter: return "the filter is a copy with zeros that this kernel does not read";
    case Reason::tensor_maps: return "tensor maps have too few bits for this padding, stride or dilation";
    case Reason::shared_pixels: return "it takes stride 1, and three or more taps of a row that reach over up to 9 pixels";
    case Reason::direct_conv:
      return "it takes stride 1, up to 64 channels (of dgrad filters), up to 9 taps, and rows of 14 pixels or more";
    case Reason::strided_dgrad:
      return "it takes strides that divide the image, up to 64 filters and 64 channels times phases of the stride, and up "
             "to 16 taps of these";
    case Reason::space_to_depth:
      return concat("it takes strides that divide the image, and ", kernel.tile.k,
                    " channels times the stride along a row");
    case Reason::few_channels:
      return "it takes images of up to 4 channels, strides of 2, filters whose number is a multiple of 8, and up to 32 "
             "blocks of 2 x 2 taps";
    case Reason::gathered_image: return "it reads whole accesses, and the pixels of this image are smaller";
    case Reason::thin:
      return "it takes one problem, N and K that are multiples of 8, and a B that leaves enough of shared memory";
    case Reason::summation:
      return concat("batch_invariant() is on and asks for sums in the order ", request.summation, ", its own is ",
                    kernel.summation);
  }
  return {};
}

}  // namespace cutwheel
