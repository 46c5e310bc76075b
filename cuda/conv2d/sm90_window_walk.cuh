// Which threadblock takes which rectangles of a convolution by windows, and how they lie in memory.
#pragma once

#include <cutlass/fast_math.h>

#include "conv2d/window_shape.h"
#include "gemm/sm90_tensor_map.cuh"

namespace cutwheel::conv2d {

// [images, h, w, channels], strides in elements of the first three, in boxes of 64 channels, 16 bits each.
inline void encode_window_map(CUtensorMap& map, DType type, void const* data, std::array<std::int64_t, 3> const& strides,
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

struct WindowPlace {
  int image = 0, row = 0, column = 0, filter = 0;  // of the first pixel and filter
};

// A threadblock keeps its 64 filters; as many as there are blocks of filters have the same rectangles.
struct WindowWalk {
  cutlass::FastDivmod across, down;  // rectangles in a row of them, and such rows in an image
  int rows, columns, rectangles, filter_blocks;

  static WindowWalk of(WindowShape const& shape) {
    return {cutlass::FastDivmod(shape.across()),
            cutlass::FastDivmod(shape.down()),
            shape.rows,
            shape.columns,
            static_cast<int>(shape.rectangles()),
            shape.filter_blocks()};
  }

  CUTLASS_DEVICE int filter() const { return static_cast<int>(blockIdx.x) % filter_blocks * WindowShape::kFilters; }
  CUTLASS_DEVICE int first() const { return static_cast<int>(blockIdx.x) / filter_blocks; }
  CUTLASS_DEVICE int step() const { return static_cast<int>(gridDim.x) / filter_blocks; }

  CUTLASS_DEVICE WindowPlace at(int rectangle) const {
    WindowPlace place;
    int row, column;
    across(row, column, rectangle);
    down(place.image, row, row);
    place.row = row * rows;
    place.column = column * columns;
    place.filter = filter();
    return place;
  }
};

}  // namespace cutwheel::conv2d
