#include "torch/gemm.h"

#include <algorithm>

#include "torch/registry.h"
#include "torch/tensor/cuda_shims.h"

namespace cutwheel {

// --- Checks

namespace {

// The sizes of c line up with the last dimensions of [batch, M, N], each equal or 1.
void check_broadcast(GemmCall const& call) {
  Tensor const& c = *call.c;
  std::int64_t const want[] = {call.batch, call.m, call.n};
  auto const sizes = c.sizes();
  int const dims = call.names.dims;
  bool fits = static_cast<int>(sizes.size()) <= dims;
  for (int i = 1; fits && i <= static_cast<int>(sizes.size()); ++i) {
    std::int64_t const size = sizes[sizes.size() - static_cast<std::size_t>(i)];
    fits = size == want[3 - i] || size == 1;
  }
  if (!fits) {
    fail_shape(call.names.op, call.names.c, c, "one that broadcasts to [", dims == 3 ? concat(call.batch, ", ") : "",
               call.m, ", ", call.n, ']');
  }
}

void check_c(GemmCall const& call) {
  OpNames const& names = call.names;
  check_device(names.op, names.c, *call.c, call.device, names.a);
  if (type_of(*call.c) != call.d_type) check_type(names.op, names.c, *call.c, call.type);
  if (call.linear && (call.c->dim() != 1 || call.c->size(0) != call.n)) {
    fail_shape(names.op, names.c, *call.c, '[', call.n, ']');
  }
  check_broadcast(call);
}

void check_out_against_c(GemmCall const& call) {
  if (!call.c || call.beta == 0) return;
  // The very same view is fine: each element of C is read before its D is written, by the same thread block. A broadcast
  // C is not: other thread blocks still read what one has overwritten.
  Matrix const c = matrix_of(*call.c), target = matrix_of(*call.out);
  ScalarType const c_type = type_of(*call.c);
  if (c_type == call.d_type && same_view(c, target)) return;
  if (overlaps(c, element_bytes_of(c_type), target, element_bytes_of(call.d_type))) {
    fail_overlap(call.names.op, "out", call.names.c);
  }
}

void check_extents(GemmCall& call) {
  OpNames const& names = call.names;
  Tensor const &a = *call.a, &b = *call.b;
  if (call.linear) {
    auto const sizes = a.sizes();
    call.m = 1;
    for (std::size_t i = 0; i + 1 < sizes.size(); ++i) call.m *= sizes[i];
    call.k = sizes[sizes.size() - 1];
    call.n = b.size(0) * (call.up ? 2 : 1);
    if (b.size(1) != call.k) {
      fail_shape(names.op, names.b, b, "[N, ", call.k, "] as ", names.a, " has shape ", shape_text(a));
    }
  } else {
    check_operands(call);
  }
  std::int64_t const widest = std::max(call.n, columns_of(call.width(), call.n));
  for (std::int64_t extent : {call.batch, call.m, widest, call.k}) check_extent(names.op, extent);
}

void check_matmul(GemmCall& call) {
  OpNames const& names = call.names;
  Tensor const &a = *call.a, &b = *call.b;
  check_devices(call);
  if (call.linear) {
    if (a.dim() > kMaxDims) {
      fail(ErrorKind::shape, names.op, ": ", names.a, " has ", a.dim(), " dimensions; at most ", kMaxDims,
           " are supported");
    }
    if (a.dim() < 1) fail(ErrorKind::shape, names.op, ": ", names.a, " has no dimensions; expected [..., K]");
  } else {
    check_dims(names, names.a, a, names.dims);
  }
  check_dims(names, names.b, b, names.dims);
  check_float_types(call, call.allow_tf32);
  check_extents(call);
}

}  // namespace

void check(GemmCall& call) {
  if (!call.operands) check_matmul(call);
  if (call.epilogue) check_epilogue(call);
  if (call.epilogue) {
    if (call.out) check_epilogue_outs(call);
    return;
  }
  if (call.c) check_c(call);
  if (call.out) {
    check_out(call, *call.out, "out", call.n);
    check_out_against_c(call);
  }
}

// --- Operands

namespace {

// Puts C where kernels read it, and says what it is to selection.
void prepare_c(PreparedGemm& prepared, GemmCall const& call, bool transposed, bool pad_extents) {
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
  matrix = readable(matrix, c, call.d_type, pitch, pad, call.device, prepared.keep);
  prepared.args.c = {matrix.data, one_row ? 0 : leading_of(matrix, pitch), matrix.batch == 1 ? 0 : matrix.batch_stride};
  prepared.request.addend = one_row && call.beta == 1 ? Addend::row : Addend::matrix;
}

Layout flip(Layout layout) { return layout == Layout::row ? Layout::column : Layout::row; }

Tensor make_result(GemmCall const& call, std::int64_t cols) {
  if (call.linear) return empty_like_rows(*call.a, cols, call.d_type, call.device);
  std::int64_t const shape[] = {call.batch, call.m, cols};
  return empty_contiguous(call.names.dims == 3 ? shape : shape + 1, call.names.dims, call.d_type, call.device);
}

GemmOperands operands_of(GemmCall const& call, CopyPolicy copy_policy, std::vector<Tensor>& keep) {
  if (call.k == 0 && call.epilogue) return zero_operands(call, keep);
  if (call.operands) return *call.operands;
  Matrix const b = matrix_of(*call.b);
  if (!call.linear) return {{matrix_of(*call.a), *call.a}, {b, *call.b}, call.k};
  View const a = flatten_rows(*call.a, call.m, call.k, keep);
  if (!call.up) return {a, {b.transposed(), *call.b}, call.k};
  View const even{b, *call.b}, odd{matrix_of(*call.up), *call.up};
  // Partial sums are those of plain products, whose columns alternate.
  bool const may_be_apart = call.k <= kLongestSum;
  return {a, pairs_of(even, odd, call.type, copy_policy, may_be_apart, call.device, keep), call.k};
}

}  // namespace

Matrix result_matrix(GemmCall const& call, Tensor const& result, std::int64_t cols) {
  bool const is_dense = (call.linear && !call.out) || call.operands;
  return is_dense ? Matrix{result.data_ptr(), 1, call.m, cols, 0, cols, 1} : matrix_of(result);
}

Work start(PreparedGemm& prepared, GemmCall& call) {
  if (!prepared.d.tensor) {
    prepared.d.tensor = call.out ? *call.out : make_result(call, columns_of(call.width(), call.n));
    EpilogueInfo const* const info = call.epilogue ? &call.epilogue->info() : nullptr;
    for (int i = 0; info && i < info->count; ++i) {
      if (info->operands[i].kind != OperandKind::store) continue;
      Tensor const* const given = call.epilogue->tensors[static_cast<std::size_t>(i)];
      prepared.stores.emplace_back().tensor = given ? *given : make_result(call, call.n);
    }
  }
  if (call.empty()) return Work::none;
  return call.k == 0 && !call.epilogue ? Work::empty_k : Work::gemm;
}

void prepare(PreparedGemm& prepared, GemmCall const& call, CopyPolicy copy_policy) {
  std::vector<Tensor>& keep = prepared.keep;
  keep.clear();  // of a first try; work already enqueued on them is ordered by the stream
  Matrix result = result_matrix(call, *prepared.d.tensor, columns_of(call.width(), call.n));

  // Column-major out=: D^T = B^T A^T is row-major. Other epilogues have operands that cannot be transposed so.
  bool const transpose = call.out && !call.epilogue && result.col_stride != 1 && result.row_stride == 1 && result.cols > 1;
  if (transpose) result = result.transposed();
  // K contiguous in both operands is the layout with the most kernels.
  PreparedOperands const operands =
      prepare_operands(call, operands_of(call, copy_policy, keep), kContiguousK, copy_policy, keep);
  PreparedOperand const &left = operands.a, &right = operands.b;

  gemm::GemmArgs& args = prepared.args;
  args.m = static_cast<int>(transpose ? call.n : call.m);
  args.n = static_cast<int>(transpose ? call.m : call.n);
  args.k = operands.k;
  args.batch = static_cast<int>(call.batch);
  args.a = transpose ? right.operand : left.operand;
  args.b = transpose ? left.operand : right.operand;

  std::int64_t const unit = access_elements(call.d_type), whole_n = round_up<std::int64_t>(args.n, unit);
  // A kernel that writes whole accesses only may write this many columns.
  std::int64_t const pitch = round_up(columns_of(call.width(), whole_n), unit);
  bool const pad_n = copy_policy.extents && args.n != whole_n;
  GemmRequest& request = prepared.request;
  request = request_of(call, Op::gemm, call.d_type);
  request.a_aligned = transpose ? right.aligned : left.aligned;
  request.b_aligned = transpose ? left.aligned : right.aligned;
  bool const may_store_anywhere = !copy_policy.result && !pad_n && result.col_stride == 1;
  request.d_aligned = !may_store_anywhere || writable(result, call.d_type);
  if (request.d_aligned) {
    place_d(args, prepare_result(prepared.d, result, call.d_type, pitch, pad_n, call.device));
  } else {
    prepared.d.temporary.reset();
    place_d(args, {result.data, leading_of(result, pitch), result.batch == 1 ? 0 : result.batch_stride, 0});
  }

  if (call.epilogue) {
    prepare_epilogue(prepared, call, copy_policy);
  } else {
    args.alpha = static_cast<float>(call.alpha);
    args.beta = call.c ? static_cast<float>(call.beta) : 0.f;
    if (args.beta != 0.f) prepare_c(prepared, call, transpose, copy_policy.extents);
    // Epilogues round alpha * accum (+ c) in different ways unless alpha is 1, and of one row it cannot be told whether c
    // is a matrix: then there is one epilogue for all.
    if (request.batch_invariant && call.alpha != 1) request.addend = Addend::matrix;
  }
  request.pairs_apart = args.b.pair_stride != 0;
  request.layout_a = transpose ? flip(right.layout) : left.layout;
  request.layout_b = transpose ? flip(left.layout) : right.layout;
  request.extents_aligned = operands.extents_aligned && (copy_policy.extents || args.n == whole_n);
  request.m = args.m, request.n = args.n, request.k = args.k, request.batch = args.batch;
}

void prepare_request(PreparedGemm& prepared, GemmCall const& call) { prepare(prepared, call, CopyPolicy{}); }

void fill_empty_k(PreparedGemm& prepared, GemmCall const& call) {
  prepare(prepared, call, CopyPolicy{});
  gemm::GemmArgs& args = prepared.args;
  args.device = &device_info(call.device);
  args.stream = current_stream(call.device);
  gemm::Status const status = gemm::run_empty_k(args, prepared.request.d);
  check_launch(status, call.names.op, "splitk_reduce");
  if (!status.good()) fail(ErrorKind::not_implemented, call.names.op, ": ", explain_miss(prepared.request, *args.device));
}

// --- Ops: shapes and dtypes as in torch's functions of the same names

namespace {

// mm and bmm.
template <OpNames const& names>
Tensor multiply(Tensor const& a, Tensor const& b, std::optional<ScalarType> out_dtype, bool allow_tf32) {
  return run_call(make_call(names, a, b, out_dtype, allow_tf32));
}

template <OpNames const& names>
void multiply_out(Tensor const& a, Tensor const& b, bool allow_tf32, Tensor const& out) {
  GemmCall call = make_call(names, a, b, std::nullopt, allow_tf32);
  call.out = &out;
  run_call(call);
}

// addmm and baddbmm.
template <OpNames const& names>
Tensor multiply_add(Tensor const& c, Tensor const& a, Tensor const& b, std::optional<ScalarType> out_dtype, double beta,
                    double alpha, bool allow_tf32) {
  GemmCall call = make_call(names, a, b, out_dtype, allow_tf32);
  call.c = &c, call.beta = beta, call.alpha = alpha;
  return run_call(call);
}

template <OpNames const& names>
void multiply_add_out(Tensor const& c, Tensor const& a, Tensor const& b, double beta, double alpha, bool allow_tf32,
                      Tensor const& out) {
  GemmCall call = make_call(names, a, b, std::nullopt, allow_tf32);
  call.c = &c, call.beta = beta, call.alpha = alpha;
  call.out = &out;
  run_call(call);
}

// input [..., K], weight [N, K], bias [N].
Tensor linear(Tensor const& input, Tensor const& weight, std::optional<Tensor> bias, bool allow_tf32) {
  GemmCall call = make_call(kLinear, input, weight, std::nullopt, allow_tf32);
  call.linear = true;
  call.c = bias ? &*bias : nullptr;
  return run_call(call);
}

constexpr OpNames kLinearGradients{"linear_gradients", nullptr, nullptr, "grad", "weight", 2};

// grad [..., N], input [..., K], weight [N, K]: fills types and extents of grad @ weight.
void check_gradients(GemmCall& call, Tensor const& input) {
  Tensor const &grad = *call.a, &weight = *call.b;
  OpNames const& names = call.names;
  check_devices(call);
  check_defined(names.op, "input", input);
  check_device(names.op, "input", input, call.device, names.a);
  check_dims(names, names.b, weight, 2);
  std::int64_t const n = weight.size(0), k = weight.size(1);
  if (grad.dim() < 1 || grad.dim() > kMaxDims || grad.size(grad.dim() - 1) != n) {
    fail_shape(names.op, names.a, grad, "[..., ", n, "] as ", names.b, " has shape ", shape_text(weight));
  }
  if (!has_rows_of(input, grad, k)) fail_shape(names.op, "input", input, rows_text(grad, k));
  check_float_types(call, call.allow_tf32);
  check_type(names.op, "input", input, call.type);
  auto const sizes = grad.sizes();
  call.m = 1, call.n = k, call.k = n;
  for (std::size_t i = 0; i + 1 < sizes.size(); ++i) call.m *= sizes[i];
  for (std::int64_t const extent : {call.m, n, k}) check_extent(names.op, extent);
}

// D of a checked GEMM, written into `result`, whose rows are adjacent.
void run_into(Tensor const& result, GemmCall& call, GemmOperands const& operands) {
  PreparedGemm prepared;
  prepared.d.tensor = result;
  call.operands = &operands;
  run_checked(prepared, call);
}

}  // namespace

LinearGradients linear_gradients(Tensor const& grad, Tensor const& input, Tensor const& weight,
                                 LayerGradients const& wanted, bool allow_tf32) {
  GemmCall call = make_call(kLinearGradients, grad, weight, std::nullopt, allow_tf32);
  check_gradients(call, input);
  DeviceScope const scope(call.device);
  std::vector<Tensor> keep;
  std::int64_t const rows = call.m, n = call.k, k = call.n;
  View const dy = flatten_rows(grad, rows, n, keep);
  LinearGradients results;
  if (wanted.of_input) {
    results.of_input = empty_like_rows(grad, k, call.type, call.device);
    run_into(results.of_input, call, {dy, {matrix_of(weight), weight}, n});
  }
  if (!wanted.of_weight) return results;

  View const x = flatten_rows(input, rows, k, keep);
  bool const is_turned = wanted.weight_is_column_major;
  call.a = is_turned ? &input : &grad, call.b = is_turned ? &grad : &input;
  View const &left = is_turned ? x : dy, &right = is_turned ? dy : x;
  call.m = left.matrix.cols, call.n = right.matrix.cols, call.k = rows, call.sums_batch = true;
  std::int64_t const shape[] = {call.m, call.n};
  results.of_weight = empty_contiguous(shape, 2, call.type, call.device);
  run_into(results.of_weight, call, {{left.matrix.transposed(), left.owner}, right, rows});
  if (is_turned) results.of_weight = matrix_view(results.of_weight, matrix_of(results.of_weight).transposed());
  return results;
}

namespace {

// One call from Python for both: each costs microseconds.
std::tuple<Tensor, Tensor> both_gradients(Tensor const& grad, Tensor const& input, Tensor const& weight,
                                          bool weight_is_column_major, bool allow_tf32) {
  LinearGradients both = linear_gradients(grad, input, weight, {true, true, weight_is_column_major}, allow_tf32);
  return {std::move(both.of_input), std::move(both.of_weight)};
}

constexpr OpNames kGatedGradient{"gated_input_gradient", nullptr, nullptr, "grad", "weight", 2};

// grad [..., 2F], weight and up [F, K]: fills types and extents of grad @ [weight; up].
void check_gated_gradient(GemmCall& call, Tensor const& up) {
  Tensor const &grad = *call.a, &weight = *call.b;
  OpNames const& names = call.names;
  check_devices(call);
  check_dims(names, names.b, weight, 2);
  check_float_types(call, call.allow_tf32);
  check_as_weight(call, "up", up);
  std::int64_t const n = 2 * weight.size(0);
  if (grad.dim() < 1 || grad.dim() > kMaxDims || grad.size(grad.dim() - 1) != n) {
    fail_shape(names.op, names.a, grad, "[..., ", n, "] as ", names.b, " has shape ", shape_text(weight));
  }
  auto const sizes = grad.sizes();
  call.m = 1, call.n = weight.size(1), call.k = n;
  for (std::size_t i = 0; i + 1 < sizes.size(); ++i) call.m *= sizes[i];
  for (std::int64_t const extent : {call.m, call.n, n}) check_extent(names.op, extent);
}

// One product, whose kernel reads both weights where they lie. False: there is no such kernel.
bool run_over_halves(Tensor const& result, GemmCall& call, View const& dy, Matrix const& first, Matrix const& second,
                     Tensor const& up) {
  std::int64_t const distance = distance_between(first, second, call.type, /*whole_accesses=*/false);
  if (distance == 0 || call.k > kLongestSum) return false;
  bool const second_first = distance < 0;
  Matrix const& at = second_first ? second : first;
  GemmOperands const operands{dy,
                              {{at.data, 1, call.k, call.n, 0, at.row_stride, 1},
                               second_first ? up : *call.b,
                               second_first ? -distance : distance,
                               second_first},
                              call.k};
  call.operands = &operands;
  PreparedGemm prepared;
  prepared.d.tensor = result;
  prepared.args.device = &device_info(call.device);
  CopyPolicy none;
  none.operands = none.result = false;
  prepare(prepared, call, none);
  GemmRequest const& request = prepared.request;
  if (!prepared.keep.empty() || request.layout_b != Layout::row || !loads_aligned(request)) return false;
  std::optional<GemmPlan> const plan = choose_plan(request);
  return plan && is_native(*plan, *prepared.args.device) && launch(prepared, call.names.op, *plan);
}

// The gradient of a gated unit's input, whose weight is two matrices.
Tensor gated_input_gradient(Tensor const& grad, Tensor const& weight, Tensor const& up, bool allow_tf32) {
  GemmCall call = make_call(kGatedGradient, grad, weight, std::nullopt, allow_tf32);
  check_gated_gradient(call, up);
  DeviceScope const scope(call.device);
  Tensor const result = empty_like_rows(grad, call.n, call.type, call.device);
  if (call.empty()) return result;
  if (call.k == 0) {
    Tensor zeros = result;
    torch::stable::zero_(zeros);
    return result;
  }
  std::vector<Tensor> keep;
  View const dy = flatten_rows(grad, call.m, call.k, keep);
  Matrix const first = matrix_of(weight), second = matrix_of(up);
  if (run_over_halves(result, call, dy, first, second, up)) return result;
  // Else one product after the other.
  auto const half_of = [&](std::int64_t column) {
    Matrix half = dy.matrix;
    half.data = static_cast<char*>(half.data) + column * half.col_stride * element_bytes_of(call.type);
    half.cols = call.k / 2;
    return matrix_view(dy.owner, half);
  };
  Tensor const rows = matrix_view(result, {result.data_ptr(), 1, call.m, call.n, 0, call.n, 1});
  multiply_out<kMm>(half_of(0), weight, allow_tf32, rows);
  multiply_add_out<kAddmm>(rows, half_of(call.k / 2), up, 1, 1, allow_tf32, rows);
  return result;
}

Explanation explain_gemm(Question const& asked) {
  std::size_t const first = asked.names.c ? 1 : 0;
  GemmCall call = make_call(asked.names, asked.tensor(first), asked.tensor(first + 1), asked.out_dtype, asked.allow_tf32);
  if (first > 0) call.c = &asked.tensor(0);
  call.beta = asked.beta;
  return explain_call(call);
}

Explanation explain_linear(Question const& asked) {
  GemmCall call = make_call(kLinear, asked.tensor(0), asked.tensor(1), asked.out_dtype, asked.allow_tf32);
  call.linear = true;
  call.c = asked.optional(2);
  call.beta = asked.beta;
  return explain_call(call);
}

}  // namespace

Ops gemm_ops() {
  return {
      op<&multiply<kMm>, kMm>("mm(Tensor input, Tensor mat2, ScalarType? out_dtype=None, bool allow_tf32=False) -> Tensor",
                              {2, 2, explain_gemm}),
      op<&multiply_out<kMm>, kMm>("mm.out(Tensor input, Tensor mat2, bool allow_tf32=False, *, Tensor(a!) out) -> ()"),
      op<&multiply<kBmm>, kBmm>(
          "bmm(Tensor input, Tensor mat2, ScalarType? out_dtype=None, bool allow_tf32=False) -> Tensor",
          {2, 2, explain_gemm}),
      op<&multiply_out<kBmm>, kBmm>("bmm.out(Tensor input, Tensor mat2, bool allow_tf32=False, *, Tensor(a!) out) -> ()"),
      op<&multiply_add<kAddmm>, kAddmm>(
          "addmm(Tensor input, Tensor mat1, Tensor mat2, ScalarType? out_dtype=None, float beta=1, float alpha=1, "
          "bool allow_tf32=False) -> Tensor",
          {3, 3, explain_gemm}),
      op<&multiply_add_out<kAddmm>, kAddmm>(
          "addmm.out(Tensor input, Tensor mat1, Tensor mat2, float beta=1, float alpha=1, bool allow_tf32=False, *, "
          "Tensor(a!) out) -> ()"),
      op<&multiply_add<kBaddbmm>, kBaddbmm>(
          "baddbmm(Tensor input, Tensor batch1, Tensor batch2, ScalarType? out_dtype=None, float beta=1, float alpha=1, "
          "bool allow_tf32=False) -> Tensor",
          {3, 3, explain_gemm}),
      op<&multiply_add_out<kBaddbmm>, kBaddbmm>(
          "baddbmm.out(Tensor input, Tensor batch1, Tensor batch2, float beta=1, float alpha=1, bool allow_tf32=False, *, "
          "Tensor(a!) out) -> ()"),
      op<&both_gradients, kLinearGradients>(
          "linear_gradients(Tensor grad, Tensor input, Tensor weight, bool weight_is_column_major, bool allow_tf32=False) "
          "-> (Tensor, Tensor)"),
      op<&gated_input_gradient, kGatedGradient>(
          "gated_input_gradient(Tensor grad, Tensor weight, Tensor up, bool allow_tf32=False) -> Tensor"),
      op<&linear, kLinear>("linear(Tensor input, Tensor weight, Tensor? bias=None, bool allow_tf32=False) -> Tensor",
                           {2, 3, explain_linear}),
  };
}

}  // namespace cutwheel
