// Tiles of matrices that begin anywhere: TMA and cp.async take rows on 16 and 4 bytes alone. Threads copy the aligned 16
// bytes that a row touches as they lie, several k-tiles ahead, and shift them on their way from there to where wgmma reads
// them.
#pragma once

#include "core/shifted_bytes.cuh"
#include "sm90/native/load/tiles.cuh"

namespace cutwheel::gemm {

// A or B. `Tile`: its Sm90TileOperand. A line is what is contiguous, 128 bytes of each row of a box in memory; a box has
// `box_lines` of them. Eight lanes of a warp have one line, a piece of 16 bytes each: a warp alone knows what it has
// copied.
template <class Tile, int box_lines, bool is_a, int threads>
struct Sm90UnalignedOperand {
  static constexpr int kLines = Tile::kBytes / 128, kOwnLines = kLines * 32 / threads;  // of a k-tile; of a warp
  static constexpr int kPieces = kOwnLines / 4;                                         // of a thread
  static constexpr int kStagedLine = 128 + 16, kStagedBytes = kLines * kStagedLine;
  // Elements have 16 bits, and a contiguous K has one box.
  static_assert(Tile::kSwizzled == 64 && (!Tile::kIsK || Tile::kBoxes == 1));
  static_assert(kLines % (threads / 8) == 0 && box_lines % kOwnLines == 0 && kOwnLines <= 32);

  struct Params {
    std::uint8_t const* data;
    std::int64_t pitch, batch_stride;  // in bytes
    int lines;
    std::int64_t line_bytes;
  };

  // `rows` of M or N.
  static Params encode(DType type, Operand const& x, int rows, int k) {
    int const bytes = element_bytes(type);
    return {static_cast<std::uint8_t const*>(x.data), x.leading * bytes, x.batch_stride * bytes, Tile::kIsK ? rows : k,
            std::int64_t{Tile::kIsK ? k : rows} * bytes};
  }

  // Position of a k-tile. Shifts are computed once per work tile, since its k-tiles are whole 16 bytes apart.
  struct KTile {
    std::uint8_t const* piece;  // this lane's of its first line
    std::uint32_t shifts;       // of its pieces, four bits each: bytes from the aligned 16 in which they begin
    int lines, bytes;           // that the matrix has of the box, or more

    CUTLASS_DEVICE bool is_whole() const { return lines >= box_lines && bytes >= 128; }
  };

  Params const& p;
  int lane, first_line;

  CUTLASS_DEVICE Sm90UnalignedOperand(Params const& params, int thread)
      : p(params), lane(thread % 32), first_line(thread / 32 * kOwnLines) {}

  CUTLASS_DEVICE int line_of_box(int i) const { return first_line % box_lines + i * 4 + lane / 8; }

  // The first k-tile of a work tile.
  CUTLASS_DEVICE KTile begin(Sm90WorkTile const& work) const {
    int const row = is_a ? work.m : work.n, line = Tile::kIsK ? row : 0;
    std::int64_t const byte = Tile::kIsK ? 0 : std::int64_t{row} * 2 + first_line / box_lines * 128;
    KTile k_tile;
    k_tile.piece = p.data + work.batch * p.batch_stride + (line + line_of_box(0)) * p.pitch + byte + lane % 8 * 16;
    k_tile.shifts = 0;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kPieces; ++i) {
      k_tile.shifts |= static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(k_tile.piece + i * 4 * p.pitch) % 16)
                       << 4 * i;
    }
    k_tile.lines = p.lines - line;
    k_tile.bytes = static_cast<int>(min(max(p.line_bytes - byte, 0l), 0x7fffffffl));
    return k_tile;
  }

  CUTLASS_DEVICE void advance(KTile& k_tile) const {
    if constexpr (Tile::kIsK) {
      k_tile.piece += 128;
      k_tile.bytes -= 128;
    } else {
      k_tile.piece += box_lines * p.pitch;
      k_tile.lines -= box_lines;
    }
  }

  // Copies the aligned 16 bytes in which `from` lies, of the last line's last ones only the `left` that are the line's:
  // memory behind the matrix may be nobody's, and tools that check accesses report reads of it. (The up to 14 bytes before
  // the first line are in its own allocation.)
  CUTLASS_DEVICE static void copy(std::uint8_t const* from, std::uint32_t to, bool is_last_line = false, int left = 16) {
    auto const aligned = reinterpret_cast<std::uintptr_t>(from) & ~std::uintptr_t{15};
    if (!is_last_line || left >= 16) {
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(aligned) : "memory");
      return;
    }
    CUTLASS_PRAGMA_NO_UNROLL
    for (int i = 0; i < left; i += 2) {
      std::uint16_t const element = *reinterpret_cast<std::uint16_t const*>(aligned + static_cast<std::uintptr_t>(i));
      asm volatile("st.shared.u16 [%0], %1;" ::"r"(to + static_cast<std::uint32_t>(i)), "h"(element) : "memory");
    }
  }

  // Starts to copy the aligned 16 bytes that lines touch.
  CUTLASS_DEVICE void fetch(KTile const& k_tile, std::uint8_t* staged) const {
    std::uint32_t const to = cute::cast_smem_ptr_to_uint(staged) + (first_line + lane / 8) * kStagedLine + lane % 8 * 16;
    // Nine where a line does not begin on 16 bytes: each of the first lanes copies the ninth of one line.
    std::uint8_t const* const ninth = k_tile.piece + (lane - lane / 8) * p.pitch + (8 - lane % 8) * 16;
    int const ninth_shift = static_cast<int>(reinterpret_cast<std::uintptr_t>(ninth) % 16);
    bool const has_ninth = lane < kOwnLines && ninth_shift != 0;
    int const left_of_ninth = k_tile.bytes - (128 - ninth_shift);
    bool const is_last_ninth = first_line % box_lines + lane + 1 == k_tile.lines;
    std::uint32_t const to_ninth = cute::cast_smem_ptr_to_uint(staged) + (first_line + lane) * kStagedLine + 128;
    if (k_tile.is_whole()) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kPieces; ++i) copy(k_tile.piece + i * 4 * p.pitch, to + i * 4 * kStagedLine);
      if (has_ninth) copy(ninth, to_ninth, is_last_ninth, left_of_ninth);
      return;
    }
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kPieces; ++i) {
      int const shift = static_cast<int>(k_tile.shifts >> 4 * i) % 16;
      int const left = k_tile.bytes - (lane % 8 * 16 - shift);
      if (line_of_box(i) < k_tile.lines && k_tile.bytes > 0 && left > 0) {
        copy(k_tile.piece + i * 4 * p.pitch, to + i * 4 * kStagedLine, line_of_box(i) + 1 == k_tile.lines, left);
      }
    }
    if (has_ninth && first_line % box_lines + lane < k_tile.lines && left_of_ninth > 0) {
      copy(ninth, to_ninth, is_last_ninth, left_of_ninth);
    }
  }

  // Stores a k-tile that has been copied as wgmma reads it.
  template <class E>
  CUTLASS_DEVICE void put(KTile const& k_tile, std::uint8_t const* staged, E* stage) const {
    auto const* const from = reinterpret_cast<uint4 const*>(staged + (first_line + lane / 8) * kStagedLine) + lane % 8;
    auto* const to = reinterpret_cast<uint4*>(stage + first_line / box_lines * Tile::kBoxElements) + line_of_box(0) * 8;
    bool const is_whole = k_tile.is_whole();
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kPieces; ++i) {
      uint4 const* const x = from + i * 4 * kStagedLine / 16;
      uint4 words = shifted_bytes(x[0], x[1], static_cast<int>(k_tile.shifts >> 4 * i) % 16);
      if (!is_whole) {
        // Beyond the end of K there may be NaN; beyond M or N nobody reads.
        if constexpr (Tile::kIsK) {
          words = first_bytes(words, k_tile.bytes - lane % 8 * 16);
        } else if (line_of_box(i) >= k_tile.lines) {
          words = uint4{};
        }
      }
      to[i * 4 * 8 + (lane % 8 ^ line_of_box(i) % 8)] = words;
    }
  }

 private:
  CUTLASS_DEVICE static uint4 first_bytes(uint4 words, int count) {
    cutlass::AlignedArray<std::uint16_t, 8, 16> elements;
    memcpy(&elements, &words, 16);
    CUTLASS_PRAGMA_UNROLL
    for (int e = 0; e < 8; ++e) {
      if (2 * e >= count) elements[e] = 0;
    }
    memcpy(&words, &elements, 16);
    return words;
  }
};

// Loads both operands, by `threads` threads.
template <class TileA, class TileB, int k, int threads>
struct Sm90UnalignedLoader {
  template <class Tile, bool is_a>
  using OperandOf = Sm90UnalignedOperand<Tile, Tile::kIsK ? Tile::kBoxElements / Tile::kSwizzled : k, is_a, threads>;
  using A = OperandOf<TileA, true>;
  using B = OperandOf<TileB, false>;
  static constexpr int kStagedBytes = A::kStagedBytes + B::kStagedBytes;
  struct Params {
    typename A::Params a;
    typename B::Params b;
    void encode_a(DType type, Operand const& x, int rows, int k_extent, int) { a = A::encode(type, x, rows, k_extent); }
    void encode_b(DType type, Operand const& x, int rows, int k_extent, int) { b = B::encode(type, x, rows, k_extent); }
  };
  struct KTile {
    typename A::KTile a;
    typename B::KTile b;
  };
  A a;
  B b;

  CUTLASS_DEVICE Sm90UnalignedLoader(Params const& p, int thread) : a(p.a, thread), b(p.b, thread) {}

  CUTLASS_DEVICE KTile begin(Sm90WorkTile const& work) const { return {a.begin(work), b.begin(work)}; }
  CUTLASS_DEVICE void advance(KTile& k_tile) const {
    a.advance(k_tile.a);
    b.advance(k_tile.b);
  }
  CUTLASS_DEVICE void fetch(KTile const& k_tile, std::uint8_t* staged) const {
    a.fetch(k_tile.a, staged);
    b.fetch(k_tile.b, staged + A::kStagedBytes);
  }
  template <class E, class F>
  CUTLASS_DEVICE void put(KTile const& k_tile, std::uint8_t const* staged, E* stage_a, F* stage_b) const {
    a.put(k_tile.a, staged, stage_a);
    b.put(k_tile.b, staged + A::kStagedBytes, stage_b);
  }
};

}  // namespace cutwheel::gemm
