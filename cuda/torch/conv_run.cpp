#include <algorithm>

#include "core/error.h"
#include "dispatch/cost_model.h"
#include "torch/conv_request.h"
#include "torch/cuda_shims.h"

namespace cutwheel {
namespace {

// Ways to write D, the best first. What has no kernel of its own is written in float32 and converted; where there is none
// either, a float32 bias is rounded to the type of the result.
std::vector<ScaledForm> forms_of(ConvCall const& call) {
  if (!call.is_scaled) return {{call.epilogue.value_or(call.bias ? Epilogue::bias : Epilogue::plain), call.d_type}};
  ScaledForm const same{Epilogue::scaled, call.d_type}, float32{Epilogue::scaled, ScalarType::Float};
  bool const bias_f32 = call.bias && call.d_type != ScalarType::Float && type_of(*call.bias) == ScalarType::Float;
  if (!bias_f32) return {same, float32};
  return {{Epilogue::scaled_bias_f32, call.d_type}, float32, same};
}

// What serves the call as a product, if its operands lie as they should.
std::optional<GemmPlan> plan_of_product(ConvCall const& call) {
  if (call.is_scaled) {
    ScaledCall scaled{{call.names, call.a, call.b}};
    scaled.type = scaled.b_type = call.type;
    scaled.d_type = call.d_type, scaled.device = call.device;
    scaled.scale_a = call.scale_input, scaled.scale_b = call.scale_weight, scaled.bias = call.bias;
    scaled.m = call.m, scaled.n = call.n, scaled.k = call.k;
    return choose_plan(request_of(scaled, choose_form(scaled)));
  }
  GemmRequest request;
  request.device = call.device;
  request.a = request.b = call.type == ScalarType::Float ? DType::tf32 : dtype_of(call.type);
  request.d = dtype_of(call.d_type);
  // Of 32-bit operands others are copied.
  bool const k_first = call.direction == Direction::wgrad && element_bytes(request.a) == 2;
  request.layout_a = k_first ? Layout::column : Layout::row;
  request.layout_b =
      k_first || (call.direction == Direction::dgrad && element_bytes(request.a) == 2) ? Layout::row : Layout::column;
  request.addend = call.bias ? Addend::row : Addend::none;
  if (call.epilogue && info_of(*call.epilogue).addend == Addend::other) {
    request.addend = Addend::other;
    request.epilogue = *call.epilogue;
  }
  request.m = static_cast<int>(call.m), request.n = static_cast<int>(call.n), request.k = static_cast<int>(call.k);
  return choose_plan(request);
}

// Of ways in the order of preference.
class Choice {
 public:
  explicit Choice(DeviceInfo const& device) : device_(device) {}

  bool is_native() const { return native_; }
  void offer(ConvRoute route, ScaledForm const& form, std::optional<GemmPlan> const& plan) {
    if (!plan || native_) return;
    bool const native = runs_native(plan->row->arch, device_.major, device_.minor);
    if (native || way.route == ConvRoute::none) way = {route, form, plan};
    native_ = native;
  }
  ConvWay way;

 private:
  DeviceInfo const& device_;
  bool native_ = false;
};

gemm::Status attempt(PreparedConv& prepared, GemmPlan const& plan, std::optional<Tensor>& workspace) {
  conv2d::ConvArgs& args = prepared.args;
  std::int64_t const bytes = conv2d::workspace_bytes(plan, args);
  if (bytes > 0) {
    workspace = empty_bytes(bytes, prepared.request.device);
    args.workspace = workspace->data_ptr();
  }
  return conv2d::run(plan, args);
}

Tensor run_product(ConvCall const& call) {
  ConvProduct product;
  make_product(product, call);
  PreparedGemm prepared;
  if (product.scaled) {
    run_scaled(prepared, *product.scaled);
    return result_of_product(call, *prepared.d.tensor);
  }
  prepared.d.tensor = make_conv_result(call);
  run_call(prepared, *product.gemm);
  return *std::move(prepared.d.tensor);
}

}  // namespace

char const* name_of(ConvRoute route) {
  switch (route) {
    case ConvRoute::none: break;
    case ConvRoute::implicit: return "implicit GEMM";
    case ConvRoute::flipped: return "implicit GEMM of the flipped filter";
    case ConvRoute::product: return "GEMM";
    case ConvRoute::unfolded: return "implicit GEMM of blocks of pixels";
  }
  return "none";
}

ConvWay choose_way(ConvCall const& call) {
  DeviceInfo const& device = device_info(call.device);
  Choice choice(device);
  if (is_product(call)) {
    std::optional<GemmPlan> const product = plan_of_product(call);
    // K of a filter's gradient is long: kernels of convolutions may split it finer. And they copy a residual to shared
    // memory beside the product, which most of those of products read behind it.
    bool const splits = call.direction == Direction::wgrad;
    std::optional<GemmPlan> implicit;
    double implicit_us = 0;
    if (product && (splits || call.residual)) {
      GemmRequest const request = request_of(call, ConvRoute::implicit, forms_of(call).front());
      implicit = choose_plan(request);
      if (implicit) implicit_us = implicit->predicted_us;
      if (implicit && call.residual) implicit_us += residual_us(*implicit, request, device);
    }
    bool const pays =
        implicit && implicit_us < product->predicted_us &&
        (splits || (is_persistent(*implicit->row) && runs_native(implicit->row->arch, device.major, device.minor)));
    if (!pays) choice.offer(ConvRoute::product, {}, product);
    if (choice.is_native()) return choice.way;  // it stays the first
  }
  if (call.direction == Direction::fprop && !call.is_scaled && copies_windows(call)) {
    ScaledForm const form = forms_of(call).front();
    GemmRequest const request = request_of(call, ConvRoute::unfolded, form);
    std::optional<GemmPlan> const plan = request.space_to_depth.output_tiles > 0 ? choose_plan(request) : std::nullopt;
    // Whatever is predicted: windows on a copy are loaded 2 to 3 times as slowly as full lines, which no figure tells.
    if (plan && plan->row->family == Family::sm90_space_to_depth) return {ConvRoute::unfolded, form, plan};
  }
  for (ScaledForm const& form : forms_of(call)) {
    choice.offer(ConvRoute::implicit, form, choose_plan(request_of(call, ConvRoute::implicit, form)));
  }
  if (choice.is_native() || call.direction != Direction::dgrad || !call.unit_stride()) return choice.way;
  // Tensor cores of Hopper read 32-bit operands K-major only, so there is fprop alone.
  ScaledForm const form = forms_of(call).front();
  choice.offer(ConvRoute::flipped, form, choose_plan(request_of(call, ConvRoute::flipped, form)));
  return choice.way;
}

void launch_conv(PreparedConv& prepared, ConvCall const& call, GemmPlan plan) {
  DeviceInfo const& device = *prepared.args.device;
  std::optional<Tensor> workspace;  // freed after the launch is enqueued: torch's allocator is ordered by stream
  gemm::Status status = attempt(prepared, plan, workspace);
  // What kernels refuse is what tensor maps have no bits for: then those without, through PTX if need be.
  for (bool const tensor_maps : {true, false}) {
    if (status.code != gemm::StatusCode::not_implementable) break;
    if (!tensor_maps && !prepared.request.tensor_maps) break;
    GemmRequest request = prepared.request;
    request.tensor_maps = request.tensor_maps && tensor_maps;
    for (GemmPlan const& next : rank_plans(request, device)) {
      if (next.row == plan.row) continue;
      plan = next;
      status = attempt(prepared, plan, workspace);
      if (status.code != gemm::StatusCode::not_implementable) break;
    }
  }
  check_launch(status, call.names.op, plan.row->name);
  if (!status.good()) {
    conv2d::ConvProblem const& p = call.problem;
    fail(ErrorKind::not_implemented, call.names.op,
         ": no kernel of this wheel takes a convolution of these extents (N=", p.images, ", C=", p.c, ", H=", p.h,
         ", W=", p.w, ", Ko=", p.k_out, ", R=", p.r, ", S=", p.s, ", stride ", p.stride_h, "x", p.stride_w, ", dilation ",
         p.dilation_h, "x", p.dilation_w, "); use torch.nn.functional.conv2d");
  }
}

Tensor empty_result(ConvCall const& call) {
  conv2d::ConvProblem const& p = call.problem;
  if (call.direction == Direction::wgrad) {
    Tensor zeros = empty_channels_last({p.k_out, p.c, p.r, p.s}, call.d_type, call.device);
    torch::stable::zero_(zeros);
    return zeros;
  }
  if (call.direction == Direction::dgrad) return empty_channels_last({0, p.c, p.h, p.w}, call.d_type, call.device);
  return empty_channels_last({0, p.k_out, p.p, p.q}, call.d_type, call.device);
}

std::string explain_conv_miss(ConvCall const& call) {
  GemmRequest const request = request_of(call, ConvRoute::implicit, forms_of(call).front());
  return explain_miss(request, device_info(call.device)) + "\ntorch.nn.functional.conv2d serves it.";
}

Tensor run_conv(ConvCall& call) {
  check_conv(call);
  DeviceScope const scope(call.device);
  if (call.problem.images == 0) return empty_result(call);
  ConvWay const way = choose_way(call);
  if (way.route == ConvRoute::none) fail(ErrorKind::not_implemented, call.names.op, ": ", explain_conv_miss(call));
  if (way.route == ConvRoute::product) return run_product(call);
  PreparedConv prepared;
  prepared.args.device = &device_info(call.device);
  prepared.args.stream = current_stream(call.device);
  prepare_conv(prepared, call, way);
  launch_conv(prepared, call, *way.plan);
  finish_output(prepared.d);
  return *std::move(prepared.d.tensor);
}

}  // namespace cutwheel
