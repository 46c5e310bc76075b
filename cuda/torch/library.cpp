// Schemas, and which function runs for which dispatch key. No Python C API: torch.ops.load_library finds this by its
// static initialisers, the only ones in the library.
#include <torch/csrc/stable/library.h>

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

// One sentence instead of the dispatcher's list of backends.
[[noreturn]] void refuse_cpu(char const* op, char const* torch_op) {
  fail(ErrorKind::not_implemented, op,
       ": the tensors are on the CPU; cutwheel's kernels run on CUDA devices: move them with .to(\"cuda\")",
       torch_op ? ", or use torch." : "", torch_op ? torch_op : "");
}

Tensor cpu_mm(Tensor const&, Tensor const&, std::optional<ScalarType>, bool) { refuse_cpu("mm", "mm"); }
void cpu_mm_out(Tensor const&, Tensor const&, bool, Tensor const&) { refuse_cpu("mm", "mm"); }
Tensor cpu_bmm(Tensor const&, Tensor const&, std::optional<ScalarType>, bool) { refuse_cpu("bmm", "bmm"); }
void cpu_bmm_out(Tensor const&, Tensor const&, bool, Tensor const&) { refuse_cpu("bmm", "bmm"); }
Tensor cpu_addmm(Tensor const&, Tensor const&, Tensor const&, std::optional<ScalarType>, double, double, bool) {
  refuse_cpu("addmm", "addmm");
}
void cpu_addmm_out(Tensor const&, Tensor const&, Tensor const&, double, double, bool, Tensor const&) {
  refuse_cpu("addmm", "addmm");
}
Tensor cpu_baddbmm(Tensor const&, Tensor const&, Tensor const&, std::optional<ScalarType>, double, double, bool) {
  refuse_cpu("baddbmm", "baddbmm");
}
void cpu_baddbmm_out(Tensor const&, Tensor const&, Tensor const&, double, double, bool, Tensor const&) {
  refuse_cpu("baddbmm", "baddbmm");
}
Tensor cpu_linear(Tensor const&, Tensor const&, std::optional<Tensor>, bool) {
  refuse_cpu("linear", "nn.functional.linear");
}
// Strings are ours to free.
std::vector<Tensor> cpu_gemm(Tensor const&, Tensor const&, StringHandle epilogue, OptionalTensors const&,
                             std::vector<double> const&, std::optional<ScalarType>, bool) {
  TextArgument const name(epilogue);
  refuse_cpu("gemm", "matmul");
}
void cpu_gemm_out(Tensor const&, Tensor const&, StringHandle epilogue, OptionalTensors const&, std::vector<double> const&,
                  bool, std::vector<Tensor> const&) {
  TextArgument const name(epilogue);
  refuse_cpu("gemm", "matmul");
}
Tensor cpu_linear_fused(Tensor const&, Tensor const&, std::optional<Tensor> const&, std::optional<Tensor> const&,
                        StringHandle epilogue, bool) {
  TextArgument const name(epilogue);
  refuse_cpu("linear", "nn.functional.linear");
}
std::tuple<Tensor, Tensor> cpu_linear_fused_aux(Tensor const&, Tensor const&, std::optional<Tensor> const&,
                                                std::optional<Tensor> const&, StringHandle epilogue, bool) {
  TextArgument const name(epilogue);
  refuse_cpu("linear", "nn.functional.linear");
}
std::tuple<Tensor, Tensor> cpu_elementwise(std::vector<Tensor> const&, StringHandle epilogue, bool, bool) {
  TextArgument const name(epilogue);
  refuse_cpu("elementwise", "nn.functional");
}

Tensor cpu_scaled_mm(Tensor const&, Tensor const&, std::optional<Tensor> const&, std::optional<Tensor> const&,
                     std::optional<Tensor> const&, std::optional<Tensor> const&, std::optional<Tensor> const&,
                     std::optional<ScalarType>, std::optional<std::int64_t>, std::optional<std::int64_t>, bool) {
  refuse_cpu("scaled_mm", "_scaled_mm");
}
void cpu_scaled_mm_out(Tensor const&, Tensor const&, std::optional<Tensor> const&, std::optional<Tensor> const&,
                       std::optional<Tensor> const&, std::optional<Tensor> const&, std::optional<Tensor> const&,
                       std::optional<std::int64_t>, std::optional<std::int64_t>, bool, Tensor const&) {
  refuse_cpu("scaled_mm", "_scaled_mm");
}
std::tuple<Tensor, Tensor, Tensor> cpu_quantize(Tensor const&, std::int64_t, ScalarType, bool) {
  refuse_cpu("quantize", nullptr);
}

Tensor cpu_grouped_mm(Tensor const&, Tensor const&, Tensor const&, std::optional<Tensor> const&, std::optional<ScalarType>,
                      bool) {
  refuse_cpu("grouped_mm", "nn.functional.grouped_mm");
}
void cpu_grouped_mm_accumulate(Tensor const&, Tensor const&, Tensor const&, bool, Tensor const&) {
  refuse_cpu("grouped_mm_accumulate", nullptr);
}
Tensor cpu_grouped_linear_fused(Tensor const&, Tensor const&, Tensor const&, std::optional<Tensor> const&,
                                StringHandle epilogue, bool) {
  TextArgument const name(epilogue);
  refuse_cpu("grouped_linear", nullptr);
}
std::tuple<Tensor, Tensor> cpu_grouped_linear_fused_aux(Tensor const&, Tensor const&, Tensor const&,
                                                        std::optional<Tensor> const&, StringHandle epilogue, bool) {
  TextArgument const name(epilogue);
  refuse_cpu("grouped_linear", nullptr);
}
Tensor cpu_scaled_grouped_mm(Tensor const&, Tensor const&, Tensor const&, Tensor const&, Tensor const&,
                             std::optional<Tensor> const&, std::optional<ScalarType>, bool) {
  refuse_cpu("scaled_grouped_mm", nullptr);
}

using N = std::int64_t;
Tensor cpu_conv2d(Tensor const&, Tensor const&, std::optional<Tensor> const&, N, N, N, N, N, N, N, N, bool) {
  refuse_cpu("conv2d", "nn.functional.conv2d");
}
Tensor cpu_conv2d_fused(Tensor const&, Tensor const&, std::optional<Tensor> const&, std::optional<Tensor> const&, N, N, N,
                        N, N, N, N, N, StringHandle epilogue, bool) {
  TextArgument const name(epilogue);
  refuse_cpu("conv2d", "nn.functional.conv2d");
}
Tensor cpu_conv2d_input_grad(Tensor const&, Tensor const&, N, N, N, N, N, N, N, N, N, N, bool) {
  refuse_cpu("conv2d_input_grad", "nn.grad.conv2d_input");
}
Tensor cpu_conv2d_weight_grad(Tensor const&, Tensor const&, N, N, N, N, N, N, N, N, N, N, bool, bool) {
  refuse_cpu("conv2d_weight_grad", "nn.grad.conv2d_weight");
}
Tensor cpu_scaled_conv2d(Tensor const&, Tensor const&, Tensor const&, Tensor const&, std::optional<Tensor> const&, N, N, N,
                         N, N, N, N, N, std::optional<ScalarType>) {
  refuse_cpu("scaled_conv2d", nullptr);
}

// Of convolutions. SymInt, not int: torch.compile leaves numbers of a graph symbolic then; and torch reads it faster.
#define CUTWHEEL_WHERE                                                            \
  "SymInt stride_h, SymInt stride_w, SymInt padding_top, SymInt padding_bottom, " \
  "SymInt padding_left, SymInt padding_right, SymInt dilation_h, SymInt dilation_w"

void register_schemas(torch::stable::detail::StableLibrary& m) {
  m.def("mm(Tensor input, Tensor mat2, ScalarType? out_dtype=None, bool allow_tf32=False) -> Tensor");
  m.def("mm.out(Tensor input, Tensor mat2, bool allow_tf32=False, *, Tensor(a!) out) -> ()");
  m.def("bmm(Tensor input, Tensor mat2, ScalarType? out_dtype=None, bool allow_tf32=False) -> Tensor");
  m.def("bmm.out(Tensor input, Tensor mat2, bool allow_tf32=False, *, Tensor(a!) out) -> ()");
  m.def(
      "addmm(Tensor input, Tensor mat1, Tensor mat2, ScalarType? out_dtype=None, float beta=1, float alpha=1, "
      "bool allow_tf32=False) -> Tensor");
  m.def(
      "addmm.out(Tensor input, Tensor mat1, Tensor mat2, float beta=1, float alpha=1, bool allow_tf32=False, *, "
      "Tensor(a!) out) -> ()");
  m.def(
      "baddbmm(Tensor input, Tensor batch1, Tensor batch2, ScalarType? out_dtype=None, float beta=1, float alpha=1, "
      "bool allow_tf32=False) -> Tensor");
  m.def(
      "baddbmm.out(Tensor input, Tensor batch1, Tensor batch2, float beta=1, float alpha=1, bool allow_tf32=False, *, "
      "Tensor(a!) out) -> ()");
  m.def("linear(Tensor input, Tensor weight, Tensor? bias=None, bool allow_tf32=False) -> Tensor");
  m.def(
      "gemm(Tensor a, Tensor b, str epilogue, Tensor?[] operands, float[] scalars, ScalarType? out_dtype=None, "
      "bool allow_tf32=False) -> Tensor[]");
  m.def(
      "gemm.out(Tensor a, Tensor b, str epilogue, Tensor?[] operands, float[] scalars, bool allow_tf32=False, *, "
      "Tensor(a!)[] out) -> ()");
  m.def(
      "linear_fused(Tensor input, Tensor weight, Tensor? bias, Tensor? residual, str epilogue, bool allow_tf32=False) "
      "-> Tensor");
  m.def(
      "linear_fused_aux(Tensor input, Tensor weight, Tensor? bias, Tensor? residual, str epilogue, "
      "bool allow_tf32=False) -> (Tensor, Tensor)");
  m.def("elementwise(Tensor[] operands, str epilogue, bool with_result=True, bool with_sums=False) -> (Tensor, Tensor)");
  m.def(
      "scaled_mm(Tensor mat_a, Tensor mat_b, Tensor? scale_a, Tensor? scale_b, Tensor? bias=None, Tensor? azp=None, "
      "Tensor? azp_adj=None, ScalarType? output_dtype=None, int? scale_recipe_a=None, int? scale_recipe_b=None, "
      "bool use_fast_accum=False) -> Tensor");
  m.def(
      "scaled_mm.out(Tensor mat_a, Tensor mat_b, Tensor? scale_a, Tensor? scale_b, Tensor? bias=None, Tensor? azp=None, "
      "Tensor? azp_adj=None, int? scale_recipe_a=None, int? scale_recipe_b=None, bool use_fast_accum=False, *, "
      "Tensor(a!) out) -> ()");
  m.def("quantize(Tensor x, int recipe, ScalarType dtype, bool symmetric=True) -> (Tensor, Tensor, Tensor)");
  m.def(
      "grouped_mm(Tensor mat_a, Tensor mat_b, Tensor offs, Tensor? bias=None, ScalarType? out_dtype=None, "
      "bool allow_tf32=False) -> Tensor");
  m.def("grouped_mm_accumulate(Tensor mat_a, Tensor mat_b, Tensor offs, bool allow_tf32=False, *, Tensor(a!) out) -> ()");
  m.def(
      "grouped_linear_fused(Tensor input, Tensor weight, Tensor offs, Tensor? bias, str epilogue, bool allow_tf32=False) "
      "-> Tensor");
  m.def(
      "grouped_linear_fused_aux(Tensor input, Tensor weight, Tensor offs, Tensor? bias, str epilogue, "
      "bool allow_tf32=False) -> (Tensor, Tensor)");
  m.def(
      "scaled_grouped_mm(Tensor mat_a, Tensor mat_b, Tensor scale_a, Tensor scale_b, Tensor offs, Tensor? bias=None, "
      "ScalarType? output_dtype=None, bool use_fast_accum=False) -> Tensor");
  m.def("conv2d(Tensor input, Tensor weight, Tensor? bias, " CUTWHEEL_WHERE ", bool allow_tf32=False) -> Tensor");
  m.def("conv2d_fused(Tensor input, Tensor weight, Tensor? bias, Tensor? residual, " CUTWHEEL_WHERE
        ", str epilogue, bool allow_tf32=False) -> Tensor");
  m.def("conv2d_input_grad(Tensor grad_output, Tensor weight, SymInt input_h, SymInt input_w, " CUTWHEEL_WHERE
        ", bool allow_tf32=False) -> Tensor");
  m.def("conv2d_weight_grad(Tensor grad_output, Tensor input, SymInt weight_h, SymInt weight_w, " CUTWHEEL_WHERE
        ", bool allow_tf32=False, bool deterministic=False) -> Tensor");
  m.def("scaled_conv2d(Tensor input, Tensor weight, Tensor scale_input, Tensor scale_weight, Tensor? bias, " CUTWHEEL_WHERE
        ", ScalarType? out_dtype=None) -> Tensor");
  m.def("_explain_conv(int op, Tensor?[] operands, " CUTWHEEL_WHERE
        ", ScalarType? out_dtype, bool allow_tf32, str epilogue=\"\", int size_h=0, int size_w=0) -> str");
#undef CUTWHEEL_WHERE
  m.def(
      "_conv_served(int direction, int device, ScalarType dtype, ScalarType out_dtype, str epilogue=\"\", "
      "bool has_bias=False, bool unit_stride=True) -> int");
  m.def(
      "_explain(int op, Tensor?[] operands, ScalarType? out_dtype, float beta, bool allow_tf32, str epilogue=\"\", "
      "int? recipe_a=None, int? recipe_b=None, bool use_fast_accum=False) -> str");
  m.def(
      "_explain_for_gpu(int major, int minor, int sm_count, int shared_memory_bytes, float memory_gb_per_s, "
      "float sm_clock_ghz, int a, int d, int layout_a, int layout_b, int addend, bool extents_aligned, int m, int n, "
      "int k, int batch, str epilogue=\"\", int b=-1, bool fast_accum=False, int scales=0, int grouping=0, "
      "int groups=0, int direction=0, int taps=1, int step=1, int rectangles=0) -> str");
  m.def("_kernels() -> str");
  m.def("_epilogues() -> str");
  m.def("_build_info() -> str");
  m.def("_device_info(int device) -> str");
  m.def("_driver_status() -> str");
  m.def("_reload_env() -> ()");
  m.def("_load_tuning(str text) -> ()");
  m.def("_clear_tuning() -> ()");
  m.def("_tuning() -> str");
}

}  // namespace
}  // namespace cutwheel

STABLE_TORCH_LIBRARY(cutwheel, m) { cutwheel::register_schemas(m); }

STABLE_TORCH_LIBRARY_IMPL(cutwheel, CUDA, m) {
  m.impl("mm", TORCH_BOX(&cutwheel::mm));
  m.impl("mm.out", TORCH_BOX(&cutwheel::mm_out));
  m.impl("bmm", TORCH_BOX(&cutwheel::bmm));
  m.impl("bmm.out", TORCH_BOX(&cutwheel::bmm_out));
  m.impl("addmm", TORCH_BOX(&cutwheel::addmm));
  m.impl("addmm.out", TORCH_BOX(&cutwheel::addmm_out));
  m.impl("baddbmm", TORCH_BOX(&cutwheel::baddbmm));
  m.impl("baddbmm.out", TORCH_BOX(&cutwheel::baddbmm_out));
  m.impl("linear", TORCH_BOX(&cutwheel::linear));
  m.impl("gemm", TORCH_BOX(&cutwheel::gemm_named));
  m.impl("gemm.out", TORCH_BOX(&cutwheel::gemm_named_out));
  m.impl("linear_fused", TORCH_BOX(&cutwheel::linear_fused));
  m.impl("linear_fused_aux", TORCH_BOX(&cutwheel::linear_fused_aux));
  m.impl("elementwise", TORCH_BOX(&cutwheel::elementwise));
  m.impl("scaled_mm", TORCH_BOX(&cutwheel::scaled_mm));
  m.impl("scaled_mm.out", TORCH_BOX(&cutwheel::scaled_mm_out));
  m.impl("quantize", TORCH_BOX(&cutwheel::quantize));
  m.impl("grouped_mm", TORCH_BOX(&cutwheel::grouped_mm));
  m.impl("grouped_mm_accumulate", TORCH_BOX(&cutwheel::grouped_mm_accumulate));
  m.impl("grouped_linear_fused", TORCH_BOX(&cutwheel::grouped_linear_fused));
  m.impl("grouped_linear_fused_aux", TORCH_BOX(&cutwheel::grouped_linear_fused_aux));
  m.impl("scaled_grouped_mm", TORCH_BOX(&cutwheel::scaled_grouped_mm));
  m.impl("conv2d", TORCH_BOX(&cutwheel::conv2d_op));
  m.impl("conv2d_fused", TORCH_BOX(&cutwheel::conv2d_fused));
  m.impl("conv2d_input_grad", TORCH_BOX(&cutwheel::conv2d_input_grad));
  m.impl("conv2d_weight_grad", TORCH_BOX(&cutwheel::conv2d_weight_grad));
  m.impl("scaled_conv2d", TORCH_BOX(&cutwheel::scaled_conv2d));
}

STABLE_TORCH_LIBRARY_IMPL(cutwheel, CPU, m) {
  m.impl("mm", TORCH_BOX(&cutwheel::cpu_mm));
  m.impl("mm.out", TORCH_BOX(&cutwheel::cpu_mm_out));
  m.impl("bmm", TORCH_BOX(&cutwheel::cpu_bmm));
  m.impl("bmm.out", TORCH_BOX(&cutwheel::cpu_bmm_out));
  m.impl("addmm", TORCH_BOX(&cutwheel::cpu_addmm));
  m.impl("addmm.out", TORCH_BOX(&cutwheel::cpu_addmm_out));
  m.impl("baddbmm", TORCH_BOX(&cutwheel::cpu_baddbmm));
  m.impl("baddbmm.out", TORCH_BOX(&cutwheel::cpu_baddbmm_out));
  m.impl("linear", TORCH_BOX(&cutwheel::cpu_linear));
  m.impl("gemm", TORCH_BOX(&cutwheel::cpu_gemm));
  m.impl("gemm.out", TORCH_BOX(&cutwheel::cpu_gemm_out));
  m.impl("linear_fused", TORCH_BOX(&cutwheel::cpu_linear_fused));
  m.impl("linear_fused_aux", TORCH_BOX(&cutwheel::cpu_linear_fused_aux));
  m.impl("elementwise", TORCH_BOX(&cutwheel::cpu_elementwise));
  m.impl("scaled_mm", TORCH_BOX(&cutwheel::cpu_scaled_mm));
  m.impl("scaled_mm.out", TORCH_BOX(&cutwheel::cpu_scaled_mm_out));
  m.impl("quantize", TORCH_BOX(&cutwheel::cpu_quantize));
  m.impl("grouped_mm", TORCH_BOX(&cutwheel::cpu_grouped_mm));
  m.impl("grouped_mm_accumulate", TORCH_BOX(&cutwheel::cpu_grouped_mm_accumulate));
  m.impl("grouped_linear_fused", TORCH_BOX(&cutwheel::cpu_grouped_linear_fused));
  m.impl("grouped_linear_fused_aux", TORCH_BOX(&cutwheel::cpu_grouped_linear_fused_aux));
  m.impl("scaled_grouped_mm", TORCH_BOX(&cutwheel::cpu_scaled_grouped_mm));
  m.impl("conv2d", TORCH_BOX(&cutwheel::cpu_conv2d));
  m.impl("conv2d_fused", TORCH_BOX(&cutwheel::cpu_conv2d_fused));
  m.impl("conv2d_input_grad", TORCH_BOX(&cutwheel::cpu_conv2d_input_grad));
  m.impl("conv2d_weight_grad", TORCH_BOX(&cutwheel::cpu_conv2d_weight_grad));
  m.impl("scaled_conv2d", TORCH_BOX(&cutwheel::cpu_scaled_conv2d));
}

STABLE_TORCH_LIBRARY_IMPL(cutwheel, CompositeExplicitAutograd, m) {
  m.impl("_explain", TORCH_BOX(&cutwheel::explain_json));
  m.impl("_explain_conv", TORCH_BOX(&cutwheel::explain_conv_json));
  m.impl("_conv_served", TORCH_BOX(&cutwheel::conv_served));
  m.impl("_explain_for_gpu", TORCH_BOX(&cutwheel::explain_for_gpu_json));
  m.impl("_epilogues", TORCH_BOX(&cutwheel::epilogues_json));
  m.impl("_kernels", TORCH_BOX(&cutwheel::kernels_json));
  m.impl("_build_info", TORCH_BOX(&cutwheel::build_info_json));
  m.impl("_device_info", TORCH_BOX(&cutwheel::device_info_json));
  m.impl("_driver_status", TORCH_BOX(&cutwheel::driver_status_json));
  m.impl("_reload_env", TORCH_BOX(&cutwheel::reload_environment));
  m.impl("_load_tuning", TORCH_BOX(&cutwheel::load_tuning));
  m.impl("_clear_tuning", TORCH_BOX(&cutwheel::clear_tuning));
  m.impl("_tuning", TORCH_BOX(&cutwheel::tuning_json));
}
