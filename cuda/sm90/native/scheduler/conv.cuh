// The tile scheduler of convolutions whose K runs over the taps of the filter and the channels of each: fprop and dgrad.
#pragma once

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

// The tiles of a launch: of fprop, or of dgrad, which has residue classes.
template <bool has_residue_classes>
struct Sm90ConvTiles {
  static constexpr int kMaxResidueClasses = has_residue_classes ? 16 : 1;
  // Residue classes differ by at most one slice, one row and one column of pixels: each of the eight sizes has a tensor
  // map.
  static constexpr int kMaps = has_residue_classes ? 8 : 1;
  // As many as a stride of two makes of an image. Where there are more, threads store.
  static constexpr int kStoredClasses = has_residue_classes ? 4 : 1;

  ConvResidueClass classes[kMaxResidueClasses];
  int count;
  int n, tiles_n, swizzle;
  bool along_m;
  int channels;  // of a tap, in a group
  int group_n;   // columns of a group: all of them but in convolutions of groups, where whole tiles are
  // From one tap of a residue class to the next.
  int tap_step_h, tap_step_w, tap_step_d;
  Im2colOffset offset_step;
  int h, w, stride_h, stride_w, d, stride_d;  // of D
  bool is_volume;
  bool has_results;
  CUtensorMap results[kStoredClasses];  // what D has of each class
  Sm90ClassShares shares;

  // Fills what follows from the classes. Returns the number of tiles, or more than kMaxTiles.
  std::int64_t count_tiles(ConvArgs const& args, int tile_m, int tile_n);
};
using Sm90FpropTiles = Sm90ConvTiles<false>;
using Sm90DgradTiles = Sm90ConvTiles<true>;

template <class Tile, Direction direction>
struct Sm90ConvScheduler {
  static constexpr bool kHasResidueClasses = direction == Direction::dgrad;
  using Params = Sm90ConvTiles<kHasResidueClasses>;
  struct Storage {};
  static constexpr bool kHasEqualTiles = !kHasResidueClasses;
  static constexpr bool kReadsMemory = false;
  static constexpr bool kStoresUnaligned = false;

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
  bool plan(int extent, int taps, int pad, int stride, int dilation);

  // Whether the class has one position less than the first; such classes share a tensor map of their own.
  bool is_shorter(int residue) const { return classes[residue].positions != classes[0].positions; }

  Im2colAxis im2col(int extent, bool shorter) const {
    return {extent, corner, classes[0].positions - (shorter ? 1 : 0), 1, last_offset};
  }
};

// The sides of dgrad.
struct DgradAxes {
  DgradAxis h, w, d;

  // Where positions of the class begin in the gradient of the output.
  Im2colAxes im2col(ConvProblem const& x, ConvResidueClass const& of) const;
  // Classes with the same number have the same positions.
  int map(ConvResidueClass const& of) const;
};

// Classes, all but their k-tiles, and in dgrad their maps. False if there are more than tiles have room for.
void plan_fprop(Sm90FpropTiles& tiles, ConvProblem const& x, int groups = 1);
bool plan_dgrad(Sm90DgradTiles& tiles, ConvProblem const& x, DgradAxes& axes, int groups = 1);

// The k-tiles of each class, and its pixels: `maps` by map(), and where the last tile of the only class has a map of its
// own, `tail` with `tail_rows`. `has_bias`: a class that no tap reaches is not zeros. False if the bit fields of a map are
// too small.
bool encode_dgrad_pixels(Sm90DgradTiles& tiles, ConvArgs const& args, DgradAxes const& sides, DType type, int channel_box,
                         int tile_m, int tile_k, bool has_bias, CUtensorMap* maps, CUtensorMap& tail, int& tail_rows);

// Behind a stride a class has every so many pixels of D. `box`: what a copy stores.
void encode_results(Sm90DgradTiles& tiles, ConvArgs const& args, DgradAxes const& sides, DType d,
                    gemm::StoredBox const& box);

// Classes with the most taps first, so that short tiles fill the last wave.
void sort_classes(Sm90DgradTiles& tiles);

}  // namespace cutwheel::conv2d
