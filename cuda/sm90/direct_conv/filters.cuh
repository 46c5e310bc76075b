// Rearranges filters in shared memory where a direct convolution's taps are not the caller's: strided dgrad and
// space-to-depth, see DirectConvShape.
#pragma once

#include <cutlass/cutlass.h>

#include "sm90/direct_conv/shape.h"

namespace cutwheel::conv2d {

struct WindowFilterAxis {
  int stride, pad, dilation, taps;  // of the caller's convolution
  int first;                        // where the first tap reads, in strides

  // Where tap `tap` reads, in pixels of the strided side.
  CUTLASS_DEVICE int pixel_of(int tap) const { return (first + tap) * stride; }

  // The caller's tap at this distance in pixels from the unpadded corner, or -1.
  CUTLASS_DEVICE int tap_of(int distance) const {
    int const reach = distance + pad, result = reach / dilation;
    return reach >= 0 && result < taps && result * dilation == reach ? result : -1;
  }
};

struct DirectConvFilter {
  std::uint8_t const* data;  // [k_out, r, s, c], 16 bits each
  WindowFilterAxis h, w;
  int k_out, c;
  int taps_h, taps_w;

  static DirectConvFilter of(void const* data, ConvProblem const& x, DirectConvShape const& shape) {
    return {static_cast<std::uint8_t const*>(data),
            {x.stride_h, x.pad_h, x.dilation_h, x.r, shape.first_row},
            {x.stride_w, x.pad_w, x.dilation_w, x.s, shape.first_column},
            x.k_out,
            x.c,
            shape.taps_h,
            shape.taps_w};
  }
};

// Writes filters of strided dgrad to shared memory as wgmma reads an M-major operand, by 256 threads: for each tap 64
// swizzled lines of 128 bytes, one for each channel of the output's gradient. A line holds one residue class after the
// other. Taps that a residue class lacks and channels past the last are zeros.
CUTLASS_DEVICE void gather_strided_dgrad(DirectConvFilter const& p, std::uint8_t* to, int thread) {
  constexpr int kThreads = 256, kChunks = 8, kLineBytes = 128;
  int const chunk = thread % kChunks, first_line = thread / kChunks;
  int const phase = chunk * 8 / p.c, channel = chunk * 8 - phase * p.c;
  int const phase_h = phase / p.w.stride, phase_w = phase - phase_h * p.w.stride;
  for (int i = 0; i < p.taps_h; ++i) {
    int const row = phase_h < p.h.stride ? p.h.tap_of(phase_h - p.h.pixel_of(i)) : -1;
    for (int j = 0; j < p.taps_w; ++j) {
      int const column = p.w.tap_of(phase_w - p.w.pixel_of(j));
      CUTLASS_PRAGMA_UNROLL
      for (int half = 0; half < 2; ++half) {
        int const line = first_line + half * (kThreads / kChunks);
        bool const is_there = row >= 0 && column >= 0 && line < p.k_out;
        std::int64_t const pixel = (std::int64_t{line} * p.h.taps + row) * p.w.taps + column;
        uint4 const value =
            is_there ? *reinterpret_cast<uint4 const*>(p.data + (pixel * p.c + channel) * 2) : make_uint4(0, 0, 0, 0);
        *reinterpret_cast<uint4*>(to + line * kLineBytes + (chunk ^ line % 8) * 16) = value;
      }
      to += DirectConvShape::kChannels * kLineBytes;
    }
  }
}

// Writes filters of space-to-depth to shared memory as wgmma reads a K-major operand, by 256 threads: for each tap and row
// of a block 64 swizzled lines, one for each filter from `first_filter` on. Elements outside the caller's taps and filters
// past the last are zeros.
template <int channels>
CUTLASS_DEVICE void gather_space_to_depth(DirectConvFilter const& p, std::uint8_t* to, int first_filter, int thread) {
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
      int const column = p.w.tap_of(p.w.pixel_of(j) + place_w);
      for (int place_h = 0; place_h < p.h.stride; ++place_h, ++step) {
        int const row = p.h.tap_of(p.h.pixel_of(i) + place_h);
        std::int64_t const pixel = (std::int64_t{first_filter + filter} * p.h.taps + row) * p.w.taps + column;
        at[step * (64 * kLineBytes / 16)] = is_filter && row >= 0 && column >= 0
                                                ? *reinterpret_cast<uint4 const*>(p.data + (pixel * p.c + channel) * 2)
                                                : make_uint4(0, 0, 0, 0);
      }
    }
  }
}

}  // namespace cutwheel::conv2d
