// Sixteen rows of a result on their way from a warp's registers to memory, through shared memory.
#pragma once

#include <cuda.h>
#include <cutlass/arch/barrier.h>
#include <cute/arch/copy_sm90.hpp>
#include <cute/arch/copy_sm90_tma.hpp>

#include <algorithm>

#include "epilogue/apply.cuh"
#include "sm90/native/load/tensor_map.cuh"
#include "sm90/native/scheduler/work_tile.cuh"

namespace cutwheel::gemm {

// Address of byte `at` of a row of the GEMM; null where D has no such row or column. Coordinates that move rows or columns
// have row(row) and column(column), -1 for none, and keep 16 bytes that begin at a multiple of 16 together. Some know D as
// an image (kHasMaps): `map` is its tensor map, of encode_image_map() or null, pixel(row) a place in it, width() that of
// its rows.
template <class Frame>
CUTLASS_DEVICE std::uint8_t* place_in_frame(Frame const& coordinates, std::uint8_t* data, std::int64_t pitch, int row,
                                            std::int64_t at, int column_bytes) {
  if constexpr (Frame::kAlways) {
    return data + row * pitch + at;
  } else {
    int const own_row = coordinates.row(row), own_column = coordinates.column(static_cast<int>(at / column_bytes));
    return own_row < 0 || own_column < 0 ? nullptr : data + own_row * pitch + std::int64_t{own_column} * column_bytes;
  }
}

// Stores rows that begin anywhere, in words of four bytes, which follow each other in memory. `data`: of the first row;
// `staged(row, byte)`: where four bytes lie in shared memory. A warp stores 128 bytes of a row at once, or less rows of
// less. Loops are unrolled as far as latencies ask for it: whatever stands here a kernel has once for each block of its
// results, and a build compiles.
template <int rows, int kRowBytes, int unit, int threads, class Staged>
CUTLASS_DEVICE void store_unaligned_rows(std::uint8_t* data, std::int64_t pitch, int rows_left, int row_bytes, int thread,
                                         Staged const& staged) {
  constexpr int kLine = std::min(kRowBytes & -kRowBytes, 128), kLanes = kLine / 4;
  constexpr int kAtOnce = threads / kLanes, kLines = kRowBytes / kLine, kSteps = rows / kAtOnce;
  constexpr int kTogether = std::min(kSteps & -kSteps, 8);
  static_assert(rows % kAtOnce == 0);
  int const lane = thread % kLanes;
#pragma unroll 1
  for (int line = 0; line < kLines; ++line) {
    int const at = line * kLine + lane * 4;
    if (at >= row_bytes) break;
    bool const is_first = at == 0, is_whole = unit == 4 || at + 4 <= row_bytes;
    bool const is_last = is_whole && (at + 4 >= row_bytes || at + 4 == kRowBytes);
#pragma unroll 1
    for (int first = 0; first < kSteps * kAtOnce; first += kTogether * kAtOnce) {
      std::uint32_t own[kTogether], before[kTogether];
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kTogether; ++i) {
        int const row = first + i * kAtOnce + thread / kLanes;
        own[i] = *reinterpret_cast<std::uint32_t const*>(staged(row, at));
        if (unit == 2) before[i] = *reinterpret_cast<std::uint32_t const*>(staged(row, is_first ? 0 : at - 4));
      }
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kTogether; ++i) {
        int const row = first + i * kAtOnce + thread / kLanes;
        std::uint8_t* const to = data + row * pitch + at;
        if (row >= rows_left) continue;
        if constexpr (unit == 4) {
          *reinterpret_cast<std::uint32_t*>(to) = own[i];
        } else {
          // Where a row begins between two words, each word has the end of one pair of elements and the start of the next.
          bool const odd = reinterpret_cast<std::uintptr_t>(to) % 4 != 0;
          if (odd ? !is_first : is_whole) {
            *reinterpret_cast<std::uint32_t*>(to - 2 * odd) = odd ? __funnelshift_r(before[i], own[i], 16) : own[i];
          } else {
            *reinterpret_cast<std::uint16_t*>(to) = static_cast<std::uint16_t>(own[i]);
          }
          if (odd && is_last) *reinterpret_cast<std::uint16_t*>(to + 2) = static_cast<std::uint16_t>(own[i] >> 16);
        }
      }
    }
  }
}

// Rows of `columns` accumulator columns, `column_bytes` of the result for each; `unit` bytes are one element of it. Their
// layout is TMA's: pieces of kPieceBytes, one row below the other, swizzled against bank conflicts (those of 16 bytes have
// none).
template <int columns, int column_bytes, int unit>
struct Sm90StagedRows {
  static constexpr int kRowBytes = columns * column_bytes;
  static constexpr int kBytes = 16 * kRowBytes;
  static constexpr int kPieceBytes = std::min(kRowBytes & -kRowBytes, 128);
  static constexpr int kPieces = kRowBytes / kPieceBytes;
  static_assert(kRowBytes % kPieceBytes == 0 && kPieceBytes >= 16 && (unit == 1 || unit == 2 || unit == 4));
  static constexpr int kPieceColumns = kPieceBytes / column_bytes, kHalf = 8;
  static constexpr auto kSwizzle = kPieceBytes == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                                   : kPieceBytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                   : kPieceBytes == 32 ? CU_TENSOR_MAP_SWIZZLE_32B
                                                       : CU_TENSOR_MAP_SWIZZLE_NONE;

  // The tensor map of a result of m x n accumulators.
  static void encode_map(CUtensorMap& map, void* data, std::int64_t pitch, std::int64_t batch_stride, int m, int n,
                         int batch) {
    encode_stored_map(map, data, pitch, batch_stride, m, std::int64_t{n} * column_bytes, batch,
                      {kPieceBytes, 16, kPieces, kSwizzle});
  }

  // For encode_image_map(): half of the rows, which are successive pixels, and one piece of their channels.
  static constexpr StoredBox kImageBox{kPieceBytes, kHalf, 1, kSwizzle};

  // Until this warp's copies, but for those of the last `others` calls of send(), have read their rows, so that others may
  // take their place.
  template <int others = 0>
  CUTLASS_DEVICE static void wait_until_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(others) : "memory");
    __syncwarp();
  }

  // results[j][r]: columns 8 j + 2 (lane % 4) and the next one, of row `lane / 4 + 8 r`.
  template <class Result>
  CUTLASS_DEVICE static void put(std::uint8_t* staged, Result const (&results)[columns / 8][2], int lane) {
    static_assert(sizeof(Result) == 2 * column_bytes);
    CUTLASS_PRAGMA_UNROLL
    for (int j = 0; j < columns / 8; j += 2) {
      bool const is_pair = columns % 16 == 0 || j + 1 < columns / 8;
      if constexpr (column_bytes == 2) {
        if (!is_pair) {
          std::uint32_t words[2];
          memcpy(words, results[j], sizeof(words));
          auto* const to = staged + offset_of(lane % 16, 16 * j, 0);
          cute::SM90_U32x2_STSM_N::copy(words[0], words[1], *reinterpret_cast<cute::uint128_t*>(to));
          continue;
        }
        std::uint32_t words[4];
        memcpy(words, results[j], sizeof(words));
        // Lanes name rows: 0 to 15 those of the first 8 columns, 16 to 31 of the next 8.
        auto* const to = staged + offset_of(lane % 16, 16 * j, lane / 16 * 16);
        cute::SM90_U32x4_STSM_N::copy(words[0], words[1], words[2], words[3], *reinterpret_cast<cute::uint128_t*>(to));
      } else {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < (is_pair ? 4 : 2); ++i) {
          auto* const to =
              staged + offset_of(8 * (i % 2) + lane / 4, 8 * (j + i / 2) * column_bytes, 2 * (lane % 4) * column_bytes);
          memcpy(__builtin_assume_aligned(to, 2 * column_bytes), &results[j + i / 2][i % 2], 2 * column_bytes);
        }
      }
    }
  }

  // Stores from this row and column of the GEMM on: only rows and columns that the problem has, and not a byte more.
  // `by_tma`: the result is_tma_storable().
  template <class Frame>
  CUTLASS_DEVICE static void send(CUtensorMap const& map, bool by_tma, std::uint8_t* data, std::int64_t pitch,
                                  std::int64_t batch_stride, std::uint8_t const* staged, Sm90WorkTile const& work, int row,
                                  int column, int lane, Frame const& coordinates) {
    if constexpr (Frame::kHasMaps) {
      if (coordinates.map) {
        send_image(data, pitch, staged, work, row, column, lane, coordinates);
        return;
      }
    }
    bool whole = by_tma && row + 16 <= work.end_m && column + columns <= work.end_n;
    if constexpr (!Frame::kAlways) whole = whole && coordinates.is_same();
    if (whole) cutlass::arch::fence_view_async_shared();
    __syncwarp();
    if (!whole) {
      store_rest(data, by_tma, pitch, batch_stride, staged, work, row, column, lane, coordinates);
    } else if (lane == 0) {
      // One copy for all rows and columns; nothing waits for its arrival.
      cute::SM90_TMA_STORE_4D::copy(&map, staged, 0, row, column / kPieceColumns, work.d_batch);
    }
    cute::tma_store_arrive();  // a group for each call, if an empty one
  }

  // The same by the threads of the warp. `aligned`: rows of D begin on 16 bytes.
  CUTLASS_DEVICE static void write(std::uint8_t* data, std::int64_t pitch, std::int64_t batch_stride, bool aligned,
                                   std::uint8_t const* staged, Sm90WorkTile const& work, int row, int column, int lane) {
    __syncwarp();
    if (aligned && row + 16 <= work.end_m && column + columns <= work.end_n) {
      constexpr int kChunks = kRowBytes / 16;
      std::uint8_t* const first = data + work.d_batch * batch_stride + row * pitch + std::int64_t{column} * column_bytes;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < 16 * kChunks; i += 32) {
        int const own = (i + lane) / kChunks, at = (i + lane) % kChunks * 16, piece = at / kPieceBytes * kPieceBytes;
        if (16 * kChunks % 32 != 0 && i + lane >= 16 * kChunks) break;
        *reinterpret_cast<uint4*>(first + own * pitch + at) =
            *reinterpret_cast<uint4 const*>(staged + offset_of(own, piece, at - piece));
      }
    } else {
      store_rest(data, aligned, pitch, batch_stride, staged, work, row, column, lane, Sm90IdentityCoordinates{});
    }
  }

 private:
  // Rows that are no whole ones, or begin anywhere.
  template <class Frame>
  CUTLASS_DEVICE static void store_rest(std::uint8_t* data, bool aligned, std::int64_t pitch, std::int64_t batch_stride,
                                        std::uint8_t const* staged, Sm90WorkTile const& work, int row, int column, int lane,
                                        Frame const& coordinates) {
    if (unit > 1 && !aligned) {  // rows of 8-bit results are storable
      int const left = static_cast<int>(std::min<std::int64_t>(work.end_n - column, columns)) * column_bytes;
      std::uint8_t* const first = data + work.d_batch * batch_stride + row * pitch + std::int64_t{column} * column_bytes;
      store_unaligned_rows<16, kRowBytes, unit, 32>(first, pitch, work.end_m - row, left, lane, [&](int r, int at) {
        int const piece = at / kPieceBytes * kPieceBytes;
        return staged + offset_of(r, piece, at - piece);
      });
    } else {
      write_part(data + work.d_batch * batch_stride, pitch, staged, work, row, column, lane, coordinates);
    }
  }

  // Offset of byte `first + rest` of a row, where `first` is known to the compiler. Both lie in one piece, unless these
  // have 16 bytes.
  CUTLASS_DEVICE static int offset_of(int row, int first, int rest) {
    int const at = first + rest, piece = (kPieceBytes == 16 ? at : first) / kPieceBytes;
    int const swizzle = row * kPieceBytes / 128 % (kPieceBytes / 16) * 16;
    return (piece * 16 + row) * kPieceBytes + ((at - piece * kPieceBytes) ^ swizzle);
  }

  // By TMA where the pixels of half of the rows lie in one row of the image.
  template <class Frame>
  CUTLASS_DEVICE static void send_image(std::uint8_t* data, std::int64_t pitch, std::uint8_t const* staged,
                                        Sm90WorkTile const& work, int row, int column, int lane, Frame const& coordinates) {
    cutlass::arch::fence_view_async_shared();
    __syncwarp();
    auto const pixel = coordinates.pixel(row + lane % 2 * kHalf);
    bool const whole = pixel.w + kHalf <= coordinates.width();
    if (whole && lane < 2) {
      CUTLASS_PRAGMA_UNROLL
      for (int piece = 0; piece < kPieces; ++piece) {
        int const first = column + piece * kPieceColumns;
        if (first >= work.end_n) break;
        cute::SM90_TMA_STORE_5D::copy(coordinates.map, staged + (piece * 16 + lane * kHalf) * kPieceBytes, first, pixel.w,
                                      pixel.h, pixel.d, pixel.image);
      }
    }
    cute::tma_store_arrive();
    unsigned const stored = __ballot_sync(0xffffffff, whole) & 3;
    if (stored != 3) write_part(data, pitch, staged, work, row, column, lane, coordinates, stored);
  }

  // `stored`: a bit for each half of the rows, which is left out.
  template <class Frame>
  CUTLASS_DEVICE static void write_part(std::uint8_t* data, std::int64_t pitch, std::uint8_t const* staged,
                                        Sm90WorkTile const& work, int first_row, int first_column, int lane,
                                        Frame const& coordinates, unsigned stored = 0) {
    constexpr int kChunks = kRowBytes / 16;
    std::int64_t const first_byte = std::int64_t{first_column} * column_bytes;
    int const row_bytes =
        static_cast<int>(std::min<std::int64_t>(std::int64_t{work.end_n} * column_bytes - first_byte, kRowBytes));
    // Each of sixteen lanes asks for a row: where rows move, that takes divisions.
    int moved = 0;
    if constexpr (!Frame::kAlways) moved = coordinates.row(first_row + lane % 16);
    int const rows = min(16, work.end_m - first_row);
    constexpr int kTogether = std::min(kChunks / 2 + kChunks % 2, 4);
#pragma unroll 1
    for (int first = lane; first - lane < rows * kChunks; first += 32 * kTogether) {
      uint4 values[kTogether];
      CUTLASS_PRAGMA_UNROLL
      for (int j = 0; j < kTogether; ++j) {
        int const i = first + 32 * j, at = i % kChunks * 16, piece = at / kPieceBytes * kPieceBytes;
        values[j] = *reinterpret_cast<uint4 const*>(staged + offset_of(min(i / kChunks, 15), piece, at - piece));
      }
      CUTLASS_PRAGMA_UNROLL
      for (int j = 0; j < kTogether; ++j) {
        int const i = first + 32 * j, row = i / kChunks, at = i % kChunks * 16, left = row_bytes - at;
        int d_row = first_row + row;
        if constexpr (!Frame::kAlways) d_row = __shfl_sync(0xffffffff, moved, row);
        if (row >= rows || left <= 0 || (stored >> (row / kHalf) & 1) || d_row < 0) continue;
        std::int64_t d_byte = first_byte + at;
        if constexpr (!Frame::kAlways) {
          int const d_column = coordinates.column(static_cast<int>(d_byte / column_bytes));
          if (d_column < 0) continue;
          d_byte = std::int64_t{d_column} * column_bytes;
        }
        std::uint8_t* const to = data + d_row * pitch + d_byte;
        if (!Frame::kAlways || left >= 16) {
          *reinterpret_cast<uint4*>(to) = values[j];
        } else {
          using Bits =
              std::conditional_t<unit == 4, std::uint32_t, std::conditional_t<unit == 2, std::uint16_t, std::uint8_t>>;
          int const piece = at / kPieceBytes * kPieceBytes;
          auto const* const from = staged + offset_of(row, piece, at - piece);
#pragma unroll 1
          for (int b = 0; b < left; b += unit) *reinterpret_cast<Bits*>(to + b) = *reinterpret_cast<Bits const*>(from + b);
        }
      }
    }
  }
};

}  // namespace cutwheel::gemm
