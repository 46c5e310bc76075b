// Arguments of convolution kernels: an implicit GEMM D [M, N] = A [M, K] B [K, N], and where its elements lie.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "core/args/gemm.h"

namespace cutwheel::conv2d {

// The caller's problem, the same for all directions: input [images, h, w, c], filter [k_out, r, s, c], output [images, p,
// q, k_out]. Output row i reads the input's rows i * stride_h - pad_h + j * dilation_h for j < r; the padding behind the
// last row follows from p. Columns likewise. Of volumes the input is [images, d, h, w, c], the filter [k_out, t, r, s, c]
// and the output [images, o, p, q, k_out]; images and their filters have a depth of one.
struct ConvProblem {
  int images = 0, h = 0, w = 0, c = 0;
  int k_out = 0, r = 0, s = 0;
  int p = 0, q = 0;
  int pad_h = 0, pad_w = 0;  // above and left
  int stride_h = 1, stride_w = 1, dilation_h = 1, dilation_w = 1;
  int d = 1, t = 1, o = 1;
  int pad_d = 0;  // in front
  int stride_d = 1, dilation_d = 1;

  // Whether the depth is more than a batch of one slice each, which only some kernels read.
  bool is_volume() const { return d != 1 || t != 1 || o != 1 || pad_d != 0; }
  int taps() const { return t * r * s; }
  int pixels() const { return images * d * h * w; }
  int positions() const { return images * o * p * q; }

  // stride_d * stride_h * stride_w, or the largest int: only the cost model asks, and either is more than there are pixels.
  int step() const {
    constexpr std::int64_t kMost = std::numeric_limits<int>::max();
    return static_cast<int>(std::min(std::min(std::int64_t{stride_h} * stride_w, kMost) * stride_d, kMost));
  }
};

// Limits of kernels whose taps of a row share pixels: the fewest taps in a row, and the most pixels between its first and
// its last tap, which a tile loads beyond its own.
constexpr int kFewestRowTaps = 3, kMostTapLines = 8;

// Arguments of kernels with a Direction, which receive them as GemmArgs const&. The implicit GEMM:
//            M                 N           K                 A                       B
//   fprop    images * p * q    k_out       r * s * c         activation              filter
//   dgrad    images * h * w    c           r * s * k_out     gradient of the output  filter
//   wgrad    k_out             r * s * c   images * p * q    gradient of the output  activation
//
// Of volumes t, d and o stand beside r, h and p.
//
// The last dimension of each tensor is contiguous, D as a whole, and the taps of a filter. `leading` of A and B is the
// extent of that dimension: c or k_out. Batch is 1; alpha, beta and c are not used. `splits` of wgrad: float32 sums over
// that many parts of K, [splits, M, N] in the workspace.
//
// `groups`: the channels and filters of the problem are those of all groups, and the filter is [k_out, r, s, c / groups].
// Then K of fprop and N of wgrad count the channels of a group, K of dgrad its filters.
struct ConvArgs : gemm::GemmArgs {
  ConvProblem conv;
  int groups = 1;
  std::int64_t x_strides[3] = {};                       // of images, h and w of the activation, in elements
  std::int64_t y_strides[3] = {};                       // of images, p and q of the output's gradient, in elements
  std::int64_t x_depth_stride = 0, y_depth_stride = 0;  // of slices of volumes, likewise
  std::int64_t filter_pitch = 0;                        // from one filter to the next, likewise
  // For kernels that gather elements, which take any: of the activation's channels; of filters, their rows, taps, channels.
  std::int64_t x_channel_stride = 1, filter_strides[4] = {};
};

}  // namespace cutwheel::conv2d
