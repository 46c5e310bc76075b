#include "sm90/native/scheduler/conv.cuh"

#include <algorithm>
#include <numeric>

namespace cutwheel::conv2d {

template <bool has_residue_classes>
std::int64_t Sm90ConvTiles<has_residue_classes>::count_tiles(ConvArgs const& args, int tile_m, int tile_n) {
  n = args.n;
  group_n = args.n / args.groups;
  tiles_n = ceil_div(args.n, tile_n);
  along_m = args.raster == RasterOrder::along_m;
  std::int64_t tiles = 0;
  int most_tiles_m = 1;
  for (int i = 0; i < count; ++i) {
    ConvResidueClass& residue = classes[i];
    residue.tiles_m = ceil_div(residue.m, tile_m);
    most_tiles_m = std::max(most_tiles_m, residue.tiles_m);
    tiles += std::int64_t{residue.tiles_m} * tiles_n;
    residue.tile_end = static_cast<int>(std::min(tiles, kMaxTiles));
  }
  if constexpr (has_residue_classes) {
    int k_tiles[kMaxResidueClasses], of_class[kMaxResidueClasses];
    for (int i = 0; i < count; ++i) {
      k_tiles[i] = classes[i].k_tiles;
      of_class[i] = classes[i].tiles_m * tiles_n;
    }
    if (tiles <= kMaxTiles) {
      shares.plan(count, k_tiles, of_class, static_cast<int>(std::min<std::int64_t>(tiles, args.device->sm_count)));
      // Shares have all tiles of their classes, so only the others keep an end of their own.
      int const shared = shares.end > 0 ? classes[shares.classes - 1].tile_end : 0;
      for (int i = 0; i < count; ++i) {
        classes[i].tile_end = std::max(classes[i].tile_end - shared, 0);
      }
    }
  }
  swizzle = gemm::swizzle_width(args.swizzle, along_m ? tiles_n : most_tiles_m);
  return tiles;
}

template struct Sm90ConvTiles<false>;
template struct Sm90ConvTiles<true>;

bool DgradAxis::plan(int extent, int taps, int pad, int stride, int dilation) {
  count = std::min(stride, extent);
  if (count > kMaxResidueClasses) return false;
  int const common = std::gcd(stride, dilation);
  tap_step = stride / common;
  offset_step = -(dilation / common);
  // Input row x is reached from row (x + pad - tap * dilation) / stride of the output, where that is a whole number.
  bool is_first = true;
  for (int i = 0; i < count; ++i) {
    ResidueClass& residue = classes[i];
    residue = {};
    residue.positions = ceil_div(extent - i, stride);
    for (int tap = 0; tap < taps; ++tap) {
      int const at = i + pad - tap * dilation;
      if (at % stride != 0) continue;
      if (residue.taps++ == 0) {
        residue.first_tap = tap;
        residue.offset = at / stride;
      }
      corner = is_first ? at / stride : std::min(corner, at / stride);
      is_first = false;
    }
  }
  for (int i = 0; i < count; ++i) {
    if (classes[i].taps == 0) continue;
    classes[i].offset -= corner;
    last_offset = std::max(last_offset, classes[i].offset);
  }
  return true;
}

Im2colAxes DgradAxes::im2col(ConvProblem const& x, ConvResidueClass const& of) const {
  return {h.im2col(x.p, h.is_shorter(of.first_h)), w.im2col(x.q, w.is_shorter(of.first_w)),
          d.im2col(x.o, d.is_shorter(of.first_d)), x.is_volume()};
}

int DgradAxes::map(ConvResidueClass const& of) const {
  return 4 * d.is_shorter(of.first_d) + 2 * h.is_shorter(of.first_h) + w.is_shorter(of.first_w);
}

void plan_fprop(Sm90FpropTiles& tiles, ConvProblem const& x, int groups) {
  tiles.count = 1;
  tiles.channels = x.c / groups;
  tiles.tap_step_d = x.r * x.s;
  tiles.tap_step_h = x.s;
  tiles.tap_step_w = 1;
  tiles.offset_step = {x.dilation_w, x.dilation_h, x.dilation_d};
  tiles.is_volume = x.is_volume();
  ConvResidueClass& residue = tiles.classes[0];
  residue.grid = im2col_grid(im2col_axes(x));
  residue.m = x.positions();
  residue.taps = x.taps();
  residue.taps_w = x.s;
  residue.taps_h = x.r;
}

bool plan_dgrad(Sm90DgradTiles& tiles, ConvProblem const& x, DgradAxes& axes, int groups) {
  auto& [h, w, d] = axes;
  if (!h.plan(x.h, x.r, x.pad_h, x.stride_h, x.dilation_h) || !w.plan(x.w, x.s, x.pad_w, x.stride_w, x.dilation_w) ||
      !d.plan(x.d, x.t, x.pad_d, x.stride_d, x.dilation_d) ||
      h.count * w.count * d.count > Sm90DgradTiles::kMaxResidueClasses) {
    return false;
  }
  tiles.count = d.count * h.count * w.count;
  tiles.channels = x.k_out / groups;
  tiles.tap_step_d = d.tap_step * x.r * x.s;
  tiles.tap_step_h = h.tap_step * x.s;
  tiles.tap_step_w = w.tap_step;
  tiles.offset_step = {w.offset_step, h.offset_step, d.offset_step};
  tiles.is_volume = x.is_volume();
  tiles.h = x.h;
  tiles.w = x.w;
  tiles.d = x.d;
  tiles.stride_h = x.stride_h;
  tiles.stride_w = x.stride_w;
  tiles.stride_d = x.stride_d;
  for (int i = 0; i < tiles.count; ++i) {
    ConvResidueClass& residue = tiles.classes[i];
    residue.first_d = i / (h.count * w.count);
    residue.first_h = i / w.count % h.count;
    residue.first_w = i % w.count;
    DgradAxis::ResidueClass const &of_h = h.classes[residue.first_h], &of_w = w.classes[residue.first_w],
                                  &of_d = d.classes[residue.first_d];
    residue.grid = im2col_grid(axes.im2col(x, residue));
    residue.m = x.images * of_d.positions * of_h.positions * of_w.positions;
    residue.taps = of_d.taps * of_h.taps * of_w.taps;
    residue.taps_w = of_w.taps;
    residue.taps_h = of_h.taps;
    residue.tap = (of_d.first_tap * x.r + of_h.first_tap) * x.s + of_w.first_tap;
    residue.offset = {of_w.offset, of_h.offset, of_d.offset};
  }
  return true;
}

bool encode_dgrad_pixels(Sm90DgradTiles& tiles, ConvArgs const& args, DgradAxes const& sides, DType type, int channel_box,
                         int tile_m, int tile_k, bool has_bias, CUtensorMap* maps, CUtensorMap& tail, int& tail_rows) {
  ConvProblem const& x = args.conv;
  bool has_map[Sm90DgradTiles::kMaps] = {};
  for (int i = 0; i < tiles.count; ++i) {
    ConvResidueClass& residue = tiles.classes[i];
    residue.map = sides.map(residue);
    residue.k_tiles = residue.taps * ceil_div(tiles.channels, tile_k);
    // Without a tap there is one tile of zeros, for the epilogue.
    if (has_bias && residue.taps == 0) residue.k_tiles = 1;
    Im2colAxes const axes = sides.im2col(x, residue);
    if (!axes.is_encodable()) {
      take_tensor_map_error();
      return false;
    }
    auto const encode = [&](CUtensorMap& map, int pixels) {
      encode_im2col_map(map, type, args.a.data, args.y_strides, args.y_depth_stride, x.images, x.k_out, axes, channel_box,
                        pixels, channel_box * element_bytes(type));
    };
    if (!has_map[residue.map]) encode(maps[residue.map], tile_m);
    has_map[residue.map] = true;
    if (tiles.count == 1 && args.m % tile_m) {
      tail_rows = args.m % tile_m;
      encode(tail, tail_rows);
    }
  }
  return true;
}

void encode_results(Sm90DgradTiles& tiles, ConvArgs const& args, DgradAxes const& sides, DType d,
                    gemm::StoredBox const& box) {
  ConvProblem const& x = args.conv;
  tiles.has_results =
      tiles.count > 1 && tiles.count <= Sm90DgradTiles::kStoredClasses && gemm::is_tma_storable(args, element_bytes(d));
  for (int i = 0; tiles.has_results && i < tiles.count; ++i) {
    ConvResidueClass const& residue = tiles.classes[i];
    std::int64_t const pixel = args.d_leading, row = pixel * x.w, slice = row * x.h;
    std::int64_t const first = residue.first_d * slice + residue.first_h * row + residue.first_w * pixel;
    int const extents[] = {sides.w.classes[residue.first_w].positions, sides.h.classes[residue.first_h].positions,
                           sides.d.classes[residue.first_d].positions, x.images};
    std::int64_t const strides[] = {pixel * x.stride_w, row * x.stride_h, slice * x.stride_d, slice * x.d};
    gemm::encode_image_map(tiles.results[i], d, static_cast<std::uint8_t*>(args.d) + first * element_bytes(d), args.n,
                           extents, strides, box);
  }
}

void sort_classes(Sm90DgradTiles& tiles) {
  std::sort(tiles.classes, tiles.classes + tiles.count,
            [](ConvResidueClass const& one, ConvResidueClass const& other) { return one.k_tiles > other.k_tiles; });
}

}  // namespace cutwheel::conv2d
