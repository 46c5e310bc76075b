// Grouped GEMM by the persistent kernel. Operands are whole tensors to TMA, whatever the groups: a tile of rows may load
// rows of the next group, and does not store them; a tile of K may load elements of other groups, and clears them. So no
// tensor map depends on the ends of groups, which are read once, by the kernel itself.
#pragma once

#include "gemm/group_ends.cuh"
#include "gemm/sm90_persistent_kernel.cuh"

namespace cutwheel::gemm {

// `step_of_k`: TMA loads begin at multiples of it.
template <class Tile, Grouping grouping, int step_of_k>
struct Sm90GroupWalk {
  struct Params {
    GroupArgs groups;
    int total;  // rows, or elements of K, of all groups
    int m, n, k_tiles;
    int tiles_m, tiles_n;  // tiles_m: of a group, where groups share K
    int band;
    bool along_m;
  };
  using Storage = GroupEnds::Storage;
  Params const& p;
  Storage const& storage;
  int group = 0;

  CUTLASS_DEVICE Sm90GroupWalk(Params const& params, Storage const& shared) : p(params), storage(shared) {}

  CUTLASS_DEVICE static void start(Params const& p, Storage& storage) {
    GroupEnds::load(storage, p.groups, p.total, grouping == Grouping::rows ? Tile::kM : 0, p.tiles_n,
                    static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x));
  }

  CUTLASS_DEVICE bool at(int index, Sm90TilePlace& place) {
    place = {};
    place.end_n = p.n;
    int tile_m, tile_n, unused;
    if constexpr (grouping == Grouping::rows) {
      // Behind the groups there may be rows of none.
      if (index >= storage.tile_end[p.groups.count]) return false;
      group = GroupEnds::find(storage, p.groups.count, index, group);
      int const first = group > 0 ? storage.end[group - 1] : 0;
      int const end = storage.end[group];
      int const within = index - (group > 0 ? storage.tile_end[group - 1] : 0);
      Sm90TileOrder const order{ceil_div(end - first, Tile::kM), p.tiles_n, 1, p.band, p.along_m};
      order.at(within, tile_m, tile_n, unused);
      place.m = first + tile_m * Tile::kM;
      place.end_m = end;
      place.is_zero = group == p.groups.count;
      place.k_tiles = place.is_zero ? 0 : p.k_tiles;
      place.batch = place.b_batch = group;
    } else {
      Sm90TileOrder const order{p.tiles_m, p.tiles_n, p.groups.count, p.band, p.along_m};
      if (index >= order.count()) return false;
      order.at(index, tile_m, tile_n, group);
      int const first = group > 0 ? storage.end[group - 1] : 0, length = storage.end[group] - first;
      place.m = tile_m * Tile::kM;
      place.end_m = p.m;
      place.k_begin = length > 0 ? first % step_of_k : 0;
      place.k = first - place.k_begin;
      place.k_tiles = ceil_div(place.k_begin + length, Tile::kK);
      place.k_end = (place.k_begin + length) % Tile::kK;
      place.batch = place.d_batch = group;
    }
    place.n = tile_n * Tile::kN;
    return true;
  }

  CUTLASS_DEVICE static Sm90SameFrame frame(Sm90TilePlace const&) { return {}; }
};

template <DType a, DType b, DType acc, DType d, Layout layout_a, Layout layout_b, class Tile, Grouping grouping,
          class Epilogue, bool promoted, BlockScales block_scales>
struct Sm90GroupedBase {
  using Types = Sm90PersistentTypes<a, b, acc, d, layout_a, layout_b, Tile, Epilogue>;
  static constexpr int kStepOfK = std::max(Types::OperandA::kStepOfK, Types::OperandB::kStepOfK);
  // Groups of rows begin at any row: it must not be a coordinate along which memory is contiguous.
  static_assert(grouping == Grouping::rows ? layout_a == Layout::row : !promoted);
  using Kernel = Sm90PersistentKernel<Types, Sm90GroupWalk<Tile, grouping, kStepOfK>, promoted, block_scales>;
};

template <Arch arch, DType a, DType b, DType acc, DType d, Layout layout_a, Layout layout_b, class Tile, Grouping grouping,
          template <DType> class Epilogue, bool fast_accum = false, BlockScales block_scales = BlockScales::none>
struct Sm90Grouped : Sm90GroupedBase<a, b, acc, d, layout_a, layout_b, Tile, grouping, Epilogue<d>,
                                     is_fp8(a) && !fast_accum, block_scales>::Kernel {
  static_assert(arch == Arch::sm90a && grouping != Grouping::none);
  using Base = typename Sm90GroupedBase<a, b, acc, d, layout_a, layout_b, Tile, grouping, Epilogue<d>,
                                        is_fp8(a) && !fast_accum, block_scales>::Kernel;

  static std::int64_t workspace_bytes(GemmArgs const&) { return 0; }

  static Status launch(GemmArgs const& args, void const* kernel) {
    static KernelFacts facts;
    constexpr bool kRows = grouping == Grouping::rows;
    int const count = args.groups.count, tiles_m = ceil_div(args.m, Tile::kM), tiles_n = ceil_div(args.n, Tile::kN);
    // A group begins at most one tile more than its rows fill.
    std::int64_t const tiles = (kRows ? std::int64_t{tiles_m} + count + 1 : std::int64_t{tiles_m} * count) * tiles_n;
    constexpr std::int64_t kMaxTiles = 0x7fffffff - 65536;
    if (count > GroupEnds::kMaxGroups || tiles > kMaxTiles) return {StatusCode::not_implementable, 0};
    bool const along_m = args.raster == RasterOrder::along_m;
    return Base::launch(args, kernel, facts, a, b,
                        {args.groups, kRows ? args.m : args.k, args.m, args.n, ceil_div(args.k, Tile::kK), tiles_m, tiles_n,
                         band_width(args.swizzle, along_m ? tiles_n : tiles_m), along_m},
                        static_cast<int>(tiles), 1, kRows ? count : 1, kRows ? 1 : count);
  }
};

}  // namespace cutwheel::gemm
