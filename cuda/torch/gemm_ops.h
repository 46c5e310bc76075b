// The GEMM ops as torch sees them: shapes and dtypes as in torch's functions of the same names.
#pragma once

#include <optional>
#include <vector>

#include "dispatch/select.h"
#include "torch/tensor.h"

namespace cutwheel {

Tensor mm(Tensor const& a, Tensor const& b, std::optional<ScalarType> out_dtype, bool allow_tf32);
void mm_out(Tensor const& a, Tensor const& b, bool allow_tf32, Tensor const& out);
Tensor bmm(Tensor const& a, Tensor const& b, std::optional<ScalarType> out_dtype, bool allow_tf32);
void bmm_out(Tensor const& a, Tensor const& b, bool allow_tf32, Tensor const& out);
Tensor addmm(Tensor const& c, Tensor const& a, Tensor const& b, std::optional<ScalarType> out_dtype, double beta,
             double alpha, bool allow_tf32);
void addmm_out(Tensor const& c, Tensor const& a, Tensor const& b, double beta, double alpha, bool allow_tf32,
               Tensor const& out);
Tensor baddbmm(Tensor const& c, Tensor const& a, Tensor const& b, std::optional<ScalarType> out_dtype, double beta,
               double alpha, bool allow_tf32);
void baddbmm_out(Tensor const& c, Tensor const& a, Tensor const& b, double beta, double alpha, bool allow_tf32,
                 Tensor const& out);
// input [..., K], weight [N, K], bias [N].
Tensor linear(Tensor const& input, Tensor const& weight, std::optional<Tensor> bias, bool allow_tf32);

struct ExplainedGemm {
  GemmRequest request;
  std::vector<GemmPlan> plans;  // cheapest first; the first one runs
  std::vector<Rejection> rejections;
  std::size_t operand_copies;  // operands that have to be copied first
  bool output_copy;
};

// op: 0 mm, 1 bmm, 2 addmm, 3 baddbmm, 4 linear. Runs no kernel but the copies.
ExplainedGemm explain_gemm(std::int64_t op, std::vector<Tensor> const& operands, std::optional<ScalarType> out_dtype,
                           double beta, bool allow_tf32);

}  // namespace cutwheel
