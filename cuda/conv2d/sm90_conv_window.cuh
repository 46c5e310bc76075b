// Convolutions of few channels by the tensor cores of Hopper. As an implicit GEMM they read each pixel once for every tap
// and are limited by what L2 delivers. Here a patch of the input stays in shared memory while all taps read their windows
// of it, and the filters stay for the whole kernel. Filters are the rows of wgmma's product, which takes 64 of them and any
// number of pixels.
#pragma once

#include <cutlass/arch/grid_dependency_control.h>
#include <cutlass/arch/reg_reconfig.h>

#include <algorithm>

#include "conv2d/sm90_im2col.cuh"
#include "conv2d/sm90_window_epilogue.cuh"
#include "conv2d/sm90_window_filters.cuh"
#include "gemm/launch.h"
#include "gemm/sm90_persistent_mma.cuh"

namespace cutwheel::conv2d {

// What a line of a patch is: a pixel; a pixel of the output's gradient, for all phases of a stride; a row of a block of
// pixels, of Tile::kK channels.
enum class WindowForm { pixels, phases, blocks };

template <Arch arch, DType a, DType b, DType acc, DType d, class Tile, Direction direction,
          template <DType> class Epilogue_, WindowForm form = WindowForm::pixels>
struct Sm90ConvWindow {
  static constexpr bool kPhases = form == WindowForm::phases, kBlocks = form == WindowForm::blocks;
  static_assert(kBlocks ? direction == Direction::fprop : !kPhases || direction == Direction::dgrad);
  static_assert(arch == Arch::sm90a && acc == DType::f32 && element_bytes(a) == 2 && a == b);
  static_assert(direction == Direction::fprop || direction == Direction::dgrad);
  static constexpr bool kIsGradient = direction == Direction::dgrad;
  static constexpr int kPositions = WindowShape::kPositions, kFilters = WindowShape::kFilters, kChannels = Tile::kK,
                       kMaxSteps = kBlocks   ? WindowShape::kBlockFilterK / kChannels
                                   : kPhases ? WindowShape::kMaxPhaseTaps
                                             : WindowShape::kMaxTaps;
  static_assert(Tile::kM == kFilters && Tile::kN == kPositions && kPositions % 16 == 0);
  static_assert(kBlocks ? kChannels == 16 || kChannels == 32 : kChannels == WindowShape::kChannels);

  using E = gemm::Element<a>;
  static constexpr int kLineBytes = kChannels * 2;
  using KMajorAtom = std::conditional_t<
      kLineBytes == 32, cute::GMMA::Layout_K_SW32_Atom<E>,
      std::conditional_t<kLineBytes == 64, cute::GMMA::Layout_K_SW64_Atom<E>, cute::GMMA::Layout_K_SW128_Atom<E>>>;
  // wgmma's A: 64 filters and the channels of a tap. The gradient's filters lie along the rows of what is in memory.
  static constexpr auto kMajor = kIsGradient ? cute::GMMA::Major::MN : cute::GMMA::Major::K;
  using Weights = gemm::Sm90TileOperand<E, kFilters, WindowShape::kChannels, kMajor>;  // as TMA loads it
  using WeightsAtom = std::conditional_t<kIsGradient, cute::GMMA::Layout_MN_SW128_Atom<E>, KMajorAtom>;
  using WeightsLayout = decltype(cute::tile_to_shape(
      WeightsAtom{}, cute::Shape<cute::Int<kFilters>, cute::Int<kChannels>, cute::Int<kMaxSteps>>{}));
  using WindowLayout =
      decltype(cute::tile_to_shape(KMajorAtom{}, cute::Shape<cute::Int<kPositions>, cute::Int<kChannels>>{}));
  using TileShape = cute::Shape<cute::Int<kFilters>, cute::Int<kPositions>, cute::Int<kChannels>>;
  using TiledMma = decltype(cute::make_tiled_mma(gemm::sm90_wgmma<E, E, float, TileShape, kMajor, cute::GMMA::Major::K>()));
  using Epilogue = Sm90WindowEpilogue<Epilogue_<d>, d, kPositions, kPhases, typename Epilogue_<d>::Operands>;
  static_assert(Epilogue_<d>::Stores::kCount == 0);

  // Two warpgroups take turns: while one stores, the other multiplies, and a third patch is on its way where there is
  // room: the filters of phases have more taps.
  static constexpr int kStages = kPhases ? 2 : 3, kConsumers = 2;
  // A patch, and a rectangle's results in its place: lines of 128 bytes, of which one is for what is dropped.
  static constexpr int kPatchBytes = round_up(
      std::max((kBlocks ? WindowShape::kBlockLines : WindowShape::kLines) * kLineBytes, (kPositions + 1) * 128), 1024);
  struct SharedStorage {
    alignas(1024) std::uint8_t patches[kStages][kPatchBytes];
    alignas(1024) E weights[kMaxSteps * kFilters * kChannels];  // windows at the end of the last patch reach into them
    alignas(8) std::uint64_t full[kStages], empty[kStages], weights_there, matrix[kConsumers];
  };
  static_assert(kPatchBytes % 1024 == 0);

  struct Params {
    CUtensorMap patch, weights;
    WindowFilter filter;
    WindowWalk walk;
    int first_row, first_column, patch_bytes;
    int taps, taps_w, slabs;
    int slab_lines;                // from a slab to the next
    int line_step_h, line_step_w;  // from a tap's window to the next
    typename Epilogue::Params epilogue;
  };

  static constexpr int kMaxThreads = 128 * (kConsumers + 1);
  static constexpr int kMinBlocks = 1;
  static constexpr int kSharedStorageBytes = static_cast<int>(sizeof(SharedStorage));
  static_assert(kSharedStorageBytes <= 227 * 1024);

  using Barrier = cutlass::arch::ClusterBarrier;
  using LoadBarrier = cutlass::arch::ClusterTransactionBarrier;

  CUTLASS_DEVICE static void produce(Params const& p, SharedStorage& shared) {
    if constexpr (form == WindowForm::pixels) {
      LoadBarrier::arrive_and_expect_tx(&shared.weights_there, static_cast<std::uint32_t>(p.taps * Weights::kBytes));
      for (int tap = 0; tap < p.taps; ++tap) {
        Weights::load(p.weights, &shared.weights_there, shared.weights + tap * kFilters * kChannels, p.walk.filter(), 0,
                      tap);
      }
    }
    gemm::Sm90PipelineState<kStages> write;
    for (int tile = p.walk.first(); tile < p.walk.rectangles; tile += p.walk.step(), ++write) {
      WindowPlace const place = p.walk.at(tile);
      std::uint64_t* const barrier = &shared.full[write.index()];
      Barrier::wait(&shared.empty[write.index()], write.parity ^ 1);
      LoadBarrier::arrive_and_expect_tx(barrier, static_cast<std::uint32_t>(p.patch_bytes));
      constexpr auto kHint = static_cast<std::uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL);
      int const row = place.row + p.first_row, column = place.column + p.first_column;
      if constexpr (kBlocks) {
        cute::SM90_TMA_LOAD_5D::copy(&p.patch, barrier, kHint, shared.patches[write.index()], 0, column, row, 0,
                                     place.image);
      } else {
        cute::SM90_TMA_LOAD_4D::copy(&p.patch, barrier, kHint, shared.patches[write.index()], 0, column, row, place.image);
      }
    }
    cutlass::arch::launch_dependent_grids();
  }

  static constexpr std::uint32_t kAllConsumers = 2 * kConsumers;
  // The named barrier that says that a warpgroup may multiply.
  CUTLASS_DEVICE static std::uint32_t turn(int warpgroup) { return static_cast<std::uint32_t>(kConsumers + warpgroup); }

  CUTLASS_DEVICE static void consume(Params const& p, SharedStorage& shared, int warpgroup) {
    using namespace cute;
    int const thread = static_cast<int>(threadIdx.x) % 128, other = 1 - warpgroup;
    auto const synchronize = [&] { cutlass::arch::NamedBarrier::sync(128, static_cast<std::uint32_t>(warpgroup)); };
    TiledMma tiled_mma;
    auto const slice = tiled_mma.get_slice(0);
    Tensor weights = slice.make_fragment_A(slice.partition_A(make_tensor(make_smem_ptr(shared.weights), WeightsLayout{})));
    Tensor first_window = slice.make_fragment_B(
        slice.partition_B(make_tensor(make_smem_ptr(reinterpret_cast<E*>(shared.patches[0])), WindowLayout{})));
    gemm::Sm90PipelineState<kStages> read;
    if (warpgroup == 1) {
      ++read;
      if (p.walk.first() < p.walk.rectangles) cutlass::arch::NamedBarrier::arrive(256, turn(0));
    }
    std::uint32_t parity = 0;
    if constexpr (form != WindowForm::pixels) {
      auto* const to = reinterpret_cast<std::uint8_t*>(shared.weights);
      if constexpr (kBlocks) {
        gather_blocks<kChannels>(p.filter, to, p.walk.filter(), static_cast<int>(threadIdx.x));
      } else {
        gather_phases(p.filter, to, static_cast<int>(threadIdx.x));
      }
      cutlass::arch::fence_view_async_shared();
      cutlass::arch::NamedBarrier::sync(128 * kConsumers, kAllConsumers);
    } else {
      Barrier::wait(&shared.weights_there, 0);
    }
    for (int tile = p.walk.first() + warpgroup * p.walk.step(); tile < p.walk.rectangles;
         tile += kConsumers * p.walk.step()) {
      auto accum = partition_fragment_C(tiled_mma, take<0, 2>(TileShape{}));
      Barrier::wait(&shared.full[read.index()], read.parity);
      cutlass::arch::NamedBarrier::sync(256, turn(warpgroup));
      tiled_mma.accumulate_ = GMMA::ScaleOut::Zero;
      warpgroup_fence_operand(accum);
      int row_line = read.index() * (kPatchBytes / kLineBytes), line = row_line, taps_left = p.taps_w;
      CUTLASS_PRAGMA_NO_UNROLL
      for (int i = 0; i < p.taps; ++i) {
        int const tap = kIsGradient && !kPhases ? p.taps - 1 - i : i;
        warpgroup_arrive();
        int const slabs = kBlocks ? p.slabs : 1;
        for (int slab = 0; slab < slabs; ++slab) {
          CUTLASS_PRAGMA_UNROLL
          for (int k = 0; k < size<2>(weights); ++k) {
            // A descriptor may begin at any line: the swizzle follows from addresses alone.
            auto const first = first_window(_, _, k);
            auto const window =
                make_tensor(first.data() + (line + slab * p.slab_lines) * (kLineBytes / 16), first.layout());
            cute::gemm(tiled_mma, weights(_, _, k, tap * slabs + slab), window, accum);
            tiled_mma.accumulate_ = GMMA::ScaleOut::One;
          }
        }
        line += p.line_step_w;
        if (--taps_left == 0) {
          taps_left = p.taps_w;
          line = row_line += p.line_step_h;
        }
      }
      warpgroup_commit_batch();
      if (tile + p.walk.step() < p.walk.rectangles) cutlass::arch::NamedBarrier::arrive(256, turn(other));
      warpgroup_wait<0>();
      warpgroup_fence_operand(accum);
      synchronize();  // nobody reads the patch any more
      Epilogue::store(p.epilogue, p.walk.at(tile), accum, shared.patches[read.index()], &shared.matrix[warpgroup], parity,
                      thread, synchronize);
      parity ^= 1;
      if (thread == 0) {
        Epilogue::wait_until_read();
        Barrier::arrive(&shared.empty[read.index()]);
      }
      read.advance(kConsumers);
    }
  }

  CUTLASS_DEVICE static void device(Params const& p) {
    // TMA's swizzle needs it, and the runtime gives it: dynamic shared memory begins at 0, as there is no other.
    extern __shared__ __align__(1024) char shared_memory[];
    auto& shared = *reinterpret_cast<SharedStorage*>(shared_memory);
    int const warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
    if (threadIdx.x == 0) {
      for (int i = 0; i < kStages; ++i) {
        Barrier::init(&shared.full[i], 1);
        Barrier::init(&shared.empty[i], 1);
      }
      Barrier::init(&shared.weights_there, 1);
      for (std::uint64_t& barrier : shared.matrix) Barrier::init(&barrier, 1);
      cutlass::arch::fence_barrier_init();
      for (CUtensorMap const* map : {&p.patch, &p.weights, &p.epilogue.result}) {
        cute::prefetch_tma_descriptor(reinterpret_cast<cute::TmaDescriptor const*>(map));
      }
    }
    cutlass::arch::wait_on_dependent_grids();
    __syncthreads();
    if (warpgroup == kConsumers) {
      cutlass::arch::warpgroup_reg_dealloc<40>();
      if (threadIdx.x % 128 / 32 == 0 && cute::elect_one_sync()) produce(p, shared);
    } else {
      cutlass::arch::warpgroup_reg_alloc<232>();
      consume(p, shared, warpgroup);
    }
  }

  static std::int64_t workspace_bytes(gemm::GemmArgs const&) { return 0; }

  // args: a ConvArgs.
  static gemm::Status launch(gemm::GemmArgs const& args, void const* kernel) {
    using gemm::StatusCode;
    static gemm::KernelFacts facts;
    auto const& conv = static_cast<ConvArgs const&>(args);
    ConvProblem const& x = conv.conv;
    auto const& strides = kIsGradient ? conv.y_strides : conv.x_strides;
    // Pixels of a block follow each other.
    bool const is_dense = !kBlocks || x.stride_w == 1 || strides[2] == x.c;
    bool const is_aligned = is_dense && is_tma_aligned(args.a.data, strides, a) && x.c % 8 == 0 && x.k_out % 8 == 0 &&
                            reinterpret_cast<std::uintptr_t>(args.b.data) % 16 == 0 && Epilogue::meets_alignment(args);
    WindowShape shape;
    bool const is_planned = kBlocks ? shape.plan_blocks(x) && shape.channels == kChannels
                                    : shape.plan(direction, x) && (shape.phases > 1) == kPhases;
    if (!is_aligned || !is_planned || shape.rectangles() > WindowShape::kMaxRectangles ||
        shape.filter_blocks() > args.device->sm_count) {
      return {StatusCode::not_implementable, 0};
    }
    Params params;
    params.walk = WindowWalk::of(shape);
    params.first_row = shape.first_row;
    params.first_column = shape.first_column;
    params.patch_bytes = shape.slabs * shape.patch_lines() * kLineBytes;
    params.taps = shape.taps_h * shape.taps_w;
    params.taps_w = shape.taps_w;
    params.slabs = shape.slabs;
    params.slab_lines = shape.patch_lines();
    params.line_step_h = shape.dilation_h * shape.pitch;
    params.line_step_w = shape.dilation_w;
    if constexpr (kBlocks) {
      encode_blocks_map(params.patch, a, args.a.data, {strides[0], strides[1], strides[2]}, x, shape);
    } else {
      encode_window_map(params.patch, a, args.a.data, {strides[0], strides[1], strides[2]}, shape.images,
                        shape.input_height, shape.input_width, shape.channels, shape.patch_rows, shape.pitch);
    }
    if constexpr (form != WindowForm::pixels) {
      params.filter = WindowFilter::of(args.b.data, x, shape);
      params.weights = params.patch;  // nothing is loaded through it, but it is prefetched like the others
    } else {
      // [taps, filters, channels]; taps lie between the two.
      std::int64_t const pitch = std::int64_t{params.taps} * args.b.leading;
      Weights::encode_map(params.weights, b, {args.b.data, pitch, args.b.leading}, shape.filters, shape.channels,
                          params.taps);
    }
    params.epilogue = Epilogue::params(args, shape, x);
    if (int const error = take_tensor_map_error()) return {StatusCode::tensor_map_error, error};
    if (cudaError_t const error = facts.prepare(kernel, args.device->ordinal, kSharedStorageBytes); error != cudaSuccess) {
      cudaGetLastError();
      return {StatusCode::cuda_error, static_cast<int>(error)};
    }
    gemm::LaunchShape launch;
    launch.block = dim3(kMaxThreads);
    launch.shared_memory_bytes = kSharedStorageBytes;
    launch.dependent_launch = true;
    int const each = std::min(params.walk.rectangles, args.device->sm_count / shape.filter_blocks());
    launch.grid = dim3(static_cast<unsigned>(each * shape.filter_blocks()));
    return gemm::launch_kernel(kernel, launch, params, args.stream);
  }
};

}  // namespace cutwheel::conv2d
