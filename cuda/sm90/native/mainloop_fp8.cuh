// The consumer of Hopper's fp8 mainloops. Tensor cores accumulate with about 14 bits, so they sum 128 of K at a time, which
// are then added to float registers (accumulator promotion). CUTLASS's mainloops wait for the tensor cores before they add,
// and the tensor cores wait meanwhile. Here the next sums are computed while the last ones are added: in one warpgroup,
// with two sets of registers for them.
#pragma once

#include <cute/layout.hpp>

#include "epilogue/apply.cuh"
#include "sm90/dependent_grids.cuh"
#include "sm90/native/load/tiles.cuh"
#include "sm90/native/wgmma.cuh"

namespace cutwheel::gemm {

// Columns of the partial sums in flight: two sets of them and the accumulators of the whole tile, `rows` by `columns` for
// each warpgroup, have to fit into registers. One set of more columns, multiplied by two warpgroups in turns as cuBLAS 13
// does, reads rows fewer times from shared memory and yet takes 1.024 times as long, with 144 to 256 columns (H200).
constexpr int sm90_promotion_columns(int rows, int columns) {
  constexpr int kRegisters = 192;
  int part = columns;
  while (rows * columns / 128 + part > kRegisters || columns % part != 0) part -= 8;
  return part;
}

// Rows and columns that share one block-wise scale. Base declares them only where there are such scales.
template <bool scaled, class Base>
struct Sm90Granularity {
  static constexpr int kRows = 0, kColumns = 0;
};
template <class Base>
struct Sm90Granularity<true, Base> {
  static constexpr int kRows = Base::ScaleGranularityM, kColumns = Base::ScaleGranularityN;
};

// Warpgroups that share a tile, and whether each has all rows and a part of the columns.
template <class Base, class = void>
struct Sm90TileWarpGroups {
  static constexpr int kCount = cute::size(typename Base::TiledMma{}) / cutlass::NumThreadsPerWarpGroup;
  static constexpr bool kHalvesColumns = false;
};
template <class Base>
struct Sm90TileWarpGroups<Base, std::void_t<decltype(Base::kTileWarpGroups)>> {
  static constexpr int kCount = Base::kTileWarpGroups;
  static constexpr bool kHalvesColumns = Base::kHalvesColumns;
};

// Scaled: sums are multiplied by the scales of their 128 of K.
template <class Base, bool scaled>
struct Sm90AccumulatorPromotionMma : Base {
  using typename Base::ElementAccumulator;
  using typename Base::MainloopPipeline;
  using typename Base::Params;
  using typename Base::PipelineState;
  using typename Base::TensorStorage;
  using typename Base::TileShape;

  static constexpr int kWarpGroups = Sm90TileWarpGroups<Base>::kCount;
  static constexpr bool kHalvesColumns = Sm90TileWarpGroups<Base>::kHalvesColumns;
  static constexpr int kTileColumns = cute::size<1>(TileShape{}), kRowGroups = kHalvesColumns ? 1 : kWarpGroups;
  // A warpgroup's part of the tile.
  static constexpr int kColumns = kHalvesColumns ? kTileColumns / kWarpGroups : kTileColumns;
  static constexpr int kRows = cute::size<0>(TileShape{}) / kRowGroups;
  static constexpr int kPartColumns = sm90_promotion_columns(kRows, kColumns);
  static constexpr int kBlocks = kRows / 64, kParts = kColumns / kPartColumns;
  static constexpr int kTileK = cute::size<2>(TileShape{});
  static constexpr int kChunks = kTileK / 128;      // promotions for each tile of K
  static constexpr int kValues = kPartColumns / 2;  // of a part in a thread
  static_assert(kTileK == 128 * kChunks && (!scaled || kChunks == 1));

  using PartShape = cute::Shape<cute::Int<64 * kRowGroups>, cute::Int<kPartColumns>, cute::_128>;
  using Instruction =
      decltype(sm90_wgmma<typename Base::ElementA, typename Base::ElementB, ElementAccumulator, PartShape>());
  using Part = Sm90Accumulator<ElementAccumulator, kValues>;  // the whole accumulator is (values of a part, blocks, parts)
  // CUTLASS's kernels lay operands out as ours do.
  using Rows = Sm90TileOperand<typename Base::ElementA, kRows * kRowGroups, kTileK, cute::SM90::GMMA::Major::K>;
  using Columns = Sm90TileOperand<typename Base::ElementB, kTileColumns, kTileK, cute::SM90::GMMA::Major::K>;

  // Index of value i of a block of 64 rows in the accumulator.
  CUTLASS_DEVICE static constexpr int index_of(int block, int i) {
    return (i / kValues * kBlocks + block) * kValues + i % kValues;
  }

  // Scales of a thread's part of the accumulator, whose value c + 2 r + 4 j is that of row `lane / 4 + 8 r` of the warp's
  // 16 rows and of column 8 j + 2 (lane % 4) + c.
  template <bool by_row, bool by_column>
  struct Scales {
    float row[2] = {};
    float column[by_column ? kValues / 2 : 1] = {};

    // `rows`: those of the warp's 16 rows, or one. `columns`: those of the part, or one.
    CUTLASS_DEVICE void load(float const* rows, float const* columns, int lane) {
      row[0] = rows[by_row ? lane / 4 : 0];
      row[1] = by_row ? rows[lane / 4 + 8] : row[0];
      if constexpr (by_column) {
        CUTLASS_PRAGMA_UNROLL
        for (int j = 0; j < kPartColumns / 8; ++j) {
          auto const pair = *reinterpret_cast<float2 const*>(columns + 8 * j + lane % 4 * 2);
          column[2 * j] = pair.x;
          column[2 * j + 1] = pair.y;
        }
        if constexpr (!by_row) {
          CUTLASS_PRAGMA_UNROLL
          for (int j = 0; j < kValues / 2; ++j) column[j] *= row[0];
        }
      } else {
        row[0] *= *columns;
        row[1] *= *columns;
      }
    }

    CUTLASS_DEVICE float operator()(int i) const {
      if constexpr (!by_column) return row[i / 2 % 2];
      float const one = column[i / 4 * 2 + i % 2];
      return by_row ? row[i / 2 % 2] * one : one;
    }
  };

  // Scales as CUTLASS's kernels bring them: with the operands, in the same stage.
  struct StageScales {
    using Granularity = Sm90Granularity<scaled, Base>;
    using Values = Scales<Granularity::kRows == 1, Granularity::kColumns == 1>;
    static constexpr bool kScaled = scaled;
    TensorStorage& shared;

    CUTLASS_DEVICE void enter(int) const {}

    CUTLASS_DEVICE void load(Values& values, int, int stage, int block, int part, int thread) const {
      if constexpr (scaled) {
        int const lane = thread % 32, warp = thread % 128 / 32, warpgroup = thread / 128 % kWarpGroups;
        int const first = (block * kWarpGroups + warpgroup) * 64 + warp * 16;
        float const* const rows = shared.smem_SFA.data() + stage * Base::ScaleMsPerTile;
        float const* const columns = shared.smem_SFB.data() + stage * Base::ScaleNsPerTile;
        values.load(rows + first / Granularity::kRows, columns + part * kPartColumns / Granularity::kColumns, lane);
      }
    }
  };

  // As CUTLASS's kernels call it.
  template <class Fragment>
  CUTLASS_DEVICE void mma(MainloopPipeline pipeline, PipelineState read, Fragment& accum, int k_tiles, int thread,
                          TensorStorage& shared, Params const&) {
    StageScales source{shared};
    run(pipeline, read, accum, k_tiles, thread, shared, source, [](int) {});
  }

  // Source: Values, kScaled, enter(k) before the tiles of K from k on are multiplied, and load(values, k, ...). arrived(k)
  // follows the arrival of the k-th tile.
  template <class Fragment, class Source, class Arrived>
  CUTLASS_DEVICE void run(MainloopPipeline pipeline, PipelineState read, Fragment& accum, int k_tiles, int thread,
                          TensorStorage& shared, Source& source, Arrived const& arrived) {
    using namespace cute;
    constexpr int kAccumulators = kValues * kParts * kBlocks;
    int const warpgroup = __shfl_sync(0xffffffff, thread / 128, 0) % kWarpGroups;
    GmmaDescriptor const a = Rows::template descriptor<64>(shared.smem_A.data(), kHalvesColumns ? 0 : warpgroup * 64);
    GmmaDescriptor const b =
        Columns::template descriptor<kPartColumns>(shared.smem_B.data(), kHalvesColumns ? warpgroup * kColumns : 0);
    Part sums[2] = {};

    // Items of a tile of K: one for each chunk of K, block of 64 rows and part of the columns.
    constexpr int kItems = kChunks * kBlocks * kParts;
    auto const issue = [&](int stage, int item, Part& into) {
      int const chunk = item / (kBlocks * kParts), block = item / kParts % kBlocks, part = item % kParts;
      sm90_fence<kValues>(into);
      warpgroup_arrive();
      auto scale = SM90::GMMA::ScaleOut::Zero;
      CUTLASS_PRAGMA_UNROLL
      for (int k = 128 * chunk; k < 128 * chunk + 128; k += 32) {
        sm90_multiply<Instruction>(sm90_advance(a, Rows::offset(block * 64 * kRowGroups, k, stage)),
                                   sm90_advance(b, Columns::offset(part * kPartColumns, k, stage)), into, 0, scale);
        scale = SM90::GMMA::ScaleOut::One;
      }
      warpgroup_commit_batch();
    };
    using Values = typename Source::Values;
    auto const add = [&](int item, Part& from, Values const& scales) {
      int const block = item / kParts % kBlocks, part = item % kParts;
      sm90_fence<kValues>(from);
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kValues; ++i) {
        float& sum = accum((part * kBlocks + block) * kValues + i);
        if constexpr (Source::kScaled) {
          sum += scales(i) * from(i);
        } else {
          sum += from(i);
        }
      }
      // Now, not later: or registers would be copied for it.
      sm90_fence<kAccumulators>(accum);
    };

    // Tiles of K as straight-line code: where a loop carries sums in flight, the assembler makes the tensor cores wait for
    // each of them. So only the last item of a batch is added with nothing behind it. Batches
    // of eight items are 2 % (scales of rows) to 15 % (scales of rows and columns) faster than of four on an H200.
    PipelineState release = read;
    int first_k = 0;
    auto const batch = [&](auto tiles) {
      constexpr int kAll = decltype(tiles)::value * kItems;
      source.enter(first_k);
      pipeline.consumer_wait(read);
      arrived(first_k);
      issue(read.index(), 0, sums[0]);
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kAll; ++i) {
        int const stage = read.index(), item = i % kItems, next = (i + 1) % kItems;
        if (next == 0) ++read;
        if (i + 1 < kAll) {
          if (next == 0) {
            pipeline.consumer_wait(read);
            arrived(first_k + (i + 1) / kItems);
          }
          issue(read.index(), next, sums[(i + 1) % 2]);
        }
        Values scales;
        source.load(scales, first_k + i / kItems, stage, item / kParts % kBlocks, item % kParts, thread);
        if (i + 1 < kAll) {
          warpgroup_wait<1>();
        } else {
          warpgroup_wait<0>();
        }
        add(item, sums[i % 2], scales);
        if (next == 0) {
          pipeline.consumer_release(release);
          ++release;
        }
      }
      first_k += decltype(tiles)::value;
    };
    sm90_clear<kAccumulators>(accum);
    constexpr int kBatch = kItems >= 8 ? 1 : 8 / kItems;
    CUTLASS_PRAGMA_NO_UNROLL
    for (; k_tiles >= kBatch; k_tiles -= kBatch) batch(Int<kBatch>{});
    if constexpr (kBatch > 4) {
      if (k_tiles >= 4) {
        batch(_4{});
        k_tiles -= 4;
      }
    }
    if constexpr (kBatch > 2) {
      if (k_tiles >= 2) {
        batch(_2{});
        k_tiles -= 2;
      }
    }
    CUTLASS_PRAGMA_NO_UNROLL
    for (; k_tiles > 0; --k_tiles) batch(_1{});
  }

  // CUTLASS's cooperative kernel does not let the warp that loads scales wait for the kernel that writes them.
  template <class... Args>
  CUTLASS_DEVICE void load_auxiliary(Args&&... args) {
    wait_on_dependent_grids();
    Base::load_auxiliary(cute::forward<Args>(args)...);
  }

  // Everything is released.
  CUTLASS_DEVICE void mma_tail(MainloopPipeline, PipelineState, int) {}
};

}  // namespace cutwheel::gemm
