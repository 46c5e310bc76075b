// One call of mm, bmm, addmm, baddbmm or linear, on its way from torch's arguments to a plan.
#pragma once

#include <optional>
#include <vector>

#include "dispatch/select.h"
#include "gemm/gemm.h"
#include "torch/tensor.h"

namespace cutwheel {

// How an op calls its arguments, for messages.
struct OpNames {
  char const* op;
  char const* c;  // nullptr: takes none
  char const* a;
  char const* b;
  int dims;  // of a and b; linear's input may have more
};

struct GemmCall {
  OpNames const& names;
  Tensor const* a;
  Tensor const* b;
  Tensor const* c = nullptr;
  std::optional<ScalarType> out_dtype = std::nullopt;
  double alpha = 1, beta = 1;
  bool allow_tf32 = false;
  Tensor const* out = nullptr;
  bool linear = false;  // b is [N, K]

  ScalarType type = ScalarType::BFloat16;  // of a and b
  ScalarType d_type = ScalarType::BFloat16;
  int device = 0;
  std::int64_t m = 0, n = 0, k = 0, batch = 1;
};

// Shapes, dtypes, devices, out=: throws the error that names the argument; fills the fields after `linear`.
void check_call(GemmCall& call);

// Operands as kernels take them. `keep` owns the copies that had to be made.
struct PreparedGemm {
  gemm::GemmArgs args;
  GemmRequest request;
  std::vector<Tensor> keep;
  std::optional<Tensor> result;     // what the op returns, or out
  std::optional<Tensor> temporary;  // D is written here and copied to result
  Matrix copy_from, copy_to;
};

// `pad_extents`: copy operands whose contiguous extent is no multiple of 16 bytes (cp.async kernels need that).
void prepare(PreparedGemm& prepared, GemmCall const& call, bool pad_extents);

// A plan for the prepared call; prepares it again with padded extents if no row takes it as it is.
GemmPlan plan_call(PreparedGemm& prepared, GemmCall const& call);

}  // namespace cutwheel
