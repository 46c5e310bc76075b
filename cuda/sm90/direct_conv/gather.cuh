// Images of up to four channels and their filters, gathered into shared memory element by element wherever they lie, as
// wgmma reads a K-major operand: in swizzled lines of 32 bytes. A line is a block of 2 x 2 pixels of four channels each;
// channels that an image lacks, pixels outside it and taps outside a filter are zeros. TMA copies 16 bytes at least, so it
// would need an image with channels added.
#pragma once

#include <cutlass/fast_math.h>

#include "sm90/direct_conv/filters.cuh"

namespace cutwheel::conv2d {

struct FewChannels {
  static constexpr int kLineBytes = DirectConvShape::kFewBlock * 2, kStride = DirectConvShape::kFewStride;

  // Strides in elements.
  struct Tensor {
    std::uint16_t const* data;
    std::int64_t strides[4];  // of images, rows, pixels and channels; of filters, their rows, taps and channels
  };

  Tensor image, filter;
  WindowFilterAxis tap_h, tap_w;
  cutlass::FastDivmod pitch;
  int lines;  // of a halo tile
  int h, w, channels;
  int k_out, taps_h, taps_w;

  static FewChannels of(ConvArgs const& args, DirectConvShape const& shape) {
    ConvProblem const& x = args.conv;
    DirectConvFilter const axes = DirectConvFilter::of(args.b.data, x, shape);
    FewChannels result{{static_cast<std::uint16_t const*>(args.a.data), {}},
                       {static_cast<std::uint16_t const*>(args.b.data), {}},
                       axes.h,
                       axes.w,
                       cutlass::FastDivmod(shape.pitch),
                       shape.halo_lines(),
                       x.h,
                       x.w,
                       x.c,
                       x.k_out,
                       shape.taps_h,
                       shape.taps_w};
    std::copy_n(args.x_strides, 3, result.image.strides);
    result.image.strides[3] = args.x_channel_stride;
    std::copy_n(args.filter_strides, 4, result.filter.strides);
    return result;
  }

  // Two pixels of four channels.
  CUTLASS_DEVICE static uint4 packed(std::uint16_t const (&x)[8]) {
    auto const pair = [&](int i) { return static_cast<std::uint32_t>(x[i]) | static_cast<std::uint32_t>(x[i + 1]) << 16; };
    return make_uint4(pair(0), pair(2), pair(4), pair(6));
  }

  CUTLASS_DEVICE static uint4* at(std::uint8_t* to, int line, int half) {
    int const offset = line * kLineBytes + half * 16;
    return reinterpret_cast<uint4*>(to + (offset ^ (offset >> 3 & 0x10)));
  }

  // The halo tile whose first block is (row, column) of the image, by `threads` threads.
  template <int threads>
  CUTLASS_DEVICE void load_image(std::uint8_t* to, int index, int row, int column, int thread) const {
    // Whose loads are in flight together. 64 x 224 x 224, 3x3 to 32 filters, takes 45, 40 and 53 us with three, six and
    // nine of them (H200); words of two channels in place of elements, where rows begin on words, are slower.
    constexpr int kAtOnce = 6;
    std::uint16_t const* const first = image.data + index * image.strides[0];
    for (int start = thread; start < lines * kStride; start += threads * kAtOnce) {
      std::uint16_t pixels[kAtOnce][8];
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        int const half = start + i * threads, line = half / kStride;
        int block_row, block;
        pitch(block_row, block, line);
        int const y = (row + block_row) * kStride + half % kStride, x = (column + block) * kStride;
        bool const is_row = line < lines && y >= 0 && y < h;
        std::uint16_t const* const from = first + y * image.strides[1] + x * image.strides[2];
        CUTLASS_PRAGMA_UNROLL
        for (int j = 0; j < kStride; ++j) {
          bool const is_pixel = is_row && x + j >= 0 && x + j < w;
          CUTLASS_PRAGMA_UNROLL
          for (int c = 0; c < 4; ++c) {
            bool const is_there = is_pixel && c < channels;
            pixels[i][j * 4 + c] = is_there ? from[j * image.strides[2] + c * image.strides[3]] : std::uint16_t{0};
          }
        }
      }
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        int const half = start + i * threads;
        if (half < lines * kStride) *at(to, half / kStride, half % kStride) = packed(pixels[i]);
      }
    }
  }

  // For each tap 64 lines, one for each filter from `first_filter` on, by 256 threads.
  CUTLASS_DEVICE void load_filters(std::uint8_t* to, int first_filter, int thread) const {
    int const half = thread % kStride, line = thread / kStride % DirectConvShape::kFilters;
    bool const is_filter = first_filter + line < k_out;
    std::uint16_t const* const first = filter.data + (first_filter + line) * filter.strides[0];
    for (int tap = thread / (kStride * DirectConvShape::kFilters); tap < taps_h * taps_w; tap += 2) {
      int const i = tap / taps_w, j = tap - i * taps_w;
      int const row = tap_h.tap_of(tap_h.pixel_of(i) + half);
      std::uint16_t values[8];
      CUTLASS_PRAGMA_UNROLL
      for (int pixel = 0; pixel < kStride; ++pixel) {
        int const column = tap_w.tap_of(tap_w.pixel_of(j) + pixel);
        std::uint16_t const* const from = first + row * filter.strides[1] + column * filter.strides[2];
        bool const is_tap = is_filter && row >= 0 && column >= 0;
        CUTLASS_PRAGMA_UNROLL
        for (int c = 0; c < 4; ++c) {
          values[pixel * 4 + c] = is_tap && c < channels ? from[c * filter.strides[3]] : std::uint16_t{0};
        }
      }
      *at(to + tap * (DirectConvShape::kFilters * kLineBytes), line, half) = packed(values);
    }
  }
};

}  // namespace cutwheel::conv2d
