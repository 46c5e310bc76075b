// Operands of convolutions whose K runs over pixels: wgrad.
#pragma once

#include "sm90/native/load/tiles.cuh"
#include "sm90/native/scheduler/wgrad.cuh"

namespace cutwheel::conv2d {

// A: the gradient of the output, a matrix. B: pixels of the input, gathered for each unit of columns with its own tap.
template <class OperandA, class OperandB, class Tile>
struct Sm90WgradLoader {
  using Scheduler = Sm90WgradScheduler<Tile>;
  static constexpr int kUnits = Tile::kN / FilterColumns::kUnit;
  static_assert(OperandB::kBoxes == kUnits);
  static constexpr std::uint32_t kUnitBytes = OperandB::kBytes / kUnits;
  struct Params {
    CUtensorMap a, b;
  };
  Params const& p;
  typename Scheduler::Params const& problem;
  int units = 0;  // of this tile that there are: the others are not loaded
  int channel[kUnits] = {};
  Im2colOffset offset[kUnits];

  CUTLASS_DEVICE Sm90WgradLoader(Params const& params, Scheduler const& scheduler) : p(params), problem(scheduler.p) {}

  CUTLASS_DEVICE static void prefetch(Params const& p) {
    for (CUtensorMap const* map : {&p.a, &p.b}) {
      cute::prefetch_tma_descriptor(reinterpret_cast<cute::TmaDescriptor const*>(map));
    }
  }

  CUTLASS_DEVICE void begin(Sm90WorkTile const& work) {
    int const first = work.n / FilterColumns::kUnit;
    units = min(work.end_n / FilterColumns::kUnit - first, kUnits);
    int const of_group = work.m / problem.group_m * problem.columns.channels;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kUnits; ++i) {
      int tap, unit, row, column, slice = 0;
      problem.columns.units(tap, unit, first + i);
      problem.taps_w(row, column, tap);
      if (problem.is_volume) problem.taps_h(slice, row, row);
      channel[i] = of_group + unit * FilterColumns::kUnit;
      offset[i] = {column * problem.dilation_w, row * problem.dilation_h, slice * problem.dilation_d};
    }
  }

  CUTLASS_DEVICE std::uint32_t bytes() const { return OperandA::kBytes + static_cast<std::uint32_t>(units) * kUnitBytes; }

  CUTLASS_DEVICE static void prefetch(Sm90WorkTile const&) {}

  template <class A, class B>
  CUTLASS_DEVICE void load(std::uint64_t* barrier, A* stage_a, B* stage_b, Sm90WorkTile const& work, int tile) const {
    int const position = work.k + tile * Tile::kK;
    // Whole boxes of both operands, even where they bring zeros: tensor maps that a thread chooses cost it more than zeros
    // do. By boxes as narrow as the operands 8 x 320 x 64 x 64 took 103 to 109 us for 94, and had no such box (H200).
    OperandA::load(p.a, p.a, barrier, stage_a, work.m, position, 0,
                   {/*is_tail=*/false, OperandA::kBoxes, OperandA::kBytes});
    Im2colPixel const pixel = problem.grid.at(position);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kUnits; ++i) {
      if (i >= units) continue;
      load_im2col(p.b, problem.is_volume, barrier, stage_b + i * OperandB::kBoxElements, channel[i], pixel, offset[i]);
    }
  }
};

}  // namespace cutwheel::conv2d
