// Convolutions whose K runs over the taps of the filter and the channels of each: the output, and the gradient of the
// input.
#pragma once

#include <algorithm>
#include <numeric>

#include "conv2d/sm90_im2col.cuh"
#include "gemm/sm90_persistent_mma.cuh"

namespace cutwheel::conv2d {

using gemm::Sm90SameFrame;
using gemm::Sm90TileOrder;
using gemm::Sm90TilePlace;

// A part of the output that is a dense problem with taps of its own: the output as a whole, or of the gradient of a strided
// convolution's input the pixels (first_h + i * stride_h, first_w + j * stride_w).
struct ConvPhase {
  Im2colGrid grid;
  int m = 0;                      // positions of all images
  int tiles_m = 0, tile_end = 0;  // tile_end: of all tiles of this phase and those before it
  int k_tiles = 0;                // none: no tap reaches these pixels
  int map = 0;                    // of A
  int taps_w = 0;                 // in a row
  int tap = 0;                    // the first one, as the filter counts
  Im2colOffset offset;            // of that one
  int first_h = 0, first_w = 0;
};

// A row of the product is a pixel of a phase, a row of D one of the whole.
struct ConvPhaseFrame {
  static constexpr bool kAlways = false;
  ConvPhase const& phase;
  int h, w, stride_h, stride_w;

  CUTLASS_DEVICE bool is_same() const { return stride_h == 1 && stride_w == 1; }
  CUTLASS_DEVICE int row(int m) const {
    int row, column, image;
    phase.grid.columns(row, column, m);
    phase.grid.rows(image, row, row);
    return (image * h + phase.first_h + row * stride_h) * w + phase.first_w + column * stride_w;
  }
  CUTLASS_DEVICE static int column(int n) { return n; }
};

template <class Tile, Direction direction>
struct Sm90TapWalk {
  static constexpr bool kHasPhases = direction == Direction::dgrad;
  static constexpr int kMaxPhases = kHasPhases ? 16 : 1;
  // The last positions of a phase lie in one row or column of pixels more or less.
  static constexpr int kMaps = kHasPhases ? 4 : 1;

  struct Params {
    ConvPhase phases[kMaxPhases];
    int count;
    int n, tiles_n, band;
    bool along_m;
    int channels;  // of a tap
    // From tap to tap of a phase.
    int tap_step_h, tap_step_w;
    Im2colOffset offset_step;
    int h, w, stride_h, stride_w;  // of D
  };
  struct Storage {};
  Params const& p;
  int phase = 0;

  CUTLASS_DEVICE Sm90TapWalk(Params const& params, Storage const&) : p(params) {}
  CUTLASS_DEVICE static void start(Params const&, Storage&) {}

  CUTLASS_DEVICE bool at(int index, Sm90TilePlace& place) {
    if (index >= p.phases[p.count - 1].tile_end) return false;
    if constexpr (kHasPhases) {
      // A threadblock's tiles have rising numbers.
      while (index >= p.phases[phase].tile_end) ++phase;
      if (phase > 0) index -= p.phases[phase - 1].tile_end;
    }
    ConvPhase const& own = p.phases[phase];
    int unused;
    Sm90TileOrder{own.tiles_m, p.tiles_n, 1, p.band, p.along_m}.at(index, place.m, place.n, unused);
    place.m *= Tile::kM;
    place.n *= Tile::kN;
    place.end_m = own.m;
    place.end_n = p.n;
    place.a_batch = phase;
    place.k_tiles = own.k_tiles;
    place.is_zero = kHasPhases && own.k_tiles == 0;
    return true;
  }

  CUTLASS_DEVICE auto frame(Sm90TilePlace const& place) const {
    if constexpr (kHasPhases) {
      return ConvPhaseFrame{p.phases[place.a_batch], p.h, p.w, p.stride_h, p.stride_w};
    } else {
      return Sm90SameFrame{};
    }
  }
};

// A: pixels, gathered. B: the filter as a batch of matrices, one for each tap. Channels come first, then taps of a row.
template <class OperandA, class OperandB, class Tile, Direction direction>
struct Sm90TapLoader {
  using Walk = Sm90TapWalk<Tile, direction>;
  struct Params {
    CUtensorMap a[Walk::kMaps], a_tail, b, b_tail;
    int a_tail_rows;  // of the last tile of the one phase, which has a map of its own; else 0
  };
  Params const& p;
  typename Walk::Params const& problem;
  ConvPhase const* phase = nullptr;
  Im2colPixel pixel;
  Im2colOffset offset;
  int channel = 0, tap = 0, taps_left = 0, row_tap = 0;
  CUtensorMap const* map_a = nullptr;
  int a_bytes = OperandA::kBytes;
  typename OperandB::Part part_b{};

  CUTLASS_DEVICE Sm90TapLoader(Params const& params, Walk const& walk) : p(params), problem(walk.p) {}

  CUTLASS_DEVICE static void prefetch(Params const& p) {
    for (CUtensorMap const* map : {&p.a[0], &p.b}) {
      cute::prefetch_tma_descriptor(reinterpret_cast<cute::TmaDescriptor const*>(map));
    }
  }

  CUTLASS_DEVICE void begin(Sm90TilePlace const& place) {
    phase = &problem.phases[Walk::kHasPhases ? place.a_batch : 0];
    pixel = phase->grid.at(place.m);
    offset = phase->offset;
    channel = 0;
    tap = row_tap = phase->tap;
    taps_left = phase->taps_w;
    bool const is_tail = p.a_tail_rows > 0 && phase->m - place.m == p.a_tail_rows;
    map_a = is_tail ? &p.a_tail : &p.a[Walk::kHasPhases ? phase->map : 0];
    a_bytes = is_tail ? OperandA::kBytes / Tile::kM * p.a_tail_rows : OperandA::kBytes;
    part_b = OperandB::part_of(place.n, problem.n);
  }

  CUTLASS_DEVICE std::uint32_t bytes() const { return static_cast<std::uint32_t>(a_bytes + part_b.bytes); }

  template <class A, class B>
  CUTLASS_DEVICE void load(std::uint64_t* barrier, A* stage_a, B* stage_b, Sm90TilePlace const& place, int) {
    load_im2col(*map_a, barrier, stage_a, channel, pixel, offset);
    OperandB::load(part_b.is_tail ? p.b_tail : p.b, barrier, stage_b, place.n, channel, tap, part_b.boxes);
    channel += Tile::kK;
    if (channel < problem.channels) return;
    channel = 0;
    if (--taps_left > 0) {
      tap += problem.tap_step_w;
      offset.w += problem.offset_step.w;
    } else {
      taps_left = phase->taps_w;
      tap = row_tap += problem.tap_step_h;
      offset.w = phase->offset.w;
      offset.h += problem.offset_step.h;
    }
  }
};

// One side of a problem that the gradient of the input poses: of its rows, say, those that leave the same remainder by the
// stride have taps in common.
struct DgradAxis {
  struct Phase {
    int positions = 0;
    int taps = 0, first_tap = 0, offset = 0;  // offset: of the first tap, the others' are smaller
  };
  static constexpr int kMaxPhases = 16;
  Phase phases[kMaxPhases];
  int count = 0;
  int corner = 0, last_offset = 0;
  int tap_step = 1, offset_step = 0;

  // False where there are more phases than that. `extent`: of the input.
  bool plan(int extent, int taps, int pad, int stride, int dilation) {
    count = std::min(stride, extent);
    if (count > kMaxPhases) return false;
    int const common = std::gcd(stride, dilation);
    tap_step = stride / common;
    offset_step = -(dilation / common);
    // Input row x is reached from row (x + pad - tap * dilation) / stride of the output, where that is a whole number.
    bool is_first = true;
    for (int i = 0; i < count; ++i) {
      Phase& phase = phases[i];
      phase = {};
      phase.positions = ceil_div(extent - i, stride);
      for (int tap = 0; tap < taps; ++tap) {
        int const at = i + pad - tap * dilation;
        if (at % stride != 0) continue;
        if (phase.taps++ == 0) {
          phase.first_tap = tap;
          phase.offset = at / stride;
        }
        corner = is_first ? at / stride : std::min(corner, at / stride);
        is_first = false;
      }
    }
    for (int i = 0; i < count; ++i) {
      if (phases[i].taps == 0) continue;
      phases[i].offset -= corner;
      last_offset = std::max(last_offset, phases[i].offset);
    }
    return true;
  }

  // Phases of as many positions as the first share its tensor maps, the others have one position less.
  bool is_shorter(int phase) const { return phases[phase].positions != phases[0].positions; }

  Im2colAxis im2col(int extent, bool shorter) const {
    return {extent, corner, phases[0].positions - (shorter ? 1 : 0), 1, last_offset};
  }
};

}  // namespace cutwheel::conv2d
