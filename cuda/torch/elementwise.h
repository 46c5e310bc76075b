// Elementwise kernels for callers in C++; the op itself is in the registry.
#pragma once

#include "torch/tensor/tensor.h"

namespace cutwheel {

// [..., N] -> [N], the gradient of a bias.
Tensor sum_rows(Tensor const& rows);

}  // namespace cutwheel
