// Loads of pixels by TMA: the rows of an implicit GEMM, gathered from an NHWC tensor by the copy engine itself.
#pragma once

#include <cutlass/fast_math.h>
#include <cute/arch/copy_sm90_tma.hpp>

#include "core/args/conv.h"
#include "sm90/native/load/tensor_map.cuh"

namespace cutwheel::conv2d {

using gemm::Status;
using gemm::StatusCode;

// The most tiles of a launch: a grid can be added to a tile index without overflow.
constexpr std::int64_t kMaxTiles = 0x7fffffff - 65536;

// Where pixels are gathered along one side of an image: position i of `positions` begins at corner + i * stride, and a tap
// reads the pixel that lies its offset, which is not negative, behind that. What is outside of the image is zeros.
struct Im2colAxis {
  int extent = 0;  // of the image
  int corner = 0, positions = 0, stride = 1;
  int last_offset = 0;  // of all taps

  // Corner of the last position, counted from the image's last pixel.
  int upper_corner() const { return corner + (positions - 1) * stride - (extent - 1); }
};

// The sides of an image, or of a volume.
struct Im2colAxes {
  Im2colAxis h, w, d = {1, 0, 1, 1, 0};
  bool is_volume = false;

  // Whether the bit fields of a tensor map can hold the values: two such axes have 8 bits each, three of them 5.
  bool is_encodable() const;
};

// [images, h, w, channels], or [images, d, h, w, channels], in boxes of `channel_box` channels of `pixels` successive
// positions, which go from row to row, from slice to slice and from image to image, swizzled as encode_tensor_map() does. A
// failure is kept for take_tensor_map_error(). `depth_stride`: of slices.
void encode_im2col_map(CUtensorMap& map, DType type, void const* data, std::int64_t const (&strides)[3],
                       std::int64_t depth_stride, int images, int channels, Im2colAxes const& axes, int channel_box,
                       int pixels, int swizzle_bytes);

// The pixel that a position begins at: kept by the thread that loads.
struct Im2colPixel {
  int w = 0, h = 0, d = 0, image = 0;
};

// From a number of a position, counted through rows, slices and images, to its pixel.
struct Im2colGrid {
  cutlass::FastDivmod rows, columns;  // positions along an image
  int corner_h, corner_w, stride_h, stride_w;
  cutlass::FastDivmod slices;
  int corner_d, stride_d;

  // Positions along each side, and the image.
  CUTLASS_DEVICE void coordinates(int& image, int& slice, int& row, int& column, int position) const {
    columns(row, column, position);
    rows(image, row, row);
    slice = 0;
    if (slices.divisor > 1) slices(image, slice, image);
  }

  CUTLASS_DEVICE Im2colPixel at(int position) const {
    Im2colPixel pixel;
    int slice, row, column;
    coordinates(pixel.image, slice, row, column, position);
    pixel.d = corner_d + slice * stride_d;
    pixel.h = corner_h + row * stride_h;
    pixel.w = corner_w + column * stride_w;
    return pixel;
  }
};

Im2colAxes im2col_axes(ConvProblem const& x);
Im2colGrid im2col_grid(Im2colAxes const& axes);

// Offset that a tap adds to a pixel.
struct Im2colOffset {
  int w = 0, h = 0, d = 0;
};

// Images keep tensor maps of four dimensions, whose fields have room for more padding and dilation.
CUTLASS_DEVICE void load_im2col(CUtensorMap const& map, bool is_volume, std::uint64_t* barrier, void* to, int channel,
                                Im2colPixel const& pixel, Im2colOffset const& offset) {
  auto const w = static_cast<std::uint16_t>(offset.w), h = static_cast<std::uint16_t>(offset.h);
  if (is_volume) {
    cute::SM90_TMA_LOAD_IM2COL_5D::copy(&map, barrier, to, channel, pixel.w, pixel.h, pixel.d, pixel.image, w, h,
                                        static_cast<std::uint16_t>(offset.d));
  } else {
    cute::SM90_TMA_LOAD_IM2COL_4D::copy(&map, barrier, to, channel, pixel.w, pixel.h, pixel.image, w, h);
  }
}

// Whether pointers and strides are those that TMA takes.
bool is_tma_aligned(void const* data, std::int64_t const (&strides)[3], DType type);

}  // namespace cutwheel::conv2d
