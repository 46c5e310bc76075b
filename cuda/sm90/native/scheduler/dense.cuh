// The tile scheduler of dense GEMMs: the tiles of a batch of problems of one size, or of the slices of K of one problem.
#pragma once

#include "core/args/gemm.h"
#include "sm90/native/scheduler/work_tile.cuh"

namespace cutwheel::gemm {

struct Sm90DenseTiles {
  PreparedTileRaster raster;
  int m, n, k_tiles;
  // k-tiles of each slice but the last, which has the rest; the raster's batches are slices then. 0: they are problems.
  int slice = 0;
};

// The tiles of a kernel whose clusters take tile_m x tile_n x tile_k each; with `swap_ab` it computes D transposed.
Sm90DenseTiles dense_tiles(GemmArgs const& args, int tile_m, int tile_n, int tile_k, bool swap_ab);

template <class Tile, bool takes_slices>
struct Sm90DenseScheduler {
  using Params = Sm90DenseTiles;
  struct Storage {};
  static constexpr bool kHasEqualTiles = !takes_slices;
  static constexpr bool kReadsMemory = false;
  static constexpr bool kStoresUnaligned = true;
  Params const& p;

  CUTLASS_DEVICE Sm90DenseScheduler(Params const& params, Storage const&) : p(params) {}

  CUTLASS_DEVICE bool at(int index, Sm90WorkTile& work) const {
    if (index >= p.raster.order.count()) return false;
    p.raster.at(index, work.m, work.n, work.batch);
    work.m *= Tile::kM;
    work.n *= Tile::kN;
    work.end_m = p.m;
    work.end_n = p.n;
    work.a_batch = work.b_batch = work.d_batch = work.batch;
    work.k_tiles = p.k_tiles;
    if (takes_slices && p.slice > 0) {
      int const first = work.batch * p.slice;
      work.k = first * Tile::kK;
      work.k_tiles = std::min(p.slice, p.k_tiles - first);
      work.a_batch = work.b_batch = work.batch = 0;
    }
    return true;
  }

  CUTLASS_DEVICE static Sm90IdentityCoordinates coordinates(Sm90WorkTile const&) { return {}; }
};

}  // namespace cutwheel::gemm
