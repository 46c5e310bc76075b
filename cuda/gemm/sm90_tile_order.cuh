// Which tile is when: the walk of persistent threadblocks through a problem.
#pragma once

#include <cutlass/cutlass.h>

#include <algorithm>

namespace cutwheel::gemm {

// Along one side, in bands of `band` tiles across it.
struct Sm90TileOrder {
  int tiles_m, tiles_n, batch;
  int band;  // at most the tiles across, from band_width: then the tiles of a band are counted in 32 bits
  bool along_m;

  CUTLASS_HOST_DEVICE int count() const { return tiles_m * tiles_n * batch; }

  CUTLASS_DEVICE void at(int index, int& m, int& n, int& batch_index) const {
    int const plane = tiles_m * tiles_n, length = along_m ? tiles_m : tiles_n, width = along_m ? tiles_n : tiles_m;
    batch_index = index / plane;
    index -= batch_index * plane;
    int const first = index / (length * band) * band;
    int const this_band = min(band, width - first);
    index -= first * length;
    int const major = index / this_band, minor = first + index % this_band;
    m = along_m ? major : minor;
    n = along_m ? minor : major;
  }
};

// The swizzle as a width of bands, whatever a table of measurements has asked for.
inline int band_width(int swizzle, int tiles_across) { return std::clamp(swizzle, 1, std::max(tiles_across, 1)); }

// What a tile is made of: where it lies, or a warpgroup's rows of it, and which part of K it takes.
struct Sm90TilePlace {
  int m = 0, n = 0;          // first row and column of D
  int end_m = 0, end_n = 0;  // where the problem's end
  int batch = 0;             // of the operands of the epilogue
  int a_batch = 0, b_batch = 0, d_batch = 0;
  int k = 0, k_tiles = 0;  // first element of K, and how many tiles of it
  int k_end = 0;           // where the elements of K end in the last tile, where others follow in memory; else 0
  int k_begin = 0;         // where they begin in the first tile
  bool is_zero = false;    // no product: zeros are wanted
};

// Where rows and columns of a product lie in D: a row's number is its own, a column's, too.
struct Sm90SameFrame {
  static constexpr bool kAlways = true;
};

// The tiles of a batch of problems of one size.
template <class Tile>
struct Sm90DenseWalk {
  struct Params {
    Sm90TileOrder order;
    int m, n, k_tiles;
  };
  struct Storage {};
  Params const& p;

  CUTLASS_DEVICE Sm90DenseWalk(Params const& params, Storage const&) : p(params) {}
  CUTLASS_DEVICE static void start(Params const&, Storage&) {}

  CUTLASS_DEVICE bool at(int index, Sm90TilePlace& place) const {
    if (index >= p.order.count()) return false;
    p.order.at(index, place.m, place.n, place.batch);
    place.m *= Tile::kM;
    place.n *= Tile::kN;
    place.end_m = p.m;
    place.end_n = p.n;
    place.a_batch = place.b_batch = place.d_batch = place.batch;
    place.k_tiles = p.k_tiles;
    return true;
  }

  CUTLASS_DEVICE static Sm90SameFrame frame(Sm90TilePlace const&) { return {}; }
};

}  // namespace cutwheel::gemm
