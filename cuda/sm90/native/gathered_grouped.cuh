// Grouped GEMM whose rows of A are found by their numbers: those of a mixture of experts are tokens, which nobody has to
// copy into the order of experts first.
#pragma once

#include "core/args/routing.h"
#include "sm90/native/gathering_kernel.cuh"
#include "sm90/native/load/gathered_rows.cuh"
#include "sm90/native/scheduler/grouped.cuh"

namespace cutwheel::gemm {

template <DType a, DType b, DType acc, DType d, Layout layout_a, Layout layout_b, class Tile, class Epilogue>
struct Sm90GatheredTypes : Sm90PersistentTypes<a, b, acc, d, layout_a, layout_b, Tile, Epilogue, /*swap_ab=*/false,
                                               /*splits=*/1, /*pingpong=*/false, /*stores_by_tma=*/true> {
  using Base = Sm90PersistentTypes<a, b, acc, d, layout_a, layout_b, Tile, Epilogue, /*swap_ab=*/false, /*splits=*/1,
                                   /*pingpong=*/false, /*stores_by_tma=*/true>;
  static constexpr bool kLoadsByTma = false, kLoadsByCopies = true;
  static constexpr int kProducerWarpGroups = 1;
  using Loader = Sm90GatheredRowsLoader<typename Base::OperandA, typename Base::OperandB, Tile::kM, Tile::kK,
                                        128 * kProducerWarpGroups>;
};

template <class Types, class Tile>
using Sm90GatheredKernel =
    Sm90GatheringKernel<Types, Sm90GroupedScheduler<Tile, Grouping::rows, Types::OperandB::kStepOfK>>;

// The GemmArgs are GatheredArgs.
template <Arch arch, DType a, DType b, DType acc, DType d, Layout layout_a, Layout layout_b, class Tile,
          template <DType> class Epilogue>
struct Sm90GatheredGrouped
    : Sm90GatheredKernel<Sm90GatheredTypes<a, b, acc, d, layout_a, layout_b, Tile, Epilogue<d>>, Tile> {
  using Base = Sm90GatheredKernel<Sm90GatheredTypes<a, b, acc, d, layout_a, layout_b, Tile, Epilogue<d>>, Tile>;
  static_assert(arch == Arch::sm90a && element_bytes(a) == 2 && layout_a == Layout::row && layout_b == Layout::column);

  static std::int64_t workspace_bytes(GemmArgs const&) { return 0; }

  static Status launch(GemmArgs const& given, void const* kernel) {
    static KernelAttributes attributes;
    auto const& args = static_cast<GatheredArgs const&>(given);
    int const count = args.groups.count, tiles_m = ceil_div(args.m, Tile::kM), tiles_n = ceil_div(args.n, Tile::kN);
    // A group begins at most one tile more than its rows fill.
    std::int64_t const tiles = (std::int64_t{tiles_m} + count + 1) * tiles_n;
    constexpr std::int64_t kMaxTiles = 0x7fffffff - 65536;
    auto const meets = [](Operand const& x) {
      return reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0 && x.leading % 8 == 0 && x.batch_stride % 8 == 0;
    };
    typename Base::Loader::Params operands;
    if (count > GroupEnds::kMaxGroups || tiles > kMaxTiles || !meets(args.a) || !meets(args.b) ||
        !operands.encode_a(args.a, args.sources, args.tokens, args.k)) {
      return {StatusCode::not_implementable, 0};
    }
    operands.encode_b(b, args.b, args.n, args.k, count);
    bool const along_m = args.raster == RasterOrder::along_m;
    return Base::launch(args, kernel, attributes, operands,
                        {args.groups, args.m, args.m, args.n, ceil_div(args.k, Tile::kK), tiles_m, tiles_n,
                         swizzle_width(args.swizzle, along_m ? tiles_n : tiles_m), along_m},
                        static_cast<int>(tiles), 1);
  }
};

}  // namespace cutwheel::gemm
