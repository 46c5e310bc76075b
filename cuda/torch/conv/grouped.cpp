// Convolutions of groups: each filter has the channels of its group. Depthwise ones are those of one channel a group.
#include <array>
#include <cstring>
#include <string_view>

#include "core/args/grouped_conv.h"
#include "dispatch/batch_invariance.h"
#include "torch/conv/conv.h"
#include "torch/conv/image.h"
#include "torch/registry.h"

namespace cutwheel {

namespace {

constexpr OpNames kGrouped{"conv2d", "nn.functional.conv2d", "bias", "input", "weight", 4};
constexpr OpNames kGroupedInputGrad{
    "conv2d_grouped_input_grad", "nn.grad.conv2d_input", nullptr, "grad_output", "weight", 4};
constexpr OpNames kGroupedWeightGrad{
    "conv2d_grouped_weight_grad", "nn.grad.conv2d_weight", nullptr, "grad_output", "input", 4};

struct GroupedConvCall : ConvCallBase {
  Epilogue epilogue = Epilogue::plain;
  std::int64_t groups = 0;  // 0: as many as the weight says

  std::int64_t channels() const { return problem.c / groups; }  // of a group
  std::int64_t filters() const { return problem.k_out / groups; }
  bool is_depthwise() const { return channels() == 1 && filters() == 1; }
};

// --- Checks

// Of a gradient: groups that divide the channels of an operand.
void check_groups(GroupedConvCall const& call, char const* argument, std::int64_t channels) {
  if (call.groups >= 1 && channels % call.groups == 0) return;
  fail(ErrorKind::shape, call.names.op, ": groups is ", call.groups, " and ", argument, " has ", channels,
       " channels; expected a number from 1 on that divides them");
}

ConvSizes check_operands(GroupedConvCall& call) {
  Sizes const a = sizes_of(*call.a), b = sizes_of(*call.b);
  std::int64_t const h = call.size.h, w = call.size.w;
  if (call.direction == Direction::fprop) {
    check_input_size(call, a);
    check_weight_size(call, b);
    call.groups = a[1] % b[1] == 0 ? a[1] / b[1] : 0;
    if (call.groups == 0 || b[0] % call.groups != 0) {
      fail(ErrorKind::shape, call.names.op, ": weight has shape ", sizes_text(b), " and input has ", a[1],
           " channels; expected a weight [Ko, C / groups, R, S] whose channels divide them into groups, and Ko a multiple "
           "of the number of groups");
    }
    return {a, b, {}};
  }
  check_size(call);
  check_groups(call, call.names.a, a[1]);
  ConvSizes sizes{};
  if (call.direction == Direction::dgrad) {
    check_weight_size(call, b);
    sizes = {{a[0], b[1] * call.groups, h, w}, b, {}};
    check_input_size(call, sizes.x);
  } else {
    check_input_size(call, b);
    check_groups(call, call.names.b, b[1]);
    sizes = {b, {a[1], b[1] / call.groups, h, w}, {}};
    check_weight_size(call, sizes.w);
  }
  return sizes;
}

// What the kernels have: a channel a group, or eights of them, or four.
void check_widths(GroupedConvCall const& call) {
  std::int64_t const channels = call.channels(), filters = call.filters();
  bool const are_eights = channels % 8 == 0 && filters % 8 == 0;
  bool const are_fours = channels == 4 && filters == 4 && call.groups % 2 == 0;
  if (call.is_depthwise() || are_eights || are_fours) return;
  fail(ErrorKind::shape, call.names.op, ": groups of ", channels, " channels and ", filters,
       " filters; expected multiples of 8, or four of each and an even number of groups, or one of each");
}

void check_sizes(GroupedConvCall& call) {
  ConvSizes sizes = check_operands(call);
  std::int64_t const images = sizes.x[0];
  sizes.y = {images, sizes.w[0], out_extent(call, sizes, 0), out_extent(call, sizes, 1)};
  if (call.direction != Direction::fprop) check_grad_output(call, sizes);
  check_count(call, "N * H * W", {images, sizes.x[2], sizes.x[3]});
  check_count(call, "N * P * Q", {images, sizes.y[2], sizes.y[3]});
  check_count(call, "R * S * Ko", {sizes.w[2], sizes.w[3], sizes.w[0]});
  call.problem = problem_of(call.geometry, sizes);
  check_widths(call);
  std::int64_t const pixels = images * sizes.x[2] * sizes.x[3], positions = images * sizes.y[2] * sizes.y[3],
                     taps = sizes.w[2] * sizes.w[3];
  bool const is_dgrad = call.direction == Direction::dgrad, is_wgrad = call.direction == Direction::wgrad;
  call.n = is_dgrad ? sizes.x[1] : sizes.w[0];
  call.m = is_dgrad ? pixels : is_wgrad ? taps * sizes.w[1] : positions;
  call.k = is_wgrad ? positions : taps * (is_dgrad ? call.filters() : call.channels());
}

void check_operands_of_epilogue(GroupedConvCall const& call) {
  char const* const op = call.names.op;
  EpilogueInfo const& info = info_of(call.epilogue);
  check_has_bias_and_residual_only(op, info);
  if (stores_of(info) > 0) {
    fail(ErrorKind::value, op, ": epilogue \"", info.name, "\" stores more than the result; expected one that does not");
  }
  check_takes(op, info, "bias", call.bias);
  check_takes(op, info, "residual", call.residual);
  if (call.bias) {
    check_device(op, "bias", *call.bias, call.device, call.names.a);
    check_type(op, "bias", *call.bias, call.type);
    if (!has_shape(*call.bias, {call.n})) fail_shape(op, "bias", *call.bias, '[', call.n, ']');
  }
  if (call.residual) check_residual(call);
}

void check(GroupedConvCall& call) {
  check_devices(call);
  check_dims(call.names, call.names.a, *call.a, 4);
  check_dims(call.names, call.names.b, *call.b, 4);
  check_operand_types(call);
  call.d_type = call.type;
  if (element_bytes_of(call.type) != 2) {
    fail(ErrorKind::type, call.names.op, ": ", call.names.a, " has dtype ", dtype_text(call.type),
         "; expected float16 or bfloat16 for a convolution of groups");
  }
  check_geometry(call);
  check_sizes(call);
  if (call.direction == Direction::fprop) check_operands_of_epilogue(call);
}

// --- Operands

struct PreparedGroupedConv {
  conv2d::GroupedConvArgs args;
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

void prepare_epilogue(PreparedGroupedConv& prepared, GroupedConvCall const& call) {
  conv2d::GroupedConvArgs& args = prepared.args;
  EpilogueInfo const& info = info_of(call.epilogue);
  args.epilogue_name = call.epilogue;
  for (int i = 0; i < info.count; ++i) {
    EpilogueOperandInfo const& operand = info.operands[i];
    if (operand.kind == OperandKind::scalar) {
      args.epilogue[i].value = 1;
    } else if (operand.kind == OperandKind::row && call.bias) {
      args.epilogue[i] = prepare_vector(operand, *call.bias, call.type, call.n, call.device, prepared.keep);
      args.bias = args.epilogue[i].data;
    } else if (operand.kind == OperandKind::matrix && call.residual) {
      Image const image = image_of(*call.residual);
      bool const fits = is_contiguous(image) && aligned(image.data);
      void* const data = (fits ? image : contiguous_copy(*call.residual, image, prepared.keep, call.device)).data;
      args.epilogue[i] = {data, /*leading=*/call.n, 0, 0};
      args.residual = data;
    }
  }
}

Sizes result_size(GroupedConvCall const& call) {
  conv2d::ConvProblem const& p = call.problem;
  switch (call.direction) {
    case Direction::dgrad: return {p.images, p.c, p.h, p.w};
    case Direction::wgrad: return {p.k_out, call.channels(), p.r, p.s};
    default: return {p.images, p.k_out, p.p, p.q};
  }
}

void prepare(PreparedGroupedConv& prepared, GroupedConvCall const& call) {
  conv2d::GroupedConvArgs& args = prepared.args;
  conv2d::ConvProblem const& p = call.problem;
  std::vector<Tensor>& keep = prepared.keep;
  args.conv = p;
  args.groups = static_cast<int>(call.groups);
  args.direction = call.direction;
  args.m = static_cast<int>(call.m), args.n = static_cast<int>(call.n), args.k = static_cast<int>(call.k);
  args.device = &device_info(call.device);
  Image const a = channels_last_image(*call.a, keep, call.device);
  args.a.data = a.data;
  copy_strides(call.direction == Direction::fprop ? args.x_strides : args.y_strides, a);
  prepared.vectorised = p.c % 8 == 0 && p.k_out % 8 == 0;
  args.whole_vectors = p.c % 4 == 0 && lies_on(a, 4);
  if (call.direction == Direction::wgrad) {
    Image const x = channels_last_image(*call.b, keep, call.device);
    args.b.data = x.data;
    copy_strides(args.x_strides, x);
    args.whole_vectors = args.whole_vectors && lies_on(x, 4);
  } else {
    args.b.data = readable_filter(*call.b, {p.k_out, call.channels()}, call.device, keep).data;
  }
  prepare_epilogue(prepared, call);
  prepared.result = empty_channels_last(result_size(call), call.type, call.device);
  args.d = prepared.result->data_ptr();
}

// --- Running

// The kernels of a call, the best first: tiles as manifests have them.
struct Candidate {
  Family family;
  Direction direction;
  Extent3 tile;
};

// R, S and stride.
std::vector<Candidate> depthwise_candidates(GroupedConvCall const& call, bool vectorised) {
  conv2d::ConvProblem const& p = call.problem;
  bool const is_wgrad = call.direction == Direction::wgrad;
  std::vector<Candidate> found;
  int const stride = p.stride_h;
  if (vectorised && p.stride_w == stride && stride <= 2 && p.dilation_h == 1 && p.dilation_w == 1) {
    bool const is_square = p.r == p.s && (p.s == 3 || p.s == 5 || p.s == 7);
    if (is_wgrad) {
      int const taps = p.s <= 3 && p.r <= 3 ? 3 : p.s <= 5 && p.r <= 5 ? 5 : 7;
      found.push_back({Family::depthwise, Direction::wgrad, {taps, taps, stride}});
    } else if (call.direction == Direction::dgrad && stride == 2) {
      if (is_square) found.push_back({Family::depthwise, Direction::dgrad, {p.r, p.s, 2}});
      if (p.s <= 7) found.push_back({Family::depthwise, Direction::dgrad, {1, 7, 2}});
    } else {
      if (is_square) found.push_back({Family::depthwise, Direction::fprop, {p.r, p.s, stride}});
      if (p.s <= 5) found.push_back({Family::depthwise, Direction::fprop, {1, 5, stride}});
      found.push_back({Family::depthwise, Direction::fprop, {1, 7, stride}});
    }
  }
  found.push_back({Family::depthwise, is_wgrad ? Direction::wgrad : Direction::fprop, {1, 1, 1}});
  return found;
}

// The tile of a warp whose eights of filters fit a group best.
std::vector<Candidate> grouped_candidates(GroupedConvCall const& call) {
  bool const is_wgrad = call.direction == Direction::wgrad;
  std::int64_t const width =
      std::max<std::int64_t>(call.direction == Direction::dgrad ? call.channels() : call.filters(), 8);
  int best = 0;
  std::int64_t least = 0;
  for (int eights : {1, 2, 3, 4, 7}) {
    // What is multiplied, and what is loaded for it.
    std::int64_t const cost = (width + 8 * eights - 1) / (8 * eights) * (eights + 1);
    if (best == 0 || cost < least) best = eights, least = cost;
  }
  int const rows = is_wgrad ? 80 : best == 7 ? 32 : 64;
  return {{Family::grouped_conv, is_wgrad ? Direction::wgrad : Direction::fprop, {rows, 8 * best, 16}}};
}

std::vector<Candidate> candidates(GroupedConvCall const& call, bool vectorised) {
  return call.is_depthwise() ? depthwise_candidates(call, vectorised) : grouped_candidates(call);
}

KernelDescriptor const* kernel_of(GroupedConvCall const& call, Candidate const& candidate) {
  return choose_conv_kernel(device_info(call.device), candidate.family, dtype_of(call.type), candidate.direction,
                            candidate.tile);
}

// --- Groups of as many channels and filters as tiles of dense kernels have

GemmRequest request_of(GroupedConvCall const& call) {
  GemmRequest request = request_of(call, Op::conv2d, call.d_type);
  request.direction = call.direction;
  request.epilogue = call.epilogue;
  request.addend = info_of(call.epilogue).addend;
  request.m = static_cast<int>(call.m), request.n = static_cast<int>(call.n), request.k = static_cast<int>(call.k);
  request.taps = call.problem.r * call.problem.s;
  request.step = call.problem.step();
  return request;
}

// As dense kernels count it: rows of wgrad are filters, and its columns the channels of all taps.
GemmRequest dense_request_of(GroupedConvCall const& call) {
  GemmRequest request = request_of(call);
  if (call.direction == Direction::wgrad) std::swap(request.m, request.n);
  request.groups = static_cast<int>(call.groups);
  request.tensor_maps = conv2d::fits_tensor_maps(call.direction, call.problem);
  return request;
}

// The plan by which a dense kernel convolves each group; none if tiles do not fit groups. In batch_invariant() wgrad alone
// has one, as the order of a plan's sums depends on the number of images.
std::optional<GemmPlan> dense_plan(GroupedConvCall const& call) {
  constexpr std::int64_t kChannels = 64;
  bool const lacks_operand = (!call.bias && has_operand(call.epilogue, OperandKind::row)) ||
                             (!call.residual && has_operand(call.epilogue, OperandKind::matrix));
  bool const may = call.groups > 1 && call.channels() % kChannels == 0 && call.filters() % kChannels == 0 &&
                   !lacks_operand && (call.direction == Direction::wgrad || !batch_invariant());
  if (!may) return std::nullopt;
  std::optional<GemmPlan> const plan = choose_plan(dense_request_of(call));
  return plan && is_native(*plan, device_info(call.device)) ? plan : std::nullopt;
}

// False if the kernel refuses the call.
bool run_dense(GroupedConvCall const& call, PreparedGroupedConv const& of_groups, GemmPlan const& plan) {
  conv2d::ConvProblem const& p = call.problem;
  PreparedConv prepared;
  prepared.request = dense_request_of(call);
  conv2d::ConvArgs& args = prepared.args;
  args = of_groups.args;
  args.m = prepared.request.m, args.n = prepared.request.n, args.k = prepared.request.k;
  args.d_leading = args.n;
  args.a.leading = call.direction == Direction::fprop ? p.c : p.k_out;
  if (call.direction == Direction::wgrad) {
    args.b.leading = p.c;
  } else {
    args.b.leading = call.channels();
    args.filter_pitch = p.taps() * call.channels();
  }
  return launch(prepared, call.names.op, plan);
}

[[noreturn]] void fail_without_kernel(GroupedConvCall const& call) {
  DeviceInfo const& device = device_info(call.device);
  conv2d::ConvProblem const& p = call.problem;
  fail(ErrorKind::not_implemented, call.names.op,
       ": no kernel of this wheel takes a convolution of groups of these extents (N=", p.images, ", C=", p.c, ", H=", p.h,
       ", W=", p.w, ", Ko=", p.k_out, ", R=", p.r, ", S=", p.s, ", groups=", call.groups, ") in ",
       name_of(dtype_of(call.type)), " on ", device.name, " (compute capability ", device.major, '.', device.minor,
       "); use torch.nn.functional.conv2d");
}

Tensor run(GroupedConvCall& call) {
  check(call);
  DeviceScope const scope(call.device);
  if (call.problem.images == 0) {
    Tensor result = empty_channels_last(result_size(call), call.type, call.device);
    if (call.direction == Direction::wgrad) torch::stable::zero_(result);
    return result;
  }
  PreparedGroupedConv prepared;
  prepare(prepared, call);
  std::optional<GemmPlan> const dense = dense_plan(call);
  if (dense && run_dense(call, prepared, *dense)) return *std::move(prepared.result);
  for (Candidate const& candidate : candidates(call, prepared.vectorised)) {
    KernelDescriptor const* const kernel = kernel_of(call, candidate);
    if (kernel && launch_kernel(*kernel, prepared.args, call.names.op)) return *std::move(prepared.result);
  }
  fail_without_kernel(call);
}

// --- Ops

GroupedConvCall call_of(Tensor const& input, Tensor const& weight, Tensor const* bias, Tensor const* residual,
                        ConvGeometry const& geometry, std::string_view epilogue) {
  GroupedConvCall call{{{kGrouped, &input, &weight}, Direction::fprop, geometry}};
  call.bias = bias, call.residual = residual;
  call.epilogue = named_epilogue(kGrouped.op, epilogue, /*has_accum=*/true);
  return call;
}

GroupedConvCall gradient_of(Direction direction, Tensor const& grad_output, Tensor const& other, Extents2d const& size,
                            ConvGeometry const& geometry, std::int64_t groups) {
  OpNames const& names = direction == Direction::dgrad ? kGroupedInputGrad : kGroupedWeightGrad;
  GroupedConvCall call{{{names, &grad_output, &other}, direction, geometry}};
  call.size = size, call.groups = groups;
  return call;
}

// input [N, C, H, W], weight [Ko, C / groups, R, S], bias [Ko], residual [N, Ko, P, Q].
Tensor conv2d_grouped(Tensor const& input, Tensor const& weight, std::optional<Tensor> const& bias,
                      std::optional<Tensor> const& residual, std::int64_t stride_h, std::int64_t stride_w,
                      std::int64_t padding_top, std::int64_t padding_bottom, std::int64_t padding_left,
                      std::int64_t padding_right, std::int64_t dilation_h, std::int64_t dilation_w, StringHandle epilogue) {
  TextArgument const name(epilogue);
  GroupedConvCall call =
      call_of(input, weight, bias ? &*bias : nullptr, residual ? &*residual : nullptr,
              {{stride_h, stride_w}, {padding_top, padding_bottom, padding_left, padding_right}, {dilation_h, dilation_w}},
              name.view());
  return run(call);
}

// `size` is H and W of the input, or R and S of the weight.
template <Direction direction>
Tensor gradient(Tensor const& grad_output, Tensor const& other, std::int64_t size_h, std::int64_t size_w,
                std::int64_t stride_h, std::int64_t stride_w, std::int64_t padding_top, std::int64_t padding_bottom,
                std::int64_t padding_left, std::int64_t padding_right, std::int64_t dilation_h, std::int64_t dilation_w,
                std::int64_t groups) {
  GroupedConvCall call = gradient_of(
      direction, grad_output, other, {size_h, size_w},
      {{stride_h, stride_w}, {padding_top, padding_bottom, padding_left, padding_right}, {dilation_h, dilation_w}}, groups);
  return run(call);
}

// Not a choice between plans, but where dense kernels are chosen: the first kernel for the call is the plan.
Explanation explain(GroupedConvCall call) {
  check(call);
  DeviceScope const scope(call.device);
  PreparedGroupedConv prepared;
  prepare(prepared, call);
  Explanation explanation{request_of(call), prepared.keep.size(), /*output_copy=*/false,
                          call.is_depthwise() ? "depthwise" : "grouped"};
  if (call.problem.images == 0) return explanation;
  if (dense_plan(call)) {
    explanation.request = dense_request_of(call);
    explanation.route = "implicit GEMM of each group";
    explanation.rank(device_info(call.device));
    return explanation;
  }
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

Explanation explain_fprop(Question const& asked) {
  return explain(
      call_of(asked.tensor(0), asked.tensor(1), asked.optional(2), asked.optional(3), geometry_of(asked), asked.epilogue));
}

template <Direction direction>
Explanation explain_gradient(Question const& asked) {
  return explain(
      gradient_of(direction, asked.tensor(0), asked.tensor(1), size_of(asked), geometry_of(asked), groups_of(asked)));
}

GroupedConvCall call_of(Conv2d const& conv) {
  if (conv.direction != Direction::fprop) {
    return gradient_of(conv.direction, conv.a, conv.b, conv.size, conv.geometry, conv.groups);
  }
  return call_of(conv.a, conv.b, conv.bias, nullptr, conv.geometry, conv.bias ? "bias" : "plain");
}

}  // namespace

Tensor run_grouped_conv2d(Conv2d const& conv) {
  GroupedConvCall call = call_of(conv);
  return run(call);
}

Explanation explain_grouped_conv2d(Conv2d const& conv) { return explain(call_of(conv)); }

Ops grouped_conv_ops() {
  return {
      op<&conv2d_grouped, kGrouped>(
          "conv2d_grouped(Tensor input, Tensor weight, Tensor? bias, Tensor? residual, " CUTWHEEL_GEOMETRY
          ", str epilogue) -> Tensor",
          {2, 4, explain_fprop}),
      op<&gradient<Direction::dgrad>, kGroupedInputGrad>("conv2d_grouped_input_grad(Tensor grad_output, Tensor weight, "
                                                         "SymInt input_h, SymInt input_w, " CUTWHEEL_GEOMETRY
                                                         ", SymInt groups) -> Tensor",
                                                         {2, 2, explain_gradient<Direction::dgrad>}),
      op<&gradient<Direction::wgrad>, kGroupedWeightGrad>("conv2d_grouped_weight_grad(Tensor grad_output, Tensor "
                                                          "input, SymInt weight_h, SymInt weight_w, " CUTWHEEL_GEOMETRY
                                                          ", SymInt groups) -> Tensor",
                                                          {2, 2, explain_gradient<Direction::wgrad>}),
  };
}

}  // namespace cutwheel
