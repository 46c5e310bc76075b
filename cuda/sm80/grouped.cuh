// Grouped GEMM on Ampere and Ada: the mainloop and the epilogue of dense GEMMs in persistent threadblocks, which visit the
// tiles of all groups.
#pragma once

#include <algorithm>
#include <iterator>
#include <limits>

#include "core/group_ends.cuh"
#include "core/launch.h"
#include "core/tile_raster.cuh"
#include "sm80/epilogue.cuh"
#include "sm80/mainloop.cuh"
#include "sm80/sm89_block_scales.cuh"

namespace cutwheel::gemm {

template <Arch arch_, DType a_, DType b_, DType acc_, DType d_, Layout layout_a_, Layout layout_b_, class Tile, class Warp,
          int stages_, Grouping grouping_, template <DType> class Epilogue_, bool fast_accum = false,
          BlockScales scales_ = BlockScales::none>
struct Sm80Grouped {
  static_assert(arch_ == Arch::sm80 || arch_ == Arch::sm89);
  static_assert(grouping_ == Grouping::rows || grouping_ == Grouping::k);
  static constexpr bool kRows = grouping_ == Grouping::rows;
  static constexpr bool kContiguousK = layout_a_ == Layout::row || layout_b_ == Layout::column;
  static_assert(!kRows || layout_a_ == Layout::row, "groups of rows start anywhere, so that rows have to be whole");
  // A group of K starts at any element. Where K is contiguous each is a copy of its own, of at least four bytes.
  static constexpr int kVectorBytes = !kRows && kContiguousK ? element_bytes(a_) : 16;
  static_assert(kVectorBytes >= 4, "groups of a contiguous K take 32-bit operands");
  static constexpr bool kBlockwise = scales_ != BlockScales::none;
  static_assert(!kBlockwise || (kRows && is_fp8(a_) && !fast_accum));

  using Mainloop = Sm80Mainloop<a_, b_, acc_, layout_a_, layout_b_, Tile, Warp, stages_, is_fp8(a_) && !fast_accum>;
  using Sums = typename Mainloop::Sums;
  using EpilogueD = Epilogue_<d_>;
  using Epilogue = Sm80Epilogue<EpilogueD, d_, Warp>;

  static constexpr bool kInPairs = EpilogueD::kWidth == Width::half;
  static constexpr int kMaxThreads = Mainloop::kThreads;
  static constexpr int kMinBlocks = 1;

  struct SharedStorage {
    alignas(128) char tile[std::max(Mainloop::kSharedBytes, kMaxThreads / 32 * Epilogue::kBytesPerWarp)];
    GroupEnds::Storage ends;
  };
  static constexpr int kSharedStorageBytes = static_cast<int>(sizeof(SharedStorage));
  // Tiles across the raster order, for reuse in L2.
  static constexpr int kSwizzle = 8;

  struct Params {
    Operand a, b;
    BlockScaleOperand scale_a, scale_b;
    EpilogueValue d;
    EpilogueValue operands[kMaxEpilogueOperands];
    GroupArgs groups;
    int m, n, k;
  };
  struct WorkTile {
    int row, end_row;  // of A and D, to the end of the group
    int first_k, k;
    int group, tile_n;
  };

  CUTLASS_DEVICE static int tiles_of(int extent, int tile) { return (extent + tile - 1) / tile; }

  // False past the last tile. Rows past the last group form one with the index GroupArgs::count.
  CUTLASS_DEVICE static bool work_tile_at(Params const& p, GroupEnds::Storage const& ends, int index, WorkTile& work) {
    int const count = p.groups.count;
    TileRaster order{tiles_of(p.m, Tile::kM), tiles_of(p.n, Tile::kN), count, kSwizzle, true};
    int tile_m, first = 0, unused;
    work.end_row = p.m;
    if constexpr (kRows) {
      if (index >= ends.tile_end[count]) return false;
      int const group = work.group = GroupEnds::find(ends, count, index, work.group);
      if (group > 0) {
        first = ends.end[group - 1];
        index -= ends.tile_end[group - 1];
      }
      work.end_row = ends.end[group];
      order.tiles_m = tiles_of(work.end_row - first, Tile::kM);
      order.at(index, tile_m, work.tile_n, unused);
      work.first_k = 0;
      work.k = p.k;
    } else {
      if (index >= order.count()) return false;
      order.at(index, tile_m, work.tile_n, work.group);
      work.first_k = work.group > 0 ? ends.end[work.group - 1] : 0;
      work.k = ends.end[work.group] - work.first_k;
    }
    work.row = first + tile_m * Tile::kM;
    return true;
  }

  CUTLASS_DEVICE static void multiply(Params const& p, unsigned shared, WorkTile const& work, Sums& sums) {
    int const column = work.tile_n * Tile::kN;
    std::int64_t const k = work.first_k;
    auto const* const a = static_cast<Element<a_> const*>(p.a.data) + (layout_a_ == Layout::row ? k : k * p.a.leading);
    auto const* b = static_cast<Element<b_> const*>(p.b.data) + (layout_b_ == Layout::row ? k * p.b.leading : k);
    if constexpr (kRows) b += work.group * p.b.batch_stride;
    Sm80MatrixLoader<typename Mainloop::TileA, kMaxThreads, kVectorBytes> load_a(a, p.a.leading, work.row, work.end_row,
                                                                                 work.k);
    Sm80MatrixLoader<typename Mainloop::TileB, kMaxThreads, kVectorBytes> load_b(b, p.b.leading, column, p.n, work.k,
                                                                                 kInPairs ? p.b.pair_stride : 0);
    int const k_tiles = tiles_of(work.k, Tile::kK);
    if constexpr (kBlockwise) {
      Sm89BlockScales<Warp, scales_> scales{
          p.scale_a, p.scale_b, work.row + Mainloop::warp_row(), column + Mainloop::warp_column(), work.end_row, p.n};
      scales.b.data += work.group * p.scale_b.batch_stride;
      Mainloop::run(shared, k_tiles, load_a, load_b, sums, scales);
    } else {
      Mainloop::run(shared, k_tiles, load_a, load_b, sums);
    }
    if (kInPairs && p.b.odd_first) Mainloop::exchange_pairs(sums);
  }

  // E stands for one accumulator column; `pitch` counts bytes.
  template <class E>
  CUTLASS_DEVICE static void zero(void* data, std::int64_t pitch, Params const& p, WorkTile const& work) {
    constexpr int kVector = Epilogue::kVector, kVectors = Tile::kN / kVector;
    cutlass::Array<E, kVector> zeros;
    zeros.clear();
    for (int i = threadIdx.x; i < Tile::kM * kVectors; i += kMaxThreads) {
      int const row = work.row + i / kVectors, column = work.tile_n * Tile::kN + i % kVectors * kVector;
      if (row < work.end_row && column < p.n) {
        epilogue::save_vector(reinterpret_cast<E*>(static_cast<char*>(data) + row * pitch) + column, zeros);
      }
    }
  }

  // Stores zeros in rows that belong to no group.
  template <class... Stores>
  CUTLASS_DEVICE static void store_zeros(epilogue::OperandList<Stores...>, Params const& p, WorkTile const& work) {
    zero<typename Epilogue::ElementD>(p.d.data, p.d.leading * element_bytes(d_), p, work);
    (zero<Element<Stores::kType>>(p.operands[Stores::kIndex].data,
                                  p.operands[Stores::kIndex].leading * element_bytes(Stores::kType), p, work),
     ...);
  }

  CUTLASS_DEVICE static void device(Params const& p) {
    extern __shared__ __align__(128) char shared_memory[];
    auto& shared = *reinterpret_cast<SharedStorage*>(shared_memory);
    GroupEnds::load(shared.ends, p.groups, kRows ? p.m : p.k, kRows ? Tile::kM : 0, tiles_of(p.n, Tile::kN), threadIdx.x,
                    kMaxThreads);
    WorkTile work{};
    for (int index = blockIdx.x; work_tile_at(p, shared.ends, index, work); index += gridDim.x) {
      if (kRows && work.group == p.groups.count) {
        store_zeros(typename EpilogueD::Stores{}, p, work);
        continue;
      }
      __syncthreads();  // the tile before has been read out of shared memory
      Sums sums;
      Mainloop::clear(sums);
      multiply(p, static_cast<unsigned>(__cvta_generic_to_shared(shared.tile)), work, sums);
      __syncthreads();
      Epilogue::store(p.operands, p.d, shared.tile + threadIdx.x / 32 * Epilogue::kBytesPerWarp, sums,
                      {work.row + Mainloop::warp_row(), work.tile_n * Tile::kN + Mainloop::warp_column(), work.end_row, p.n,
                       work.group});
    }
  }

  static std::int64_t workspace_bytes(GemmArgs const&) { return 0; }

  // At most: each group of rows, and the rest, may have one tile that is not full.
  static std::int64_t max_tiles(GemmArgs const& args) {
    std::int64_t const groups = args.groups.count;
    std::int64_t const full = (args.m + (groups + 1) * (Tile::kM - 1)) / Tile::kM;
    std::int64_t const tiles_m = kRows ? std::min<std::int64_t>(full, args.m) : groups * ceil_div(args.m, Tile::kM);
    return tiles_m * ceil_div(args.n, Tile::kN);
  }

  static Status launch(GemmArgs const& args, void const* kernel) {
    static KernelAttributes attributes;
    std::int64_t const tiles = max_tiles(args);
    if (tiles == 0) return {};
    if (Status const status = attributes.prepare(kernel, args.device->ordinal, kSharedStorageBytes); !status.good()) {
      return status;
    }
    LaunchShape shape;
    shape.block = dim3(kMaxThreads);
    shape.shared_memory_bytes = kSharedStorageBytes;
    int const blocks = attributes.max_active_blocks(kernel, args.device->ordinal, shape);
    std::int64_t const grid = std::min<std::int64_t>(tiles, std::int64_t{blocks} * args.device->sm_count);
    // The index of a tile, and of the one that would follow the last.
    if (args.groups.count > GroupEnds::kMaxGroups || tiles + grid > std::numeric_limits<int>::max()) {
      return {StatusCode::not_implementable, 0};
    }
    Params params{};
    params.a = args.a;
    params.b = args.b;
    params.scale_a = args.scale_a;
    params.scale_b = args.scale_b;
    params.d = {args.d, args.d_leading, args.d_batch_stride, 0};
    std::copy(std::begin(args.epilogue), std::end(args.epilogue), params.operands);
    params.groups = args.groups;
    params.m = args.m;
    params.n = args.n;
    params.k = args.k;
    shape.grid = dim3(static_cast<unsigned>(grid));
    return launch_kernel(kernel, shape, params, args.stream);
  }
};

}  // namespace cutwheel::gemm
