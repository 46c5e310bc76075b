#include "sm90/native/scheduler/wgrad.cuh"

namespace cutwheel::conv2d {

template <class Columns>
std::int64_t Sm90WgradTiles<Columns>::plan(ConvArgs const& args, int tile_m, int tile_n, int tile_k, int splits) {
  ConvProblem const& x = args.conv;
  int const tiles_m = ceil_div(args.m, tile_m), tiles_n = ceil_div(columns.count(), tile_n);
  bool const along_m = args.raster == RasterOrder::along_m;
  order = {tiles_m, tiles_n, splits, gemm::swizzle_width(args.swizzle, along_m ? tiles_n : tiles_m), along_m};
  m = args.m;
  group_m = args.m / args.groups;
  k_tiles = ceil_div(args.k, tile_k);
  grid = im2col_grid(im2col_axes(x));
  taps_w = cutlass::FastDivmod(x.s);
  taps_h = cutlass::FastDivmod(x.r);
  dilation_h = x.dilation_h;
  dilation_w = x.dilation_w;
  dilation_d = x.dilation_d;
  is_volume = x.is_volume();
  return std::int64_t{tiles_m} * tiles_n * splits;
}

template struct Sm90WgradTiles<FilterColumns>;
template struct Sm90WgradTiles<PackedColumns>;

gemm::GemmArgs args_of_splits(ConvArgs const& args, int splits) {
  gemm::GemmArgs result = args;
  if (splits > 1) {
    result.d = args.workspace;
    result.d_leading = args.n;
    result.d_batch_stride = std::int64_t{args.m} * args.n;
  }
  return result;
}

bool is_matrix(ConvArgs const& args) {
  std::int64_t const pitch = args.y_strides[2], slice = args.y_strides[1] * args.conv.p;
  bool const are_slices = !args.conv.is_volume() || args.y_depth_stride == slice;
  return args.y_strides[1] == pitch * args.conv.q && are_slices && args.y_strides[0] == slice * args.conv.o;
}

}  // namespace cutwheel::conv2d
