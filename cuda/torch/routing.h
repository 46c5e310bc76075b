// Rows of tokens in the order of experts, for callers in C++.
#pragma once

#include <optional>

#include "torch/tensor/tensor.h"

namespace cutwheel {

// tokens [T, H], places and weights [T, k], offs [G]. Returns [T k, H].
Tensor moe_permute(Tensor const& tokens, Tensor const& places, std::optional<Tensor> const& weights,
                   std::optional<Tensor> const& offs);

}  // namespace cutwheel
