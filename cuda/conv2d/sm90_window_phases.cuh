// The filters of a convolution by windows whose filters are the channels of all phases of a stride: see WindowShape.
#pragma once

#include <cutlass/cutlass.h>

#include "conv2d/window_shape.h"

namespace cutwheel::conv2d {

struct PhaseAxis {
  int stride, pad, dilation, taps;  // of the caller's convolution
  int first;                        // offset of the first of all phases' taps

  // The caller's tap that is number `tap` of a phase, or -1.
  CUTLASS_DEVICE int tap_of(int phase, int tap) const {
    int const reach = phase + pad - (first + tap) * stride;
    int const result = reach / dilation;
    return reach >= 0 && result < taps && result * dilation == reach ? result : -1;
  }
};

struct PhaseFilter {
  std::uint8_t const* data;  // [k_out, r, s, c], 16 bits each
  PhaseAxis h, w;
  int k_out, c;
  int taps_h, taps_w;  // of all phases

  static PhaseFilter of(void const* data, ConvProblem const& x, WindowShape const& shape) {
    return {static_cast<std::uint8_t const*>(data),
            {x.stride_h, x.pad_h, x.dilation_h, x.r, shape.first_row},
            {x.stride_w, x.pad_w, x.dilation_w, x.s, shape.first_column},
            x.k_out,
            x.c,
            shape.taps_h,
            shape.taps_w};
  }
};

// To shared memory, by 256 threads, as wgmma reads an operand that does not lie along K: for each tap 64 lines of 128
// bytes, one for each channel of the output's gradient, swizzled. Phases follow each other in a line. Zeros where a phase
// lacks a tap and where there are no more channels.
CUTLASS_DEVICE void gather_phases(PhaseFilter const& p, std::uint8_t* to, int thread) {
  constexpr int kThreads = 256, kChunks = 8, kLineBytes = 128;
  int const chunk = thread % kChunks, first_line = thread / kChunks;
  int const phase = chunk * 8 / p.c, channel = chunk * 8 - phase * p.c;
  int const phase_h = phase / p.w.stride, phase_w = phase - phase_h * p.w.stride;
  for (int i = 0; i < p.taps_h; ++i) {
    int const row = phase_h < p.h.stride ? p.h.tap_of(phase_h, i) : -1;
    for (int j = 0; j < p.taps_w; ++j) {
      int const column = p.w.tap_of(phase_w, j);
      CUTLASS_PRAGMA_UNROLL
      for (int half = 0; half < 2; ++half) {
        int const line = first_line + half * (kThreads / kChunks);
        bool const is_there = row >= 0 && column >= 0 && line < p.k_out;
        std::int64_t const pixel = (std::int64_t{line} * p.h.taps + row) * p.w.taps + column;
        uint4 const value =
            is_there ? *reinterpret_cast<uint4 const*>(p.data + (pixel * p.c + channel) * 2) : make_uint4(0, 0, 0, 0);
        *reinterpret_cast<uint4*>(to + line * kLineBytes + (chunk ^ line % 8) * 16) = value;
      }
      to += WindowShape::kChannels * kLineBytes;
    }
  }
}

}  // namespace cutwheel::conv2d
