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
  static constexpr int kBoxes = ((kIsK ? k : extent) + kSwizzled - 1) / kSwizzled;
  // Rows of a tile's last box, where the tile is no whole number of boxes: 160 rows are 64, 64 and 32. TMA brings no more,
  // since loaded whole such boxes leave 128x160 no faster than 128x192, for gradients of weights on an H100.
  static constexpr int kLastRows = kIsK ? 0 : extent % kSwizzled;
  static constexpr int kTailStep = 16 / static_cast<int>(sizeof(E));  // elements: TMA moves 16 bytes
  static constexpr int kBoxElements = kSwizzled * (kIsK ? extent : k);
  static constexpr int kElements = kBoxes * kBoxElements;
  static constexpr int kBytes = kElements * static_cast<int>(sizeof(E));
  static constexpr int kLineUnits = kSwizzleBytes / 16, kBoxUnits = kBoxElements / kSwizzled * kLineUnits;
  static_assert(kIsK ? k % kSwizzled == 0 : extent % (2 * kTailStep) == 0 && sizeof(E) == 2);
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

  // parts: threadblocks that load as many parts of the tile's rows. lines: elements of K that are loaded at once, where K
  // is not contiguous.
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
    if constexpr (kLastRows > 0) return kLastRows;
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
    int end = 0x7fffffff;  // where load_shared() begins again from the first row
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
      bool const is_tail = kLastRows > 0 ? boxes == kBoxes : tail != 0 && left < boxes * kSwizzled;
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

  // The same where each threadblock of a cluster loads one of `parts` parts of the tile, for all of them: of its rows, or
  // of its K.
  template <int parts>
  CUTLASS_DEVICE static Part shared_part_of(int row, int rows) {
    static_assert(!in_pairs && (kIsK ? extent % parts == 0 : k % (8 * parts) == 0));
    if constexpr (kIsK) {
      constexpr int kPartRows = extent / parts;
      int const loaded = min(parts, (rows - row + kPartRows - 1) / kPartRows);
      return {false, loaded, loaded * (kBytes / parts)};
    } else {
      return part_of(row, rows);
    }
  }
  // `own` of the parts, for the threadblocks of `mask`. of_k: parts of K, as of boxes there may be none for each.
  template <int parts, bool of_k = false>
  CUTLASS_DEVICE static void load_shared(CUtensorMap const& map, CUtensorMap const& tail, std::uint64_t* barrier, E* stage,
                                         int row, int k_at, int batch, int own, int mask, Part const& part) {
    constexpr auto kHint = static_cast<std::uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL);
    static_assert(kIsK || of_k || kBoxes % parts == 0);
    constexpr int kPartRows = extent / parts, kPartBoxes = kIsK || of_k ? kBoxes : kBoxes / parts, kPartK = k / parts;
    if (kIsK && own >= part.boxes) return;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kPartBoxes; ++i) {
      int const box = kIsK || of_k ? i : own * kPartBoxes + i;
      if (!kIsK && box >= part.boxes) break;
      int const own_line = kIsK ? own * kPartRows : of_k ? own * kPartK : 0;
      E* const to = stage + box * kBoxElements + own_line * kSwizzled;
      int const part_row = kIsK ? row + own_line : row + box * kSwizzled, first_row = part_row < part.end ? part_row : 0;
      CUtensorMap const* const of_box = kIsK ? &map : &part.map_of(box, map, tail);
      cute::SM90_TMA_LOAD_MULTICAST_3D::copy(of_box, barrier, static_cast<std::uint16_t>(mask), kHint, to,
                                             kIsK ? k_at + box * kSwizzled : first_row, kIsK ? first_row : k_at + own_line,
                                             batch);
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
        for (int box = first / kSwizzled; box * kSwizzled < first + rows; ++box) line[box * k * kVectors] = uint4{};
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

// As Sm90MatrixLoader, for the threadblocks of a cluster, `below` by `beside`: those whose tiles lie below each other load
// parts of their columns for each other, those whose tiles lie beside each other parts of their rows.
template <class OperandA, class OperandB, int k, int below, int beside>
struct Sm90SharingLoader {
  static constexpr bool kSharesBoth = below > 1 && beside > 1;
  template <class Operand_, int parts>
  static constexpr bool kAreOfK = !Operand_::kIsK && parts > 1 && (kSharesBoth || Operand_::kBoxes % parts != 0);
  struct Params {
    CUtensorMap a, b, a_tail, b_tail;
    int a_rows, b_rows;

    void encode_a(DType type, Operand const& x, int rows, int k_extent, int batch) {
      a_rows = rows;
      encode<OperandA, beside>(a, a_tail, type, x, rows, k_extent, batch);
    }
    void encode_b(DType type, Operand const& x, int rows, int k_extent, int batch) {
      b_rows = rows;
      encode<OperandB, below>(b, b_tail, type, x, rows, k_extent, batch);
    }

   private:
    template <class Operand_, int parts>
    static void encode(CUtensorMap& map, CUtensorMap& tail, DType type, Operand const& x, int rows, int k_extent,
                       int batch) {
      constexpr int kLines = kAreOfK<Operand_, parts> ? k / parts : k;
      Operand_::encode_map(map, type, x, rows, k_extent, batch, parts, kLines);
      if (parts == 1 || !Operand_::kIsK) Operand_::encode_tail_map(tail, type, x, rows, k_extent, batch, kLines);
    }
  };
  Params const& p;
  int const row = static_cast<int>(cute::block_rank_in_cluster()) % below,
            column = static_cast<int>(cute::block_rank_in_cluster()) / below;
  typename OperandA::Part part_a{};
  typename OperandB::Part part_b{};
  // Where the tile's rows and columns are loaded from.
  int a_from = 0, b_from = 0;

  template <class Scheduler>
  CUTLASS_DEVICE Sm90SharingLoader(Params const& params, Scheduler const&) : p(params) {}

  CUTLASS_DEVICE static void prefetch(Params const& p) {
    for (CUtensorMap const* map : {&p.a, &p.b}) {
      cute::prefetch_tma_descriptor(reinterpret_cast<cute::TmaDescriptor const*>(map));
    }
  }
  CUTLASS_DEVICE void begin(Sm90WorkTile const& work) {
    part_a = part_of<OperandA, beside>(work.m, p.a_rows, a_from);
    part_b = part_of<OperandB, below>(work.n, p.b_rows, b_from);
  }
  CUTLASS_DEVICE std::uint32_t bytes() const { return static_cast<std::uint32_t>(part_a.bytes + part_b.bytes); }

  // Fetches into L2 the first k-tile of the operand that this threadblock loads for itself alone.
  CUTLASS_DEVICE void prefetch(Sm90WorkTile const& work) const {
    if constexpr (beside == 1) {
      if (part_a.bytes > 0) OperandA::prefetch(p.a, p.a_tail, work.m, work.k, work.a_batch, part_a);
    } else if constexpr (below == 1) {
      if (part_b.bytes > 0) OperandB::prefetch(p.b, p.b_tail, work.n, work.k, work.b_batch, part_b);
    }
  }

  template <class A, class B>
  CUTLASS_DEVICE void load(std::uint64_t* barrier, A* stage_a, B* stage_b, Sm90WorkTile const& work, int tile) const {
    int const at = work.k + tile * k;
    if constexpr (beside > 1) {
      constexpr int kRow = row_mask();
      OperandA::template load_shared<beside, kAreOfK<OperandA, beside>>(p.a, p.a_tail, barrier, stage_a, a_from, at,
                                                                        work.a_batch, column, kRow << row, part_a);
    } else {
      if (part_a.bytes > 0) OperandA::load(p.a, p.a_tail, barrier, stage_a, a_from, at, work.a_batch, part_a);
    }
    if constexpr (below > 1) {
      constexpr int kColumn = (1 << below) - 1;
      OperandB::template load_shared<below, kAreOfK<OperandB, below>>(p.b, p.b_tail, barrier, stage_b, b_from, at,
                                                                      work.b_batch, row, kColumn << column * below, part_b);
    } else {
      if (part_b.bytes > 0) OperandB::load(p.b, p.b_tail, barrier, stage_b, b_from, at, work.b_batch, part_b);
    }
  }

 private:
  // The threadblocks that lie beside the first, a bit each.
  static constexpr int row_mask() {
    int mask = 0;
    for (int i = 0; i < beside; ++i) mask |= 1 << i * below;
    return mask;
  }
  // Behind the last row there is no tile, and nothing to load but what the others share. Where both operands are shared,
  // each part is loaded all the same, in the place of what is behind the last row the first: a threadblock is then never
  // more than a round ahead of those that it loads for. Otherwise it could arrive at the barrier of one in the place of a
  // third that is behind.
  template <class Operand_, int parts>
  CUTLASS_DEVICE static typename Operand_::Part part_of(int row, int rows, int& from) {
    bool const is_there = row < rows;
    from = is_there || !kSharesBoth ? row : 0;
    if constexpr (kSharesBoth && Operand_::kIsK) return {false, parts, Operand_::kBytes, rows};
    if constexpr (parts > 1) return Operand_::template shared_part_of<parts>(from, rows);
    return is_there ? Operand_::part_of(row, rows) : typename Operand_::Part{};
  }
};

}  // namespace cutwheel::gemm
