// Indices of implicit GEMMs as digits: a row of the GEMM is an image and a pixel of it, an element of K a tap and a
// channel. Each thread divides once; from tile to tile it adds digits with carries.
#pragma once

#include <cutlass/fast_math.h>

#include "core/types.h"

namespace cutwheel::conv2d {

struct Sm80Digits {
  int low, middle, high;
};

// The high digit has no end: whether an index is in range is whether that digit is.
struct Sm80Counter {
  cutlass::FastDivmod low, middle;
  Sm80Digits step = {};

  Sm80Counter() = default;
  // Radices that are 0, of problems without elements, are never counted with.
  Sm80Counter(int middle_radix, int low_radix, int step_)
      : low(low_radix > 0 ? low_radix : 1), middle(middle_radix > 0 ? middle_radix : 1), step(at(step_)) {}

  CUTLASS_HOST_DEVICE Sm80Digits at(int index) const {
    Sm80Digits digits;
    int rest;
    low(rest, digits.low, index);
    middle(digits.high, digits.middle, rest);
    return digits;
  }

  CUTLASS_DEVICE void add(Sm80Digits& digits, Sm80Digits const& addend) const {
    digits.low += addend.low;
    bool carry = digits.low >= low.divisor;
    digits.low -= carry ? low.divisor : 0;
    digits.middle += addend.middle + carry;
    carry = digits.middle >= middle.divisor;
    digits.middle -= carry ? middle.divisor : 0;
    digits.high += addend.high + carry;
  }
  CUTLASS_DEVICE void advance(Sm80Digits& digits) const { add(digits, step); }
};

// Order of tiles of K over taps and channels. Where a tile is a part of one tap's channels, all taps of these channels come
// one after the other, because neighbouring taps read the same pixels, which are in L1 then. Otherwise K counts through all
// channels of all taps, so that tiles are full for any number of channels.
struct Sm80Taps {
  Sm80Counter counter;
  int end = 0;  // of the high digit
  bool whole = false;
  Sm80Digits inside = {};  // from one of a thread's vectors in a tile to the next, for operands across K

  Sm80Taps() = default;
  Sm80Taps(int rows, int columns, int channels, int tile_k, int delta)
      : counter(whole_tiles(channels, tile_k) ? Sm80Counter(rows, columns, 1) : Sm80Counter(columns, channels, tile_k)),
        end(whole_tiles(channels, tile_k) ? channels / tile_k : rows),
        whole(whole_tiles(channels, tile_k)),
        inside(counter.at(whole ? 0 : delta)) {}

  // Digits of the vector at this element of the first tile. In tiles of one tap it is `constant` channels after channel().
  CUTLASS_DEVICE Sm80Digits first(int element) const { return counter.at(whole ? 0 : element); }
  CUTLASS_DEVICE int constant(int element) const { return whole ? element : 0; }
  CUTLASS_DEVICE bool valid(Sm80Digits const& at) const { return at.high < end; }
  CUTLASS_DEVICE int row(Sm80Digits const& at) const { return whole ? at.middle : at.high; }
  CUTLASS_DEVICE int column(Sm80Digits const& at) const { return whole ? at.low : at.middle; }
  template <int kTileK>
  CUTLASS_DEVICE int channel(Sm80Digits const& at) const {
    return whole ? at.high * kTileK : at.low;
  }

 private:
  static bool whole_tiles(int channels, int tile_k) { return channels % tile_k == 0; }
};

// One dimension of a strided dgrad: rows with the same remainder by the stride form a residue class, to which only every
// tap_step-th tap contributes. So a residue class is a convolution of its own, of stride 1.
struct Sm80PhaseAxis {
  int extent = 0;  // of the input
  int stride = 1, dilation = 1, pad = 0;
  int taps = 0;
  int tap_step = 1;    // from one tap of a residue class to the next
  int place_step = 1;  // between the places of the gradient that they lead to

  Sm80PhaseAxis() = default;
  Sm80PhaseAxis(int extent, int stride, int dilation, int pad, int taps)
      : extent(extent), stride(stride), dilation(dilation), pad(pad), taps(taps) {
    int divisor = stride, rest = dilation;
    while (rest != 0) {
      int const next = divisor % rest;
      divisor = rest;
      rest = next;
    }
    tap_step = stride / divisor;
    place_step = dilation / divisor;
  }

  int phases() const { return stride < extent ? stride : extent; }
  // Residue classes differ by at most one row and one tap: variant 1 has one less, if it exists.
  int rows(int variant) const { return variant == 0 ? ceil_div(extent, stride) : extent / stride; }
  int taps_of(int variant) const { return variant == 0 ? ceil_div(taps, tap_step) : taps / tap_step; }
};

struct Sm80Phase {
  int rows, row_variant;
  int first_tap, taps, tap_variant;
  int place;  // in the gradient, of the first row and the first tap

  CUTLASS_DEVICE Sm80Phase(Sm80PhaseAxis const& d, int index) {
    rows = (d.extent - index + d.stride - 1) / d.stride;
    row_variant = rows * d.stride < d.extent;
    int const shifted = index + d.pad, back = d.dilation % d.stride;
    int rest = shifted % d.stride;
    for (first_tap = 0; rest != 0 && first_tap < d.tap_step; ++first_tap) {
      rest -= back;
      rest += rest < 0 ? d.stride : 0;
    }
    bool const any = rest == 0 && first_tap < d.taps;
    taps = any ? (d.taps - first_tap + d.tap_step - 1) / d.tap_step : 0;
    tap_variant = taps * d.tap_step < d.taps;
    place = any ? (shifted - first_tap * d.dilation) / d.stride : 0;
  }
};

}  // namespace cutwheel::conv2d
