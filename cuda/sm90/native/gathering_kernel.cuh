// The persistent kernel with warpgroups that copy operands 16 bytes at a time (cp.async), from wherever these lie; one may
// come by TMA. Copies are made by the generic proxy and wgmma reads by the asynchronous one: consumers fence what
// has arrived (kLoadsByCopies).
#pragma once

#include "sm90/native/kernel.cuh"

namespace cutwheel::gemm {

template <class Types_, class Scheduler_>
struct Sm90GatheringKernel : Sm90PersistentKernel<Types_, Scheduler_, /*promotes_accumulator=*/false> {
  using Base = Sm90PersistentKernel<Types_, Scheduler_, /*promotes_accumulator=*/false>;
  using typename Base::Loader;
  using typename Base::Params;
  using typename Base::Pipeline;
  using typename Base::SharedStorage;
  using typename Base::State;
  using Scheduler = Scheduler_;
  using Types = typename Base::Types;
  static constexpr int kProducers = 128 * Types::kProducerWarpGroups;
  static_assert(!Types::kLoadsByTma && Types::kLoadsByCopies);

  CUTLASS_DEVICE static void produce(Params const& p, SharedStorage& shared, int thread) {
    Scheduler scheduler(p.scheduler, shared.scheduler);
    Loader loader(p.operands, scheduler, thread);
    Pipeline const pipeline{shared.pipeline};
    State write;
    Sm90WorkTile work;
    if constexpr (!Scheduler::kReadsMemory) wait_on_dependent_grids();
    for (int tile = Base::first_tile(); Base::find(scheduler, tile, work); tile += Base::tile_step()) {
      if (work.k_tiles > 0) loader.begin(work);
      for (int k = 0; k < work.k_tiles; ++k, ++write) {
        pipeline.producer_wait(write);
        auto* const stage_a = Base::stage_a(shared, write.index());
        auto* const stage_b = Base::stage_b(shared, write.index());
        if constexpr (Loader::kLoadsByTma) loader.load_by_tma(pipeline, write, stage_a, stage_b);
        loader.load(stage_a, stage_b);
        // When this thread's copies have arrived, and not before: it goes on meanwhile.
        pipeline.producer_commit_copies(write);
      }
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    launch_dependent_grids();
  }

  CUTLASS_DEVICE static void device(Params const& p) {
    extern __shared__ __align__(1024) char shared_memory[];
    auto& shared = *reinterpret_cast<SharedStorage*>(shared_memory);
    int const warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
    if (threadIdx.x == 0) {
      Pipeline{shared.pipeline}.initialize(kProducers + (Loader::kLoadsByTma ? 1 : 0));
      if constexpr (Loader::kLoadsByTma) Loader::prefetch(p.operands);
      if (p.epilogue.by_tma) {
        cute::prefetch_tma_descriptor(reinterpret_cast<cute::TmaDescriptor const*>(&p.maps.result));
      }
    }
    if constexpr (Scheduler::kReadsMemory) {
      wait_on_dependent_grids();
      Scheduler::start(p.scheduler, shared.scheduler);
    }
    if constexpr (Base::kCluster > 1) {
      cute::cluster_sync();
    } else {
      __syncthreads();
    }
    constexpr bool kShare = Types::kWarpGroups > 1;
    if (warpgroup >= Types::kWarpGroups) {
      if constexpr (kShare) cutlass::arch::warpgroup_reg_dealloc<kProducers == 256 ? 56 : 96>();
      produce(p, shared, static_cast<int>(threadIdx.x) - 128 * Types::kWarpGroups);
    } else {
      if constexpr (kShare) cutlass::arch::warpgroup_reg_alloc<200>();
      Base::consume(p, shared, warpgroup);
    }
    if constexpr (Base::kCluster > 1) {
      __syncwarp();
      cute::cluster_sync();  // nobody writes into a threadblock that is gone
    }
  }
};

}  // namespace cutwheel::gemm
