// _grouped_mm and _scaled_grouped_mm.
#include "torch/grouped.h"

#include "torch/intercept/operands.h"
#include "torch/intercept/ops.h"
#include "torch/intercept/torch_kernel.h"

namespace cutwheel {
namespace {

constexpr std::uint8_t kFast = 16;  // as of _scaled_mm: Problem::variant

// Numbers of dtypes are torch's: its own conversion throws for those that are newer than the torch we are built for.
using DtypeNumber = std::optional<std::int32_t>;

bool is_ends(Tensor const& offs) { return type_of(offs) == ScalarType::Int && offs.dim() == 1 && is_contiguous(offs); }

// Extents, types and layouts of A and B with their groups; torch takes ends in int32, and neither a bias nor another result
// than bfloat16.
Problem problem_of(Taken op, Tensor const& a, Tensor const& b, std::optional<Tensor> const& offs,
                   std::optional<Tensor> const& bias, DtypeNumber out_dtype,
                   std::initializer_list<Tensor const*> others = {}) {
  Problem p = begin_problem(op, a);
  // Without ends each matrix of a batch is a group: that is bmm.
  if (!a.defined() || !b.defined() || !or_null(offs) || a.dim() != 2 || (b.dim() != 2 && b.dim() != 3)) {
    return p.with(Verdict::shape);
  }
  bool const is_along_k = b.dim() == 2;
  Matrix const left = matrix_of(a), right = matrix_of(b);
  p.m = left.rows, p.n = right.cols, p.k = left.cols;
  if (!are_on_device_of(a, {&b, &*offs}) || !are_on_device_of(a, others)) return p.with(Verdict::not_cuda);
  p.device = static_cast<std::int32_t>(a.get_device_index());
  p.batch = offs->dim() == 1 ? offs->size(0) : 0;
  if (right.rows != p.k || (!is_along_k && b.size(0) != p.batch)) return p.with(Verdict::shape);
  bool const is_scaled = op == Taken::scaled_grouped_mm;
  ScalarType const type = is_scaled ? ScalarType::Float8_e4m3fn : ScalarType::BFloat16;
  std::int32_t const bfloat16 = static_cast<std::int32_t>(ScalarType::BFloat16);
  if (p.type != type || type_of(b) != type || out_dtype.value_or(is_scaled ? -1 : bfloat16) != bfloat16) {
    return p.with(Verdict::dtype);
  }
  if (is_narrowed(type)) return p.with(Verdict::narrowed);
  if (p.batch == 0 || p.m == 0 || p.n == 0 || p.k == 0) return p.with(Verdict::empty);
  int const bytes = element_bytes_of(type);
  p.a = letter_of(left, bytes), p.b = letter_of(right, bytes);
  // Groups along K are contiguous the other way than a kernel of rows reads them, and torch takes no others here.
  if (p.a != (is_along_k ? 'n' : 't') || p.b == '?' || (is_along_k && p.b != 't') || p.n % (16 / bytes) != 0) {
    return p.with(Verdict::layout);
  }
  if (or_null(bias) || !is_ends(*offs)) return p.with(Verdict::arguments);
  return p;
}

Tensor grouped(Tensor const& a, Tensor const& b, std::optional<Tensor> const& offs, std::optional<Tensor> const& bias,
               DtypeNumber out_dtype) {
  Problem const p = problem_of(Taken::grouped_mm, a, b, offs, bias, out_dtype);
  return run_either<Tensor>(
      p,
      [&] {
        return verdict_of(explain_grouped_mm(a, b, *offs, std::nullopt, std::nullopt, /*allow_tf32=*/false),
                          /*may_copy=*/false);
      },
      [&] { return grouped_mm(a, b, *offs, std::nullopt, std::nullopt, /*allow_tf32=*/false); },
      [&] {
        using Kernel =
            TorchTensor(void const*, void const*, TorchOptional const*, TorchOptional const*, std::optional<ScalarType>);
        TorchOptional const ends(offs), row(bias);
        std::optional<ScalarType> dtype;
        if (out_dtype) dtype = static_cast<ScalarType>(*out_dtype);
        Tensor result;
        adopt(result, torch_kernel<Kernel>(Taken::grouped_mm)(a.get(), b.get(), &ends, &row, dtype));
        return result;
      });
}

Tensor scaled_grouped(Tensor const& a, Tensor const& b, Tensor const& scale_a, Tensor const& scale_b,
                      std::optional<Tensor> const& offs, std::optional<Tensor> const& bias,
                      std::optional<Tensor> const& scale_result, DtypeNumber out_dtype, bool use_fast_accum) {
  Problem p = problem_of(Taken::scaled_grouped_mm, a, b, offs, bias, out_dtype, {&scale_a, &scale_b});
  p.variant = use_fast_accum ? kFast : 0;
  if (p.first == Verdict::taken) {
    bool const are_of_rows = type_of(scale_a) == ScalarType::Float && type_of(scale_b) == ScalarType::Float &&
                             has_shape(scale_a, {p.m}) && has_shape(scale_b, {p.batch, p.n}) && is_contiguous(scale_a) &&
                             is_contiguous(scale_b);
    if (p.b != 'n') {
      p.first = Verdict::layout;
    } else if (or_null(scale_result) || !are_of_rows) {
      p.first = Verdict::arguments;
    }
  }
  auto const result_type = ScalarType::BFloat16;
  return run_either<Tensor>(
      p,
      [&] {
        return verdict_of(
            explain_scaled_grouped_mm(a, b, scale_a, scale_b, *offs, std::nullopt, result_type, use_fast_accum),
            /*may_copy=*/false);
      },
      [&] { return scaled_grouped_mm(a, b, scale_a, scale_b, *offs, std::nullopt, result_type, use_fast_accum); },
      [&] {
        using Kernel = TorchTensor(void const*, void const*, void const*, void const*, TorchOptional const*,
                                   TorchOptional const*, TorchOptional const*, std::optional<ScalarType>, bool);
        TorchOptional const ends(offs), row(bias), of_result(scale_result);
        std::optional<ScalarType> dtype;
        if (out_dtype) dtype = static_cast<ScalarType>(*out_dtype);
        Tensor result;
        adopt(result, torch_kernel<Kernel>(Taken::scaled_grouped_mm)(a.get(), b.get(), scale_a.get(), scale_b.get(), &ends,
                                                                     &row, &of_result, dtype, use_fast_accum));
        return result;
      });
}

}  // namespace

std::vector<Overload> grouped_overloads() {
  return {
      {Taken::grouped_mm, TORCH_BOX(&grouped),
       "11_grouped_mmERKNS_6TensorES3_RKSt8optionalIS1_ES7_S4_IN3c1010ScalarTypeEE"},
      {Taken::scaled_grouped_mm, TORCH_BOX(&scaled_grouped),
       "18_scaled_grouped_mmERKNS_6TensorES3_S3_S3_RKSt8optionalIS1_ES7_S7_S4_IN3c1010ScalarTypeEEb"},
  };
}

}  // namespace cutwheel
