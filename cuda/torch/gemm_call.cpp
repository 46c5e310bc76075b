#include "torch/gemm_call.h"

#include "core/error.h"

namespace cutwheel {

// --- Checks

void check_device(char const* op, char const* argument, Tensor const& tensor, int device, char const* device_of) {
  if (!tensor.is_cuda()) {
    fail(ErrorKind::device, op, ": ", argument, " is not on a CUDA device; all tensors must be on cuda:", device);
  }
  if (tensor.get_device_index() != device) {
    fail(ErrorKind::device, op, ": ", argument, " is on cuda:", tensor.get_device_index(), " and ", device_of,
         " is on cuda:", device, "; all tensors must be on the same device");
  }
}

void check_dims(OpNames const& names, char const* argument, Tensor const& tensor, int dims) {
  if (tensor.dim() != dims) {
    fail(ErrorKind::shape, names.op, ": ", argument, " has ", tensor.dim(), " dimensions (shape ", shape_text(tensor),
         "); expected ", dims);
  }
}

void check_extent(char const* op, std::int64_t extent) {
  if (extent > kMaxExtent) {
    fail(ErrorKind::shape, op, ": a dimension has ", extent, " elements; at most ", kMaxExtent, " are supported");
  }
}

void check_devices(GemmCallBase& call) {
  OpNames const& names = call.names;
  Tensor const &a = *call.a, &b = *call.b;
  if (!a.is_cuda() && !b.is_cuda()) {
    fail(ErrorKind::not_implemented, names.op, ": ", names.a,
         " is not on a CUDA device; cutwheel's kernels run on CUDA devices");
  }
  if (!a.is_cuda()) fail(ErrorKind::device, names.op, ": ", names.a, " is not on a CUDA device; all tensors must be");
  call.device = a.get_device_index();
  check_device(names.op, names.b, b, call.device, names.a);
}

bool is_supported(ScalarType type) {
  return type == ScalarType::Half || type == ScalarType::BFloat16 || type == ScalarType::Float;
}

void check_float_types(GemmCallBase& call, bool allow_tf32) {
  OpNames const& names = call.names;
  call.type = call.a->scalar_type();
  if (!is_supported(call.type)) {
    fail(ErrorKind::type, names.op, ": ", names.a, " has dtype ", dtype_text(call.type),
         "; expected float16, bfloat16 or float32");
  }
  if (call.b->scalar_type() != call.type) {
    fail(ErrorKind::type, names.op, ": ", names.b, " has dtype ", dtype_text(call.b->scalar_type()), "; expected ",
         dtype_text(call.type), " as ", names.a, " has");
  }
  call.d_type = call.out ? call.out->scalar_type() : call.out_dtype.value_or(call.type);
  if (call.d_type != call.type && call.d_type != ScalarType::Float) {
    fail(ErrorKind::type, names.op, ": ", call.out ? "out has dtype " : "out_dtype is ", dtype_text(call.d_type),
         "; expected ", dtype_text(call.type), call.type == ScalarType::Float ? "" : " or float32");
  }
  if (call.type == ScalarType::Float && !allow_tf32) {
    fail(ErrorKind::runtime, names.op,
         ": float32 operands are multiplied on TF32 tensor cores only, and torch's setting forbids "
         "TF32; allow it with torch.backends.cuda.matmul.fp32_precision = \"tf32\" (or "
         "torch.set_float32_matmul_precision(\"high\"))"
         ", or pass float16 or bfloat16");
  }
}

void check_operands(GemmCallBase& call) {
  OpNames const& names = call.names;
  Tensor const &a = *call.a, &b = *call.b;
  Matrix const left = matrix_of(a), right = matrix_of(b);
  call.batch = left.batch, call.m = left.rows, call.k = left.cols, call.n = right.cols;
  if (right.rows != call.k || right.batch != call.batch) {
    fail(ErrorKind::shape, names.op, ": ", names.b, " has shape ", shape_text(b), "; expected [",
         names.dims == 3 ? concat(call.batch, ", ") : "", call.k, ", N] as ", names.a, " has shape ", shape_text(a));
  }
}

void check_apart(GemmCallBase const& call, Tensor const& out, char const* label, Tensor const& input,
                 char const* argument) {
  if (overlaps(matrix_of(input), element_bytes_of(input.scalar_type()), matrix_of(out), element_bytes_of(call.d_type))) {
    fail(ErrorKind::value, call.names.op, ": ", label, " overlaps ", argument, " in memory; expected separate tensors");
  }
}

void check_out(GemmCallBase const& call, Tensor const& out, char const* label, std::int64_t cols) {
  OpNames const& names = call.names;
  check_device(names.op, label, out, call.device, names.a);
  if (out.scalar_type() != call.d_type) {
    fail(ErrorKind::type, names.op, ": ", label, " has dtype ", dtype_text(out.scalar_type()), "; expected ",
         dtype_text(call.d_type));
  }
  Matrix const target = matrix_of(out);
  bool const fits = out.dim() == names.dims && target.batch == call.batch && target.rows == call.m && target.cols == cols;
  if (!fits) {
    fail(ErrorKind::shape, names.op, ": ", label, " has shape ", shape_text(out), "; expected [",
         names.dims == 3 ? concat(call.batch, ", ") : "", call.m, ", ", cols, "] (out is never resized)");
  }
  if (overlaps_itself(target)) {
    fail(ErrorKind::value, names.op, ": ", label,
         " overlaps itself (an expanded view?); expected memory of its own for each element");
  }
  check_apart(call, out, label, *call.a, names.a);
  check_apart(call, out, label, *call.b, names.b);
}

// --- Running

namespace {

gemm::Status launch(PreparedGemm& prepared, int device, GemmPlan& plan) {
  gemm::GemmArgs& args = prepared.args;
  std::optional<Tensor> workspace;  // freed after the launch is enqueued: torch's allocator is ordered by stream
  auto const attempt = [&] {
    std::int64_t const bytes = gemm::workspace_bytes(plan, args);
    if (bytes > 0) {
      workspace = empty_bytes(bytes, device);
      args.workspace = workspace->data_ptr();
    }
    return gemm::run(plan, args, prepared.request.a, prepared.request.d);
  };
  gemm::Status status = attempt();
  if (status.code != gemm::StatusCode::not_implementable) return status;
  for (GemmPlan const& next : rank_plans(prepared.request, *args.device)) {
    if (next.row == plan.row) continue;
    plan = next;
    status = attempt();
    if (status.code != gemm::StatusCode::not_implementable) break;
  }
  return status;
}

}  // namespace

GemmPlan plan_product(PreparedGemm& prepared, GemmCallBase const& call, std::function<void(CopyPolicy)> const& prepare) {
  std::optional<GemmPlan> plan = choose_plan(prepared.request);
  DeviceInfo const& device = device_info(call.device);
  auto const native = [&](std::optional<GemmPlan> const& x) {
    return x && runs_native(x->row->arch, device.major, device.minor);
  };
  if (native(plan)) return *plan;
  // With copies of operands. A kernel through PTX is worse than a copy: the driver compiles it first.
  GemmRequest const asked = prepared.request;
  Layouts const copied = copied_layouts(asked.grouping, asked.a);
  bool const as_copied = copied == Layouts{asked.layout_a, asked.layout_b};
  for (CopyPolicy const copy_policy : {CopyPolicy{true, false}, CopyPolicy{false, true}, CopyPolicy{true, true}}) {
    // Either may take from an operand what it had of the other, so both are tried in the end.
    bool const both = copy_policy.layouts && copy_policy.extents;
    if (!both && (copy_policy.layouts ? as_copied : asked.extents_aligned)) continue;
    GemmRequest other = asked;
    if (copy_policy.layouts) other.layout_a = copied.a, other.layout_b = copied.b;
    other.extents_aligned = other.extents_aligned || copy_policy.extents;
    std::optional<GemmPlan> const found = choose_plan(other);
    if (!found || (plan && !native(found))) continue;
    // Padding may change K and, by a copy, the layouts: the plan is that of what came of it.
    prepare(copy_policy);
    if (std::optional<GemmPlan> const final_plan = choose_plan(prepared.request)) return *final_plan;
    prepare({});
  }
  if (plan) return *plan;
  // The reasons that are left when operands have been copied.
  GemmRequest easiest = asked;
  easiest.layout_a = copied.a, easiest.layout_b = copied.b, easiest.extents_aligned = true;
  fail(ErrorKind::not_implemented, call.names.op, ": ", explain_miss(easiest, device));
}

void launch_gemm(PreparedGemm& prepared, GemmCallBase const& call, GemmPlan plan) {
  gemm::Status const status = launch(prepared, call.device, plan);
  check_launch(status, call.names.op, plan.row->name);
  if (!status.good()) {
    fail(ErrorKind::not_implemented, call.names.op,
         ": no kernel of this wheel takes a problem of these extents (M=", call.m, ", N=", call.n, ", K=", call.k,
         ", batch=", call.batch, ")");
  }
}

void check_launch(gemm::Status status, char const* op, char const* kernel) {
  if (status.code == gemm::StatusCode::cuda_error) {
    fail(ErrorKind::runtime, op, ": launching ", kernel,
         " failed: ", cudaGetErrorString(static_cast<cudaError_t>(status.detail)));
  }
  if (status.code == gemm::StatusCode::tensor_map_error) {
    fail(ErrorKind::runtime, op, ": ", kernel, ": the driver refused a tensor map (CUresult ", status.detail, ")");
  }
}

}  // namespace cutwheel
