// GEMM on Hopper by a kernel of our own: one thread loads by TMA, warpgroups multiply, and each warpgroup works off its 64
// rows of a tile to the end without waiting for the other. It has neither clusters nor a tile of C: on an H200 clusters of
// two make these kernels no faster, and what they leave out lets tiles have any width that wgmma has, so that a problem's
// tiles fill whole waves.
#pragma once

#include <cutlass/arch/grid_dependency_control.h>
#include <cutlass/arch/reg_reconfig.h>
#include <algorithm>
#include <cute/arch/copy_sm90_tma.hpp>
#include <cute/tensor.hpp>

#include "gemm/cutlass_types.cuh"
#include "gemm/launch.h"
#include "gemm/sm90_persistent_mma.cuh"
#include "gemm/sm90_promoted.cuh"
#include "gemm/sm90_tensor_map.cuh"
#include "gemm/sm90_tile_order.cuh"

namespace cutwheel::gemm {

template <Arch arch, DType a_, DType b_, DType acc_, DType d_, class Tile, template <DType> class Epilogue_,
          bool fast_accum = false>
struct Sm90Persistent {
  static_assert(arch == Arch::sm90a);
  using Types = Sm90PersistentTypes<a_, b_, acc_, d_, Tile, Epilogue_<d_>>;
  using ElementA = typename Types::ElementA;
  using ElementB = typename Types::ElementB;
  // Lazily: the one's static assertions do not hold for the other's tiles.
  static constexpr auto mma_type() {
    if constexpr (is_fp8(a_) && !fast_accum) {
      return epilogue::TypeIdentity<Sm90PromotedMma<Types, /*scaled=*/false>>{};
    } else {
      return epilogue::TypeIdentity<Sm90PlainMma<Types>>{};
    }
  }
  using Mma = typename decltype(mma_type())::type;
  using Epilogue = typename Types::Epilogue;
  using Pipeline = typename Types::MainloopPipeline;
  using State = typename Types::PipelineState;

  struct SharedStorage {
    typename Types::TensorStorage tensors;
    typename Epilogue::Storage epilogue[Types::kWarpGroups];
    typename Pipeline::Storage pipeline;
  };
  struct Params {
    CUtensorMap a, b, d;
    typename Epilogue::Params epilogue;
    Sm90TileOrder order;
    int m, n, k_tiles;
  };

  static constexpr int kMaxThreads = 128 * (Types::kWarpGroups + 1);
  static constexpr int kMinBlocks = 1;
  static constexpr int kSharedStorageBytes = static_cast<int>(sizeof(SharedStorage));
  static_assert(kSharedStorageBytes <= Types::kSharedMemory && Types::kStages >= 2);

  CUTLASS_DEVICE static Sm90TilePlace place_of(Params const& p, int index) {
    Sm90TilePlace place;
    p.order.at(index, place.m, place.n, place.batch);
    place.m *= Tile::kM;
    place.n *= Tile::kN;
    place.end_m = p.m;
    place.end_n = p.n;
    return place;
  }

  CUTLASS_DEVICE static void produce(Params const& p, SharedStorage& shared) {
    constexpr auto kHint = static_cast<std::uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL);
    for (CUtensorMap const* map : {&p.a, &p.b, &p.d}) {
      cute::prefetch_tma_descriptor(reinterpret_cast<cute::TmaDescriptor const*>(map));
    }
    cutlass::arch::wait_on_dependent_grids();
    Pipeline const pipeline{shared.pipeline};
    State write;
    for (int tile = static_cast<int>(blockIdx.x); tile < p.order.count(); tile += static_cast<int>(gridDim.x)) {
      Sm90TilePlace const place = place_of(p, tile);
      for (int k = 0; k < p.k_tiles; ++k, ++write) {
        std::uint64_t* const barrier = pipeline.producer_acquire(write, Types::kBytesA + Types::kBytesB);
        ElementA* const a = shared.tensors.smem_A.data() + write.index() * Tile::kM * Tile::kK;
        ElementB* const b = shared.tensors.smem_B.data() + write.index() * Tile::kN * Tile::kK;
        cute::SM90_TMA_LOAD_3D::copy(&p.a, barrier, kHint, a, k * Tile::kK, place.m, place.batch);
        cute::SM90_TMA_LOAD_3D::copy(&p.b, barrier, kHint, b, k * Tile::kK, place.n, place.batch);
      }
    }
    cutlass::arch::launch_dependent_grids();
  }

  CUTLASS_DEVICE static void consume(Params const& p, SharedStorage& shared, int warpgroup) {
    cutlass::arch::wait_on_dependent_grids();
    Pipeline const pipeline{shared.pipeline};
    State read;
    int const thread = threadIdx.x % 128;
    auto& storage = shared.epilogue[warpgroup];
    auto const synchronize = [&] { cutlass::arch::NamedBarrier::sync(128, static_cast<std::uint32_t>(warpgroup)); };
    for (int tile = static_cast<int>(blockIdx.x); tile < p.order.count(); tile += static_cast<int>(gridDim.x)) {
      Sm90TilePlace place = place_of(p, tile);
      place.m += warpgroup * 64;
      synchronize();  // the vectors of the tile before have been read
      Epilogue::prefetch(p.epilogue, storage, place, thread);
      auto accum = cute::partition_fragment_C(typename Mma::TiledMma{}, cute::take<0, 2>(typename Types::TileShape{}));
      Mma{}.mma(pipeline, read, accum, p.k_tiles, warpgroup * 128 + thread, shared.tensors, {});
      read.advance(p.k_tiles);
      Epilogue::wait_for_prefetch();
      synchronize();
      // Columns follow each other in accum, through its parts.
      Epilogue::store(p.epilogue, p.d, storage, place, thread, [&](int i) { return accum(i); });
    }
    Epilogue::wait_until_read();
  }

  CUTLASS_DEVICE static void device(Params const& p) {
    extern __shared__ char shared_memory[];  // from address 0 on: there is no other
    auto& shared = *reinterpret_cast<SharedStorage*>(shared_memory);
    int const warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
    if (threadIdx.x == 0) Pipeline{shared.pipeline}.initialize();
    __syncthreads();
    // One warpgroup alone may have all the registers it can name.
    constexpr bool kShare = Types::kWarpGroups > 1;
    if (warpgroup == Types::kWarpGroups) {
      if constexpr (kShare) cutlass::arch::warpgroup_reg_dealloc<40>();
      if (threadIdx.x % 128 / 32 == 0 && cute::elect_one_sync()) produce(p, shared);
    } else {
      if constexpr (kShare) cutlass::arch::warpgroup_reg_alloc<232>();
      consume(p, shared, warpgroup);
    }
  }

  static std::int64_t workspace_bytes(GemmArgs const&) { return 0; }

  static bool meets_tma(Operand const& x, int bytes) {
    return reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0 && x.leading * bytes % 16 == 0 &&
           x.batch_stride * bytes % 16 == 0;
  }

  static Status launch(GemmArgs const& args, void const* kernel) {
    static KernelFacts facts;
    if (!meets_tma(args.a, element_bytes(a_)) || !meets_tma(args.b, element_bytes(b_)) ||
        !Epilogue::meets_alignment(args)) {
      return {StatusCode::not_implementable, 0};
    }
    if (cudaError_t const error = facts.prepare(kernel, args.device->ordinal, kSharedStorageBytes); error != cudaSuccess) {
      cudaGetLastError();
      return {StatusCode::cuda_error, static_cast<int>(error)};
    }
    Params params;
    encode_tensor_map(params.a, a_, args.a, args.k, args.m, args.batch, Tile::kK, Tile::kM);
    encode_tensor_map(params.b, b_, args.b, args.k, args.n, args.batch, Tile::kK, Tile::kN);
    Epilogue::encode_map(params.d, args);
    if (int const error = take_tensor_map_error()) return {StatusCode::tensor_map_error, error};
    params.epilogue = Epilogue::params(args);
    params.order = {ceil_div(args.m, Tile::kM), ceil_div(args.n, Tile::kN), args.batch, args.swizzle,
                    args.raster == RasterOrder::along_m};
    params.m = args.m;
    params.n = args.n;
    params.k_tiles = ceil_div(args.k, Tile::kK);
    LaunchShape shape;
    shape.grid = dim3(static_cast<unsigned>(std::min(params.order.count(), args.device->sm_count)));
    shape.block = dim3(kMaxThreads);
    shape.shared_memory_bytes = kSharedStorageBytes;
    shape.dependent_launch = true;
    return launch_kernel(kernel, shape, params, args.stream);
  }
};

}  // namespace cutwheel::gemm
