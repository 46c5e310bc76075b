// Tensor maps of GEMM operands.
#pragma once

#include <cuda.h>

#include "core/args/gemm.h"
#include "core/driver.h"

namespace cutwheel::gemm {

constexpr CUtensorMapDataType tensor_map_type(DType type) {
  switch (type) {
    case DType::f16: return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    case DType::bf16: return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case DType::f32: return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    case DType::tf32: return CU_TENSOR_MAP_DATA_TYPE_TFLOAT32;
    default: return CU_TENSOR_MAP_DATA_TYPE_UINT8;
  }
}

// How much of memory a load brings into L2 at least. Rows, or pixels, that begin within a line of 128 bytes lie across one
// more than they fill: with 256 bytes for each line 4096 x 4096 x 11016 takes 1.2 to 1.3 times as long as with 128,
// convolutions of 232 channels 1.06 to 1.11 times, 1x1 ones of 24 to 112 channels 1.04 to 1.11 times (H100). Where they
// begin on lines, 128 bytes gain nothing.
inline CUtensorMapL2promotion l2_promotion(std::int64_t pitch_bytes) {
  return pitch_bytes % 128 ? CU_TENSOR_MAP_L2_PROMOTION_L2_128B : CU_TENSOR_MAP_L2_PROMOTION_L2_256B;
}

// [batch, rows, contiguous] in boxes of [1, box_rows, box], swizzled over 128 bytes; zeros beyond the ends. A failure is
// kept for take_tensor_map_error().
inline void encode_tensor_map(CUtensorMap& map, DType type, Operand const& x, int contiguous, int rows, int batch, int box,
                              int box_rows) {
  auto const bytes = static_cast<cuuint64_t>(element_bytes(type));
  cuuint64_t const extents[] = {static_cast<cuuint64_t>(contiguous), static_cast<cuuint64_t>(rows),
                                static_cast<cuuint64_t>(batch)};
  cuuint64_t const strides[] = {static_cast<cuuint64_t>(x.leading) * bytes,
                                static_cast<cuuint64_t>(x.batch_stride) * bytes};
  cuuint32_t const boxes[] = {static_cast<cuuint32_t>(box), static_cast<cuuint32_t>(box_rows), 1}, steps[] = {1, 1, 1};
  cuTensorMapEncodeTiled(&map, tensor_map_type(type), 3, const_cast<void*>(x.data), extents, strides, boxes, steps,
                         CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                         l2_promotion(x.leading * element_bytes(type)), CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

}  // namespace cutwheel::gemm
