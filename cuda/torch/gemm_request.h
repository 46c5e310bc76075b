// One call of a product, on its way from torch's arguments to a launch: check, prepare, plan, run.
#pragma once

#include <array>
#include <limits>
#include <optional>
#include <vector>

#include "dispatch/select.h"
#include "gemm/gemm.h"
#include "torch/access.h"
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

constexpr OpNames kMm{"mm", nullptr, "input", "mat2", 2};
constexpr OpNames kBmm{"bmm", nullptr, "input", "mat2", 3};
constexpr OpNames kAddmm{"addmm", "input", "mat1", "mat2", 2};
constexpr OpNames kBaddbmm{"baddbmm", "input", "batch1", "batch2", 3};
constexpr OpNames kLinear{"linear", "bias", "input", "weight", 2};

// An epilogue asked for by its name, and what it is given: by position.
struct EpilogueCall {
  Epilogue id{};
  // Of operands; null stands for zeros. Of stores, where the caller gave memory; else null.
  std::array<Tensor const*, kMaxEpilogueOperands> tensors{};
  std::array<float, kMaxEpilogueOperands> scalars{};
  std::optional<Tensor> batched_row;  // a row for each of a batch, as baddbmm takes it

  EpilogueInfo const& info() const { return info_of(id); }
};

struct GemmCall {
  OpNames names;
  Tensor const* a;
  Tensor const* b;
  Tensor const* c = nullptr;
  std::optional<ScalarType> out_dtype = std::nullopt;
  double alpha = 1, beta = 1;
  bool allow_tf32 = false;
  Tensor const* out = nullptr;
  bool linear = false;               // b is [N, K]
  EpilogueCall* epilogue = nullptr;  // else alpha, beta and c say what follows the product

  ScalarType type = ScalarType::BFloat16;  // of a and b
  ScalarType d_type = ScalarType::BFloat16;
  int device = 0;
  std::int64_t m = 0, n = 0, k = 0, batch = 1;

  Width width() const { return epilogue ? epilogue->info().width : Width::same; }
  bool empty() const { return m == 0 || n == 0 || batch == 0; }
};

// Columns of D of a product with n columns.
constexpr std::int64_t columns_of(Width width, std::int64_t n) {
  return width == Width::half ? n / 2 : width == Width::twice ? 2 * n : n;
}

inline GemmCall make_call(OpNames const& names, Tensor const& a, Tensor const& b, std::optional<ScalarType> out_dtype,
                          bool allow_tf32) {
  GemmCall call{names, &a, &b};
  call.out_dtype = out_dtype;
  call.allow_tf32 = allow_tf32;
  return call;
}

// CUTLASS rounds extents up to tiles and clusters in int; this leaves room for any of them.
constexpr std::int64_t kMaxExtent = std::numeric_limits<std::int32_t>::max() - 65535;
constexpr int kMaxDims = 64;  // torch's own limit

bool is_supported(ScalarType type);
void check_device(char const* op, char const* argument, Tensor const& tensor, int device, char const* device_of);

// Shapes, dtypes, devices, out=: throws the error that names the argument; fills the fields after `epilogue`. Turns the
// epilogues of mm and addmm, asked for by name, into alpha, beta and c.
void check_call(GemmCall& call);

// The part of it for a call by an epilogue's name, and for its outs. The product has been checked.
void check_epilogue(GemmCall& call);
void check_epilogue_outs(GemmCall const& call);
// An out= of `cols` columns against itself and against A and B.
void check_out(GemmCall const& call, Tensor const& out, char const* label, std::int64_t cols);

// Where an operand of the epilogue lies, [batch, rows, cols]; a vector is one row. linear's are not flattened.
Matrix epilogue_matrix(GemmCall const& call, int position);

// Operands as kernels take them. `keep` owns the copies that had to be made.
struct PreparedGemm {
  gemm::GemmArgs args;
  GemmRequest request;
  std::vector<Tensor> keep;
  Output d;
  std::vector<Output> stores;  // in the order of their positions
};

// Makes what the op returns, unless it was given.
void make_results(PreparedGemm& prepared, GemmCall const& call);

void prepare(PreparedGemm& prepared, GemmCall const& call, Forced forced);
// The part of it for an epilogue with Addend::other.
void prepare_epilogue(PreparedGemm& prepared, GemmCall const& call, Forced forced);

// The rows of a result with `cols` columns.
Matrix result_matrix(GemmCall const& call, Tensor const& result, std::int64_t cols);

// A plan for the prepared call; prepares it again, with copies, if no row takes it as it is.
GemmPlan plan_call(PreparedGemm& prepared, GemmCall const& call);

// All of it: the results are in prepared.d and prepared.stores.
void run_call(PreparedGemm& prepared, GemmCall& call);

// Throws what a launch reported, unless that is ok or not_implementable.
void check_launch(gemm::Status status, char const* op, char const* kernel);

}  // namespace cutwheel
