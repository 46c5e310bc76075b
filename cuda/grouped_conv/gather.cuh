// Grouped convolutions on tensor cores, in the direction in which an output gathers its taps: fprop and dgrad.
//
// A threadblock has the filters of some groups in shared memory and goes through halo tiles of the source, of the channels
// of these groups: one is loaded while the one before is multiplied. A warp multiplies kM x 16 pixels by kN x 8 filters of
// a group. Its A are pixels as they lie, shifted by a tap, of which ldmatrix reads eight channels (a chunk) of eight pixels
// at a time, each from any address; so the K of a product goes through the chunks of all taps, two at once, whatever the
// width of a group, filter, stride and dilation are. Where their filters begin is in a table in shared memory.
//
// dgrad reads the same filters with K and N exchanged. Behind a stride, each residue class of the result has taps of its
// own. Sums pass through shared memory, so that whole lines are stored, and the code of epilogues is there once.
#pragma once

#include <cstdint>

#include "grouped_conv/tile.cuh"

#ifdef __CUDACC__
namespace cutwheel::conv2d::grouped {

struct GatherParams {
  Pixels source;
  void const* filter;    // [groups * filters, taps, channels]
  void const* bias;      // [groups * filters]; null: zeros
  void const* residual;  // as the target lies; null: zeros
  void* target;          // [images, h, w, channels of the target]
  GroupShape shape;
  GatherTile tile;
  bool is_dgrad;
  int epilogue;                           // position in the kernel's list
  float scalars[depthwise::kMaxScalars];  // of the epilogue, by position
};

template <class E, int kM, int kN>
struct Gather {
  static constexpr int kFilterPairs = (kN + 1) / 2;

  struct Place {
    int slice, split;           // first group, and first channel of the target in a group
    int first_tile, last_tile;  // of the threadblock
  };

  DEPTHWISE_DEVICE static Place place_of_block(GatherParams const& p) {
    GatherTile const& t = p.tile;
    Divided const slice = divide(block_index(), t.by_slices), split = divide(slice.quotient, t.by_splits);
    std::int64_t const tiles = static_cast<std::int64_t>((p.shape.images + t.images - 1) / t.images) * t.down * t.across;
    Place at;
    at.slice = slice.rest * t.groups;
    at.split = split.rest * t.filters;
    at.first_tile = static_cast<int>(tiles * split.quotient / t.parts);
    at.last_tile = static_cast<int>(tiles * (split.quotient + 1) / t.parts);
    return at;
  }

  // A row of shared memory for each filter of the convolution: [taps, channels], of dgrad those of the target.
  DEPTHWISE_DEVICE static void load_filters(GatherParams const& p, Place const& at, char* to) {
    GatherTile const& t = p.tile;
    GroupShape const& s = p.shape;
    E const* const filter = static_cast<E const*>(p.filter);
    int const rows = t.groups * t.filter_rows, row_pieces = t.by_row_pieces.divisor;
    int const taps = s.taps_h * s.taps_w, first_row = p.is_dgrad ? 0 : at.split, first_channel = p.is_dgrad ? at.split : 0;
    for (int i = thread_index(); i < rows * row_pieces; i += t.threads) {
      Divided const row = divide(i, t.by_row_pieces), tap = divide(row.rest, t.by_chunks);
      Divided const in_slice = divide(row.quotient, t.by_filter_rows);
      int const group = in_slice.quotient, in_group = first_row + in_slice.rest;
      int const channel = first_channel + tap.rest * kPiece;
      bool const is_there = at.slice + group < s.groups && in_group < s.filters && channel < s.channels;
      std::int64_t const index = is_there ? static_cast<std::int64_t>(at.slice + group) * s.filters + in_group : 0;
      char* const target = to + row.quotient * t.filter_pitch + row.rest * 16;
      if (!s.paired) {
        E const* const from = filter + (index * taps + tap.quotient) * s.channels + (is_there ? channel : 0);
        copy_async_16(target, from, is_there);
        continue;
      }
      // Four channels of one group, and zeros for the other's.
      uint2 four = make_uint2(0, 0);
      if (is_there) four = *reinterpret_cast<uint2 const*>(filter + (index * taps + tap.quotient) * 4);
      bool const is_second = in_group >= 4;
      *reinterpret_cast<uint4*>(target) =
          make_uint4(is_second ? 0 : four.x, is_second ? 0 : four.y, is_second ? four.x : 0, is_second ? four.y : 0);
    }
  }

  // Of each chunk of K where its pixels are, from a cell on, and its filters: two tables.
  DEPTHWISE_DEVICE static void make_chunks(GatherParams const& p, int* pixels, int* filters) {
    GatherTile const& t = p.tile;
    int const chunks = t.channels / kPiece, taps = t.phase_taps[t.spread_h * t.spread_w];
    for (int i = thread_index(); i < taps * chunks; i += t.threads) {
      Divided const chunk = divide(i, t.by_source_chunks);
      int const tap = chunk.quotient;
      pixels[i] = t.taps[tap].offset + chunk.rest * 16;
      filters[i] = p.is_dgrad ? chunk.rest * kPiece * t.filter_pitch + t.taps[tap].index * t.filters * kElement
                              : (t.taps[tap].index * chunks + chunk.rest) * 16;
    }
  }

  DEPTHWISE_DEVICE static void load_tile(GatherParams const& p, Place const& at, Lane const& lane, Pixel const* table,
                                         TileIndex& tile, unsigned to) {
    GatherTile const& t = p.tile;
    GroupShape const& s = p.shape;
    int const row = tile.down * t.rows * t.step_h + t.first_h, column = tile.across * t.columns * t.step_w + t.first_w;
    int const channel = at.slice * t.channels + lane.piece * kPiece;
    int const height = p.is_dgrad ? s.out_h : s.in_h, width = p.is_dgrad ? s.out_w : s.in_w;
    load_pixels<E>(t, lane, table, p.source, tile.image, s.images, row, column, height, width, channel,
                   channel < s.groups * t.channels, to);
    tile.advance(t);
  }

  using Sums = float[kM][kN][4];

  // kTransposed: B has K along the rows of shared memory, as dgrad reads filters.
  template <bool kTransposed>
  DEPTHWISE_DEVICE static void multiply(Sums& sums, unsigned const (&pixels)[kM], unsigned const (&filters)[kFilterPairs],
                                        int const* pixel_table, int const* filter_table, int chunks) {
    int const lane = thread_index() % 32;
    pixel_table += lane / 16, filter_table += lane / 8 % 2;
    unsigned pixel = pixel_table[0], filter = filter_table[0];
#pragma unroll 2
    for (int k = 0; k + 1 < chunks; k += 2) {
      std::uint32_t a[kM][4], b[kFilterPairs][4];
#pragma unroll
      for (int j = 0; j < kFilterPairs; ++j) {
        if (2 * j + 1 < kN) {
          load_matrices<4, kTransposed>(b[j], filters[j] + filter);
        } else {
          load_matrices<2, kTransposed>(b[j], filters[j] + filter);
        }
      }
#pragma unroll
      for (int i = 0; i < kM; ++i) load_matrices<4, false>(a[i], pixels[i] + pixel);
      // Of the next two, or of what is behind them, which is not used.
      pixel = pixel_table[k + 2], filter = filter_table[k + 2];
#pragma unroll
      for (int i = 0; i < kM; ++i) {
#pragma unroll
        for (int j = 0; j < kN; ++j) {
          std::uint32_t const* const pair = b[j / 2] + j % 2 * 2;
          Mma<E>::k16(sums[i][j], a[i][0], a[i][1], a[i][2], a[i][3], pair[0], pair[1]);
        }
      }
    }
    if (chunks % 2 == 0) return;
    pixel = (pixel_table - lane / 16)[chunks - 1], filter = (filter_table - lane / 8 % 2)[chunks - 1];
    std::uint32_t a[kM][2];
#pragma unroll
    for (int i = 0; i < kM; ++i) load_matrices<2, false>(a[i], pixels[i] + pixel);
#pragma unroll
    for (int j = 0; j < kN; ++j) {
      // Lanes 0 to 7 have addresses of a pair's first eight filters, lanes 16 to 23 of its second ones.
      unsigned const rows = __shfl_sync(0xffffffffu, filters[j / 2], lane % 8 + j % 2 * 16);
      std::uint32_t b;
      load_matrices<1, kTransposed>(&b, rows + filter);
#pragma unroll
      for (int i = 0; i < kM; ++i) Mma<E>::k8(sums[i][j], a[i][0], a[i][1], b);
    }
  }

  // The products of a task, whose sums it leaves in shared memory.
  DEPTHWISE_DEVICE static void multiply_task(GatherParams const& p, Place const& at, unsigned const (&pixels)[kM],
                                             int phase, int first_cell, int group, int first_filter, unsigned filter_memory,
                                             int const* pixel_table, int const* filter_table, char* staged,
                                             bool stages_floats) {
    GatherTile const& t = p.tile;
    if (at.slice + group >= p.shape.groups) return;
    int const lane = thread_index() % 32, chunks = t.channels / kPiece;
    int const filter_tiles = t.filters / kPiece, n_step = p.is_dgrad ? 16 : kPiece * t.filter_pitch;
    unsigned filters[kFilterPairs];
#pragma unroll
    for (int j = 0; j < kFilterPairs; ++j) {
      int const tile = min_of(first_filter + 2 * j + lane / 16, filter_tiles - 1);
      filters[j] = filter_memory + (group * t.filter_rows + lane % 8) * t.filter_pitch + tile * n_step;
    }
    Sums sums;
    int const first_channel = (at.slice + group) * t.target_channels + at.split + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < kN; ++j) {
      float bias[2] = {0, 0};
      int const filter = (first_filter + j) * kPiece;
      if (p.bias && !stages_floats && filter < t.filters && at.split + filter < t.target_channels) {
        depthwise::load_vector<E, 2>(static_cast<E const*>(p.bias) + first_channel + filter, bias);
      }
#pragma unroll
      for (int i = 0; i < kM; ++i) {
        sums[i][j][0] = sums[i][j][2] = bias[0];
        sums[i][j][1] = sums[i][j][3] = bias[1];
      }
    }
    int const first = t.phase_taps[phase] * chunks, count = t.phase_taps[phase + 1] * chunks - first;
    if (p.is_dgrad) {
      multiply<true>(sums, pixels, filters, pixel_table + first, filter_table + first, count);
    } else {
      multiply<false>(sums, pixels, filters, pixel_table + first, filter_table + first, count);
    }
    int const channel = group * t.filters + first_filter * kPiece + lane % 4 * 2;
    char* const to = staged + (phase * t.cells + first_cell + lane / 4) * t.staged_pitch;
    if (stages_floats) {
      stage<float>(sums, to + channel * 4, t.staged_pitch, filter_tiles - first_filter);
    } else {
      stage<E>(sums, to + channel * kElement, t.staged_pitch, filter_tiles - first_filter);
    }
  }

  template <class Staged>
  DEPTHWISE_DEVICE static void stage(Sums const& sums, char* to, int pitch, int filter_tiles) {
#pragma unroll
    for (int i = 0; i < kM; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        Staged* const row = reinterpret_cast<Staged*>(to + (i * 16 + half * 8) * pitch);
#pragma unroll
        for (int j = 0; j < kN; ++j) {
          if (j < filter_tiles) depthwise::store_vector<Staged, 2>(row + j * kPiece, sums[i][j] + half * 2);
        }
      }
    }
  }

  // Multiplies a tile, and leaves sums in shared memory: as floats, or with the bias as they will be stored.
  DEPTHWISE_DEVICE static void multiply_tile(GatherParams const& p, Place const& at, unsigned stage, unsigned filter_memory,
                                             int const* pixel_table, int const* filter_table, Pixel const* cells,
                                             char* staged, bool stages_floats) {
    GatherTile const& t = p.tile;
    int const warp = thread_index() / 32, lane = thread_index() % 32;
    // A warp has consecutive tasks, which have pixels in common.
    int const tasks = t.spread_h * t.spread_w * t.m_parts * t.groups * t.n_parts, warps = t.threads / 32;
    int const each = (tasks + warps - 1) / warps, first_task = each * warp, last_task = min_of(first_task + each, tasks);
    Divided const n = divide(first_task, t.by_n_parts), g = divide(n.quotient, t.by_groups),
                  m = divide(g.quotient, t.by_m_parts);
    int n_part = n.rest, group = g.rest, m_part = m.rest, phase = m.quotient;
    unsigned pixels[kM];
    bool has_pixels = false;
#pragma unroll 1
    for (int task = first_task; task < last_task; ++task) {
      int const first_cell = m_part * kM * 16;
      if (!has_pixels) {
        has_pixels = true;
#pragma unroll
        for (int i = 0; i < kM; ++i) {
          pixels[i] = stage + load_pixel(cells + first_cell + i * 16 + lane % 16).bytes() + group * t.channels * kElement;
        }
      }
      multiply_task(p, at, pixels, phase, first_cell, group, n_part * kN, filter_memory, pixel_table, filter_table, staged,
                    stages_floats);
      if (++n_part < t.n_parts) continue;
      n_part = 0;
      if (++group < t.groups) {
#pragma unroll
        for (int i = 0; i < kM; ++i) pixels[i] += t.channels * kElement;
        continue;
      }
      group = 0;
      has_pixels = false;
      if (++m_part < t.m_parts) continue;
      m_part = 0;
      ++phase;
    }
  }

  template <class Epilogues>
  DEPTHWISE_DEVICE static void store_tile(GatherParams const& p, Place const& at, Lane const& lane, Pixel const* cells,
                                          TileIndex const& tile, char const* staged, bool stages_floats) {
    GatherTile const& t = p.tile;
    GroupShape const& s = p.shape;
    int const height = p.is_dgrad ? s.in_h : s.out_h, width = p.is_dgrad ? s.in_w : s.out_w;
    int const all = s.groups * t.target_channels, in_slice = at.split + lane.piece * kPiece;
    int const channel = at.slice * t.target_channels + in_slice;
    if (channel >= all || (t.splits > 1 && in_slice >= t.target_channels)) return;
    int const there = min_of(s.images - tile.image, t.images) * t.rows * t.columns;
    float bias[kPiece];
#pragma unroll
    for (int v = 0; v < kPiece; ++v) bias[v] = 0;
    if (p.bias && stages_floats) depthwise::load_vector<E, kPiece>(static_cast<E const*>(p.bias) + channel, bias);
    int phase = 0;
#pragma unroll 1
    for (int y = 0; y < t.spread_h; ++y) {
#pragma unroll 1
      for (int x = 0; x < t.spread_w; ++x, ++phase) {
        int const rows = height - (tile.down * t.rows * t.spread_h + y);
        int const columns = width - (tile.across * t.columns * t.spread_w + x);
        std::int64_t const pixel =
            (static_cast<std::int64_t>(tile.image) * height + (height - rows)) * width + (width - columns);
        std::int64_t const corner = pixel * all + channel;
        E* const target = static_cast<E*>(p.target) + corner;
        char const* const from = staged + phase * t.cells * t.staged_pitch + lane.piece * (stages_floats ? 32 : 16);
        if (!stages_floats) {
#pragma unroll 4
          for (int i = lane.first; i < there; i += lane.count) {
            Pixel const cell = load_pixel(cells + i);
            if (cell.row() >= rows || cell.column() >= columns) continue;
            *reinterpret_cast<uint4*>(target + cell.offset) = *reinterpret_cast<uint4 const*>(from + i * t.staged_pitch);
          }
          continue;
        }
        E const* const residual = static_cast<E const*>(p.residual) + corner;
#pragma unroll 1
        for (int i = lane.first; i < there; i += lane.count) {
          Pixel const cell = load_pixel(cells + i);
          if (cell.row() >= rows || cell.column() >= columns) continue;
          float sums[kPiece], added[kPiece], result[kPiece];
#pragma unroll
          for (int v = 0; v < kPiece; ++v) added[v] = 0;
          if (p.residual) depthwise::load_vector<E, kPiece>(residual + cell.offset, added);
          depthwise::load_floats<kPiece>(reinterpret_cast<float const*>(from + i * t.staged_pitch), sums);
          Epilogues::template apply<kPiece>(p.epilogue, p.scalars, sums, bias, added, result);
          depthwise::store_vector<E, kPiece>(target + cell.offset, result);
        }
      }
    }
  }

  template <class Epilogues>
  DEPTHWISE_DEVICE static void run(GatherParams const& p) {
    GatherTile const& t = p.tile;
    Place const at = place_of_block(p);
    char* const memory = depthwise::shared_memory();
    unsigned const address = static_cast<unsigned>(__cvta_generic_to_shared(memory));
    int* const pixel_table = reinterpret_cast<int*>(memory + t.table_offset);
    int* const filter_table = pixel_table + t.phase_taps[t.spread_h * t.spread_w] * (t.channels / kPiece) + 1;
    Pixel* const pixels = reinterpret_cast<Pixel*>(memory + t.pixels_offset);
    Pixel* const cells = reinterpret_cast<Pixel*>(memory + t.cells_offset);
    char* const staged = memory + t.staged_offset;
    bool const stages_floats = p.epilogue >= Epilogues::kSums;
    int const height = p.is_dgrad ? p.shape.in_h : p.shape.out_h, width = p.is_dgrad ? p.shape.in_w : p.shape.out_w;
    std::int64_t const column = p.shape.groups * t.target_channels, row = column * width;
    load_filters(p, at, memory + t.filter_offset);
    make_pixels(t, t.step_w, p.source, pixels);
    synchronize();
    Lane const loads = Lane::of(t.groups * t.channels / kPiece, t.threads);
    Lane const stores = Lane::of(t.groups * t.filters / kPiece, t.threads);
    TileIndex next = TileIndex::of(t, at.first_tile), tile = next;
    load_tile(p, at, loads, pixels, next, address);
    commit_copies();
    make_cells(t, t.step_h, t.spread_h, t.spread_w, {nullptr, row * height, row, column}, cells);
    make_chunks(p, pixel_table, filter_table);
#pragma unroll 1
    for (int index = at.first_tile; index < at.last_tile; ++index) {
      int const stage = t.stages == 2 ? (index - at.first_tile) & 1 : 0;
      bool const is_last = index + 1 == at.last_tile;
      if (t.stages == 2) {
        if (!is_last) load_tile(p, at, loads, pixels, next, address + (stage ^ 1) * t.stage_bytes);
        commit_copies();
        wait_for_groups<1>();
      } else {
        wait_for_groups<0>();
      }
      synchronize();
      multiply_tile(p, at, address + stage * t.stage_bytes, address + t.filter_offset, pixel_table, filter_table, cells,
                    staged, stages_floats);
      synchronize();
      if (t.stages == 1 && !is_last) {
        load_tile(p, at, loads, pixels, next, address);
        commit_copies();
      }
      store_tile<Epilogues>(p, at, stores, cells, tile, staged, stages_floats);
      tile.advance(t);
    }
    wait_for_groups<0>();
  }
};

}  // namespace cutwheel::conv2d::grouped
#endif
