// The kernels that stand in for torch's, as boxed functions.
#pragma once

#include <vector>

#include "torch/intercept/account.h"
#include "torch/registry.h"

namespace cutwheel {

struct Overload {
  Taken op;
  Boxed boxed;
  // The symbol of torch's own kernel behind its namespace: at::cuda or at::cpu, and where neither has one
  // at::compositeexplicitautograd.
  char const* symbol;
};

std::vector<Overload> gemm_overloads();
std::vector<Overload> scaled_overloads();
std::vector<Overload> grouped_overloads();
std::vector<Overload> conv_overloads();

// addmm, whose Scalars the stable ABI does not hand to kernels: Python's kernel asks for these. Nothing, or false: the call
// goes on to torch.
std::optional<Tensor> take_addmm(Tensor const& c, Tensor const& a, Tensor const& b, double beta, double alpha);
bool take_addmm_out(Tensor const& c, Tensor const& a, Tensor const& b, double beta, double alpha, Tensor const& out);

}  // namespace cutwheel
