#include "torch/grouped_ops.h"

#include "torch/text_argument.h"

namespace cutwheel {
namespace {

Tensor run(GroupedCall call) {
  PreparedGemm prepared;
  run_grouped(prepared, call);
  return *std::move(prepared.d.tensor);
}

void run_linear(PreparedGemm& prepared, Tensor const& input, Tensor const& weight, Tensor const& offs,
                std::optional<Tensor> const& bias, StringHandle name, bool allow_tf32, int stores) {
  TextArgument const text(name);
  GroupedCall call = grouped_linear_call(input, weight, offs, bias, grouped_epilogue(text.view(), stores), allow_tf32);
  run_grouped(prepared, call);
}

}  // namespace

GroupedCall grouped_mm_call(Tensor const& a, Tensor const& b, Tensor const& offs, std::optional<Tensor> const& bias,
                            std::optional<ScalarType> out_dtype, bool allow_tf32) {
  GroupedCall call = make_grouped_call(kGroupedMm, a, b, offs);
  call.bias = bias ? &*bias : nullptr;
  call.out_dtype = out_dtype;
  call.allow_tf32 = allow_tf32;
  return call;
}

GroupedCall grouped_accumulate_call(Tensor const& a, Tensor const& b, Tensor const& offs, bool allow_tf32,
                                    Tensor const& out) {
  GroupedCall call = make_grouped_call(kGroupedMmAccumulate, a, b, offs);
  call.allow_tf32 = allow_tf32;
  call.accumulates = true;
  call.out = &out;
  return call;
}

GroupedCall grouped_linear_call(Tensor const& input, Tensor const& weight, Tensor const& offs,
                                std::optional<Tensor> const& bias, Epilogue epilogue, bool allow_tf32) {
  GroupedCall call = make_grouped_call(kGroupedLinear, input, weight, offs);
  call.bias = bias ? &*bias : nullptr;
  call.allow_tf32 = allow_tf32;
  call.linear = true;
  call.epilogue = epilogue;
  return call;
}

GroupedCall scaled_grouped_call(Tensor const& a, Tensor const& b, Tensor const& scale_a, Tensor const& scale_b,
                                Tensor const& offs, std::optional<Tensor> const& bias, std::optional<ScalarType> out_dtype,
                                bool use_fast_accum) {
  GroupedCall call = make_grouped_call(kScaledGroupedMm, a, b, offs);
  call.scale_a = &scale_a, call.scale_b = &scale_b;
  call.bias = bias ? &*bias : nullptr;
  call.out_dtype = out_dtype;
  call.use_fast_accum = use_fast_accum;
  call.is_scaled = true;
  return call;
}

Tensor grouped_mm(Tensor const& a, Tensor const& b, Tensor const& offs, std::optional<Tensor> const& bias,
                  std::optional<ScalarType> out_dtype, bool allow_tf32) {
  return run(grouped_mm_call(a, b, offs, bias, out_dtype, allow_tf32));
}

void grouped_mm_accumulate(Tensor const& a, Tensor const& b, Tensor const& offs, bool allow_tf32, Tensor const& out) {
  run(grouped_accumulate_call(a, b, offs, allow_tf32, out));
}

Tensor grouped_linear_fused(Tensor const& input, Tensor const& weight, Tensor const& offs,
                            std::optional<Tensor> const& bias, StringHandle epilogue, bool allow_tf32) {
  PreparedGemm prepared;
  run_linear(prepared, input, weight, offs, bias, epilogue, allow_tf32, /*stores=*/0);
  return *std::move(prepared.d.tensor);
}

std::tuple<Tensor, Tensor> grouped_linear_fused_aux(Tensor const& input, Tensor const& weight, Tensor const& offs,
                                                    std::optional<Tensor> const& bias, StringHandle epilogue,
                                                    bool allow_tf32) {
  PreparedGemm prepared;
  run_linear(prepared, input, weight, offs, bias, epilogue, allow_tf32, /*stores=*/1);
  return {*std::move(prepared.d.tensor), *std::move(prepared.stores[0].tensor)};
}

Tensor scaled_grouped_mm(Tensor const& a, Tensor const& b, Tensor const& scale_a, Tensor const& scale_b, Tensor const& offs,
                         std::optional<Tensor> const& bias, std::optional<ScalarType> out_dtype, bool use_fast_accum) {
  return run(scaled_grouped_call(a, b, scale_a, scale_b, offs, bias, out_dtype, use_fast_accum));
}

}  // namespace cutwheel
