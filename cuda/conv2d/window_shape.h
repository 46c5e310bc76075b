// How a convolution by windows (sm90_conv_window.cuh) cuts an output into rectangles.
#pragma once

#include <algorithm>
#include <array>

#include "conv2d/params.h"

namespace cutwheel::conv2d {

// A patch of the input lies in shared memory, a line for each pixel. In rows of `pitch` pixels, those of the
// output's rectangle and what taps reach beyond it, the pixel of a position and a tap is always as many lines away: so the
// operand of a tap is a window of the patch, and no pixel is loaded twice. Positions in a row beyond the rectangle's
// columns are computed, and dropped.
struct WindowShape {
  static constexpr int kPositions = 240;  // of a tile: columns of wgmma
  static constexpr int kLines = 352;      // of a patch
  static constexpr int kChannels = 64, kFilters = 64;
  static constexpr int kMaxTaps = 9, kMaxPhaseTaps = 16;
  // Of blocks: lines of a patch, and elements of a filter: channels of a line times taps and rows of blocks.
  static constexpr int kBlockLines = 704, kBlockFilterK = 512;
  static constexpr std::int64_t kMaxRectangles = 0x7fffffff - 65536;  // so that a grid's steps can be counted on

  int images = 0, height = 0, width = 0, filters = 0;   // of the output
  int input_height = 0, input_width = 0, channels = 0;  // of what takes the place of the input
  int first_row = 0, first_column = 0;                  // of the input that output pixel (0, 0) reads
  int taps_h = 0, taps_w = 0, dilation_h = 1, dilation_w = 1;
  int phases = 1;
  int slabs = 1;                                         // of lines, in a patch by blocks
  int rows = 0, columns = 0, pitch = 0, patch_rows = 0;  // of a rectangle

  int down() const { return ceil_div(height, rows); }
  int across() const { return ceil_div(width, columns); }
  std::int64_t rectangles() const { return std::int64_t{images} * down() * across(); }
  int filter_blocks() const { return ceil_div(filters, kFilters); }
  int patch_lines() const { return patch_rows * pitch; }  // of a slab

  // False for problems that a kernel by windows does not take.
  bool plan(Direction direction, ConvProblem const& x) {
    if (direction == Direction::wgrad) return false;
    bool const is_gradient = direction == Direction::dgrad;
    images = x.images;
    height = is_gradient ? x.h : x.p, width = is_gradient ? x.w : x.q, filters = is_gradient ? x.c : x.k_out;
    input_height = is_gradient ? x.p : x.h, input_width = is_gradient ? x.q : x.w, channels = is_gradient ? x.k_out : x.c;
    bool const strided = x.stride_h > 1 || x.stride_w > 1;
    if (!strided) plan_taps(is_gradient, x);
    if (strided && !(is_gradient && plan_phases(x))) return false;
    return channels <= kChannels && taps_h * taps_w <= (strided ? kMaxPhaseTaps : kMaxTaps) &&
           choose_rectangle((taps_h - 1) * dilation_h, (taps_w - 1) * dilation_w, kLines);
  }

  // Forward behind a stride: blocks of stride_h x stride_w pixels are one pixel of a convolution with stride 1. Its
  // channels are those of a row of a block, 16 or 32 of them in memory, and such rows lie in slabs of their own.
  bool plan_blocks(ConvProblem const& x) {
    images = x.images, height = x.p, width = x.q, filters = x.k_out;
    input_height = x.h / x.stride_h, input_width = x.w / x.stride_w, slabs = x.stride_h;
    std::int64_t const of_a_row = std::int64_t{x.stride_w} * x.c;
    if (of_a_row != 16 && of_a_row != 32) return false;
    channels = static_cast<int>(of_a_row);
    bool const is_whole = x.h % x.stride_h == 0 && x.w % x.stride_w == 0;
    if (!is_whole) return false;
    // Output row i reads for tap j row i stride - pad + j dilation: of block i + (j dilation - pad) / stride, rounded down.
    first_row = floor_div(-x.pad_h, x.stride_h), first_column = floor_div(-x.pad_w, x.stride_w);
    taps_h = floor_div((x.r - 1) * x.dilation_h - x.pad_h, x.stride_h) - first_row + 1;
    taps_w = floor_div((x.s - 1) * x.dilation_w - x.pad_w, x.stride_w) - first_column + 1;
    return std::int64_t{taps_h} * taps_w * slabs * channels <= kBlockFilterK &&
           choose_rectangle(taps_h - 1, taps_w - 1, kBlockLines / slabs);
  }

 private:
  static int floor_div(int n, int d) { return n >= 0 ? n / d : -ceil_div(-n, d); }

  void plan_taps(bool is_gradient, ConvProblem const& x) {
    taps_h = x.r, taps_w = x.s, dilation_h = x.dilation_h, dilation_w = x.dilation_w;
    // The gradient is a convolution with the flipped filter, and the padding that complements the other.
    first_row = is_gradient ? x.pad_h - (x.r - 1) * x.dilation_h : -x.pad_h;
    first_column = is_gradient ? x.pad_w - (x.s - 1) * x.dilation_w : -x.pad_w;
  }

  // Behind a stride, pixels with the same remainders of row and column, a phase, are a convolution with stride 1, by some
  // of the taps. All of them are one whose filters are the channels of all phases: an output pixel is stride_h x stride_w
  // pixels of the gradient.
  bool plan_phases(ConvProblem const& x) {
    if (x.h % x.stride_h != 0 || x.w % x.stride_w != 0) return false;
    height = x.h / x.stride_h, width = x.w / x.stride_w;
    // Both strides are at most the extents, whose product is an int.
    std::int64_t const of_all = std::int64_t{x.stride_h} * x.stride_w * x.c;
    if (of_all > kFilters) return false;
    phases = x.stride_h * x.stride_w, filters = static_cast<int>(of_all);
    // Pixel i of phase p reads for tap j pixel i + (p + pad - j dilation) / stride, of the p for which that is whole.
    auto const offset = [](int pad, int stride, int reach) { return floor_div(stride - 1 + pad - reach, stride); };
    first_row = offset(x.pad_h, x.stride_h, (x.r - 1) * x.dilation_h);
    first_column = offset(x.pad_w, x.stride_w, (x.s - 1) * x.dilation_w);
    taps_h = offset(x.pad_h, x.stride_h, 0) - first_row + 1;
    taps_w = offset(x.pad_w, x.stride_w, 0) - first_column + 1;
    return true;
  }

  // The one that takes the fewest tiles. Rows are not shorter than the positions that one step of the epilogue goes on.
  bool choose_rectangle(int halo_h, int halo_w, int lines) {
    constexpr int kMinPitch = 16, kMaxBox = 256;
    std::int64_t fewest = 0;
    for (int r = 1; r <= std::min(height, kPositions / kMinPitch + 1); ++r) {
      // In positions there are r - 1 whole rows and the columns of one; one line is for what is dropped.
      int const most = std::min(
          {(kPositions - (r - 1) * halo_w) / r, lines / (r + halo_h) - halo_w, (lines - 1) / r, kMaxBox - halo_w, width});
      if (most < 1 || most + halo_w < kMinPitch) continue;
      int const cut = ceil_div(width, most);
      std::int64_t const count = std::int64_t{cut} * ceil_div(height, r);
      if (fewest && count >= fewest) continue;
      fewest = count;
      rows = r;
      columns = ceil_div(width, cut);
      pitch = std::max(columns + halo_w, kMinPitch);
      patch_rows = r + halo_h;
    }
    return fewest > 0;
  }
};

}  // namespace cutwheel::conv2d
