// Which columns a pixel is the sum of.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>

namespace cutwheel::conv2d {

// Taps and positions of a pixel along H or W. Padded pixels with one remainder of the stride, a residue class, have every
// `step`-th tap from the first one of their class on, each `positions_step` positions before the last one.
struct Col2imAxis {
  static constexpr int kMaxStride = 32;

  int stride, pad, dilation, taps, positions;
  int step, positions_step;
  std::int8_t first[kMaxStride];  // tap of a residue class; -1: none

  Col2imAxis(int stride_, int pad_, int dilation_, int taps_, int positions_)
      : stride(stride_), pad(pad_), dilation(dilation_), taps(taps_), positions(positions_) {
    int const common = std::gcd(stride, dilation);
    step = stride / common, positions_step = dilation / common;
    std::fill_n(first, kMaxStride, std::int8_t{-1});
    for (int tap = 0; tap < std::min(step, taps); ++tap) {
      first[std::int64_t{tap} * dilation % stride] = static_cast<std::int8_t>(tap);
    }
  }
};

}  // namespace cutwheel::conv2d
