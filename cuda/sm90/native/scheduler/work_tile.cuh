// Work tiles. A tile scheduler hands them to persistent threadblocks:
//   Params, Storage       arguments, and what it keeps in shared memory
//   kReadsMemory          whether it reads what an earlier kernel may have written
//   kHasEqualTiles        whether all tiles have as many k-tiles
//   kStoresUnaligned      whether rows of D may begin anywhere, else on 16 bytes
//   start(params, storage)  of one that does: by all threads, which are synchronised after it
//   at(index, work)       the index-th work tile; false when there is none
//   coordinates(work)     where the GEMM's rows and columns lie in D
#pragma once

#include "core/tile_raster.cuh"

namespace cutwheel::gemm {

// One tile of D, or a warpgroup's rows of it, and its part of K.
struct Sm90WorkTile {
  int m = 0, n = 0;          // first row and column of D
  int end_m = 0, end_n = 0;  // end of the problem's rows and columns
  int batch = 0;             // index of the epilogue operands
  int a_batch = 0, b_batch = 0, d_batch = 0;
  int k = 0, k_tiles = 0;  // first element of K, and the number of k-tiles
  int k_end = 0;           // end of K within the last k-tile if other elements follow it in memory; else 0
  int k_begin = 0;         // start of K within the first k-tile
  bool is_zero = false;    // K is empty: D is zeros
};

// Rows and columns of the GEMM are those of D.
struct Sm90IdentityCoordinates {
  static constexpr bool kAlways = true, kHasMaps = false;
};

}  // namespace cutwheel::gemm
