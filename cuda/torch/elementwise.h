// Elementwise kernels for callers in C++; the op itself is in the registry.
#pragma once

#include "epilogues.h"  // generated: enum class Epilogue
#include "torch/tensor/tensor.h"

namespace cutwheel {

// [..., N] -> [N], the gradient of a bias.
Tensor sum_rows(Tensor const& rows);

// [..., N] -> [..., N], contiguous: an epilogue without an accumulator, whose only operand is a matrix.
Tensor apply_elementwise(Epilogue epilogue, Tensor const& rows);

}  // namespace cutwheel
