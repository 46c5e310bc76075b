// How a kernel of the family thin divides the shared memory of a Hopper GPU for a request.
#pragma once

#include "dispatch/kernel_descriptor.h"
#include "sm90/thin/shape.h"

namespace cutwheel {

// False: the weight leaves too little.
inline bool plan_thin(gemm::ThinShape& shape, KernelDescriptor const& kernel, int n, int k) {
  constexpr int kSharedBytes = 227 * 1024;
  EpilogueInfo const& epilogue = info_of(kernel.epilogue);
  int matrices = 0, rows = 0;
  for (int i = 0; i < epilogue.count; ++i) {
    matrices += epilogue.operands[i].kind == OperandKind::matrix;
    rows += epilogue.operands[i].kind == OperandKind::row;
  }
  return gemm::ThinShape::plan(shape, n, k, kernel.tile.n, matrices, rows, kSharedBytes);
}

}  // namespace cutwheel
