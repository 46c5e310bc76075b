// The registry of ops: schema, implementation, and what a call with CPU tensors is told. No Python C API:
// torch.ops.load_library finds this by its static initialisers, the only ones in the library.
#include <torch/csrc/stable/library.h>

#include <string>

#include "core/error.h"
#include "dispatch/environment.h"
#include "torch/conv.h"
#include "torch/fused.h"
#include "torch/gemm.h"
#include "torch/grouped.h"
#include "torch/introspection.h"
#include "torch/scaled.h"
#include "torch/text_argument.h"

namespace cutwheel {
namespace {

using Boxed = void (*)(StableIValue*, std::uint64_t, std::uint64_t);

struct OpEntry {
  char const* schema;
  Boxed cuda;
  Boxed cpu;  // refuses
};

struct AnyDeviceEntry {
  char const* schema;
  Boxed function;
};

// An op as messages name it, and torch's function for CPU tensors; nullptr: there is none.
struct OnCpu {
  char const* op;
  char const* torch_op;
};

constexpr OnCpu kMmOnCpu{"mm", "mm"};
constexpr OnCpu kBmmOnCpu{"bmm", "bmm"};
constexpr OnCpu kAddmmOnCpu{"addmm", "addmm"};
constexpr OnCpu kBaddbmmOnCpu{"baddbmm", "baddbmm"};
constexpr OnCpu kLinearOnCpu{"linear", "nn.functional.linear"};
constexpr OnCpu kGemmOnCpu{"gemm", "matmul"};
constexpr OnCpu kElementwiseOnCpu{"elementwise", "nn.functional"};
constexpr OnCpu kScaledMmOnCpu{"scaled_mm", "_scaled_mm"};
constexpr OnCpu kQuantizeOnCpu{"quantize", nullptr};
constexpr OnCpu kGroupedMmOnCpu{"grouped_mm", "nn.functional.grouped_mm"};
constexpr OnCpu kGroupedMmAccumulateOnCpu{"grouped_mm_accumulate", nullptr};
constexpr OnCpu kGroupedLinearOnCpu{"grouped_linear", nullptr};
constexpr OnCpu kScaledGroupedMmOnCpu{"scaled_grouped_mm", nullptr};
constexpr OnCpu kConv2dOnCpu{"conv2d", "nn.functional.conv2d"};
constexpr OnCpu kConv2dInputGradOnCpu{"conv2d_input_grad", "nn.grad.conv2d_input"};
constexpr OnCpu kConv2dWeightGradOnCpu{"conv2d_weight_grad", "nn.grad.conv2d_weight"};
constexpr OnCpu kScaledConv2dOnCpu{"scaled_conv2d", nullptr};

// Strings are ours to free; tensors and lists free themselves.
void release(StringHandle handle) { TextArgument const owned(handle); }
template <class T>
void release(T const&) {}

// What stands in for the implementation where tensors are on the CPU: one sentence instead of the dispatcher's list of
// backends.
template <OnCpu const& on_cpu, class Function>
struct Refusal;
template <OnCpu const& on_cpu, class Result, class... Arguments>
struct Refusal<on_cpu, Result(Arguments...)> {
  static Result call(Arguments... arguments) {
    (release(arguments), ...);
    fail(ErrorKind::not_implemented, on_cpu.op,
         ": the tensors are on the CPU; cutwheel's kernels run on CUDA devices: move them with .to(\"cuda\")",
         on_cpu.torch_op ? ", or use torch." : "", on_cpu.torch_op ? on_cpu.torch_op : "");
  }
};

template <auto function, OnCpu const& on_cpu>
OpEntry op(char const* schema) {
  using Function = std::remove_pointer_t<decltype(function)>;
  return {schema, TORCH_BOX(function), TORCH_BOX((&Refusal<on_cpu, Function>::call))};
}

template <auto function>
AnyDeviceEntry on_any_device(char const* schema) {
  return {schema, TORCH_BOX(function)};
}

// Geometry of convolutions. SymInt, not int: torch.compile keeps numbers of a graph symbolic then, and torch reads it
// faster.
#define CUTWHEEL_GEOMETRY                                                         \
  "SymInt stride_h, SymInt stride_w, SymInt padding_top, SymInt padding_bottom, " \
  "SymInt padding_left, SymInt padding_right, SymInt dilation_h, SymInt dilation_w"

std::vector<OpEntry> ops() {
  return {
      op<&mm, kMmOnCpu>("mm(Tensor input, Tensor mat2, ScalarType? out_dtype=None, bool allow_tf32=False) -> Tensor"),
      op<&mm_out, kMmOnCpu>("mm.out(Tensor input, Tensor mat2, bool allow_tf32=False, *, Tensor(a!) out) -> ()"),
      op<&bmm, kBmmOnCpu>("bmm(Tensor input, Tensor mat2, ScalarType? out_dtype=None, bool allow_tf32=False) -> Tensor"),
      op<&bmm_out, kBmmOnCpu>("bmm.out(Tensor input, Tensor mat2, bool allow_tf32=False, *, Tensor(a!) out) -> ()"),
      op<&addmm, kAddmmOnCpu>(
          "addmm(Tensor input, Tensor mat1, Tensor mat2, ScalarType? out_dtype=None, float beta=1, float alpha=1, "
          "bool allow_tf32=False) -> Tensor"),
      op<&addmm_out, kAddmmOnCpu>(
          "addmm.out(Tensor input, Tensor mat1, Tensor mat2, float beta=1, float alpha=1, bool allow_tf32=False, *, "
          "Tensor(a!) out) -> ()"),
      op<&baddbmm, kBaddbmmOnCpu>(
          "baddbmm(Tensor input, Tensor batch1, Tensor batch2, ScalarType? out_dtype=None, float beta=1, float alpha=1, "
          "bool allow_tf32=False) -> Tensor"),
      op<&baddbmm_out, kBaddbmmOnCpu>(
          "baddbmm.out(Tensor input, Tensor batch1, Tensor batch2, float beta=1, float alpha=1, bool allow_tf32=False, *, "
          "Tensor(a!) out) -> ()"),
      op<&linear, kLinearOnCpu>("linear(Tensor input, Tensor weight, Tensor? bias=None, bool allow_tf32=False) -> Tensor"),
      op<&gemm_named, kGemmOnCpu>(
          "gemm(Tensor a, Tensor b, str epilogue, Tensor?[] operands, float[] scalars, ScalarType? out_dtype=None, "
          "bool allow_tf32=False) -> Tensor[]"),
      op<&gemm_named_out, kGemmOnCpu>(
          "gemm.out(Tensor a, Tensor b, str epilogue, Tensor?[] operands, float[] scalars, bool allow_tf32=False, *, "
          "Tensor(a!)[] out) -> ()"),
      op<&linear_fused, kLinearOnCpu>(
          "linear_fused(Tensor input, Tensor weight, Tensor? bias, Tensor? residual, str epilogue, bool allow_tf32=False) "
          "-> Tensor"),
      op<&linear_fused_aux, kLinearOnCpu>(
          "linear_fused_aux(Tensor input, Tensor weight, Tensor? bias, Tensor? residual, str epilogue, "
          "bool allow_tf32=False) -> (Tensor, Tensor)"),
      op<&elementwise, kElementwiseOnCpu>(
          "elementwise(Tensor[] operands, str epilogue, bool with_result=True, bool with_sums=False) -> (Tensor, Tensor)"),
      op<&scaled_mm, kScaledMmOnCpu>(
          "scaled_mm(Tensor mat_a, Tensor mat_b, Tensor? scale_a, Tensor? scale_b, Tensor? bias=None, Tensor? azp=None, "
          "Tensor? azp_adj=None, ScalarType? output_dtype=None, int? scale_recipe_a=None, int? scale_recipe_b=None, "
          "bool use_fast_accum=False) -> Tensor"),
      op<&scaled_mm_out, kScaledMmOnCpu>(
          "scaled_mm.out(Tensor mat_a, Tensor mat_b, Tensor? scale_a, Tensor? scale_b, Tensor? bias=None, Tensor? "
          "azp=None, "
          "Tensor? azp_adj=None, int? scale_recipe_a=None, int? scale_recipe_b=None, bool use_fast_accum=False, *, "
          "Tensor(a!) out) -> ()"),
      op<&quantize, kQuantizeOnCpu>(
          "quantize(Tensor x, int recipe, ScalarType dtype, bool symmetric=True) -> (Tensor, Tensor, Tensor)"),
      op<&grouped_mm, kGroupedMmOnCpu>(
          "grouped_mm(Tensor mat_a, Tensor mat_b, Tensor offs, Tensor? bias=None, ScalarType? out_dtype=None, "
          "bool allow_tf32=False) -> Tensor"),
      op<&grouped_mm_accumulate, kGroupedMmAccumulateOnCpu>(
          "grouped_mm_accumulate(Tensor mat_a, Tensor mat_b, Tensor offs, bool allow_tf32=False, *, Tensor(a!) out) -> ()"),
      op<&grouped_linear_fused, kGroupedLinearOnCpu>("grouped_linear_fused(Tensor input, Tensor weight, Tensor offs, "
                                                     "Tensor? bias, str epilogue, bool allow_tf32=False) "
                                                     "-> Tensor"),
      op<&grouped_linear_fused_aux, kGroupedLinearOnCpu>(
          "grouped_linear_fused_aux(Tensor input, Tensor weight, Tensor offs, Tensor? bias, str epilogue, "
          "bool allow_tf32=False) -> (Tensor, Tensor)"),
      op<&scaled_grouped_mm, kScaledGroupedMmOnCpu>(
          "scaled_grouped_mm(Tensor mat_a, Tensor mat_b, Tensor scale_a, Tensor scale_b, Tensor offs, Tensor? bias=None, "
          "ScalarType? output_dtype=None, bool use_fast_accum=False) -> Tensor"),
      op<&conv2d_op, kConv2dOnCpu>("conv2d(Tensor input, Tensor weight, Tensor? bias, " CUTWHEEL_GEOMETRY
                                   ", bool allow_tf32=False) -> Tensor"),
      op<&conv2d_fused, kConv2dOnCpu>(
          "conv2d_fused(Tensor input, Tensor weight, Tensor? bias, Tensor? residual, " CUTWHEEL_GEOMETRY
          ", str epilogue, bool allow_tf32=False) -> Tensor"),
      op<&conv2d_input_grad, kConv2dInputGradOnCpu>(
          "conv2d_input_grad(Tensor grad_output, Tensor weight, SymInt input_h, SymInt input_w, " CUTWHEEL_GEOMETRY
          ", bool allow_tf32=False) -> Tensor"),
      op<&conv2d_weight_grad, kConv2dWeightGradOnCpu>(
          "conv2d_weight_grad(Tensor grad_output, Tensor input, SymInt weight_h, SymInt weight_w, " CUTWHEEL_GEOMETRY
          ", bool allow_tf32=False) -> Tensor"),
      op<&scaled_conv2d, kScaledConv2dOnCpu>("scaled_conv2d(Tensor input, Tensor weight, Tensor scale_input, Tensor "
                                             "scale_weight, Tensor? bias, " CUTWHEEL_GEOMETRY
                                             ", ScalarType? out_dtype=None) -> Tensor"),
  };
}

std::vector<AnyDeviceEntry> introspection() {
  return {
      on_any_device<&explain_conv_json>(
          "_explain_conv(int op, Tensor?[] operands, " CUTWHEEL_GEOMETRY
          ", ScalarType? out_dtype, bool allow_tf32, str epilogue=\"\", int size_h=0, int size_w=0) -> str"),
      on_any_device<&conv_served>(
          "_conv_served(int direction, int device, ScalarType dtype, ScalarType out_dtype, str epilogue=\"\", "
          "bool has_bias=False, bool unit_stride=True) -> int"),
      on_any_device<&explain_json>(
          "_explain(int op, Tensor?[] operands, ScalarType? out_dtype, float beta, bool allow_tf32, str epilogue=\"\", "
          "int? recipe_a=None, int? recipe_b=None, bool use_fast_accum=False) -> str"),
      on_any_device<&explain_for_gpu_json>(
          "_explain_for_gpu(int major, int minor, int sm_count, int shared_memory_bytes, float memory_gb_per_s, "
          "float sm_clock_ghz, int a, int d, int layout_a, int layout_b, int addend, bool extents_aligned, int m, int n, "
          "int k, int batch, str epilogue=\"\", int b=-1, bool fast_accum=False, int scales=0, int grouping=0, "
          "int groups=0, int direction=0, int taps=1, int step=1, int rectangles=0) -> str"),
      on_any_device<&kernels_json>("_kernels() -> str"),
      on_any_device<&epilogues_json>("_epilogues() -> str"),
      on_any_device<&build_info_json>("_build_info() -> str"),
      on_any_device<&device_info_json>("_device_info(int device) -> str"),
      on_any_device<&driver_status_json>("_driver_status() -> str"),
      on_any_device<&reload_environment>("_reload_env() -> ()"),
      on_any_device<&load_tuning>("_load_tuning(str text) -> ()"),
      on_any_device<&clear_tuning>("_clear_tuning() -> ()"),
      on_any_device<&tuning_json>("_tuning() -> str"),
  };
}

std::string op_name(char const* schema) {
  std::string const text = schema;
  return text.substr(0, text.find('('));
}

}  // namespace
}  // namespace cutwheel

STABLE_TORCH_LIBRARY(cutwheel, m) {
  for (auto const& entry : cutwheel::ops()) m.def(entry.schema);
  for (auto const& entry : cutwheel::introspection()) m.def(entry.schema);
}

STABLE_TORCH_LIBRARY_IMPL(cutwheel, CUDA, m) {
  for (auto const& entry : cutwheel::ops()) m.impl(cutwheel::op_name(entry.schema).c_str(), entry.cuda);
}

STABLE_TORCH_LIBRARY_IMPL(cutwheel, CPU, m) {
  for (auto const& entry : cutwheel::ops()) m.impl(cutwheel::op_name(entry.schema).c_str(), entry.cpu);
}

STABLE_TORCH_LIBRARY_IMPL(cutwheel, CompositeExplicitAutograd, m) {
  for (auto const& entry : cutwheel::introspection()) m.impl(cutwheel::op_name(entry.schema).c_str(), entry.function);
}
