// Convolutions as implicit GEMMs in which the taps of a row share their pixels. In shared memory a pixel is a line of 128
// bytes, and a tap reads the lines of its left neighbour one line on: a tile is loaded once for all taps of a row, and a
// third of the pixels comes from L2, whose bandwidth limits tiles of few columns.
#pragma once

#include <algorithm>

#include "sm90/native/conv.cuh"
#include "sm90/native/epilogue/image.cuh"
#include "sm90/native/load/row_conv.cuh"

namespace cutwheel::conv2d {

template <Arch arch, DType a, DType b, DType acc, DType d, class Tile, Direction direction,
          template <DType> class Epilogue_>
struct Sm90RowConv {
  using Types = Sm90ConvTypes<a, b, acc, d, Tile, direction, Epilogue_<d>>;
  using Element = typename Types::ElementA;
  using OperandA = gemm::Sm90TileOperand<Element, Tile::kM + kMostTapLines, Tile::kK, cute::SM90::GMMA::Major::K>;
  using OperandB = typename Types::OperandB;
  using Epilogue =
      Sm90ImageEpilogue<Epilogue_<d>, d, Tile::kN, typename Epilogue_<d>::Operands, typename Epilogue_<d>::Stores>;
  using Scheduler = Sm90ConvScheduler<Tile, direction>;
  using SchedulerParams = typename Scheduler::Params;
  using Loader = Sm90RowConvLoader<OperandA, OperandB, Tile, direction>;
  using Operands = typename Loader::Params;
  static_assert(arch == Arch::sm90a && element_bytes(a) == 2 && a == b);
  static_assert(direction == Direction::fprop || direction == Direction::dgrad);
  static_assert(direction == Direction::fprop || has_only(/*rows=*/true, typename Epilogue_<d>::Operands{}));
  static_assert(Epilogue_<d>::Stores::kCount == 0);

  static constexpr int kWarpGroups = Types::kWarpGroups, kBlocks = Types::kBlocks;
  // Each block of rows has its own residual, all of which are loaded at once.
  static constexpr int kStagedBlocks = Epilogue::kHasResidual ? kBlocks : 1;
  static constexpr int kStagedBytes = kWarpGroups * (kStagedBlocks * static_cast<int>(sizeof(typename Epilogue::Storage)) +
                                                     static_cast<int>(sizeof(typename Epilogue::VectorStorage)));
  // A tile of pixels has a stage for several k-tiles, one for each tap. It has no barriers: as long as there are no more
  // stages of filters than this, one of these is free only where the pixels that the next ones replace have been read.
  static constexpr int kPixelStages = Tile::kM * Tile::kN > 256 * 64 && kStagedBlocks > 1 ? 2 : 3;
  static constexpr int kMostStages = (kPixelStages - 1) * kFewestRowTaps + 1, kMemory = 227 * 1024 - 1024;
  static constexpr int kStages =
      std::min(kMostStages, (kMemory - kPixelStages * OperandA::kBytes - kStagedBytes) / OperandB::kBytes);
  using Pipeline = gemm::Sm90Pipeline<kStages, kWarpGroups>;
  using State = typename Pipeline::State;

  struct SharedStorage {
    cute::array_aligned<Element, kPixelStages * OperandA::kElements, 1024> pixels;
    cute::array_aligned<Element, kStages * OperandB::kElements, 1024> filters;
    typename Epilogue::Storage staged[kWarpGroups][kStagedBlocks];
    typename Epilogue::VectorStorage vectors[kWarpGroups];
    typename Pipeline::Storage pipeline;
    alignas(8) std::uint64_t residual_full[kWarpGroups], residual_empty[kWarpGroups];
  };
  struct Params {
    Operands operands;
    typename Epilogue::Maps maps;
    typename Epilogue::Params epilogue;
    SchedulerParams scheduler;
  };
  static constexpr int kMaxThreads = 128 * (kWarpGroups + 1);
  static constexpr int kMinBlocks = 1;
  static constexpr int kSharedStorageBytes = static_cast<int>(sizeof(SharedStorage));
  static_assert(kSharedStorageBytes <= 227 * 1024 && kStages >= 2);

  CUTLASS_DEVICE static int next_pixels(int stage) { return stage + 1 == kPixelStages ? 0 : stage + 1; }

  CUTLASS_DEVICE static void produce(Params const& p, SharedStorage& shared) {
    Scheduler scheduler(p.scheduler, {});
    Loader loader(p.operands, p.scheduler);
    Pipeline const pipeline{shared.pipeline};
    State write;
    int pixels = 0;
    int const taps = p.scheduler.classes[0].taps_w;
    gemm::Sm90WorkTile work;
    wait_on_dependent_grids();
    for (int tile = static_cast<int>(blockIdx.x); scheduler.at(tile, work); tile += static_cast<int>(gridDim.x)) {
      loader.begin(work);
      for (int k = 0; k < work.k_tiles; k += taps) {
        for (int tap = 0; tap < taps; ++tap, ++write) {
          int const bytes = loader.part_b.bytes + (tap == 0 ? loader.a_bytes : 0);
          std::uint64_t* const barrier = pipeline.producer_acquire(write, static_cast<std::uint32_t>(bytes));
          if (tap == 0) loader.load_a(barrier, shared.pixels.data() + pixels * OperandA::kElements);
          loader.load_b(barrier, shared.filters.data() + write.index() * OperandB::kElements, work, tap);
        }
        pixels = next_pixels(pixels);
        loader.advance();
      }
    }
    launch_dependent_grids();
  }

  // The first row of a warpgroup's block.
  CUTLASS_DEVICE static int row_of(int warpgroup, int block) { return (block * kWarpGroups + warpgroup) * 64; }

  using Barrier = cutlass::arch::ClusterBarrier;
  using LoadBarrier = cutlass::arch::ClusterTransactionBarrier;

  // By a thread of its own.
  CUTLASS_DEVICE static void produce_residual(Params const& p, SharedStorage& shared) {
    if (!p.epilogue.has_residual) return;
    Scheduler scheduler(p.scheduler, {});
    gemm::Sm90WorkTile work;
    std::uint32_t parity = 1;
    wait_on_dependent_grids();
    for (int tile = static_cast<int>(blockIdx.x); scheduler.at(tile, work); tile += static_cast<int>(gridDim.x)) {
      for (int warpgroup = 0; warpgroup < kWarpGroups; ++warpgroup) {
        std::uint64_t* const barrier = &shared.residual_full[warpgroup];
        Barrier::wait(&shared.residual_empty[warpgroup], parity);
        LoadBarrier::arrive_and_expect_tx(barrier, kStagedBlocks * Epilogue::kResidualBytes);
        for (int block = 0; block < kStagedBlocks; ++block) {
          Epilogue::load_residual(p.epilogue, p.maps, barrier, shared.staged[warpgroup][block],
                                  work.m + row_of(warpgroup, block), work.n);
        }
      }
      parity ^= 1;
    }
  }

  CUTLASS_DEVICE static void consume(Params const& p, SharedStorage& shared, int warpgroup) {
    using namespace cute;
    Scheduler scheduler(p.scheduler, {});
    Pipeline const pipeline{shared.pipeline};
    State read;
    int pixels = 0;
    int const thread = static_cast<int>(threadIdx.x) % 128;
    auto& vectors = shared.vectors[warpgroup];
    auto const synchronize = [&] { cutlass::arch::NamedBarrier::sync(128, static_cast<std::uint32_t>(warpgroup)); };
    ConvResidueClass const& residue = p.scheduler.classes[0];
    int const taps = residue.taps_w, first_line = residue.offset.w, line_step = p.scheduler.offset_step.w;
    GmmaDescriptor const a_rows = OperandA::template descriptor<64>(shared.pixels.data(), warpgroup * 64);
    GmmaDescriptor const b_columns = OperandB::template descriptor<Tile::kN>(shared.filters.data(), 0);
    gemm::Sm90WorkTile work;
    std::uint32_t parity = 0;
    bool is_first = true;
    wait_on_dependent_grids();
    for (int tile = static_cast<int>(blockIdx.x); scheduler.at(tile, work); tile += static_cast<int>(gridDim.x)) {
      synchronize();  // the vectors of the tile before have been read
      Epilogue::prefetch_vectors(p.epilogue, vectors, work, thread);
      gemm::Sm90Accumulator<float, Types::kValues> accum{};
      auto scale = SM90::GMMA::ScaleOut::Zero;
      State release = read;
      gemm::sm90_fence<Types::kValues>(accum);
      int tap = 0, line = first_line;
      CUTLASS_PRAGMA_NO_UNROLL
      for (int k = 0; k < work.k_tiles; ++k) {
        pipeline.consumer_wait(read);
        // Behind the first products the results of the tile before have been stored, and the residual takes their place.
        if (Epilogue::kHasResidual && k == 1 && p.epilogue.has_residual && !is_first && thread % 32 == 0) {
          Epilogue::wait_until_read();
          Barrier::arrive(&shared.residual_empty[warpgroup]);
        }
        warpgroup_arrive();
        CUTLASS_PRAGMA_UNROLL
        for (int at = 0; at < Tile::kK; at += 16) {
          GmmaDescriptor const columns = gemm::sm90_advance(b_columns, OperandB::offset(0, at, read.index()));
          CUTLASS_PRAGMA_UNROLL
          for (int block = 0; block < kBlocks; ++block) {
            // A descriptor may begin at any line, because the swizzle depends on the address alone.
            GmmaDescriptor const rows =
                gemm::sm90_advance(a_rows, OperandA::offset(block * 64 * kWarpGroups + line, at, pixels));
            gemm::sm90_multiply<typename Types::Instruction>(rows, columns, accum, block * Tile::kN / 2, scale);
          }
          scale = SM90::GMMA::ScaleOut::One;
        }
        warpgroup_commit_batch();
        ++read;
        line += line_step;
        if (++tap == taps) tap = 0, line = first_line, pixels = next_pixels(pixels);
        if (k > 0) {
          warpgroup_wait<1>();
          pipeline.consumer_release(release);
          ++release;
        }
      }
      warpgroup_wait<0>();
      pipeline.consumer_release(release);
      gemm::sm90_fence<Types::kValues>(accum);
      is_first = false;
      Epilogue::wait_for_vectors();
      synchronize();
      if (Epilogue::kHasResidual && p.epilogue.has_residual) Barrier::wait(&shared.residual_full[warpgroup], parity);
      parity ^= 1;
      int const first_row = work.m;
      CUTLASS_PRAGMA_UNROLL
      for (int block = 0; block < kBlocks; ++block) {
        work.m = first_row + row_of(warpgroup, block);
        Epilogue::store(p.epilogue, p.maps, shared.staged[warpgroup][Epilogue::kHasResidual ? block : 0], vectors, work,
                        thread, [&](int i) { return accum(block * (Tile::kN / 2) + i); });
      }
    }
    Epilogue::wait_until_read();
  }

  CUTLASS_DEVICE static void device(Params const& p) {
    // TMA's swizzle needs the alignment. Dynamic shared memory begins at 0, as there is no other.
    extern __shared__ __align__(1024) char shared_memory[];
    auto& shared = *reinterpret_cast<SharedStorage*>(shared_memory);
    int const warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
    if (threadIdx.x == 0) {
      for (int i = 0; i < kWarpGroups; ++i) {
        Barrier::init(&shared.residual_full[i], 1);
        Barrier::init(&shared.residual_empty[i], 4);  // its warps
      }
      Pipeline{shared.pipeline}.initialize(1);
      for (CUtensorMap const* map : {&p.operands.a, &p.operands.b, &p.maps.result}) {
        cute::prefetch_tma_descriptor(reinterpret_cast<cute::TmaDescriptor const*>(map));
      }
    }
    __syncthreads();
    if (warpgroup == kWarpGroups) {
      if constexpr (kWarpGroups > 1) cutlass::arch::warpgroup_reg_dealloc<40>();
      int const warp = static_cast<int>(threadIdx.x) % 128 / 32;
      if (warp == 0 && cute::elect_one_sync()) produce(p, shared);
      if (Epilogue::kHasResidual && warp == 1 && cute::elect_one_sync()) produce_residual(p, shared);
    } else {
      if constexpr (kWarpGroups > 1) cutlass::arch::warpgroup_reg_alloc<232>();
      consume(p, shared, warpgroup);
    }
  }

  static std::int64_t workspace_bytes(gemm::GemmArgs const&) { return 0; }

  // args: a ConvArgs.
  static Status launch(gemm::GemmArgs const& args, void const* kernel) {
    static gemm::KernelAttributes attributes;
    auto const& conv = static_cast<ConvArgs const&>(args);
    ConvProblem const& x = conv.conv;
    Params params{};
    SchedulerParams& scheduler = params.scheduler;
    Operands& operands = params.operands;
    constexpr bool kIsForward = direction == Direction::fprop;
    Im2colAxes axes;
    if constexpr (kIsForward) {
      plan_fprop(scheduler, x);
      axes = im2col_axes(x);
    } else {
      DgradAxes sides;
      if (!plan_dgrad(scheduler, x, sides)) return {StatusCode::not_implementable, 0};
      axes = sides.im2col(x, scheduler.classes[0]);
    }
    auto const& strides = kIsForward ? conv.x_strides : conv.y_strides;
    ConvResidueClass& residue = scheduler.classes[0];
    int const lines_more = axes.w.last_offset;
    PaddedImage const image{args.n, axes.w.positions, axes.h.positions, x.images * axes.d.positions, lines_more};
    axes.w.positions += lines_more;
    axes.w.last_offset = 0;
    bool const is_whole = x.c % 8 == 0 && x.k_out % 8 == 0;
    std::int64_t const positions = std::int64_t{residue.m} / image.width * axes.w.positions;
    if (x.step() != 1 || lines_more < 1 || lines_more > kMostTapLines || residue.taps_w < kFewestRowTaps || !is_whole ||
        !axes.is_encodable() || positions > 0x7fffffff - Tile::kM || !is_tma_aligned(args.a.data, strides, a) ||
        reinterpret_cast<std::uintptr_t>(args.b.data) % 16 != 0 || !Epilogue::meets_alignment(args)) {
      return {StatusCode::not_implementable, 0};
    }
    residue.grid = im2col_grid(axes);
    residue.m = static_cast<int>(positions);
    residue.k_tiles = x.taps() * ceil_div(scheduler.channels, Tile::kK);
    auto const encode = [&](CUtensorMap& map, int lines) {
      encode_im2col_map(map, a, args.a.data, strides, kIsForward ? conv.x_depth_stride : conv.y_depth_stride, x.images,
                        scheduler.channels, axes, OperandA::kSwizzled, lines, OperandA::kSwizzleBytes);
    };
    operands.a_lines = Tile::kM + lines_more;
    encode(operands.a, operands.a_lines);
    operands.a_tail_lines = residue.m % Tile::kM;
    if (operands.a_tail_lines) encode(operands.a_tail, operands.a_tail_lines);
    gemm::Operand const filter{args.b.data, conv.filter_pitch, args.b.leading};
    OperandB::encode_map(operands.b, b, filter, args.n, scheduler.channels, x.taps());
    OperandB::encode_tail_map(operands.b_tail, b, filter, args.n, scheduler.channels, x.taps());
    Epilogue::encode(params.epilogue, params.maps, args, image);
    std::int64_t const tiles = scheduler.count_tiles(conv, Tile::kM, Tile::kN);
    if (int const error = take_tensor_map_error()) return {StatusCode::tensor_map_error, error};
    if (tiles > kMaxTiles) return {StatusCode::not_implementable, 0};
    gemm::LaunchShape shape;
    shape.block = dim3(kMaxThreads);
    shape.shared_memory_bytes = kSharedStorageBytes;
    shape.dependent_launch = true;
    return gemm::launch_persistent(kernel, attributes, shape, static_cast<int>(tiles), params, args);
  }
};

}  // namespace cutwheel::conv2d
