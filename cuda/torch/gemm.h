// One call of mm, addmm, linear, gemm and their like: check, prepare, plan, run.
#pragma once

#include <array>
#include <optional>

#include "torch/launch.h"
#include "torch/tensor/tensor.h"

namespace cutwheel {

constexpr OpNames kMm{"mm", "mm", nullptr, "input", "mat2", 2};
constexpr OpNames kBmm{"bmm", "bmm", nullptr, "input", "mat2", 3};
constexpr OpNames kAddmm{"addmm", "addmm", "input", "mat1", "mat2", 2};
constexpr OpNames kBaddbmm{"baddbmm", "baddbmm", "input", "batch1", "batch2", 3};
constexpr OpNames kLinear{"linear", "nn.functional.linear", "bias", "input", "weight", 2};

// An epilogue requested by name, with its arguments by position.
struct EpilogueCall {
  Epilogue id{};
  // Operands, where null stands for zeros; and stores, where null leaves the allocation to us.
  std::array<Tensor const*, kMaxEpilogueOperands> tensors{};
  std::array<float, kMaxEpilogueOperands> scalars{};
  std::optional<Tensor> batched_row;  // a row for each of a batch, as baddbmm takes it

  EpilogueInfo const& info() const { return info_of(id); }
};

struct GemmCall : GemmCallBase {
  static constexpr bool kTakesUnaligned = true;

  Tensor const* c = nullptr;
  double alpha = 1, beta = 1;
  bool allow_tf32 = false;
  bool linear = false;         // b is [N, K]
  Tensor const* up = nullptr;  // of pairs of columns the weight of the odd ones, [N / 2, K], as b is that of the even ones
  EpilogueCall* epilogue = nullptr;  // else alpha, beta and c describe the epilogue
  // Set for a GEMM that its caller has checked, with types and extents: a and b may have other shapes than these, and so
  // may D's tensor, if its rows are adjacent.
  GemmOperands const* operands = nullptr;

  Width width() const { return epilogue ? epilogue->info().width : Width::same; }
};

inline GemmCall make_call(OpNames const& names, Tensor const& a, Tensor const& b, std::optional<ScalarType> out_dtype,
                          bool allow_tf32) {
  GemmCall call{{names, &a, &b}};
  call.out_dtype = out_dtype;
  call.allow_tf32 = allow_tf32;
  return call;
}

// Shapes, dtypes, devices, out=: throws the error that names the argument; fills types and extents. Turns the
// epilogues of mm and addmm, asked for by name, into alpha, beta and c.
void check(GemmCall& call);

// The part of it for an epilogue by name and its outs; the operands have been checked.
void check_epilogue(GemmCall& call);
void check_epilogue_outs(GemmCall const& call);

// Fills the epilogue of a layer, which has at most a bias and a residual; throws where what is given is not what it takes.
void bind_layer(char const* op, EpilogueCall& epilogue, Tensor const* bias, Tensor const* residual);

// Where an operand of the epilogue lies, [batch, rows, cols]; a vector is one row. linear's are not flattened.
Matrix epilogue_matrix(GemmCall const& call, int position);

// As launch.h has them.
Work start(PreparedGemm& prepared, GemmCall& call);
void prepare(PreparedGemm& prepared, GemmCall const& call, CopyPolicy copy_policy);
// The request of a call that has nothing to launch.
void prepare_request(PreparedGemm& prepared, GemmCall const& call);
void fill_empty_k(PreparedGemm& prepared, GemmCall const& call);

// The part of prepare() for an epilogue with Addend::other.
void prepare_epilogue(PreparedGemm& prepared, GemmCall const& call, CopyPolicy copy_policy);

// Which gradients of a linear layer are wanted, and how that of its weight is to lie.
struct LayerGradients {
  bool of_input, of_weight;
  bool weight_is_column_major;
};
struct LinearGradients {
  Tensor of_input;   // [..., K]; undefined: not wanted
  Tensor of_weight;  // [N, K]
};

// From grad [..., N], input [..., K] and weight [N, K].
LinearGradients linear_gradients(Tensor const& grad, Tensor const& input, Tensor const& weight,
                                 LayerGradients const& wanted, bool allow_tf32);

// The rows of a result with `cols` columns.
Matrix result_matrix(GemmCall const& call, Tensor const& result, std::int64_t cols);

}  // namespace cutwheel
