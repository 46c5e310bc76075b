// The tile scheduler of direct convolutions, and the tensor maps of halo and output tiles.
#pragma once

#include <cutlass/fast_math.h>

#include <utility>

#include "sm90/direct_conv/shape.h"
#include "sm90/native/load/tensor_map.cuh"

namespace cutwheel::conv2d {

// Halo tiles of [images, h, w, channels] in boxes of 64 channels of 16 bits. `strides`: of the first three, in elements.
inline void encode_halo_map(CUtensorMap& map, DType type, void const* data, std::array<std::int64_t, 3> const& strides,
                            int images, int h, int w, int channels, int box_h, int box_w) {
  auto const extent = [](int x) { return static_cast<cuuint64_t>(x); };
  auto const bytes = [](std::int64_t x) { return static_cast<cuuint64_t>(x) * 2; };
  cuuint64_t const extents[] = {extent(channels), extent(w), extent(h), extent(images)};
  cuuint64_t const byte_strides[] = {bytes(strides[2]), bytes(strides[1]), bytes(strides[0])};
  cuuint32_t const box[] = {64, static_cast<cuuint32_t>(box_w), static_cast<cuuint32_t>(box_h), 1}, steps[] = {1, 1, 1, 1};
  cuTensorMapEncodeTiled(&map, gemm::tensor_map_type(type), 4, const_cast<void*>(data), extents, byte_strides, box, steps,
                         CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                         CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

// The same for space-to-depth by stride_h x stride_w: [images, rows of a block, down, across, channels of such a row].
inline void encode_space_to_depth_map(CUtensorMap& map, DType type, void const* data,
                                      std::array<std::int64_t, 3> const& strides, ConvProblem const& x,
                                      DirectConvShape const& shape) {
  auto const extent = [](int n) { return static_cast<cuuint64_t>(n); };
  auto const bytes = [](std::int64_t n) { return static_cast<cuuint64_t>(n) * 2; };
  cuuint64_t const extents[] = {extent(shape.channels), extent(shape.input_width), extent(shape.input_height),
                                extent(shape.block_rows), extent(shape.images)};
  cuuint64_t const byte_strides[] = {bytes(strides[2] * x.stride_w), bytes(strides[1] * x.stride_h), bytes(strides[1]),
                                     bytes(strides[0])};
  auto const box_extent = [](int n) { return static_cast<cuuint32_t>(n); };
  cuuint32_t const box[] = {box_extent(shape.channels), box_extent(shape.pitch), box_extent(shape.halo_rows),
                            box_extent(shape.block_rows), 1};
  cuuint32_t const steps[] = {1, 1, 1, 1, 1};
  cuTensorMapEncodeTiled(&map, gemm::tensor_map_type(type), 5, const_cast<void*>(data), extents, byte_strides, box, steps,
                         CU_TENSOR_MAP_INTERLEAVE_NONE,
                         shape.channels == 16 ? CU_TENSOR_MAP_SWIZZLE_32B : CU_TENSOR_MAP_SWIZZLE_64B,
                         CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

// Output tiles of strided dgrad: the input's gradient as [images, rows of a class, columns of a class, classes along h,
// classes along w x channels], in boxes that span all residue classes. Returns the address bits that the swizzle changes.
inline int encode_residue_classes_map(CUtensorMap& map, DType type, void* data, ConvProblem const& x,
                                      DirectConvShape const& shape) {
  auto const extent = [](int n) { return static_cast<cuuint64_t>(n); };
  auto const bytes = [](std::int64_t n) { return static_cast<cuuint64_t>(n) * 2; };
  std::int64_t const row = std::int64_t{x.w} * x.c;
  int const inner = x.stride_w * x.c;
  cuuint64_t const extents[] = {extent(inner), extent(x.stride_h), extent(shape.width), extent(shape.height),
                                extent(shape.images)};
  cuuint64_t const byte_strides[] = {bytes(row), bytes(inner), bytes(row * x.stride_h), bytes(row * x.h)};
  cuuint32_t const box[] = {static_cast<cuuint32_t>(inner), static_cast<cuuint32_t>(x.stride_h),
                            static_cast<cuuint32_t>(shape.columns), static_cast<cuuint32_t>(shape.rows), 1};
  cuuint32_t const steps[] = {1, 1, 1, 1, 1};
  auto const [mode, bits] = inner == 64   ? std::pair(CU_TENSOR_MAP_SWIZZLE_128B, 0x70)
                            : inner == 32 ? std::pair(CU_TENSOR_MAP_SWIZZLE_64B, 0x30)
                            : inner == 16 ? std::pair(CU_TENSOR_MAP_SWIZZLE_32B, 0x10)
                                          : std::pair(CU_TENSOR_MAP_SWIZZLE_NONE, 0);
  cuTensorMapEncodeTiled(&map, gemm::tensor_map_type(type), 5, data, extents, byte_strides, box, steps,
                         CU_TENSOR_MAP_INTERLEAVE_NONE, mode, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                         CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return bits;
}

struct DirectConvWorkTile {
  int image = 0, row = 0, column = 0, filter = 0;  // the first pixel and filter
};

// A threadblock keeps its 64 filters. Threadblocks with different filters share an output tile.
struct DirectConvScheduler {
  cutlass::FastDivmod across, down;  // output tiles across, and down an image
  int rows, columns, output_tiles, filter_blocks;

  static DirectConvScheduler of(DirectConvShape const& shape) {
    return {cutlass::FastDivmod(shape.across()),
            cutlass::FastDivmod(shape.down()),
            shape.rows,
            shape.columns,
            static_cast<int>(shape.output_tiles()),
            shape.filter_blocks()};
  }

  CUTLASS_DEVICE int filter() const { return static_cast<int>(blockIdx.x) % filter_blocks * DirectConvShape::kFilters; }
  CUTLASS_DEVICE int first() const { return static_cast<int>(blockIdx.x) / filter_blocks; }
  CUTLASS_DEVICE int step() const { return static_cast<int>(gridDim.x) / filter_blocks; }

  CUTLASS_DEVICE DirectConvWorkTile at(int index) const {
    DirectConvWorkTile work;
    int row, column;
    across(row, column, index);
    down(work.image, row, row);
    work.row = row * rows;
    work.column = column * columns;
    work.filter = filter();
    return work;
  }
};

}  // namespace cutwheel::conv2d
