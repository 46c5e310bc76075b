// Loads of pixels by TMA: the rows of an implicit GEMM, gathered from an NHWC tensor by the copy engine itself.
#pragma once

#include <cutlass/fast_math.h>
#include <cute/arch/copy_sm90_tma.hpp>

#include "core/conv_args.h"
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

  // Whether the bit fields of a tensor map of two such axes can hold the values.
  bool is_encodable() const {
    auto const is_corner = [](int x) { return x >= -128 && x <= 127; };
    return is_corner(corner) && is_corner(upper_corner()) && stride >= 1 && stride <= 8 && last_offset >= 0 &&
           last_offset < 255;
  }
};

// [images, h, w, channels] in boxes of `channel_box` channels (128 bytes, swizzled) of `pixels` successive positions, which
// go from row to row and from image to image. A failure is kept for take_tensor_map_error().
inline void encode_im2col_map(CUtensorMap& map, DType type, void const* data, std::int64_t const (&strides)[3], int images,
                              int channels, Im2colAxis const& h, Im2colAxis const& w, int channel_box, int pixels) {
  auto const bytes = static_cast<cuuint64_t>(element_bytes(type));
  auto const extent = [](int x) { return static_cast<cuuint64_t>(x); };
  auto const stride = [&](int i) { return static_cast<cuuint64_t>(strides[i]) * bytes; };
  cuuint64_t const extents[] = {extent(channels), extent(w.extent), extent(h.extent), extent(images)};
  cuuint64_t const byte_strides[] = {stride(2), stride(1), stride(0)};
  // Width comes first, as everywhere in a tensor map.
  int const lower[] = {w.corner, h.corner}, upper[] = {w.upper_corner(), h.upper_corner()};
  cuuint32_t const steps[] = {1, static_cast<cuuint32_t>(w.stride), static_cast<cuuint32_t>(h.stride), 1};
  cuTensorMapEncodeIm2col(&map, gemm::tensor_map_type(type), 4, const_cast<void*>(data), extents, byte_strides, lower,
                          upper, static_cast<cuuint32_t>(channel_box), static_cast<cuuint32_t>(pixels), steps,
                          CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                          CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

// The pixel that a position begins at: kept by the thread that loads.
struct Im2colPixel {
  int w = 0, h = 0, image = 0;
};

// From a number of a position, counted through rows and images, to its pixel.
struct Im2colGrid {
  cutlass::FastDivmod rows, columns;  // positions along an image
  int corner_h, corner_w, stride_h, stride_w;

  CUTLASS_DEVICE Im2colPixel at(int position) const {
    Im2colPixel pixel;
    int row, column;
    columns(row, column, position);
    rows(pixel.image, row, row);
    pixel.h = corner_h + row * stride_h;
    pixel.w = corner_w + column * stride_w;
    return pixel;
  }
};

inline Im2colAxis im2col_axis(int extent, int positions, int taps, int pad, int stride, int dilation) {
  return {extent, -pad, positions, stride, (taps - 1) * dilation};
}
inline Im2colAxis im2col_axis_h(ConvProblem const& x) {
  return im2col_axis(x.h, x.p, x.r, x.pad_h, x.stride_h, x.dilation_h);
}
inline Im2colAxis im2col_axis_w(ConvProblem const& x) {
  return im2col_axis(x.w, x.q, x.s, x.pad_w, x.stride_w, x.dilation_w);
}
inline Im2colGrid im2col_grid(Im2colAxis const& h, Im2colAxis const& w) {
  return {cutlass::FastDivmod(h.positions), cutlass::FastDivmod(w.positions), h.corner, w.corner, h.stride, w.stride};
}

// Offset that a tap adds to a pixel.
struct Im2colOffset {
  int w = 0, h = 0;
};

CUTLASS_DEVICE void load_im2col(CUtensorMap const& map, std::uint64_t* barrier, void* to, int channel,
                                Im2colPixel const& pixel, Im2colOffset const& offset) {
  cute::SM90_TMA_LOAD_IM2COL_4D::copy(&map, barrier, to, channel, pixel.w, pixel.h, pixel.image,
                                      static_cast<std::uint16_t>(offset.w), static_cast<std::uint16_t>(offset.h));
}

// Whether pointers and strides are those that TMA takes.
inline bool is_tma_aligned(void const* data, std::int64_t const (&strides)[3], DType type) {
  bool result = reinterpret_cast<std::uintptr_t>(data) % 16 == 0;
  for (std::int64_t const stride : strides) result = result && stride * element_bytes(type) % 16 == 0;
  return result;
}

}  // namespace cutwheel::conv2d
