#include "sm90/native/scheduler/dense.cuh"

namespace cutwheel::gemm {

Sm90DenseTiles dense_tiles(GemmArgs const& args, int tile_m, int tile_n, int tile_k, bool swap_ab) {
  int const m = swap_ab ? args.n : args.m, n = swap_ab ? args.m : args.n;  // of the kernel
  int const tiles_m = ceil_div(m, tile_m), tiles_n = ceil_div(n, tile_n), k_tiles = ceil_div(args.k, tile_k);
  bool const along_m = (args.raster == RasterOrder::along_m) != swap_ab;
  int const slice = args.splits > 1 ? ceil_div(k_tiles, args.splits) : 0;
  int const batch = slice > 0 ? ceil_div(k_tiles, slice) : args.batch;
  TileRaster const order{tiles_m, tiles_n, batch, swizzle_width(args.swizzle, along_m ? tiles_n : tiles_m), along_m};
  return {PreparedTileRaster::of(order), m, n, k_tiles, slice};
}

}  // namespace cutwheel::gemm
