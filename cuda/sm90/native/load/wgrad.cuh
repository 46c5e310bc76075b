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
    CUtensorMap a, b, a_tail, b_tail;
    int tail_channels;  // of the last unit of a tap, if it has fewer than others: such units have a map of their own
  };
  Params const& p;
  typename Scheduler::Params const& problem;
  typename OperandA::Part part_a{};
  int units = 0;  // of this tile that there are: the others are not loaded
  bool is_tail[kUnits] = {};
  int channel[kUnits] = {};
  std::uint32_t unit_bytes = 0;
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
    part_a = OperandA::part_of(work.m, problem.m);
    unit_bytes = 0;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kUnits; ++i) {
      int tap, unit, row, column, slice = 0;
      problem.columns.units(tap, unit, first + i);
      problem.taps_w(row, column, tap);
      if (problem.is_volume) problem.taps_h(slice, row, row);
      channel[i] = of_group + unit * FilterColumns::kUnit;
      is_tail[i] = p.tail_channels > 0 && problem.columns.channels - unit * FilterColumns::kUnit == p.tail_channels;
      if (i < units) unit_bytes += is_tail[i] ? kUnitBytes / FilterColumns::kUnit * p.tail_channels : kUnitBytes;
      offset[i] = {column * problem.dilation_w, row * problem.dilation_h, slice * problem.dilation_d};
    }
  }

  CUTLASS_DEVICE std::uint32_t bytes() const { return static_cast<std::uint32_t>(part_a.bytes) + unit_bytes; }

  CUTLASS_DEVICE static void prefetch(Sm90WorkTile const&) {}

  template <class A, class B>
  CUTLASS_DEVICE void load(std::uint64_t* barrier, A* stage_a, B* stage_b, Sm90WorkTile const& work, int tile) const {
    int const position = work.k + tile * Tile::kK;
    OperandA::load(p.a, p.a_tail, barrier, stage_a, work.m, position, 0, part_a);
    Im2colPixel const pixel = problem.grid.at(position);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kUnits; ++i) {
      if (i >= units) continue;
      load_im2col(is_tail[i] ? p.b_tail : p.b, problem.is_volume, barrier, stage_b + i * OperandB::kBoxElements, channel[i],
                  pixel, offset[i]);
    }
  }
};

}  // namespace cutwheel::conv2d
