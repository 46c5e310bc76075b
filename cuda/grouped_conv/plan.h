// How grouped convolutions are divided among threadblocks and warps.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "depthwise/plan.h"

namespace cutwheel::conv2d::grouped {

using depthwise::Divisor;
using depthwise::even_part;
using depthwise::Limits;
using depthwise::up;

constexpr int kPiece = 8;  // channels: 16 bytes
constexpr int kElement = 2;
constexpr int kMaxTaps = 49, kMaxStride = 2, kMaxPhases = kMaxStride * kMaxStride;
constexpr int kMaxWarps = 8, kFewestWarps = 4;  // of a threadblock; of one that leaves taps to others

// What a kernel is instantiated for: of a warp's tile of 16 x 8 sums, how many along M and N.
struct WarpTile {
  int m, n;
};

// Groups as kernels have them: those of four channels and filters in pairs, as one of eight whose filters are zero where
// they belong to the other's channels.
struct GroupShape {
  int images, groups, channels, filters;  // channels and filters of a group
  int in_h, in_w, out_h, out_w;           // of the convolution
  int taps_h, taps_w, pad_h, pad_w, stride_h, stride_w, dilation_h, dilation_w;
  bool paired;
};

// Where a tap finds its pixel, from the first pixel of a cell on, and where its filter lies.
struct Tap {
  int offset;  // bytes of shared memory
  int index;
};

// The target consists of cells: pixels of the result, or where dgrad has a stride blocks of stride x stride pixels, each of
// which is of another residue class (a phase) and has other taps.
struct GatherTile {
  int groups, channels, filters;     // of a threadblock; of a group in it: channels of the source and of the target
  int target_channels;               // of a group, in all threadblocks
  int threads, stages;               // stages of halo tiles
  int slices, splits, parts;         // threadblocks: along groups, the channels of a target's group, and tiles
  int images, rows, columns, cells;  // of a tile: cells of images; with those that fill up the warps' tiles
  int across, down;                  // tiles of an image
  int step_h, step_w;                // pixels of the source from cell to cell
  int spread_h, spread_w;            // pixels of the target from cell to cell
  int first_h, first_w;              // of the source, from a cell's place on
  int x_rows, x_columns, plane;      // of the source in shared memory; columns that are the same modulo step_w
  int pixel_pitch, row_pitch;        // bytes
  int filter_rows, filter_pitch;     // of a group; bytes
  int m_parts, n_parts;              // warp tiles
  int stage_bytes, filter_offset, staged_offset, staged_pitch, table_offset, pixels_offset, cells_offset;
  int phase_taps[kMaxPhases + 1];  // the first of each phase
  Tap taps[kMaxTaps];
  Divisor by_slices, by_splits, by_groups, by_m_parts, by_n_parts, by_rows, by_columns, by_x_rows, by_x_columns,
      by_filter_rows, by_row_pieces, by_chunks, by_source_chunks;
};

struct FilterGradTile {
  int groups, filters;  // of a threadblock; filters of a group in it
  int threads, stages;
  int slices, splits, m_slices, parts;  // threadblocks: along groups, filters of a group, taps x channels, and tiles
  int images, rows, columns, cells;     // of a tile: places of images; with those that fill up 16
  int across, down;
  int x_rows, x_columns, plane;
  int pixel_pitch, row_pitch, y_pitch, y_offset, stage_bytes;  // bytes
  int chunks, m_parts, n_parts;                                // eights of taps x channels; warp tiles of a group
  int pixels_offset, cells_offset;
  int sum_parts;  // threads that share the parts of a sum
  Divisor by_rows, by_columns, by_x_rows, by_x_columns, by_pieces, by_row_taps;
};

struct GatherPlan {
  GatherTile tile{};
  std::int64_t blocks = 0;
  int shared_memory = 0;
};
struct FilterGradPlan {
  FilterGradTile tile{};
  std::int64_t blocks = 0;
  int shared_memory = 0;
};

// Bytes of `pieces` of 16, and such that eight rows of them lie in different banks.
constexpr int odd_pitch(int pieces) { return (pieces | 1) * 16; }

// Bytes from row to row of a tile: as far as its last cell is from the next row's first, modulo the banks, is nothing, so
// that eight cells lie in different banks across rows, too.
constexpr int pitch_of_rows(int pixels, int cells, int pixel_pitch) {
  int const pieces = pixels * pixel_pitch / 16, wanted = cells * pixel_pitch / 16 % 8;
  return (pieces + (wanted - pieces % 8 + 8) % 8) * 16;
}

// The pixels of the source that `rows` x `columns` cells have.
template <class Tile>
inline void lay_source(Tile& t, int step_h, int step_w, int span_h, int span_w, int pieces) {
  t.x_rows = (t.rows - 1) * step_h + span_h, t.x_columns = (t.columns - 1) * step_w + span_w;
  t.plane = up(t.x_columns, step_w);
  t.pixel_pitch = odd_pitch(pieces);
  t.row_pitch = pitch_of_rows(t.plane * step_w, t.columns, t.pixel_pitch);
}

// How many cells a tile may have: rows and columns that divide the image evenly, or several small images.
struct TileChoice {
  int images, rows, columns;
};
template <class Visit>
inline void visit_tiles(int images, int height, int width, Visit const& visit) {
  int last_columns = 0;
  for (int most_columns : {56, 28, 14, 8}) {
    int const columns = even_part(width, most_columns);
    if (columns == last_columns) continue;
    last_columns = columns;
    int last_rows = 0;
    for (int cells : {512, 384, 256, 192, 128, 96, 64, 32, 16}) {
      int const rows = even_part(height, std::max(1, cells / columns));
      int const several = rows == height && columns == width ? std::min(cells / (rows * columns), images) : 1;
      if (several > 1) {
        visit(TileChoice{several, rows, columns});
      } else if (rows != last_rows) {
        visit(TileChoice{1, rows, columns});
      }
      last_rows = several > 1 ? 0 : rows;
    }
  }
}

// Clocks of an SM, as far as the choice of a tile needs them, measured on an H100: of 16 bytes of eight rows of shared
// memory (four for a ldmatrix), of a product of 16x8x16, of what surrounds the products of a task, and a tile for each
// warp.
struct Clocks {
  static constexpr float kBytes = 24, kMma = 2.1f, kMatrices = 4, kTask = 120, kWarpTile = 80, kGradTile = 1300,
                         kStart = 2500;
  static constexpr float kLaunch = 4000, kPartialBytes = 1200;  // of the sums of parts: their launch, bytes of all SMs
};

// How busy so many warps keep an SM.
inline float busy_share(int warps) { return warps >= 16 ? 1.f : std::pow(static_cast<float>(warps) / 16, 0.8f); }

struct Offsets {
  int low, high;
};

// The taps of the source for each phase: of a cell's first pixel on.
inline void find_taps(GatherTile& t, GroupShape const& s, bool is_dgrad, Offsets (&range)[2], int (&at)[kMaxTaps][2]) {
  range[0] = range[1] = {1 << 30, -(1 << 30)};
  auto const add = [&](int axis, int offset) {
    range[axis].low = std::min(range[axis].low, offset), range[axis].high = std::max(range[axis].high, offset);
    return offset;
  };
  int count = 0, phase = 0;
  t.spread_h = is_dgrad ? s.stride_h : 1, t.spread_w = is_dgrad ? s.stride_w : 1;
  t.step_h = is_dgrad ? 1 : s.stride_h, t.step_w = is_dgrad ? 1 : s.stride_w;
  for (int h = 0; h < t.spread_h; ++h) {
    for (int w = 0; w < t.spread_w; ++w) {
      t.phase_taps[phase++] = count;
      for (int r = 0; r < s.taps_h; ++r) {
        int const y = h + s.pad_h - r * s.dilation_h;
        if (is_dgrad && y % t.spread_h != 0) continue;
        for (int c = 0; c < s.taps_w; ++c) {
          int const x = w + s.pad_w - c * s.dilation_w;
          if (is_dgrad && x % t.spread_w != 0) continue;
          at[count][0] = add(0, is_dgrad ? y / t.spread_h : r * s.dilation_h - s.pad_h);
          at[count][1] = add(1, is_dgrad ? x / t.spread_w : c * s.dilation_w - s.pad_w);
          t.taps[count++].index = r * s.taps_w + c;
        }
      }
    }
  }
  t.phase_taps[phase] = count;
}

inline bool plan_gather(GatherPlan& plan, WarpTile const& warp, GroupShape const& s, bool is_dgrad, Limits const& limits,
                        bool stages_floats, int most_images) {
  if (s.taps_h * s.taps_w > kMaxTaps || s.stride_h > kMaxStride || s.stride_w > kMaxStride) return false;
  GatherTile& t = plan.tile;
  Offsets range[2];
  int at[kMaxTaps][2];
  find_taps(t, s, is_dgrad, range, at);
  int const taps = s.taps_h * s.taps_w, phases = t.spread_h * t.spread_w;
  int const channels = is_dgrad ? s.filters : s.channels, target = is_dgrad ? s.channels : s.filters;
  int const cells_h = up(is_dgrad ? s.in_h : s.out_h, t.spread_h), cells_w = up(is_dgrad ? s.in_w : s.out_w, t.spread_w);
  int const span_h = range[0].high - range[0].low + 1, span_w = range[1].high - range[1].low + 1;
  int const chunks = channels / kPiece;
  float best = 1e30f;
  GatherTile found{};
  int found_bytes = 0;
  t.first_h = range[0].low, t.first_w = range[1].low;
  t.channels = channels, t.target_channels = target;
  auto const consider_stages = [&](int groups, int filters, TileChoice const& choice, int stages) {
    t.groups = groups, t.filters = filters, t.stages = stages;
    t.images = choice.images, t.rows = choice.rows, t.columns = choice.columns;
    lay_source(t, t.step_h, t.step_w, span_h, span_w, groups * chunks);
    t.m_parts = up(t.images * t.rows * t.columns, 16 * warp.m), t.n_parts = up(filters, kPiece * warp.n);
    t.cells = t.m_parts * 16 * warp.m;
    t.filter_rows = is_dgrad ? channels : filters;
    t.filter_pitch = odd_pitch(taps * (is_dgrad ? filters : channels) / kPiece);
    t.stage_bytes = t.images * t.x_rows * t.row_pitch;
    t.staged_pitch = odd_pitch(groups * filters / kPiece) * (stages_floats ? 2 : 1);
    int const filter_bytes = groups * t.filter_rows * t.filter_pitch, staged_bytes = phases * t.cells * t.staged_pitch;
    int const table_bytes = (taps * chunks + 1) * 8;
    int const pixels_bytes = t.images * t.x_rows * t.x_columns * 8, cells_bytes = t.cells * 8;
    t.across = up(cells_w, t.columns), t.down = up(cells_h, t.rows);
    t.slices = up(s.groups, groups), t.splits = up(target, filters);
    std::int64_t const tiles = std::int64_t{up(s.images, t.images)} * t.across * t.down,
                       shared = std::int64_t{t.slices} * t.splits;
    std::int64_t const all = tiles * shared;
    int const rest = filter_bytes + staged_bytes + table_bytes + pixels_bytes + cells_bytes;
    int const bytes = rest + t.stages * t.stage_bytes;
    if (bytes > limits.shared_memory || (stages > 1 && all <= limits.sm_count)) return;
    int const tasks = phases * t.m_parts * groups * t.n_parts;
    int const warps = std::clamp(tasks, 4, kMaxWarps);
    t.threads = 32 * warps;
    // The time of a tile by what it multiplies and what it moves, and the time of one that waits for nothing.
    float const steps = 0.5f * static_cast<float>(taps * chunks + phases) / static_cast<float>(phases);
    float const mma = static_cast<float>(warp.m * warp.n) * Clocks::kMma;
    float const loads = static_cast<float>(warp.m + (warp.n + 1) / 2) * Clocks::kMatrices;
    float const moved = static_cast<float>(t.x_rows * t.x_columns * groups * channels) +
                        static_cast<float>(phases * t.rows * t.columns * groups * filters);
    float const memory = moved * static_cast<float>(t.images * kElement) / Clocks::kBytes;
    int const blocks = std::clamp(std::min(limits.shared_memory / (bytes + 1024), limits.threads / t.threads), 1, 8);
    float const resident = static_cast<float>(blocks);
    int const rounds = up(tasks, warps);
    std::int64_t const tiles_of_sm = (all + limits.sm_count - 1) / limits.sm_count;
    float const each = static_cast<float>(tiles_of_sm);
    float const busy = busy_share(up(tasks, rounds) * static_cast<int>(std::min<std::int64_t>(blocks, tiles_of_sm)));
    float const work =
        static_cast<float>(tasks) * (steps * (std::max(mma, loads) + 0.3f * std::min(mma, loads)) + Clocks::kTask) / busy;
    float const overlap = resident > 1 || t.stages > 1 ? 0.3f : 0.8f;
    float const alone = static_cast<float>(rounds) * steps * 2 * (mma + loads);
    float const time =
        each * (std::max(work, memory) + overlap * std::min(work, memory) + Clocks::kWarpTile * static_cast<float>(warps)) +
        std::min(each, resident) * static_cast<float>(filter_bytes) / Clocks::kBytes + alone + memory + Clocks::kStart;
    if (time >= best) return;
    best = time;
    std::int64_t const most = std::clamp<std::int64_t>(std::int64_t{limits.sm_count} * blocks / shared, 1, tiles);
    std::int64_t const per_block = (tiles + most - 1) / most;
    t.parts = static_cast<int>((tiles + per_block - 1) / per_block);
    t.filter_offset = t.stages * t.stage_bytes;
    t.staged_offset = t.filter_offset + filter_bytes;
    t.table_offset = t.staged_offset + staged_bytes;
    t.pixels_offset = t.table_offset + table_bytes;
    t.cells_offset = t.pixels_offset + pixels_bytes;
    found = t, found_bytes = bytes;
  };
  // The memory of a second stage may be worth more to another threadblock.
  auto const consider = [&](int groups, int filters, TileChoice const& choice) {
    for (int stages : {2, 1}) consider_stages(groups, filters, choice, stages);
  };
  auto const consider_slices = [&](TileChoice const& choice) {
    int const widest = std::max(channels, target);
    if (widest <= 32) {
      for (int wanted : {64, 32}) consider(std::clamp(wanted / widest, 1, s.groups), target, choice);
      return;
    }
    for (int filters = target; filters >= kPiece; filters = up(filters / 2, kPiece) * kPiece) {
      consider(1, filters, choice);
      if (filters == kPiece || filters <= kPiece * warp.n) break;
    }
  };
  visit_tiles(std::min(s.images, most_images), cells_h, cells_w, consider_slices);
  for (int side : {4, 2}) {  // the smallest of all, for GPUs with little shared memory
    if (best == 1e30f) consider(1, kPiece, TileChoice{1, std::min(cells_h, side), std::min(cells_w, side)});
  }
  if (best == 1e30f) return false;
  t = found;
  for (int i = 0; i < taps; ++i) {
    int const row = at[i][0] - t.first_h, column = at[i][1] - t.first_w;
    t.taps[i].offset = row * t.row_pitch + (column % t.step_w * t.plane + column / t.step_w) * t.pixel_pitch;
  }
  t.by_slices = Divisor(t.slices), t.by_splits = Divisor(t.splits);
  t.by_groups = Divisor(t.groups), t.by_m_parts = Divisor(t.m_parts), t.by_n_parts = Divisor(t.n_parts);
  t.by_rows = Divisor(t.rows), t.by_columns = Divisor(t.columns);
  t.by_x_rows = Divisor(t.x_rows), t.by_x_columns = Divisor(t.x_columns);
  t.by_filter_rows = Divisor(t.filter_rows), t.by_source_chunks = Divisor(chunks);
  t.by_row_pieces = Divisor(taps * (is_dgrad ? t.filters : channels) / kPiece);
  t.by_chunks = Divisor(is_dgrad ? t.filters / kPiece : chunks);
  plan.shared_memory = found_bytes;
  plan.blocks = std::int64_t{t.slices} * t.splits * t.parts;
  return true;
}

inline bool plan_filter_grad(FilterGradPlan& plan, WarpTile const& warp, GroupShape const& s, Limits const& limits,
                             int most_images) {
  if (s.taps_h * s.taps_w > kMaxTaps || s.stride_h > kMaxStride || s.stride_w > kMaxStride) return false;
  FilterGradTile& t = plan.tile;
  int const span_h = (s.taps_h - 1) * s.dilation_h + 1, span_w = (s.taps_w - 1) * s.dilation_w + 1;
  int const pieces = s.channels / kPiece;
  t.chunks = s.taps_h * s.taps_w * pieces;
  t.m_parts = up(t.chunks, 2 * warp.m);
  int const widest = std::max(s.channels, s.filters);
  t.filters = s.filters;
  t.n_parts = up(t.filters, kPiece * warp.n);
  // As many warps as a threadblock has: groups first, then filters, then taps are for others.
  t.groups = std::clamp(64 / widest, 1, s.groups);
  while (t.groups > 1 && t.groups * t.m_parts * t.n_parts > kMaxWarps) t.groups /= 2;
  if (t.m_parts * t.n_parts > kMaxWarps) t.n_parts = 1, t.filters = std::min(t.filters, kPiece * warp.n);
  t.splits = up(s.filters, t.filters);
  int const all_m_parts = t.m_parts;
  t.slices = up(s.groups, t.groups);
  float const elements = static_cast<float>(s.groups) * static_cast<float>(s.filters * t.chunks * kPiece);
  float best = 1e30f;
  FilterGradTile found{};
  int found_bytes = 0;
  auto const consider_parts = [&](TileChoice const& choice, int m_parts) {
    t.m_parts = m_parts, t.m_slices = up(all_m_parts, m_parts);
    t.threads = 32 * t.groups * t.m_parts * t.n_parts;
    std::int64_t const shared = std::int64_t{t.slices} * t.splits * t.m_slices;
    t.images = choice.images, t.rows = choice.rows, t.columns = choice.columns;
    lay_source(t, s.stride_h, s.stride_w, span_h, span_w, t.groups * pieces);
    t.cells = up(t.images * t.rows * t.columns, 16) * 16;
    t.y_pitch = odd_pitch(t.groups * t.filters / kPiece);
    t.y_offset = t.images * t.x_rows * t.row_pitch;
    t.stage_bytes = t.y_offset + t.cells * t.y_pitch;
    int const pixels_bytes = t.images * t.x_rows * t.x_columns * 8, tables = pixels_bytes + t.cells * 8;
    t.stages = 2 * t.stage_bytes + tables <= limits.shared_memory ? 2 : 1;
    int const bytes = t.stages * t.stage_bytes + tables;
    if (bytes > limits.shared_memory) return;
    t.across = up(s.out_w, t.columns), t.down = up(s.out_h, t.rows);
    std::int64_t const tiles = std::int64_t{up(s.images, t.images)} * t.across * t.down;
    float const warps = static_cast<float>(t.threads / 32);
    float const mma = warps * static_cast<float>(warp.m * warp.n) * Clocks::kMma;
    float const loads = warps * static_cast<float>(warp.m + (warp.n + 1) / 2) * Clocks::kMatrices;
    float const work = static_cast<float>(t.cells / 16) * (std::max(mma, loads) + 0.3f * std::min(mma, loads));
    float const memory = static_cast<float>((t.x_rows * t.x_columns * s.channels + t.rows * t.columns * t.filters) *
                                            t.images * t.groups * kElement) /
                         Clocks::kBytes;
    int const threads = std::max(t.threads, 128);
    int const resident = std::clamp(std::min(limits.shared_memory / (bytes + 1024), limits.threads / threads), 1, 8);
    std::int64_t const most = std::clamp<std::int64_t>(std::int64_t{limits.sm_count} * resident / shared, 1, tiles);
    for (std::int64_t wanted = most;; wanted /= 2) {
      std::int64_t const per_block = (tiles + wanted - 1) / wanted, parts = (tiles + per_block - 1) / per_block;
      // Threadblocks of an SM share it.
      std::int64_t const blocks =
          std::min<std::int64_t>((parts * shared + limits.sm_count - 1) / limits.sm_count, resident);
      float const sharing = static_cast<float>(blocks), busy = busy_share(t.threads / 32 * static_cast<int>(blocks));
      float const overlap = blocks > 1 || t.stages > 1 ? 0.3f : 0.8f;
      float const tile =
          std::max(work / busy, memory) + overlap * std::min(work / busy, memory) + Clocks::kGradTile / sharing;
      float const waves =
          static_cast<float>(up(static_cast<int>(parts * shared), limits.sm_count * static_cast<int>(blocks)));
      float const partial =
          parts == 1 ? 0 : Clocks::kLaunch + static_cast<float>(parts) * elements * 8 / Clocks::kPartialBytes;
      float const alone = static_cast<float>(t.cells / 16) * 2 * (mma + loads) / warps;
      float const time = static_cast<float>(per_block) * tile * sharing * waves + partial + memory + alone;
      if (time < best) {
        best = time;
        t.parts = static_cast<int>(parts);
        t.pixels_offset = t.stages * t.stage_bytes;
        t.cells_offset = t.pixels_offset + pixels_bytes;
        found = t, found_bytes = bytes;
      }
      if (wanted == 1) break;
    }
  };
  // Few images make few tiles: taps are for several threadblocks then, each of which has warps enough to load its tile.
  auto const consider = [&](TileChoice const& choice) {
    for (int parts = up(all_m_parts, up(all_m_parts, kMaxWarps));; parts = up(parts, 2)) {
      consider_parts(choice, parts);
      if (parts == 1 || t.groups * t.n_parts * up(parts, 2) < kFewestWarps) break;
    }
  };
  visit_tiles(std::min(s.images, most_images), s.out_h, s.out_w, consider);
  for (int side : {4, 2}) {
    if (best == 1e30f) consider(TileChoice{1, std::min(s.out_h, side), std::min(s.out_w, side)});
  }
  if (best == 1e30f) return false;
  t = found;
  t.by_rows = Divisor(t.rows), t.by_columns = Divisor(t.columns);
  t.by_x_rows = Divisor(t.x_rows), t.by_x_columns = Divisor(t.x_columns);
  t.by_pieces = Divisor(pieces), t.by_row_taps = Divisor(s.taps_w);
  t.sum_parts = t.parts > 8 ? 8 : t.parts > 2 ? 2 : 1;
  plan.shared_memory = found_bytes;
  plan.blocks = std::int64_t{t.slices} * t.splits * t.m_slices * t.parts;
  return true;
}

}  // namespace cutwheel::conv2d::grouped
