// The figures of the cost model: microseconds fitted to measurements (calibration.toml).
#pragma once

#include "dispatch/kernel_descriptor.h"

namespace cutwheel {

struct Calibration {
  double k_tile_us;  // one step of the mainloop of one tile
  double tile_us;    // of a tile besides, mostly its epilogue
  double launch_us;  // once
  // One step of a threadblock that has an SM to itself, where latency makes that longer than its share of the SM's rate.
  double lone_k_tile_us = 0;
};

// Limits that kernels share; calibration.toml explains them.
struct Limits {
  double l2, lone_l2;
  double sm;
  double paired;
  double dram;
  double sharpness;
  double split_lines[3];
  double reduce_us, reduce_tb_per_s;
  double beyond_us;
  bool padding_counts;
};

// Kernels of one tile whose figures are alike; operands or scales of another kind cost something else, and so do loads
// through registers, and groups of 16 bits. Of 16 bits, those of dgrad's and of wgrad's layouts and those that write
// float32 have their own. From fprop on: convolutions of 16 and 32 bits, by direction and by how they load.
enum class FigureKind : int {
  wide,
  wide_ttt,
  wide_ntt,
  wide_f32,
  tf32,
  fp8,
  fp8_fast,
  int8,
  blocks_of_b,
  columns_of_b,
  unaligned,
  grouped_rows,
  grouped_k,
  fprop,
  dgrad,
  wgrad,
  gather_fprop,
  gather_wgrad,
  row_fprop,
  row_dgrad,
  strided_dgrad
};

struct TileFigures {
  FigureKind kind;
  int m, n, k_bytes;
  bool is_native;  // of a kernel of our own, not CUTLASS's
  Schedule schedule;
  bool swap_ab;
  int splits;         // of K, by the threadblocks of a cluster
  int columns, rows;  // threadblocks that share these by multicast
  Calibration figures;
};

// Tiles of mma.sync, on any GPU.
struct MmaFigures {
  int m, n;
  double reached;         // share of the tensor cores' rate, with an SM's threadblocks together
  double latency_clocks;  // what a step takes longer than at that rate, with one threadblock on an SM
};

// Kernels of the family thin.
struct ThinFigures {
  double launch_us;  // once, with the weight's way to shared memory
  double weight_us;  // for each KiB of the weight besides
  double matrix_us;  // once for a matrix that the epilogue reads
  double strip_us;   // of 64 rows of a warpgroup
  double pass_us;    // of the columns that are multiplied at once
  double store_us;   // of 32 columns of a pass
  double step_us;    // of the K that is multiplied at once
  double dram;       // as a share of the theoretical rate
};

struct CalibratedGpu {
  int cc_major, sm_count;
  double least_memory_gb_per_s;
};

// Generated: calibration_data.cpp.
extern CalibratedGpu const kCalibratedGpu;
extern Limits const kDenseLimits, kMmaLimits, kConvLimits, kGroupedLimits, kOtherLimits;
extern TileFigures const kTileFigures[];
extern int const kTileFigureCount;
extern MmaFigures const kMmaFigures[];
extern int const kMmaFigureCount;
extern double const kMmaTileUs, kMmaLaunchUs;
extern Calibration const kFiguresByArea[];  // by FigureKind; zeros where there are none
extern ThinFigures const kThinFigures;
extern Calibration const kDirectConvFigures, kSpaceToDepth16Figures, kSpaceToDepth32Figures, kFewChannelsFigures;

// The kernel's measured figures, or figures computed from its tile and the tensor-core rate of its instructions.
// `is_strided`: of dgrad behind a stride, whose tiles differ in their steps.
Calibration calibration_of(KernelDescriptor const& kernel, DeviceInfo const& device, bool is_strided = false);

// Whether the kernel's figures are fitted to measurements, and on this kind of GPU.
bool is_measured(KernelDescriptor const& kernel, DeviceInfo const& device);

Limits const& limits_of(KernelDescriptor const& kernel);

}  // namespace cutwheel
