#include "torch/cuda_shims.h"
#include "torch/gemm_request.h"
#include "torch/grouped_request.h"

namespace cutwheel {
namespace {

Tensor make_result(GroupedCall const& call, std::int64_t cols) {
  std::int64_t const shape[] = {call.batch, call.m, cols};
  bool const rows = call.grouping == Grouping::rows;
  return empty_contiguous(rows ? shape + 1 : shape, rows ? 2 : 3, call.d_type, call.device);
}

}  // namespace

bool start_grouped(PreparedGemm& prepared, GroupedCall& call) {
  check_grouped(call);
  prepared.d.tensor = call.out ? *call.out : make_result(call, columns_of(call.width(), call.n));
  if (call.epilogue) {
    EpilogueInfo const& info = info_of(*call.epilogue);
    for (int i = 0; i < info.count; ++i) {
      if (info.operands[i].kind == OperandKind::store) prepared.stores.emplace_back().tensor = make_result(call, call.n);
    }
  }
  return !call.empty() && (call.grouping == Grouping::rows || call.k > 0);
}

GemmPlan plan_grouped(PreparedGemm& prepared, GroupedCall& call) {
  if (call.is_scaled) call.form = choose_grouped_form(call);
  prepare_grouped(prepared, call, {});
  return plan_product(prepared, call, [&](Forced forced) { prepare_grouped(prepared, call, forced); });
}

void run_grouped(PreparedGemm& prepared, GroupedCall& call) {
  bool const multiplies = start_grouped(prepared, call);
  DeviceScope const scope(call.device);
  if (!multiplies) {
    // Groups along an empty K: each result is zeros, or stays what it is.
    if (!call.empty() && !call.accumulates) torch::stable::zero_(*prepared.d.tensor);
    return;
  }
  prepared.args.device = &device_info(call.device);
  prepared.args.stream = current_stream(call.device);
  GemmPlan const plan = plan_grouped(prepared, call);
  launch_product(prepared, call, plan);
  finish_output(prepared.d);
  for (Output& store : prepared.stores) finish_output(store);
}

}  // namespace cutwheel
