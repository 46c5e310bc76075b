// Depthwise convolutions: as many filters as channels, each of one channel.
#include <array>
#include <cstring>
#include <string_view>

#include "core/depthwise_args.h"
#include "torch/image.h"
#include "torch/registry.h"

namespace cutwheel {

namespace {

constexpr OpNames kDepthwise{"conv2d", "nn.functional.conv2d", "bias", "input", "weight", 4};
constexpr OpNames kDepthwiseInputGrad{
    "conv2d_depthwise_input_grad", "nn.grad.conv2d_input", nullptr, "grad_output", "weight", 4};
constexpr OpNames kDepthwiseWeightGrad{
    "conv2d_depthwise_weight_grad", "nn.grad.conv2d_weight", nullptr, "grad_output", "input", 4};

constexpr ErrorKind kValue = ErrorKind::value, kShape = ErrorKind::shape;

using Sizes = std::array<std::int64_t, 4>;  // [N, C, H, W]
using Pair = std::array<std::int64_t, 2>;   // along H, W

struct Geometry {
  Pair stride;
  std::array<std::int64_t, 4> padding;  // top, bottom, left, right
  Pair dilation;
};

struct DepthwiseCall : GemmCallBase {
  Direction direction = Direction::fprop;
  Geometry geometry{};
  Pair size{};  // of the result of a gradient
  // Null: not given.
  Tensor const* bias = nullptr;      // [C]
  Tensor const* residual = nullptr;  // [N, C, P, Q]
  Epilogue epilogue = Epilogue::plain;

  conv2d::ConvProblem problem = {};
};

// --- Checks

std::string sizes_text(Sizes const& sizes) { return list_text(sizes.data(), sizes.size()); }

Sizes sizes_of(Tensor const& tensor) {
  auto const sizes = tensor.sizes();
  return {sizes[0], sizes[1], sizes[2], sizes[3]};
}

template <std::size_t kCount>
void check_list(DepthwiseCall const& call, char const* argument, std::array<std::int64_t, kCount> const& values,
                std::int64_t least, char const* what) {
  for (std::int64_t value : values) {
    if (value >= least && value <= kMaxExtent) continue;
    fail(kValue, call.names.op, ": ", argument, " is ", list_text(values.data(), kCount), "; expected ", kCount,
         " integers from ", least, " on: ", what);
  }
}

void check_not_empty(DepthwiseCall const& call, char const* argument, Sizes const& sizes, std::size_t first) {
  for (std::size_t i = first; i < sizes.size(); ++i) {
    if (sizes[i] >= 1) continue;
    fail(kShape, call.names.op, ": ", argument, " has shape ", sizes_text(sizes), "; expected ",
         first ? "no 0 but that of an empty batch" : "no 0");
  }
}

std::int64_t out_extent(DepthwiseCall const& call, Sizes const& x, Sizes const& w, std::size_t axis) {
  Geometry const& g = call.geometry;
  char const* const along = axis ? "W" : "H";
  std::int64_t const before = g.padding[2 * axis], after = g.padding[2 * axis + 1], pixels = x[axis + 2];
  std::int64_t const padded = pixels + before + after, taps = w[axis + 2];
  if (padded > kMaxExtent) {
    fail(kShape, call.names.op, ": ", along, " with its padding is ", padded, "; at most ", kMaxExtent, " is supported");
  }
  std::int64_t const span = g.dilation[axis] * (taps - 1) + 1;  // both are below 2^31
  if (span > padded) {
    fail(kShape, call.names.op, ": along ", along, " the filter spans ", span, " pixels (", taps, " taps, dilation ",
         g.dilation[axis], ") and the input has ", padded, " with its padding (", before, " + ", pixels, " + ", after,
         "); expected a filter that fits: pad the input");
  }
  return (padded - span) / g.stride[axis] + 1;
}

void check_count(DepthwiseCall const& call, char const* what, std::int64_t a, std::int64_t b, std::int64_t c) {
  // Each is at most 2^31.
  bool const fits = a <= kMaxExtent && b <= kMaxExtent && c <= kMaxExtent && a * b <= kMaxExtent && a * b * c <= kMaxExtent;
  if (!fits) {
    fail(kShape, call.names.op, ": ", what, " is ", a, " * ", b, " * ", c, "; at most ", kMaxExtent, " is supported");
  }
}

void check_sizes(DepthwiseCall& call) {
  Sizes x, w;
  switch (call.direction) {
    case Direction::dgrad:
      check_list(call, "size of the input", call.size, 0, "H and W");
      x = {call.a->size(0), call.a->size(1), call.size[0], call.size[1]}, w = sizes_of(*call.b);
      break;
    case Direction::wgrad:
      check_list(call, "size of the weight", call.size, 0, "R and S");
      x = sizes_of(*call.b), w = {call.a->size(1), 1, call.size[0], call.size[1]};
      break;
    default: x = sizes_of(*call.a), w = sizes_of(*call.b);
  }
  check_not_empty(call, call.direction == Direction::dgrad ? "the input" : "input", x, 1);
  check_not_empty(call, call.direction == Direction::wgrad ? "the weight" : "weight", w, 0);
  if (w[0] != x[1] || w[1] != 1) {
    fail(kShape, call.names.op, ": weight has shape ", sizes_text(w), " and input has ", x[1],
         " channels; expected a weight [", x[1], ", 1, R, S], a filter for each channel");
  }
  Sizes const y{x[0], x[1], out_extent(call, x, w, 0), out_extent(call, x, w, 1)};
  if (call.direction != Direction::fprop && sizes_of(*call.a) != y) {
    fail_shape(call.names.op, "grad_output", *call.a, sizes_text(y), ", the shape of the result for an input ",
               sizes_text(x), " and a weight ", sizes_text(w));
  }
  check_count(call, "N * H * W", x[0], x[2], x[3]);
  check_count(call, "N * P * Q", y[0], y[2], y[3]);
  check_count(call, "R * S * C", w[2], w[3], x[1]);
  auto const number = [](std::int64_t value) { return static_cast<int>(value); };
  Geometry const& g = call.geometry;
  call.problem = {number(x[0]),        number(x[2]),          number(x[3]),         number(x[1]),
                  number(x[1]),        number(w[2]),          number(w[3]),         number(y[2]),
                  number(y[3]),        number(g.padding[0]),  number(g.padding[2]), number(g.stride[0]),
                  number(g.stride[1]), number(g.dilation[0]), number(g.dilation[1])};
  std::int64_t const pixels = x[0] * x[2] * x[3], places = y[0] * y[2] * y[3], taps = w[2] * w[3];
  call.n = x[1];
  call.m = call.direction == Direction::dgrad ? pixels : call.direction == Direction::wgrad ? taps : places;
  call.k = call.direction == Direction::wgrad ? places : taps;
}

void check_operands_of_epilogue(DepthwiseCall const& call) {
  char const* const op = call.names.op;
  EpilogueInfo const& info = info_of(call.epilogue);
  for (int i = 0; i < info.count; ++i) {
    EpilogueOperandInfo const& operand = info.operands[i];
    bool const known = is_named(operand, OperandKind::scalar, "alpha") || is_named(operand, OperandKind::row, "bias") ||
                       is_named(operand, OperandKind::matrix, "residual");
    if (!known) fail_operand(op, info, i, "none but bias and residual");
  }
  check_takes(op, info, "bias", call.bias);
  check_takes(op, info, "residual", call.residual);
  if (call.bias) {
    check_device(op, "bias", *call.bias, call.device, call.names.a);
    check_type(op, "bias", *call.bias, call.type);
    if (!has_shape(*call.bias, {call.n})) fail_shape(op, "bias", *call.bias, '[', call.n, ']');
  }
  if (call.residual) {
    conv2d::ConvProblem const& p = call.problem;
    check_device(op, "residual", *call.residual, call.device, call.names.a);
    check_type(op, "residual", *call.residual, call.type);
    if (!has_shape(*call.residual, {p.images, p.c, p.p, p.q})) {
      fail_shape(op, "residual", *call.residual, sizes_text({p.images, p.c, p.p, p.q}), ", the shape of the result");
    }
  }
}

void check(DepthwiseCall& call) {
  check_devices(call);
  check_dims(call.names, call.names.a, *call.a, 4);
  check_dims(call.names, call.names.b, *call.b, 4);
  check_operand_types(call);
  call.d_type = call.type;
  if (element_bytes_of(call.type) != 2) {
    fail(ErrorKind::type, call.names.op, ": ", call.names.a, " has dtype ", dtype_text(call.type),
         "; expected float16 or bfloat16 where each channel has a filter of its own");
  }
  check_list(call, "stride", call.geometry.stride, 1, "along H and W");
  check_list(call, "padding", call.geometry.padding, 0, "top, bottom, left, right");
  check_list(call, "dilation", call.geometry.dilation, 1, "along H and W");
  check_sizes(call);
  if (call.direction == Direction::fprop) check_operands_of_epilogue(call);
}

// --- Operands

struct PreparedDepthwise {
  conv2d::DepthwiseArgs args;
  std::vector<Tensor> keep;  // copies
  std::optional<Tensor> result;
  bool vectorised = false;  // channels of 16 bytes, which lie on as many
};

bool lies_on(Image const& image, std::int64_t elements) {
  bool fits = reinterpret_cast<std::uintptr_t>(image.data) % static_cast<std::uintptr_t>(2 * elements) == 0;
  for (std::size_t i = 0; i < 3; ++i) fits = fits && image.strides[i] % elements == 0;
  return fits;
}

bool is_contiguous(Image const& image) {
  return image.strides[3] == 1 && image.strides[2] == image.channels() && is_even(image);
}

Image contiguous_copy(Tensor const& tensor, Image const& image, std::vector<Tensor>& keep, int device) {
  Tensor copy =
      empty_channels_last({image.sizes[0], image.sizes[3], image.sizes[1], image.sizes[2]}, tensor.scalar_type(), device);
  Image const target = image_of(copy);
  Tensor view = view_of(copy, target);
  torch::stable::copy_(view, view_of(tensor, image));
  keep.push_back(std::move(copy));
  return target;
}

// As kernels read images: contiguous channels, which lie on 16 bytes if there are whole pieces of them.
Image channels_last_image(Tensor const& tensor, std::vector<Tensor>& keep, int device) {
  constexpr std::int64_t kPiece = 8;
  Image const image = image_of(tensor);
  bool const fits = image.strides[3] == 1 && (image.channels() % kPiece != 0 || lies_on(image, kPiece));
  return fits ? image : contiguous_copy(tensor, image, keep, device);
}

void copy_strides(std::int64_t (&to)[3], Image const& image) { std::copy_n(image.strides.begin(), 3, to); }

void prepare_epilogue(PreparedDepthwise& prepared, DepthwiseCall const& call) {
  conv2d::DepthwiseArgs& args = prepared.args;
  EpilogueInfo const& info = info_of(call.epilogue);
  args.epilogue_name = call.epilogue;
  for (int i = 0; i < info.count; ++i) {
    EpilogueOperandInfo const& operand = info.operands[i];
    if (operand.kind == OperandKind::scalar) {
      args.epilogue[i].value = 1;
    } else if (operand.kind == OperandKind::row && call.bias) {
      args.bias = prepare_vector(operand, *call.bias, call.type, call.n, call.device, prepared.keep).data;
    } else if (operand.kind == OperandKind::matrix && call.residual) {
      Image const image = image_of(*call.residual);
      bool const fits = is_contiguous(image) && aligned(image.data);
      args.residual = (fits ? image : contiguous_copy(*call.residual, image, prepared.keep, call.device)).data;
    }
  }
}

void prepare(PreparedDepthwise& prepared, DepthwiseCall const& call) {
  conv2d::DepthwiseArgs& args = prepared.args;
  conv2d::ConvProblem const& p = call.problem;
  std::vector<Tensor>& keep = prepared.keep;
  args.conv = p;
  args.direction = call.direction;
  args.m = static_cast<int>(call.m), args.n = static_cast<int>(call.n), args.k = static_cast<int>(call.k);
  args.device = &device_info(call.device);
  Image const a = channels_last_image(*call.a, keep, call.device);
  args.a.data = a.data;
  copy_strides(call.direction == Direction::fprop ? args.x_strides : args.y_strides, a);
  prepared.vectorised = p.c % 8 == 0;
  args.whole_vectors = p.c % 4 == 0 && lies_on(a, 4);
  if (call.direction == Direction::wgrad) {
    Image const x = channels_last_image(*call.b, keep, call.device);
    args.b.data = x.data;
    copy_strides(args.x_strides, x);
    args.whole_vectors = args.whole_vectors && lies_on(x, 4);
    prepared.result = empty_channels_last({p.c, 1, p.r, p.s}, call.type, call.device);
  } else {
    args.b.data = readable_filter(*call.b, p.c, 1, call.device, keep).data;
    bool const is_dgrad = call.direction == Direction::dgrad;
    prepared.result =
        empty_channels_last({p.images, p.c, is_dgrad ? p.h : p.p, is_dgrad ? p.w : p.q}, call.type, call.device);
    prepare_epilogue(prepared, call);
  }
  args.d = prepared.result->data_ptr();
}

// --- Running

// The kernels of a call, the best first: R, S and stride, as manifests have them.
struct Candidate {
  Direction direction;
  Extent3 tile;
};

std::vector<Candidate> candidates(DepthwiseCall const& call, bool vectorised) {
  conv2d::ConvProblem const& p = call.problem;
  bool const is_wgrad = call.direction == Direction::wgrad;
  std::vector<Candidate> found;
  int const stride = p.stride_h;
  if (vectorised && p.stride_w == stride && stride <= 2 && p.dilation_h == 1 && p.dilation_w == 1) {
    bool const is_square = p.r == p.s && (p.s == 3 || p.s == 5 || p.s == 7);
    if (is_wgrad) {
      int const taps = p.s <= 3 && p.r <= 3 ? 3 : p.s <= 5 && p.r <= 5 ? 5 : 7;
      found.push_back({Direction::wgrad, {taps, taps, stride}});
    } else if (call.direction == Direction::dgrad && stride == 2) {
      if (is_square) found.push_back({Direction::dgrad, {p.r, p.s, 2}});
      if (p.s <= 7) found.push_back({Direction::dgrad, {1, 7, 2}});
    } else {
      if (is_square) found.push_back({Direction::fprop, {p.r, p.s, stride}});
      if (p.s <= 5) found.push_back({Direction::fprop, {1, 5, stride}});
      found.push_back({Direction::fprop, {1, 7, stride}});
    }
  }
  found.push_back({is_wgrad ? Direction::wgrad : Direction::fprop, {1, 1, 1}});
  return found;
}

KernelDescriptor const* kernel_of(DepthwiseCall const& call, Candidate const& candidate) {
  return choose_depthwise_kernel(device_info(call.device), dtype_of(call.type), candidate.direction, candidate.tile);
}

[[noreturn]] void fail_without_kernel(DepthwiseCall const& call) {
  DeviceInfo const& device = device_info(call.device);
  conv2d::ConvProblem const& p = call.problem;
  fail(ErrorKind::not_implemented, call.names.op,
       ": no kernel of this wheel takes a depthwise convolution of these extents (N=", p.images, ", C=", p.c, ", H=", p.h,
       ", W=", p.w, ", R=", p.r, ", S=", p.s, ") in ", name_of(dtype_of(call.type)), " on ", device.name,
       " (compute capability ", device.major, '.', device.minor, "); use torch.nn.functional.conv2d");
}

Tensor run(DepthwiseCall& call) {
  check(call);
  DeviceScope const scope(call.device);
  conv2d::ConvProblem const& p = call.problem;
  if (p.images == 0) {
    bool const is_dgrad = call.direction == Direction::dgrad;
    if (call.direction != Direction::wgrad) {
      return empty_channels_last({0, p.c, is_dgrad ? p.h : p.p, is_dgrad ? p.w : p.q}, call.type, call.device);
    }
    Tensor result = empty_channels_last({p.c, 1, p.r, p.s}, call.type, call.device);
    torch::stable::zero_(result);
    return result;
  }
  PreparedDepthwise prepared;
  prepare(prepared, call);
  for (Candidate const& candidate : candidates(call, prepared.vectorised)) {
    KernelDescriptor const* const kernel = kernel_of(call, candidate);
    if (kernel && launch_kernel(*kernel, prepared.args, call.names.op)) return *std::move(prepared.result);
  }
  fail_without_kernel(call);
}

// --- Ops

DepthwiseCall call_of(Tensor const& input, Tensor const& weight, Tensor const* bias, Tensor const* residual,
                      Geometry const& geometry, std::string_view epilogue) {
  DepthwiseCall call{{kDepthwise, &input, &weight}, Direction::fprop, geometry};
  call.bias = bias, call.residual = residual;
  call.epilogue = named_epilogue(kDepthwise.op, epilogue, /*has_accum=*/true);
  return call;
}

DepthwiseCall gradient_of(Direction direction, Tensor const& grad_output, Tensor const& other, Pair const& size,
                          Geometry const& geometry) {
  OpNames const& names = direction == Direction::dgrad ? kDepthwiseInputGrad : kDepthwiseWeightGrad;
  DepthwiseCall call{{names, &grad_output, &other}, direction, geometry};
  call.size = size;
  return call;
}

// input [N, C, H, W], weight [C, 1, R, S], bias [C], residual [N, C, P, Q].
Tensor conv2d_depthwise(Tensor const& input, Tensor const& weight, std::optional<Tensor> const& bias,
                        std::optional<Tensor> const& residual, std::int64_t stride_h, std::int64_t stride_w,
                        std::int64_t padding_top, std::int64_t padding_bottom, std::int64_t padding_left,
                        std::int64_t padding_right, std::int64_t dilation_h, std::int64_t dilation_w,
                        StringHandle epilogue) {
  TextArgument const name(epilogue);
  DepthwiseCall call =
      call_of(input, weight, bias ? &*bias : nullptr, residual ? &*residual : nullptr,
              {{stride_h, stride_w}, {padding_top, padding_bottom, padding_left, padding_right}, {dilation_h, dilation_w}},
              name.view());
  return run(call);
}

// `size` is H and W of the input, or R and S of the weight.
template <Direction direction>
Tensor gradient(Tensor const& grad_output, Tensor const& other, std::int64_t size_h, std::int64_t size_w,
                std::int64_t stride_h, std::int64_t stride_w, std::int64_t padding_top, std::int64_t padding_bottom,
                std::int64_t padding_left, std::int64_t padding_right, std::int64_t dilation_h, std::int64_t dilation_w) {
  DepthwiseCall call = gradient_of(
      direction, grad_output, other, {size_h, size_w},
      {{stride_h, stride_w}, {padding_top, padding_bottom, padding_left, padding_right}, {dilation_h, dilation_w}});
  return run(call);
}

// Not a choice between plans: the first kernel for the call is the plan.
Explanation explain(DepthwiseCall call) {
  check(call);
  DeviceScope const scope(call.device);
  PreparedDepthwise prepared;
  prepare(prepared, call);
  GemmRequest request = request_of(call, Op::conv2d, call.d_type);
  request.direction = call.direction;
  request.epilogue = call.epilogue;
  request.addend = info_of(call.epilogue).addend;
  request.m = prepared.args.m, request.n = prepared.args.n, request.k = prepared.args.k;
  request.taps = call.problem.r * call.problem.s;
  request.step = call.problem.step();
  Explanation explanation{request, prepared.keep.size(), /*output_copy=*/false, "depthwise"};
  if (call.problem.images == 0) return explanation;
  for (Candidate const& candidate : candidates(call, prepared.vectorised)) {
    KernelDescriptor const* const kernel = kernel_of(call, candidate);
    if (!kernel) continue;
    GemmPlan plan;
    plan.kernel = kernel;
    explanation.plans.push_back(plan);
    break;
  }
  return explanation;
}

Geometry geometry_of(Question const& asked, std::size_t count) {
  std::vector<std::int64_t> const& g = asked.geometry;
  if (g.size() != count) fail(kValue, "explain: geometry has ", g.size(), " numbers; expected ", count);
  return {{g[0], g[1]}, {g[2], g[3], g[4], g[5]}, {g[6], g[7]}};
}

Explanation explain_fprop(Question const& asked) {
  return explain(call_of(asked.tensor(0), asked.tensor(1), asked.optional(2), asked.optional(3), geometry_of(asked, 8),
                         asked.epilogue));
}

template <Direction direction>
Explanation explain_gradient(Question const& asked) {
  Geometry const geometry = geometry_of(asked, 10);
  return explain(
      gradient_of(direction, asked.tensor(0), asked.tensor(1), {asked.geometry[8], asked.geometry[9]}, geometry));
}

#define CUTWHEEL_GEOMETRY                                                         \
  "SymInt stride_h, SymInt stride_w, SymInt padding_top, SymInt padding_bottom, " \
  "SymInt padding_left, SymInt padding_right, SymInt dilation_h, SymInt dilation_w"

}  // namespace

Ops depthwise_ops() {
  return {
      op<&conv2d_depthwise, kDepthwise>(
          "conv2d_depthwise(Tensor input, Tensor weight, Tensor? bias, Tensor? residual, " CUTWHEEL_GEOMETRY
          ", str epilogue) -> Tensor",
          {2, 4, explain_fprop}),
      op<&gradient<Direction::dgrad>, kDepthwiseInputGrad>("conv2d_depthwise_input_grad(Tensor grad_output, Tensor weight, "
                                                           "SymInt input_h, SymInt input_w, " CUTWHEEL_GEOMETRY
                                                           ") -> Tensor",
                                                           {2, 2, explain_gradient<Direction::dgrad>}),
      op<&gradient<Direction::wgrad>, kDepthwiseWeightGrad>("conv2d_depthwise_weight_grad(Tensor grad_output, Tensor "
                                                            "input, SymInt weight_h, SymInt weight_w, " CUTWHEEL_GEOMETRY
                                                            ") -> Tensor",
                                                            {2, 2, explain_gradient<Direction::wgrad>}),
  };
}

}  // namespace cutwheel
