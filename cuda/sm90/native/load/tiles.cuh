// Tiles of matrices: their layout in shared memory, and how TMA loads them.
#pragma once

#include <cute/arch/cluster_sm90.hpp>
#include <cute/arch/copy_sm90_tma.hpp>
#include <cute/arch/mma_sm90.hpp>

#include "sm90/native/load/tensor_map.cuh"
#include "sm90/native/scheduler/work_tile.cuh"

namespace cutwheel::gemm {

// An operand of a tile in shared memory. A swizzle spans 128 bytes along K, or 64 where the tile has no more; along M or N,
// where K is not contiguous, always 128. There are as many boxes as the tile takes. in_pairs: rows are pairs, which memory
// may have apart (Operand::pair_stride), and alternate here all the same.
template <class E, int extent, int k, cute::SM90::GMMA::Major major, bool in_pairs = false>
struct Sm90TileOperand {
  static constexpr bool kInPairs = in_pairs;
  static constexpr bool kIsK = major == cute::SM90::GMMA::Major::K;
  static constexpr int kSwizzleBytes = kIsK && k * sizeof(E) == 64 ? 64 : 128;
  static constexpr int kSwizzled = kSwizzleBytes / static_cast<int>(sizeof(E));  // elements
  static constexpr int kBoxes = (kIsK ? k : extent) / kSwizzled;
  static constexpr int kTailStep = 16 / static_cast<int>(sizeof(E));  // elements: TMA moves 16 bytes
  static constexpr int kBoxElements = extent * k / kBoxes;
  static constexpr int kElements = extent * k;
  static constexpr int kBytes = kElements * static_cast<int>(sizeof(E));
  static constexpr int kLineUnits = kSwizzleBytes / 16, kBoxUnits = kBoxElements / kSwizzled * kLineUnits;
  static_assert(kIsK ? k % kSwizzled == 0 : extent % kSwizzled == 0 && sizeof(E) == 2);
  static_assert(!in_pairs || kIsK);

  // The matrix descriptor (PTX ISA, wgmma) of `rows` rows from `row` on: both are multiples of 8.
  template <int rows>
  CUTLASS_DEVICE static cute::GmmaDescriptor descriptor(E const* stages, int row) {
    cute::GmmaDescriptor desc;
    desc.bitfield.layout_type_ = kSwizzleBytes == 128 ? 1 : 2;
    desc.bitfield.base_offset_ = 0;
    desc.bitfield.start_address_ =
        static_cast<std::uint16_t>((cute::cast_smem_ptr_to_uint(stages) + 16 * offset(row, 0, 0)) >> 4);
    desc.bitfield.stride_byte_offset_ = 8 * kLineUnits;  // to the next eight rows, or eight elements of K
    desc.bitfield.leading_byte_offset_ = kIsK ? 1 : rows > kSwizzled ? kBoxUnits : 0;
    return desc;
  }

  // Offset of an element from the first stage, in units of 16 bytes. at: its index along K.
  CUTLASS_DEVICE static constexpr int offset(int row, int at, int stage) {
    int const of_rows = kIsK ? row * kLineUnits : row / kSwizzled * kBoxUnits;
    int const of_k =
        kIsK ? at / kSwizzled * kBoxUnits + at % kSwizzled * static_cast<int>(sizeof(E)) / 16 : at * kLineUnits;
    return stage * (kBytes / 16) + of_rows + of_k;
  }

  // parts: threadblocks that load as many parts of the tile's rows. lines: elements of K that are loaded, where K is not
  // contiguous.
  static void encode_map(CUtensorMap& map, DType type, Operand const& x, int rows, int k_extent, int batch, int parts = 1,
                         int lines = k) {
    if constexpr (kIsK) {
      encode_rows(map, type, x, k_extent, rows, batch, extent / parts);
    } else {
      encode_tensor_map(map, type, x, rows, k_extent, batch, kSwizzled, lines, kSwizzleBytes);
    }
  }

  // Rows of the last box, if a map of its own is worth having: 0 where there is none. TMA takes longer for zeros beyond the
  // end than for memory: on an H200 303 rows took 1.65 times as long as 384, and 40 columns of a row-major weight 1.1
  // to 1.2 times as long where a box has 64. Nobody needs those zeros, since a row of an operand is a row or column of D.
  // (Zeros beyond the end of K are needed.) A box that is narrower than the swizzle leaves the rest of its lines as they
  // are.
  CUTLASS_HOST_DEVICE static int tail_of(int rows) {
    return kIsK ? rows % extent : (rows % kSwizzled + kTailStep - 1) / kTailStep * kTailStep % kSwizzled;
  }

  static void encode_tail_map(CUtensorMap& map, DType type, Operand const& x, int rows, int k_extent, int batch,
                              int lines = k) {
    int const tail = tail_of(rows);
    if (tail == 0) return;
    if constexpr (kIsK) {
      encode_rows(map, type, x, k_extent, rows, batch, tail);
    } else {
      encode_tensor_map(map, type, x, rows, k_extent, batch, tail, lines, kSwizzleBytes);
    }
  }

  static void encode_rows(CUtensorMap& map, DType type, Operand const& x, int k_extent, int rows, int batch, int box_rows) {
    auto const encode = in_pairs ? encode_pairs_map : encode_tensor_map;
    encode(map, type, x, k_extent, rows, batch, kSwizzled, box_rows, kSwizzleBytes);
  }

  // The part of the rows from `row` on that a tile of K loads. is_tail: its last box, or where K is contiguous each of
  // them, has a map of its own.
  struct Part {
    bool is_tail;
    int boxes, bytes;
    CUTLASS_DEVICE CUtensorMap const& map_of(int box, CUtensorMap const& map, CUtensorMap const& tail) const {
      return is_tail && (kIsK || box == boxes - 1) ? tail : map;
    }
  };
  CUTLASS_DEVICE static Part part_of(int row, int rows, int lines = k) {
    int const left = rows - row;
    if constexpr (kIsK) {
      bool const is_tail = left < extent && left == tail_of(rows);
      return {is_tail, kBoxes, is_tail ? left * k * static_cast<int>(sizeof(E)) : kBytes};
    } else {
      int const boxes = min(kBoxes, (left + kSwizzled - 1) / kSwizzled), tail = tail_of(rows);
      bool const is_tail = tail != 0 && left < boxes * kSwizzled;
      int const columns = is_tail ? (boxes - 1) * kSwizzled + tail : boxes * kSwizzled;
      return {is_tail, boxes, columns * lines * static_cast<int>(sizeof(E))};
    }
  }

  CUTLASS_DEVICE static void load(CUtensorMap const& map, CUtensorMap const& tail, std::uint64_t* barrier, E* stage,
                                  int row, int k_at, int batch, Part const& part) {
    constexpr auto kHint = static_cast<std::uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kBoxes; ++i) {
      if (!kIsK && i >= part.boxes) break;
      E* const to = stage + i * kBoxElements;
      int const first = (kIsK ? k_at : row) + i * kSwizzled;
      CUtensorMap const* const of_box = &part.map_of(i, map, tail);
      if constexpr (in_pairs) {
        cute::SM90_TMA_LOAD_4D::copy(of_box, barrier, kHint, to, first, 0, row / 2, batch);
      } else {
        cute::SM90_TMA_LOAD_3D::copy(of_box, barrier, kHint, to, first, kIsK ? row : k_at, batch);
      }
    }
  }

  // The same where each threadblock of a cluster loads one of `parts` parts of the rows, for all of them.
  template <int parts>
  CUTLASS_DEVICE static Part shared_part_of(int row, int rows) {
    static_assert(!in_pairs && (kIsK ? extent % (8 * parts) == 0 : kBoxes % parts == 0));
    if constexpr (kIsK) {
      constexpr int kPartRows = extent / parts;
      int const loaded = min(parts, (rows - row + kPartRows - 1) / kPartRows);
      return {false, loaded, loaded * (kBytes / parts)};
    } else {
      return part_of(row, rows);
    }
  }
  template <int parts>
  CUTLASS_DEVICE static void load_shared(CUtensorMap const& map, CUtensorMap const& tail, std::uint64_t* barrier, E* stage,
                                         int row, int k_at, int batch, int own, Part const& part) {
    constexpr auto kHint = static_cast<std::uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL);
    constexpr auto kAll = static_cast<std::uint16_t>((1 << parts) - 1);
    constexpr int kPartRows = extent / parts, kPartBoxes = kIsK ? kBoxes : kBoxes / parts;
    if (kIsK && own >= part.boxes) return;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kPartBoxes; ++i) {
      int const box = kIsK ? i : own * kPartBoxes + i;
      if (!kIsK && box >= part.boxes) break;
      E* const to = stage + box * kBoxElements + (kIsK ? own * kPartRows * kSwizzled : 0);
      int const first_row = kIsK ? row + own * kPartRows : row + box * kSwizzled;
      CUtensorMap const* const of_box = kIsK ? &map : &part.map_of(box, map, tail);
      cute::SM90_TMA_LOAD_MULTICAST_3D::copy(of_box, barrier, kAll, kHint, to, kIsK ? k_at + box * kSwizzled : first_row,
                                             kIsK ? first_row : k_at, batch);
    }
  }

  // Fetches into L2 what load() will read.
  CUTLASS_DEVICE static void prefetch(CUtensorMap const& map, CUtensorMap const& tail, int row, int k_at, int batch,
                                      Part const& part) {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kBoxes; ++i) {
      if (!kIsK && i >= part.boxes) break;
      int const first = (kIsK ? k_at : row) + i * kSwizzled;
      CUtensorMap const* const of_box = &part.map_of(i, map, tail);
      if constexpr (in_pairs) {
        cute::SM90_TMA_LOAD_4D::PREFETCH::copy(of_box, first, 0, row / 2, batch);
      } else {
        cute::SM90_TMA_LOAD_3D::PREFETCH::copy(of_box, first, kIsK ? row : k_at, batch);
      }
    }
  }

  // TMA begins a box at a multiple of 16 bytes only: K, where it is contiguous, at a multiple of so many elements.
  static constexpr int kStepOfK = kIsK ? 16 / static_cast<int>(sizeof(E)) : 1;

  // Clears elements of K before `begin` and from `end` on, in the rows from `first` on, by a warpgroup.
  CUTLASS_DEVICE static void keep_only(E* stage, int first, int rows, int begin, int end, int thread) {
    constexpr int kVector = 16 / static_cast<int>(sizeof(E)), kVectors = 8;  // in 128 bytes
    auto* const vectors = reinterpret_cast<uint4*>(stage);
    if constexpr (kIsK) {
      for (int i = thread; i < rows * kVectors * kBoxes; i += 128) {
        int const row = first + i / (kVectors * kBoxes), vector = i % (kVectors * kBoxes);
        int const at = (vector / kVectors * extent + row) * kVectors + (vector % kVectors ^ row % 8);
        int const from = begin - vector * kVector, to = end - vector * kVector;  // in this vector
        if (from <= 0 && to >= kVector) continue;
        auto* const elements = reinterpret_cast<E*>(vectors + at);
        for (int e = 0; e < kVector; ++e) {
          if (e < from || e >= to) elements[e] = E(0);
        }
      }
    } else {
      // Boxes have a line of 128 bytes for each element of K. Threads clear 16 of these at once, without a division: this
      // delays the wgmmas of a tile that has arrived.
      int const lines = begin + k - end, own_line = thread / kVectors;
      for (int i = own_line; i < lines; i += 128 / kVectors) {
        uint4* const line = vectors + (i < begin ? i : i + end - begin) * kVectors + thread % kVectors;
        CUTLASS_PRAGMA_UNROLL
        for (int box = first / kSwizzled; box < (first + rows) / kSwizzled; ++box) line[box * k * kVectors] = uint4{};
      }
    }
  }
};

// Loads both operands as batches of matrices. Where none has a contiguous K, which is shorter than the tile's, TMA brings
// the elements of K that there are (`lines`), and stages keep the zeros behind them that the kernel writes first: TMA takes
// longer for zeros than for memory, above. begin(work) precedes the k-tiles of a work tile, which load() takes in order.
template <class OperandA, class OperandB, int k>
struct Sm90MatrixLoader {
  static constexpr bool kMayLeaveZeros = !OperandA::kIsK && !OperandB::kIsK;
  // Gradients of inputs, whose weight may be two (Operand::pair_stride): to a tensor map, a batch of halves of K.
  static constexpr bool kMayHaveHalves = OperandA::kIsK != OperandB::kIsK;
  struct Params {
    CUtensorMap a, b, a_tail, b_tail;
    int a_rows, b_rows;
    int lines = k;            // fewer where K has no more (kMayLeaveZeros)
    int half_k = 0x7fffffff;  // where the second half begins
    bool second_first = false;

    void encode_a(DType type, Operand const& x, int rows, int k_extent, int batch) {
      a_rows = rows;
      if (encode_halves<OperandA>(a, a_tail, type, x, rows, k_extent)) return;
      OperandA::encode_map(a, type, x, rows, k_extent, batch, 1, lines);
      OperandA::encode_tail_map(a_tail, type, x, rows, k_extent, batch, lines);
    }
    void encode_b(DType type, Operand const& x, int rows, int k_extent, int batch) {
      b_rows = rows;
      if (encode_halves<OperandB>(b, b_tail, type, x, rows, k_extent)) return;
      OperandB::encode_map(b, type, x, rows, k_extent, batch, 1, lines);
      OperandB::encode_tail_map(b_tail, type, x, rows, k_extent, batch, lines);
    }

   private:
    template <class Operand_>
    bool encode_halves(CUtensorMap& map, CUtensorMap& tail, DType type, Operand x, int rows, int k_extent) {
      if (!kMayHaveHalves || Operand_::kIsK || x.pair_stride == 0) return false;
      half_k = k_extent / 2;
      second_first = x.odd_first;
      x.batch_stride = x.pair_stride;
      Operand_::encode_map(map, type, x, rows, half_k, 2, 1, lines);
      Operand_::encode_tail_map(tail, type, x, rows, half_k, 2, lines);
      return true;
    }
  };
  Params const& p;
  typename OperandA::Part part_a{};
  typename OperandB::Part part_b{};

  template <class Scheduler>
  CUTLASS_DEVICE Sm90MatrixLoader(Params const& params, Scheduler const&) : p(params) {}

  CUTLASS_DEVICE static void prefetch(Params const& p) {
    for (CUtensorMap const* map : {&p.a, &p.b}) {
      cute::prefetch_tma_descriptor(reinterpret_cast<cute::TmaDescriptor const*>(map));
    }
  }
  CUTLASS_DEVICE void begin(Sm90WorkTile const& work) {
    part_a = OperandA::part_of(work.m, p.a_rows, p.lines);
    part_b = OperandB::part_of(work.n, p.b_rows, p.lines);
  }
  // Bytes that arrive on the barrier for each k-tile, including zeros beyond the ends of operands.
  CUTLASS_DEVICE std::uint32_t bytes() const { return static_cast<std::uint32_t>(part_a.bytes + part_b.bytes); }

  // Fetches the first k-tile of a work tile into L2, where a preceding kernel still writes what it writes. On an H100 this
  // gains up to 2 % (24 x 3584 x 3584); fetching four k-tiles loses up to 11 %.
  CUTLASS_DEVICE void prefetch(Sm90WorkTile const& work) const {
    auto const [a_k, a_batch] = place_of<OperandA>(work.k, work.a_batch);
    auto const [b_k, b_batch] = place_of<OperandB>(work.k, work.b_batch);
    OperandA::prefetch(p.a, p.a_tail, work.m, a_k, a_batch, part_a);
    OperandB::prefetch(p.b, p.b_tail, work.n, b_k, b_batch, part_b);
  }

  template <class A, class B>
  CUTLASS_DEVICE void load(std::uint64_t* barrier, A* stage_a, B* stage_b, Sm90WorkTile const& work, int tile) const {
    int const first_k = work.k + tile * k;
    auto const [a_k, a_batch] = place_of<OperandA>(first_k, work.a_batch);
    auto const [b_k, b_batch] = place_of<OperandB>(first_k, work.b_batch);
    OperandA::load(p.a, p.a_tail, barrier, stage_a, work.m, a_k, a_batch, part_a);
    OperandB::load(p.b, p.b_tail, barrier, stage_b, work.n, b_k, b_batch, part_b);
  }

 private:
  struct Place {
    int at, batch;
  };
  template <class Operand_>
  CUTLASS_DEVICE Place place_of(int first_k, int batch) const {
    if constexpr (kMayHaveHalves && !Operand_::kIsK) {
      bool const is_second = first_k >= p.half_k;
      return {is_second ? first_k - p.half_k : first_k, batch + (is_second != p.second_first ? 1 : 0)};
    } else {
      return {first_k, batch};
    }
  }
};

// As Sm90MatrixLoader, for the threadblocks of a cluster whose tiles lie below each other: each loads its own tile of A,
// and a part of their B for all.
template <class OperandA, class OperandB, int k, int sharing>
struct Sm90SharingLoader {
  struct Params {
    CUtensorMap a, b, a_tail, b_tail;
    int a_rows, b_rows;

    void encode_a(DType type, Operand const& x, int rows, int k_extent, int batch) {
      OperandA::encode_map(a, type, x, a_rows = rows, k_extent, batch);
      OperandA::encode_tail_map(a_tail, type, x, rows, k_extent, batch);
    }
    void encode_b(DType type, Operand const& x, int rows, int k_extent, int batch) {
      OperandB::encode_map(b, type, x, b_rows = rows, k_extent, batch, sharing);
      if constexpr (!OperandB::kIsK) OperandB::encode_tail_map(b_tail, type, x, rows, k_extent, batch);
    }
  };
  Params const& p;
  int const own = static_cast<int>(cute::block_rank_in_cluster());
  typename OperandA::Part part_a{};
  typename OperandB::Part part_b{};

  template <class Scheduler>
  CUTLASS_DEVICE Sm90SharingLoader(Params const& params, Scheduler const&) : p(params) {}

  CUTLASS_DEVICE static void prefetch(Params const& p) {
    for (CUtensorMap const* map : {&p.a, &p.b}) {
      cute::prefetch_tma_descriptor(reinterpret_cast<cute::TmaDescriptor const*>(map));
    }
  }
  CUTLASS_DEVICE void begin(Sm90WorkTile const& work) {
    // Below the last row there is no tile, and nothing to load but what the others share.
    part_a = work.m < p.a_rows ? OperandA::part_of(work.m, p.a_rows) : typename OperandA::Part{};
    part_b = OperandB::template shared_part_of<sharing>(work.n, p.b_rows);
  }
  CUTLASS_DEVICE std::uint32_t bytes() const { return static_cast<std::uint32_t>(part_a.bytes + part_b.bytes); }

  // Of A alone, which no other threadblock loads.
  CUTLASS_DEVICE void prefetch(Sm90WorkTile const& work) const {
    if (part_a.bytes == 0) return;
    OperandA::prefetch(p.a, p.a_tail, work.m, work.k, work.a_batch, part_a);
  }

  template <class A, class B>
  CUTLASS_DEVICE void load(std::uint64_t* barrier, A* stage_a, B* stage_b, Sm90WorkTile const& work, int tile) const {
    int const first_k = work.k + tile * k;
    if (part_a.bytes > 0) {
      OperandA::load(p.a, p.a_tail, barrier, stage_a, work.m, first_k, work.a_batch, part_a);
    }
    OperandB::template load_shared<sharing>(p.b, p.b_tail, barrier, stage_b, work.n, first_k, work.b_batch, own, part_b);
  }
};

}  // namespace cutwheel::gemm
