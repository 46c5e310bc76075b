#include "torch/scaled_ops.h"

#include "torch/scaled_request.h"

namespace cutwheel {

ScaledCall make_scaled_call(Tensor const& a, Tensor const& b, std::optional<Tensor> const& scale_a,
                            std::optional<Tensor> const& scale_b, std::optional<Tensor> const& bias,
                            std::optional<Tensor> const& azp, std::optional<Tensor> const& azp_adj,
                            std::optional<std::int64_t> recipe_a, std::optional<std::int64_t> recipe_b,
                            bool use_fast_accum) {
  auto const pointer = [](std::optional<Tensor> const& tensor) { return tensor ? &*tensor : nullptr; };
  ScaledCall call{{{"scaled_mm", nullptr, "mat_a", "mat_b", 2}, &a, &b}};
  call.scale_a = pointer(scale_a), call.scale_b = pointer(scale_b);
  call.bias = pointer(bias);
  call.azp = pointer(azp), call.azp_adj = pointer(azp_adj);
  call.recipe_a = recipe_a, call.recipe_b = recipe_b;
  call.use_fast_accum = use_fast_accum;
  return call;
}

Tensor scaled_mm(Tensor const& a, Tensor const& b, std::optional<Tensor> const& scale_a,
                 std::optional<Tensor> const& scale_b, std::optional<Tensor> const& bias, std::optional<Tensor> const& azp,
                 std::optional<Tensor> const& azp_adj, std::optional<ScalarType> out_dtype,
                 std::optional<std::int64_t> recipe_a, std::optional<std::int64_t> recipe_b, bool use_fast_accum) {
  ScaledCall call = make_scaled_call(a, b, scale_a, scale_b, bias, azp, azp_adj, recipe_a, recipe_b, use_fast_accum);
  call.out_dtype = out_dtype;
  PreparedGemm prepared;
  run_scaled(prepared, call);
  return *std::move(prepared.d.tensor);
}

void scaled_mm_out(Tensor const& a, Tensor const& b, std::optional<Tensor> const& scale_a,
                   std::optional<Tensor> const& scale_b, std::optional<Tensor> const& bias,
                   std::optional<Tensor> const& azp, std::optional<Tensor> const& azp_adj,
                   std::optional<std::int64_t> recipe_a, std::optional<std::int64_t> recipe_b, bool use_fast_accum,
                   Tensor const& out) {
  ScaledCall call = make_scaled_call(a, b, scale_a, scale_b, bias, azp, azp_adj, recipe_a, recipe_b, use_fast_accum);
  call.out = &out;
  PreparedGemm prepared;
  run_scaled(prepared, call);
}

}  // namespace cutwheel
