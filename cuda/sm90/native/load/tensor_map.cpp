#include "sm90/native/load/tensor_map.cuh"

#include <algorithm>

namespace cutwheel::gemm {

namespace {

bool begins_on_16_bytes(void const* data, std::int64_t leading, std::int64_t batch_stride, int element_bytes) {
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && leading * element_bytes % 16 == 0 &&
         batch_stride * element_bytes % 16 == 0;
}

}  // namespace

bool is_tma_loadable(Operand const& x, DType type) {
  return begins_on_16_bytes(x.data, x.leading, x.batch_stride, element_bytes(type)) &&
         x.pair_stride * element_bytes(type) % 16 == 0;
}

bool is_tma_storable(GemmArgs const& args, int element_bytes) {
  return begins_on_16_bytes(args.d, args.d_leading, args.d_batch_stride, element_bytes);
}

void encode_tensor_map(CUtensorMap& map, DType type, Operand const& x, int contiguous, int rows, int batch, int box,
                       int box_rows, int swizzle_bytes) {
  auto const bytes = static_cast<cuuint64_t>(element_bytes(type));
  cuuint64_t const extents[] = {static_cast<cuuint64_t>(contiguous), static_cast<cuuint64_t>(rows),
                                static_cast<cuuint64_t>(batch)};
  cuuint64_t const strides[] = {static_cast<cuuint64_t>(x.leading) * bytes,
                                static_cast<cuuint64_t>(x.batch_stride) * bytes};
  cuuint32_t const boxes[] = {static_cast<cuuint32_t>(box), static_cast<cuuint32_t>(box_rows), 1}, steps[] = {1, 1, 1};
  cuTensorMapEncodeTiled(&map, tensor_map_type(type), 3, const_cast<void*>(x.data), extents, strides, boxes, steps,
                         CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle_of(swizzle_bytes),
                         l2_promotion(x.leading * element_bytes(type)), CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

void encode_pairs_map(CUtensorMap& map, DType type, Operand const& x, int contiguous, int rows, int batch, int box,
                      int box_rows, int swizzle_bytes) {
  auto const bytes = [&](std::int64_t elements) { return static_cast<cuuint64_t>(elements * element_bytes(type)); };
  std::int64_t const within = x.pair_stride ? x.pair_stride : x.leading,
                     between = x.pair_stride ? x.leading : 2 * x.leading;
  cuuint64_t const extents[] = {static_cast<cuuint64_t>(contiguous), 2, static_cast<cuuint64_t>(rows / 2),
                                static_cast<cuuint64_t>(batch)};
  cuuint64_t const strides[] = {bytes(within), bytes(between), bytes(x.batch_stride)};
  cuuint32_t const boxes[] = {static_cast<cuuint32_t>(box), 2, static_cast<cuuint32_t>(box_rows / 2), 1};
  cuuint32_t const steps[] = {1, 1, 1, 1};
  cuTensorMapEncodeTiled(&map, tensor_map_type(type), 4, const_cast<void*>(x.data), extents, strides, boxes, steps,
                         CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle_of(swizzle_bytes),
                         l2_promotion(x.leading * element_bytes(type)), CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

void encode_stored_map(CUtensorMap& map, void* data, std::int64_t pitch, std::int64_t batch_stride, int rows,
                       std::int64_t row_bytes, int batch, StoredBox const& box) {
  auto const positive = [](std::int64_t x) { return static_cast<cuuint64_t>(std::max<std::int64_t>(x, 1)); };
  auto const piece = static_cast<cuuint32_t>(box.piece_bytes);
  cuuint64_t const extents[] = {piece, positive(rows), positive(row_bytes / box.piece_bytes), positive(batch)};
  cuuint64_t const strides[] = {static_cast<cuuint64_t>(pitch), piece, static_cast<cuuint64_t>(batch_stride)};
  cuuint32_t const boxes[] = {piece, static_cast<cuuint32_t>(box.rows), static_cast<cuuint32_t>(box.pieces), 1};
  cuuint32_t const steps[] = {1, 1, 1, 1};
  cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 4, data, extents, strides, boxes, steps,
                         CU_TENSOR_MAP_INTERLEAVE_NONE, box.swizzle, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                         CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

void encode_image_map(CUtensorMap& map, DType d, void* data, int channels, int const (&extents)[4],
                      std::int64_t const (&strides)[4], StoredBox const& box) {
  cuuint64_t sizes[5] = {static_cast<cuuint64_t>(channels)}, byte_strides[4];
  for (int i = 0; i < 4; ++i) {
    sizes[i + 1] = static_cast<cuuint64_t>(extents[i]);
    byte_strides[i] = static_cast<cuuint64_t>(strides[i] * element_bytes(d));
  }
  auto const piece = static_cast<cuuint32_t>(box.piece_bytes / element_bytes(d));
  cuuint32_t const boxes[] = {piece, static_cast<cuuint32_t>(box.rows), 1, 1, 1}, steps[] = {1, 1, 1, 1, 1};
  cuTensorMapEncodeTiled(&map, tensor_map_type(d), 5, data, sizes, byte_strides, boxes, steps,
                         CU_TENSOR_MAP_INTERLEAVE_NONE, box.swizzle, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                         CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

}  // namespace cutwheel::gemm
