// The mainloop of Ampere and Ada: cp.async into a multistage shared-memory pipeline, ldmatrix into two sets of fragments,
// mma.sync. Loaders know where operands lie in global memory.
#pragma once

#include <type_traits>

#include "core/cutlass_types.cuh"
#include "sm80/operand_tile.cuh"

namespace cutwheel::gemm {

// The parts of a threadblock's tile that its warps compute, and a thread's accumulators: of each mma.sync it holds two
// neighbouring columns of two rows, which lie eight apart.
template <DType acc, class Tile, class Warp>
struct Sm80WarpTiles {
  static_assert(Tile::kM % Warp::kM == 0 && Tile::kN % Warp::kN == 0 && Tile::kK == Warp::kK);
  static constexpr int kWarpsM = Tile::kM / Warp::kM, kWarpsN = Tile::kN / Warp::kN;
  static constexpr int kThreads = 32 * kWarpsM * kWarpsN;
  static constexpr int kMmaM = Warp::kM / 16, kMmaN = Warp::kN / 8;
  using Accumulator = Element<acc>;
  using Sums = Accumulator[kMmaM][kMmaN][4];

  // Where the warp's part begins in a tile.
  CUTLASS_DEVICE static int warp_row() { return threadIdx.x / 32 % kWarpsM * Warp::kM; }
  CUTLASS_DEVICE static int warp_column() { return threadIdx.x / 32 / kWarpsM * Warp::kN; }
};

// In the place of scales: partial sums over a tile of K are added up as they are.
struct Sm80NoScales {
  CUTLASS_DEVICE static Sm80NoScales of_tile(int) { return {}; }
};

// `promotes`: sums of the tensor cores are added to registers after each tile of K.
template <DType a, DType b, DType acc, Layout layout_a, Layout layout_b, class Tile, class Warp, int stages, bool promotes>
struct Sm80Mainloop : Sm80WarpTiles<acc, Tile, Warp> {
  using Warps = Sm80WarpTiles<acc, Tile, Warp>;
  using typename Warps::Sums;
  using Warps::kMmaM, Warps::kMmaN, Warps::kThreads;
  using TileA = Sm80OperandTile<a, layout_a == Layout::row, Tile::kM, Tile::kK>;
  using TileB = Sm80OperandTile<b, layout_b == Layout::column, Tile::kN, Tile::kK>;
  using FragmentA = Sm80Fragment<TileA, true, Warp::kM>;
  using FragmentB = Sm80Fragment<TileB, false, Warp::kN>;
  static constexpr int kStageBytes = TileA::kBytes + TileB::kBytes;
  static constexpr int kSharedBytes = stages * kStageBytes;
  static constexpr int kSteps = Tile::kK * element_bytes(a) / 32;
  static_assert(stages >= 2 && kSteps % 2 == 0, "fragments alternate between two sets");

  CUTLASS_DEVICE static void multiply(FragmentA const& x, FragmentB const& y, Sums& sums) {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kMmaM; ++i) {
      // There and back: neighbouring instructions share a fragment.
      CUTLASS_PRAGMA_UNROLL
      for (int n = 0; n < kMmaN; ++n) {
        int const j = i % 2 ? kMmaN - 1 - n : n;
        mma_sync<a, b>(sums[i][j], x.words[i], y.words[j]);
      }
    }
  }

  // The columns of pairs that lie the other way round in memory (Operand::odd_first).
  CUTLASS_DEVICE static void exchange_pairs(Sums& sums) {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kMmaM; ++i) {
      CUTLASS_PRAGMA_UNROLL
      for (int j = 0; j < kMmaN; ++j) {
        cutlass::swap(sums[i][j][0], sums[i][j][1]);
        cutlass::swap(sums[i][j][2], sums[i][j][3]);
      }
    }
  }

  // Adds `k_tiles` tiles of K to the sums, by all threads. Afterwards no copy is under way, but other warps may still read
  // shared memory. A loader has copy<part, parts>(shared), which starts a part of its copies of a tile, and advance();
  // beyond K it copies zeros, or what nobody reads. Scales are of one tile, by the instructions and values of Sums.
  template <class LoaderA, class LoaderB, class Scales = Sm80NoScales>
  CUTLASS_DEVICE static void run(unsigned shared, int k_tiles, LoaderA& load_a, LoaderB& load_b, Sums& sums,
                                 Scales const& scales = {}) {
    constexpr bool kIsScaled = !std::is_same_v<Scales, Sm80NoScales>;
    static_assert(promotes || !kIsScaled);
    CUTLASS_PRAGMA_UNROLL
    for (int stage = 0; stage < stages - 1; ++stage) {
      if (stage < k_tiles) {
        load_a.template copy<0, 1>(shared + stage * kStageBytes);
        load_b.template copy<0, 1>(shared + stage * kStageBytes + TileA::kBytes);
        load_a.advance();
        load_b.advance();
      }
      cp_async_commit();
    }
    cp_async_wait<stages - 2>();
    __syncthreads();

    unsigned const end = shared + kSharedBytes;
    unsigned read = shared, write = shared + (stages - 1) * kStageBytes;
    int const lane = threadIdx.x % 32;
    int const lane_a = FragmentA::lane_offset(Warps::warp_row(), lane);
    int const lane_b = FragmentB::lane_offset(Warps::warp_column(), lane);
    FragmentA x[2];
    FragmentB y[2];
    x[0].load(read, lane_a, 0);
    y[0].load(read + TileA::kBytes, lane_b, 0);
    x[0].round();
    y[0].round();
    for (int tile = 0; tile < k_tiles; ++tile) {
      if constexpr (promotes) {
        auto const factors = scales.of_tile(tile);
        Sums part;
        clear(part);
        step<0>(shared, end, read, write, lane_a, lane_b, load_a, load_b, x, y, part);
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kMmaM; ++i) {
          CUTLASS_PRAGMA_UNROLL
          for (int j = 0; j < kMmaN; ++j) {
            CUTLASS_PRAGMA_UNROLL
            for (int v = 0; v < 4; ++v) {
              if constexpr (kIsScaled) {
                sums[i][j][v] += factors(i, j, v) * part[i][j][v];
              } else {
                sums[i][j][v] += part[i][j][v];
              }
            }
          }
        }
      } else {
        step<0>(shared, end, read, write, lane_a, lane_b, load_a, load_b, x, y, sums);
      }
    }
    cp_async_wait<0>();
  }

  CUTLASS_DEVICE static void clear(Sums& sums) {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kMmaM; ++i) {
      CUTLASS_PRAGMA_UNROLL
      for (int j = 0; j < kMmaN; ++j) {
        CUTLASS_PRAGMA_UNROLL
        for (int v = 0; v < 4; ++v) sums[i][j][v] = 0;
      }
    }
  }

 private:
  // One step of K and those after it in the tile. Fragments of the next step are on their way meanwhile; those of the last
  // step are of the next stage, which has to be there for all threads, and the stage before this one is free from then on.
  // Copies and the loaders' address arithmetic stand behind the products and do not branch, so that they are issued while
  // tensor cores work: in front of the products convolutions take 5 % longer (2 to 13 %), int8 2 %, others as long.
  template <int index, class LoaderA, class LoaderB>
  CUTLASS_DEVICE static void step(unsigned shared, unsigned end, unsigned& read, unsigned& write, int lane_a, int lane_b,
                                  LoaderA& load_a, LoaderB& load_b, FragmentA (&x)[2], FragmentB (&y)[2], Sums& sums) {
    constexpr bool kIsLast = index == kSteps - 1;
    if constexpr (kIsLast) {
      cp_async_wait<stages - 2>();
      __syncthreads();
      read = read + kStageBytes == end ? shared : read + kStageBytes;
    }
    FragmentA& next_x = x[(index + 1) % 2];
    FragmentB& next_y = y[(index + 1) % 2];
    next_x.load(read, lane_a, (index + 1) % kSteps);
    next_y.load(read + TileA::kBytes, lane_b, (index + 1) % kSteps);
    multiply(x[index % 2], y[index % 2], sums);
    if constexpr (kIsLast) {
      load_a.advance();
      load_b.advance();
    } else {
      load_a.template copy<index, kSteps - 1>(write);
      load_b.template copy<index, kSteps - 1>(write + TileA::kBytes);
    }
    next_x.round();
    next_y.round();
    if constexpr (index == kSteps - 2) {
      cp_async_commit();
      write = write + kStageBytes == end ? shared : write + kStageBytes;
    }
    if constexpr (!kIsLast) {
      step<index + 1>(shared, end, read, write, lane_a, lane_b, load_a, load_b, x, y, sums);
    }
  }
};

// An operand that is a matrix.
template <class OperandTile, int threads, int vector_bytes = 16>
class Sm80MatrixLoader {
  using Map = Sm80CopyMap<OperandTile, threads, vector_bytes>;
  static constexpr int kBytes = OperandTile::kElementBytes;
  static constexpr bool kIsKContiguous = OperandTile::kIsKContiguous;
  static_assert(Map::kCopies <= 32);

 public:
  // `data`: at K = 0, of row 0 of A or column 0 of B; `first` and `end`: of these. Nothing from `end` or `k` on is read.
  // `pair_stride`: as Operand has it, where K is contiguous.
  CUTLASS_DEVICE Sm80MatrixLoader(void const* data, std::int64_t leading, int first, int end, int k,
                                  std::int64_t pair_stride = 0)
      : offset_(Map::offset(threadIdx.x)) {
    int const row = Map::row(threadIdx.x), element = Map::element(threadIdx.x);
    std::int64_t const pitch = leading * kBytes;
    auto const* const bytes = static_cast<char const*>(data);
    row_step_ = pitch * Map::kRowsApart;
    if constexpr (kIsKContiguous) {
      int const at = first + row;
      pointer_ = bytes + element * kBytes;
      if (pair_stride == 0) {
        pointer_ += at * pitch;
      } else {
        static_assert(Map::kRowsApart % 2 == 0, "a thread's rows are of one half");
        pointer_ += at / 2 * pitch + at % 2 * pair_stride * kBytes;
        row_step_ /= 2;
      }
      tile_step_ = OperandTile::kRowBytes;
      k_left_ = k - element;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < Map::kStrided; ++i) exists_ |= (first + row + i * Map::kRowsApart < end ? 1u : 0u) << i;
    } else {
      pointer_ = bytes + row * pitch + std::int64_t{first + element} * kBytes;
      tile_step_ = OperandTile::kK * pitch;
      k_left_ = k - row;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < Map::kContiguous; ++i)
        exists_ |= (first + element + i * Map::kElementsApart < end ? 1u : 0u) << i;
    }
  }

  template <int part, int parts>
  CUTLASS_DEVICE void copy(unsigned shared) const {
    unsigned const exists = !kIsKContiguous || k_left_ > 0 ? exists_ : 0;
    CUTLASS_PRAGMA_UNROLL
    for (int i = Map::kCopies * part / parts; i < Map::kCopies * (part + 1) / parts; ++i) {
      int const row = i / Map::kContiguous, across = i % Map::kContiguous;
      bool const valid = kIsKContiguous ? exists >> row & 1 : (exists >> across & 1) & (row * Map::kRowsApart < k_left_);
      cp_async<vector_bytes>(shared + Map::offset_of_copy(offset_, i),
                             pointer_ + row * row_step_ + across * Map::kElementsApart * kBytes, valid);
    }
  }

  CUTLASS_DEVICE void advance() {
    pointer_ += tile_step_;
    k_left_ -= OperandTile::kK;
  }

 private:
  char const* pointer_;
  std::int64_t row_step_, tile_step_;
  int offset_, k_left_;
  unsigned exists_ = 0;
};

}  // namespace cutwheel::gemm
