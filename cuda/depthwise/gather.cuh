// Depthwise convolutions in the direction in which an output gathers its taps: fprop, and dgrad, which is the same with the
// flipped filter (stride 1), or with every second tap of it (stride 2).
//
// A threadblock has a halo tile of the source, of a slice of the channels, in shared memory, where cp.async puts zeros in
// place of the padding; and the filter's taps of these channels as floats. A thread computes kRows x kColumns outputs of
// kVector channels in registers: a row of the tile is read and converted once for all of them.
#pragma once

#include <cstdint>

#include "depthwise/element.cuh"
#include "depthwise/plan.h"

namespace cutwheel::conv2d::depthwise {

struct GatherParams {
  void const* x;                          // the source
  void const* filter;                     // [channels, taps_h, taps_w]
  void const* bias;                       // [channels]; null: zeros
  void const* residual;                   // as y lies; null: zeros
  void* y;                                // the target, [images, out_h, out_w, channels]
  std::int64_t x_image, x_row, x_column;  // strides, in elements
  GatherShape shape;
  GatherTile tile;
  int epilogue;                // position in the kernel's list
  float scalars[kMaxScalars];  // of the epilogue, by position
};

template <class E, int taps_, int stride_, bool transposed_, int rows_, int columns_, int vector_, bool unrolled_>
struct Gather {
  static constexpr int kTaps = taps_;      // along a row, at once: longer rows take several turns
  static constexpr int kStride = stride_;  // of the convolution, along both dimensions
  static constexpr bool kTransposed = transposed_;
  static constexpr int kRows = rows_, kColumns = columns_, kVector = vector_;
  static constexpr bool kUnrolled = unrolled_;  // the filter has kTaps rows
  static_assert(!kTransposed || (kStride == 2 && kRows % 2 == 0 && kColumns % 2 == 0));
  static constexpr int kHalf = (kTaps - 1) / 2;
  // Pixels of a row of the source that a thread's outputs have.
  static constexpr int kPixels = kTransposed ? kHalf + kColumns / 2 : (kColumns - 1) * kStride + kTaps;

  struct Place {
    int slice, image, row, column;  // of the tile: its first channel, and its first output
    int vector, strip, group;       // of the thread
    int x_row, x_column;            // of the source, at the tile's corner
  };

  DEPTHWISE_DEVICE static Place place_of(GatherParams const& p) {
    GatherTile const& t = p.tile;
    Place at;
    Divided const slice = divide(block_index(), t.by_slices), across = divide(slice.quotient, t.by_across),
                  down = divide(across.quotient, t.by_down);
    at.slice = slice.rest * t.channels;
    at.column = across.rest * t.strips * kColumns;
    at.row = down.rest * t.groups * kRows;
    at.image = down.quotient;
    Divided const vector = divide(thread_index(), t.by_vectors), strip = divide(vector.quotient, t.by_strips);
    at.vector = vector.rest;
    at.strip = strip.rest;
    at.group = strip.quotient;
    GatherShape const& s = p.shape;
    if constexpr (kTransposed) {
      // Outputs begin where place and padding have an even sum, so that the parity of a thread's outputs is known.
      at.x_row = at.row / 2 + s.pad_h / 2 - (s.taps_h - 1) / 2;
      at.x_column = at.column / 2 + s.pad_w / 2 - kHalf;
      at.row -= s.pad_h & 1;
      at.column -= s.pad_w & 1;
    } else {
      at.x_row = at.row * kStride - s.pad_h;
      at.x_column = at.column * kStride - s.pad_w;
    }
    return at;
  }

  // Starts the copy of the halo tile: [rows, columns, channels].
  DEPTHWISE_DEVICE static void load_tile(GatherParams const& p, Place const& at, E* tile) {
    GatherTile const& t = p.tile;
    constexpr int kPiece = 16 / static_cast<int>(sizeof(E));
    Divided const piece = divide(thread_index(), t.by_pieces);
    int const lane = piece.quotient;
    if (lane >= t.lanes) return;
    Divided const place = divide(lane, t.by_columns);
    int row = place.quotient, column = place.rest;
    int const channel = at.slice + piece.rest * kPiece;
    bool const has_channel = channel < p.shape.channels;
    E const* const source = static_cast<E const*>(p.x) + at.image * p.x_image + channel;
    E* target = tile + lane * t.channels + piece.rest * kPiece;
    while (row < t.tile_rows) {
      int const h = at.x_row + row, w = at.x_column + column;
      bool const inside = has_channel && h >= 0 && h < p.shape.in_h && w >= 0 && w < p.shape.in_w;
      E const* const from = inside ? source + h * p.x_row + w * p.x_column : static_cast<E const*>(p.x);
      copy_async_16(target, from, inside);
      target += t.lanes * t.channels;
      row += t.row_step;
      column += t.column_step;
      if (column >= t.tile_columns) {
        column -= t.tile_columns;
        ++row;
      }
    }
  }

  // Taps of filter rows [first, first + count), as [rows, round_up(taps_w, kTaps), channels]: the rest are zeros.
  DEPTHWISE_DEVICE static void load_filter(GatherParams const& p, Place const& at, float* taps, int first, int count) {
    GatherTile const& t = p.tile;
    GatherShape const& s = p.shape;
    int const height = kUnrolled ? kTaps : s.taps_h, row_taps = kUnrolled ? kTaps : s.taps_w;
    int const pitch = t.filter_pitch, padded = kUnrolled ? kTaps : t.padded_taps;
    int const all = height * row_taps, each = kUnrolled ? all : count * row_taps, thread = thread_index();
    int const channels = min_of(t.channels, s.channels - at.slice);
    E const* const filter = static_cast<E const*>(p.filter) + static_cast<std::int64_t>(at.slice) * all;
    if (padded != row_taps) {
      for (int i = thread; i < count * (padded - row_taps) * t.channels; i += t.threads) {
        int const channel = i % t.channels, slot = i / t.channels;
        int const row = slot / (padded - row_taps), column = row_taps + slot % (padded - row_taps);
        taps[(row * padded + column) * pitch + channel] = 0;
      }
    }
    constexpr int kAtOnce = 8;
    int const total = channels * each;
    if (each == all) {
      // All of a channel's taps, one channel behind the other: pieces of 16 bytes, of which the last may be a part.
      constexpr int kPiece = 16 / static_cast<int>(sizeof(E));
      for (int i = thread * kPiece; i < total; i += t.threads * kPiece) {
        float values[kPiece];
        load_filter_piece<E, kPiece>(filter + i, total - i, values);
        Divided const tap = divide(i, t.by_taps), place = divide(tap.rest, t.by_row_taps);
        int channel = tap.quotient, row = place.quotient, column = place.rest;
#pragma unroll
        for (int j = 0; j < kPiece; ++j) {
          int const to_row = s.flipped ? height - 1 - row : row, to_column = s.flipped ? row_taps - 1 - column : column;
          if (i + j < total) taps[(to_row * padded + to_column) * pitch + channel] = values[j];
          if (++column == row_taps) {
            column = 0;
            if (++row == height) row = 0, ++channel;
          }
        }
      }
      return;
    }
    for (int i = thread; i < total; i += t.threads * kAtOnce) {
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        int const k = i + j * t.threads;
        if (k >= total) break;
        int const channel = k / each, tap = first * row_taps + (k - channel * each);
        int const from = s.flipped ? all - 1 - tap : tap;
        int const row = tap / row_taps - first, column = tap % row_taps;
        taps[(row * padded + column) * pitch + channel] = to_float(filter[static_cast<std::int64_t>(channel) * all + from]);
      }
    }
  }

  using Sums = float[kRows][kColumns][kVector];

  DEPTHWISE_DEVICE static void multiply(float (&sums)[kColumns][kVector], float const (&pixels)[kPixels][kVector],
                                        float const* taps, int pitch) {
#pragma unroll
    for (int s = 0; s < kTaps; ++s) {
      float tap[kVector];
      load_floats<kVector>(taps + s * pitch, tap);
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        // Transposed: output j has tap s of pixel i where j + 2 kHalf = s + 2 i.
        bool const meets = !kTransposed || (j + s) % 2 == 0;
        int const i = kTransposed ? (j + 2 * kHalf - s) / 2 : j * kStride + s;
        if (!meets || i < 0 || i >= kPixels) continue;
#pragma unroll
        for (int v = 0; v < kVector; ++v) sums[j][v] += pixels[i][v] * tap[v];
      }
    }
  }

  // Adds the taps of filter rows [first, first + count), of columns from `column` on.
  DEPTHWISE_DEVICE static void add_rows(Sums& sums, GatherParams const& p, E const* tile, float const* taps, int first,
                                        int count) {
    GatherTile const& t = p.tile;
    int const row_pitch = t.tile_columns * t.channels, padded = kUnrolled ? kTaps : t.padded_taps;
    auto const load_row = [&](float (&pixels)[kPixels][kVector], E const* from) {
#pragma unroll
      for (int i = 0; i < kPixels; ++i) load_vector<E, kVector>(from + i * t.channels, pixels[i]);
    };
    if constexpr (kTransposed) {
      int const half = (p.shape.taps_h - 1) / 2;
      auto const one = [&](int i) {
        float pixels[kPixels][kVector];
        load_row(pixels, tile + i * row_pitch);
#pragma unroll
        for (int row = 0; row < kRows; ++row) {
          int const r = row + 2 * half - 2 * i;
          if (r >= 0 && r < p.shape.taps_h) {
            multiply(sums[row], pixels, taps + r * padded * t.filter_pitch, t.filter_pitch);
          }
        }
      };
      if constexpr (kUnrolled) {
#pragma unroll
        for (int i = 0; i < kHalf + kRows / 2; ++i) one(i);
      } else {
#pragma unroll 1
        for (int i = 0; i < half + kRows / 2; ++i) one(i);
      }
    } else {
      auto const one = [&](int i, int rows) {
        float pixels[kPixels][kVector];
        load_row(pixels, tile + (first + i) * row_pitch);
#pragma unroll
        for (int row = 0; row < kRows; ++row) {
          int const r = i - row * kStride;
          if (r >= 0 && r < rows) {
            multiply(sums[row], pixels, taps + r * padded * t.filter_pitch, t.filter_pitch);
          }
        }
      };
      if constexpr (kUnrolled) {
#pragma unroll
        for (int i = 0; i < kTaps + (kRows - 1) * kStride; ++i) one(i, kTaps);
      } else {
#pragma unroll 1
        for (int i = 0; i < count + (kRows - 1) * kStride; ++i) one(i, count);
      }
    }
  }

  template <class Epilogues>
  DEPTHWISE_DEVICE static void run(GatherParams const& p) {
    GatherTile const& t = p.tile;
    Place const at = place_of(p);
    char* const memory = shared_memory();
    E* const tile = reinterpret_cast<E*>(memory);
    float* const taps = reinterpret_cast<float*>(memory + t.filter_offset);
    load_tile(p, at, tile);
    Sums sums;
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
#pragma unroll
        for (int v = 0; v < kVector; ++v) sums[row][j][v] = 0;
      }
    }
    bool const works = at.group < t.groups;
    int const row_step = kTransposed ? kRows / 2 : kRows * kStride,
              column_step = kTransposed ? kColumns / 2 : kColumns * kStride;
    E const* const corner =
        tile + (at.group * row_step * t.tile_columns + at.strip * column_step) * t.channels + at.vector * kVector;
    int const height = kUnrolled ? kTaps : p.shape.taps_h, rows_at_once = kUnrolled ? kTaps : t.filter_rows;
#pragma unroll 1
    for (int first = 0; first < height; first += rows_at_once) {
      int const count = min_of(rows_at_once, height - first);
      if (first > 0) synchronize();
      load_filter(p, at, taps, first, count);
      if (first == 0) wait_for_copies();
      synchronize();
      if (!works) continue;
      if constexpr (kUnrolled || kTransposed) {
        add_rows(sums, p, corner, taps + at.vector * kVector, first, count);
      } else {
#pragma unroll 1
        for (int s = 0; s < t.padded_taps; s += kTaps) {
          add_rows(sums, p, corner + s * t.channels, taps + s * t.filter_pitch + at.vector * kVector, first, count);
        }
      }
    }
    finish<Epilogues>(p, at, sums, memory, works);
  }

  template <class Epilogues>
  DEPTHWISE_DEVICE static void finish(GatherParams const& p, Place const& at, Sums& sums, char* memory, bool works) {
    GatherTile const& t = p.tile;
    GatherShape const& s = p.shape;
    int const channel = at.slice + at.vector * kVector;
    int const row = at.row + at.group * kRows, column = at.column + at.strip * kColumns;
    works = works && channel < s.channels;
    float bias[kVector];
#pragma unroll
    for (int v = 0; v < kVector; ++v) bias[v] = 0;
    if (p.bias && works) load_vector<E, kVector>(static_cast<E const*>(p.bias) + channel, bias);
    std::int64_t const row_pitch = static_cast<std::int64_t>(s.out_w) * s.channels;
    std::int64_t const corner = (static_cast<std::int64_t>(at.image) * s.out_h + row) * row_pitch +
                                static_cast<std::int64_t>(column) * s.channels + channel;
    E* const y = static_cast<E*>(p.y) + corner;
    auto const exists = [&](int i, int j) {
      return row + i >= 0 && row + i < s.out_h && column + j >= 0 && column + j < s.out_w;
    };
    if (Epilogues::kCount <= Epilogues::kSums || p.epilogue < Epilogues::kSums) {  // the sums, and the bias
      if (!works) return;
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
#pragma unroll
        for (int j = 0; j < kColumns; ++j) {
#pragma unroll
          for (int v = 0; v < kVector; ++v) sums[i][j][v] += bias[v];
          if (exists(i, j)) {
            store_vector<E, kVector>(y + i * row_pitch + static_cast<std::int64_t>(j) * s.channels, sums[i][j]);
          }
        }
      }
      return;
    }
    // The code of all epilogues, for each of a thread's outputs, would be too much of it. So the sums go to shared memory,
    // whence a loop takes one output after the other.
    synchronize();
    constexpr int kOutputs = kRows * kColumns;
    float* const staged = reinterpret_cast<float*>(memory) + thread_index() * kVector;
    Raw<E, kVector>* const added =
        reinterpret_cast<Raw<E, kVector>*>(memory + static_cast<std::size_t>(kOutputs) * t.threads * kVector * 4) +
        thread_index();
    if (!works) return;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        int const k = i * kColumns + j;
        store_floats<kVector>(staged + static_cast<std::size_t>(k) * t.threads * kVector, sums[i][j]);
      }
    }
    if (p.residual) {
      E const* const residual = static_cast<E const*>(p.residual) + corner;
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
#pragma unroll
        for (int j = 0; j < kColumns; ++j) {
          if (exists(i, j)) {
            added[static_cast<std::size_t>(i * kColumns + j) * t.threads] = *reinterpret_cast<Raw<E, kVector> const*>(
                residual + i * row_pitch + static_cast<std::int64_t>(j) * s.channels);
          }
        }
      }
    }
#pragma unroll 1
    for (int k = 0; k < kOutputs; ++k) {
      int const i = k / kColumns, j = k % kColumns;
      if (!exists(i, j)) continue;
      float sum[kVector], addend[kVector], result[kVector];
      load_floats<kVector>(staged + static_cast<std::size_t>(k) * t.threads * kVector, sum);
#pragma unroll
      for (int v = 0; v < kVector; ++v) addend[v] = 0;
      if (p.residual) {
        load_vector<E, kVector>(reinterpret_cast<E const*>(added + static_cast<std::size_t>(k) * t.threads), addend);
      }
      Epilogues::template apply<kVector>(p.epilogue, p.scalars, sum, bias, addend, result);
      store_vector<E, kVector>(y + i * row_pitch + static_cast<std::int64_t>(j) * s.channels, result);
    }
  }
};

}  // namespace cutwheel::conv2d::depthwise
