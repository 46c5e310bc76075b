// Which tile is when: the walk of persistent threadblocks through a problem.
#pragma once

#include <cutlass/cutlass.h>

namespace cutwheel::gemm {

// Along one side, in bands of `band` tiles across it.
struct Sm90TileOrder {
  int tiles_m, tiles_n, batch;
  int band;
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

// Where a tile, or a warpgroup's rows of it, lies in the problem, and where the problem's rows and columns end.
struct Sm90TilePlace {
  int m = 0, n = 0, batch = 0;  // first row and column
  int end_m = 0, end_n = 0;
};

}  // namespace cutwheel::gemm
