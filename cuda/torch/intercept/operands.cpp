#include "torch/intercept/operands.h"

namespace cutwheel {
namespace {

bool lies_on_vectors(Matrix const& x, std::int64_t leading, std::int64_t extent, std::int64_t rows, int element_bytes) {
  std::int64_t const vector = 16 / element_bytes;
  return reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0 && extent % vector == 0 &&
         (rows == 1 || (leading >= extent && leading % vector == 0)) && (x.batch == 1 || x.batch_stride % vector == 0);
}

}  // namespace

bool is_cuda(Tensor const& x) {
  std::int32_t type = -1;
  return aoti_torch_get_device_type(x.get(), &type) == 0 && type == aoti_torch_device_type_cuda();
}

bool are_on_device_of(Tensor const& first, std::initializer_list<Tensor const*> others) {
  if (!first.defined() || !is_cuda(first)) return false;
  for (Tensor const* const other : others) {
    if (!other) continue;
    if (!other->defined() || !is_cuda(*other) || other->get_device_index() != first.get_device_index()) return false;
  }
  return true;
}

char letter_of(Matrix const& x, int element_bytes) {
  if (x.col_stride == 1 && lies_on_vectors(x, x.row_stride, x.cols, x.rows, element_bytes)) return 't';
  if (x.row_stride == 1 && lies_on_vectors(x, x.col_stride, x.rows, x.cols, element_bytes)) return 'n';
  return '?';
}

bool is_contiguous(Tensor const& x) {
  std::int64_t stride = 1;
  for (std::int64_t i = x.dim(); i-- > 0;) {
    if (x.size(i) != 1 && x.stride(i) != stride) return false;
    stride *= x.size(i);
  }
  return true;
}

bool is_contiguous_result(Tensor const& out, Problem const& p, ScalarType type, int dims,
                          std::initializer_list<Tensor const*> operands) {
  if (!out.defined() || !is_cuda(out) || out.dim() != dims || type_of(out) != type || out.get_device_index() != p.device) {
    return false;
  }
  Matrix const d = matrix_of(out);
  int const bytes = element_bytes_of(type);
  bool const fits = d.batch == p.batch && d.rows == p.m && d.cols == p.n && d.col_stride == 1 && d.row_stride == p.n &&
                    (d.batch == 1 || d.batch_stride == p.m * p.n) && letter_of(d, bytes) == 't';
  if (!fits) return false;
  for (Tensor const* const operand : operands) {
    if (operand && overlaps(d, bytes, matrix_of(*operand), element_bytes_of(type_of(*operand)))) return false;
  }
  return true;
}

Problem begin_problem(Taken op, Tensor const& a) {
  Problem p;
  p.op = op;
  if (a.defined()) p.type = type_of(a);
  p.batch_invariant = batch_invariant();
  return p;
}

Verdict verdict_of(Explanation const& explanation, bool may_copy) {
  if (explanation.plans.empty()) return Verdict::no_kernel;
  GemmPlan const& plan = explanation.plans.front();
  if (!is_native(plan, device_info(explanation.request.device))) return Verdict::no_kernel;
  return !may_copy && (explanation.operand_copies > 0 || explanation.output_copy) ? Verdict::copies : Verdict::taken;
}

}  // namespace cutwheel
