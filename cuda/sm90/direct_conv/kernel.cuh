// Direct convolutions of few channels on Hopper's tensor cores. An implicit GEMM reads each pixel once per tap and is
// limited by L2 bandwidth. A direct convolution keeps a halo tile of the input in shared memory, which all taps read, and
// keeps the filters for the whole kernel. Filters are wgmma's M, which is 64; pixels are its N, which has any multiple
// of 8.
#pragma once

#include <cutlass/arch/reg_reconfig.h>

#include <algorithm>

#include "core/launch.h"
#include "sm90/dependent_grids.cuh"
#include "sm90/direct_conv/epilogue.cuh"
#include "sm90/direct_conv/gather.cuh"
#include "sm90/direct_conv/wgmma_traits.cuh"
#include "sm90/native/load/im2col.cuh"
#include "sm90/native/mainloop.cuh"

namespace cutwheel::conv2d {

// Content of a line of a halo tile. pixels: a pixel. residue_classes: a pixel of the output's gradient, from which all
// residue classes of a strided dgrad are computed. space_to_depth: one row of a stride x stride block of pixels, Tile::kK
// channels. few_channels: a block of 2 x 2 pixels, which each of three warpgroups gathers.
enum class DirectConvForm { pixels, residue_classes, space_to_depth, few_channels };

template <Arch arch, DType a, DType b, DType acc, DType d, class Tile, Direction direction,
          template <DType> class Epilogue_, DirectConvForm form = DirectConvForm::pixels>
struct Sm90DirectConv {
  static constexpr bool kStridedDgrad = form == DirectConvForm::residue_classes,
                        kSpaceToDepth = form == DirectConvForm::space_to_depth,
                        kFewChannels = form == DirectConvForm::few_channels, kHasBlocks = kSpaceToDepth || kFewChannels;
  static_assert(kHasBlocks ? direction == Direction::fprop : !kStridedDgrad || direction == Direction::dgrad);
  static_assert(arch == Arch::sm90a && acc == DType::f32 && element_bytes(a) == 2 && a == b);
  static_assert(direction == Direction::fprop || direction == Direction::dgrad);
  static constexpr bool kIsGradient = direction == Direction::dgrad;
  static constexpr int kPositions = DirectConvShape::kPositions, kFilters = DirectConvShape::kFilters, kChannels = Tile::kK,
                       kMaxSteps = kHasBlocks      ? DirectConvShape::kSpaceToDepthFilterK / kChannels
                                   : kStridedDgrad ? DirectConvShape::kMaxStridedTaps
                                                   : DirectConvShape::kMaxTaps;
  static_assert(Tile::kM == kFilters && Tile::kN == kPositions && kPositions % 16 == 0);
  static_assert(kFewChannels    ? kChannels == DirectConvShape::kFewBlock
                : kSpaceToDepth ? kChannels == 16 || kChannels == 32
                                : kChannels == DirectConvShape::kChannels);

  using E = gemm::Element<a>;
  static constexpr int kLineBytes = kChannels * 2;
  using KMajorAtom = std::conditional_t<kLineBytes == 32, cute::SM90::GMMA::Layout_K_SW32_Atom<E>,
                                        std::conditional_t<kLineBytes == 64, cute::SM90::GMMA::Layout_K_SW64_Atom<E>,
                                                           cute::SM90::GMMA::Layout_K_SW128_Atom<E>>>;
  // wgmma's A: 64 filters and the channels of a tap. Filters of dgrad are M-major, as they lie in memory.
  static constexpr auto kMajor = kIsGradient ? cute::SM90::GMMA::Major::MN : cute::SM90::GMMA::Major::K;
  using Weights = gemm::Sm90TileOperand<E, kFilters, DirectConvShape::kChannels, kMajor>;  // as TMA loads it
  using WeightsAtom = std::conditional_t<kIsGradient, cute::SM90::GMMA::Layout_MN_SW128_Atom<E>, KMajorAtom>;
  using WeightsLayout = decltype(cute::tile_to_shape(
      WeightsAtom{}, cute::Shape<cute::Int<kFilters>, cute::Int<kChannels>, cute::Int<kMaxSteps>>{}));
  using HaloLayout =
      decltype(cute::tile_to_shape(KMajorAtom{}, cute::Shape<cute::Int<kPositions>, cute::Int<kChannels>>{}));
  using TileShape = cute::Shape<cute::Int<kFilters>, cute::Int<kPositions>, cute::Int<kChannels>>;
  using TiledMma =
      decltype(cute::make_tiled_mma(gemm::sm90_wgmma<E, E, float, TileShape, kMajor, cute::SM90::GMMA::Major::K>()));
  using Epilogue = Sm90DirectConvEpilogue<Epilogue_<d>, d, kPositions, kStridedDgrad, typename Epilogue_<d>::Operands>;
  static_assert(Epilogue_<d>::Stores::kCount == 0);

  // Two warpgroups take turns: one stores while the other multiplies and a third halo tile is loaded. Filters of strided
  // dgrad have more taps and leave shared memory for two stages. With few channels, each of three warpgroups fills a stage
  // of its own, because a gather takes longer than the products and needs all threads.
  static constexpr int kStages = kStridedDgrad ? 2 : 3, kConsumers = kFewChannels ? 3 : 2;
  // Results of an output tile overwrite its halo tile, in lines of 128 bytes; one more line takes the dropped positions.
  static constexpr int kHaloBytes =
      round_up(std::max((kHasBlocks ? DirectConvShape::kSpaceToDepthLines : DirectConvShape::kLines) * kLineBytes,
                        (kPositions + 1) * 128),
               1024);
  struct SharedStorage {
    alignas(1024) std::uint8_t halos[kStages][kHaloBytes];
    alignas(1024) E weights[kMaxSteps * kFilters * kChannels];  // reads past the last halo tile end here
    alignas(8) std::uint64_t full[kStages], empty[kStages], weights_there, matrix[kConsumers];
  };
  static_assert(kHaloBytes % 1024 == 0);

  struct Params {
    CUtensorMap halo, weights;
    std::conditional_t<kFewChannels, FewChannels, DirectConvFilter> filter;
    DirectConvScheduler scheduler;
    int first_row, first_column, halo_bytes;
    int taps, taps_w, block_rows;
    int block_row_lines;           // from one row of the blocks to the next
    int line_step_h, line_step_w;  // from one tap to the next
    typename Epilogue::Params epilogue;
  };

  static constexpr int kMaxThreads = 384;
  static constexpr int kMinBlocks = 1;
  static constexpr int kSharedStorageBytes = static_cast<int>(sizeof(SharedStorage));
  static_assert(kSharedStorageBytes <= 227 * 1024);

  using Barrier = cutlass::arch::ClusterBarrier;
  using LoadBarrier = cutlass::arch::ClusterTransactionBarrier;

  CUTLASS_DEVICE static void produce(Params const& p, SharedStorage& shared) {
    if constexpr (form == DirectConvForm::pixels) {
      LoadBarrier::arrive_and_expect_tx(&shared.weights_there, static_cast<std::uint32_t>(p.taps * Weights::kBytes));
      for (int tap = 0; tap < p.taps; ++tap) {
        Weights::load(p.weights, p.weights, &shared.weights_there, shared.weights + tap * kFilters * kChannels,
                      p.scheduler.filter(), 0, tap, {/*is_tail=*/false, Weights::kBoxes, Weights::kBytes});
      }
    }
    gemm::Sm90PipelineState<kStages> write;
    for (int tile = p.scheduler.first(); tile < p.scheduler.output_tiles; tile += p.scheduler.step(), ++write) {
      DirectConvWorkTile const work = p.scheduler.at(tile);
      std::uint64_t* const barrier = &shared.full[write.index()];
      Barrier::wait(&shared.empty[write.index()], write.parity ^ 1);
      LoadBarrier::arrive_and_expect_tx(barrier, static_cast<std::uint32_t>(p.halo_bytes));
      constexpr auto kHint = static_cast<std::uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL);
      int const row = work.row + p.first_row, column = work.column + p.first_column;
      if constexpr (kSpaceToDepth) {
        cute::SM90_TMA_LOAD_5D::copy(&p.halo, barrier, kHint, shared.halos[write.index()], 0, column, row, 0, work.image);
      } else {
        cute::SM90_TMA_LOAD_4D::copy(&p.halo, barrier, kHint, shared.halos[write.index()], 0, column, row, work.image);
      }
    }
    launch_dependent_grids();
  }

  static constexpr std::uint32_t kAllConsumers = 2 * kConsumers;
  // The named barrier on which a warpgroup waits for its turn to multiply.
  CUTLASS_DEVICE static std::uint32_t turn(int warpgroup) { return static_cast<std::uint32_t>(kConsumers + warpgroup); }

  // Issues the products of an output tile from the halo tile of a stage.
  template <class Accumulators>
  CUTLASS_DEVICE static void multiply(Params const& p, SharedStorage& shared, int stage, Accumulators& accum) {
    using namespace cute;
    TiledMma tiled_mma;
    auto const slice = tiled_mma.get_slice(0);
    Tensor weights = slice.make_fragment_A(slice.partition_A(make_tensor(make_smem_ptr(shared.weights), WeightsLayout{})));
    Tensor first_operand = slice.make_fragment_B(
        slice.partition_B(make_tensor(make_smem_ptr(reinterpret_cast<E*>(shared.halos[0])), HaloLayout{})));
    tiled_mma.accumulate_ = GMMA::ScaleOut::Zero;
    warpgroup_fence_operand(accum);
    int row_line = stage * (kHaloBytes / kLineBytes), line = row_line, taps_left = p.taps_w;
    CUTLASS_PRAGMA_NO_UNROLL
    for (int i = 0; i < p.taps; ++i) {
      int const tap = kIsGradient && !kStridedDgrad ? p.taps - 1 - i : i;
      warpgroup_arrive();
      int const block_rows = kSpaceToDepth ? p.block_rows : 1;
      for (int block_row = 0; block_row < block_rows; ++block_row) {
        CUTLASS_PRAGMA_UNROLL
        for (int k = 0; k < size<2>(weights); ++k) {
          // A descriptor may start at any line, because the swizzle depends on the address alone.
          auto const first = first_operand(_, _, k);
          auto const operand =
              make_tensor(first.data() + (line + block_row * p.block_row_lines) * (kLineBytes / 16), first.layout());
          cute::gemm(tiled_mma, weights(_, _, k, tap * block_rows + block_row), operand, accum);
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
  }

  // Gathers, multiplies and stores every third output tile of a threadblock.
  CUTLASS_DEVICE static void compute(Params const& p, SharedStorage& shared, int warpgroup) {
    using namespace cute;
    int const thread = static_cast<int>(threadIdx.x) % 128;
    auto const synchronize = [&] { cutlass::arch::NamedBarrier::sync(128, 1 + static_cast<std::uint32_t>(warpgroup)); };
    std::uint8_t* const halo = shared.halos[warpgroup];
    auto const gather = [&](int tile) {
      DirectConvWorkTile const work = p.scheduler.at(tile);
      p.filter.template load_image<128>(halo, work.image, work.row + p.first_row, work.column + p.first_column, thread);
      cutlass::arch::fence_view_async_shared();
    };
    int tile = p.scheduler.first() + warpgroup * p.scheduler.step();
    bool is_there = warpgroup == 0;
    if (is_there) {  // and in the meantime the others load the filters
      gather(tile);
    } else {
      p.filter.load_filters(reinterpret_cast<std::uint8_t*>(shared.weights), p.scheduler.filter(),
                            static_cast<int>(threadIdx.x) - 128);
      cutlass::arch::fence_view_async_shared();
    }
    __syncthreads();
    std::uint32_t parity = 0;
    for (; tile < p.scheduler.output_tiles; tile += kConsumers * p.scheduler.step()) {
      if (!is_there) {
        gather(tile);
        synchronize();
      }
      is_there = false;
      auto accum = partition_fragment_C(TiledMma{}, take<0, 2>(TileShape{}));
      multiply(p, shared, warpgroup, accum);
      warpgroup_wait<0>();
      warpgroup_fence_operand(accum);
      synchronize();  // the halo tile has been read
      Epilogue::store(p.epilogue, p.scheduler.at(tile), accum, halo, &shared.matrix[warpgroup], parity, thread,
                      synchronize);
      parity ^= 1;
      if (thread == 0) Epilogue::wait_until_read();
      synchronize();
    }
    launch_dependent_grids();
  }

  CUTLASS_DEVICE static void consume(Params const& p, SharedStorage& shared, int warpgroup) {
    using namespace cute;
    int const thread = static_cast<int>(threadIdx.x) % 128, other = 1 - warpgroup;
    auto const synchronize = [&] { cutlass::arch::NamedBarrier::sync(128, static_cast<std::uint32_t>(warpgroup)); };
    gemm::Sm90PipelineState<kStages> read;
    if (warpgroup == 1) {
      ++read;
      if (p.scheduler.first() < p.scheduler.output_tiles) cutlass::arch::NamedBarrier::arrive(256, turn(0));
    }
    std::uint32_t parity = 0;
    if constexpr (form != DirectConvForm::pixels) {
      auto* const to = reinterpret_cast<std::uint8_t*>(shared.weights);
      if constexpr (kSpaceToDepth) {
        gather_space_to_depth<kChannels>(p.filter, to, p.scheduler.filter(), static_cast<int>(threadIdx.x));
      } else {
        gather_strided_dgrad(p.filter, to, static_cast<int>(threadIdx.x));
      }
      cutlass::arch::fence_view_async_shared();
      cutlass::arch::NamedBarrier::sync(128 * kConsumers, kAllConsumers);
    } else {
      Barrier::wait(&shared.weights_there, 0);
    }
    for (int tile = p.scheduler.first() + warpgroup * p.scheduler.step(); tile < p.scheduler.output_tiles;
         tile += kConsumers * p.scheduler.step()) {
      auto accum = partition_fragment_C(TiledMma{}, take<0, 2>(TileShape{}));
      Barrier::wait(&shared.full[read.index()], read.parity);
      cutlass::arch::NamedBarrier::sync(256, turn(warpgroup));
      multiply(p, shared, read.index(), accum);
      if (tile + p.scheduler.step() < p.scheduler.output_tiles) cutlass::arch::NamedBarrier::arrive(256, turn(other));
      warpgroup_wait<0>();
      warpgroup_fence_operand(accum);
      synchronize();  // the halo tile has been read
      Epilogue::store(p.epilogue, p.scheduler.at(tile), accum, shared.halos[read.index()], &shared.matrix[warpgroup],
                      parity, thread, synchronize);
      parity ^= 1;
      if (thread == 0) {
        Epilogue::wait_until_read();
        Barrier::arrive(&shared.empty[read.index()]);
      }
      read.advance(kConsumers);
    }
  }

  CUTLASS_DEVICE static void device(Params const& p) {
    // TMA's swizzle needs the alignment. Dynamic shared memory starts at offset 0, because there is no static one.
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
      for (CUtensorMap const* map : {&p.epilogue.result, &p.halo, &p.weights}) {
        cute::prefetch_tma_descriptor(reinterpret_cast<cute::TmaDescriptor const*>(map));
        if constexpr (kFewChannels) break;  // the first map is the only one: threads gather the operands
      }
    }
    wait_on_dependent_grids();
    __syncthreads();
    if constexpr (kFewChannels) {
      compute(p, shared, warpgroup);
    } else if (warpgroup == kConsumers) {
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
    static gemm::KernelAttributes attributes;
    auto const& conv = static_cast<ConvArgs const&>(args);
    ConvProblem const& x = conv.conv;
    auto const& strides = kIsGradient ? conv.y_strides : conv.x_strides;
    // Pixels of a block are adjacent in memory.
    bool const is_dense = !kSpaceToDepth || x.stride_w == 1 || strides[2] == x.c;
    bool const reads_aligned = is_dense && is_tma_aligned(args.a.data, strides, a) && x.c % 8 == 0 &&
                               reinterpret_cast<std::uintptr_t>(args.b.data) % 16 == 0;
    bool const is_aligned = (kFewChannels || reads_aligned) && x.k_out % 8 == 0 && Epilogue::meets_alignment(args);
    DirectConvShape shape;
    bool const is_planned = kFewChannels    ? shape.plan_few_channels(x)
                            : kSpaceToDepth ? shape.plan_space_to_depth(x) && shape.channels == kChannels
                                            : shape.plan(direction, x) && (shape.residues > 1) == kStridedDgrad;
    if (!is_aligned || !is_planned || shape.output_tiles() > DirectConvShape::kMaxOutputTiles ||
        shape.filter_blocks() > args.device->sm_count) {
      return {StatusCode::not_implementable, 0};
    }
    Params params;
    params.scheduler = DirectConvScheduler::of(shape);
    params.first_row = shape.first_row;
    params.first_column = shape.first_column;
    params.halo_bytes = shape.block_rows * shape.halo_lines() * kLineBytes;
    params.taps = shape.taps_h * shape.taps_w;
    params.taps_w = shape.taps_w;
    params.block_rows = shape.block_rows;
    params.block_row_lines = shape.halo_lines();
    params.line_step_h = shape.dilation_h * shape.pitch;
    params.line_step_w = shape.dilation_w;
    if constexpr (kFewChannels) {
      params.halo = {};  // there is no copy by TMA
    } else if constexpr (kSpaceToDepth) {
      encode_space_to_depth_map(params.halo, a, args.a.data, {strides[0], strides[1], strides[2]}, x, shape);
    } else {
      encode_halo_map(params.halo, a, args.a.data, {strides[0], strides[1], strides[2]}, shape.images, shape.input_height,
                      shape.input_width, shape.channels, shape.halo_rows, shape.pitch);
    }
    if constexpr (kFewChannels) {
      params.filter = FewChannels::of(conv, shape);
      params.weights = {};
    } else if constexpr (form != DirectConvForm::pixels) {
      params.filter = DirectConvFilter::of(args.b.data, x, shape);
      params.weights = params.halo;  // unused, but prefetched like the others
    } else {
      // [taps, filters, channels], taken from [filters, taps, channels].
      std::int64_t const pitch = std::int64_t{params.taps} * args.b.leading;
      Weights::encode_map(params.weights, b, {args.b.data, pitch, args.b.leading}, shape.filters, shape.channels,
                          params.taps);
    }
    params.epilogue = Epilogue::params(args, shape, x);
    if (int const error = take_tensor_map_error()) return {StatusCode::tensor_map_error, error};
    if (gemm::Status const status = attributes.prepare(kernel, args.device->ordinal, kSharedStorageBytes); !status.good()) {
      return status;
    }
    gemm::LaunchShape launch;
    launch.block = dim3(kMaxThreads);
    launch.shared_memory_bytes = kSharedStorageBytes;
    launch.dependent_launch = true;
    int const each = std::min(params.scheduler.output_tiles, args.device->sm_count / shape.filter_blocks());
    launch.grid = dim3(static_cast<unsigned>(each * shape.filter_blocks()));
    return gemm::launch_kernel(kernel, launch, params, args.stream);
  }
};

}  // namespace cutwheel::conv2d
