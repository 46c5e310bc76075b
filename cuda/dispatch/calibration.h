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

// Operand traffic from L2, and DRAM traffic as a share of the theoretical rate, that kernels reach.
constexpr double kL2TbPerSecondPerSm = 17.0 / 132;
constexpr double kDramEfficiency = 0.875;

}  // namespace cutwheel
