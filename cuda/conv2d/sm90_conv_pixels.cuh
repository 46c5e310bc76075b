// Convolutions whose K runs over pixels: the gradient of the filter.
#pragma once

#include "conv2d/sm90_im2col.cuh"
#include "gemm/sm90_persistent_mma.cuh"

namespace cutwheel::conv2d {

using gemm::Sm90TileOrder;
using gemm::Sm90TilePlace;

// Columns of the product come in units of 64 channels of one tap, which TMA loads at once. A tap whose channels are no
// multiple of 64 has columns at its end that D has not.
struct FilterColumns {
  static constexpr int kUnit = 64;
  cutlass::FastDivmod units;  // of a tap
  int channels, taps;

  static FilterColumns of(int channels, int taps) {
    return {cutlass::FastDivmod(ceil_div(channels, kUnit)), channels, taps};
  }
  CUTLASS_HOST_DEVICE int count() const { return taps * units.divisor * kUnit; }
};

struct FilterFrame {
  static constexpr bool kAlways = false;
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

// The tiles of each split follow those of the one before: those that run together read the same pixels.
template <class Tile>
struct Sm90PixelWalk {
  struct Params {
    Sm90TileOrder order;  // its batch: the splits
    int m, k_tiles;       // k_tiles: of all splits
    FilterColumns columns;
    Im2colGrid grid;
    cutlass::FastDivmod taps_w;  // taps of a row
    int dilation_h, dilation_w;
  };
  struct Storage {};
  Params const& p;

  CUTLASS_DEVICE Sm90PixelWalk(Params const& params, Storage const&) : p(params) {}
  CUTLASS_DEVICE static void start(Params const&, Storage&) {}

  CUTLASS_DEVICE bool at(int index, Sm90TilePlace& place) const {
    if (index >= p.order.count()) return false;
    p.order.at(index, place.m, place.n, place.d_batch);
    place.m *= Tile::kM;
    place.n *= Tile::kN;
    place.end_m = p.m;
    place.end_n = p.columns.count();
    int const each = p.k_tiles / p.order.batch, more = p.k_tiles - each * p.order.batch;
    place.k = (each * place.d_batch + min(place.d_batch, more)) * Tile::kK;
    place.k_tiles = each + (place.d_batch < more ? 1 : 0);
    place.is_zero = place.k_tiles == 0;
    return true;
  }

  CUTLASS_DEVICE FilterFrame frame(Sm90TilePlace const&) const { return {p.columns}; }
};

// A: the gradient of the output, a matrix. B: pixels of the input, gathered for each unit of columns with its own tap.
template <class OperandA, class OperandB, class Tile>
struct Sm90PixelLoader {
  using Walk = Sm90PixelWalk<Tile>;
  static constexpr int kUnits = Tile::kN / FilterColumns::kUnit;
  static_assert(OperandB::kBoxes == kUnits);
  static constexpr std::uint32_t kUnitBytes = OperandB::kBytes / kUnits;
  struct Params {
    CUtensorMap a, b;
  };
  Params const& p;
  typename Walk::Params const& problem;
  int units = 0;  // of this tile that there are: the others are not loaded
  int channel[kUnits] = {};
  Im2colOffset offset[kUnits];

  CUTLASS_DEVICE Sm90PixelLoader(Params const& params, Walk const& walk) : p(params), problem(walk.p) {}

  CUTLASS_DEVICE static void prefetch(Params const& p) {
    for (CUtensorMap const* map : {&p.a, &p.b}) {
      cute::prefetch_tma_descriptor(reinterpret_cast<cute::TmaDescriptor const*>(map));
    }
  }

  CUTLASS_DEVICE void begin(Sm90TilePlace const& place) {
    int const first = place.n / FilterColumns::kUnit;
    units = min(place.end_n / FilterColumns::kUnit - first, kUnits);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kUnits; ++i) {
      int tap, unit, row, column;
      problem.columns.units(tap, unit, first + i);
      problem.taps_w(row, column, tap);
      channel[i] = unit * FilterColumns::kUnit;
      offset[i] = {column * problem.dilation_w, row * problem.dilation_h};
    }
  }

  CUTLASS_DEVICE std::uint32_t bytes() const { return OperandA::kBytes + static_cast<std::uint32_t>(units) * kUnitBytes; }

  template <class A, class B>
  CUTLASS_DEVICE void load(std::uint64_t* barrier, A* stage_a, B* stage_b, Sm90TilePlace const& place, int tile) const {
    int const position = place.k + tile * Tile::kK;
    OperandA::load(p.a, barrier, stage_a, place.m, position, 0);
    Im2colPixel const pixel = problem.grid.at(position);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kUnits; ++i) {
      if (i < units) load_im2col(p.b, barrier, stage_b + i * OperandB::kBoxElements, channel[i], pixel, offset[i]);
    }
  }
};

}  // namespace cutwheel::conv2d
