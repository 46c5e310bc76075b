// What a call would run, without running it.
#pragma once

#include <string_view>

#include "torch/conv.h"
#include "torch/fused.h"

namespace cutwheel {

struct ExplainedGemm {
  GemmRequest request;
  std::vector<GemmPlan> plans;  // cheapest first; the first one runs
  std::vector<Rejection> rejections;
  std::size_t operand_copies;  // operands that have to be copied first
  bool output_copy;
  char const* route = nullptr;  // of a convolution
  PlanSource source{};          // of the first plan
};

// Checks of what explain is given.
void check_count(char const* op, std::size_t count, std::size_t least, std::size_t most);
Tensor const& required(char const* op, OptionalTensors const& operands, std::size_t i);

// op: 0 mm, 1 bmm, 2 addmm, 3 baddbmm, 4 linear [input, weight, bias], 5 gemm [a, b, tensor operands by position], 6
// linear_fused [input, weight, bias, residual]. The last two take the name of an epilogue and None among their operands.
// Runs no kernel but the copies.
ExplainedGemm explain_gemm(std::int64_t op, OptionalTensors const& operands, std::optional<ScalarType> out_dtype,
                           double beta, bool allow_tf32, std::string_view epilogue);

// op 7: scaled_mm [a, b, scale_a, scale_b, bias, azp, azp_adj], None where not given.
constexpr std::int64_t kScaledMmOp = 7;
ExplainedGemm explain_scaled(OptionalTensors const& operands, std::optional<ScalarType> out_dtype,
                             std::optional<std::int64_t> recipe_a, std::optional<std::int64_t> recipe_b,
                             bool use_fast_accum);

// op 8: grouped_mm [a, b, offs, bias]; 9: grouped_mm_accumulate [a, b, offs, out]; 10: grouped_linear_fused and its _aux
// [input, weight, offs, bias], which take the name of an epilogue; 11: scaled_grouped_mm [a, b, scale_a, scale_b, offs,
// bias].
constexpr std::int64_t kGroupedMmOp = 8, kGroupedAccumulateOp = 9, kGroupedLinearOp = 10, kScaledGroupedMmOp = 11;
ExplainedGemm explain_grouped(std::int64_t op, OptionalTensors const& operands, std::optional<ScalarType> out_dtype,
                              bool allow_tf32, std::string_view epilogue, bool use_fast_accum);

// Convolutions are numbered apart. op 0: conv2d [input, weight, bias]; 1: conv2d_fused [input, weight, bias,
// residual], which takes the name of an epilogue; 2: scaled_conv2d [input, weight, scale_input, scale_weight, bias]; 3:
// conv2d_input_grad [grad_output, weight] and 4: conv2d_weight_grad [grad_output, input], which take the size of the
// result: H and W, or R and S. Without a kernel there are no plans, and the algorithm is "none".
ExplainedGemm explain_conv(std::int64_t op, OptionalTensors const& operands, ConvGeometry const& geometry,
                           Extents2d const& size, std::optional<ScalarType> out_dtype, bool allow_tf32,
                           std::string_view epilogue);

}  // namespace cutwheel
