// The tile scheduler of grouped GEMMs. Where groups end only the device knows: every threadblock reads the ends once.
#pragma once

#include "core/group_ends.cuh"
#include "sm90/native/scheduler/work_tile.cuh"

namespace cutwheel::gemm {

// `step_of_k`: TMA loads begin at multiples of it.
template <class Tile, Grouping grouping, int step_of_k>
struct Sm90GroupedScheduler {
  struct Params {
    GroupArgs groups;
    int total;  // rows, or elements of K, of all groups
    int m, n, k_tiles;
    int tiles_m, tiles_n;  // tiles_m: of a group, where groups share K
    int swizzle;
    bool along_m;
  };
  using Storage = GroupEnds::Storage;
  static constexpr bool kHasEqualTiles = false;
  static constexpr bool kReadsMemory = true;
  static constexpr bool kStoresUnaligned = false;
  Params const& p;
  Storage const& storage;
  int group = 0;

  CUTLASS_DEVICE Sm90GroupedScheduler(Params const& params, Storage const& shared) : p(params), storage(shared) {}

  CUTLASS_DEVICE static void start(Params const& p, Storage& storage) {
    GroupEnds::load(storage, p.groups, p.total, grouping == Grouping::rows ? Tile::kM : 0, p.tiles_n,
                    static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x));
  }

  CUTLASS_DEVICE bool at(int index, Sm90WorkTile& work) {
    work = {};
    work.end_n = p.n;
    int tile_m, tile_n, unused;
    if constexpr (grouping == Grouping::rows) {
      // Behind the groups there may be rows of none.
      if (index >= storage.tile_end[p.groups.count]) return false;
      group = GroupEnds::find(storage, p.groups.count, index, group);
      int const first = group > 0 ? storage.end[group - 1] : 0;
      int const end = storage.end[group];
      int const within = index - (group > 0 ? storage.tile_end[group - 1] : 0);
      TileRaster const order{ceil_div(end - first, Tile::kM), p.tiles_n, 1, p.swizzle, p.along_m};
      order.at(within, tile_m, tile_n, unused);
      work.m = first + tile_m * Tile::kM;
      work.end_m = end;
      work.is_zero = group == p.groups.count;
      work.k_tiles = work.is_zero ? 0 : p.k_tiles;
      work.batch = work.b_batch = group;
    } else {
      TileRaster const order{p.tiles_m, p.tiles_n, p.groups.count, p.swizzle, p.along_m};
      if (index >= order.count()) return false;
      order.at(index, tile_m, tile_n, group);
      int const first = group > 0 ? storage.end[group - 1] : 0, length = storage.end[group] - first;
      work.m = tile_m * Tile::kM;
      work.end_m = p.m;
      work.k_begin = length > 0 ? first % step_of_k : 0;
      work.k = first - work.k_begin;
      work.k_tiles = ceil_div(work.k_begin + length, Tile::kK);
      work.k_end = (work.k_begin + length) % Tile::kK;
      work.batch = work.d_batch = group;
    }
    work.n = tile_n * Tile::kN;
    return true;
  }

  CUTLASS_DEVICE static Sm90IdentityCoordinates coordinates(Sm90WorkTile const&) { return {}; }
};

}  // namespace cutwheel::gemm
