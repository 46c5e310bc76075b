// The mainloop of the persistent kernel: what follows from a tile (layouts in shared memory, the wgmma instruction, the
// number of stages), and the consumer whose accumulators stay in the tensor cores.
#pragma once

#include <cute/container/array_aligned.hpp>
#include <cute/layout.hpp>

#include "core/cutlass_types.cuh"
#include "sm90/native/epilogue/transposed.cuh"
#include "sm90/native/load/tiles.cuh"
#include "sm90/native/pipeline.cuh"
#include "sm90/native/wgmma.cuh"

namespace cutwheel::gemm {

// 32-bit operands are multiplied as TF32.
template <DType type>
using Sm90MmaElement = std::conditional_t<type == DType::tf32, cutlass::tfloat32_t, Element<type>>;

// swap_ab: the kernel computes D^T [N, M] = B^T [N, K] A^T [K, M], so that a small M of the user meets the dimension of
// wgmma that may be as short as 8. Tile is the kernel's; layouts are the user's. splits: threadblocks that share the K of a
// tile, each of which finishes its part of the columns. pingpong: two warpgroups take whole tiles in turns, so that one
// multiplies while the other stores; else each owns 64 rows of every tile, of 256 rows every other 64. Of 192 rows three
// own 64 each, or, where K is contiguous in B, there are 128 columns or more and no cluster shares K, two have all of them
// and half of the columns: with fewer columns, reading all rows twice from shared memory would take longer than
// multiplying. So have two of 64 rows and 192 columns or more where sums are promoted, two sets of which one's registers do
// not hold. stores_by_tma: never by threads, as images, groups of rows and promoted sums want it. below, beside:
// threadblocks of a cluster whose tiles lie so to each other, and which load each other's columns and rows by multicast.
template <DType a, DType b, DType acc, DType d, Layout layout_a, Layout layout_b, class Tile, class Epilogue_,
          bool swap_ab = false, int splits = 1, bool pingpong = false, bool stores_by_tma = false, int below = 1,
          int beside = 1, bool promotes = false>
struct Sm90PersistentTypes {
  static constexpr bool kSwapAB = swap_ab;
  static constexpr DType kD = d;
  static constexpr bool kLoadsByTma = true, kLoadsByCopies = false;
  static constexpr int kProducerWarpGroups = 1;
  static constexpr int kSplits = splits, kBelow = below, kBeside = beside;
  static_assert(splits == 1 || below * beside == 1);
  static constexpr bool kPingpong = pingpong;
  static constexpr int kK = Tile::kK;
  static constexpr auto kMajorA = (swap_ab ? layout_b == Layout::column : layout_a == Layout::row)
                                      ? cute::SM90::GMMA::Major::K
                                      : cute::SM90::GMMA::Major::MN;
  static constexpr auto kMajorB = (swap_ab ? layout_a == Layout::row : layout_b == Layout::column)
                                      ? cute::SM90::GMMA::Major::K
                                      : cute::SM90::GMMA::Major::MN;
  static constexpr bool kHalvesColumns =
      kMajorB == cute::SM90::GMMA::Major::K && splits == 1 && !pingpong &&
      (Tile::kM == 192 ? Tile::kN >= 128 : Tile::kM == 64 && Tile::kN >= 192 && promotes);
  // The columns that a warpgroup multiplies, and those that it stores.
  static constexpr int kColumns = kHalvesColumns ? Tile::kN / 2 : Tile::kN, kOwnColumns = kColumns / splits;
  static_assert(Tile::kN % splits == 0);
  using ElementA = Sm90MmaElement<swap_ab ? b : a>;
  using ElementB = Sm90MmaElement<swap_ab ? a : b>;
  using ElementAccumulator = Element<acc>;
  // Warpgroups of a threadblock that multiply, those of a tile, and the blocks of 64 rows that each of these has.
  static constexpr int kTileWarpGroups = kHalvesColumns ? 2 : pingpong || Tile::kM == 64 ? 1 : Tile::kM == 192 ? 3 : 2;
  static constexpr int kWarpGroups = pingpong ? 2 : kTileWarpGroups;
  static constexpr int kRowGroups = kHalvesColumns ? 1 : kTileWarpGroups;
  static constexpr int kBlocks = Tile::kM / 64 / kRowGroups;
  static_assert(Tile::kM == 64 || Tile::kM == 128 || Tile::kM == 192 || (Tile::kM == 256 && !pingpong));
  using TileShape = cute::Shape<cute::Int<Tile::kM>, cute::Int<Tile::kN>, cute::Int<Tile::kK>>;
  // How results leave. TMA reads rows behind the loads that are under way: a warpgroup that stores twice in a tile would
  // wait that long within it for its one place, and rows of 256 columns that are staged whole take a stage from the
  // mainloop. In lines from two places, tiles in turns take 0.9 to 1.0 of the time that they take by threads, but gradients
  // of weights up to 1.13 where M is wide (each row of an operand's tile is then in another page: slow loads, it seems,
  // that stores wait for). Tiles with 256 columns that are not in turns gain 2 % in fp8 and lose up to 6 % in other types
  // (H100, native_kernels/stores/h100_sustained.json). Groups of rows take 1.03 times as long by threads as by TMA.
  static constexpr RowStores row_stores() {
    constexpr bool kBothMnMajor = kMajorA == cute::SM90::GMMA::Major::MN && kMajorB == cute::SM90::GMMA::Major::MN;
    if (kBlocks == 1 && kOwnColumns < 256) return RowStores::whole;
    if (stores_by_tma) return pingpong ? RowStores::in_lines : RowStores::whole;
    if (pingpong) return kBlocks > 1 && kBothMnMajor ? RowStores::by_threads : RowStores::in_lines;
    return !swap_ab && is_fp8(a) ? RowStores::in_lines : RowStores::by_threads;
  }
  // Lazily: the one's static assertions do not hold for the other's tiles.
  static constexpr auto epilogue_type() {
    using Operands = typename Epilogue_::Operands;
    using Stores = typename Epilogue_::Stores;
    if constexpr (swap_ab) {
      return epilogue::TypeIdentity<
          Sm90TransposedEpilogue<Epilogue_, d, kOwnColumns, Operands, Stores, row_stores(), kBlocks>>{};
    } else {
      return epilogue::TypeIdentity<
          Sm90PerWarpgroupEpilogue<Epilogue_, d, kOwnColumns, Operands, Stores, row_stores(), kBlocks>>{};
    }
  }
  using Epilogue = typename decltype(epilogue_type())::type;

  using OperandA = Sm90TileOperand<ElementA, Tile::kM, Tile::kK, kMajorA>;
  // Columns that the epilogue combines in pairs.
  static constexpr bool kInPairs =
      Epilogue_::kWidth == Width::half && !swap_ab && below * beside == 1 && kMajorB == cute::SM90::GMMA::Major::K;
  using OperandB = Sm90TileOperand<ElementB, Tile::kN, Tile::kK, kMajorB, kInPairs>;
  using Loader = std::conditional_t<below * beside == 1, Sm90MatrixLoader<OperandA, OperandB, Tile::kK>,
                                    Sm90SharingLoader<OperandA, OperandB, Tile::kK, below, beside>>;
  struct LoaderStorage {};

  static constexpr int kSharedMemory = 227 * 1024;
  // `others`: bytes that the kernel wants besides.
  static constexpr int stages(int others) {
    constexpr int kBarriers = 1024;  // and what alignment takes
    return (kSharedMemory - kBarriers - others - kWarpGroups * static_cast<int>(sizeof(typename Epilogue::Storage))) /
           (OperandA::kBytes + OperandB::kBytes);
  }

  // Multiplies 64 rows by all columns.
  using WarpGroupTile = cute::Shape<cute::Int<Tile::kM>, cute::Int<kColumns>, cute::Int<Tile::kK>>;
  using Instruction = decltype(sm90_wgmma<ElementA, ElementB, ElementAccumulator, WarpGroupTile, kMajorA, kMajorB>());
  static constexpr int kValues = kBlocks * kColumns / 2;  // of a thread
};

// The part that depends on how many stages there are: what consumers see.
template <class Types, int stages>
struct Sm90PersistentStages : Types {
  struct TensorStorage {
    cute::array_aligned<typename Types::ElementA, stages * Types::OperandA::kElements, 1024> smem_A;
    cute::array_aligned<typename Types::ElementB, stages * Types::OperandB::kElements, 1024> smem_B;
  };
  using MainloopPipeline = Sm90Pipeline<stages, Types::kTileWarpGroups, Types::kBelow, Types::kBeside>;
  using PipelineState = typename MainloopPipeline::State;
  struct Params {};
};

template <class Base>
struct Sm90PlainMma : Base {
  using typename Base::MainloopPipeline;
  using typename Base::OperandA;
  using typename Base::OperandB;
  using typename Base::PipelineState;
  using typename Base::TensorStorage;

  // Index of value i of a block of 64 rows in the accumulator.
  CUTLASS_DEVICE static constexpr int index_of(int block, int i) { return block * (Base::kColumns / 2) + i; }

  // `prepare(stage, tile)` runs before the wgmmas of a tile of K.
  template <class Values, class Prepare>
  CUTLASS_DEVICE void mma(MainloopPipeline pipeline, PipelineState read, Values& accum, int k_tiles, int thread,
                          TensorStorage& shared, Prepare const& prepare) {
    using namespace cute;
    if (k_tiles == 0) {
      sm90_clear<Base::kValues>(accum);
      return;
    }
    // The shuffle tells the compiler that a warp has one value, and lets the warp meet before wgmma.
    int const warpgroup = __shfl_sync(0xffffffff, thread / 128, 0) % Base::kTileWarpGroups;
    GmmaDescriptor const a =
        OperandA::template descriptor<64>(shared.smem_A.data(), Base::kHalvesColumns ? 0 : warpgroup * 64);
    GmmaDescriptor const b = OperandB::template descriptor<Base::kColumns>(
        shared.smem_B.data(), Base::kHalvesColumns ? warpgroup * Base::kColumns : 0);
    constexpr int kStep = 32 / sizeof(typename Base::ElementA);  // K of an instruction
    auto scale = SM90::GMMA::ScaleOut::Zero;
    PipelineState release = read;
    sm90_fence<Base::kValues>(accum);
    // A stage is released once the wgmmas of the next one have been issued.
    CUTLASS_PRAGMA_NO_UNROLL
    for (int tile = 0; tile < k_tiles; ++tile) {
      pipeline.consumer_wait(read);
      prepare(read.index(), tile);
      warpgroup_arrive();
      CUTLASS_PRAGMA_UNROLL
      for (int k = 0; k < Base::kK; k += kStep) {
        GmmaDescriptor const columns = sm90_advance(b, OperandB::offset(0, k, read.index()));
        CUTLASS_PRAGMA_UNROLL
        for (int block = 0; block < Base::kBlocks; ++block) {
          GmmaDescriptor const rows = sm90_advance(a, OperandA::offset(block * 64 * Base::kRowGroups, k, read.index()));
          sm90_multiply<typename Base::Instruction>(rows, columns, accum, index_of(block, 0), scale);
        }
        scale = SM90::GMMA::ScaleOut::One;
      }
      warpgroup_commit_batch();
      ++read;
      if (tile > 0) {
        warpgroup_wait<1>();
        pipeline.consumer_release(release);
        ++release;
      }
    }
    warpgroup_wait<0>();
    pipeline.consumer_release(release);
    sm90_fence<Base::kValues>(accum);
  }
};

}  // namespace cutwheel::gemm
