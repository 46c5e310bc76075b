#include "common/error.h"
#include "torch/cuda_shims.h"
#include "torch/gemm_request.h"

namespace cutwheel {
namespace {

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

void run_product(PreparedGemm& prepared, GemmCall const& call) {
  prepare(prepared, call, {});
  gemm::GemmArgs& args = prepared.args;
  args.device = &device_info(call.device);
  args.stream = current_stream(call.device);
  if (call.k == 0 && !call.epilogue) {
    gemm::Status const status = gemm::run_empty_k(args, prepared.request.d);
    check_launch(status, call.names.op, "splitk_reduce");
    if (!status.good()) fail(ErrorKind::not_implemented, call.names.op, ": ", explain_miss(prepared.request, *args.device));
    return;
  }
  GemmPlan plan = plan_call(prepared, call);
  gemm::Status const status = launch(prepared, call, plan);
  check_launch(status, call.names.op, plan.row->name);
  if (!status.good()) {
    fail(ErrorKind::not_implemented, call.names.op,
         ": no kernel of this wheel takes a problem of these extents (M=", call.m, ", N=", call.n, ", K=", call.k,
         ", batch=", call.batch, ")");
  }
}

}  // namespace

void check_launch(gemm::Status status, char const* op, char const* kernel) {
  if (status.code == gemm::StatusCode::cuda_error) {
    fail(ErrorKind::runtime, op, ": launching ", kernel,
         " failed: ", cudaGetErrorString(static_cast<cudaError_t>(status.detail)));
  }
  if (status.code == gemm::StatusCode::tensor_map_error) {
    fail(ErrorKind::runtime, op, ": ", kernel, ": the driver refused a tensor map (CUresult ", status.detail, ")");
  }
}

void run_call(PreparedGemm& prepared, GemmCall& call) {
  check_call(call);
  DeviceScope const scope(call.device);
  if (call.empty()) {
    make_results(prepared, call);
    return;
  }
  run_product(prepared, call);
  finish_output(prepared.d);
  for (Output& store : prepared.stores) finish_output(store);
}

}  // namespace cutwheel
