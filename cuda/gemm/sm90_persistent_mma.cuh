// What follows from a persistent kernel's tile: layouts in shared memory, the instruction, how many stages fit; and the
// consumer whose sums stay in the tensor cores.
#pragma once

#include <cute/atom/mma_atom.hpp>
#include <cute/tensor.hpp>

#include "gemm/cutlass_types.cuh"
#include "gemm/sm90_pipeline.cuh"
#include "gemm/sm90_warp_epilogue.cuh"
#include "gemm/sm90_wgmma.cuh"

namespace cutwheel::gemm {

// Both operands with K contiguous, of which a tile takes the 128 bytes that one swizzle spans.
template <DType a, DType b, DType acc, DType d, class Tile, class Epilogue_>
struct Sm90PersistentTypes {
  using ElementA = Element<a>;
  using ElementB = Element<b>;
  using ElementAccumulator = Element<acc>;
  static constexpr int kWarpGroups = Tile::kM / 64;
  static_assert((Tile::kM == 64 || Tile::kM == 128) && Tile::kK * static_cast<int>(sizeof(ElementA)) == 128);
  using TileShape = cute::Shape<cute::Int<Tile::kM>, cute::Int<Tile::kN>, cute::Int<Tile::kK>>;
  using Epilogue = Sm90WarpEpilogue<Epilogue_, d, Tile::kN, typename Epilogue_::Operands, typename Epilogue_::Stores>;

  static constexpr int kBytesA = Tile::kM * 128, kBytesB = Tile::kN * 128;
  static constexpr int kSharedMemory = 227 * 1024;
  static constexpr int kBarrierBytes = 1024;  // and what alignment takes
  static constexpr int kStages =
      (kSharedMemory - kBarrierBytes - kWarpGroups * static_cast<int>(sizeof(typename Epilogue::Storage))) /
      (kBytesA + kBytesB);

  template <class E, int rows>
  using SmemLayout = decltype(cute::tile_to_shape(cute::GMMA::Layout_K_SW128_Atom<E>{},
                                                  cute::Shape<cute::Int<rows>, cute::Int<Tile::kK>, cute::Int<kStages>>{}));
  using SmemLayoutA = SmemLayout<ElementA, Tile::kM>;
  using SmemLayoutB = SmemLayout<ElementB, Tile::kN>;
  struct TensorStorage {
    cute::array_aligned<ElementA, cute::cosize_v<SmemLayoutA>, 1024> smem_A;
    cute::array_aligned<ElementB, cute::cosize_v<SmemLayoutB>, 1024> smem_B;
  };
  using TiledMma = decltype(cute::make_tiled_mma(sm90_wgmma<ElementA, ElementB, ElementAccumulator, TileShape>(),
                                                 cute::Layout<cute::Shape<cute::Int<kWarpGroups>, cute::_1, cute::_1>>{}));

  using MainloopPipeline = Sm90Pipeline<kStages, kWarpGroups>;
  using PipelineState = typename MainloopPipeline::State;
  struct Params {};
};

template <class Base>
struct Sm90PlainMma : Base {
  using typename Base::MainloopPipeline;
  using typename Base::PipelineState;
  using typename Base::TensorStorage;
  using typename Base::TiledMma;

  template <class Fragment>
  CUTLASS_DEVICE void mma(MainloopPipeline pipeline, PipelineState read, Fragment& accum, int k_tiles, int thread,
                          TensorStorage& shared, typename Base::Params const&) {
    using namespace cute;
    TiledMma tiled_mma;
    auto const slice = tiled_mma.get_slice(__shfl_sync(0xffffffff, thread / 128, 0) * 128);
    Tensor a = slice.make_fragment_A(
        slice.partition_A(make_tensor(make_smem_ptr(shared.smem_A.data()), typename Base::SmemLayoutA{})));
    Tensor b = slice.make_fragment_B(
        slice.partition_B(make_tensor(make_smem_ptr(shared.smem_B.data()), typename Base::SmemLayoutB{})));
    tiled_mma.accumulate_ = GMMA::ScaleOut::Zero;
    PipelineState release = read;
    warpgroup_fence_operand(accum);
    // A stage is released once the products of the next one are under way.
    CUTLASS_PRAGMA_NO_UNROLL
    for (int tile = 0; tile < k_tiles; ++tile) {
      pipeline.consumer_wait(read);
      warpgroup_arrive();
      CUTLASS_PRAGMA_UNROLL
      for (int k = 0; k < size<2>(a); ++k) {
        cute::gemm(tiled_mma, a(_, _, k, read.index()), b(_, _, k, read.index()), accum);
        tiled_mma.accumulate_ = GMMA::ScaleOut::One;
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
    warpgroup_fence_operand(accum);
  }
};

}  // namespace cutwheel::gemm
