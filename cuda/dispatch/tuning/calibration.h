// What the cost model knows of single kernels: microseconds fitted to measurements.
#pragma once

#include "dispatch/kernel_descriptor.h"

namespace cutwheel {

struct Calibration {
  double k_tile_us;  // one step of the mainloop of one tile
  double tile_us;    // what a tile costs besides, its epilogue above all
  double launch_us;  // once
};

// The row's measured figures, or figures computed from its tile and the tensor-core rate of its instructions.
Calibration calibration_of(KernelDescriptor const& row, DeviceInfo const& device);

// Whether the row's figures are fitted to measurements, and on this kind of GPU: all were made on an H200.
bool is_measured(KernelDescriptor const& row, DeviceInfo const& device);

// What kernels have in common. Fitted together with the figures above, so these are parameters of the model more than
// physical rates.
struct Limits {
  double l2, lone_l2;                 // traffic of operands in TB/s per SM: with multicast in a cluster, and without
  double dram;                        // as a share of the theoretical rate
  double sharpness;                   // of the corner between two limits
  double split_lines[3];              // traffic of rows of no whole lines, but of multiples of 64, 32 or 16 bytes
  double reduce_us, reduce_tb_per_s;  // of split-K's second kernel
  double beyond_us;                   // of CUTLASS's loads, for 128 bytes of a row beyond the end of an operand
  bool padding_counts;                // figures are of tiles that M may fill by less than half
};
Limits limits_of(KernelDescriptor const& row);

}  // namespace cutwheel
