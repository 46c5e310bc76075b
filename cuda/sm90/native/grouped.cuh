// Grouped GEMM by the persistent kernel. Operands are whole tensors to TMA, whatever the groups: a tile of rows may load
// rows of the next group, and does not store them; a tile of K may load elements of other groups, and clears them. So no
// tensor map depends on the ends of groups, which are read once, by the kernel itself.
#pragma once

#include "sm90/native/kernel.cuh"
#include "sm90/native/scheduler/grouped.cuh"

namespace cutwheel::gemm {

template <DType a, DType b, DType acc, DType d, Layout layout_a, Layout layout_b, class Tile, Schedule schedule,
          Grouping grouping, class Epilogue, bool promotes_accumulator, BlockScales block_scales>
struct Sm90GroupedBase {
  using Types = Sm90PersistentTypes<a, b, acc, d, layout_a, layout_b, Tile, Epilogue, /*swap_ab=*/false, /*splits=*/1,
                                    schedule == Schedule::pingpong, /*stores_by_tma=*/grouping == Grouping::rows>;
  static constexpr int kStepOfK = std::max(Types::OperandA::kStepOfK, Types::OperandB::kStepOfK);
  // Groups of rows begin at any row: it must not be a coordinate along which memory is contiguous.
  static_assert(grouping == Grouping::rows ? layout_a == Layout::row : !promotes_accumulator);
  using Kernel =
      Sm90PersistentKernel<Types, Sm90GroupedScheduler<Tile, grouping, kStepOfK>, promotes_accumulator, block_scales>;
};

template <Arch arch, DType a, DType b, DType acc, DType d, Layout layout_a, Layout layout_b, class Tile, Schedule schedule,
          Grouping grouping, template <DType> class Epilogue, bool fast_accum = false,
          BlockScales block_scales = BlockScales::none>
struct Sm90Grouped : Sm90GroupedBase<a, b, acc, d, layout_a, layout_b, Tile, schedule, grouping, Epilogue<d>,
                                     is_fp8(a) && !fast_accum, block_scales>::Kernel {
  static_assert(arch == Arch::sm90a && grouping != Grouping::none);
  using Base = typename Sm90GroupedBase<a, b, acc, d, layout_a, layout_b, Tile, schedule, grouping, Epilogue<d>,
                                        is_fp8(a) && !fast_accum, block_scales>::Kernel;

  static std::int64_t workspace_bytes(GemmArgs const&) { return 0; }

  static Status launch(GemmArgs const& args, void const* kernel) {
    static KernelAttributes attributes;
    constexpr bool kRows = grouping == Grouping::rows;
    int const count = args.groups.count, tiles_m = ceil_div(args.m, Tile::kM), tiles_n = ceil_div(args.n, Tile::kN);
    // A group begins at most one tile more than its rows fill.
    std::int64_t const tiles = (kRows ? std::int64_t{tiles_m} + count + 1 : std::int64_t{tiles_m} * count) * tiles_n;
    constexpr std::int64_t kMaxTiles = 0x7fffffff - 65536;
    if (count > GroupEnds::kMaxGroups || tiles > kMaxTiles) return {StatusCode::not_implementable, 0};
    bool const along_m = args.raster == RasterOrder::along_m;
    return Base::launch(args, kernel, attributes, a, b,
                        {args.groups, kRows ? args.m : args.k, args.m, args.n, ceil_div(args.k, Tile::kK), tiles_m, tiles_n,
                         swizzle_width(args.swizzle, along_m ? tiles_n : tiles_m), along_m},
                        static_cast<int>(tiles), 1, kRows ? count : 1, kRows ? 1 : count);
  }
};

}  // namespace cutwheel::gemm
