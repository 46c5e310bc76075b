// The gradient of a grouped filter: for each group and tap the products of channels x pixels of the input and pixels x
// filters of the output's gradient.
//
// A threadblock goes through tiles of a part of the images, of the channels of some groups: the output's gradient and the
// halo tile of the input, in two stages of shared memory. M is the chunks (eight channels of a tap) of all taps, of which
// two make the 16 of a product, and a warp has kM x 16 of them by kN x 8 filters of a group in registers from the first
// tile to the last. The sums of parts are added by a second launch, in a fixed order.
#pragma once

#include <cstdint>

#include "grouped_conv/tile.cuh"

#ifdef __CUDACC__
namespace cutwheel::conv2d::grouped {

struct FilterGradParams {
  Pixels x, dy;
  void* result;    // [groups * filters, taps, channels]
  float* partial;  // [parts, as the result]; null: one part, whose sums are the result
  GroupShape shape;
  FilterGradTile tile;
  std::int64_t elements;  // of the result
  int stage;              // 0: sums of parts. 1: the result
};

template <class E, int kM, int kN>
struct FilterGrad {
  static constexpr int kFilterPairs = (kN + 1) / 2;
  using Sums = float[kM][kN][4];

  struct Place {
    int slice, split, m_slice, part;
    int group, m, n;  // of the warp: its group in the slice, its first 16 of M and 8 of N
  };

  DEPTHWISE_DEVICE static Place place_of_warp(FilterGradTile const& t) {
    Place at;
    int block = block_index(), warp = thread_index() / 32;
    at.slice = block % t.slices * t.groups;
    block /= t.slices;
    at.split = block % t.splits * t.filters;
    block /= t.splits;
    at.m_slice = block % t.m_slices;
    at.part = block / t.m_slices;
    at.n = warp % t.n_parts * kN;
    warp /= t.n_parts;
    at.m = (at.m_slice * t.m_parts + warp % t.m_parts) * kM;
    at.group = warp / t.m_parts;
    return at;
  }

  DEPTHWISE_DEVICE static void load_tile(FilterGradParams const& p, Place const& at, Lane const& x_lane, Lane const& y_lane,
                                         Pixel const* pixels, Pixel const* cells, TileIndex& tile, unsigned to) {
    FilterGradTile const& t = p.tile;
    GroupShape const& s = p.shape;
    int const row = tile.down * t.rows, column = tile.across * t.columns;
    int const channel = at.slice * s.channels + x_lane.piece * kPiece;
    load_pixels<E>(t, x_lane, pixels, p.x, tile.image, s.images, row * s.stride_h - s.pad_h, column * s.stride_w - s.pad_w,
                   s.in_h, s.in_w, channel, channel < s.groups * s.channels, to);
    int const in_slice = at.split + y_lane.piece * kPiece, filter = at.slice * s.filters + in_slice;
    bool const has_filters = filter < s.groups * s.filters && (t.splits == 1 || in_slice < s.filters);
    E const* const corner =
        static_cast<E const*>(p.dy.data) + (tile.image * p.dy.image + row * p.dy.row + column * p.dy.column + filter);
    int const each = t.rows * t.columns, there = has_filters ? min_of(s.images - tile.image, t.images) * each : 0;
    to += t.y_offset + y_lane.piece * 16;
#pragma unroll 4
    for (int i = y_lane.first; i < t.images * each; i += y_lane.count) {
      Pixel const cell = load_pixel(cells + i);
      bool const inside = (i < there) & (cell.row() < s.out_h - row) & (cell.column() < s.out_w - column);
      copy_async_to(to + i * t.y_pitch, corner + cell.offset, inside);
    }
    tile.advance(t);
  }

  // The tables; and zeros as the gradient of places behind the last, which have the first one's pixel.
  DEPTHWISE_DEVICE static void prepare(FilterGradParams const& p, char* memory, Pixel* pixels, Pixel* cells) {
    FilterGradTile const& t = p.tile;
    make_pixels(t, p.shape.stride_w, p.x, pixels);
    make_cells(t, p.shape.stride_h, 1, 1, p.dy, cells);
    int const places = t.images * t.rows * t.columns, pieces = t.y_pitch / 16;
    for (int i = thread_index(); i < 2 * (t.cells - places) * pieces; i += t.threads) {
      int const stage = i % 2, piece = i / 2;
      if (stage >= t.stages) continue;
      *reinterpret_cast<uint4*>(memory + stage * t.stage_bytes + t.y_offset + places * t.y_pitch + piece * 16) =
          make_uint4(0, 0, 0, 0);
    }
    synchronize();
  }

  DEPTHWISE_DEVICE static void add_tile(FilterGradTile const& t, unsigned stage, unsigned const (&chunks)[kM],
                                        unsigned const (&filters)[kFilterPairs], Pixel const* cells, Sums& sums) {
    int const lane = thread_index() % 32;
    cells += lane / 16 * 8 + lane % 8;
    unsigned const step = 16 * t.y_pitch;
    unsigned dy = stage, x = stage + load_pixel(cells).bytes();
#pragma unroll 2
    for (int k = 0; k < t.cells; k += 16) {
      std::uint32_t a[kM][4], b[kFilterPairs][4];
#pragma unroll
      for (int j = 0; j < kFilterPairs; ++j) {
        if (2 * j + 1 < kN) {
          load_matrices<4, true>(b[j], dy + filters[j]);
        } else {
          load_matrices<2, true>(b[j], dy + filters[j]);
        }
      }
      dy += step;
#pragma unroll
      for (int i = 0; i < kM; ++i) load_matrices<4, true>(a[i], x + chunks[i]);
      if (k + 16 < t.cells) x = stage + load_pixel(cells + k + 16).bytes();
#pragma unroll
      for (int i = 0; i < kM; ++i) {
#pragma unroll
        for (int j = 0; j < kN; ++j) {
          std::uint32_t const* const pair = b[j / 2] + j % 2 * 2;
          Mma<E>::k16(sums[i][j], a[i][0], a[i][1], a[i][2], a[i][3], pair[0], pair[1]);
        }
      }
    }
  }

  template <class To>
  DEPTHWISE_DEVICE static void store(FilterGradParams const& p, Place const& at, Sums const& sums, To* to) {
    FilterGradTile const& t = p.tile;
    GroupShape const& s = p.shape;
    int const lane = thread_index() % 32, each = s.paired ? 4 : kPiece;
    int const k = t.chunks * each;  // taps x channels, in which a chunk's channels lie one behind the other
    if (at.slice + at.group >= s.groups) return;
    to += (static_cast<std::int64_t>(at.slice + at.group) * s.filters + at.split) * k + lane / 4 % each;
#pragma unroll
    for (int j = 0; j < kN; ++j) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        int const in_split = (at.n + j) * kPiece + lane % 4 * 2 + n;
        if (in_split >= t.filters || at.split + in_split >= s.filters) continue;
        if (s.paired && in_split / 4 % 2 != lane / 16) continue;  // of two groups
#pragma unroll
        for (int i = 0; i < kM; ++i) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            int const chunk = 2 * (at.m + i) + half;
            if (chunk >= t.chunks) continue;
            to[in_split * k + chunk * each] = depthwise::from_float<To>(sums[i][j][half * 2 + n]);
          }
        }
      }
    }
  }

  DEPTHWISE_DEVICE static void run(FilterGradParams const& p) {
    FilterGradTile const& t = p.tile;
    GroupShape const& s = p.shape;
    Place const at = place_of_warp(t);
    int const lane = thread_index() % 32, pieces = s.channels / kPiece;
    char* const memory = depthwise::shared_memory();
    unsigned const address = static_cast<unsigned>(__cvta_generic_to_shared(memory));
    Pixel* const pixels = reinterpret_cast<Pixel*>(memory + t.pixels_offset);
    Pixel* const cells = reinterpret_cast<Pixel*>(memory + t.cells_offset);
    std::int64_t const tiles = static_cast<std::int64_t>((s.images + t.images - 1) / t.images) * t.down * t.across;
    int const first = static_cast<int>(tiles * at.part / t.parts), end = static_cast<int>(tiles * (at.part + 1) / t.parts);
    Lane const x_lane = Lane::of(t.groups * pieces, t.threads), y_lane = Lane::of(t.groups * t.filters / kPiece, t.threads);
    TileIndex next = TileIndex::of(t, first);
    prepare(p, memory, pixels, cells);
    load_tile(p, at, x_lane, y_lane, pixels, cells, next, address);
    commit_copies();
    unsigned chunks[kM], filters[kFilterPairs];
#pragma unroll
    for (int i = 0; i < kM; ++i) {
      Divided const tap = divide(min_of(2 * (at.m + i) + lane / 8 % 2, t.chunks - 1), t.by_pieces);
      Divided const row = divide(tap.quotient, t.by_row_taps);
      chunks[i] = place_of(t, s.stride_w, row.quotient * s.dilation_h, row.rest * s.dilation_w) + tap.rest * 16 +
                  at.group * s.channels * kElement;
    }
#pragma unroll
    for (int j = 0; j < kFilterPairs; ++j) {
      int const tile = min_of(at.n + 2 * j + lane / 16, t.filters / kPiece - 1);
      filters[j] = t.y_offset + lane % 16 * t.y_pitch + (at.group * t.filters + tile * kPiece) * kElement;
    }
    Sums sums;
#pragma unroll
    for (int i = 0; i < kM; ++i) {
#pragma unroll
      for (int j = 0; j < kN; ++j) sums[i][j][0] = sums[i][j][1] = sums[i][j][2] = sums[i][j][3] = 0;
    }
#pragma unroll 1
    for (int index = first; index < end; ++index) {
      int const stage = t.stages == 2 ? (index - first) & 1 : 0;
      bool const is_last = index + 1 == end;
      if (t.stages == 2) {
        if (!is_last) load_tile(p, at, x_lane, y_lane, pixels, cells, next, address + (stage ^ 1) * t.stage_bytes);
        commit_copies();
        wait_for_groups<1>();
      } else {
        wait_for_groups<0>();
      }
      synchronize();
      add_tile(t, address + stage * t.stage_bytes, chunks, filters, cells, sums);
      synchronize();
      if (t.stages == 1 && !is_last) {
        load_tile(p, at, x_lane, y_lane, pixels, cells, next, address);
        commit_copies();
      }
    }
    wait_for_groups<0>();
    if (p.partial) {
      store(p, at, sums, p.partial + at.part * p.elements);
    } else {
      store(p, at, sums, static_cast<E*>(p.result));
    }
  }
};

// The result, of the sums of parts: four elements a thread, or of so many threads as share the parts.
template <class E>
DEPTHWISE_DEVICE void sum_parts(FilterGradParams const& p) {
  constexpr int kFour = 4;
  float4* const shared = reinterpret_cast<float4*>(depthwise::shared_memory());  // [sum_parts, threads / sum_parts]
  int const splits = p.tile.sum_parts, width = kMaxWarps * 32 / splits;
  int const split = thread_index() / width, lane = thread_index() - split * width;
  std::int64_t const element = (static_cast<std::int64_t>(block_index()) * width + lane) * kFour;
  float4 sum = make_float4(0, 0, 0, 0);
  auto const add = [&](float4 const& x) { sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w; };
  if (element < p.elements) {
#pragma unroll 8
    for (int part = split; part < p.tile.parts; part += splits) {
      add(*reinterpret_cast<float4 const*>(p.partial + part * p.elements + element));
    }
  }
  if (splits > 1) {
    shared[thread_index()] = sum;
    synchronize();
    if (split > 0) return;
    for (int i = 1; i < splits; ++i) add(shared[i * width + lane]);
  }
  if (element >= p.elements) return;
  float const sums[kFour] = {sum.x, sum.y, sum.z, sum.w};
  depthwise::store_vector<E, kFour>(static_cast<E*>(p.result) + element, sums);
}

}  // namespace cutwheel::conv2d::grouped
#endif
