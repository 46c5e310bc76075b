// Grouped GEMMs for callers in C++: the ops themselves, and what they would run.
#pragma once

#include <optional>

#include "torch/explain/explain.h"

namespace cutwheel {

// a [T, K], b [G, K, N], bias [G, N]: D [T, N]. Or a [M, T], b [T, N]: D [G, M, N]. offs [G]: the end of each group.
Tensor grouped_mm(Tensor const& a, Tensor const& b, Tensor const& offs, std::optional<Tensor> const& bias,
                  std::optional<ScalarType> out_dtype, bool allow_tf32);
Explanation explain_grouped_mm(Tensor const& a, Tensor const& b, Tensor const& offs, std::optional<Tensor> const& bias,
                               std::optional<ScalarType> out_dtype, bool allow_tf32);

// a [T, K], b [G, K, N], 8 bits; scale_a [T] or [T, 1], scale_b [G, N] or [G, 1, N], bias [G, N].
Tensor scaled_grouped_mm(Tensor const& a, Tensor const& b, Tensor const& scale_a, Tensor const& scale_b, Tensor const& offs,
                         std::optional<Tensor> const& bias, std::optional<ScalarType> out_dtype, bool use_fast_accum);
Explanation explain_scaled_grouped_mm(Tensor const& a, Tensor const& b, Tensor const& scale_a, Tensor const& scale_b,
                                      Tensor const& offs, std::optional<Tensor> const& bias,
                                      std::optional<ScalarType> out_dtype, bool use_fast_accum);

}  // namespace cutwheel
