// Operands of convolutions whose K runs over taps and channels: fprop and dgrad.
#pragma once

#include "sm90/native/load/tiles.cuh"
#include "sm90/native/scheduler/conv.cuh"

namespace cutwheel::conv2d {

// A: pixels, gathered. B: the filter as a batch of matrices, one for each tap. Channels come first, then taps of a row,
// then rows of a slice. `starts_within`: a work tile may begin behind the first k-tile. The filters of a group have its
// channels alone, so in fprop only those of A are counted from its first one. In dgrad the K of both is the filters of all
// groups, and the columns of B are the channels of one.
template <class OperandA, class OperandB, class Tile, Direction direction, bool starts_within = false>
struct Sm90ConvLoader {
  using Scheduler = Sm90ConvScheduler<Tile, direction>;
  struct Params {
    CUtensorMap a[Scheduler::Params::kMaps], a_tail, b, b_tail;
    int a_tail_rows;  // of the last tile, which has a map of its own; else 0
  };
  Params const& p;
  typename Scheduler::Params const& problem;
  ConvResidueClass const* residue = nullptr;
  Im2colPixel pixel;
  Im2colOffset offset;
  int channel = 0, first_channel = 0, first_n = 0, tap = 0, taps_left = 0, row_tap = 0, rows_left = 0, slice_tap = 0;
  CUtensorMap const* map_a = nullptr;
  int a_bytes = OperandA::kBytes;
  typename OperandB::Part part_b{};

  CUTLASS_DEVICE Sm90ConvLoader(Params const& params, Scheduler const& scheduler) : p(params), problem(scheduler.p) {}

  CUTLASS_DEVICE static void prefetch(Params const& p) {
    for (CUtensorMap const* map : {&p.a[0], &p.b}) {
      cute::prefetch_tma_descriptor(reinterpret_cast<cute::TmaDescriptor const*>(map));
    }
  }

  CUTLASS_DEVICE void begin(Sm90WorkTile const& work) {
    residue = &problem.classes[Scheduler::kHasResidueClasses ? work.a_batch : 0];
    pixel = residue->grid.at(work.m);
    offset = residue->offset;
    // Without a tap, what is loaded lies behind the channels, and is zeros.
    channel = Scheduler::kHasResidueClasses && residue->taps == 0 ? problem.channels : 0;
    tap = row_tap = slice_tap = residue->tap;
    taps_left = residue->taps_w;
    rows_left = residue->taps_h;
    if constexpr (starts_within) skip(work.k / Tile::kK);
    bool const is_tail = p.a_tail_rows > 0 && residue->m - work.m == p.a_tail_rows;
    map_a = is_tail ? &p.a_tail : &p.a[Scheduler::kHasResidueClasses ? residue->map : 0];
    a_bytes = is_tail ? OperandA::kBytes / Tile::kM * p.a_tail_rows : OperandA::kBytes;
    part_b = OperandB::part_of(work.n, problem.n);
    int const group = work.n / problem.group_n;
    first_channel = group * problem.channels;
    first_n = direction == Direction::dgrad ? group * problem.group_n : 0;
  }

  // Goes on to this k-tile, from the first one.
  CUTLASS_DEVICE void skip(int k_tiles) {
    int const of_tap = ceil_div(problem.channels, Tile::kK), taps = k_tiles / of_tap, rows = taps / residue->taps_w;
    int const column = taps % residue->taps_w, row = rows % residue->taps_h, slice = rows / residue->taps_h;
    channel = k_tiles % of_tap * Tile::kK;
    slice_tap += slice * problem.tap_step_d;
    row_tap = slice_tap + row * problem.tap_step_h;
    tap = row_tap + column * problem.tap_step_w;
    taps_left -= column;
    rows_left -= row;
    offset.w += column * problem.offset_step.w;
    offset.h += row * problem.offset_step.h;
    offset.d += slice * problem.offset_step.d;
  }

  CUTLASS_DEVICE std::uint32_t bytes() const { return static_cast<std::uint32_t>(a_bytes + part_b.bytes); }

  CUTLASS_DEVICE static void prefetch(Sm90WorkTile const&) {}

  template <class A, class B>
  CUTLASS_DEVICE void load(std::uint64_t* barrier, A* stage_a, B* stage_b, Sm90WorkTile const& work, int) {
    int const of_all = first_channel + channel;
    load_im2col(*map_a, problem.is_volume, barrier, stage_a, of_all, pixel, offset);
    OperandB::load(p.b, p.b_tail, barrier, stage_b, work.n - first_n, direction == Direction::dgrad ? of_all : channel, tap,
                   part_b);
    channel += Tile::kK;
    if (channel < problem.channels) return;
    channel = 0;
    if (--taps_left > 0) {
      tap += problem.tap_step_w;
      offset.w += problem.offset_step.w;
      return;
    }
    taps_left = residue->taps_w;
    offset.w = residue->offset.w;
    if (--rows_left > 0 || !problem.is_volume) {
      tap = row_tap += problem.tap_step_h;
      offset.h += problem.offset_step.h;
    } else {
      rows_left = residue->taps_h;
      tap = row_tap = slice_tap += problem.tap_step_d;
      offset.h = residue->offset.h;
      offset.d += problem.offset_step.d;
    }
  }
};

}  // namespace cutwheel::conv2d
