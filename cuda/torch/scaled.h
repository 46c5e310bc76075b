// One call of scaled_mm: D = scale_a * scale_b * (A @ B) + bias, of 8-bit operands.
#pragma once

#include <cstdint>
#include <optional>
#include <tuple>

#include "torch/gemm_call.h"
#include "torch/tensor.h"

namespace cutwheel {

// How the scales of one operand lie over it; Python passes the number.
enum class ScaleRecipe : int { tensorwise, rowwise, blockwise_1x128, blockwise_128x128 };

constexpr std::int64_t kScaleBlock = 128;

// One of the forms in which the result can be computed: an epilogue, and the type of D that its kernel writes. If that is
// not the type of the result, it is converted.
struct ScaledForm {
  Epilogue epilogue{};
  ScalarType d_type = ScalarType::BFloat16;
};

struct ScaledCall : GemmCallBase {
  // Null: not given.
  Tensor const* scale_a = nullptr;
  Tensor const* scale_b = nullptr;
  Tensor const* bias = nullptr;
  Tensor const* azp = nullptr;      // zero point of A, int32
  Tensor const* azp_adj = nullptr;  // sums of B's columns, int32
  std::optional<std::int64_t> recipe_a = std::nullopt, recipe_b = std::nullopt;
  bool use_fast_accum = false;

  ScalarType b_type = ScalarType::Float8_e4m3fn;
  // none: the scales are operands of the epilogue, one for all or one for each row of A and column of B.
  BlockScales scales = BlockScales::none;
  ScaledForm form{};

  bool is_int8() const { return type == ScalarType::Char; }
  bool is_unscaled() const { return !scale_a; }
};

// As the op has them.
ScaledCall make_scaled_call(Tensor const& a, Tensor const& b, std::optional<Tensor> const& scale_a,
                            std::optional<Tensor> const& scale_b, std::optional<Tensor> const& bias,
                            std::optional<Tensor> const& azp, std::optional<Tensor> const& azp_adj,
                            std::optional<std::int64_t> recipe_a, std::optional<std::int64_t> recipe_b,
                            bool use_fast_accum);

// Refuses mxfp8, mxfp4 and nvfp4.
[[noreturn]] void fail_on_microscaling(char const* op, char const* argument, ScalarType type);

// Shapes, dtypes, devices, recipes, out=: throws the error that names the argument; fills types, extents and scales.
void check_scaled(ScaledCall& call);

// Where the scales are applied, from the recipes that were given and the shapes. Throws where they do not fit.
BlockScales find_scales(ScaledCall const& call);

// Of [M, K] or, with K first, of [K, N] or [G, K, N], counted in blocks.
gemm::BlockScaleOperand block_scales(Tensor const& scales, bool k_first);

// The first form with a kernel, a native one if there is one.
ScaledForm choose_form(ScaledCall const& call);

// The request that selection sees if operands are fully aligned.
GemmRequest request_of(ScaledCall const& call, ScaledForm form);

// Prepares the operands of a call with a form, whose result is in prepared.d.
void prepare_scaled(PreparedGemm& prepared, ScaledCall const& call, CopyPolicy copy_policy);

// Allocates the result of a checked call. Returns whether there is anything to multiply: a result without elements needs
// nothing, and one over an empty K is the bias.
bool start_scaled(PreparedGemm& prepared, ScaledCall const& call);

// Prepares the call for the kernel of the plan.
GemmPlan plan_scaled(PreparedGemm& prepared, ScaledCall& call);

// All of it: the result is in prepared.d.
void run_scaled(PreparedGemm& prepared, ScaledCall& call);

// scaled_mm and quantize as torch sees them.
// a [M, K], b [K, N]. Recipes are numbers of ScaleRecipe; without them the shapes of the scales tell.
Tensor scaled_mm(Tensor const& a, Tensor const& b, std::optional<Tensor> const& scale_a,
                 std::optional<Tensor> const& scale_b, std::optional<Tensor> const& bias, std::optional<Tensor> const& azp,
                 std::optional<Tensor> const& azp_adj, std::optional<ScalarType> out_dtype,
                 std::optional<std::int64_t> recipe_a, std::optional<std::int64_t> recipe_b, bool use_fast_accum);
void scaled_mm_out(Tensor const& a, Tensor const& b, std::optional<Tensor> const& scale_a,
                   std::optional<Tensor> const& scale_b, std::optional<Tensor> const& bias,
                   std::optional<Tensor> const& azp, std::optional<Tensor> const& azp_adj,
                   std::optional<std::int64_t> recipe_a, std::optional<std::int64_t> recipe_b, bool use_fast_accum,
                   Tensor const& out);

// x [..., K]. Returns values, scales and zero points; the latter are empty, [0], if symmetric.
std::tuple<Tensor, Tensor, Tensor> quantize(Tensor const& x, std::int64_t recipe, ScalarType dtype, bool symmetric);

}  // namespace cutwheel
