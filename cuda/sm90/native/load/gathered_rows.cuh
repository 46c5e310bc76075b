// A by rows that lie anywhere, copied 16 bytes at a time by a warpgroup; B by TMA. TMA could copy A row by row, too, but
// takes 35 ns for each of them, whatever its length: a grouped GEMM took 5 times as long (H100).
#pragma once

#include "sm90/native/load/tiles.cuh"
#include "sm90/native/pipeline.cuh"

namespace cutwheel::gemm {

// Elements of 16 bits. `extent`, `k`: of a tile of A.
template <class OperandA, class OperandB, int extent, int k, int threads>
struct Sm90GatheredRowsLoader {
  static constexpr bool kLoadsByTma = true;
  static constexpr int kPiece = 8, kLinePieces = 8;  // elements of 16 bytes; of these, lanes of a line of 128
  static constexpr int kThreadLines = threads / kLinePieces, kLines = extent / kThreadLines;
  static_assert(OperandA::kIsK && OperandA::kBoxes == 1 && OperandA::kSwizzled == kPiece * kLinePieces);
  // Each lane of a line finds one of its rows, and lines are whole eights apart, so that all are swizzled alike.
  static_assert(kLines <= kLinePieces && kThreadLines % 8 == 0);

  struct Params {
    CUtensorMap b, b_tail;
    int b_rows;
    uint4 const* data;            // of A
    std::int32_t const* sources;  // the row of A of each row of the GEMM
    int pitch, rows, k_pieces;    // of A, in pieces; its rows, and the pieces of one

    // False where A is too large for the loader's integers, or rows end within a piece.
    bool encode_a(Operand const& x, std::int32_t const* row_sources, int row_count, int k_extent) {
      data = static_cast<uint4 const*>(x.data);
      sources = row_sources;
      pitch = static_cast<int>(x.leading / kPiece), rows = row_count, k_pieces = k_extent / kPiece;
      return k_extent % kPiece == 0 && row_count * x.leading / kPiece <= 0x7fffffff;
    }
    void encode_b(DType type, Operand const& x, int row_count, int k_extent, int batch) {
      OperandB::encode_map(b, type, x, b_rows = row_count, k_extent, batch);
      OperandB::encode_tail_map(b_tail, type, x, row_count, k_extent, batch);
    }
  };

  Params const& p;
  int line, piece;
  bool is_first;       // thread
  int places[kLines];  // of this thread's rows, in pieces; less than 0: nowhere
  int column = 0;      // in pieces
  Sm90WorkTile own;    // of which k-tiles are loaded
  typename OperandB::Part part_b{};

  template <class Scheduler>
  CUTLASS_DEVICE Sm90GatheredRowsLoader(Params const& params, Scheduler const&, int thread)
      : p(params), line(thread / kLinePieces), piece(thread % kLinePieces), is_first(thread == 0) {}

  CUTLASS_DEVICE static void prefetch(Params const& p) {
    cute::prefetch_tma_descriptor(reinterpret_cast<cute::TmaDescriptor const*>(&p.b));
  }

  CUTLASS_DEVICE void begin(Sm90WorkTile const& work) {
    own = work;
    part_b = OperandB::part_of(work.n, p.b_rows);
    int const row = work.m + line + piece % kLines * kThreadLines;
    int const source = row < work.end_m ? p.sources[row] : -1;
    int const place = static_cast<unsigned>(source) < static_cast<unsigned>(p.rows) ? source * p.pitch : -1;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kLines; ++i) places[i] = __shfl_sync(0xffffffff, place, i, kLinePieces);
    column = piece;
  }

  // B of the k-tile that load() takes next.
  template <class Pipeline, class E, class F>
  CUTLASS_DEVICE void load_by_tma(Pipeline const& pipeline, typename Pipeline::State write, E*, F* stage_b) {
    if (is_first) {
      std::uint64_t* const barrier = pipeline.producer_expect(write, static_cast<std::uint32_t>(part_b.bytes));
      OperandB::load(p.b, p.b_tail, barrier, stage_b, own.n, own.k, own.b_batch, part_b);
    }
    own.k += k;
  }

  // Rows that are nowhere, and what lies beyond the end of K, become zeros. L2 fetches 256 bytes, those of the next k-tile,
  // too: up to 16 % faster than 128 (8192 x 256 x 8 x 7168 x 256 experts, H100).
  template <class E, class F>
  CUTLASS_DEVICE void load(E* stage_a, F*) {
    std::uint32_t const to =
        cute::cast_smem_ptr_to_uint(stage_a) + static_cast<std::uint32_t>(line * 128 + (piece ^ line % 8) * 16);
    uint4 const* const from = p.data + column;
    bool const is_inside = column < p.k_pieces;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kLines; ++i) {
      bool const is_there = is_inside && places[i] >= 0;
      asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(to + i * kThreadLines * 128),
                   "l"(is_there ? from + places[i] : p.data), "r"(is_there ? 16 : 0)
                   : "memory");
    }
    column += kLinePieces;
  }
};

}  // namespace cutwheel::gemm
