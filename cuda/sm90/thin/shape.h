// How a product of many rows by a weight in shared memory divides that memory.
#pragma once

#include <algorithm>

#include "core/types.h"

namespace cutwheel::gemm {

// A warpgroup takes one strip of rows after another through stages of its own: a stage holds the strip's rows of A and of
// the matrices that the epilogue reads. Elements have two bytes.
struct ThinShape {
  static constexpr int kRows = 64;   // of a strip
  static constexpr int kLineK = 64;  // of a line of the weight: 128 bytes
  static constexpr int kMostWarpgroups = 4, kLeastWarpgroups = 2, kLeastStages = 2, kMostStages = 4;
  static constexpr int kBarrierBytes = kMostWarpgroups * kMostStages * 8;

  int passes, lines;          // of a tile's columns each, and of a column of the weight
  int a_bytes, matrix_bytes;  // of a strip
  int stage_bytes, result_bytes, weight_bytes, row_bytes;
  int warpgroups, stages;

  constexpr int warpgroup_bytes() const { return stages * stage_bytes + result_bytes; }
  constexpr int total_bytes() const { return weight_bytes + kBarrierBytes + row_bytes + warpgroups * warpgroup_bytes(); }

  // columns: of a tile. matrices, row_operands: of the epilogue; its rows lie in shared memory as floats. False: the weight
  // leaves too little for the strips of two warpgroups.
  static bool plan(ThinShape& shape, int n, int k, int columns, int matrices, int row_operands, int shared_memory_bytes) {
    constexpr int kAlignment = 128;
    shape.passes = ceil_div(n, columns), shape.lines = ceil_div(k, kLineK);
    shape.weight_bytes = shape.passes * columns * shape.lines * kLineK * 2;
    shape.row_bytes = row_operands * shape.passes * columns * 4;
    shape.a_bytes = round_up(kRows * k * 2, kAlignment), shape.matrix_bytes = round_up(kRows * n * 2, kAlignment);
    shape.stage_bytes = shape.a_bytes + matrices * shape.matrix_bytes;
    // Results leave from where the first matrix was.
    shape.result_bytes = matrices > 0 ? 0 : shape.matrix_bytes;
    int const room = shared_memory_bytes - kBarrierBytes - shape.weight_bytes - shape.row_bytes;
    shape.warpgroups = std::min(room / (kLeastStages * shape.stage_bytes + shape.result_bytes), kMostWarpgroups);
    if (shape.warpgroups < kLeastWarpgroups) return false;
    // Where more is written than read, 80 KiB of loads in flight are enough: with 128 KiB 1034656 x 256 x 64 takes 3 %
    // longer (H200).
    constexpr int kFewBytes = 80 * 1024;
    int const fitting = (room / shape.warpgroups - shape.result_bytes) / shape.stage_bytes;
    bool const reads_more = shape.stage_bytes > shape.matrix_bytes;
    int const most = reads_more ? kMostStages : kFewBytes / (shape.warpgroups * shape.stage_bytes);
    shape.stages = std::clamp(std::min(fitting, most), kLeastStages, kMostStages);
    return true;
  }
};

}  // namespace cutwheel::gemm
