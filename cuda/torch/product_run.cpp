#include "core/error.h"
#include "torch/product.h"

namespace cutwheel {
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

GemmPlan plan_product(PreparedGemm& prepared, ProductCall const& call, std::function<void(Forced)> const& prepare) {
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
  for (Forced const forced : {Forced{true, false}, Forced{false, true}, Forced{true, true}}) {
    // Either may take from an operand what it had of the other, so both are tried in the end.
    bool const both = forced.layouts && forced.extents;
    if (!both && (forced.layouts ? as_copied : asked.extents_aligned)) continue;
    GemmRequest other = asked;
    if (forced.layouts) other.layout_a = copied.a, other.layout_b = copied.b;
    other.extents_aligned = other.extents_aligned || forced.extents;
    std::optional<GemmPlan> const found = choose_plan(other);
    if (!found || (plan && !native(found))) continue;
    // Padding may change K and, by a copy, the layouts: the plan is that of what came of it.
    prepare(forced);
    if (std::optional<GemmPlan> const final_plan = choose_plan(prepared.request)) return *final_plan;
    prepare({});
  }
  if (plan) return *plan;
  // The reasons that are left when operands have been copied.
  GemmRequest easiest = asked;
  easiest.layout_a = copied.a, easiest.layout_b = copied.b, easiest.extents_aligned = true;
  fail(ErrorKind::not_implemented, call.names.op, ": ", explain_miss(easiest, device));
}

void launch_product(PreparedGemm& prepared, ProductCall const& call, GemmPlan plan) {
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
