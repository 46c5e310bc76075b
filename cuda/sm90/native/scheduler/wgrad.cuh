// The tile scheduler of convolutions whose K runs over pixels: wgrad.
#pragma once

#include "sm90/native/load/im2col.cuh"
#include "sm90/native/scheduler/work_tile.cuh"

namespace cutwheel::conv2d {

using gemm::Sm90WorkTile;
using gemm::TileRaster;

// Columns of the GEMM come in units of 64 channels of one tap, which one TMA copy loads. A tap whose channels are not a
// multiple of 64 ends in columns that D does not have.
struct FilterColumns {
  static constexpr int kUnit = 64;
  cutlass::FastDivmod units;  // of a tap
  int channels, taps;

  static FilterColumns of(int channels, int taps) {
    return {cutlass::FastDivmod(ceil_div(channels, kUnit)), channels, taps};
  }
  CUTLASS_HOST_DEVICE int count() const { return taps * units.divisor * kUnit; }
  CUTLASS_DEVICE static auto coordinates(FilterColumns const& columns);
};

struct WgradCoordinates {
  static constexpr bool kAlways = false, kHasMaps = false;
  FilterColumns const& columns;

  CUTLASS_DEVICE bool is_same() const { return columns.channels % FilterColumns::kUnit == 0; }
  CUTLASS_DEVICE static int row(int m) { return m; }
  CUTLASS_DEVICE int column(int n) const {
    int tap, unit;
    columns.units(tap, unit, n / FilterColumns::kUnit);
    int const channel = unit * FilterColumns::kUnit + n % FilterColumns::kUnit;
    return channel < columns.channels ? tap * columns.channels + channel : -1;
  }
};

CUTLASS_DEVICE auto FilterColumns::coordinates(FilterColumns const& columns) { return WgradCoordinates{columns}; }

// Columns as D has them: channels of a tap, then the next tap.
struct PackedColumns {
  int columns;

  CUTLASS_HOST_DEVICE int count() const { return columns; }
  CUTLASS_DEVICE static auto coordinates(PackedColumns const&) { return gemm::Sm90IdentityCoordinates{}; }
};

template <class Columns>
struct Sm90WgradTiles {
  TileRaster order;  // its batch: the splits
  int m, k_tiles;    // k_tiles: of all splits
  int group_m;       // rows of a group: all of them but in convolutions of groups, where whole tiles are
  Columns columns;
  Im2colGrid grid;
  cutlass::FastDivmod taps_w, taps_h;  // taps of a row, rows of a slice
  int dilation_h, dilation_w, dilation_d;
  bool is_volume;

  // Fills all but the columns, which are there. Returns the number of tiles.
  std::int64_t plan(ConvArgs const& args, int tile_m, int tile_n, int tile_k, int splits);
};

// Tiles of one split are consecutive, so that concurrent threadblocks read the same pixels.
template <class Tile, class Columns = FilterColumns>
struct Sm90WgradScheduler {
  using Params = Sm90WgradTiles<Columns>;
  struct Storage {};
  static constexpr bool kHasEqualTiles = false;
  static constexpr bool kReadsMemory = false;
  static constexpr bool kStoresUnaligned = false;
  Params const& p;

  CUTLASS_DEVICE Sm90WgradScheduler(Params const& params, Storage const&) : p(params) {}

  CUTLASS_DEVICE bool at(int index, Sm90WorkTile& work) const {
    if (index >= p.order.count()) return false;
    p.order.at(index, work.m, work.n, work.d_batch);
    work.m *= Tile::kM;
    work.n *= Tile::kN;
    work.end_m = p.m;
    work.end_n = p.columns.count();
    int const each = p.k_tiles / p.order.batch, more = p.k_tiles - each * p.order.batch;
    work.k = (each * work.d_batch + std::min(work.d_batch, more)) * Tile::kK;
    work.k_tiles = each + (work.d_batch < more ? 1 : 0);
    work.is_zero = work.k_tiles == 0;
    return true;
  }

  CUTLASS_DEVICE auto coordinates(Sm90WorkTile const&) const { return Columns::coordinates(p.columns); }
};

// The arguments of the launch: with more than one split D is the workspace.
gemm::GemmArgs args_of_splits(ConvArgs const& args, int splits);

// Whether all pixels of the output's gradient are the rows of one matrix.
bool is_matrix(ConvArgs const& args);

}  // namespace cutwheel::conv2d
