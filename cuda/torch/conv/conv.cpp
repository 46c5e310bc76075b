#include "torch/conv/conv.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <limits>
#include <string_view>

#include "core/args/col2im.h"
#include "core/col2im_axis.h"
#include "dispatch/batch_invariance.h"
#include "dispatch/cost_model.h"
#include "dispatch/epilogue_names.h"
#include "torch/conv/geometry.h"
#include "torch/conv/image.h"
#include "torch/elementwise.h"
#include "torch/gemm.h"
#include "torch/registry.h"
#include "torch/scaled.h"

namespace cutwheel {

namespace {

// Names of the GEMM operands A and B, as kernels take them.
constexpr OpNames kConv2d{"conv2d", "nn.functional.conv2d", "bias", "input", "weight", 4};
constexpr OpNames kConvInputGrad{"conv2d_input_grad", "nn.grad.conv2d_input", nullptr, "grad_output", "weight", 4};
constexpr OpNames kConvWeightGrad{"conv2d_weight_grad", "nn.grad.conv2d_weight", nullptr, "grad_output", "input", 4};
constexpr OpNames kScaledConv2d{"scaled_conv2d", nullptr, "bias", "input", "weight", 4};
constexpr OpNames kConvTranspose2d{"conv_transpose2d", "nn.functional.conv_transpose2d", "bias", "input", "weight", 4};
constexpr OpNames kConv3d{"conv3d", "nn.functional.conv3d", "bias", "input", "weight", 5};
constexpr OpNames kConv3dInputGrad{"conv3d_input_grad", "nn.grad.conv3d_input", nullptr, "grad_output", "weight", 5};
constexpr OpNames kConv3dWeightGrad{"conv3d_weight_grad", "nn.grad.conv3d_weight", nullptr, "grad_output", "input", 5};
constexpr OpNames kConvTranspose3d{"conv_transpose3d", "nn.functional.conv_transpose3d", "bias", "input", "weight", 5};

// The activation of scaled_conv2d. Other ops name theirs in the epilogue.
enum class Activation : int { none, relu, silu };

// m, n and k are those of the implicit GEMM without added channels.
struct ConvCall : ConvCallBase {
  // Null: not given.
  Tensor const* scale_input = nullptr;
  Tensor const* scale_weight = nullptr;
  Tensor const* scale_residual = nullptr;
  Tensor const* scale_result = nullptr;
  Activation activation = Activation::none;
  std::optional<Epilogue> epilogue = std::nullopt;  // asked for by its name; else a bias is added, or nothing
  bool allow_tf32 = false;
  bool is_scaled = false;

  Tensor const& filter() const { return *b; }  // of fprop and dgrad
  // Whether the result has 8 bits and a scale.
  bool is_quantized() const { return element_bytes_of(d_type) == 1; }
  bool unit_stride() const { return problem.stride_h == 1 && problem.stride_w == 1 && problem.stride_d == 1; }
};

ConvCall make_conv_call(OpNames const& names, Direction direction, Tensor const& a, Tensor const& b,
                        ConvGeometry const& geometry, bool allow_tf32) {
  ConvCall call{{{names, &a, &b}, direction, geometry}};
  call.allow_tf32 = allow_tf32;
  call.sums_batch = direction == Direction::wgrad;
  return call;
}

// How the result is got. implicit: by a kernel of the call's direction. flipped: the gradient of the input by fprop, of the
// gradient and the flipped filter. gemm: with a 1x1 filter it is a GEMM, which the other ops compute. unfolded:
// implicit, by a kernel that reads few channels as they lie, so that taps of a row are not made one. swapped: the gradient
// of few filters by wgrad with the operands in each other's place, so that taps of these filters fill the tile that their
// number does not. columns: the gradient of an input of patches or of few channels, by a GEMM whose rows are positions and
// whose columns are the channels of all taps; the pixels are sums of these. gathered: implicit, by a kernel that gathers
// the elements of input and filter, so that neither is copied.
enum class ConvAlgorithm : int { none, implicit, flipped, gemm, unfolded, swapped, columns, gathered };

// An epilogue, and the type that the kernel writes: what is not the type of the result is converted.
struct ConvVariant {
  ConvAlgorithm algorithm = ConvAlgorithm::none;
  ScaledForm form{};
  std::optional<GemmPlan> plan = std::nullopt;  // none for a GEMM, which is planned when its operands are prepared
  char const* summation = nullptr;              // in batch_invariant(): of the plan's kernel
  FilterPadding padding = FilterPadding::none;
};

// --- Checks

constexpr ErrorKind kType = ErrorKind::type, kValue = ErrorKind::value, kShape = ErrorKind::shape;

// Sizes of a gradient's result: the call gives two of them, and its tensors have the others.
Sizes given_size(ConvCall const& call) {
  check_size(call);
  std::int64_t const h = call.size.h, w = call.size.w;
  if (call.direction == Direction::dgrad) return {call.a->size(0), call.b->size(1), h, w};
  return {call.a->size(1), call.b->size(1), h, w};
}

void check_channels(ConvCall const& call, ConvSizes const& sizes) {
  std::int64_t const in = sizes.x[1], of_filter = sizes.w[1];
  if (in == of_filter) return;
  bool const grouped = of_filter < in && in % of_filter == 0 && sizes.w[0] % (in / of_filter) == 0;
  fail(kShape, call.names.op, ": weight has shape ", call.text_of(sizes.w, sizes.t), " and input has ", in,
       " channels; expected a weight [Ko, ", in, call.has_depth() ? ", T" : "", ", R, S]",
       !grouped           ? ""
       : call.has_depth() ? concat(", as kernels convolve volumes in one group: for ", in / of_filter,
                                   " groups use torch.nn.functional.conv3d")
                          : concat("; for ", in / of_filter, " groups say so: groups=", in / of_filter));
}

void fill_problem(ConvCall& call, ConvSizes const& sizes) {
  // Room for the channels that are added.
  constexpr std::int64_t kAdded = kAccessBytes;
  bool const deep = call.has_depth();
  std::int64_t const r = sizes.w[2], w = sizes.w[3];
  check_count(call, deep ? "N * D * H * W" : "N * H * W", {sizes.x[0], sizes.d, sizes.x[2], sizes.x[3]});
  check_count(call, deep ? "N * D' * P * Q" : "N * P * Q", {sizes.y[0], sizes.o, sizes.y[2], sizes.y[3]});
  check_count(call, deep ? "T * R * S * C" : "R * S * C", {sizes.t, r, w, sizes.w[1] + kAdded});
  check_count(call, deep ? "T * R * S * Ko" : "R * S * Ko", {sizes.t, r, w, sizes.w[0] + kAdded});
  call.problem = problem_of(call.geometry, sizes);
  std::int64_t const pixels = call.problem.pixels(), positions = call.problem.positions(), taps = call.problem.taps();
  switch (call.direction) {
    case Direction::dgrad: call.m = pixels, call.n = sizes.x[1], call.k = taps * sizes.w[0]; break;
    case Direction::wgrad: call.m = sizes.w[0], call.n = taps * sizes.x[1], call.k = positions; break;
    default: call.m = positions, call.n = sizes.w[0], call.k = taps * sizes.x[1];
  }
}

void check_sizes(ConvCall& call) {
  ConvSizes sizes{};
  switch (call.direction) {
    case Direction::dgrad: sizes.x = given_size(call), sizes.w = sizes_of(*call.b); break;
    case Direction::wgrad: sizes.x = sizes_of(*call.b), sizes.w = given_size(call); break;
    default: sizes.x = sizes_of(*call.a), sizes.w = sizes_of(*call.b);
  }
  if (call.has_depth()) {
    sizes.d =
        call.direction == Direction::dgrad ? call.size.d : depth_of(call.direction == Direction::wgrad ? *call.b : *call.a);
    sizes.t = call.direction == Direction::wgrad ? call.size.d : depth_of(*call.b);
  }
  check_input_size(call, sizes.x, sizes.d);
  check_weight_size(call, sizes.w, sizes.t);
  check_channels(call, sizes);
  check_count(call, call.has_depth() ? "T * R * S * C" : "R * S * C", {sizes.t, sizes.w[2], sizes.w[3], sizes.w[1]});
  sizes.y = {sizes.x[0], sizes.w[0], out_extent(call, sizes, 0), out_extent(call, sizes, 1)};
  if (call.has_depth()) sizes.o = out_extent(call, sizes, 2);
  if (call.direction != Direction::fprop) check_grad_output(call, sizes);
  fill_problem(call, sizes);
}

void check_types(ConvCall& call) {
  check_operand_types(call);
  call.d_type = call.type;
  if (call.type == ScalarType::Float && !call.allow_tf32) {
    fail(ErrorKind::runtime, call.names.op,
         ": float32 tensors are convolved on TF32 tensor cores only, and torch's setting forbids TF32; allow it with "
         "torch.backends.cudnn.conv.fp32_precision = \"tf32\" (or torch.backends.cudnn.allow_tf32 = True), or pass float16 "
         "or bfloat16");
  }
}

void check_scaled_types(ConvCall& call) {
  OpNames const& names = call.names;
  call.type = type_of(*call.a);
  if (call.type != ScalarType::Float8_e4m3fn && call.type != ScalarType::Char) {
    fail(kType, names.op, ": input has dtype ", dtype_text(call.type),
         "; expected float8_e4m3fn or int8 (cutwheel.quantize makes them)");
  }
  check_type(names.op, "weight", *call.b, call.type, " as input has");
  call.b_type = call.type;
  call.d_type = call.out_dtype.value_or(ScalarType::BFloat16);
  if (call.d_type != call.type && !is_supported(call.d_type)) {
    fail(kType, names.op, ": out_dtype is ", dtype_text(call.d_type), "; expected float16, bfloat16, float32 or ",
         dtype_text(call.type), ", the dtype of input");
  }
}

// An 8-bit result needs a scale. A residual and silu are for 8-bit results alone.
void check_quantized(ConvCall const& call) {
  char const* const op = call.names.op;
  std::string const type = dtype_text(call.type);
  bool const quantized = call.is_quantized();
  if (quantized && !call.scale_result) {
    fail(kValue, op, ": out_dtype is ", type,
         " and scale_result is None; expected a float32 tensor of one element, by which ",
         "the result is divided: the largest magnitude to represent over ", call.type == ScalarType::Char ? "127" : "448");
  }
  if (!quantized && call.scale_result) {
    fail(kValue, op, ": scale_result is given and out_dtype is ", dtype_text(call.d_type), "; expected None, or out_dtype ",
         type, ", whose values have a scale");
  }
  if (!quantized && call.residual) {
    fail(kValue, op, ": residual is given and out_dtype is ", dtype_text(call.d_type), "; expected out_dtype ", type,
         ", whose kernels add a residual, or None: add it to the result");
  }
  if (!quantized && call.activation == Activation::silu) {
    fail(kValue, op, ": activation is \"silu\" and out_dtype is ", dtype_text(call.d_type),
         "; kernels apply it to results of 8 bits alone");
  }
  if (call.residual && call.activation == Activation::silu) {
    fail(kValue, op, ": activation is \"silu\" and residual is given; expected relu or no activation behind a residual");
  }
  if (!call.residual != !call.scale_residual) {
    fail(kValue, op, ": ", call.residual ? "scale_residual" : "residual", " is None and ",
         call.residual ? "residual" : "scale_residual", " is given; expected both or neither");
  }
}

void check_scale(ConvCall const& call, char const* argument, Tensor const& scale, bool for_each_filter) {
  check_device(call.names.op, argument, scale, call.device, "input");
  check_type(call.names.op, argument, scale, ScalarType::Float);
  bool const fits = scale.numel() == 1 || (for_each_filter && scale.dim() == 1 && scale.size(0) == call.n);
  if (!fits) {
    fail_shape(call.names.op, argument, scale, "one element",
               for_each_filter ? concat(" or [", call.n, "], one for each filter") : "");
  }
}

void check_bias(ConvCall const& call) {
  Tensor const& bias = *call.bias;
  check_device(call.names.op, "bias", bias, call.device, call.names.a);
  if (call.is_scaled && call.is_quantized()) {
    check_supported(call.names.op, "bias", " has dtype ", type_of(bias));
  } else if (!call.is_scaled || type_of(bias) != ScalarType::Float) {
    check_type(call.names.op, "bias", bias, call.d_type, call.is_scaled ? ", the dtype of the result, or float32" : "");
  }
  if (bias.dim() != 1 || bias.size(0) != call.n) fail_shape(call.names.op, "bias", bias, '[', call.n, ']');
}

// The epilogue of a name, with no tensors but a bias, a residual and what it stores besides the result. Throws for any
// other.
Epilogue conv_epilogue(OpNames const& names, std::string_view name) {
  char const* const op = names.op;
  Epilogue const epilogue = named_epilogue(op, name, /*has_accum=*/true);
  EpilogueInfo const& info = info_of(epilogue);
  if (info.width != Width::same) {
    fail(kValue, op, ": epilogue \"", info.name, "\" changes the number of columns; expected one that does not");
  }
  check_has_bias_and_residual_only(op, info);
  return epilogue;
}

// The same of ops that return so many tensors besides the result.
Epilogue conv_epilogue(OpNames const& names, std::string_view name, int stores) {
  Epilogue const epilogue = conv_epilogue(names, name);
  check_stores(names.op, names.dims == 5 ? "conv3d_fused" : "conv2d_fused", info_of(epilogue), stores);
  return epilogue;
}

// Shapes, dtypes, devices, geometry: throws the error that names the argument; fills types, extents and the problem.
void check(ConvCall& call) {
  check_devices(call);
  check_dims(call.names, call.names.a, *call.a, call.names.dims);
  check_dims(call.names, call.names.b, *call.b, call.names.dims);
  if (call.is_scaled) {
    check_scaled_types(call);
  } else {
    check_types(call);
  }
  check_geometry(call);
  check_sizes(call);
  if (call.epilogue) {
    check_takes(call.names.op, info_of(*call.epilogue), "bias", call.bias);
    check_takes(call.names.op, info_of(*call.epilogue), "residual", call.residual);
  }
  if (call.is_scaled) check_quantized(call);
  if (call.bias) check_bias(call);
  if (call.residual) check_residual(call);
  if (!call.is_scaled) return;
  check_scale(call, "scale_input", *call.scale_input, /*for_each_filter=*/false);
  check_scale(call, "scale_weight", *call.scale_weight, /*for_each_filter=*/true);
  if (call.scale_residual) check_scale(call, "scale_residual", *call.scale_residual, /*for_each_filter=*/false);
  if (call.scale_result) check_scale(call, "scale_result", *call.scale_result, /*for_each_filter=*/false);
}

// --- Operands

// Volumes as batches of their slices, [N D, C, H, W], and filters as those of rows of all slices, [Ko, C, T R, S]: what
// copies and pads images does so with these, too. Views, but for slices that are not evenly spaced.
class SlicedOperands {
 public:
  // Takes the place of the operands, which must have been checked.
  explicit SlicedOperands(ConvCall& call) {
    if (!call.has_depth()) return;
    slices_.reserve(3);  // the call points to them
    bool const is_wgrad = call.direction == Direction::wgrad;
    call.a = &slices_.emplace_back(slices(*call.a, call.device));
    call.b = &slices_.emplace_back(is_wgrad ? slices(*call.b, call.device) : rows(*call.b, call.device));
    if (call.residual) call.residual = &slices_.emplace_back(slices(*call.residual, call.device));
  }
  std::size_t copies() const { return copies_; }

 private:
  static Tensor merged(Tensor const& x, std::size_t outer, std::size_t inner) {
    auto const sizes = x.sizes();
    auto const strides = x.strides();
    std::array<std::int64_t, 4> size{}, stride{};
    for (std::size_t from = 0, to = 0; from < 5; ++from) {
      if (from == outer) continue;
      size[to] = from == inner ? sizes[outer] * sizes[inner] : sizes[from];
      stride[to] = from == inner && sizes[inner] == 1 ? strides[outer] : strides[from];
      ++to;
    }
    if (inner == 2) std::swap(size[0], size[1]), std::swap(stride[0], stride[1]);  // N D before C
    return reinterpret(x, x.data_ptr(), size.data(), stride.data(), 4);
  }

  Tensor merged_or_copy(Tensor const& x, std::size_t outer, std::size_t inner, int device) {
    auto const sizes = x.sizes();
    auto const strides = x.strides();
    bool const is_view =
        sizes[outer] == 1 || sizes[inner] == 1 || strides[outer] == sizes[inner] * strides[inner] || x.numel() == 0;
    if (is_view) return merged(x, outer, inner);
    std::int64_t const c = sizes[1], w = sizes[4] * c, h = sizes[3] * w, d = sizes[2] * h;
    Tensor copy = empty_strided({sizes[0], c, sizes[2], sizes[3], sizes[4]}, {d, 1, h, w, c}, x.scalar_type(), device);
    torch::stable::copy_(copy, x);
    ++copies_;
    return merged(copy, outer, inner);
  }
  Tensor slices(Tensor const& volume, int device) { return merged_or_copy(volume, 0, 2, device); }
  Tensor rows(Tensor const& filter, int device) { return merged_or_copy(filter, 2, 3, device); }

  std::vector<Tensor> slices_;
  std::size_t copies_ = 0;
};

int whole(int channels, ScalarType type) {
  return static_cast<int>(round_up<std::int64_t>(channels, access_elements(type)));
}

// The problem that a kernel is given, and how its tensors come from those of the caller.
struct ConvView {
  conv2d::ConvProblem problem;
  int channels;          // of a pixel of the input, with those that are added
  int fold = 1;          // taps of a row that are one to the kernel
  bool windows = false;  // these overlap
  bool by_row = false;   // images are the rows of positions
  int crop_h = 0, crop_w = 0, crop_d = 0;
  int h = 0, w = 0;  // of the input, with rows and pixels that are added; 0: it has its own
};

// The gradient of the input at stride 1 as a convolution of the output's gradient. Where the padding is more than the
// filter reaches, pixels of that are left out.
ConvView flipped_view(ConvCall const& call) {
  conv2d::ConvProblem const& p = call.problem;
  int const pad_h = (p.r - 1) * p.dilation_h - p.pad_h, pad_w = (p.s - 1) * p.dilation_w - p.pad_w,
            pad_d = (p.t - 1) * p.dilation_d - p.pad_d;
  ConvView view{
      p, whole(p.k_out, call.type), 1, false, false, std::max(-pad_h, 0), std::max(-pad_w, 0), std::max(-pad_d, 0)};
  conv2d::ConvProblem& f = view.problem;
  f.h = p.p - view.crop_h, f.w = p.q - view.crop_w, f.c = view.channels;
  f.p = p.h, f.q = p.w, f.k_out = whole(p.c, call.type);
  f.pad_h = std::max(pad_h, 0), f.pad_w = std::max(pad_w, 0);
  f.d = p.o - view.crop_d, f.o = p.d, f.pad_d = std::max(pad_d, 0);
  return view;
}

// The gradient of the filter at stride 1, as sums over the pixels of the input: dW[k, tap, c] is that of x[pixel, c] times
// dy[pixel - tap + padding, k], a convolution of dy whose taps are reversed. Its filters are the input's channels.
ConvView swapped_view(ConvCall const& call) {
  conv2d::ConvProblem const& p = call.problem;
  ConvView view{p, whole(p.k_out, call.type)};
  conv2d::ConvProblem& s = view.problem;
  s.h = p.p, s.w = p.q, s.c = view.channels;
  s.p = p.h, s.q = p.w, s.k_out = whole(p.c, call.type);
  s.pad_h = (p.r - 1) * p.dilation_h - p.pad_h, s.pad_w = (p.s - 1) * p.dilation_w - p.pad_w;
  return view;
}

// Kernels multiply whole steps of K for each tap, however few its channels are. So taps of a row become one tap, of all
// their channels: of patches, which do not overlap, as they lie; of an image that is copied anyway, as windows on the copy.
// Rows of patches become images, where they lie so, if their stride is more than tensor maps have bits for.
ConvView view_of(ConvCall const& call, bool folds) {
  constexpr int kMaxMapStride = 8;
  conv2d::ConvProblem const& own = call.problem;
  ConvView view{own, whole(own.c, call.type)};
  conv2d::ConvProblem& p = view.problem;
  p.k_out = whole(own.k_out, call.type), p.c = view.channels;
  bool const is_dgrad = call.direction == Direction::dgrad;
  bool const whole_rows = own.w == own.q * own.s;
  if (!folds) return view;
  if (own.s > 1 && own.stride_w == own.s && own.dilation_w == 1 && own.pad_w == 0 && (whole_rows || !is_dgrad) &&
      own.q * own.s <= own.w) {
    std::int64_t const unit = access_elements(call.type), folded = std::int64_t{own.s} * own.c;
    // Then rows of pixels are whole accesses, too.
    if (whole_rows && folded % unit == 0) view.channels = own.c;
    view.fold = own.s;
    p.c = own.s * view.channels;
    p.w = own.w / own.s, p.s = 1, p.stride_w = 1;
  }
  if (view.fold == 1 && !is_dgrad && own.s > 1 && own.dilation_w == 1 && view.channels != own.c) {
    view.fold = own.s;
    view.windows = true;
    p.c = own.s * view.channels;
    p.w = own.q, p.s = 1, p.stride_w = 1, p.pad_w = 0;
  }
  if (!is_dgrad && !own.is_volume() && own.stride_h > kMaxMapStride && own.stride_h == own.r && own.dilation_h == 1 &&
      own.pad_h == 0 && own.h == own.p * own.r) {
    view.by_row = true;
    p.images = own.images * own.p;
    p.h = own.r, p.p = 1, p.stride_h = 1;
  }
  return view;
}

// Blocks of pixels, as many as the stride has: the copy that adds channels adds what the last ones lack.
ConvView whole_blocks_view(ConvCall const& call) {
  ConvView view = view_of(call, /*folds=*/false);
  conv2d::ConvProblem& p = view.problem;
  if (view.channels == call.problem.c) return view;
  view.h = p.h = static_cast<int>(round_up<std::int64_t>(p.h, p.stride_h));
  view.w = p.w = static_cast<int>(round_up<std::int64_t>(p.w, p.stride_w));
  return view;
}

ConvView view_of(ConvCall const& call, ConvAlgorithm algorithm) {
  switch (algorithm) {
    case ConvAlgorithm::flipped: return flipped_view(call);
    case ConvAlgorithm::swapped: return swapped_view(call);
    case ConvAlgorithm::unfolded: return whole_blocks_view(call);
    case ConvAlgorithm::gathered: return {call.problem, call.problem.c};
    default: return view_of(call, /*folds=*/true);
  }
}

// Each of `rows` an image of its own.
Image by_row(Image image, std::int64_t rows) {
  std::int64_t const each = image.sizes[1] / rows;
  image.sizes[0] *= rows, image.sizes[1] = each;
  image.strides[0] = image.strides[1] * each;
  return image;
}

struct Extents {
  int m, n, k;
};

Extents extents_of(Direction direction, conv2d::ConvProblem const& p) {
  int const pixels = p.pixels(), positions = p.positions(), taps = p.taps();
  switch (direction) {
    case Direction::dgrad: return {pixels, p.c, taps * p.k_out};
    case Direction::wgrad: return {p.k_out, taps * p.c, positions};
    default: return {positions, p.k_out, taps * p.c};
  }
}

Direction direction_of(ConvCall const& call, ConvAlgorithm algorithm) {
  return algorithm == ConvAlgorithm::flipped ? Direction::fprop : call.direction;
}

// Strides of images, rows and pixels, where `depth` slices are an image each; and that of slices.
void copy_strides(std::int64_t (&to)[3], std::int64_t& to_slices, Image const& image, int depth) {
  std::copy_n(image.strides.begin(), 3, to);
  to_slices = to[0];
  to[0] *= depth;
}

// The input of fprop and wgrad.
Image prepare_input(ConvCall const& call, Tensor const& input, ConvView const& view, std::vector<Tensor>& keep) {
  conv2d::ConvProblem const& own = call.problem;
  Image const x = view.windows
                      ? windows_of(input, {view.channels, own.s, own.stride_w, own.q, own.pad_w}, call.device, keep)
                      : readable_image(input, {view.channels, view.fold, view.by_row, view.h, view.w}, call.device, keep);
  return view.by_row ? by_row(x, own.p) : x;
}

// Elements of a line of L2.
std::int64_t line_elements(ScalarType type) { return 128 / element_bytes_of(type); }

void prepare_operands(PreparedConv& prepared, ConvCall const& call, ConvView const& view, ConvVariant const& variant) {
  ConvAlgorithm const algorithm = variant.algorithm;
  conv2d::ConvArgs& args = prepared.args;
  conv2d::ConvProblem const& p = view.problem;
  std::vector<Tensor>& keep = prepared.keep;
  int const device = call.device;
  if (algorithm == ConvAlgorithm::gathered) {
    Image const x = image_of(*call.a), filter = image_of(call.filter());
    args.a = {x.data, p.c, 0}, args.b = {filter.data, p.c, 0};
    copy_strides(args.x_strides, args.x_depth_stride, x, p.d);
    args.x_channel_stride = x.strides[3];
    std::copy(filter.strides.begin(), filter.strides.end(), args.filter_strides);
    return;
  }
  if (algorithm == ConvAlgorithm::swapped) {
    Image const x = readable_image(*call.b, {p.k_out, 1, /*even=*/true}, device, keep);
    Image const y = readable_image(*call.a, {p.c}, device, keep);
    args.a = {x.data, p.k_out, 0}, args.b = {y.data, p.c, 0};
    copy_strides(args.y_strides, args.y_depth_stride, x, p.o);
    copy_strides(args.x_strides, args.x_depth_stride, y, p.d);
    return;
  }
  if (call.direction == Direction::wgrad) {
    Image const positions = readable_image(*call.a, {p.k_out, 1, /*even=*/true}, device, keep);
    Image const y = view.by_row ? by_row(positions, call.problem.p) : positions;
    Image const x = prepare_input(call, *call.b, view, keep);
    args.a = {y.data, p.k_out, 0}, args.b = {x.data, p.c, 0};
    copy_strides(args.y_strides, args.y_depth_stride, y, p.o);
    copy_strides(args.x_strides, args.x_depth_stride, x, p.d);
    return;
  }
  std::int64_t const line = line_elements(call.type);
  std::int64_t const channels =
      variant.padding == FilterPadding::taps ? round_up<std::int64_t>(view.channels, line) : view.channels;
  std::int64_t const pitch_unit = variant.padding == FilterPadding::filters ? line : 1;
  if (algorithm == ConvAlgorithm::flipped) {
    Image const x = readable_image(*call.a, {p.c}, device, keep);
    std::int64_t const cropped = view.crop_d * x.strides[0] + view.crop_h * x.strides[1] + view.crop_w * x.strides[2];
    args.a = {static_cast<char const*>(x.data) + cropped * element_bytes_of(call.type), p.c, 0};
    Image const filter = flipped_filter(call.filter(), {p.k_out, channels, pitch_unit}, device, keep);
    args.b = {filter.data, channels, 0};
    args.filter_pitch = filter.strides[0];
    copy_strides(args.x_strides, args.x_depth_stride, x, call.problem.o);
    return;
  }
  Image const filter = readable_filter(call.filter(), {p.k_out, channels, pitch_unit}, device, keep);
  args.b = {filter.data, channels * view.fold, 0};
  args.filter_pitch = filter.strides[0];
  if (call.direction == Direction::dgrad) {
    Image const y = readable_image(*call.a, {p.k_out}, device, keep);
    args.a = {y.data, p.k_out, 0};
    copy_strides(args.y_strides, args.y_depth_stride, y, p.o);
  } else {
    Image const x = prepare_input(call, *call.a, view, keep);
    args.a = {x.data, p.c, 0};
    copy_strides(args.x_strides, args.x_depth_stride, x, p.d);
  }
}

// The op's result, uninitialised.
Tensor make_conv_result(ConvCall const& call) {
  conv2d::ConvProblem const& p = call.problem;
  if (call.has_depth()) {
    switch (call.direction) {
      case Direction::dgrad: return empty_channels_last_3d({p.images, p.c, p.d, p.h, p.w}, call.d_type, call.device);
      case Direction::wgrad: return empty_channels_last_3d({p.k_out, p.c, p.t, p.r, p.s}, call.d_type, call.device);
      default: return empty_channels_last_3d({p.images, p.k_out, p.o, p.p, p.q}, call.d_type, call.device);
    }
  }
  switch (call.direction) {
    case Direction::dgrad: return empty_channels_last({p.images, p.c, p.h, p.w}, call.d_type, call.device);
    case Direction::wgrad: return empty_channels_last({p.k_out, p.c, p.r, p.s}, call.d_type, call.device);
    default: return empty_channels_last({p.images, p.k_out, p.p, p.q}, call.d_type, call.device);
  }
}

// Rows of `pitch` channels, as the kernel writes them; copied to the output without the channels that were added. Returns
// where they are.
void* prepare_temporary(Output& output, void* own, std::array<std::int64_t, 3> const& sizes, std::int64_t batch,
                        std::int64_t pitch, ScalarType type, int device) {
  auto const [own_batch, rows, channels] = sizes;
  output.copy_to = {own, own_batch, rows, channels, rows * channels, channels, 1};
  output.temporary = empty_strided({batch, rows, pitch}, {rows * pitch, pitch, 1}, type, device);
  void* const data = output.temporary->data_ptr();
  output.copy_from = {data, own_batch, rows, channels, rows * pitch, pitch, 1};
  return data;
}

// D as the kernel writes it: the result itself, or what is copied to it.
void prepare_result(PreparedConv& prepared, ConvCall const& call, ConvView const& view, ConvAlgorithm algorithm,
                    ScalarType d_type) {
  conv2d::ConvArgs& args = prepared.args;
  conv2d::ConvProblem const& own = call.problem;
  prepared.d.tensor = make_conv_result(call);
  args.d = prepared.d.tensor->data_ptr();
  args.d_leading = args.n;
  bool const is_wgrad = call.direction == Direction::wgrad, is_fprop = call.direction == Direction::fprop;
  if (algorithm == ConvAlgorithm::swapped) {
    // [channels, taps, filters], each with those that were added.
    std::int64_t const taps = std::int64_t{own.r} * own.s, added = view.channels, row = taps * added;
    prepared.d.copy_to = {args.d, own.k_out, taps, own.c, taps * own.c, own.c, 1};
    prepared.d.temporary =
        empty_strided({view.problem.k_out, own.r, own.s, added}, {row, own.s * added, added, 1}, d_type, call.device);
    args.d = prepared.d.temporary->data_ptr();
    prepared.d.copy_from = {args.d, own.k_out, taps, own.c, 1, added, row};
    return;
  }
  int const filters = view.problem.k_out,
            channels = is_fprop || algorithm == ConvAlgorithm::flipped ? filters : view.channels;
  std::int64_t const own_channels = is_fprop ? own.k_out : own.c;
  bool const as_it_lies = channels == own_channels && (!is_wgrad || filters == own.k_out) && d_type == call.d_type;
  if (as_it_lies) return;
  // [filters, taps, channels], or [1, pixels, channels].
  std::int64_t const batch = is_wgrad ? own.k_out : 1, rows = is_wgrad ? own.taps() : call.m;
  args.d = prepare_temporary(prepared.d, args.d, {batch, rows, own_channels}, is_wgrad ? filters : 1, channels, d_type,
                             call.device);
}

// Where the epilogue stores what is more than D: a tensor laid out as the result of fprop is.
gemm::EpilogueValue prepare_store(PreparedConv& prepared, ConvCall const& call, ScalarType d_type) {
  std::int64_t const own = call.problem.k_out, pitch = prepared.args.n;
  Output& output = prepared.stores.emplace_back();
  output.tensor = make_conv_result(call);
  gemm::EpilogueValue value;
  value.data = output.tensor->data_ptr();
  value.leading = pitch;
  if (pitch != own) {
    value.data = prepare_temporary(output, output.tensor->data_ptr(), {1, call.m, own}, 1, pitch, d_type, call.device);
  }
  return value;
}

// The bias of each of `times` taps, [times, pitch], where these are columns of one GEMM.
Tensor repeated_bias(ConvCall const& call, std::int64_t times, std::int64_t pitch) {
  Tensor const& bias = *call.bias;
  std::int64_t const own = bias.size(0);
  Tensor result = empty_strided({times, pitch}, {pitch, 1}, bias.scalar_type(), call.device);
  if (pitch != own) torch::stable::zero_(result);
  std::array<std::int64_t, 2> const sizes{times, own}, to{pitch, 1}, from{0, bias.stride(0)};
  Tensor target = reinterpret(result, result.data_ptr(), sizes.data(), to.data(), 2);
  torch::stable::copy_(target, reinterpret(bias, bias.data_ptr(), sizes.data(), from.data(), 2));
  std::array<std::int64_t, 1> const all{times * pitch}, one{1};
  return reinterpret(result, result.data_ptr(), all.data(), one.data(), 1);
}

gemm::EpilogueValue prepare_residual(ConvCall const& call, Tensor const& residual, int columns, std::vector<Tensor>& keep) {
  View const rows = flatten_rows(view_of(residual, image_of(residual)), call.m, call.n, keep);
  Matrix const x =
      readable(rows.matrix, rows.owner, call.d_type, columns, /*force_copy=*/columns != call.n, call.device, keep);
  return {x.data, leading_of(x, columns), 0, 0};
}

void prepare_epilogue(PreparedConv& prepared, ConvCall const& call, ConvView const& view, ScaledForm const& form) {
  EpilogueInfo const& info = info_of(form.epilogue);
  int const columns = prepared.args.n;
  // Columns of the input's gradient are channels of all taps that are one to the kernel.
  std::optional<Tensor> of_taps;
  if (call.direction == Direction::dgrad && call.bias && view.fold > 1) {
    of_taps = prepared.keep.emplace_back(repeated_bias(call, view.fold, view.channels));
  }
  for (int i = 0; i < info.count; ++i) {
    EpilogueOperandInfo const& operand = info.operands[i];
    auto const is = [&](char const* name) { return std::strcmp(operand.name, name) == 0; };
    ScalarType const type = operand_type(operand, form.d_type);
    gemm::EpilogueValue value;
    if (is("lower")) {
      value.value = call.activation == Activation::relu ? 0.f : -std::numeric_limits<float>::infinity();
    } else if (operand.kind == OperandKind::scalar) {
      value.value = 1;
    } else if (operand.kind == OperandKind::store) {
      value = prepare_store(prepared, call, form.d_type);
    } else if (is("bias") && call.bias) {
      value = prepare_vector(operand, of_taps ? *of_taps : *call.bias, type, columns, call.device, prepared.keep);
    } else if (is("residual") && call.residual) {
      value = prepare_residual(call, *call.residual, columns, prepared.keep);
    } else if (is("scale_a")) {
      value = {call.scale_input->data_ptr(), /*leading=*/0, 0, 0};
    } else if (is("scale_residual")) {
      value = {call.scale_residual->data_ptr(), /*leading=*/0, 0, 0};
    } else if (is("scale_d")) {
      value = {call.scale_result->data_ptr(), /*leading=*/0, 0, 0};
    } else if (is("scale_b")) {
      value = prepare_vector(operand, *call.scale_weight, type, columns, call.device, prepared.keep);
    }
    prepared.args.epilogue[i] = value;
  }
}

// Whether the implicit GEMM copies the input so that the taps of a row become channels of one tap.
bool copies_overlapping_rows(ConvCall const& call) { return view_of(call, ConvAlgorithm::implicit).windows; }

// The request that selection sees; an implicit GEMM counts padded channels.
GemmRequest request_of(ConvCall const& call, ConvAlgorithm algorithm, ScaledForm const& form,
                       FilterPadding padding = FilterPadding::none) {
  conv2d::ConvProblem const problem = view_of(call, algorithm).problem;
  GemmRequest request = request_of(call, Op::conv2d, form.d_type);
  request.layout_a = request.layout_b = Layout::row;  // of a convolution they mean nothing
  request.epilogue = form.epilogue;
  request.addend = info_of(form.epilogue).addend;
  request.direction = direction_of(call, algorithm);
  auto const [m, n, k] = extents_of(request.direction, problem);
  request.m = m, request.n = n, request.k = k;
  request.taps = problem.taps();
  request.step = problem.step();
  request.is_volume = problem.is_volume();
  request.padded_filter = padding;
  if (algorithm == ConvAlgorithm::gathered) {
    request.few_channels = conv2d::count_few_channels(request.direction, problem);
    return request;
  }
  request.tensor_maps = conv2d::fits_tensor_maps(request.direction, problem);
  request.direct_conv = conv2d::count_direct_conv(request.direction, problem);
  request.space_to_depth = conv2d::count_space_to_depth(request.direction, problem);
  request.shared_pixels = conv2d::count_shared_pixels(request.direction, problem);
  return request;
}

// Prepares a checked call that has something to compute, and allocates its result.
void prepare_conv(PreparedConv& prepared, ConvCall const& call, ConvVariant const& variant) {
  prepared.request = request_of(call, variant.algorithm, variant.form, variant.padding);
  prepared.request.summation = variant.summation;
  conv2d::ConvArgs& args = prepared.args;
  ConvView const view = view_of(call, variant.algorithm);
  args.conv = view.problem;
  args.m = prepared.request.m, args.n = prepared.request.n, args.k = prepared.request.k;
  prepare_operands(prepared, call, view, variant);
  prepare_result(prepared, call, view, variant.algorithm, variant.form.d_type);
  prepare_epilogue(prepared, call, view, variant.form);
}

// --- Convolutions that are GEMMs
// Convolutions with a 1x1 filter are GEMMs whose rows are pixels.

// The call as a GEMM on the memory of its tensors, or on copies where rows are not evenly spaced.
struct ConvGemm {
  std::vector<Tensor> keep;              // copies
  std::deque<Tensor> views;              // the calls below point to them, and a deque does not move its elements
  std::optional<GemmOperands> operands;  // of gemm
  EpilogueCall epilogue;
  std::optional<GemmCall> gemm;
  std::optional<ScaledCall> scaled;
};

// [N, H, W, C] as one matrix of pixels.
View pixels_of(Tensor const& tensor, std::vector<Tensor>& keep) {
  Image const image = image_of(tensor);
  std::int64_t const pixels = image.pixels(), channels = image.channels();
  if (!is_even(image)) return flatten_rows(view_of(tensor, image), pixels, channels, keep);
  return {{image.data, 1, pixels, channels, 0, image.strides[2], image.strides[3]}, tensor};
}

// [Ko, C] of a filter [Ko, C, 1, 1].
Matrix filter_matrix(Tensor const& filter) {
  return {filter.data_ptr(), 1, filter.size(0), filter.size(1), 0, filter.stride(0), filter.stride(1)};
}

void make_gemm(ConvGemm& as_gemm, ConvCall const& call) {
  View const left = pixels_of(*call.a, as_gemm.keep);
  if (call.direction == Direction::wgrad) {
    View const y{left.matrix.transposed(), left.owner};
    as_gemm.operands.emplace(GemmOperands{y, pixels_of(*call.b, as_gemm.keep), call.k});
  } else {
    Matrix const filter = filter_matrix(call.filter());
    View const right{call.direction == Direction::dgrad ? filter : filter.transposed(), call.filter()};
    as_gemm.operands.emplace(GemmOperands{left, right, call.k});
  }
  GemmCall& gemm = as_gemm.gemm.emplace(GemmCall{call});
  gemm.names.dims = 2;
  gemm.operands = &*as_gemm.operands;
  gemm.c = call.bias;
  if (!call.epilogue) return;
  gemm.c = nullptr;
  gemm.epilogue = &as_gemm.epilogue;
  EpilogueCall& epilogue = as_gemm.epilogue;
  epilogue.id = *call.epilogue;
  Tensor const* residual = nullptr;
  if (call.residual) {
    View const pixels = pixels_of(*call.residual, as_gemm.keep);
    residual = &as_gemm.views.emplace_back(matrix_view(pixels.owner, pixels.matrix));
  }
  bind_layer(call.names.op, epilogue, call.bias, residual);
}

// Whether each pixel of the input has at most one position and one tap of it.
bool is_patches(ConvCall const& call) {
  conv2d::ConvProblem const& p = call.problem;
  bool const unpadded = p.pad_h == 0 && p.pad_w == 0 && p.p * p.r <= p.h && p.q * p.s <= p.w;
  // Pixels without a position would lack the bias.
  bool const is_full = p.p * p.r == p.h && p.q * p.s == p.w;
  return unpadded && !p.is_volume() && (is_full || !call.is_transposed) && p.stride_h == p.r && p.stride_w == p.s &&
         (p.dilation_h == 1 || p.r == 1) && (p.dilation_w == 1 || p.s == 1) && p.r * p.s > 1;
}

// Whether the gradient of the input may be summed from columns: those of few channels are little memory. Epilogues are
// those of the GEMM, so they need pixels of one column.
bool may_sum_columns(ConvCall const& call) {
  constexpr int kFewChannels = 8, kMost = std::numeric_limits<int>::max() - 65535;
  conv2d::ConvProblem const& p = call.problem;
  bool const may_sum = p.c <= kFewChannels && !p.is_volume() && !call.bias && !call.epilogue;
  return call.direction == Direction::dgrad && p.r * p.s > 1 && (may_sum || is_patches(call)) &&
         std::max(p.stride_h, p.stride_w) <= conv2d::Col2imAxis::kMaxStride && call.m * p.c <= kMost;
}

// The GEMM of columns. Pixels that are sums have float32 ones, of four channels at a time.
struct Columns {
  ConvCall call;
  int channels;  // of a tap
};

Columns columns_of(ConvCall const& call) {
  constexpr int kVector = 4;
  conv2d::ConvProblem const& p = call.problem;
  bool const sums = !is_patches(call);
  Columns columns{call, sums ? round_up(p.c, kVector) : p.c};
  ConvCall& gemm = columns.call;
  gemm.m = std::int64_t{p.images} * p.p * p.q, gemm.n = std::int64_t{p.r} * p.s * columns.channels, gemm.k = p.k_out;
  if (sums) gemm.d_type = ScalarType::Float;
  return columns;
}

void make_columns(ConvGemm& as_gemm, Columns const& columns) {
  ConvCall const& call = columns.call;
  Matrix const filters = filter_rows(call.filter(), columns.channels, call.device, as_gemm.keep);
  as_gemm.operands.emplace(GemmOperands{pixels_of(*call.a, as_gemm.keep), {filters, call.filter()}, call.k});
  GemmCall& gemm = as_gemm.gemm.emplace(GemmCall{call});
  gemm.names.dims = 2;
  gemm.operands = &*as_gemm.operands;
  std::int64_t const taps = std::int64_t{call.problem.r} * call.problem.s;
  Tensor const* const bias = call.bias ? &as_gemm.views.emplace_back(repeated_bias(call, taps, columns.channels)) : nullptr;
  gemm.c = bias;
  if (!call.epilogue) return;
  gemm.c = nullptr;
  gemm.epilogue = &as_gemm.epilogue;
  as_gemm.epilogue.id = *call.epilogue;
  bind_layer(call.names.op, as_gemm.epilogue, bias, nullptr);
}

void make_scaled(ConvGemm& as_gemm, ConvCall const& call) {
  constexpr std::int64_t kTensorwise = 0, kRowwise = 1;
  View const pixels = pixels_of(*call.a, as_gemm.keep);
  Tensor const& a = as_gemm.views.emplace_back(matrix_view(pixels.owner, pixels.matrix));
  Tensor const& b = as_gemm.views.emplace_back(matrix_view(call.filter(), filter_matrix(call.filter()).transposed()));
  ScaledCall& scaled = as_gemm.scaled.emplace(ScaledCall{{call.names, &a, &b}});
  scaled.names.dims = 2;
  scaled.out_dtype = call.d_type;
  scaled.scale_a = call.scale_input, scaled.scale_b = call.scale_weight;
  scaled.bias = call.bias;
  scaled.recipe_a = kTensorwise;
  scaled.recipe_b = call.scale_weight->numel() == 1 ? kTensorwise : kRowwise;
}

// Whether there are kernels of GEMMs for what follows the sums: of scaled ones without an activation, in 16 or 32 bits.
bool is_pointwise(ConvCall const& call) {
  conv2d::ConvProblem const& p = call.problem;
  if (call.is_scaled && (call.is_quantized() || call.activation != Activation::none)) return false;
  // The sizes tell that there is no padding behind the last row, either.
  return p.taps() == 1 && call.unit_stride() && p.pad_h == 0 && p.pad_w == 0 && p.pad_d == 0 && p.p == p.h && p.q == p.w &&
         p.o == p.d;
}

// Fills `as_gemm`, which must not move afterwards.
void make_gemm_view(ConvGemm& as_gemm, ConvCall const& call, ConvAlgorithm algorithm) {
  if (algorithm == ConvAlgorithm::columns) {
    make_columns(as_gemm, columns_of(call));
  } else if (call.is_scaled) {
    make_scaled(as_gemm, call);
  } else {
    make_gemm(as_gemm, call);
  }
}

// The op's result, made of that of a scaled GEMM.
Tensor result_of_gemm(ConvCall const& call, Tensor const& result) {
  conv2d::ConvProblem const& p = call.problem;
  std::array<std::int64_t, 4> const sizes{p.images, p.h, p.w, call.n};
  Image image{result.data_ptr(), sizes, {}};
  image.strides = {sizes[1] * sizes[2] * sizes[3], sizes[2] * sizes[3], sizes[3], 1};
  return nchw_view(result, image);
}

// --- Running

// A float32 bias takes D in float32, unless D has 8 bits: then it is one.
ScaledForms forms_of(ConvCall const& call) {
  if (call.is_scaled && call.is_quantized()) {
    Epilogue const epilogue = call.residual                         ? Epilogue::quantized_residual
                              : call.activation == Activation::silu ? Epilogue::quantized_silu
                                                                    : Epilogue::quantized;
    return {{ScaledForm{epilogue, call.d_type}}, 1};
  }
  if (call.is_scaled) return scaled_forms({Epilogue::scaled_bounded, Epilogue::scaled_bounded}, call.d_type, call.bias);
  return {{ScaledForm{call.epilogue.value_or(call.bias ? Epilogue::bias : Epilogue::plain), call.d_type}}, 1};
}

ScaledForm first_form(ConvCall const& call) { return forms_of(call).forms[0]; }

// The form that serves the call as a GEMM, if its operands lie as they should.
std::optional<GemmPlan> plan_of_gemm(ConvCall const& call) {
  if (call.is_scaled) {
    ScaledCall scaled{call};
    scaled.scale_a = call.scale_input, scaled.scale_b = call.scale_weight, scaled.bias = call.bias;
    return choose_plan(request_of(scaled, choose_form(scaled)));
  }
  GemmRequest request = request_of(call, Op::gemm, call.d_type);
  // 32-bit operands that lie otherwise are copied.
  bool const k_first = call.direction == Direction::wgrad && element_bytes(request.a) == 2;
  request.layout_a = k_first ? Layout::column : Layout::row;
  request.layout_b =
      k_first || (call.direction == Direction::dgrad && element_bytes(request.a) == 2) ? Layout::row : Layout::column;
  request.addend = call.bias ? Addend::row : Addend::none;
  if (call.epilogue && info_of(*call.epilogue).addend == Addend::other) {
    request.addend = Addend::other;
    request.epilogue = *call.epilogue;
  }
  return choose_plan(request);
}

// The result, and what the epilogue stores besides.
using ConvResults = std::vector<Tensor>;

ConvResults results_of(Output& d, std::vector<Output>& stores) {
  ConvResults results{*std::move(d.tensor)};
  for (Output& store : stores) results.push_back(*std::move(store.tensor));
  return results;
}

int count_stores(ConvCall const& call) { return call.epilogue ? stores_of(info_of(*call.epilogue)) : 0; }

ConvResults run_gemm(ConvCall const& call) {
  ConvGemm as_gemm;
  make_gemm_view(as_gemm, call, ConvAlgorithm::gemm);
  PreparedGemm prepared;
  if (as_gemm.scaled) {
    run_call(prepared, *as_gemm.scaled);
    return {result_of_gemm(call, *prepared.d.tensor)};
  }
  prepared.d.tensor = make_conv_result(call);
  for (int i = 0; i < count_stores(call); ++i) prepared.stores.emplace_back().tensor = make_conv_result(call);
  run_call(prepared, *as_gemm.gemm);
  return results_of(prepared.d, prepared.stores);
}

KernelDescriptor const* col2im_kernel(Columns const& columns, ScalarType image, DeviceInfo const& device) {
  return choose_col2im_kernel(device, dtype_of(columns.call.d_type), dtype_of(image));
}

Tensor run_columns(ConvCall const& call) {
  Columns const columns = columns_of(call);
  ConvGemm as_gemm;
  make_columns(as_gemm, columns);
  std::int64_t const positions = as_gemm.gemm->m, count = as_gemm.gemm->n;
  PreparedGemm prepared;
  prepared.d.tensor = empty_strided({positions, count}, {count, 1}, columns.call.d_type, call.device);
  run_call(prepared, *as_gemm.gemm);
  Tensor result = make_conv_result(call);
  DeviceInfo const& device = device_info(call.device);
  conv2d::Col2imArgs args;
  args.device = &device;
  args.conv = call.problem;
  args.a = {prepared.d.tensor->data_ptr(), count, 0};
  args.d = result.data_ptr();
  args.channels = columns.channels;
  args.is_patches = is_patches(call);
  launch_kernel(*col2im_kernel(columns, call.d_type, device), args, call.names.op);
  return result;
}

char const* name_of(ConvAlgorithm algorithm) {
  switch (algorithm) {
    case ConvAlgorithm::none: break;
    case ConvAlgorithm::implicit: return "implicit GEMM";
    case ConvAlgorithm::flipped: return "implicit GEMM of the flipped filter";
    case ConvAlgorithm::gemm: return "GEMM";
    case ConvAlgorithm::unfolded: return "implicit GEMM of blocks of pixels";
    case ConvAlgorithm::swapped: return "implicit GEMM of swapped operands";
    case ConvAlgorithm::columns: return "GEMM and col2im";
    case ConvAlgorithm::gathered: return "direct convolution of gathered pixels";
  }
  return "none";
}

// An estimate of the two launches that put a filter in order.
constexpr double kReorderUs = 6;

// Whether few filters, of at most half of the smallest tile's rows, have a gradient that is one of swapped operands.
bool may_swap(ConvCall const& call) {
  constexpr int kFewFilters = 32;
  conv2d::ConvProblem const& p = call.problem;
  return call.direction == Direction::wgrad && call.unit_stride() && !p.is_volume() && p.k_out <= kFewFilters &&
         p.r * p.s > 1 && element_bytes_of(call.type) == 2 && p.pad_h <= (p.r - 1) * p.dilation_h &&
         p.pad_w <= (p.s - 1) * p.dilation_w;
}

// An estimate of a launch that reads and writes so many bytes.
double pass_us(std::int64_t bytes, DeviceInfo const& device) {
  return bytes ? 2.5 + static_cast<double>(bytes) / (0.8 * device.memory_gb_per_s * 1e3) : 0;
}

// The variant with a filter whose taps, or which itself, begins on a line of L2, where that is predicted to be faster, the
// copy included: TMA reads two lines for each row of 128 bytes that lies across them, and many rows of a tile are the
// filter's.
ConvVariant with_padded_filter(ConvCall const& call, ConvVariant const& own, DeviceInfo const& device) {
  // Shorter calls gain less than the copy takes, and the least gain is an estimate of what predictions are off by. For
  // dgrad behind a stride too much is predicted: of five layers on an H200, three that were to take 0.87 to 0.91 of the
  // time took 1.04 to 1.08, and two of 0.68 took 0.83 and 0.86.
  constexpr double kLeastUs = 15, kLeastGain = 2.5, kMostOfDgrad = 0.85;
  ConvView const view = view_of(call, own.algorithm);
  conv2d::ConvProblem const& p = view.problem;
  double const own_us = own.plan->predicted_us;
  if (call.direction == Direction::wgrad || view.fold > 1 || own_us < kLeastUs) return own;
  std::int64_t const row = std::int64_t{p.taps()} * p.c, line = line_elements(call.type);
  double const share = direction_of(call, own.algorithm) == Direction::dgrad ? kMostOfDgrad : 1;
  double const least_us = std::min(own_us - kLeastGain, own_us * share);
  ConvVariant best = own;
  for (FilterPadding const padding : {FilterPadding::taps, FilterPadding::filters}) {
    // Filters as a whole are slow if they begin within two sectors of 32 bytes.
    bool const is_fast = padding == FilterPadding::taps ? p.c % line == 0 : row % (line / 2) == 0;
    if (is_fast) continue;
    ConvVariant padded = own;
    padded.padding = padding;
    padded.plan = choose_plan(request_of(call, own.algorithm, own.form, padding));
    if (!padded.plan || !is_native(*padded.plan, device)) continue;
    double& us = padded.plan->predicted_us;
    // A flipped filter is a copy anyway.
    if (own.algorithm == ConvAlgorithm::implicit) us += pass_us(2 * p.k_out * row * element_bytes_of(call.type), device);
    if (us < std::min(least_us, best.plan->predicted_us)) best = padded;
  }
  return best;
}

// The gradient at stride 1 by fprop, where that is faster than `own`, by dgrad. Kernels of fprop read filters along K and
// have tiles of widths that are no multiple of 64 columns.
std::optional<ConvVariant> flipped_variant(ConvCall const& call, GemmPlan const& own, DeviceInfo const& device) {
  // Shorter calls gain less than copying the filter takes. Of volumes, whose figures are those of images, fprop takes 0.73
  // to 1.02 of the time of dgrad with 96 to 384 channels, 3x3x3 (an H100, bf16): where predictions are close, it wins.
  constexpr double kLeastUs = 60, kClose = 1.02;
  if (own.predicted_us < kLeastUs) return std::nullopt;
  ConvVariant flipped{ConvAlgorithm::flipped, first_form(call)};
  flipped.plan = choose_plan(request_of(call, flipped.algorithm, flipped.form));
  if (!flipped.plan || !is_native(*flipped.plan, device)) return std::nullopt;
  flipped = with_padded_filter(call, flipped, device);
  // An estimate: three filters of 2 to 29 MB were flipped at 0.2 TB/s.
  double const bytes = 1.0 * call.n * call.k * element_bytes_of(call.type), flip_us = kReorderUs + bytes / 0.2e6;
  double const own_us = own.predicted_us * (call.problem.is_volume() ? kClose : 1);
  return flipped.plan->predicted_us + flip_us < own_us ? std::optional(flipped) : std::nullopt;
}

// The cheapest native variant, else one through PTX; none if no kernel serves the call.
ConvVariant cheapest_variant(ConvCall const& call) {
  DeviceInfo const& device = device_info(call.device);
  FirstNative<ConvVariant> choice{device};
  if (is_pointwise(call)) {
    std::optional<GemmPlan> const gemm = plan_of_gemm(call);
    // K of a filter's gradient is long: kernels of convolutions may split it finer. And they copy a residual to shared
    // memory beside the accumulators, which most kernels of GEMMs read behind them.
    bool const splits = call.direction == Direction::wgrad;
    std::optional<GemmPlan> implicit;
    double implicit_us = 0;
    if (gemm && (splits || call.residual)) {
      GemmRequest const request = request_of(call, ConvAlgorithm::implicit, first_form(call));
      implicit = choose_plan(request);
      if (implicit) implicit_us = implicit->predicted_us;
      if (implicit && call.residual) implicit_us += residual_us(*implicit, request, device);
    }
    bool const pays =
        implicit && implicit_us < gemm->predicted_us &&
        (splits || (is_persistent(*implicit->kernel) && runs_native(implicit->kernel->arch, device.major, device.minor)));
    if (!pays) choice.offer({ConvAlgorithm::gemm, {}, gemm}, gemm);
    if (choice.native) return *choice.chosen;  // it stays the first
  }
  if (call.direction == Direction::fprop && !call.is_scaled &&
      conv2d::count_few_channels(call.direction, call.problem).output_tiles > 0) {
    ScaledForm const form = first_form(call);
    // Bypasses the cost model: other kernels read a copy of the image, which is 2.7 times as large.
    std::optional<GemmPlan> const plan = choose_plan(request_of(call, ConvAlgorithm::gathered, form));
    if (plan) return {ConvAlgorithm::gathered, form, plan};
  }
  if (call.direction == Direction::fprop && !call.is_scaled && copies_overlapping_rows(call)) {
    ScaledForm const form = first_form(call);
    GemmRequest const request = request_of(call, ConvAlgorithm::unfolded, form);
    std::optional<GemmPlan> const plan = request.space_to_depth.output_tiles > 0 ? choose_plan(request) : std::nullopt;
    // Bypasses the cost model, which misses that overlapping rows of a copy are loaded 2 to 3 times as slowly as full
    // lines.
    if (plan && plan->kernel->family == Family::sm90_space_to_depth) return {ConvAlgorithm::unfolded, form, plan};
  }
  if (may_sum_columns(call)) {
    Columns const columns = columns_of(call);
    std::optional<GemmPlan> const gemm = plan_of_gemm(columns.call),
                                  own = choose_plan(request_of(call, ConvAlgorithm::implicit, first_form(call)));
    // Estimates, as is what a kernel of convolutions has copied for channels that are added.
    conv2d::ConvProblem const& p = call.problem;
    std::int64_t const d_bytes = element_bytes_of(call.d_type), added = whole(p.c, call.type) - p.c;
    std::int64_t const of_columns = columns.call.m * columns.call.n * element_bytes_of(columns.call.d_type),
                       of_image = call.m * p.c * d_bytes, of_copy = added ? call.m * added * d_bytes + 2 * of_image : 0;
    double const own_us = own ? own->predicted_us + pass_us(of_copy, device) : 0;
    bool const pays =
        gemm && is_native(*gemm, device) && col2im_kernel(columns, call.d_type, device) &&
        (!own || !is_native(*own, device) || gemm->predicted_us + pass_us(of_columns + of_image, device) < own_us);
    if (pays) return {ConvAlgorithm::columns, {}, gemm};
  }
  auto const offer = [&](ConvAlgorithm algorithm, ScaledForm const& form) {
    std::optional<GemmPlan> const plan = choose_plan(request_of(call, algorithm, form));
    choice.offer({algorithm, form, plan}, plan);
  };
  ScaledForms const forms = forms_of(call);
  if (may_swap(call)) {
    std::optional<GemmPlan> const own = choose_plan(request_of(call, ConvAlgorithm::implicit, forms.forms[0])),
                                  swapped = choose_plan(request_of(call, ConvAlgorithm::swapped, forms.forms[0]));
    if (own && swapped && is_native(*swapped, device) && swapped->predicted_us + kReorderUs < own->predicted_us) {
      return {ConvAlgorithm::swapped, forms.forms[0], swapped};
    }
  }
  for (std::size_t i = 0; i < forms.count && !choice.native; ++i) offer(ConvAlgorithm::implicit, forms.forms[i]);
  // Tensor cores of Hopper read 32-bit operands K-major only, so there is fprop alone.
  bool const may_flip = call.direction == Direction::dgrad && call.unit_stride();
  if (may_flip && !choice.native) offer(ConvAlgorithm::flipped, forms.forms[0]);
  if (choice.native && choice.chosen->algorithm == ConvAlgorithm::implicit) {
    choice.chosen = with_padded_filter(call, *choice.chosen, device);
  }
  if (may_flip && choice.chosen && choice.chosen->algorithm == ConvAlgorithm::implicit) {
    std::optional<ConvVariant> const flipped = flipped_variant(call, *choice.chosen->plan, device);
    if (flipped) return *flipped;
  }
  return choice.chosen.value_or(ConvVariant{});
}

// The call with a number of images that depends on their size alone.
ConvCall of_nominal_batch(ConvCall const& call) {
  constexpr std::int64_t kImages = 32, kMostPixels = 1 << 26;
  ConvCall nominal = call;
  conv2d::ConvProblem& p = nominal.problem;
  p.images = 1;
  std::int64_t const largest = std::max(p.pixels(), p.positions());
  p.images = static_cast<int>(std::clamp<std::int64_t>(kMostPixels / largest, 1, kImages));
  nominal.m = call.m / call.problem.images * p.images;
  return nominal;
}

// In batch_invariant() the algorithm, the epilogue and the summation order are those of the nominal batch, and the tile is
// that of the call.
ConvVariant choose_variant(ConvCall const& call) {
  if (call.sums_batch || !batch_invariant()) return cheapest_variant(call);
  ConvVariant variant = cheapest_variant(of_nominal_batch(call));
  if (variant.algorithm == ConvAlgorithm::columns && !may_sum_columns(call)) return {};
  if (variant.algorithm == ConvAlgorithm::columns || variant.algorithm == ConvAlgorithm::gemm || !variant.plan) {
    return variant;
  }
  GemmRequest request = request_of(call, variant.algorithm, variant.form, variant.padding);
  request.summation = variant.summation = variant.plan->kernel->summation;
  variant.plan = choose_plan(request);
  return variant.plan ? variant : ConvVariant{};
}

char const* torch_function(ConvCall const& call) {
  if (call.is_transposed) return call.has_depth() ? "conv_transpose3d" : "conv_transpose2d";
  return call.has_depth() ? "conv3d" : "conv2d";
}

// --- Training: the result, and what its activation is applied to, from one kernel or from one each

// The elementwise kernel of an epilogue's activation; none where something follows that.
std::optional<Epilogue> activation_of(EpilogueInfo const& info) {
  std::string_view name(info.name);
  for (std::string_view const before : {"bias_", "residual_"}) {
    if (name.substr(0, before.size()) == before) name.remove_prefix(before.size());
  }
  constexpr std::string_view kStored = "_aux";
  if (name.size() < kStored.size() || name.substr(name.size() - kStored.size()) != kStored) return std::nullopt;
  return find_epilogue(std::string(name.substr(0, name.size() - kStored.size())) + "_forward");
}

// The convolution up to its activation.
ConvCall before_activation(ConvCall const& call) {
  ConvCall before = call;
  before.epilogue.reset();
  if (has_operand(*call.epilogue, OperandKind::matrix)) before.epilogue = Epilogue::bias_residual;
  return before;
}

// Whether the activation is a kernel of its own: there are few tiles that store both, and special kernels for few channels
// store one tensor. For 3x3 filters of 64 channels one kernel takes 1.7 times as long forward as both, for 256 channels
// 0.93 to 0.98 of the time (H200).
bool is_apart(ConvCall const& call) {
  if (!activation_of(info_of(*call.epilogue))) return false;
  DeviceInfo const& device = device_info(call.device);
  ConvVariant const both = choose_variant(call);
  if (both.algorithm == ConvAlgorithm::none || !is_native(*both.plan, device)) return true;
  if (batch_invariant()) return false;  // the choice is to depend on no number of images
  ConvVariant const first = choose_variant(before_activation(call));
  std::int64_t const bytes = 2 * call.m * call.n * element_bytes_of(call.d_type);
  return first.algorithm != ConvAlgorithm::none &&
         first.plan->predicted_us + pass_us(bytes, device) < both.plan->predicted_us;
}

ConvResults run_checked(ConvCall const& call);

ConvResults run_apart(ConvCall const& call) {
  Tensor z = std::move(run_checked(before_activation(call))[0]);
  std::vector<std::int64_t> const sizes(z.sizes().begin(), z.sizes().end()),
      strides(z.strides().begin(), z.strides().end());
  std::array<std::int64_t, 2> const rows{call.m, call.n}, pitches{call.n, 1};
  Tensor const result = apply_elementwise(*activation_of(info_of(*call.epilogue)),
                                          reinterpret(z, z.data_ptr(), rows.data(), pitches.data(), 2));
  Tensor image = reinterpret(result, result.data_ptr(), sizes.data(), strides.data(), static_cast<int>(sizes.size()));
  return {std::move(image), std::move(z)};
}

ConvResults run_with_stores(ConvCall& call) {
  check(call);
  DeviceScope const scope(call.device);
  SlicedOperands const sliced(call);
  if (call.problem.images == 0) {
    ConvResults results;
    for (int i = 0; i <= count_stores(call); ++i) results.push_back(make_conv_result(call));
    if (call.direction == Direction::wgrad) torch::stable::zero_(results[0]);
    return results;
  }
  return count_stores(call) > 0 && is_apart(call) ? run_apart(call) : run_checked(call);
}

ConvResults run_checked(ConvCall const& call) {
  conv2d::ConvProblem const& p = call.problem;
  DeviceInfo const& device = device_info(call.device);
  ConvVariant variant = choose_variant(call);
  if (variant.algorithm == ConvAlgorithm::none) {
    GemmRequest const request = request_of(call, ConvAlgorithm::implicit, first_form(call));
    fail(ErrorKind::not_implemented, call.names.op, ": ", explain_miss(request, device), "\ntorch.nn.functional.",
         torch_function(call), " serves it.");
  }
  if (variant.algorithm == ConvAlgorithm::gemm) return run_gemm(call);
  if (variant.algorithm == ConvAlgorithm::columns) return {run_columns(call)};
  PreparedConv prepared;
  auto const launched = [&] {
    prepared = {};
    prepared.args.device = &device;
    prepare_conv(prepared, call, variant);
    return launch(prepared, call.names.op, *variant.plan);
  };
  // Kernels that tensor maps have no bits for are others than those of padded filters.
  bool is_done = launched();
  if (!is_done && variant.padding != FilterPadding::none) {
    variant = {variant.algorithm, variant.form, choose_plan(request_of(call, variant.algorithm, variant.form))};
    is_done = variant.plan && launched();
  }
  if (!is_done) {
    auto const of_depth = [&](char const* before, int value, char const* behind) {
      return call.has_depth() ? concat(before, value, behind) : std::string();
    };
    fail(ErrorKind::not_implemented, call.names.op,
         ": no kernel of this wheel takes a convolution of these extents (N=", p.images, ", C=", p.c,
         of_depth(", D=", p.d, ""), ", H=", p.h, ", W=", p.w, ", Ko=", p.k_out, of_depth(", T=", p.t, ""), ", R=", p.r,
         ", S=", p.s, ", stride ", of_depth("", p.stride_d, "x"), p.stride_h, "x", p.stride_w, ", dilation ",
         of_depth("", p.dilation_d, "x"), p.dilation_h, "x", p.dilation_w, "); use torch.nn.functional.",
         torch_function(call));
  }
  if (variant.algorithm == ConvAlgorithm::swapped) {
    prepared.d.temporary = flip(*prepared.d.temporary, 1, 2);
    prepared.d.copy_from.data = prepared.d.temporary->data_ptr();
  }
  finish_output(prepared.d);
  for (Output& store : prepared.stores) finish_output(store);
  return results_of(prepared.d, prepared.stores);
}

Tensor run_conv(ConvCall& call) { return std::move(run_with_stores(call)[0]); }

// --- Ops: tensors [N, C, H, W] in any memory format, results in channels_last. Geometry is eight numbers (of volumes
// twelve): as three lists they would take torch two to three times as long.

ConvCall fprop_call(OpNames const& names, Tensor const& input, Tensor const& weight, std::optional<Tensor> const& bias,
                    ConvGeometry const& geometry, bool allow_tf32) {
  ConvCall call = make_conv_call(names, Direction::fprop, input, weight, geometry, allow_tf32);
  call.bias = bias ? &*bias : nullptr;
  return call;
}

ConvCall conv2d_call(Tensor const& input, Tensor const& weight, std::optional<Tensor> const& bias,
                     ConvGeometry const& geometry, bool allow_tf32) {
  return fprop_call(kConv2d, input, weight, bias, geometry, allow_tf32);
}

// A transposed convolution is the gradient of the input of one whose result `input` is. An epilogue "plain" or "bias" is
// what a bias is, or none.
ConvCall transposed_call(OpNames const& names, Tensor const& input, Tensor const& weight, std::optional<Tensor> const& bias,
                         Extents2d const& size, ConvGeometry const& geometry, std::string_view epilogue, bool allow_tf32) {
  ConvCall call = make_conv_call(names, Direction::dgrad, input, weight, geometry, allow_tf32);
  call.size = size;
  call.is_transposed = true;
  call.bias = bias ? &*bias : nullptr;
  Epilogue const named = conv_epilogue(names, epilogue);
  if (stores_of(info_of(named)) > 0) {
    fail(kValue, names.op, ": epilogue \"", info_of(named).name,
         "\" stores more than the result; expected one that does not");
  }
  if (has_operand(named, OperandKind::matrix)) {
    fail(kValue, names.op, ": epilogue \"", info_of(named).name, "\" takes a residual; expected one of a bias alone");
  }
  if (named == Epilogue::plain && bias) {
    fail(kValue, names.op, ": epilogue \"plain\" takes no bias; expected None, or an epilogue that adds it");
  }
  if (named != Epilogue::plain && named != Epilogue::bias) call.epilogue = named;
  return call;
}

ConvCall conv_gradient_call(OpNames const& names, Direction direction, Tensor const& grad_output, Tensor const& other,
                            Extents2d const& size, ConvGeometry const& geometry, bool allow_tf32) {
  ConvCall call = make_conv_call(names, direction, grad_output, other, geometry, allow_tf32);
  call.size = size;
  return call;
}

ConvCall scaled_conv_call(Tensor const& input, Tensor const& weight, Tensor const& scale_input, Tensor const& scale_weight,
                          std::optional<Tensor> const& bias, ConvGeometry const& geometry,
                          std::optional<ScalarType> out_dtype, std::optional<Tensor> const& residual,
                          std::optional<Tensor> const& scale_residual, std::optional<Tensor> const& scale_result,
                          std::string_view activation) {
  ConvCall call = make_conv_call(kScaledConv2d, Direction::fprop, input, weight, geometry, /*allow_tf32=*/false);
  auto const pointer = [](std::optional<Tensor> const& tensor) { return tensor ? &*tensor : nullptr; };
  call.bias = pointer(bias), call.residual = pointer(residual);
  call.scale_input = &scale_input, call.scale_weight = &scale_weight;
  call.scale_residual = pointer(scale_residual), call.scale_result = pointer(scale_result);
  if (activation == "relu") {
    call.activation = Activation::relu;
  } else if (activation == "silu") {
    call.activation = Activation::silu;
  } else if (!activation.empty()) {
    fail(kValue, kScaledConv2d.op, ": activation is \"", activation, "\"; expected \"relu\", \"silu\" or \"\"");
  }
  call.out_dtype = out_dtype;
  call.is_scaled = true;
  return call;
}

// weight [Ko, C, R, S], bias [Ko].
Tensor conv2d_op(Tensor const& input, Tensor const& weight, std::optional<Tensor> const& bias, std::int64_t stride_h,
                 std::int64_t stride_w, std::int64_t padding_top, std::int64_t padding_bottom, std::int64_t padding_left,
                 std::int64_t padding_right, std::int64_t dilation_h, std::int64_t dilation_w, bool allow_tf32) {
  ConvCall call = conv2d_call(
      input, weight, bias,
      {{stride_h, stride_w}, {padding_top, padding_bottom, padding_left, padding_right}, {dilation_h, dilation_w}},
      allow_tf32);
  return run_conv(call);
}

ConvResults conv2d_fused_results(Tensor const& input, Tensor const& weight, std::optional<Tensor> const& bias,
                                 std::optional<Tensor> const& residual, ConvGeometry const& geometry, StringHandle epilogue,
                                 bool allow_tf32, int stores) {
  TextArgument const name(epilogue);
  ConvCall call = conv2d_call(input, weight, bias, geometry, allow_tf32);
  call.residual = residual ? &*residual : nullptr;
  call.epilogue = conv_epilogue(kConv2d, name.view(), stores);
  return run_with_stores(call);
}

// residual [N, Ko, P, Q].
Tensor conv2d_fused(Tensor const& input, Tensor const& weight, std::optional<Tensor> const& bias,
                    std::optional<Tensor> const& residual, std::int64_t stride_h, std::int64_t stride_w,
                    std::int64_t padding_top, std::int64_t padding_bottom, std::int64_t padding_left,
                    std::int64_t padding_right, std::int64_t dilation_h, std::int64_t dilation_w, StringHandle epilogue,
                    bool allow_tf32) {
  return std::move(conv2d_fused_results(
      input, weight, bias, residual,
      {{stride_h, stride_w}, {padding_top, padding_bottom, padding_left, padding_right}, {dilation_h, dilation_w}},
      epilogue, allow_tf32, /*stores=*/0)[0]);
}

// And what the epilogue stores, as the result lies.
std::tuple<Tensor, Tensor> conv2d_fused_aux(Tensor const& input, Tensor const& weight, std::optional<Tensor> const& bias,
                                            std::optional<Tensor> const& residual, std::int64_t stride_h,
                                            std::int64_t stride_w, std::int64_t padding_top, std::int64_t padding_bottom,
                                            std::int64_t padding_left, std::int64_t padding_right, std::int64_t dilation_h,
                                            std::int64_t dilation_w, StringHandle epilogue, bool allow_tf32) {
  ConvResults results = conv2d_fused_results(
      input, weight, bias, residual,
      {{stride_h, stride_w}, {padding_top, padding_bottom, padding_left, padding_right}, {dilation_h, dilation_w}},
      epilogue, allow_tf32, /*stores=*/1);
  return {std::move(results[0]), std::move(results[1])};
}

// `size` is H and W of the input, or R and S of the weight. The sums of split-K are added in a fixed order: all results
// are deterministic.
template <Direction direction>
Tensor conv2d_gradient(Tensor const& grad_output, Tensor const& other, std::int64_t size_h, std::int64_t size_w,
                       std::int64_t stride_h, std::int64_t stride_w, std::int64_t padding_top, std::int64_t padding_bottom,
                       std::int64_t padding_left, std::int64_t padding_right, std::int64_t dilation_h,
                       std::int64_t dilation_w, bool allow_tf32) {
  OpNames const& names = direction == Direction::dgrad ? kConvInputGrad : kConvWeightGrad;
  ConvCall call = conv_gradient_call(
      names, direction, grad_output, other, {size_h, size_w},
      {{stride_h, stride_w}, {padding_top, padding_bottom, padding_left, padding_right}, {dilation_h, dilation_w}},
      allow_tf32);
  return run_conv(call);
}

// The result is [N, C, output_h, output_w].
Tensor conv_transpose2d(Tensor const& input, Tensor const& weight, std::optional<Tensor> const& bias, std::int64_t output_h,
                        std::int64_t output_w, std::int64_t stride_h, std::int64_t stride_w, std::int64_t padding_top,
                        std::int64_t padding_bottom, std::int64_t padding_left, std::int64_t padding_right,
                        std::int64_t dilation_h, std::int64_t dilation_w, StringHandle epilogue, bool allow_tf32) {
  TextArgument const name(epilogue);
  ConvCall call = transposed_call(
      kConvTranspose2d, input, weight, bias, {output_h, output_w},
      {{stride_h, stride_w}, {padding_top, padding_bottom, padding_left, padding_right}, {dilation_h, dilation_w}},
      name.view(), allow_tf32);
  return run_conv(call);
}

// --- Volumes: tensors [N, C, D, H, W], filters [Ko, C, T, R, S], results in channels_last_3d.

// weight [Ko, C, T, R, S], bias [Ko].
Tensor conv3d_op(Tensor const& input, Tensor const& weight, std::optional<Tensor> const& bias, std::int64_t stride_d,
                 std::int64_t stride_h, std::int64_t stride_w, std::int64_t padding_front, std::int64_t padding_back,
                 std::int64_t padding_top, std::int64_t padding_bottom, std::int64_t padding_left,
                 std::int64_t padding_right, std::int64_t dilation_d, std::int64_t dilation_h, std::int64_t dilation_w,
                 bool allow_tf32) {
  ConvCall call = fprop_call(kConv3d, input, weight, bias,
                             {{stride_h, stride_w},
                              {padding_top, padding_bottom, padding_left, padding_right},
                              {dilation_h, dilation_w},
                              stride_d,
                              {padding_front, padding_back},
                              dilation_d},
                             allow_tf32);
  return run_conv(call);
}

ConvResults conv3d_fused_results(Tensor const& input, Tensor const& weight, std::optional<Tensor> const& bias,
                                 std::optional<Tensor> const& residual, ConvGeometry const& geometry, StringHandle epilogue,
                                 bool allow_tf32, int stores) {
  TextArgument const name(epilogue);
  ConvCall call = fprop_call(kConv3d, input, weight, bias, geometry, allow_tf32);
  call.residual = residual ? &*residual : nullptr;
  call.epilogue = conv_epilogue(kConv3d, name.view(), stores);
  return run_with_stores(call);
}

// residual [N, Ko, D', P, Q].
Tensor conv3d_fused(Tensor const& input, Tensor const& weight, std::optional<Tensor> const& bias,
                    std::optional<Tensor> const& residual, std::int64_t stride_d, std::int64_t stride_h,
                    std::int64_t stride_w, std::int64_t padding_front, std::int64_t padding_back, std::int64_t padding_top,
                    std::int64_t padding_bottom, std::int64_t padding_left, std::int64_t padding_right,
                    std::int64_t dilation_d, std::int64_t dilation_h, std::int64_t dilation_w, StringHandle epilogue,
                    bool allow_tf32) {
  return std::move(conv3d_fused_results(input, weight, bias, residual,
                                        {{stride_h, stride_w},
                                         {padding_top, padding_bottom, padding_left, padding_right},
                                         {dilation_h, dilation_w},
                                         stride_d,
                                         {padding_front, padding_back},
                                         dilation_d},
                                        epilogue, allow_tf32, /*stores=*/0)[0]);
}

// And what the epilogue stores, as the result lies.
std::tuple<Tensor, Tensor> conv3d_fused_aux(Tensor const& input, Tensor const& weight, std::optional<Tensor> const& bias,
                                            std::optional<Tensor> const& residual, std::int64_t stride_d,
                                            std::int64_t stride_h, std::int64_t stride_w, std::int64_t padding_front,
                                            std::int64_t padding_back, std::int64_t padding_top,
                                            std::int64_t padding_bottom, std::int64_t padding_left,
                                            std::int64_t padding_right, std::int64_t dilation_d, std::int64_t dilation_h,
                                            std::int64_t dilation_w, StringHandle epilogue, bool allow_tf32) {
  ConvResults results = conv3d_fused_results(input, weight, bias, residual,
                                             {{stride_h, stride_w},
                                              {padding_top, padding_bottom, padding_left, padding_right},
                                              {dilation_h, dilation_w},
                                              stride_d,
                                              {padding_front, padding_back},
                                              dilation_d},
                                             epilogue, allow_tf32, /*stores=*/1);
  return {std::move(results[0]), std::move(results[1])};
}

// `size` is D, H and W of the input, or T, R and S of the weight.
template <Direction direction>
Tensor conv3d_gradient(Tensor const& grad_output, Tensor const& other, std::int64_t size_d, std::int64_t size_h,
                       std::int64_t size_w, std::int64_t stride_d, std::int64_t stride_h, std::int64_t stride_w,
                       std::int64_t padding_front, std::int64_t padding_back, std::int64_t padding_top,
                       std::int64_t padding_bottom, std::int64_t padding_left, std::int64_t padding_right,
                       std::int64_t dilation_d, std::int64_t dilation_h, std::int64_t dilation_w, bool allow_tf32) {
  OpNames const& names = direction == Direction::dgrad ? kConv3dInputGrad : kConv3dWeightGrad;
  ConvCall call = conv_gradient_call(names, direction, grad_output, other, {size_h, size_w, size_d},
                                     {{stride_h, stride_w},
                                      {padding_top, padding_bottom, padding_left, padding_right},
                                      {dilation_h, dilation_w},
                                      stride_d,
                                      {padding_front, padding_back},
                                      dilation_d},
                                     allow_tf32);
  return run_conv(call);
}

// The result is [N, C, output_d, output_h, output_w].
Tensor conv_transpose3d(Tensor const& input, Tensor const& weight, std::optional<Tensor> const& bias, std::int64_t output_d,
                        std::int64_t output_h, std::int64_t output_w, std::int64_t stride_d, std::int64_t stride_h,
                        std::int64_t stride_w, std::int64_t padding_front, std::int64_t padding_back,
                        std::int64_t padding_top, std::int64_t padding_bottom, std::int64_t padding_left,
                        std::int64_t padding_right, std::int64_t dilation_d, std::int64_t dilation_h,
                        std::int64_t dilation_w, StringHandle epilogue, bool allow_tf32) {
  TextArgument const name(epilogue);
  ConvCall call = transposed_call(kConvTranspose3d, input, weight, bias, {output_h, output_w, output_d},
                                  {{stride_h, stride_w},
                                   {padding_top, padding_bottom, padding_left, padding_right},
                                   {dilation_h, dilation_w},
                                   stride_d,
                                   {padding_front, padding_back},
                                   dilation_d},
                                  name.view(), allow_tf32);
  return run_conv(call);
}

// 8 bits; scale_input, scale_residual and scale_result one value, scale_weight one value or [Ko]. residual [N, Ko, P, Q].
Tensor scaled_conv2d(Tensor const& input, Tensor const& weight, Tensor const& scale_input, Tensor const& scale_weight,
                     std::optional<Tensor> const& bias, std::int64_t stride_h, std::int64_t stride_w,
                     std::int64_t padding_top, std::int64_t padding_bottom, std::int64_t padding_left,
                     std::int64_t padding_right, std::int64_t dilation_h, std::int64_t dilation_w,
                     std::optional<ScalarType> out_dtype, std::optional<Tensor> const& residual,
                     std::optional<Tensor> const& scale_residual, std::optional<Tensor> const& scale_result,
                     StringHandle activation) {
  TextArgument const name(activation);
  ConvCall call = scaled_conv_call(
      input, weight, scale_input, scale_weight, bias,
      {{stride_h, stride_w}, {padding_top, padding_bottom, padding_left, padding_right}, {dilation_h, dilation_w}},
      out_dtype, residual, scale_residual, scale_result, name.view());
  return run_conv(call);
}

Explanation explain_checked(ConvCall const& call) {
  if (call.problem.images > 0 && count_stores(call) > 0 && is_apart(call)) return explain_checked(before_activation(call));
  ConvVariant variant;
  if (call.problem.images > 0) variant = choose_variant(call);
  char const* const algorithm = name_of(variant.algorithm);
  if (variant.algorithm == ConvAlgorithm::gemm || variant.algorithm == ConvAlgorithm::columns) {
    ConvGemm as_gemm;
    make_gemm_view(as_gemm, call, variant.algorithm);
    Explanation explanation = as_gemm.scaled ? explain_call(*as_gemm.scaled) : explain_call(*as_gemm.gemm);
    explanation.operand_copies += as_gemm.keep.size();
    explanation.route = algorithm;
    return explanation;
  }
  PreparedConv prepared;
  if (variant.algorithm != ConvAlgorithm::none) {
    prepare_conv(prepared, call, variant);
  } else {
    prepared.request = request_of(call, ConvAlgorithm::implicit, first_form(call));
  }
  Explanation explanation{prepared.request, prepared.keep.size(), prepared.d.temporary.has_value(), algorithm};
  if (call.problem.images > 0) explanation.rank(device_info(call.device));
  return explanation;
}

// Without a kernel there are no plans, and the algorithm is "none".
Explanation explain_conv(ConvCall call) {
  check(call);
  DeviceScope const scope(call.device);
  SlicedOperands const sliced(call);
  Explanation explanation = explain_checked(call);
  explanation.operand_copies += sliced.copies();
  return explanation;
}

Explanation explain_fprop(Question const& asked) {
  ConvCall call =
      fprop_call(asked.names, asked.tensor(0), asked.tensor(1), asked.operand(2), geometry_of(asked), asked.allow_tf32);
  call.residual = asked.optional(3);
  if (!asked.epilogue.empty()) call.epilogue = conv_epilogue(asked.names, asked.epilogue);
  return explain_conv(call);
}

template <Direction direction>
Explanation explain_gradient(Question const& asked) {
  return explain_conv(conv_gradient_call(asked.names, direction, asked.tensor(0), asked.tensor(1), size_of(asked),
                                         geometry_of(asked), asked.allow_tf32));
}

Explanation explain_transposed(Question const& asked) {
  std::string_view const epilogue =
      !asked.epilogue.empty() ? asked.epilogue : std::string_view(asked.optional(2) ? "bias" : "plain");
  return explain_conv(transposed_call(asked.names, asked.tensor(0), asked.tensor(1), asked.operand(2), size_of(asked),
                                      geometry_of(asked), epilogue, asked.allow_tf32));
}

Explanation explain_scaled(Question const& asked) {
  return explain_conv(scaled_conv_call(asked.tensor(0), asked.tensor(1), asked.tensor(2), asked.tensor(3), asked.operand(4),
                                       geometry_of(asked), asked.out_dtype, asked.operand(5), asked.operand(6),
                                       asked.operand(7), asked.epilogue));
}

ConvCall call_of(Conv2d const& conv) {
  bool const is_dgrad = conv.direction == Direction::dgrad;
  OpNames const& names = conv.direction == Direction::fprop ? kConv2d : is_dgrad ? kConvInputGrad : kConvWeightGrad;
  ConvCall call = conv_gradient_call(names, conv.direction, conv.a, conv.b, conv.size, conv.geometry, /*allow_tf32=*/false);
  call.bias = conv.bias;
  return call;
}

}  // namespace

Tensor run_conv2d(Conv2d const& conv) {
  if (conv.groups > 1) return run_grouped_conv2d(conv);
  ConvCall call = call_of(conv);
  return run_conv(call);
}

Explanation explain_conv2d(Conv2d const& conv) {
  return conv.groups > 1 ? explain_grouped_conv2d(conv) : explain_conv(call_of(conv));
}

std::int64_t conv_served(std::int64_t direction, std::int64_t device, ScalarType dtype, ScalarType out_dtype,
                         StringHandle epilogue, bool has_bias, bool unit_stride, bool is_volume) {
  TextArgument const name(epilogue);
  if (direction < 1 || direction > 3) {
    fail(ErrorKind::value, "_conv_served: direction is ", direction, "; expected 1 (fprop), 2 (dgrad) or 3 (wgrad)");
  }
  ConvCall call{{{kConv2d, nullptr, nullptr}, static_cast<Direction>(direction), {{1, 1}, {0, 0, 0, 0}, {1, 1}}}};
  call.type = call.b_type = dtype, call.d_type = out_dtype, call.device = static_cast<int>(device);
  int const step = unit_stride ? 1 : 2;
  call.problem = {32, 64, 64, 256, 256, 3, 3, 64 / step, 64 / step, 1, 1, step, step, 1, 1};
  if (is_volume) {
    conv2d::ConvProblem& p = call.problem;
    p.images = 4, p.d = 8, p.t = 3, p.o = 8 / step, p.pad_d = 1, p.stride_d = step;
  }
  if (!name.view().empty()) call.epilogue = conv_epilogue(kConv2d, name.view());
  call.is_scaled = element_bytes_of(dtype) == 1;
  if (has_bias && !call.epilogue && !call.is_scaled && call.direction == Direction::fprop) call.epilogue = Epilogue::bias;
  ConvVariant const variant = choose_variant(call);
  if (variant.algorithm == ConvAlgorithm::none) return 0;
  DeviceInfo const& info = device_info(call.device);
  return is_native(*variant.plan, info) ? 2 : 1;
}

Ops conv_ops() {
  return {
      op<&conv2d_op, kConv2d>("conv2d(Tensor input, Tensor weight, Tensor? bias, " CUTWHEEL_GEOMETRY
                              ", bool allow_tf32=False) -> Tensor",
                              {2, 3, explain_fprop}),
      op<&conv2d_fused, kConv2d>(
          "conv2d_fused(Tensor input, Tensor weight, Tensor? bias, Tensor? residual, " CUTWHEEL_GEOMETRY
          ", str epilogue, bool allow_tf32=False) -> Tensor",
          {2, 4, explain_fprop}),
      op<&conv2d_fused_aux, kConv2d>(
          "conv2d_fused_aux(Tensor input, Tensor weight, Tensor? bias, Tensor? residual, " CUTWHEEL_GEOMETRY
          ", str epilogue, bool allow_tf32=False) -> (Tensor, Tensor)",
          {2, 4, explain_fprop}),
      op<&conv2d_gradient<Direction::dgrad>, kConvInputGrad>(
          "conv2d_input_grad(Tensor grad_output, Tensor weight, SymInt input_h, SymInt input_w, " CUTWHEEL_GEOMETRY
          ", bool allow_tf32=False) -> Tensor",
          {2, 2, explain_gradient<Direction::dgrad>}),
      op<&conv2d_gradient<Direction::wgrad>, kConvWeightGrad>(
          "conv2d_weight_grad(Tensor grad_output, Tensor input, SymInt weight_h, SymInt weight_w, " CUTWHEEL_GEOMETRY
          ", bool allow_tf32=False) -> Tensor",
          {2, 2, explain_gradient<Direction::wgrad>}),
      op<&conv_transpose2d, kConvTranspose2d>(
          "conv_transpose2d(Tensor input, Tensor weight, Tensor? bias, SymInt output_h, SymInt output_w, " CUTWHEEL_GEOMETRY
          ", str epilogue, bool allow_tf32=False) -> Tensor",
          {2, 3, explain_transposed}),
      op<&conv3d_op, kConv3d>("conv3d(Tensor input, Tensor weight, Tensor? bias, " CUTWHEEL_GEOMETRY_3D
                              ", bool allow_tf32=False) -> Tensor",
                              {2, 3, explain_fprop}),
      op<&conv3d_fused, kConv3d>(
          "conv3d_fused(Tensor input, Tensor weight, Tensor? bias, Tensor? residual, " CUTWHEEL_GEOMETRY_3D
          ", str epilogue, bool allow_tf32=False) -> Tensor",
          {2, 4, explain_fprop}),
      op<&conv3d_fused_aux, kConv3d>(
          "conv3d_fused_aux(Tensor input, Tensor weight, Tensor? bias, Tensor? residual, " CUTWHEEL_GEOMETRY_3D
          ", str epilogue, bool allow_tf32=False) -> (Tensor, Tensor)",
          {2, 4, explain_fprop}),
      op<&conv3d_gradient<Direction::dgrad>, kConv3dInputGrad>(
          "conv3d_input_grad(Tensor grad_output, Tensor weight, SymInt input_d, SymInt input_h, SymInt "
          "input_w, " CUTWHEEL_GEOMETRY_3D ", bool allow_tf32=False) -> Tensor",
          {2, 2, explain_gradient<Direction::dgrad>}),
      op<&conv3d_gradient<Direction::wgrad>, kConv3dWeightGrad>(
          "conv3d_weight_grad(Tensor grad_output, Tensor input, SymInt weight_d, SymInt weight_h, SymInt "
          "weight_w, " CUTWHEEL_GEOMETRY_3D ", bool allow_tf32=False) -> Tensor",
          {2, 2, explain_gradient<Direction::wgrad>}),
      op<&conv_transpose3d, kConvTranspose3d>(
          "conv_transpose3d(Tensor input, Tensor weight, Tensor? bias, SymInt output_d, SymInt output_h, SymInt "
          "output_w, " CUTWHEEL_GEOMETRY_3D ", str epilogue, bool allow_tf32=False) -> Tensor",
          {2, 3, explain_transposed}),
      op<&scaled_conv2d, kScaledConv2d>("scaled_conv2d(Tensor input, Tensor weight, Tensor scale_input, Tensor "
                                        "scale_weight, Tensor? bias, " CUTWHEEL_GEOMETRY
                                        ", ScalarType? out_dtype=None, Tensor? residual=None, Tensor? "
                                        "scale_residual=None, Tensor? scale_result=None, str activation=\"\") -> Tensor",
                                        {4, 8, explain_scaled}),
  };
}

}  // namespace cutwheel
