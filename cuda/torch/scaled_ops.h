// scaled_mm and quantize as torch sees them.
#pragma once

#include <cstdint>
#include <optional>
#include <tuple>

#include "torch/tensor.h"

namespace cutwheel {

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
