// The gradient of a depthwise filter: for each channel and tap the sum over all places of the output's gradient times the
// pixel that the tap has there. On tensor cores: for each tap the product of channels x pixels of the input and pixels x
// channels of the output's gradient, whose diagonal holds the sums of the channels. The rest of it is not read.
//
// A threadblock goes through tiles of a part of the images, of a slice of the channels: the output's gradient and the halo
// tile of the input, in two stages of shared memory. A warp has eight channels and all taps, of every t.groups-th 8 x 8
// places of a tile. The warps' sums are added in shared memory, and those of the parts by a second launch, both in a fixed
// order.
#pragma once

#include <cstdint>

#include "depthwise/mma.cuh"
#include "depthwise/plan.h"

namespace cutwheel::conv2d::depthwise {

struct FilterGradParams {
  void const* x;
  void const* dy;
  void* result;    // [channels, taps_h, taps_w]
  float* partial;  // [parts, taps_h, taps_w, channels]; null: one part, whose sums are the result
  std::int64_t x_image, x_row, x_column, dy_image, dy_row, dy_column;  // strides, in elements
  FilterGradShape shape;
  FilterGradTile tile;
  int stage;  // 0: sums of parts. 1: the result
};

#ifdef __CUDACC__
template <class E, int taps_, int stride_>
struct FilterGrad {
  static constexpr int kTaps = taps_, kStride = stride_, kSide = 8, kPairs = kSide / 2, kPiece = 8;
  static constexpr int kColumnPairs = (kTaps + 1) / 2;

  struct Place {
    int slice, part, first_tap_row, first_tap;
    int vector, group;  // of the warp
  };

  // Which pixels of a tile a thread copies: the first, and how far it is from one to the next. The same for all tiles, so
  // that none of them takes a division.
  struct Route {
    int offset, row, column, row_step, column_step;
  };
  struct Copies {
    int lanes, channel;  // threads that copy a vector of channels; that of this thread
    bool works;
    Route x, y;
  };
  // The next tile.
  struct TileIndex {
    int across, down, image;
  };

  DEPTHWISE_DEVICE static Route route_of(FilterGradTile const& t, unsigned piece, unsigned lane, unsigned lanes,
                                         unsigned columns) {
    Route route;
    route.offset = static_cast<int>(lane * t.pitch + piece * kPiece);
    route.row = static_cast<int>(lane / columns), route.column = static_cast<int>(lane % columns);
    route.row_step = static_cast<int>(lanes / columns), route.column_step = static_cast<int>(lanes % columns);
    return route;
  }

  DEPTHWISE_DEVICE static Copies copies_of(FilterGradParams const& p, Place const& at) {
    FilterGradTile const& t = p.tile;
    unsigned const pieces = t.channels / kPiece, thread = thread_index();
    unsigned const piece = thread % pieces, lane = thread / pieces, lanes = t.threads / pieces;
    Copies copies;
    copies.lanes = static_cast<int>(lanes);
    copies.channel = at.slice + static_cast<int>(piece) * kPiece;
    copies.works = lane < lanes;
    copies.x = route_of(t, piece, lane, lanes, t.x_columns);
    copies.y = route_of(t, piece, lane, lanes, t.y_columns);
    return copies;
  }

  DEPTHWISE_DEVICE static void load(E* tile, E const* image, std::int64_t row_stride, std::int64_t column_stride,
                                    int first_row, int first_column, int height, int width, int rows, int columns,
                                    Route const& route, int step, bool has_channels) {
    int row = route.row, column = route.column;
    E* target = tile + route.offset;
    while (row < rows) {
      int const h = first_row + row, w = first_column + column;
      bool const inside = has_channels && h >= 0 && h < height && w >= 0 && w < width;
      copy_async_16(target, inside ? image + h * row_stride + w * column_stride : image, inside);
      target += step;
      row += route.row_step;
      column += route.column_step;
      if (column >= columns) {
        column -= columns;
        ++row;
      }
    }
  }

  // Starts the copies of a tile, and goes on to the next.
  DEPTHWISE_DEVICE static void load_tile(FilterGradParams const& p, Place const& at, Copies const& copies, TileIndex& tile,
                                         char* stage) {
    FilterGradTile const& t = p.tile;
    FilterGradShape const& s = p.shape;
    int const row = tile.down * t.rows * kSide, column = tile.across * t.strips * kSide, step = copies.lanes * t.pitch;
    bool const has_channels = copies.channel < s.channels;
    int const channel = has_channels ? copies.channel : 0;
    E const* const x = static_cast<E const*>(p.x) + tile.image * p.x_image + channel;
    E const* const dy = static_cast<E const*>(p.dy) + tile.image * p.dy_image + channel;
    if (copies.works) {
      load(reinterpret_cast<E*>(stage), x, p.x_row, p.x_column, row * kStride - s.pad_h + at.first_tap_row,
           column * kStride - s.pad_w + at.first_tap, s.in_h, s.in_w, t.x_rows, t.x_columns, copies.x, step, has_channels);
      load(reinterpret_cast<E*>(stage + t.y_offset), dy, p.dy_row, p.dy_column, row, column, s.out_h, s.out_w,
           t.rows * kSide, t.y_columns, copies.y, step, has_channels);
    }
    if (++tile.across < t.across) return;
    tile.across = 0;
    if (++tile.down < t.down) return;
    tile.down = 0;
    ++tile.image;
  }

  using Sums = float[kTaps][kColumnPairs][4];

  DEPTHWISE_DEVICE static void add_tile(FilterGradParams const& p, Place const& at, unsigned stage, Sums& sums) {
    FilterGradTile const& t = p.tile;
    unsigned const pitch = t.pitch * sizeof(E), x_pitch = t.x_columns * pitch, y_pitch = t.y_columns * pitch;
    unsigned const lane = static_cast<unsigned>(thread_index()) % 32;
#pragma unroll 1
    for (int k = at.group; k < t.rows * t.strips; k += t.groups) {
      int const line = k / t.strips, strip = k - line * t.strips;
      unsigned const x = stage + line * kSide * kStride * x_pitch + strip * kSide * kStride * pitch + at.vector * 16;
      unsigned const y = stage + t.y_offset + line * kSide * y_pitch + strip * kSide * pitch + at.vector * 16;
      std::uint32_t grads[kSide];
#pragma unroll
      for (int i = 0; i < kSide; i += 4) {
        load_matrices<4, true>(grads + i, y + (i + lane / 8) * y_pitch + lane % 8 * pitch);
      }
      constexpr int kRing = kStride + 1;
      std::uint32_t pixels[kRing][kTaps];
#pragma unroll
      for (int i = 0; i < kStride; ++i) load_shifted<kTaps, true>(pixels[i], x + i * x_pitch, kStride * pitch, pitch);
#pragma unroll
      for (int i = 0; i < (kSide - 2) * kStride + kTaps; ++i) {
        load_shifted<kTaps, true>(pixels[(i + kStride) % kRing], x + (i + kStride) * x_pitch, kStride * pitch, pitch);
        std::uint32_t const(&upper)[kTaps] = pixels[i % kRing];
        std::uint32_t const(&lower)[kTaps] = pixels[(i + kStride) % kRing];
#pragma unroll
        for (int pair = 0; pair < kPairs; ++pair) {
          int const r = i - 2 * pair * kStride;
          if (r < 0 || r >= kTaps) continue;
#pragma unroll
          for (int c = 0; c < kColumnPairs; ++c) {
            int const left = 2 * c, right = left + 1 < kTaps ? left + 1 : left;
            Mma<E>::k16(sums[r][c], upper[left], upper[right], lower[left], lower[right], grads[2 * pair],
                        grads[2 * pair + 1]);
          }
        }
      }
    }
  }

  DEPTHWISE_DEVICE static void sum_places(FilterGradParams const& p) {
    FilterGradTile const& t = p.tile;
    FilterGradShape const& s = p.shape;
    Place at;
    unsigned block = block_index();
    at.slice = static_cast<int>(block % t.slices) * t.channels;
    block /= t.slices;
    at.first_tap = static_cast<int>(block % t.column_parts) * kTaps;
    block /= t.column_parts;
    at.first_tap_row = static_cast<int>(block % t.row_parts) * kTaps;
    at.part = static_cast<int>(block / t.row_parts);
    int const thread = thread_index(), warp = thread / 32, lane = thread % 32;
    at.vector = warp % t.vectors;
    at.group = warp / t.vectors;
    char* const memory = shared_memory();
    unsigned const address = static_cast<unsigned>(__cvta_generic_to_shared(memory));
    Sums sums;
#pragma unroll
    for (int r = 0; r < kTaps; ++r) {
#pragma unroll
      for (int c = 0; c < kColumnPairs; ++c) sums[r][c][0] = sums[r][c][1] = sums[r][c][2] = sums[r][c][3] = 0;
    }
    // At most as many as places, which are below 2^31.
    int const tiles = s.images * t.down * t.across;
    int const first = static_cast<int>(std::int64_t{tiles} * at.part / t.parts),
              end = static_cast<int>(std::int64_t{tiles} * (at.part + 1) / t.parts);
    Copies const copies = copies_of(p, at);
    TileIndex tile{first % t.across, first / t.across % t.down, first / t.across / t.down};
    // One tile ahead.
#pragma unroll 1
    for (int index = first - 1; index < end; ++index) {
      int const stage = (index - first) & 1;
      if (index + 1 < end) load_tile(p, at, copies, tile, memory + (stage ^ 1) * t.stage_bytes);
      commit_copies();
      if (index < first) continue;
      wait_for_groups<1>();
      synchronize();
      add_tile(p, at, address + stage * t.stage_bytes, sums);
      synchronize();
    }
    wait_for_groups<0>();
    // The diagonals, as [groups, taps, channels].
    float* const shared = reinterpret_cast<float*>(memory);
    constexpr int kAll = kTaps * kTaps;
    int const n = lane / 4;
    if (n / 2 == lane % 4) {
      float* const to = shared + at.group * kAll * t.channels + at.vector * kPiece + n;
#pragma unroll
      for (int r = 0; r < kTaps; ++r) {
#pragma unroll
        for (int c = 0; c < kTaps; ++c) {
          float const(&sum)[4] = sums[r][c / 2];
          to[(r * kTaps + c) * t.channels] = n % 2 ? sum[c % 2 * 2 + 1] : sum[c % 2 * 2];
        }
      }
    }
    synchronize();
    std::int64_t const all = static_cast<std::int64_t>(s.taps_h) * s.taps_w;
    for (int i = thread; i < kAll * t.channels; i += t.threads) {
      int const channel = at.slice + i % t.channels, tap = i / t.channels;
      int const r = at.first_tap_row + tap / kTaps, column = at.first_tap + tap % kTaps;
      if (channel >= s.channels || r >= s.taps_h || column >= s.taps_w) continue;
      float sum = 0;
      for (int g = 0; g < t.groups; ++g) sum += shared[g * kAll * t.channels + i];
      std::int64_t const at_tap = static_cast<std::int64_t>(r) * s.taps_w + column;
      if (p.partial) {
        p.partial[(at.part * all + at_tap) * s.channels + channel] = sum;
      } else {
        static_cast<E*>(p.result)[channel * all + at_tap] = from_float<E>(sum);
      }
    }
  }
};

#endif

// The sums of the parts' sums: 32 channels of a tap a threadblock, each warp has every kSumWarps-th part.
constexpr int kSumWarps = 8;

template <class E>
DEPTHWISE_DEVICE void sum_parts(FilterGradParams const& p) {
  float* const shared = reinterpret_cast<float*>(shared_memory());  // [kSumWarps, 32]
  int const lane = thread_index() % 32, warp = thread_index() / 32;
  std::int64_t const all = static_cast<std::int64_t>(p.shape.taps_h) * p.shape.taps_w;
  unsigned const block = block_index(), blocks = (static_cast<unsigned>(p.shape.channels) + 31) / 32;
  int const channel = static_cast<int>(block % blocks) * 32 + lane;
  std::int64_t const tap = block / blocks;
  float sum = 0;
  if (warp < kSumWarps && channel < p.shape.channels) {
    float const* const from = p.partial + tap * p.shape.channels + channel;
    std::int64_t const pitch = all * p.shape.channels;
#pragma unroll 8
    for (int part = warp; part < p.tile.parts; part += kSumWarps) sum += from[part * pitch];
  }
  if (warp < kSumWarps) shared[warp * 32 + lane] = sum;
  synchronize();
  if (warp > 0 || channel >= p.shape.channels) return;
  for (int w = 1; w < kSumWarps; ++w) sum += shared[w * 32 + lane];
  static_cast<E*>(p.result)[channel * all + tap] = from_float<E>(sum);
}

}  // namespace cutwheel::conv2d::depthwise
