// The tile scheduler of convolutions whose K runs over the taps of the filter and the channels of each: fprop and dgrad.
#pragma once

#include <algorithm>
#include <numeric>

#include "sm90/native/load/im2col.cuh"
#include "sm90/native/scheduler/class_shares.cuh"
#include "sm90/native/scheduler/work_tile.cuh"

namespace cutwheel::conv2d {

using gemm::Sm90IdentityCoordinates;
using gemm::Sm90WorkTile;
using gemm::TileRaster;

// A part of the result that is a dense implicit GEMM with taps of its own. fprop has one, the whole result. dgrad behind a
// stride has a residue class for each remainder of row and column: pixels (first_h + i * stride_h, first_w + j * stride_w),
// and of volumes for each one of the slice.
struct ConvResidueClass {
  Im2colGrid grid;
  int m = 0;                      // positions of all images
  int tiles_m = 0, tile_end = 0;  // tile_end: tiles of this class and of those before it
  int k_tiles = 0;                // none: no tap reaches these pixels
  int map = 0;                    // of A
  int taps = 0, taps_w = 0;       // all, those of a row
  int taps_h = 0;                 // rows of a slice
  int tap = 0;                    // the first one, as the filter counts
  Im2colOffset offset;            // of that one
  int first_h = 0, first_w = 0, first_d = 0;
};

// Maps a row of the GEMM, a pixel of a residue class, to its row of D.
struct ResidueClassCoordinates {
  static constexpr bool kAlways = false, kHasMaps = true;
  ConvResidueClass const& residue;
  CUtensorMap const* map;  // of the class's part of D; null if there is none
  int h, w, stride_h, stride_w;
  bool is_volume;
  int const &d, &stride_d;  // read for volumes alone

  CUTLASS_DEVICE bool is_same() const { return stride_h == 1 && stride_w == 1 && (!is_volume || stride_d == 1); }
  CUTLASS_DEVICE int row(int m) const {
    int row, column, image;
    residue.grid.columns(row, column, m);
    residue.grid.rows(image, row, row);
    if (is_volume) {
      int slice;
      residue.grid.slices(image, slice, image);
      image = image * d + residue.first_d + slice * stride_d;
    }
    return (image * h + residue.first_h + row * stride_h) * w + residue.first_w + column * stride_w;
  }
  CUTLASS_DEVICE static int column(int n) { return n; }
  // As the map counts.
  CUTLASS_DEVICE Im2colPixel pixel(int m) const {
    Im2colPixel pixel;
    residue.grid.coordinates(pixel.image, pixel.d, pixel.h, pixel.w, m);
    return pixel;
  }
  CUTLASS_DEVICE int width() const { return residue.grid.columns.divisor; }
};

template <class Tile, Direction direction>
struct Sm90ConvScheduler {
  static constexpr bool kHasResidueClasses = direction == Direction::dgrad;
  static constexpr int kMaxResidueClasses = kHasResidueClasses ? 16 : 1;
  // Residue classes differ by at most one slice, one row and one column of pixels: each of the eight sizes has a tensor
  // map.
  static constexpr int kMaps = kHasResidueClasses ? 8 : 1;
  // As many as a stride of two makes of an image. Where there are more, threads store.
  static constexpr int kStoredClasses = kHasResidueClasses ? 4 : 1;

  struct Params {
    ConvResidueClass classes[kMaxResidueClasses];
    int count;
    int n, tiles_n, swizzle;
    bool along_m;
    int channels;  // of a tap
    // From one tap of a residue class to the next.
    int tap_step_h, tap_step_w, tap_step_d;
    Im2colOffset offset_step;
    int h, w, stride_h, stride_w, d, stride_d;  // of D
    bool is_volume;
    bool has_results;
    CUtensorMap results[kStoredClasses];  // what D has of each class
    Sm90ClassShares shares;
  };
  struct Storage {};
  static constexpr bool kHasEqualTiles = !kHasResidueClasses;
  static constexpr bool kReadsMemory = false;
  static constexpr bool kStoresUnaligned = false;
  // Fills what follows from the classes. Returns the number of tiles, or more than kMaxTiles.
  static std::int64_t count_tiles(Params& params, ConvArgs const& args) {
    params.n = args.n;
    params.tiles_n = ceil_div(args.n, Tile::kN);
    params.along_m = args.raster == RasterOrder::along_m;
    std::int64_t tiles = 0;
    int most_tiles_m = 1;
    for (int i = 0; i < params.count; ++i) {
      ConvResidueClass& residue = params.classes[i];
      residue.tiles_m = ceil_div(residue.m, Tile::kM);
      most_tiles_m = std::max(most_tiles_m, residue.tiles_m);
      tiles += std::int64_t{residue.tiles_m} * params.tiles_n;
      residue.tile_end = static_cast<int>(std::min(tiles, kMaxTiles));
    }
    if constexpr (kHasResidueClasses) {
      int k_tiles[kMaxResidueClasses], of_class[kMaxResidueClasses];
      for (int i = 0; i < params.count; ++i) {
        k_tiles[i] = params.classes[i].k_tiles;
        of_class[i] = params.classes[i].tiles_m * params.tiles_n;
      }
      if (tiles <= kMaxTiles) {
        params.shares.plan(params.count, k_tiles, of_class,
                           static_cast<int>(std::min<std::int64_t>(tiles, args.device->sm_count)));
        // Shares have all tiles of classes with taps, so only the others keep an end of their own.
        int const shared = params.shares.end > 0 ? params.classes[params.shares.classes - 1].tile_end : 0;
        for (int i = 0; i < params.count; ++i) {
          params.classes[i].tile_end = std::max(params.classes[i].tile_end - shared, 0);
        }
      }
    }
    params.swizzle = gemm::swizzle_width(args.swizzle, params.along_m ? params.tiles_n : most_tiles_m);
    return tiles;
  }

  Params const& p;
  int residue = 0;

  CUTLASS_DEVICE Sm90ConvScheduler(Params const& params, Storage const&) : p(params) {}

  CUTLASS_DEVICE bool at(int index, Sm90WorkTile& work) {
    int of = 0;
    if constexpr (kHasResidueClasses) {
      if (index < p.shares.end) {
        p.shares.find(of, index);
        if (of < 0) {  // no row of the first class
          work.m = work.n = work.end_m = work.k_tiles = work.a_batch = 0;
          work.is_zero = true;
          return true;
        }
      } else {
        // The tiles that no share has: of other classes, or all of them.
        index -= p.shares.end;
        if (index >= p.classes[p.count - 1].tile_end) return false;
        // A threadblock's tiles have rising indices: the search goes on from the last one.
        while (index >= p.classes[residue].tile_end) ++residue;
        if (residue > 0) index -= p.classes[residue - 1].tile_end;
        of = residue;
      }
    } else if (index >= p.classes[0].tile_end) {
      return false;
    }
    ConvResidueClass const& own = p.classes[of];
    int unused;
    TileRaster{own.tiles_m, p.tiles_n, 1, p.swizzle, p.along_m}.at(index, work.m, work.n, unused);
    work.m *= Tile::kM;
    work.n *= Tile::kN;
    work.end_m = own.m;
    work.end_n = p.n;
    work.a_batch = of;
    work.k_tiles = own.k_tiles;
    work.is_zero = kHasResidueClasses && own.k_tiles == 0;
    return true;
  }

  CUTLASS_DEVICE auto coordinates(Sm90WorkTile const& work) const {
    if constexpr (kHasResidueClasses) {
      CUtensorMap const* const map = p.has_results ? &p.results[work.a_batch] : nullptr;
      return ResidueClassCoordinates{
          p.classes[work.a_batch], map, p.h, p.w, p.stride_h, p.stride_w, p.is_volume, p.d, p.stride_d};
    } else {
      return Sm90IdentityCoordinates{};
    }
  }
};

// Residue classes of dgrad along one dimension: rows (or columns) with the same remainder modulo the stride share taps.
struct DgradAxis {
  struct ResidueClass {
    int positions = 0;
    int taps = 0, first_tap = 0, offset = 0;  // offset: of the first tap, the others' are smaller
  };
  static constexpr int kMaxResidueClasses = 16;
  ResidueClass classes[kMaxResidueClasses];
  int count = 0;
  int corner = 0, last_offset = 0;
  int tap_step = 1, offset_step = 0;

  // False if there are more classes than kMaxResidueClasses. `extent`: of the input.
  bool plan(int extent, int taps, int pad, int stride, int dilation) {
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

  // Whether the class has one position less than the first; such classes share a tensor map of their own.
  bool is_shorter(int residue) const { return classes[residue].positions != classes[0].positions; }

  Im2colAxis im2col(int extent, bool shorter) const {
    return {extent, corner, classes[0].positions - (shorter ? 1 : 0), 1, last_offset};
  }
};

// Classes of fprop, all but their k-tiles.
template <class Params>
void plan_fprop(Params& params, ConvProblem const& x) {
  params.count = 1;
  params.channels = x.c;
  params.tap_step_d = x.r * x.s;
  params.tap_step_h = x.s;
  params.tap_step_w = 1;
  params.offset_step = {x.dilation_w, x.dilation_h, x.dilation_d};
  params.is_volume = x.is_volume();
  ConvResidueClass& residue = params.classes[0];
  residue.grid = im2col_grid(im2col_axes(x));
  residue.m = x.positions();
  residue.taps = x.taps();
  residue.taps_w = x.s;
  residue.taps_h = x.r;
}

// The sides of dgrad.
struct DgradAxes {
  DgradAxis h, w, d;

  // False if there are more classes than `most`.
  bool plan(ConvProblem const& x, int most) {
    return h.plan(x.h, x.r, x.pad_h, x.stride_h, x.dilation_h) && w.plan(x.w, x.s, x.pad_w, x.stride_w, x.dilation_w) &&
           d.plan(x.d, x.t, x.pad_d, x.stride_d, x.dilation_d) && h.count * w.count * d.count <= most;
  }

  // Where positions of the class begin in the gradient of the output.
  Im2colAxes im2col(ConvProblem const& x, ConvResidueClass const& of) const {
    return {h.im2col(x.p, h.is_shorter(of.first_h)), w.im2col(x.q, w.is_shorter(of.first_w)),
            d.im2col(x.o, d.is_shorter(of.first_d)), x.is_volume()};
  }
  // Classes with the same number have the same positions.
  int map(ConvResidueClass const& of) const {
    return 4 * d.is_shorter(of.first_d) + 2 * h.is_shorter(of.first_h) + w.is_shorter(of.first_w);
  }
};

// Classes of dgrad, all but their k-tiles and maps. False if there are more than `most`.
template <class Params>
bool plan_dgrad(Params& params, ConvProblem const& x, DgradAxes& axes, int most) {
  if (!axes.plan(x, most)) return false;
  auto const& [h, w, d] = axes;
  params.count = d.count * h.count * w.count;
  params.channels = x.k_out;
  params.tap_step_d = d.tap_step * x.r * x.s;
  params.tap_step_h = h.tap_step * x.s;
  params.tap_step_w = w.tap_step;
  params.offset_step = {w.offset_step, h.offset_step, d.offset_step};
  params.is_volume = x.is_volume();
  params.h = x.h;
  params.w = x.w;
  params.d = x.d;
  params.stride_h = x.stride_h;
  params.stride_w = x.stride_w;
  params.stride_d = x.stride_d;
  for (int i = 0; i < params.count; ++i) {
    ConvResidueClass& residue = params.classes[i];
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

// Classes with the most taps first, so that short tiles fill the last wave.
template <class Params>
void sort_classes(Params& params) {
  std::sort(params.classes, params.classes + params.count,
            [](ConvResidueClass const& one, ConvResidueClass const& other) { return one.k_tiles > other.k_tiles; });
}

}  // namespace cutwheel::conv2d
