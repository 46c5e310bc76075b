// Registers the ops. No Python C API: torch.ops.load_library finds this by its static initialisers, the only ones in the
// library.
#include "torch/registry.h"

#include <string>

#include "core/error.h"
#include "core/sm_limit.h"
#include "dispatch/batch_invariance.h"
#include "dispatch/environment.h"
#include "dispatch/tuning/table.h"
#include "torch/autograd/node.h"
#include "torch/conv/conv.h"
#include "torch/explain/choice_log.h"
#include "torch/explain/introspection.h"
#include "torch/intercept/intercept.h"
#include "torch/intercept/ops.h"

namespace cutwheel {

Ops const& all_ops() {
  static Ops const ops = [] {
    Ops all;
    for (Ops const& some : {gemm_ops(), fused_ops(), elementwise_ops(), scaled_ops(), quantize_ops(), grouped_ops(),
                            routing_ops(), conv_ops(), grouped_conv_ops()}) {
      all.insert(all.end(), some.begin(), some.end());
    }
    return all;
  }();
  return ops;
}

namespace {

// About the library itself, on any device.
struct Introspection {
  char const* schema;
  Boxed function;
};

template <auto function>
Introspection on_any_device(char const* schema) {
  return {schema, TORCH_BOX(function)};
}

std::vector<Introspection> introspection() {
  return {
      on_any_device<&conv_served>(
          "_conv_served(int direction, int device, ScalarType dtype, ScalarType out_dtype, str epilogue=\"\", "
          "bool has_bias=False, bool unit_stride=True, bool is_volume=False) -> int"),
      on_any_device<&explain_json>(
          "_explain(str op, Tensor?[] operands, ScalarType? out_dtype=None, float beta=1, bool allow_tf32=False, "
          "str epilogue=\"\", int? recipe_a=None, int? recipe_b=None, bool use_fast_accum=False, int[] geometry=[]) "
          "-> str"),
      on_any_device<&explain_for_gpu_json>(
          "_explain_for_gpu(int major, int minor, int sm_count, int shared_memory_bytes, float memory_gb_per_s, "
          "float sm_clock_ghz, str request, int output_tiles=0, int shared_pixels=0, int row_taps=0) "
          "-> str"),
      on_any_device<&kernels_json>("_kernels() -> str"),
      on_any_device<&epilogues_json>("_epilogues() -> str"),
      on_any_device<&build_info_json>("_build_info() -> str"),
      on_any_device<&device_info_json>("_device_info(int device) -> str"),
      on_any_device<&driver_status_json>("_driver_status() -> str"),
      on_any_device<&reload_environment>("_reload_env() -> ()"),
      on_any_device<&set_choice_listener>("_set_choice_listener(int address) -> ()"),
      on_any_device<&set_batch_invariant>("_set_batch_invariant(bool enabled) -> ()"),
      on_any_device<&intercept>("_intercept(str overloads, int dtypes, str key) -> str"),
      on_any_device<&intercepted_json>("_intercepted() -> str"),
      on_any_device<&clear_intercepted>("_clear_intercepted() -> ()"),
      on_any_device<&interception_verdict>("_interception_verdict(str kind, int rows, int[] extents, int major) -> str"),
      on_any_device<&take_addmm>("_take_addmm(Tensor input, Tensor mat1, Tensor mat2, float beta, float alpha) -> Tensor?"),
      on_any_device<&take_addmm_out>(
          "_take_addmm.out(Tensor input, Tensor mat1, Tensor mat2, float beta, float alpha, *, Tensor(a!) out) -> bool"),
      on_any_device<&take_node>("_take_node() -> bool"),
      on_any_device<&set_sm_limit>("_set_sm_limit(int sms) -> ()"),
      on_any_device<&set_sm_carveout_source>("_set_sm_carveout_source(int context, int getter) -> ()"),
      on_any_device<&load_tuning>("_load_tuning(str text) -> ()"),
      on_any_device<&clear_tuned_tables>("_clear_tuning() -> ()"),
      on_any_device<&tuning_json>("_tuning() -> str"),
  };
}

std::string op_name(char const* schema) { return std::string(name_in(schema)); }

}  // namespace
}  // namespace cutwheel

STABLE_TORCH_LIBRARY(cutwheel, m) {
  for (auto const& op : cutwheel::all_ops()) m.def(op.schema);
  for (auto const& op : cutwheel::introspection()) m.def(op.schema);
}

STABLE_TORCH_LIBRARY_IMPL(cutwheel, CUDA, m) {
  for (auto const& op : cutwheel::all_ops()) m.impl(cutwheel::op_name(op.schema).c_str(), op.cuda);
}

STABLE_TORCH_LIBRARY_IMPL(cutwheel, CPU, m) {
  for (auto const& op : cutwheel::all_ops()) m.impl(cutwheel::op_name(op.schema).c_str(), op.cpu);
}

STABLE_TORCH_LIBRARY_IMPL(cutwheel, CompositeExplicitAutograd, m) {
  for (auto const& op : cutwheel::introspection()) m.impl(cutwheel::op_name(op.schema).c_str(), op.function);
}
