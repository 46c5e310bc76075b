// Hopper's persistent warp-specialised kernel: one thread loads by TMA (or warpgroups load what TMA cannot), consumer
// warpgroups multiply. Each consumer warpgroup owns 64 or 128 rows of a work tile, or half of its columns, and finishes
// them without waiting for the other; the tile scheduler supplies work tiles (scheduler/work_tile.cuh), Types::Loader loads
// their operands.
#pragma once

#include <cutlass/arch/reg_reconfig.h>
#include <algorithm>

#include "core/launch.h"
#include "sm90/dependent_grids.cuh"
#include "sm90/native/block_scales.cuh"
#include "sm90/native/cluster_reduction.cuh"
#include "sm90/native/mainloop.cuh"
#include "sm90/native/mainloop_fp8.cuh"
#include "sm90/native/turns.cuh"

namespace cutwheel::gemm {

template <class Types_, class Scheduler, bool promotes_accumulator, BlockScales block_scales = BlockScales::none>
struct Sm90PersistentKernel {
  static constexpr bool kScaled = block_scales != BlockScales::none;
  static_assert(!kScaled || (promotes_accumulator && !Types_::kHalvesColumns));
  static constexpr int kSplits = Types_::kSplits, kBelow = Types_::kBelow, kBeside = Types_::kBeside,
                       kCluster = kSplits * kBelow * kBeside;
  using ScaleShape =
      Sm90BlockScaleShape<cute::size<1>(typename Types_::TileShape{}), block_scales, Types_::kSwapAB, (kSplits > 1)>;
  template <bool in_stages>
  using ClusterReductionIn =
      Sm90ClusterReduction<kSplits, Types_::kWarpGroups, cute::size<1>(typename Types_::TileShape{}) / 2, in_stages>;
  template <class Reduction>
  static constexpr int kStagesBeside = Types_::stages(static_cast<int>(sizeof(typename Scheduler::Storage)) +
                                                      static_cast<int>(sizeof(typename Reduction::Storage)) +
                                                      (kScaled ? Types_::kWarpGroups * ScaleShape::kBytes : 0));
  // So many leave sums a place of their own. With three of 192x160 153 x 10240 x 8192 takes 59 us, with the four that sums
  // in stages leave 53 (H200): loads under way have to cover the latency of memory.
  static constexpr int kEnoughStages = 5;
  static constexpr bool kSumsInStages = kSplits > 1 && kStagesBeside<ClusterReductionIn<false>> < kEnoughStages;
  using ClusterReduction = ClusterReductionIn<kSumsInStages>;
  static constexpr int kStages = kStagesBeside<ClusterReduction>;
  using Types = Sm90PersistentStages<Types_, kStages>;
  // Lazily: the one's static assertions do not hold for the other's tiles.
  static constexpr auto mma_type() {
    if constexpr (promotes_accumulator) {
      return epilogue::TypeIdentity<Sm90AccumulatorPromotionMma<Types, /*scaled=*/false>>{};
    } else {
      return epilogue::TypeIdentity<Sm90PlainMma<Types>>{};
    }
  }
  using Mma = typename decltype(mma_type())::type;
  using OperandA = typename Types::OperandA;
  using OperandB = typename Types::OperandB;
  using Loader = typename Types::Loader;
  using Epilogue = typename Types::Epilogue;
  using Pipeline = typename Types::MainloopPipeline;
  using State = typename Types::PipelineState;
  using Turns = Sm90Turns<Types::kPingpong>;

  static constexpr auto scale_source() {
    if constexpr (kScaled) {
      return epilogue::TypeIdentity<Sm90BlockScaleSource<Mma, ScaleShape>>{};
    } else {
      return epilogue::TypeIdentity<Sm90NoScaleSource>{};
    }
  }
  using ScaleSource = typename decltype(scale_source())::type;

  struct SharedStorage {
    typename Types::TensorStorage tensors;
    typename Epilogue::Storage epilogue[Types::kWarpGroups];
    typename Pipeline::Storage pipeline;
    typename Scheduler::Storage scheduler;
    typename Turns::Storage turns;
    typename ScaleSource::Storage scales[Types::kWarpGroups];
    typename ClusterReduction::Storage sum;
    typename Types::LoaderStorage loader;
  };
  struct Params {
    typename Loader::Params operands;
    typename Epilogue::Maps maps;
    typename Epilogue::Params epilogue;
    typename Scheduler::Params scheduler;
    typename ScaleSource::Params scales;
    bool exchanges_pairs;  // columns of a pair lie the other way round: Operand::odd_first
  };

  static constexpr int kTileM = cute::size<0>(typename Types::TileShape{}),
                       kTileN = cute::size<1>(typename Types::TileShape{}),
                       kTileK = cute::size<2>(typename Types::TileShape{});
  static constexpr int kMaxThreads = 128 * (Types::kWarpGroups + Types::kProducerWarpGroups);
  static constexpr int kMinBlocks = 1;
  static constexpr int kSharedStorageBytes = static_cast<int>(sizeof(SharedStorage));
  static_assert(kSharedStorageBytes <= Types::kSharedMemory && kStages >= 2);

  template <class L>
  static constexpr auto may_leave_zeros(int) -> decltype(L::kMayLeaveZeros) {
    return L::kMayLeaveZeros;
  }
  template <class>
  static constexpr bool may_leave_zeros(...) {
    return false;
  }
  static constexpr bool kMayLeaveZeros = may_leave_zeros<Loader>(0) && !Scheduler::kReadsMemory;

  CUTLASS_DEVICE static auto stage_a(SharedStorage& shared, int stage) {
    return shared.tensors.smem_A.data() + stage * OperandA::kBoxes * OperandA::kBoxElements;
  }
  CUTLASS_DEVICE static auto stage_b(SharedStorage& shared, int stage) {
    return shared.tensors.smem_B.data() + stage * OperandB::kBoxes * OperandB::kBoxElements;
  }

  // Threadblocks of a cluster follow each other, and take parts of K in this order.
  CUTLASS_DEVICE static int rank() { return kSplits == 1 ? 0 : static_cast<int>(cute::block_rank_in_cluster()); }
  CUTLASS_DEVICE static int first_tile() { return static_cast<int>(blockIdx.x) / kCluster; }
  CUTLASS_DEVICE static int tile_step() { return static_cast<int>(gridDim.x) / kCluster; }

  CUTLASS_DEVICE static bool find(Scheduler& scheduler, int tile, Sm90WorkTile& work) {
    bool const is_there = scheduler.at(tile, work);
    if constexpr (kBelow * kBeside > 1) {
      // The scheduler's tile is that of a cluster.
      int const own = static_cast<int>(cute::block_rank_in_cluster());
      work.m = work.m * kBelow + own % kBelow * kTileM;
      work.n = work.n * kBeside + own / kBelow * kTileN;
    }
    if constexpr (kSplits > 1) {
      int const first = work.k_tiles * rank() / kSplits, end = work.k_tiles * (rank() + 1) / kSplits;
      work.k = first * kTileK;
      work.k_tiles = end - first;
    }
    return is_there;
  }

  CUTLASS_DEVICE static void produce(Params const& p, SharedStorage& shared) {
    Scheduler scheduler(p.scheduler, shared.scheduler);
    Loader loader(p.operands, scheduler);
    Pipeline const pipeline{shared.pipeline};
    State write;
    Sm90WorkTile work;
    int tile = first_tile();
    bool more = find(scheduler, tile, work);
    if constexpr (!Scheduler::kReadsMemory) {
      if (more) {
        loader.begin(work);
        loader.prefetch(work);
      }
      wait_on_dependent_grids();
    }
    [[maybe_unused]] std::uint32_t sums_parity = 1;
    for (; more; more = find(scheduler, tile += tile_step(), work)) {
      loader.begin(work);
      if constexpr (kSumsInStages) {
        Pipeline::Barrier::wait(&shared.sum.read, sums_parity);  // passes at the first tile
        sums_parity ^= 1;
      }
      for (int k = 0; k < work.k_tiles; ++k, ++write) {
        std::uint64_t* const barrier = pipeline.producer_acquire(write, loader.bytes());
        loader.load(barrier, stage_a(shared, write.index()), stage_b(shared, write.index()), work, k);
      }
    }
    launch_dependent_grids();
  }

  // By all threads of the producer warpgroups. k-tiles are copied ahead, across the ends of work tiles, and put in order.
  CUTLASS_DEVICE static void produce_together(Params const& p, SharedStorage& shared, int thread) {
    static_assert(!Scheduler::kReadsMemory && kSplits == 1);
    constexpr int kAhead = Types::kStaged - 1;
    Scheduler scheduler(p.scheduler, shared.scheduler);
    Loader const loader(p.operands, thread);
    Pipeline const pipeline{shared.pipeline};
    struct Cursor {
      typename Loader::KTile k_tile;
      int tile, k_tiles, slot;
      bool more;
    };
    auto const begin = [&](Cursor& at) {
      Sm90WorkTile work;
      at.more = find(scheduler, at.tile, work);
      at.k_tiles = work.k_tiles;
      if (at.more) at.k_tile = loader.begin(work);
    };
    auto const advance = [&](Cursor& at) {
      if (++at.slot == Types::kStaged) at.slot = 0;
      if (--at.k_tiles > 0) return loader.advance(at.k_tile);
      at.tile += tile_step();
      begin(at);
    };
    Cursor at{{}, first_tile(), 0, 0, false};
    begin(at);
    Cursor ahead = at;
    auto const fetch = [&] {
      if (ahead.more) {
        loader.fetch(ahead.k_tile, shared.loader.staged[ahead.slot]);
        advance(ahead);
      }
      asm volatile("cp.async.commit_group;" ::: "memory");
    };
    wait_on_dependent_grids();
    for (int i = 0; i < kAhead; ++i) fetch();
    for (State write; at.more; ++write) {
      fetch();
      asm volatile("cp.async.wait_group %0;" ::"n"(kAhead) : "memory");
      __syncwarp();
      pipeline.producer_wait(write);
      loader.put(at.k_tile, shared.loader.staged[at.slot], stage_a(shared, write.index()), stage_b(shared, write.index()));
      cutlass::arch::fence_view_async_shared();
      __syncwarp();
      if (thread % 32 == 0) pipeline.producer_commit(write);
      advance(at);
    }
    launch_dependent_grids();
  }

  CUTLASS_DEVICE static void consume(Params const& p, SharedStorage& shared, int warpgroup) {
    Scheduler scheduler(p.scheduler, shared.scheduler);
    Pipeline const pipeline{shared.pipeline};
    State read;
    int const thread = threadIdx.x % 128;
    auto& storage = shared.epilogue[warpgroup];
    auto const prefetch = [&](Sm90WorkTile of) {
      CUTLASS_PRAGMA_UNROLL
      for (int block = 0; block < (Epilogue::kPrefetchesAll ? Types::kBlocks : 1); ++block) {
        Epilogue::prefetch(p.epilogue, storage, of, block, thread);
        of.m += 64 * Types::kRowGroups;
      }
    };
    auto const synchronize = [&] { cutlass::arch::NamedBarrier::sync(128, static_cast<std::uint32_t>(warpgroup)); };
    ScaleSource source{p.scales, shared.scales[warpgroup], thread, warpgroup};
    Turns turns(shared.turns, warpgroup);
    ClusterReduction sum = cluster_sum(shared, warpgroup, thread);
    // Tiles between two of this warpgroup, and the k-tiles of the one behind `next`.
    constexpr int kSkipped = Types::kPingpong ? 1 : 0;
    int skipped_k_tiles = 0;
    int tile = first_tile() + warpgroup * kSkipped * tile_step();
    Sm90WorkTile work, next;
    bool is_first = true;
    auto const k_tiles_of = [&](int other) {
      Sm90WorkTile work;
      return find(scheduler, other, work) ? work.k_tiles : 0;
    };
    // The other warpgroup reads the stages of its tile.
    if (Types::kPingpong && warpgroup > 0) read.advance(k_tiles_of(first_tile()));
    auto const find_next = [&] {
      bool const is_there = find(scheduler, tile, next);
      if constexpr (Types::kPingpong) {
        skipped_k_tiles = Scheduler::kHasEqualTiles ? next.k_tiles : k_tiles_of(tile + tile_step());
      }
      tile += tile_step() * (1 + kSkipped);
      if constexpr (Types::kHalvesColumns) {
        next.n += warpgroup * Types::kColumns;
      } else if constexpr (!Types::kPingpong) {
        next.m += warpgroup * 64;
      }
      if constexpr (!Scheduler::kReadsMemory) {
        if (is_first) wait_on_dependent_grids();
        is_first = false;
      }
      if (is_there && !next.is_zero) source.prefetch(next);
      return is_there;
    };
    bool more = find_next();
    while (more) {
      work = next;
      if (work.is_zero) {
        CUTLASS_PRAGMA_UNROLL
        for (int block = 0; block < Types::kBlocks; ++block) {
          Epilogue::store_zeros(p.epilogue, p.maps, storage, work, thread, scheduler.coordinates(work));
          work.m += 64 * Types::kRowGroups;
        }
        turns.begin();
        turns.end();
        read.advance(skipped_k_tiles);
        more = find_next();
        continue;
      }
      if constexpr (kSplits == 1 && !kScaled && !Types::kPingpong) {
        // Where all that a warpgroup has lies beyond the end, there is nothing to multiply. The thread that releases stages
        // waits alone: nothing would keep others within one round of it, and a parity tells only two rounds apart.
        constexpr bool kMayPassColumns = Types::kHalvesColumns || kBeside > 1;
        if (work.m >= work.end_m || (kMayPassColumns && work.n >= work.end_n)) {
          if (thread == 0) {
            State own = read;
            for (int k = 0; k < work.k_tiles; ++k, ++own) {
              pipeline.consumer_wait(own);
              pipeline.consumer_release(own);
            }
          }
          read.advance(work.k_tiles);
          more = find_next();
          continue;
        }
      }
      synchronize();  // the vectors of the tile before have been read
      Sm90WorkTile finished = work;
      finished.n += rank() * Types::kOwnColumns;
      // A matrix that lies where rows are staged waits until those of the tile before have been stored: behind the first
      // products, unless there is a turn to wait for anyway.
      constexpr bool kPrefetchesLate = Epilogue::kHasInPlace && !Types::kPingpong && !promotes_accumulator;
      bool const is_late = kPrefetchesLate && work.k_tiles > 0;
      if (!is_late) prefetch(finished);
      Sm90Accumulator<typename Types::ElementAccumulator, Types::kValues> accum{};
      int const own = (Types::kPingpong ? 0 : warpgroup * 128) + thread;
      turns.begin();
      if constexpr (promotes_accumulator) {
        source.begin(work);
        Mma{}.run(pipeline, read, accum, work.k_tiles, own, shared.tensors, source, [&](int k) {
          if (Types::kPingpong && k == work.k_tiles - 1) turns.end();
        });
      } else {
        if (Types::kPingpong && Scheduler::kReadsMemory && work.k_tiles == 0) turns.end();
        // Every warpgroup clears all that it reads itself: that both write the same zeros does no harm.
        Mma{}.mma(pipeline, read, accum, work.k_tiles, own, shared.tensors, [&](int stage, int k) {
          if constexpr (Types::kLoadsByCopies) cutlass::arch::fence_view_async_shared();
          if constexpr (Types::kPingpong) {
            if (k == work.k_tiles - 1) turns.end();
            if constexpr (!Scheduler::kReadsMemory) return;
          }
          if constexpr (kPrefetchesLate) {
            if (k == (work.k_tiles > 1 ? 1 : 0)) prefetch(finished);
          }
          bool const is_last = k == work.k_tiles - 1 && work.k_end != 0, is_first = k == 0 && work.k_begin != 0;
          if (!is_first && !is_last) return;
          int const begin = is_first ? work.k_begin : 0, end = is_last ? work.k_end : kTileK;
          constexpr int kRows = Types::kPingpong ? cute::size<0>(typename Types::TileShape{}) : 64;
          int const row = Types::kPingpong ? 0 : warpgroup * 64;
          OperandA::keep_only(stage_a(shared, stage), row, kRows, begin, end, thread);
          OperandB::keep_only(stage_b(shared, stage), 0, cute::size<1>(typename Types::TileShape{}), begin, end, thread);
          cutlass::arch::fence_view_async_shared();
          synchronize();
        });
      }
      read.advance(work.k_tiles + skipped_k_tiles);
      if constexpr (OperandB::kInPairs) {
        if (p.exchanges_pairs) exchange_pairs(accum);
      }
      Epilogue::wait_for_prefetch();
      synchronize();
      // The first scales of the next tile are under way during the epilogue of this one.
      if constexpr (kScaled) more = find_next();
      // Columns follow each other in accum, through its parts.
      if constexpr (kSplits > 1) {
        float own[ClusterReduction::kOwn];
        sum.run(accum, own, synchronize);
        Epilogue::store(
            p.epilogue, p.maps, storage, finished, 0, thread, [&](int i) { return own[i]; }, scheduler.coordinates(work));
      } else {
        CUTLASS_PRAGMA_UNROLL
        for (int block = 0; block < Types::kBlocks; ++block) {
          if (block > 0) {
            work.m += 64 * Types::kRowGroups;
            if (work.m >= work.end_m) break;
            if (!Epilogue::kPrefetchesAll || Types::kSwapAB) synchronize();
            if constexpr (!Epilogue::kPrefetchesAll) {
              Epilogue::prefetch(p.epilogue, storage, work, block, thread);
              Epilogue::wait_for_prefetch();
              synchronize();
            }
          }
          Epilogue::store(
              p.epilogue, p.maps, storage, work, block, thread, [&](int i) { return accum(Mma::index_of(block, i)); },
              scheduler.coordinates(work));
        }
      }
      if constexpr (!kScaled) more = find_next();
    }
    Epilogue::wait_until_read();
  }

  // Without a branch: the compiler makes it a choice between two values of each. A branch, which assembly can keep, leaves
  // values without a register in tiles of 128x128 and 128x160, and is no faster.
  template <class Values>
  CUTLASS_DEVICE static void exchange_pairs(Values& accum) {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Types::kValues; i += 2) cutlass::swap(accum(i), accum(i + 1));
  }

  // By all threads: zeros in the stages that this threadblock comes to, for those that TMA leaves.
  CUTLASS_DEVICE static void clear_stages(Params const& p, SharedStorage& shared) {
    int const tiles = (p.scheduler.raster.order.count() - first_tile() + tile_step() - 1) / tile_step();
    auto const clear = [&](auto* elements, int bytes) {
      auto* const vectors = reinterpret_cast<uint4*>(elements);
      for (int i = threadIdx.x; i < bytes / 16; i += kMaxThreads) vectors[i] = uint4{};
    };
    int const stages = min(tiles, static_cast<int>(kStages));
    clear(shared.tensors.smem_A.data(), stages * OperandA::kBytes);
    clear(shared.tensors.smem_B.data(), stages * OperandB::kBytes);
    cutlass::arch::fence_view_async_shared();
  }

  CUTLASS_DEVICE static void device(Params const& p) {
    // TMA's swizzle needs it, and the runtime gives it: dynamic shared memory begins at 0, as there is no other.
    extern __shared__ __align__(1024) char shared_memory[];
    auto& shared = *reinterpret_cast<SharedStorage*>(shared_memory);
    int const warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
    if (threadIdx.x == 0) {
      Pipeline{shared.pipeline}.initialize(Types::kLoadsByTma ? 1 : 4 * Types::kProducerWarpGroups);
      Turns::initialize(shared.turns);
      if constexpr (Types::kLoadsByTma) Loader::prefetch(p.operands);
      if (p.epilogue.by_tma) {
        cute::prefetch_tma_descriptor(reinterpret_cast<cute::TmaDescriptor const*>(&p.maps.result));
      }
    }
    if constexpr (kMayLeaveZeros) {
      if (p.operands.lines < kTileK) clear_stages(p, shared);
    }
    // The set-up before the first load reads parameters alone, so it overlaps with the preceding kernel.
    if constexpr (Scheduler::kReadsMemory) {
      wait_on_dependent_grids();
      Scheduler::start(p.scheduler, shared.scheduler);
    }
    if constexpr (kCluster > 1) {
      if constexpr (kSplits > 1) {
        if (threadIdx.x == 0) ClusterReduction::initialize(shared.sum);
      }
      cute::cluster_sync();
    } else {
      __syncthreads();
    }
    // One warpgroup alone may have all the registers it can name.
    constexpr bool kShare = Types::kWarpGroups > 1 && Types::kLoadsByTma, kThree = Types::kWarpGroups == 3;
    if (warpgroup >= Types::kWarpGroups) {
      if constexpr (kShare) cutlass::arch::warpgroup_reg_dealloc<kThree ? 32 : 40>();
      if constexpr (Types::kLoadsByTma) {
        if (threadIdx.x % 128 / 32 == 0 && cute::elect_one_sync()) produce(p, shared);
      } else {
        produce_together(p, shared, static_cast<int>(threadIdx.x) - 128 * Types::kWarpGroups);
      }
    } else {
      if constexpr (kShare) cutlass::arch::warpgroup_reg_alloc<kThree ? 160 : 232>();
      consume(p, shared, warpgroup);
    }
    if constexpr (kCluster > 1) {
      __syncwarp();
      cute::cluster_sync();  // nobody writes into a threadblock that is gone
    }
  }

  CUTLASS_DEVICE static auto& sum_parts(SharedStorage& shared) {
    if constexpr (kSumsInStages) {
      static_assert(sizeof(typename ClusterReduction::Parts) <= sizeof(shared.tensors));
      return reinterpret_cast<typename ClusterReduction::Parts&>(shared.tensors);
    } else {
      return shared.sum.parts;
    }
  }

  CUTLASS_DEVICE static ClusterReduction cluster_sum(SharedStorage& shared, int warpgroup, int thread) {
    if constexpr (kSplits > 1) {
      return {shared.sum, sum_parts(shared), rank(), warpgroup, thread};
    } else {
      return {};
    }
  }

  // `tiles` is an upper bound of the scheduler's work tiles, which are those of whole clusters; the batches are those of
  // the tensor maps.
  static Status launch(GemmArgs const& args, void const* kernel, KernelAttributes& attributes, DType a, DType b,
                       typename Scheduler::Params const& scheduler, int tiles, int a_batch, int b_batch, int d_batch) {
    if (Types::kLoadsByTma && !(is_tma_loadable(args.a, a) && is_tma_loadable(args.b, b))) {
      return {StatusCode::not_implementable, 0};
    }
    typename Loader::Params operands;
    if constexpr (kMayLeaveZeros) operands.lines = std::clamp(args.k, 1, kTileK);
    if constexpr (Types::kSwapAB) {
      operands.encode_a(b, args.b, args.n, args.k, b_batch);
      operands.encode_b(a, args.a, args.m, args.k, a_batch);
    } else {
      operands.encode_a(a, args.a, args.m, args.k, a_batch);
      operands.encode_b(b, args.b, args.n, args.k, b_batch);
    }
    return launch(args, kernel, attributes, operands, scheduler, tiles, d_batch);
  }

  // With operands that are encoded already.
  static Status launch(GemmArgs const& args, void const* kernel, KernelAttributes& attributes,
                       typename Loader::Params const& operands, typename Scheduler::Params const& scheduler, int tiles,
                       int d_batch) {
    int const encode_error = take_tensor_map_error();
    bool const storable = Scheduler::kStoresUnaligned || is_tma_storable(args, element_bytes(Types::kD));
    if (!storable || !Epilogue::meets_alignment(args)) return {StatusCode::not_implementable, 0};
    if (encode_error) return {StatusCode::tensor_map_error, encode_error};
    Params params;
    params.operands = operands;
    Epilogue::encode_maps(params.maps, args, d_batch);
    if (int const error = take_tensor_map_error()) return {StatusCode::tensor_map_error, error};
    params.epilogue = Epilogue::params(args);
    params.scheduler = scheduler;
    params.scales = ScaleSource::params(args);
    params.exchanges_pairs = args.b.odd_first;
    LaunchShape shape;
    shape.block = dim3(kMaxThreads);
    shape.shared_memory_bytes = kSharedStorageBytes;
    shape.dependent_launch = true;
    shape.cluster = dim3(kCluster);
    return launch_persistent(kernel, attributes, shape, tiles, params, args);
  }
};

}  // namespace cutwheel::gemm
