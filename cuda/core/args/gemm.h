// Arguments of a GEMM: operands as the caller sees them, and the raster order, splits and workspace that dispatch has
// chosen for one launch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/device.h"
#include "core/types.h"
#include "epilogue/info.h"

namespace cutwheel::gemm {

// One operand: the leading dimension is the stride of the dimension that is not contiguous, in elements.
struct Operand {
  void const* data = nullptr;
  std::int64_t leading = 0;
  std::int64_t batch_stride = 0;
  // B may be two matrices. This is how many elements lie from one to the other, never less than 0; 0 says that B is one
  // matrix. Where K is contiguous, one matrix has the even columns and the other the odd ones, which the epilogue combines,
  // and `leading` leads to the next pair. Else one has the first half of K and the other the second.
  std::int64_t pair_stride = 0;
  bool odd_first = false;  // the one at `data` has the odd columns, or the second half of K
};

// One operand of an epilogue: a scalar's value, or a tensor; null stands for zeros, and nothing is read.
struct EpilogueValue {
  void* data = nullptr;
  // Leading dimension of a matrix or store (row-major). For a row or column that may be one value: 0 if it is, else 1.
  std::int64_t leading = 0;
  std::int64_t batch_stride = 0;
  float value = 0;
};

// Dequantisation scales of blocks of 128 along K; strides in elements, any.
struct BlockScaleOperand {
  float* data = nullptr;
  std::int64_t stride = 0;        // from one row of A (column of B, or 128 of them) to the next
  std::int64_t k_stride = 0;      // from one block of K to the next
  std::int64_t batch_stride = 0;  // of B, from group to group of a grouped GEMM
};

// Groups of a grouped GEMM: the row (Grouping::rows) or place in K (Grouping::k) behind the last of each group, on the
// device, read by kernels only. Kernels clamp them: each is at least the one before, and at most the extent.
struct GroupArgs {
  void const* ends = nullptr;
  bool is_int64 = false;  // else int32
  int count = 0;
  std::int64_t first = 0;  // number of the operands' first row or place in K, from which ends are counted
};

// D = epilogue(A @ B) for each of `batch` problems. The epilogues of mm and addmm, alpha * A @ B + beta * C, are described
// by alpha, beta and c, where C is read only when beta != 0; `epilogue` has the operands of all others, by position.
//
// In a grouped GEMM batch is 1, and batch strides run from group to group. rows: m counts the rows of all groups, and B and
// rows of the epilogue have such a stride. k: k is the sum over all groups, and D, C and matrices of the epilogue have it.
struct GemmArgs {
  int m = 0, n = 0, k = 0, batch = 1;
  Operand a;          // [batch, M, K], row or column as the kernel's layout says
  Operand b;          // [batch, K, N]
  Operand c;          // [batch, M, N] row-major, of D's dtype; leading 0: one row for all
  void* d = nullptr;  // [batch, M, N] row-major; N / 2 or 2 N columns by the epilogue's width
  std::int64_t d_leading = 0;
  std::int64_t d_batch_stride = 0;
  std::int64_t d_odd = 0;  // of an elementwise kernel that doubles the width: where odd columns begin; 0: columns alternate
  float alpha = 1, beta = 0;
  EpilogueValue epilogue[kMaxEpilogueOperands];
  BlockScaleOperand scale_a, scale_b;  // null where the kernel has BlockScales::none
  GroupArgs groups;                    // of a kernel with a Grouping

  // Chosen by dispatch.
  RasterOrder raster = RasterOrder::along_m;
  int swizzle = 1;            // tiles across the raster order, visited together for L2
  int splits = 1;             // split-K: how many slices of K, whose partial sums splitk_reduce finds in A
  void* workspace = nullptr;  // at least workspace_bytes() of the chosen kernel, 256-byte aligned
  DeviceInfo const* device = nullptr;
  cudaStream_t stream = nullptr;
};

enum class StatusCode : int { ok, not_implementable, cuda_error, tensor_map_error };

struct Status {
  StatusCode code = StatusCode::ok;
  int detail = 0;  // cudaError_t or CUresult
  bool good() const { return code == StatusCode::ok; }
};

}  // namespace cutwheel::gemm
