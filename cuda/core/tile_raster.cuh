// The raster order of tiles, and its swizzle.
#pragma once

#include <cutlass/cutlass.h>
#include <cutlass/fast_math.h>

#include <algorithm>

namespace cutwheel::gemm {

// Raster order runs along one dimension, `swizzle` tiles wide across the other, so that operands are reused in L2.
struct TileRaster {
  int tiles_m, tiles_n, batch;
  int swizzle;  // from swizzle_width: at most the tiles across, so that length * swizzle fits into 32 bits
  bool along_m;

  CUTLASS_HOST_DEVICE int count() const { return tiles_m * tiles_n * batch; }

  CUTLASS_DEVICE void at(int index, int& m, int& n, int& batch_index) const {
    int const plane = tiles_m * tiles_n, length = along_m ? tiles_m : tiles_n, width = along_m ? tiles_n : tiles_m;
    batch_index = index / plane;
    index -= batch_index * plane;
    int const first = index / (length * swizzle) * swizzle;
    int const width_here = std::min(swizzle, width - first);
    index -= first * length;
    int const major = index / width_here, minor = first + index % width_here;
    m = along_m ? major : minor;
    n = along_m ? minor : major;
  }
};

// The same with divisions prepared by the host: nobody multiplies while a threadblock looks for its next tile.
struct PreparedTileRaster {
  TileRaster order;
  cutlass::FastDivmod plane, band, width, last_width;  // of a band of `swizzle` tiles, and of the last band

  static PreparedTileRaster of(TileRaster const& order) {
    int const length = order.along_m ? order.tiles_m : order.tiles_n,
              across = order.along_m ? order.tiles_n : order.tiles_m;
    int const last = across % order.swizzle;
    auto const divisor = [](int x) { return cutlass::FastDivmod(std::max(x, 1)); };
    return {order, divisor(order.tiles_m * order.tiles_n), divisor(length * order.swizzle), divisor(order.swizzle),
            divisor(last > 0 ? last : order.swizzle)};
  }

  CUTLASS_DEVICE void at(int index, int& m, int& n, int& batch_index) const {
    int band_index, major, minor;
    plane(batch_index, index, index);
    band(band_index, index, index);
    int const first = band_index * order.swizzle, across = order.along_m ? order.tiles_n : order.tiles_m;
    if (first + order.swizzle > across) {
      last_width(major, minor, index);
    } else {
      width(major, minor, index);
    }
    m = order.along_m ? major : first + minor;
    n = order.along_m ? first + minor : major;
  }
};

// Clamps a requested swizzle, which may come from a table that a user loads, to the tiles that there are.
inline int swizzle_width(int swizzle, int tiles_across) { return std::clamp(swizzle, 1, std::max(tiles_across, 1)); }

}  // namespace cutwheel::gemm
