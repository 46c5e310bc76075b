#include "torch/gemm_ops.h"

#include "torch/gemm_request.h"

namespace cutwheel {
namespace {

Tensor run(GemmCall& call) {
  PreparedGemm prepared;
  run_call(prepared, call);
  return *std::move(prepared.d.tensor);
}

Tensor plain(OpNames const& names, Tensor const& a, Tensor const& b, std::optional<ScalarType> out_dtype, bool allow_tf32,
             Tensor const* out = nullptr) {
  GemmCall call = make_call(names, a, b, out_dtype, allow_tf32);
  call.out = out;
  return run(call);
}

Tensor with_c(OpNames const& names, Tensor const& c, Tensor const& a, Tensor const& b, std::optional<ScalarType> out_dtype,
              double beta, double alpha, bool allow_tf32, Tensor const* out = nullptr) {
  GemmCall call = make_call(names, a, b, out_dtype, allow_tf32);
  call.c = &c;
  call.alpha = alpha;
  call.beta = beta;
  call.out = out;
  return run(call);
}

}  // namespace

Tensor mm(Tensor const& a, Tensor const& b, std::optional<ScalarType> out_dtype, bool allow_tf32) {
  return plain(kMm, a, b, out_dtype, allow_tf32);
}

void mm_out(Tensor const& a, Tensor const& b, bool allow_tf32, Tensor const& out) {
  plain(kMm, a, b, std::nullopt, allow_tf32, &out);
}

Tensor bmm(Tensor const& a, Tensor const& b, std::optional<ScalarType> out_dtype, bool allow_tf32) {
  return plain(kBmm, a, b, out_dtype, allow_tf32);
}

void bmm_out(Tensor const& a, Tensor const& b, bool allow_tf32, Tensor const& out) {
  plain(kBmm, a, b, std::nullopt, allow_tf32, &out);
}

Tensor addmm(Tensor const& c, Tensor const& a, Tensor const& b, std::optional<ScalarType> out_dtype, double beta,
             double alpha, bool allow_tf32) {
  return with_c(kAddmm, c, a, b, out_dtype, beta, alpha, allow_tf32);
}

void addmm_out(Tensor const& c, Tensor const& a, Tensor const& b, double beta, double alpha, bool allow_tf32,
               Tensor const& out) {
  with_c(kAddmm, c, a, b, std::nullopt, beta, alpha, allow_tf32, &out);
}

Tensor baddbmm(Tensor const& c, Tensor const& a, Tensor const& b, std::optional<ScalarType> out_dtype, double beta,
               double alpha, bool allow_tf32) {
  return with_c(kBaddbmm, c, a, b, out_dtype, beta, alpha, allow_tf32);
}

void baddbmm_out(Tensor const& c, Tensor const& a, Tensor const& b, double beta, double alpha, bool allow_tf32,
                 Tensor const& out) {
  with_c(kBaddbmm, c, a, b, std::nullopt, beta, alpha, allow_tf32, &out);
}

Tensor linear(Tensor const& input, Tensor const& weight, std::optional<Tensor> bias, bool allow_tf32) {
  GemmCall call = make_call(kLinear, input, weight, std::nullopt, allow_tf32);
  call.linear = true;
  call.c = bias ? &*bias : nullptr;
  return run(call);
}

}  // namespace cutwheel
