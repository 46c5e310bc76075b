// How a direct convolution divides its output into tiles.
#pragma once

#include <algorithm>
#include <array>

#include "core/args/conv.h"

namespace cutwheel::conv2d {

// The halo tile of an output tile lies in shared memory, one line per pixel and `pitch` pixels per row: the output tile's
// columns and the halo. A tap's pixel is then a fixed number of lines from the position it contributes to, so a tap's
// operand is the halo tile read from another line on, and no pixel is loaded twice. Positions in the halo are computed and
// dropped.
struct DirectConvShape {
  static constexpr int kPositions = 240;  // of a tile: wgmma's N
  static constexpr int kLines = 352;      // of a halo tile
  static constexpr int kChannels = 64, kFilters = 64;
  static constexpr int kMaxTaps = 9, kMaxStridedTaps = 16;
  // Space-to-depth: lines of a halo tile; and elements of a filter, channels of a line x taps x rows of a block.
  static constexpr int kSpaceToDepthLines = 704, kSpaceToDepthFilterK = 512;
  // Few channels: those of a pixel, with zeros that are added, and of a block of 2 x 2 pixels.
  static constexpr int kFewChannels = 4, kFewStride = 2, kFewBlock = kFewStride * kFewStride * kFewChannels;
  static constexpr std::int64_t kMaxOutputTiles = 0x7fffffff - 65536;  // leaves room to add a grid

  int images = 0, height = 0, width = 0, filters = 0;   // of the output
  int input_height = 0, input_width = 0, channels = 0;  // of the tensor that is read
  int first_row = 0, first_column = 0;                  // that output pixel (0, 0) reads
  int taps_h = 0, taps_w = 0, dilation_h = 1, dilation_w = 1;
  int residues = 1;
  int block_rows = 1;                                   // of space-to-depth
  int rows = 0, columns = 0, pitch = 0, halo_rows = 0;  // of an output tile; pitch and rows of its halo tile

  int down() const { return ceil_div(height, rows); }
  int across() const { return ceil_div(width, columns); }
  std::int64_t output_tiles() const { return std::int64_t{images} * down() * across(); }
  int filter_blocks() const { return ceil_div(filters, kFilters); }
  int halo_lines() const { return halo_rows * pitch; }  // for one row of the blocks

  // False for problems that direct convolutions do not implement.
  bool plan(Direction direction, ConvProblem const& x) {
    if (direction == Direction::wgrad) return false;
    bool const is_gradient = direction == Direction::dgrad;
    images = x.images;
    height = is_gradient ? x.h : x.p, width = is_gradient ? x.w : x.q, filters = is_gradient ? x.c : x.k_out;
    input_height = is_gradient ? x.p : x.h, input_width = is_gradient ? x.q : x.w, channels = is_gradient ? x.k_out : x.c;
    bool const strided = x.stride_h > 1 || x.stride_w > 1;
    if (!strided) plan_taps(is_gradient, x);
    if (strided && !(is_gradient && plan_residue_classes(x))) return false;
    return channels <= kChannels && taps_h * taps_w <= (strided ? kMaxStridedTaps : kMaxTaps) &&
           choose_output_tile((taps_h - 1) * dilation_h, (taps_w - 1) * dilation_w, kLines);
  }

  // Strided fprop by space-to-depth: a block of stride_h x stride_w pixels is one pixel of a convolution with stride 1. Its
  // K is one row of the block at a time, 16 or 32 channels that are adjacent in memory.
  bool plan_space_to_depth(ConvProblem const& x) {
    images = x.images, height = x.p, width = x.q, filters = x.k_out;
    input_height = x.h / x.stride_h, input_width = x.w / x.stride_w, block_rows = x.stride_h;
    std::int64_t const of_a_row = std::int64_t{x.stride_w} * x.c;
    if (of_a_row != 16 && of_a_row != 32) return false;
    channels = static_cast<int>(of_a_row);
    bool const is_whole = x.h % x.stride_h == 0 && x.w % x.stride_w == 0;
    return is_whole && plan_blocks(x);
  }

  // The same for images of up to four channels behind a stride of 2, whose pixels a kernel gathers: K is a whole block,
  // each pixel with four channels. Blocks at the edges may lack pixels.
  bool plan_few_channels(ConvProblem const& x) {
    if (x.c > kFewChannels || x.stride_h != kFewStride || x.stride_w != kFewStride) return false;
    images = x.images, height = x.p, width = x.q, filters = x.k_out, channels = kFewBlock, block_rows = 1;
    input_height = ceil_div(x.h, kFewStride), input_width = ceil_div(x.w, kFewStride);
    return plan_blocks(x);
  }

 private:
  static int floor_div(int n, int d) { return n >= 0 ? n / d : -ceil_div(-n, d); }

  // Taps of blocks of stride_h x stride_w pixels. Tap j of output row i reads row i stride - pad + j dilation, in block
  // i + (j dilation - pad) / stride, rounded down.
  bool plan_blocks(ConvProblem const& x) {
    first_row = floor_div(-x.pad_h, x.stride_h), first_column = floor_div(-x.pad_w, x.stride_w);
    taps_h = floor_div((x.r - 1) * x.dilation_h - x.pad_h, x.stride_h) - first_row + 1;
    taps_w = floor_div((x.s - 1) * x.dilation_w - x.pad_w, x.stride_w) - first_column + 1;
    return std::int64_t{taps_h} * taps_w * block_rows * channels <= kSpaceToDepthFilterK &&
           choose_output_tile(taps_h - 1, taps_w - 1, kSpaceToDepthLines / block_rows);
  }

  void plan_taps(bool is_gradient, ConvProblem const& x) {
    taps_h = x.r, taps_w = x.s, dilation_h = x.dilation_h, dilation_w = x.dilation_w;
    // dgrad is a convolution with the flipped filter and the complementary padding.
    first_row = is_gradient ? x.pad_h - (x.r - 1) * x.dilation_h : -x.pad_h;
    first_column = is_gradient ? x.pad_w - (x.s - 1) * x.dilation_w : -x.pad_w;
  }

  // dgrad behind a stride: pixels with the same remainders of row and column, a residue class, are a convolution with
  // stride 1 by some of the taps. All classes together are one convolution whose filters are the channels of every class,
  // so one output pixel is stride_h x stride_w pixels of the gradient.
  bool plan_residue_classes(ConvProblem const& x) {
    if (x.h % x.stride_h != 0 || x.w % x.stride_w != 0) return false;
    height = x.h / x.stride_h, width = x.w / x.stride_w;
    // Both strides are at most the extents, whose product is an int.
    std::int64_t const of_all = std::int64_t{x.stride_h} * x.stride_w * x.c;
    if (of_all > kFilters) return false;
    residues = x.stride_h * x.stride_w, filters = static_cast<int>(of_all);
    // Tap j of pixel i in class p reads pixel i + (p + pad - j dilation) / stride, if that is a whole number.
    auto const offset = [](int pad, int stride, int reach) { return floor_div(stride - 1 + pad - reach, stride); };
    first_row = offset(x.pad_h, x.stride_h, (x.r - 1) * x.dilation_h);
    first_column = offset(x.pad_w, x.stride_w, (x.s - 1) * x.dilation_w);
    taps_h = offset(x.pad_h, x.stride_h, 0) - first_row + 1;
    taps_w = offset(x.pad_w, x.stride_w, 0) - first_column + 1;
    return true;
  }

  // Chooses the output tile that needs the fewest. A row is at least as long as one step of the epilogue.
  bool choose_output_tile(int halo_h, int halo_w, int lines) {
    constexpr int kMinPitch = 16, kMaxBox = 256;
    std::int64_t fewest = 0;
    for (int r = 1; r <= std::min(height, kPositions / kMinPitch + 1); ++r) {
      // Positions are r - 1 whole rows and the columns of one; one line is for dropped positions.
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
      halo_rows = r + halo_h;
    }
    return fewest > 0;
  }
};

}  // namespace cutwheel::conv2d
