// What the cost model knows of single kernels: microseconds fitted to measurements.
#pragma once

#include "dispatch/kernel_row.h"

namespace cutwheel {

struct Calibration {
  double k_tile_us;  // one step of the mainloop of one tile
  double tile_us;    // what a tile costs besides, its epilogue above all
  double launch_us;  // once
};

// The row's measured figures, or figures computed from its tile and the tensor-core rate of its instructions.
Calibration calibration_of(KernelRow const& row, DeviceInfo const& device);

// Whether the row's figures are fitted to measurements, and on this kind of GPU: all were made on an H200.
bool is_measured(KernelRow const& row, DeviceInfo const& device);

// Fitted together with the figures above, so they are parameters of this model more than physical rates: operand traffic
// from L2 with and without multicast in a cluster, and DRAM traffic as a share of the theoretical rate.
constexpr double kL2TbPerSecondPerSm = 15.2 / 132;
constexpr double kL2LoneTbPerSecondPerSm = 12.8 / 132;
constexpr double kDramEfficiency = 1.03;
constexpr double kSharpness = 2.8;  // of the corner between two limits

}  // namespace cutwheel
