// One operand's part of a tile in shared memory: who copies what, where it lies, and how warps read fragments of it.
#pragma once

#include <algorithm>

#include "sm80/mma.cuh"

namespace cutwheel::gemm {

// A row in shared memory is a contiguous run of the operand: along K for a row of A or column of B where K is contiguous,
// else along M or N for an element of K. Chunks of 16 bytes are swizzled within a row against bank conflicts.
template <DType type, bool k_contiguous, int extent, int k>
struct Sm80OperandTile {
  static constexpr DType kType = type;
  static constexpr bool kIsKContiguous = k_contiguous;
  static constexpr int kElementBytes = element_bytes(type);
  static constexpr int kRows = k_contiguous ? extent : k;
  static constexpr int kRowBytes = (k_contiguous ? k : extent) * kElementBytes;
  static constexpr int kBytes = kRows * kRowBytes;
  static constexpr int kK = k;
  // 32-bit elements across K: no load transposes them, so threads read single words.
  static constexpr bool kIsReadByWords = !k_contiguous && kElementBytes == 4;
  static_assert(k_contiguous || kElementBytes >= 2, "8-bit operands have a contiguous K");
  static_assert(kRowBytes >= (kIsReadByWords ? 128 : 64) && (kRowBytes & (kRowBytes - 1)) == 0);

  // A chunk's number in a row is combined with this by exclusive or. It is linear: for rows without a common bit,
  // swizzle(x + y) is swizzle(x) ^ swizzle(y).
  CUTLASS_HOST_DEVICE static constexpr int swizzle(int row) {
    return kIsReadByWords ? (row & 3) << 1 : kRowBytes >= 128 ? row & 7 : row >> 1 & 3;
  }

  CUTLASS_DEVICE static int offset(int row, int chunk) { return row * kRowBytes + ((chunk ^ swizzle(row)) << 4); }
};

// The vectors that a thread copies: number i belongs to row() + i / kContiguous * kRowsApart and begins at element()
// + i % kContiguous * kElementsApart. Where K is not contiguous, eight lanes copy a whole line and a thread has few rows:
// convolutions keep the position of each row in an image.
template <class OperandTile, int threads, int vector_bytes = 16>
struct Sm80CopyMap {
  static constexpr int kVectorBytes = vector_bytes;
  static constexpr int kElements = vector_bytes / OperandTile::kElementBytes;
  static constexpr int kVectors = OperandTile::kRowBytes / vector_bytes;  // of a row
  static constexpr int kAcross =
      OperandTile::kIsKContiguous ? kVectors : std::min(kVectors, std::max(8, threads / OperandTile::kRows));
  static constexpr int kRowsApart = threads / kAcross, kElementsApart = kAcross * kElements;
  static constexpr int kContiguous = kVectors / kAcross, kStrided = OperandTile::kRows / kRowsApart;
  static constexpr int kCopies = kContiguous * kStrided;
  static_assert(threads % kAcross == 0 && kVectors % kAcross == 0 && OperandTile::kRows % kRowsApart == 0);
  static_assert((kRowsApart & (kRowsApart - 1)) == 0 && (OperandTile::kRowBytes >= 128 || kRowsApart % 8 == 0));
  static_assert(kContiguous == 1 || kAcross * vector_bytes % 128 == 0);

  CUTLASS_DEVICE static int row(int thread) { return thread / kAcross; }
  CUTLASS_DEVICE static int element(int thread) { return thread % kAcross * kElements; }
  // In the operand's tile, of copy 0.
  CUTLASS_DEVICE static int offset(int thread) {
    int const byte = thread % kAcross * vector_bytes;
    return OperandTile::offset(row(thread), byte / 16) + byte % 16;
  }
  CUTLASS_DEVICE static int offset_of_copy(int offset, int i) {
    int const rows = i / kContiguous * kRowsApart, across = i % kContiguous * kAcross * vector_bytes;
    return (offset ^ OperandTile::swizzle(rows) << 4) + rows * OperandTile::kRowBytes + across;
  }
};

// Operands of a warp's mma.sync for 32 bytes of K: 16 rows of A each, or 8 columns of B.
template <class OperandTile, bool is_a, int extent>
struct Sm80Fragment {
  static constexpr int kMmas = extent / (is_a ? 16 : 8);
  static constexpr int kPairs = extent / 16;
  static constexpr int kWords = is_a ? 4 : 2;
  static_assert(extent % 16 == 0 && (OperandTile::kIsKContiguous || (extent & (extent - 1)) == 0));

  unsigned words[kMmas][kWords];

  // float32 to the nearest TF32; the tensor cores would cut bits off.
  CUTLASS_DEVICE void round() {
    if constexpr (OperandTile::kType == DType::tf32) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kMmas; ++i) {
        CUTLASS_PRAGMA_UNROLL
        for (int w = 0; w < kWords; ++w) words[i][w] = round_to_tf32(words[i][w]);
      }
    }
  }

  // Offset in the operand's tile of what a lane reads for the warp's first mma.sync, at K = 0. `first`: the warp's first
  // row or column in the tile.
  CUTLASS_DEVICE static int lane_offset(int first, int lane) {
    int const second = lane / 8 % 2, last = lane / 16;
    if constexpr (OperandTile::kIsReadByWords) {
      int const element = first + lane / 4;
      return OperandTile::offset(lane % 4, element / 4) + element % 4 * 4;
    } else if constexpr (OperandTile::kIsKContiguous) {
      // A: rows 0 and 8, then the same one chunk on. B: a chunk and the next one, then columns 8 on.
      return OperandTile::offset(first + (is_a ? second : last) * 8 + lane % 8, is_a ? last : second);
    } else {
      return OperandTile::offset((is_a ? last : second) * 8 + lane % 8, first / 8 + (is_a ? second : last));
    }
  }
  // The same for ldmatrix, of 16 rows or columns in a step of 32 bytes of K. Bits of a chunk's number are combined with the
  // lane's offset by exclusive or, since the swizzle is one.
  CUTLASS_DEVICE static int matrices_at(int lane_offset, int step, int pair) {
    constexpr int kRowBytes = OperandTile::kRowBytes;
    if constexpr (OperandTile::kIsKContiguous) return (lane_offset ^ step * 32) + pair * 16 * kRowBytes;
    return (lane_offset ^ pair * 32) + step * 16 * kRowBytes;
  }
  // The same for one word of an mma.sync, where operands are read by words.
  CUTLASS_DEVICE static int word_at(int lane_offset, int step, int mma, int word) {
    int const row = is_a ? word % 2 * 8 : 0, k = is_a ? word / 2 * 4 : word * 4;
    return (lane_offset ^ (mma * (is_a ? 16 : 8) + row) * 4) + (step * 8 + k) * OperandTile::kRowBytes;
  }

  // `tile`: the operand's tile in shared memory.
  CUTLASS_DEVICE void load(unsigned tile, int lane_offset, int step) {
    if constexpr (OperandTile::kIsReadByWords) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kMmas; ++i) {
        CUTLASS_PRAGMA_UNROLL
        for (int w = 0; w < kWords; ++w) words[i][w] = load_word(tile + word_at(lane_offset, step, i, w));
      }
    } else {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kPairs; ++i) {
        unsigned const from = tile + matrices_at(lane_offset, step, i);
        constexpr bool kTransposed = !OperandTile::kIsKContiguous;
        if constexpr (is_a) {
          load_matrices<kTransposed>(words[i][0], words[i][1], words[i][2], words[i][3], from);
        } else {
          load_matrices<kTransposed>(words[2 * i][0], words[2 * i][1], words[2 * i + 1][0], words[2 * i + 1][1], from);
        }
      }
    }
  }
};

}  // namespace cutwheel::gemm
