// Convolutions as implicit GEMMs whose operands a warpgroup gathers with cp.async: for images and filters that TMA reads
// slowly, and for few channels.
#pragma once

#include "sm90/native/conv.cuh"
#include "sm90/native/load/gather.cuh"

namespace cutwheel::conv2d {

template <DType a, DType b, DType acc, DType d, class Tile, Direction direction, class Epilogue>
struct Sm90GatherConvTypes : Sm90ConvTypes<a, b, acc, d, Tile, direction, Epilogue> {
  using Base = Sm90ConvTypes<a, b, acc, d, Tile, direction, Epilogue>;
  static constexpr bool kLoadsByTma = false;
  static constexpr int kProducerWarpGroups = kGatherThreads<Tile> / 128;
  using Scheduler = std::conditional_t<Base::kIsPixels, Sm90WgradScheduler<Tile, PackedColumns>,
                                       Sm90ConvScheduler<Tile, Direction::fprop>>;
  static constexpr auto loader_type() {
    using A = typename Base::OperandA;
    using B = typename Base::OperandB;
    if constexpr (Base::kIsPixels) {
      return gemm::epilogue::TypeIdentity<Sm90GatherWgradLoader<A, B, Tile>>{};
    } else {
      return gemm::epilogue::TypeIdentity<Sm90GatherFpropLoader<A, B, Tile>>{};
    }
  }
  using Loader = typename decltype(loader_type())::type;
};

template <Arch arch, DType a, DType b, DType acc, DType d, class Tile, Direction direction, template <DType> class Epilogue>
struct Sm90GatherConv
    : gemm::Sm90PersistentKernel<Sm90GatherConvTypes<a, b, acc, d, Tile, direction, Epilogue<d>>,
                                 typename Sm90GatherConvTypes<a, b, acc, d, Tile, direction, Epilogue<d>>::Scheduler,
                                 /*promotes_accumulator=*/false> {
  using OwnTypes = Sm90GatherConvTypes<a, b, acc, d, Tile, direction, Epilogue<d>>;
  using Base = gemm::Sm90PersistentKernel<OwnTypes, typename OwnTypes::Scheduler, false>;
  using typename Base::Loader;
  using typename Base::Params;
  using typename Base::Pipeline;
  using typename Base::SharedStorage;
  using typename Base::State;
  using Types = typename Base::Types;
  using Scheduler = typename OwnTypes::Scheduler;
  using SchedulerParams = typename Scheduler::Params;
  using Operands = typename Loader::Params;
  static_assert(arch == Arch::sm90a && element_bytes(a) == 2);
  static_assert(direction == Direction::fprop || direction == Direction::wgrad);
  static_assert(direction == Direction::fprop || has_only(/*rows=*/false, typename Epilogue<d>::Operands{}));
  static_assert(direction == Direction::fprop || Epilogue<d>::Stores::kCount == 0);
  // K-tiles on their way, behind which one is handed over. A warpgroup lets go of a stage when the next one has arrived.
  static constexpr int kAhead = Tile::kM == 128 && (Tile::kN == 64 || Tile::kN == 128) ? 2 : 1;
  static_assert(kAhead <= Base::kStages - 2);

  static std::int64_t workspace_bytes(gemm::GemmArgs const& args) {
    if (direction != Direction::wgrad || args.splits <= 1) return 0;
    return std::int64_t{args.splits} * args.m * args.n * static_cast<int>(sizeof(float));
  }

  CUTLASS_DEVICE static void produce(Params const& p, SharedStorage& shared, int thread) {
    Scheduler scheduler(p.scheduler, shared.scheduler);
    Loader loader(p.operands, scheduler, thread);
    Pipeline const pipeline{shared.pipeline};
    State write, ready;
    int count = 0;
    auto const hand_over = [&] {
      cutlass::arch::fence_view_async_shared();
      __syncwarp();
      if (thread % 32 == 0) pipeline.producer_commit(ready);
      ++ready;
      --count;
    };
    gemm::Sm90WorkTile work;
    wait_on_dependent_grids();
    for (int tile = Base::first_tile(); Base::find(scheduler, tile, work); tile += Base::tile_step()) {
      if (work.k_tiles > 0) loader.begin(work);
      for (int k = 0; k < work.k_tiles; ++k, ++write) {
        pipeline.producer_wait(write);
        loader.load(Base::stage_a(shared, write.index()), Base::stage_b(shared, write.index()));
        asm volatile("cp.async.commit_group;" ::: "memory");
        if (++count <= kAhead) continue;
        asm volatile("cp.async.wait_group %0;" ::"n"(kAhead) : "memory");
        hand_over();
      }
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    while (count > 0) hand_over();
    launch_dependent_grids();
  }

  CUTLASS_DEVICE static void device(Params const& p) {
    extern __shared__ __align__(1024) char shared_memory[];
    auto& shared = *reinterpret_cast<SharedStorage*>(shared_memory);
    int const warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
    if (threadIdx.x == 0) {
      Pipeline{shared.pipeline}.initialize(kGatherThreads<Tile> / 32);
      if (p.epilogue.by_tma) {
        cute::prefetch_tma_descriptor(reinterpret_cast<cute::TmaDescriptor const*>(&p.maps.result));
      }
    }
    __syncthreads();
    constexpr bool kShare = Types::kWarpGroups > 1;
    if (warpgroup >= Types::kWarpGroups) {
      if constexpr (kShare) cutlass::arch::warpgroup_reg_dealloc<kGatherThreads<Tile> == 256 ? 56 : 96>();
      produce(p, shared, static_cast<int>(threadIdx.x) - 128 * Types::kWarpGroups);
    } else {
      if constexpr (kShare) cutlass::arch::warpgroup_reg_alloc<200>();
      Base::consume(p, shared, warpgroup);
    }
  }

  // args: a ConvArgs.
  static Status launch(gemm::GemmArgs const& args, void const* kernel) {
    static gemm::KernelAttributes attributes;
    auto const& conv = static_cast<ConvArgs const&>(args);
    bool const aligned = conv.conv.c % kPieceElements == 0 && conv.conv.k_out % kPieceElements == 0 &&
                         !conv.conv.is_volume() && reinterpret_cast<std::uintptr_t>(args.b.data) % 16 == 0;
    if (!aligned) return {StatusCode::not_implementable, 0};
    if constexpr (direction == Direction::wgrad) {
      return launch_wgrad(conv, kernel, attributes);
    } else {
      return launch_fprop(conv, kernel, attributes);
    }
  }

 private:
  static Status launch_fprop(ConvArgs const& args, void const* kernel, gemm::KernelAttributes& attributes) {
    ConvProblem const& x = args.conv;
    SchedulerParams scheduler{};
    plan_fprop(scheduler, x);
    scheduler.classes[0].k_tiles = ceil_div(args.k, Tile::kK);
    Operands operands{};
    operands.b = static_cast<uint4 const*>(args.b.data);
    operands.filter = args.k / kPieceElements;
    operands.taps_h = x.r, operands.taps_w = x.s;
    bool const fits = x.r <= kMostTaps && x.s <= kMostTaps && is_tma_aligned(args.a.data, args.x_strides, a) &&
                      operands.a.encode(args.a.data, args.x_strides, x.images, x.h, x.w) &&
                      std::int64_t{operands.filter} * x.k_out <= 0x7fffffff;
    std::int64_t const tiles = fits ? Scheduler::count_tiles(scheduler, args) : 0;
    if (!fits || tiles > kMaxTiles) return {StatusCode::not_implementable, 0};
    return Base::launch(args, kernel, attributes, operands, scheduler, static_cast<int>(tiles), 1);
  }

  static Status launch_wgrad(ConvArgs const& args, void const* kernel, gemm::KernelAttributes& attributes) {
    ConvProblem const& x = args.conv;
    int const splits = std::max(args.splits, 1);
    SchedulerParams scheduler{};
    scheduler.columns = {args.n};
    std::int64_t const tiles = plan_wgrad<Tile>(scheduler, args, args.n, splits);
    Operands operands{};
    bool const fits = is_matrix(args) && tiles <= kMaxTiles && (splits == 1 || d == DType::f32) &&
                      is_tma_aligned(args.a.data, args.y_strides, a) && is_tma_aligned(args.b.data, args.x_strides, b) &&
                      operands.b.encode(args.b.data, args.x_strides, x.images, x.h, x.w);
    if (!fits) return {StatusCode::not_implementable, 0};
    operands.a = static_cast<uint4 const*>(args.a.data);
    operands.a_pixel = args.y_strides[2] / kPieceElements;
    operands.pixels = args.k;
    operands.channels = x.c;
    return Base::launch(args_of_splits(args, splits), kernel, attributes, operands, scheduler, static_cast<int>(tiles),
                        splits);
  }
};

}  // namespace cutwheel::conv2d
