// Dense GEMM by the persistent kernel. It has no tile of C, so that tiles may have any width that wgmma has and a problem's
// fill whole waves. Clusters share K, or load operands for each other by multicast: that gains where two warpgroups take
// whole tiles in turns (H200: native_kernels/multicast/h200_in_turns.json), and where rows begin within lines of L2. Where
// they begin on lines, tiles that two warpgroups share took 0 to 39 % longer so on an H100 (14 problems, M 96 to 6144).
#pragma once

#include "sm90/native/kernel.cuh"
#include "sm90/native/scheduler/dense.cuh"

namespace cutwheel::gemm {

// Launches the kernel for a dense GEMM whose A and B have these types.
template <class Kernel, class Tile, DType a, DType b>
struct Sm90Dense : Kernel {
  static std::int64_t workspace_bytes(GemmArgs const&) { return 0; }

  static Status launch(GemmArgs const& args, void const* kernel) {
    static KernelAttributes attributes;
    using Types = typename Kernel::Types;
    Sm90DenseTiles const tiles =
        dense_tiles(args, Tile::kM * Types::kBelow, Tile::kN * Types::kBeside, Tile::kK, Types::kSwapAB);
    if (tiles.k_tiles < Kernel::kSplits) return {StatusCode::not_implementable, 0};
    TileRaster const& order = tiles.raster.order;
    return Kernel::launch(args, kernel, attributes, a, b, tiles, order.count(), args.batch, args.batch, order.batch);
  }
};

template <Arch arch, DType a, DType b, DType acc, DType d, Layout layout_a, Layout layout_b, class Tile, Schedule schedule,
          bool swap_ab, class Cluster, template <DType> class Epilogue, bool fast_accum = false,
          BlockScales block_scales = BlockScales::none>
using Sm90DenseKernel = Sm90PersistentKernel<
    Sm90PersistentTypes<a, b, acc, d, layout_a, layout_b, Tile, Epilogue<d>, swap_ab, Cluster::kK,
                        schedule == Schedule::pingpong,
                        /*stores_by_tma=*/swap_ab && is_fp8(a) && !fast_accum, Cluster::kM, Cluster::kN,
                        /*promotes=*/is_fp8(a) && !fast_accum && block_scales == BlockScales::none>,
    Sm90DenseScheduler<Tile, takes_slices(d, schedule, Cluster::kK)>, is_fp8(a) && !fast_accum, block_scales>;

template <Arch arch, DType a, DType b, DType acc, DType d, Layout layout_a, Layout layout_b, class Tile, Schedule schedule,
          bool swap_ab, class Cluster, template <DType> class Epilogue, bool fast_accum = false,
          BlockScales block_scales = BlockScales::none>
struct Sm90Persistent : Sm90Dense<Sm90DenseKernel<arch, a, b, acc, d, layout_a, layout_b, Tile, schedule, swap_ab, Cluster,
                                                  Epilogue, fast_accum, block_scales>,
                                  Tile, a, b> {
  static_assert(arch == Arch::sm90a);
};

}  // namespace cutwheel::gemm
