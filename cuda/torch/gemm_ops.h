// The GEMM ops as torch sees them: shapes and dtypes as in torch's functions of the same names.
#pragma once

#include <optional>

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

}  // namespace cutwheel
