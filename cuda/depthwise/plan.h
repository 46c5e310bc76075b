// How depthwise convolutions are divided among threadblocks and threads.
#pragma once

#include <algorithm>
#include <cstdint>

namespace cutwheel::conv2d::depthwise {

// A divisor of numbers below 2^31, by which kernels divide in a multiplication and a shift: Granlund and Montgomery,
// "Division by invariant integers using multiplication", 1994. The time of a division counts where a threadblock has little
// to do.
struct Divisor {
  int divisor = 1;
  unsigned multiplier = 0, shift = 0;

  Divisor() = default;
  explicit Divisor(int by) : divisor(by) {
    unsigned bits = 0;
    while ((std::uint64_t{1} << bits) < static_cast<std::uint64_t>(by)) ++bits;
    if (bits == 0) return;
    shift = bits - 1;
    auto const wide = static_cast<std::uint64_t>(by);
    multiplier = static_cast<unsigned>(((std::uint64_t{1} << (31 + bits)) + wide - 1) / wide);
  }
};

// Outputs [images, out_h, out_w] of a source [images, in_h, in_w]. Kernels are made for a stride, and have no dilation;
// only those for anything read the numbers of it here.
struct GatherShape {
  int images, channels, in_h, in_w, out_h, out_w, taps_h, taps_w, pad_h, pad_w;
  int stride_h, stride_w, dilation_h, dilation_w;
  bool flipped;     // the filter's taps are read in reverse
  bool transposed;  // for anything: the gradient of the input
};

struct GatherTile {
  int channels;                 // of a threadblock
  int vectors, strips, groups;  // threads: along channels, columns and rows
  int threads;
  int slices, across, down;          // threadblocks: along channels, columns and rows
  int tile_rows, tile_columns;       // of the source, in shared memory
  int padded_taps, filter_rows;      // taps of a row with zeros behind them; rows in shared memory at once
  int filter_pitch, filter_offset;   // of the taps of a column, in floats; of the filter in shared memory, in bytes
  int lanes, row_step, column_step;  // threads that copy a vector of 16 bytes, and how far each goes from pixel to pixel
  Divisor by_slices, by_across, by_down, by_vectors, by_strips, by_pieces, by_columns, by_taps, by_row_taps;
};

struct FilterGradShape {
  int images, channels, in_h, in_w, out_h, out_w, taps_h, taps_w, pad_h, pad_w;
  int stride_h, stride_w, dilation_h, dilation_w;
};

struct FilterGradTile {
  int channels;         // of a threadblock
  int vectors, groups;  // warps: along channels, and that share the places of a tile
  int threads;
  int slices, row_parts, column_parts;  // threadblocks: along channels, and along the filter
  int parts;                            // threadblocks that share the images
  int rows, strips;                     // of a tile of the output's gradient, of 8 x 8 places
  int across, down;                     // tiles of an image
  int x_rows, x_columns, y_columns;     // in shared memory
  int pitch;                            // of a pixel in shared memory, in elements
  int y_offset, stage_bytes;
};

// What a kernel is instantiated for, and what a launch must fit into.
struct GatherKernel {
  int taps, stride;           // along a row
  bool transposed, unrolled;  // as in Gather
  int rows, columns, vector;  // outputs of a thread
  int element_bytes;
};
struct Limits {
  int threads, shared_memory, sm_count;
};

constexpr int up(int a, int b) { return (a + b - 1) / b; }

// Slices of the channels: few that are not there, about `wanted`, whole sectors of memory. A power of two, if asked for:
// threads of neighbouring pixels read different banks then.
inline int channels_of_slice(int channels, int wanted, int most, bool power_of_two) {
  int best = 8;
  float least = 1e9f;
  for (int slice = 8; slice <= std::min(most, (channels + 7) / 8 * 8); slice += 8) {
    float const waste = static_cast<float>(up(channels, slice) * slice) / static_cast<float>(channels) - 1;
    float const ratio = static_cast<float>(slice) / static_cast<float>(wanted);
    float const cost = waste + 0.06f * (ratio > 1 ? ratio - 1 : 1 / ratio - 1) + (slice % 16 ? 0.05f : 0) +
                       (power_of_two && slice & (slice - 1) ? 0.06f : 0);
    if (cost < least) least = cost, best = slice;
  }
  return best;
}

// `count` in as many equal parts as parts of at most `most` take: the size of one.
inline int even_part(int count, int most) { return up(count, up(count, most)); }

struct GatherPlan {
  GatherTile tile{};
  std::int64_t blocks = 0;
  int shared_memory = 0;
};

// Whether there is a plan with slices of about so many channels and so many threads. `staged_bytes`: of an element that
// passes through shared memory at the end.
inline bool plan_slices(GatherPlan& plan, GatherKernel const& k, GatherShape const& s, Limits const& limits,
                        int staged_bytes, int wanted_channels, int wanted_threads) {
  constexpr int kFilterBytes = 24 * 1024;
  GatherTile& t = plan.tile;
  int const out_h = s.out_h + (k.transposed ? s.pad_h & 1 : 0), out_w = s.out_w + (k.transposed ? s.pad_w & 1 : 0);
  int const lines = up(out_h, k.rows), columns = up(out_w, k.columns);
  int channels = channels_of_slice(s.channels, wanted_channels, 96, /*power_of_two=*/!k.transposed);
  int strips = even_part(columns, k.stride == 2 ? 2 : 4);  // tall tiles behind a stride
  for (;;) {
    t.channels = channels, t.vectors = channels / k.vector, t.strips = strips;
    t.groups = even_part(lines, std::max(1, wanted_threads / (t.vectors * strips)));
    for (;; t.groups = up(t.groups, 2)) {
      t.threads = t.vectors * t.strips * t.groups;
      if (k.transposed) {
        t.tile_rows = t.groups * k.rows / 2 + (s.taps_h - 1) / 2;
        t.tile_columns = t.strips * k.columns / 2 + (k.taps - 1) / 2;
        t.padded_taps = k.taps;
      } else {
        t.padded_taps = up(s.taps_w, k.taps) * k.taps;
        t.tile_rows = (t.groups * k.rows - 1) * k.stride + s.taps_h;
        t.tile_columns = (t.strips * k.columns - 1) * k.stride + t.padded_taps;
      }
      t.filter_pitch = channels + 4;
      std::int64_t const row_bytes = std::int64_t{4} * t.padded_taps * t.filter_pitch;
      bool const at_once = k.unrolled || k.transposed;
      t.filter_rows =
          at_once ? s.taps_h : static_cast<int>(std::clamp<std::int64_t>(kFilterBytes / row_bytes, 1, s.taps_h));
      std::int64_t const tile_bytes = std::int64_t{t.tile_rows} * t.tile_columns * channels * k.element_bytes;
      std::int64_t const staged = std::int64_t{staged_bytes} * k.rows * k.columns * k.vector * t.threads;
      std::int64_t const bytes = std::max(tile_bytes + row_bytes * t.filter_rows, staged);
      if (t.threads <= limits.threads && bytes <= limits.shared_memory) {
        t.filter_offset = static_cast<int>(tile_bytes);
        t.slices = up(s.channels, channels), t.across = up(columns, strips), t.down = up(lines, t.groups);
        int const pieces = channels * k.element_bytes / 16;
        t.lanes = t.threads / pieces;
        t.row_step = t.lanes / t.tile_columns, t.column_step = t.lanes % t.tile_columns;
        t.by_slices = Divisor(t.slices), t.by_across = Divisor(t.across), t.by_down = Divisor(t.down);
        t.by_vectors = Divisor(t.vectors), t.by_strips = Divisor(t.strips), t.by_pieces = Divisor(pieces);
        t.by_columns = Divisor(t.tile_columns);
        t.by_taps = Divisor(s.taps_h * s.taps_w), t.by_row_taps = Divisor(s.taps_w);
        plan.shared_memory = static_cast<int>(bytes);
        plan.blocks = std::int64_t{t.slices} * t.across * t.down * s.images;
        return true;
      }
      if (t.groups == 1) break;
    }
    if (channels > 16) {
      channels = 16;
    } else if (strips > 1) {
      strips = up(strips, 2);
    } else if (channels > 8) {
      channels = 8;
    } else {
      return false;
    }
  }
}

// Measured on an H100: 32 channels and 128 threads of four channels, 256 of two; twice the channels of the smallest images.
// And on an H200: half of the channels and 128 threads where that leaves SMs without a threadblock.
inline bool plan_gather(GatherPlan& plan, GatherKernel const& k, GatherShape const& s, Limits const& limits,
                        int staged_bytes) {
  constexpr int kFewChannels = 16, kFewThreads = 128;
  int const out_h = s.out_h + (k.transposed ? s.pad_h & 1 : 0), out_w = s.out_w + (k.transposed ? s.pad_w & 1 : 0);
  bool const is_small = k.vector == 2 && up(out_h, k.rows) * up(out_w, k.columns) <= 4 &&
                        std::int64_t{s.images} * s.channels > 64 * limits.sm_count;
  int const threads = std::min(limits.threads, 512 / k.vector);
  if (!plan_slices(plan, k, s, limits, staged_bytes, is_small ? 64 : 32, threads)) return false;
  if (plan.blocks >= limits.sm_count) return true;
  plan = {};
  return plan_slices(plan, k, s, limits, staged_bytes, kFewChannels, std::min(threads, kFewThreads));
}

struct FilterGradPlan {
  FilterGradTile tile{};
  std::int64_t blocks = 0;
  int shared_memory = 0;
};

inline bool plan_filter_grad(FilterGradPlan& plan, int taps, int stride, FilterGradShape const& s, Limits const& limits) {
  constexpr int kSide = 8, kElement = 2;
  FilterGradTile& t = plan.tile;
  int const across = up(s.out_w, kSide), down = up(s.out_h, kSide);
  t.row_parts = up(s.taps_h, taps), t.column_parts = up(s.taps_w, taps);
  bool const is_small = std::int64_t{s.images} * across * down * s.channels < std::int64_t{512} * limits.sm_count;
  bool const few_places = across * down == 1;
  t.strips = std::min(2, across), t.rows = std::min(2, down);
  // Measured on an H100: small tiles of 32 channels, or large ones of 16, whose halo is smaller; with few threadblocks, as
  // many warps as a tile has work for.
  int const warps = is_small || (taps == 3 && !few_places) ? 8 : 4;
  bool const is_wide = taps == 3 || few_places || across * down > 4;
  int const wanted = is_small && !few_places ? (s.channels >= 512 ? 8 : 16) : is_wide ? 32 : 16;
  t.channels = channels_of_slice(s.channels, wanted, 8 * warps, /*power_of_two=*/false);
  bool const shrinks = !is_small && (stride == 2 || (taps == 7 && is_wide) || t.channels > 32);
  if (shrinks && t.strips == 2) t.rows = 1;
  for (;;) {
    // An odd number of 16 bytes from pixel to pixel, so that the eight of a matrix lie in different banks.
    t.pitch = t.channels / 8 % 2 ? t.channels : t.channels + 8;
    t.vectors = t.channels / 8;
    t.groups = std::clamp(warps / t.vectors, 1, t.rows * t.strips);
    t.threads = 32 * t.vectors * t.groups;
    t.x_rows = (t.rows * kSide - 1) * stride + taps, t.x_columns = (t.strips * kSide - 1) * stride + taps;
    t.y_columns = t.strips * kSide;
    t.y_offset = t.x_rows * t.x_columns * t.pitch * kElement;
    t.stage_bytes = t.y_offset + t.rows * kSide * t.y_columns * t.pitch * kElement;
    plan.shared_memory = std::max(2 * t.stage_bytes, t.groups * taps * taps * t.channels * 4);
    if (plan.shared_memory <= limits.shared_memory) break;
    if (t.rows > 1) {
      t.rows = 1;
    } else if (t.strips > 1) {
      t.strips = 1;
    } else if (t.channels > 8) {
      t.channels = 8;
    } else {
      return false;
    }
  }
  t.across = up(across, t.strips), t.down = up(down, t.rows);
  t.slices = up(s.channels, t.channels);
  // Registers of a thread, as compiled.
  int const registers = taps == 3 ? 88 + 16 * stride : taps == 5 ? 136 + 8 * stride : 200 + 8 * stride;
  int const resident =
      std::clamp(std::min(65536 / (registers * t.threads), limits.shared_memory / plan.shared_memory), 1, 8);
  std::int64_t const tiles = std::int64_t{s.images} * t.across * t.down;
  std::int64_t const shared = std::int64_t{t.slices} * t.row_parts * t.column_parts;
  std::int64_t const most =
      std::clamp<std::int64_t>(std::int64_t{limits.sm_count} * resident / shared, 1, std::min<std::int64_t>(tiles, 4096));
  std::int64_t const each = (tiles + most - 1) / most;
  t.parts = static_cast<int>((tiles + each - 1) / each);
  plan.blocks = shared * t.parts;
  return true;
}

}  // namespace cutwheel::conv2d::depthwise
