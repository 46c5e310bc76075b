#include <algorithm>

#include "torch/gemm_request.h"

namespace cutwheel {
namespace {

struct PreparedAddend {
  gemm::Operand operand;
  Addend kind;
};

PreparedAddend prepare_addend(GemmCall const& call, bool transposed, bool pad_extents, std::vector<Tensor>& keep) {
  Tensor const& c = *call.c;
  auto const sizes = c.sizes();
  auto const strides = c.strides();
  int const dims = static_cast<int>(sizes.size());
  auto const stride = [&](int from_end) {
    int const i = dims - from_end;
    return i < 0 || sizes[static_cast<std::size_t>(i)] == 1 ? std::int64_t{0} : strides[static_cast<std::size_t>(i)];
  };
  Matrix matrix{c.data_ptr(), call.batch, call.m, call.n, stride(3), stride(2), stride(1)};
  if (transposed) matrix = matrix.transposed();
  // One row for all: kept as one row, also by a copy.
  bool const one_row = matrix.row_stride == 0;
  if (one_row) matrix.rows = 1;
  std::int64_t const unit = access_elements(call.d_type), pitch = round_up(matrix.cols, unit);
  bool const pad = pad_extents && matrix.cols % unit != 0;
  matrix = readable(matrix, c, call.d_type, pitch, pad, call.device, keep);
  return {{matrix.data, one_row ? 0 : leading_of(matrix, pitch), matrix.batch == 1 ? 0 : matrix.batch_stride},
          one_row && call.beta == 1 ? Addend::row : Addend::matrix};
}

Layout flip(Layout layout) { return layout == Layout::row ? Layout::column : Layout::row; }

Tensor make_result(GemmCall const& call, std::int64_t cols) {
  if (call.linear) {
    auto const sizes = call.a->sizes();
    std::array<std::int64_t, kMaxDims> shape;
    std::copy(sizes.begin(), sizes.end(), shape.begin());
    shape[sizes.size() - 1] = cols;
    return empty_contiguous(shape.data(), static_cast<int>(sizes.size()), call.d_type, call.device);
  }
  std::int64_t const shape[] = {call.batch, call.m, cols};
  return empty_contiguous(call.names.dims == 3 ? shape : shape + 1, call.names.dims, call.d_type, call.device);
}

// A and B as the caller has them. No kernel reads a K of 0, but an epilogue applies to its products, too: then both are
// zeros, of the shortest K that can be accessed.
Factors factors_of(GemmCall const& call, std::vector<Tensor>& keep) {
  if (call.k == 0 && call.epilogue) {
    std::int64_t const k = access_elements(call.type), rows = std::max({call.m, call.n, std::int64_t{1}});
    Tensor zeros = empty_strided({rows, k}, {k, 1}, call.type, call.device);
    torch::stable::zero_(zeros);
    keep.push_back(zeros);
    void* const data = zeros.data_ptr();
    return {{{data, 1, call.m, k, 0, k, 1}, zeros}, {{data, 1, k, call.n, 0, 1, k}, zeros}, k};
  }
  if (call.factors) return *call.factors;
  Matrix const b = matrix_of(*call.b);
  if (!call.linear) return {{matrix_of(*call.a), *call.a}, {b, *call.b}, call.k};
  return {flatten_rows(*call.a, call.m, call.k, keep), {b.transposed(), *call.b}, call.k};
}

}  // namespace

Matrix result_matrix(GemmCall const& call, Tensor const& result, std::int64_t cols) {
  bool const is_dense = call.linear || call.factors;
  return is_dense ? Matrix{result.data_ptr(), 1, call.m, cols, 0, cols, 1} : matrix_of(result);
}

void make_results(PreparedGemm& prepared, GemmCall const& call) {
  if (prepared.d.tensor) return;
  prepared.d.tensor = call.out ? *call.out : make_result(call, columns_of(call.width(), call.n));
  if (!call.epilogue) return;
  EpilogueInfo const& info = call.epilogue->info();
  for (int i = 0; i < info.count; ++i) {
    if (info.operands[i].kind != OperandKind::store) continue;
    Tensor const* const given = call.epilogue->tensors[static_cast<std::size_t>(i)];
    prepared.stores.emplace_back().tensor = given ? *given : make_result(call, call.n);
  }
}

void prepare(PreparedGemm& prepared, GemmCall const& call, Forced forced) {
  std::vector<Tensor>& keep = prepared.keep;
  keep.clear();  // of a first try; work already enqueued on them is ordered by the stream
  make_results(prepared, call);
  Matrix result = result_matrix(call, *prepared.d.tensor, columns_of(call.width(), call.n));
  Factors const factors = factors_of(call, keep);

  // Column-major out=: D^T = B^T A^T is row-major. Other epilogues have operands that cannot be transposed so.
  bool const transpose = call.out && !call.epilogue && result.col_stride != 1 && result.row_stride == 1 && result.cols > 1;
  if (transpose) result = result.transposed();
  // cp.async kernels start with the odd end of K and go on from there: K itself has to be whole. Copies of both operands
  // have K contiguous and zeros up to the next multiple.
  std::int64_t const whole_k = round_up(factors.k, access_elements(call.type));
  bool const pad_k = forced.extents && factors.k != whole_k;
  // K contiguous in both operands is the layout with the most kernels.
  PreparedOperand const left =
      prepare_operand(factors.a.matrix, factors.a.owner, call.type, Layout::row, forced, pad_k, call.device, keep);
  PreparedOperand const right =
      prepare_operand(factors.b.matrix, factors.b.owner, call.type, Layout::column, forced, pad_k, call.device, keep);

  gemm::GemmArgs& args = prepared.args;
  args.m = static_cast<int>(transpose ? call.n : call.m);
  args.n = static_cast<int>(transpose ? call.m : call.n);
  args.k = static_cast<int>(pad_k ? whole_k : factors.k);
  args.batch = static_cast<int>(call.batch);
  args.a = transpose ? right.operand : left.operand;
  args.b = transpose ? left.operand : right.operand;

  std::int64_t const unit = access_elements(call.d_type), whole_n = round_up<std::int64_t>(args.n, unit);
  // A kernel that writes whole accesses only may write this many columns.
  std::int64_t const pitch = round_up(columns_of(call.width(), whole_n), unit);
  Matrix const d = prepare_output(prepared.d, result, call.d_type, pitch, forced.extents && args.n != whole_n, call.device);
  args.d = d.data;
  args.d_leading = leading_of(d, pitch);
  args.d_batch_stride = d.batch == 1 ? 0 : d.batch_stride;

  GemmRequest& request = prepared.request;
  request.addend = Addend::none;
  if (call.epilogue) {
    prepare_epilogue(prepared, call, forced);
  } else {
    args.alpha = static_cast<float>(call.alpha);
    args.beta = call.c ? static_cast<float>(call.beta) : 0.f;
    if (args.beta != 0.f) {
      PreparedAddend const addend = prepare_addend(call, transpose, forced.extents, keep);
      args.c = addend.operand;
      request.addend = addend.kind;
    }
  }
  request.device = call.device;
  request.a = request.b = call.type == ScalarType::Float ? DType::tf32 : dtype_of(call.type);
  request.d = dtype_of(call.d_type);
  request.layout_a = transpose ? flip(right.layout) : left.layout;
  request.layout_b = transpose ? flip(left.layout) : right.layout;
  request.extents_aligned = left.extent_aligned && right.extent_aligned && (forced.extents || args.n == whole_n);
  request.m = args.m, request.n = args.n, request.k = args.k, request.batch = args.batch;
}

GemmPlan plan_call(PreparedGemm& prepared, GemmCall const& call) {
  return plan_product(prepared, call, [&](Forced forced) { prepare(prepared, call, forced); });
}

}  // namespace cutwheel
