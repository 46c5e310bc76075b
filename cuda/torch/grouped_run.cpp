#include <algorithm>

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

// Groups along a K that one accumulator does not take: part after part, added up in float32.
void run_in_parts(Tensor& result, GroupedCall const& call, std::int64_t part) {
  bool const is_float32 = call.d_type == ScalarType::Float;
  std::int64_t const shape[] = {call.batch, call.m, call.n};
  Tensor total = is_float32 ? result : empty_contiguous(shape, 3, ScalarType::Float, call.device);
  if (!call.accumulates) torch::stable::zero_(total);
  auto const advance = [&](Matrix& x, std::int64_t elements) {
    x.data = static_cast<char*>(x.data) + elements * element_bytes_of(call.type);
  };
  for (std::int64_t first = 0; first < call.k; first += part) {
    Matrix a = matrix_of(*call.a), b = matrix_of(*call.b);
    a.cols = b.rows = std::min(part, call.k - first);
    advance(a, first * a.col_stride);
    advance(b, first * b.row_stride);
    Tensor const a_part = matrix_view(*call.a, a), b_part = matrix_view(*call.b, b);
    GroupedCall one = make_grouped_call(call.names, a_part, b_part, *call.ends);
    one.allow_tf32 = call.allow_tf32;
    one.accumulates = true;
    one.out = &total;
    one.first_k = first;
    PreparedGemm prepared;
    run_grouped(prepared, one);
  }
  if (!is_float32) torch::stable::copy_(result, total);
}

}  // namespace

bool start_grouped(PreparedGemm& prepared, GroupedCall const& call) {
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
  check_grouped(call);
  DeviceScope const scope(call.device);
  bool const multiplies = start_grouped(prepared, call);
  if (!multiplies) {
    // Groups along an empty K: each result is zeros, or stays what it is.
    if (!call.empty() && !call.accumulates) torch::stable::zero_(*prepared.d.tensor);
    return;
  }
  // A part reads and writes the results of all groups: the more groups, the longer it is, and the less likely has one of
  // them all of it.
  std::int64_t const part = kLongestSum * std::clamp<std::int64_t>(call.batch / 8, 1, 8);
  if (call.grouping == Grouping::k && call.k > part) {
    run_in_parts(*prepared.d.tensor, call, part);
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
