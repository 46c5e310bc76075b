// The filters of a convolution by windows whose pixels are blocks of pixels: see WindowShape::plan_blocks.
#pragma once

#include <cutlass/cutlass.h>

#include "conv2d/window_shape.h"

namespace cutwheel::conv2d {

struct BlockAxis {
  int stride, pad, dilation, taps;  // of the caller's convolution
  int first;                        // block of the first tap of output pixel 0

  // The caller's tap that reads pixel `place` of the block of number `tap`, or -1.
  CUTLASS_DEVICE int tap_of(int tap, int place) const {
    int const reach = (first + tap) * stride + place + pad;
    int const result = reach / dilation;
    return reach >= 0 && result < taps && result * dilation == reach ? result : -1;
  }
};

struct BlockFilter {
  std::uint8_t const* data;  // [k_out, r, s, c], 16 bits each
  BlockAxis h, w;
  int k_out, c;
  int taps_h, taps_w;  // of blocks

  static BlockFilter of(void const* data, ConvProblem const& x, WindowShape const& shape) {
    return {static_cast<std::uint8_t const*>(data),
            {x.stride_h, x.pad_h, x.dilation_h, x.r, shape.first_row},
            {x.stride_w, x.pad_w, x.dilation_w, x.s, shape.first_column},
            x.k_out,
            x.c,
            shape.taps_h,
            shape.taps_w};
  }
};

// To shared memory, by 256 threads, as wgmma reads an operand along K: for each tap and row of a block 64 lines, one for
// each filter from `first_filter` on, swizzled. Zeros where a block reaches beyond the caller's taps, and behind the last
// filter.
template <int channels>
CUTLASS_DEVICE void gather_blocks(BlockFilter const& p, std::uint8_t* to, int first_filter, int thread) {
  constexpr int kChunks = channels / 8, kLineBytes = channels * 2;
  constexpr int kSwizzle = kLineBytes == 32 ? 0x10 : 0x30;
  static_assert(64 * kChunks <= 256);
  if (thread >= 64 * kChunks) return;
  int const chunk = thread % kChunks, filter = thread / kChunks;
  int const place_w = chunk * 8 / p.c, channel = chunk * 8 - place_w * p.c;
  bool const is_filter = first_filter + filter < p.k_out;
  int const offset = filter * kLineBytes + chunk * 16;
  uint4* const at = reinterpret_cast<uint4*>(to + (offset ^ (offset >> 3 & kSwizzle)));
  int step = 0;
  for (int i = 0; i < p.taps_h; ++i) {
    for (int j = 0; j < p.taps_w; ++j) {
      int const column = p.w.tap_of(j, place_w);
      for (int place_h = 0; place_h < p.h.stride; ++place_h, ++step) {
        int const row = p.h.tap_of(i, place_h);
        std::int64_t const pixel = (std::int64_t{first_filter + filter} * p.h.taps + row) * p.w.taps + column;
        at[step * (64 * kLineBytes / 16)] = is_filter && row >= 0 && column >= 0
                                                ? *reinterpret_cast<uint4 const*>(p.data + (pixel * p.c + channel) * 2)
                                                : make_uint4(0, 0, 0, 0);
      }
    }
  }
}

}  // namespace cutwheel::conv2d
