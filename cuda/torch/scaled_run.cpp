#include "torch/cuda_shims.h"
#include "torch/scaled_request.h"

namespace cutwheel {
namespace {

// The result over an empty K: the bias, or zeros.
void fill_with_bias(Tensor result, ScaledCall const& call) {
  if (!call.bias) {
    torch::stable::zero_(result);
    return;
  }
  Matrix bias = vector_of(*call.bias);
  bias.rows = call.m;
  Tensor target = view_of(result, matrix_of(result));
  torch::stable::copy_(target, view_of(*call.bias, bias));
}

}  // namespace

bool start_scaled(PreparedGemm& prepared, ScaledCall const& call) {
  std::int64_t const shape[] = {call.m, call.n};
  prepared.d.tensor = call.out ? *call.out : empty_contiguous(shape, 2, call.d_type, call.device);
  return !call.empty() && call.k > 0;
}

GemmPlan plan_scaled(PreparedGemm& prepared, ScaledCall& call) {
  call.form = choose_form(call);
  prepare_scaled(prepared, call, {});
  return plan_product(prepared, call, [&](Forced forced) { prepare_scaled(prepared, call, forced); });
}

void run_scaled(PreparedGemm& prepared, ScaledCall& call) {
  check_scaled(call);
  DeviceScope const scope(call.device);
  bool const multiplies = start_scaled(prepared, call);
  if (!multiplies) {
    if (!call.empty()) fill_with_bias(*prepared.d.tensor, call);
    return;
  }
  prepared.args.device = &device_info(call.device);
  prepared.args.stream = current_stream(call.device);
  GemmPlan const plan = plan_scaled(prepared, call);
  launch_product(prepared, call, plan);
  finish_output(prepared.d);
}

}  // namespace cutwheel
