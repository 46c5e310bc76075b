// Depthwise convolutions of any stride, dilation, padding and number of channels, straight from global memory: for what the
// other kernels do not take. A thread has four channels of one output.
#pragma once

#include <cstdint>

#include "depthwise/filter_grad.cuh"
#include "depthwise/gather.cuh"

namespace cutwheel::conv2d::depthwise {

constexpr int kAnyVector = 4;

// Four channels, or those that there are. `whole`: all fours of channels are there and lie on as many elements.
template <class E>
DEPTHWISE_DEVICE void load_channels(E const* from, int left, bool whole, float (&to)[kAnyVector]) {
  if (whole) {
    load_vector<E, kAnyVector>(from, to);
  } else {
#pragma unroll
    for (int v = 0; v < kAnyVector; ++v) to[v] = v < left ? to_float(from[v]) : 0.f;
  }
}

// tile.vectors: fours of channels; tile.channels: not 0 if they are whole.
template <class E, class Epilogues>
DEPTHWISE_DEVICE void gather_any(GatherParams const& p) {
  GatherShape const& s = p.shape;
  std::int64_t index = static_cast<std::int64_t>(block_index()) * p.tile.threads + thread_index();
  int const channel = static_cast<int>(index % p.tile.vectors) * kAnyVector;
  index /= p.tile.vectors;
  std::int64_t const place = index;
  int const w = static_cast<int>(index % s.out_w);
  index /= s.out_w;
  int const h = static_cast<int>(index % s.out_h);
  std::int64_t const image = index / s.out_h;
  if (image >= s.images) return;
  bool const whole = p.tile.channels != 0;
  int const left = s.channels - channel;
  std::int64_t const all = static_cast<std::int64_t>(s.taps_h) * s.taps_w;
  E const* const x = static_cast<E const*>(p.x) + image * p.x_image + channel;
  E const* const filter = static_cast<E const*>(p.filter) + channel * all;
  // The row (column) of the source that a tap has, or -1. 64 bits: padding and taps may be more than an int has room for.
  auto const source = [&](int at, int tap, int pad, int stride, int dilation, int extent) {
    std::int64_t const step = static_cast<std::int64_t>(tap) * dilation;
    std::int64_t found;
    if (s.transposed) {
      found = static_cast<std::int64_t>(at) + pad - step;
      if (found < 0 || found % stride != 0) return -1;
      found /= stride;
    } else {
      found = static_cast<std::int64_t>(at) * stride - pad + step;
    }
    return found >= 0 && found < extent ? static_cast<int>(found) : -1;
  };
  float sums[kAnyVector] = {0, 0, 0, 0};
#pragma unroll 1
  for (int r = 0; r < s.taps_h; ++r) {
    int const row = source(h, r, s.pad_h, s.stride_h, s.dilation_h, s.in_h);
    if (row < 0) continue;
#pragma unroll 1
    for (int c = 0; c < s.taps_w; ++c) {
      int const column = source(w, c, s.pad_w, s.stride_w, s.dilation_w, s.in_w);
      if (column < 0) continue;
      float pixel[kAnyVector];
      load_channels<E>(x + row * p.x_row + column * p.x_column, left, whole, pixel);
      std::int64_t const tap = static_cast<std::int64_t>(r) * s.taps_w + c, at = s.flipped ? all - 1 - tap : tap;
#pragma unroll
      for (int v = 0; v < kAnyVector; ++v) {
        if (v < left) sums[v] += pixel[v] * to_float(filter[v * all + at]);
      }
    }
  }
  float bias[kAnyVector] = {0, 0, 0, 0}, addend[kAnyVector] = {0, 0, 0, 0}, result[kAnyVector];
  if (p.bias) load_channels<E>(static_cast<E const*>(p.bias) + channel, left, whole, bias);
  std::int64_t const to = place * s.channels + channel;
  if (p.residual) load_channels<E>(static_cast<E const*>(p.residual) + to, left, whole, addend);
  Epilogues::template apply<kAnyVector>(p.epilogue, p.scalars, sums, bias, addend, result);
  E* const y = static_cast<E*>(p.y) + to;
  if (whole) {
    store_vector<E, kAnyVector>(y, result);
  } else {
#pragma unroll
    for (int v = 0; v < kAnyVector; ++v) {
      if (v < left) y[v] = from_float<E>(result[v]);
    }
  }
}

// A thread has one tap of four channels, over a part of the rows of all images. tile.vectors, tile.channels: as above.
template <class E>
DEPTHWISE_DEVICE void sum_places_any(FilterGradParams const& p) {
  FilterGradShape const& s = p.shape;
  std::int64_t index = static_cast<std::int64_t>(block_index()) * p.tile.threads + thread_index();
  int const channel = static_cast<int>(index % p.tile.vectors) * kAnyVector;
  index /= p.tile.vectors;
  std::int64_t const all = static_cast<std::int64_t>(s.taps_h) * s.taps_w, tap = index % all, part = index / all;
  if (part >= p.tile.parts) return;
  bool const whole = p.tile.channels != 0;
  int const left = s.channels - channel, r = static_cast<int>(tap / s.taps_w), c = static_cast<int>(tap % s.taps_w);
  std::int64_t const rows = static_cast<std::int64_t>(s.images) * s.out_h;
  std::int64_t const first = rows * part / p.tile.parts, end = rows * (part + 1) / p.tile.parts;
  float sums[kAnyVector] = {0, 0, 0, 0};
#pragma unroll 1
  for (std::int64_t at = first; at < end; ++at) {
    std::int64_t const image = at / s.out_h, row = at - image * s.out_h;
    std::int64_t const h = row * s.stride_h - s.pad_h + static_cast<std::int64_t>(r) * s.dilation_h;
    if (h < 0 || h >= s.in_h) continue;
    E const* const x = static_cast<E const*>(p.x) + image * p.x_image + h * p.x_row + channel;
    E const* const dy = static_cast<E const*>(p.dy) + image * p.dy_image + row * p.dy_row + channel;
    std::int64_t w = static_cast<std::int64_t>(c) * s.dilation_w - s.pad_w;
#pragma unroll 4
    for (int q = 0; q < s.out_w; ++q, w += s.stride_w) {
      if (w < 0 || w >= s.in_w) continue;
      float pixel[kAnyVector], grad[kAnyVector];
      load_channels<E>(x + w * p.x_column, left, whole, pixel);
      load_channels<E>(dy + q * p.dy_column, left, whole, grad);
#pragma unroll
      for (int v = 0; v < kAnyVector; ++v) sums[v] += pixel[v] * grad[v];
    }
  }
#pragma unroll
  for (int v = 0; v < kAnyVector; ++v) {
    if (v >= left) break;
    if (p.partial) {
      p.partial[(part * all + tap) * s.channels + channel + v] = sums[v];
    } else {
      static_cast<E*>(p.result)[(channel + v) * all + tap] = from_float<E>(sums[v]);
    }
  }
}

}  // namespace cutwheel::conv2d::depthwise
