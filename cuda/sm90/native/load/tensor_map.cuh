// Tensor maps of GEMM operands and results.
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

// That spans 128 bytes, or 64.
constexpr CUtensorMapSwizzle swizzle_of(int bytes) {
  return bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B;
}

// Whether TMA can load an operand, and store D: rows and problems begin on 16 bytes.
bool is_tma_loadable(Operand const& x, DType type);
bool is_tma_storable(GemmArgs const& args, int element_bytes);

// [batch, rows, contiguous] in boxes of [1, box_rows, box], swizzled over 128 or 64 bytes, which rows of a box lie apart
// even if they are shorter; zeros beyond the ends. A failure is kept for take_tensor_map_error().
void encode_tensor_map(CUtensorMap& map, DType type, Operand const& x, int contiguous, int rows, int batch, int box,
                       int box_rows, int swizzle_bytes);

// [batch, pairs, rows of a pair, contiguous] in boxes of [1, box_rows / 2, 2, box]: the rows of a pair follow each other in
// shared memory wherever they lie (Operand::pair_stride). Else as encode_tensor_map().
void encode_pairs_map(CUtensorMap& map, DType type, Operand const& x, int contiguous, int rows, int batch, int box,
                      int box_rows, int swizzle_bytes);

struct StoredBox {
  int piece_bytes, rows, pieces;
  CUtensorMapSwizzle swizzle;
};

// A matrix that is stored, as bytes: [batch, pieces of a row, rows, bytes of a piece]. Strides are in bytes. A failure is
// kept, too.
void encode_stored_map(CUtensorMap& map, void* data, std::int64_t pitch, std::int64_t batch_stride, int rows,
                       std::int64_t row_bytes, int batch, StoredBox const& box);

// A part of an image, or of a volume, whose pixels are those of D or every so many of them: [images, d, h, w, channels].
// `extents`: from the width on; strides are of elements.
void encode_image_map(CUtensorMap& map, DType d, void* data, int channels, int const (&extents)[4],
                      std::int64_t const (&strides)[4], StoredBox const& box);

}  // namespace cutwheel::gemm
