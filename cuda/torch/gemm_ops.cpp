#include "torch/gemm_ops.h"

#include "common/error.h"
#include "torch/cuda_shims.h"
#include "torch/gemm_request.h"

namespace cutwheel {
namespace {

constexpr OpNames kMm{"mm", nullptr, "input", "mat2", 2};
constexpr OpNames kBmm{"bmm", nullptr, "input", "mat2", 3};
constexpr OpNames kAddmm{"addmm", "input", "mat1", "mat2", 2};
constexpr OpNames kBaddbmm{"baddbmm", "input", "batch1", "batch2", 3};
constexpr OpNames kLinear{"linear", "bias", "input", "weight", 2};

void check_status(gemm::Status status, GemmCall const& call, GemmPlan const& plan) {
  // Without a plan it was the kernel for K = 0.
  char const* const name = plan.row ? plan.row->name : "splitk_reduce";
  switch (status.code) {
    case gemm::StatusCode::ok: return;
    case gemm::StatusCode::cuda_error:
      fail(ErrorKind::runtime, call.names.op, ": launching ", name,
           " failed: ", cudaGetErrorString(static_cast<cudaError_t>(status.detail)));
    case gemm::StatusCode::tensor_map_error:
      fail(ErrorKind::runtime, call.names.op, ": ", name, ": the driver refused a tensor map (CUresult ", status.detail,
           ")");
    case gemm::StatusCode::not_implementable: break;
  }
  fail(ErrorKind::not_implemented, call.names.op, ": no kernel of this wheel takes a problem of these extents (M=", call.m,
       ", N=", call.n, ", K=", call.k, ", batch=", call.batch, ")");
}

gemm::Status launch(PreparedGemm& prepared, GemmCall const& call, GemmPlan& plan) {
  gemm::GemmArgs& args = prepared.args;
  std::optional<Tensor> workspace;  // freed after the launch is enqueued: torch's allocator is ordered by stream
  auto const attempt = [&] {
    std::int64_t const bytes = gemm::workspace_bytes(plan, args);
    if (bytes > 0) {
      workspace = empty_bytes(bytes, call.device);
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

Tensor run_call(GemmCall& call) {
  check_call(call);
  DeviceScope const scope(call.device);
  PreparedGemm prepared;
  prepare(prepared, call, /*pad_extents=*/false);
  if (call.m == 0 || call.n == 0 || call.batch == 0) return *std::move(prepared.result);

  gemm::GemmArgs& args = prepared.args;
  args.device = &device_info(call.device);
  args.stream = current_stream(call.device);
  GemmPlan plan;
  gemm::Status status;
  if (call.k == 0) {
    status = gemm::run_empty_k(args, prepared.request.d);
    if (!status.good() && status.code == gemm::StatusCode::not_implementable) {
      fail(ErrorKind::not_implemented, call.names.op, ": ", explain_miss(prepared.request, *args.device));
    }
  } else {
    plan = plan_call(prepared, call);
    status = launch(prepared, call, plan);
  }
  if (!status.good()) check_status(status, call, plan);
  if (prepared.temporary) {
    Tensor target = view_of(*prepared.result, prepared.copy_to);
    torch::stable::copy_(target, view_of(*prepared.temporary, prepared.copy_from));
  }
  return *std::move(prepared.result);
}

GemmCall make_call(OpNames const& names, Tensor const& a, Tensor const& b, std::optional<ScalarType> out_dtype,
                   bool allow_tf32) {
  GemmCall call{names, &a, &b};
  call.out_dtype = out_dtype;
  call.allow_tf32 = allow_tf32;
  return call;
}

Tensor plain(OpNames const& names, Tensor const& a, Tensor const& b, std::optional<ScalarType> out_dtype, bool allow_tf32,
             Tensor const* out = nullptr) {
  GemmCall call = make_call(names, a, b, out_dtype, allow_tf32);
  call.out = out;
  return run_call(call);
}

Tensor with_c(OpNames const& names, Tensor const& c, Tensor const& a, Tensor const& b, std::optional<ScalarType> out_dtype,
              double beta, double alpha, bool allow_tf32, Tensor const* out = nullptr) {
  GemmCall call = make_call(names, a, b, out_dtype, allow_tf32);
  call.c = &c;
  call.alpha = alpha;
  call.beta = beta;
  call.out = out;
  return run_call(call);
}

}  // namespace

Tensor mm(Tensor const& a, Tensor const& b, std::optional<ScalarType> out_dtype, bool allow_tf32) {
  return plain(kMm, a, b, out_dtype, allow_tf32);
}

void mm_out(Tensor const& a, Tensor const& b, bool allow_tf32, Tensor const& out) {
  plain(kMm, a, b, std::nullopt, allow_tf32, &out);
}

Tensor bmm(Tensor const& a, Tensor const& b, std::optional<ScalarType> out_dtype, bool allow_tf32) {
  return plain(kBmm, a, b, out_dtype, allow_tf32);
}

void bmm_out(Tensor const& a, Tensor const& b, bool allow_tf32, Tensor const& out) {
  plain(kBmm, a, b, std::nullopt, allow_tf32, &out);
}

Tensor addmm(Tensor const& c, Tensor const& a, Tensor const& b, std::optional<ScalarType> out_dtype, double beta,
             double alpha, bool allow_tf32) {
  return with_c(kAddmm, c, a, b, out_dtype, beta, alpha, allow_tf32);
}

void addmm_out(Tensor const& c, Tensor const& a, Tensor const& b, double beta, double alpha, bool allow_tf32,
               Tensor const& out) {
  with_c(kAddmm, c, a, b, std::nullopt, beta, alpha, allow_tf32, &out);
}

Tensor baddbmm(Tensor const& c, Tensor const& a, Tensor const& b, std::optional<ScalarType> out_dtype, double beta,
               double alpha, bool allow_tf32) {
  return with_c(kBaddbmm, c, a, b, out_dtype, beta, alpha, allow_tf32);
}

void baddbmm_out(Tensor const& c, Tensor const& a, Tensor const& b, double beta, double alpha, bool allow_tf32,
                 Tensor const& out) {
  with_c(kBaddbmm, c, a, b, std::nullopt, beta, alpha, allow_tf32, &out);
}

Tensor linear(Tensor const& input, Tensor const& weight, std::optional<Tensor> bias, bool allow_tf32) {
  GemmCall call = make_call(kLinear, input, weight, std::nullopt, allow_tf32);
  call.linear = true;
  call.c = bias ? &*bias : nullptr;
  return run_call(call);
}

ExplainedGemm explain_gemm(std::int64_t op, std::vector<Tensor> const& operands, std::optional<ScalarType> out_dtype,
                           double beta, bool allow_tf32) {
  static constexpr OpNames const* kOps[] = {&kMm, &kBmm, &kAddmm, &kBaddbmm, &kLinear};
  if (op < 0 || op >= static_cast<std::int64_t>(std::size(kOps)))
    fail(ErrorKind::value, "explain: op ", op, " is not known");
  OpNames const& names = *kOps[op];
  bool const c_first = op == 2 || op == 3, is_linear = op == 4;
  std::size_t const least = c_first ? 3 : 2, most = c_first || is_linear ? 3 : 2;
  if (operands.size() < least || operands.size() > most) {
    fail(ErrorKind::value, "explain: ", names.op, " takes ", least, least == most ? "" : " or 3", " tensors, got ",
         operands.size());
  }
  GemmCall call = make_call(names, operands[c_first ? 1 : 0], operands[c_first ? 2 : 1], out_dtype, allow_tf32);
  call.linear = is_linear;
  if (operands.size() == 3) call.c = &operands[c_first ? 0 : 2];
  call.beta = beta;
  check_call(call);
  DeviceScope const scope(call.device);
  PreparedGemm prepared;
  prepare(prepared, call, /*pad_extents=*/false);
  bool const computes = call.m > 0 && call.n > 0 && call.k > 0 && call.batch > 0;
  if (computes) plan_call(prepared, call);
  ExplainedGemm explained{prepared.request, {}, {}, prepared.keep.size(), prepared.temporary.has_value()};
  if (computes) explained.plans = rank_plans(prepared.request, device_info(call.device), &explained.rejections);
  return explained;
}

}  // namespace cutwheel
