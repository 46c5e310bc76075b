#include <algorithm>

#include "torch/gemm_request.h"

namespace cutwheel {
namespace {

// A row, column or matrix. `whole_n`: the columns that a kernel may read.
gemm::EpilogueValue prepare_tensor(GemmCall const& call, int position, std::int64_t whole_n, bool pad_extents,
                                   std::vector<Tensor>& keep) {
  Tensor const& tensor = *call.epilogue->tensors[static_cast<std::size_t>(position)];
  EpilogueOperandInfo const& operand = call.epilogue->info().operands[position];
  OperandKind const kind = operand.kind;
  ScalarType const type = tensor.scalar_type();
  bool const is_matrix = kind == OperandKind::matrix || kind == OperandKind::wide_matrix;
  View const view = call.linear && is_matrix
                        ? flatten_rows(tensor, call.m, kind == OperandKind::wide_matrix ? 2 * call.n : call.n, keep)
                        : View{epilogue_matrix(call, position), tensor};
  std::int64_t const columns = kind == OperandKind::col ? call.m : kind == OperandKind::wide_matrix ? 2 * whole_n : whole_n;
  std::int64_t const pitch = round_up(columns, access_elements(type));
  Matrix x = view.matrix;
  // A column is as long as it is: kernels pad N and K, never M.
  bool const pad = pad_extents && kind != OperandKind::col && call.n != whole_n;
  x = readable(x, view.owner, type, pitch, pad, call.device, keep);
  gemm::EpilogueValue value;
  value.data = x.data;
  value.leading = operand.may_be_one ? tensor.numel() != 1 : leading_of(x, pitch);
  value.batch_stride = x.batch == 1 ? 0 : x.batch_stride;
  return value;
}

}  // namespace

Matrix epilogue_matrix(GemmCall const& call, int position) {
  Tensor const& tensor = *call.epilogue->tensors[static_cast<std::size_t>(position)];
  Matrix const x = matrix_of(tensor);
  OperandKind const kind = call.epilogue->info().operands[position].kind;
  if (kind != OperandKind::row && kind != OperandKind::col) return x;
  // [B, N]: each of a batch has a row.
  return {x.data, x.rows, 1, x.cols, x.row_stride, 0, x.col_stride};
}

void prepare_epilogue(PreparedGemm& prepared, GemmCall const& call, Forced forced) {
  EpilogueCall const& epilogue = *call.epilogue;
  EpilogueInfo const& info = epilogue.info();
  std::int64_t const whole_n = round_up(call.n, access_elements(call.d_type));
  prepared.request.addend = Addend::other;
  prepared.request.epilogue = epilogue.id;
  auto store = prepared.stores.begin();
  for (int i = 0; i < info.count; ++i) {
    gemm::EpilogueValue value;
    if (info.operands[i].kind == OperandKind::scalar) {
      value.value = epilogue.scalars[static_cast<std::size_t>(i)];
    } else if (info.operands[i].kind == OperandKind::store) {
      Matrix const x = prepare_output(*store, result_matrix(call, *store->tensor, call.n), call.d_type, whole_n,
                                      forced.extents && call.n != whole_n, call.device);
      value.data = x.data;
      value.leading = leading_of(x, whole_n);
      value.batch_stride = x.batch == 1 ? 0 : x.batch_stride;
      ++store;
    } else if (epilogue.tensors[static_cast<std::size_t>(i)]) {
      value = prepare_tensor(call, i, whole_n, forced.extents, prepared.keep);
    }
    prepared.args.epilogue[i] = value;
  }
}

}  // namespace cutwheel
