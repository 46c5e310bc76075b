// Operands of convolutions whose taps of a row share their pixels: fprop and dgrad at stride 1.
#pragma once

#include "sm90/native/load/tiles.cuh"
#include "sm90/native/scheduler/conv.cuh"

namespace cutwheel::conv2d {

// A: pixels and those to the right of the last one. B: as of Sm90ConvLoader. Taps of a row come first, then channels, then
// rows of a slice.
template <class OperandA, class OperandB, class Tile, Direction direction>
struct Sm90RowConvLoader {
  using Scheduler = Sm90ConvScheduler<Tile, direction>;
  struct Params {
    CUtensorMap a, a_tail, b, b_tail;
    int a_lines, a_tail_lines;  // of a tile, and of the last one if it has fewer, else 0
  };
  Params const& p;
  typename Scheduler::Params const& problem;
  ConvResidueClass const& residue;
  Im2colPixel pixel;
  Im2colOffset offset;
  int channel = 0, row_tap = 0, rows_left = 0, slice_tap = 0;
  CUtensorMap const* map_a = nullptr;
  int a_bytes = 0;
  typename OperandB::Part part_b{};

  CUTLASS_DEVICE Sm90RowConvLoader(Params const& params, typename Scheduler::Params const& problem)
      : p(params), problem(problem), residue(problem.classes[0]) {}

  CUTLASS_DEVICE void begin(Sm90WorkTile const& work) {
    pixel = residue.grid.at(work.m);
    offset = {0, residue.offset.h, residue.offset.d};
    channel = 0;
    row_tap = slice_tap = residue.tap;
    rows_left = residue.taps_h;
    bool const is_tail = work.end_m - work.m < Tile::kM;
    map_a = is_tail ? &p.a_tail : &p.a;
    a_bytes = (is_tail ? p.a_tail_lines : p.a_lines) * OperandA::kSwizzleBytes;
    part_b = OperandB::part_of(work.n, problem.n);
  }

  template <class A>
  CUTLASS_DEVICE void load_a(std::uint64_t* barrier, A* stage) const {
    load_im2col(*map_a, problem.is_volume, barrier, stage, channel, pixel, offset);
  }
  template <class B>
  CUTLASS_DEVICE void load_b(std::uint64_t* barrier, B* stage, Sm90WorkTile const& work, int column) const {
    OperandB::load(p.b, p.b_tail, barrier, stage, work.n, channel, row_tap + column * problem.tap_step_w, part_b);
  }

  // Behind the taps of a row.
  CUTLASS_DEVICE void advance() {
    channel += Tile::kK;
    if (channel < problem.channels) return;
    channel = 0;
    if (--rows_left > 0 || !problem.is_volume) {
      row_tap += problem.tap_step_h;
      offset.h += problem.offset_step.h;
    } else {
      rows_left = residue.taps_h;
      row_tap = slice_tap += problem.tap_step_d;
      offset.h = residue.offset.h;
      offset.d += problem.offset_step.d;
    }
  }
};

}  // namespace cutwheel::conv2d
