#include <algorithm>

#include "common/error.h"
#include "torch/cuda_shims.h"
#include "torch/gemm_request.h"

namespace cutwheel {
namespace {

constexpr int kAccessBytes = 16;  // of TMA, cp.async and vector stores alike

bool aligned(void const* data) { return reinterpret_cast<std::uintptr_t>(data) % kAccessBytes == 0; }

struct Alignment {
  int elements;
  explicit Alignment(int bytes) : elements(kAccessBytes / bytes) {}
  bool holds(std::int64_t stride) const { return stride % elements == 0; }
};

// A zero-padded row-major copy: rows start on 16 bytes, and what lies between is zero, so that a kernel may read it.
Matrix copy_padded(Matrix const& source, Tensor const& owner, ScalarType type, int device, std::vector<Tensor>& keep) {
  std::int64_t const pitch =
      round_up<std::int64_t>(std::max<std::int64_t>(source.cols, 1), kAccessBytes / element_bytes_of(type));
  std::int64_t const rows = std::max<std::int64_t>(source.rows, 1);
  Tensor buffer =
      empty_strided({std::max<std::int64_t>(source.batch, 1), rows, pitch}, {rows * pitch, pitch, 1}, type, device);
  if (pitch != source.cols) torch::stable::zero_(buffer);
  Matrix const target{buffer.data_ptr(), source.batch, source.rows, source.cols, rows * pitch, pitch, 1};
  Tensor view = view_of(buffer, target);
  torch::stable::copy_(view, view_of(owner, source));
  keep.push_back(std::move(buffer));
  return target;
}

struct PreparedOperand {
  gemm::Operand operand;
  Layout layout;
  bool extent_aligned;
};

// Takes a matrix as it lies if its memory can be read in 16-byte pieces, unless `force_copy`. `preferred` decides where
// both layouts would do, and for a copy.
PreparedOperand prepare_operand(Matrix matrix, Tensor const& owner, ScalarType type, Layout preferred, bool pad_extents,
                                bool force_copy, int device, std::vector<Tensor>& keep) {
  Alignment const alignment(element_bytes_of(type));
  auto const fits = [&](Matrix const& x, Layout layout) {
    std::int64_t const fast = layout == Layout::row ? x.col_stride : x.row_stride;
    std::int64_t const fast_extent = layout == Layout::row ? x.cols : x.rows;
    std::int64_t const slow = layout == Layout::row ? x.row_stride : x.col_stride;
    std::int64_t const slow_extent = layout == Layout::row ? x.rows : x.cols;
    return aligned(x.data) && (fast == 1 || fast_extent == 1) && (slow_extent == 1 || alignment.holds(slow)) &&
           (x.batch == 1 || alignment.holds(x.batch_stride)) && (!pad_extents || alignment.holds(fast_extent));
  };
  Layout const other = preferred == Layout::row ? Layout::column : Layout::row;
  Layout layout = preferred;
  if (force_copy || !fits(matrix, layout)) {
    layout = other;
    if (force_copy || !fits(matrix, layout)) {
      layout = preferred;
      matrix = layout == Layout::row ? copy_padded(matrix, owner, type, device, keep)
                                     : copy_padded(matrix.transposed(), owner, type, device, keep).transposed();
    }
  }
  bool const row = layout == Layout::row;
  std::int64_t const fast_extent = row ? matrix.cols : matrix.rows;
  PreparedOperand prepared;
  prepared.layout = layout;
  // A copy is padded with zeros: as good as aligned.
  prepared.extent_aligned = pad_extents || alignment.holds(fast_extent);
  prepared.operand.data = matrix.data;
  bool const single = (row ? matrix.rows : matrix.cols) == 1;  // its stride means nothing
  prepared.operand.leading = single ? round_up<std::int64_t>(fast_extent, alignment.elements)
                             : row  ? matrix.row_stride
                                    : matrix.col_stride;
  prepared.operand.batch_stride = matrix.batch == 1 ? 0 : matrix.batch_stride;
  return prepared;
}

// Where D goes: the result itself if it can be written in 16-byte pieces, else a temporary that is copied into it.
// Returns the matrix to write, in the frame of `target`.
Matrix prepare_output(Matrix const& target, ScalarType type, bool pad_extents, int device, PreparedGemm& prepared) {
  Alignment const alignment(element_bytes_of(type));
  bool const direct = aligned(target.data) && (target.col_stride == 1 || target.cols == 1) &&
                      (target.rows == 1 || alignment.holds(target.row_stride)) &&
                      (target.batch == 1 || alignment.holds(target.batch_stride)) &&
                      (!pad_extents || alignment.holds(target.cols));
  if (direct) return target;
  std::int64_t const pitch = round_up<std::int64_t>(target.cols, alignment.elements);
  prepared.temporary = empty_strided({target.batch, target.rows, pitch}, {target.rows * pitch, pitch, 1}, type, device);
  prepared.copy_from = {
      prepared.temporary->data_ptr(), target.batch, target.rows, target.cols, target.rows * pitch, pitch, 1};
  prepared.copy_to = target;
  return prepared.copy_from;
}

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
  Alignment const alignment(element_bytes_of(call.d_type));
  bool const direct =
      c.scalar_type() == call.d_type && aligned(matrix.data) && (matrix.col_stride == 1 || matrix.cols == 1) &&
      (matrix.rows == 1 || alignment.holds(matrix.row_stride)) &&
      (matrix.batch == 1 || alignment.holds(matrix.batch_stride)) && (!pad_extents || alignment.holds(matrix.cols));
  if (!direct) matrix = copy_padded(matrix, c, call.d_type, call.device, keep);
  std::int64_t const leading = one_row            ? 0
                               : matrix.rows == 1 ? round_up<std::int64_t>(matrix.cols, alignment.elements)
                                                  : matrix.row_stride;
  return {{matrix.data, leading, matrix.batch == 1 ? 0 : matrix.batch_stride},
          one_row && call.beta == 1 ? Addend::row : Addend::matrix};
}

DType dtype_of(ScalarType type, bool operand) {
  switch (type) {
    case ScalarType::Half: return DType::f16;
    case ScalarType::BFloat16: return DType::bf16;
    default: return operand ? DType::tf32 : DType::f32;
  }
}

// The leading dimensions of linear's input as one, if its strides allow that without a copy.
std::optional<Matrix> flatten_rows(Tensor const& input, std::int64_t m, std::int64_t k) {
  auto const sizes = input.sizes();
  auto const strides = input.strides();
  std::size_t const dims = sizes.size();
  Matrix matrix{input.data_ptr(), 1, m, k, 0, k, strides[dims - 1]};
  std::int64_t expected = -1;  // the stride the next outer dimension must have
  for (std::size_t i = dims - 1; i-- > 0;) {
    if (sizes[i] == 1) continue;
    if (expected >= 0 && strides[i] != expected) return std::nullopt;
    if (expected < 0) matrix.row_stride = strides[i];
    expected = strides[i] * sizes[i];
  }
  return matrix;
}

Tensor make_result(GemmCall const& call) {
  if (call.out) return *call.out;
  if (call.linear) {
    auto const sizes = call.a->sizes();
    constexpr std::size_t kMaxDims = 64;
    std::array<std::int64_t, kMaxDims> shape;
    std::copy(sizes.begin(), sizes.end(), shape.begin());
    shape[sizes.size() - 1] = call.n;
    return empty_contiguous(shape.data(), static_cast<int>(sizes.size()), call.d_type, call.device);
  }
  std::int64_t const shape[] = {call.batch, call.m, call.n};
  return empty_contiguous(call.names.dims == 3 ? shape : shape + 1, call.names.dims, call.d_type, call.device);
}

}  // namespace

void prepare(PreparedGemm& prepared, GemmCall const& call, bool pad_extents) {
  std::vector<Tensor>& keep = prepared.keep;
  keep.clear();  // of a first try; work already enqueued on them is ordered by the stream
  prepared.temporary.reset();
  if (!prepared.result) prepared.result = make_result(call);
  Matrix result =
      call.linear ? Matrix{prepared.result->data_ptr(), 1, call.m, call.n, 0, call.n, 1} : matrix_of(*prepared.result);

  std::optional<Tensor> reshaped;  // owns linear's input where its leading dimensions cannot be one as they lie
  Matrix a, b = matrix_of(*call.b);
  if (call.linear) {
    b = b.transposed();
    if (std::optional<Matrix> flat = flatten_rows(*call.a, call.m, call.k)) {
      a = *flat;
    } else {
      reshaped = torch::stable::reshape(*call.a, {call.m, call.k});
      keep.push_back(*reshaped);
      a = matrix_of(*reshaped);
    }
  } else {
    a = matrix_of(*call.a);
  }
  Tensor const& a_owner = reshaped ? *reshaped : *call.a;

  // Column-major out=: D^T = B^T A^T is row-major.
  bool const transpose = result.col_stride != 1 && result.row_stride == 1 && result.cols > 1 && call.out;
  if (transpose) result = result.transposed();
  // cp.async kernels start with the odd end of K and go on from there: K itself has to be whole. Copies of both operands
  // have K contiguous and zeros up to the next multiple.
  Alignment const alignment(element_bytes_of(call.type));
  bool const pad_k = pad_extents && !alignment.holds(call.k);
  // K contiguous in both operands is the layout with the most kernels.
  PreparedOperand const left = prepare_operand(a, a_owner, call.type, Layout::row, pad_extents, pad_k, call.device, keep);
  PreparedOperand const right =
      prepare_operand(b, *call.b, call.type, Layout::column, pad_extents, pad_k, call.device, keep);
  Matrix const d = prepare_output(result, call.d_type, pad_extents, call.device, prepared);

  gemm::GemmArgs& args = prepared.args;
  args.m = static_cast<int>(transpose ? call.n : call.m);
  args.n = static_cast<int>(transpose ? call.m : call.n);
  args.k = static_cast<int>(pad_k ? round_up<std::int64_t>(call.k, alignment.elements) : call.k);
  args.batch = static_cast<int>(call.batch);
  args.a = transpose ? right.operand : left.operand;
  args.b = transpose ? left.operand : right.operand;
  args.d = d.data;
  args.d_leading =
      d.rows == 1 ? round_up<std::int64_t>(d.cols, kAccessBytes / element_bytes_of(call.d_type)) : d.row_stride;
  args.d_batch_stride = d.batch == 1 ? 0 : d.batch_stride;
  args.alpha = static_cast<float>(call.alpha);
  args.beta = call.c ? static_cast<float>(call.beta) : 0.f;
  prepared.request.addend = Addend::none;
  if (args.beta != 0.f) {
    PreparedAddend const addend = prepare_addend(call, transpose, pad_extents, keep);
    args.c = addend.operand;
    prepared.request.addend = addend.kind;
  }

  Layout const left_layout = left.layout, right_layout = right.layout;
  auto const flip = [](Layout layout) { return layout == Layout::row ? Layout::column : Layout::row; };
  GemmRequest& request = prepared.request;
  request.device = call.device;
  request.a = dtype_of(call.type, /*operand=*/true);
  request.d = dtype_of(call.d_type, /*operand=*/false);
  request.layout_a = transpose ? flip(right_layout) : left_layout;
  request.layout_b = transpose ? flip(left_layout) : right_layout;
  request.extents_aligned = left.extent_aligned && right.extent_aligned &&
                            (pad_extents || args.n % (kAccessBytes / element_bytes_of(call.d_type)) == 0);
  request.m = args.m, request.n = args.n, request.k = args.k, request.batch = args.batch;
}

GemmPlan plan_call(PreparedGemm& prepared, GemmCall const& call) {
  std::optional<GemmPlan> plan = choose_plan(prepared.request);
  if (!plan && !prepared.request.extents_aligned) {
    prepare(prepared, call, /*pad_extents=*/true);
    plan = choose_plan(prepared.request);
  }
  if (!plan)
    fail(ErrorKind::not_implemented, call.names.op, ": ", explain_miss(prepared.request, device_info(call.device)));
  return *plan;
}

}  // namespace cutwheel
