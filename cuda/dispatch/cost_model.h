// How long a plan takes, in microseconds: good enough to rank plans, never to promise a time.
#pragma once

#include "dispatch/select.h"

namespace cutwheel {

// Size of a problem for a kernel: threadblock tiles, and the mean number of steps along K of each.
struct TileCount {
  double tiles, k_tiles;
};
TileCount count_tiles(KernelDescriptor const& kernel, GemmRequest const& request, int splits);

double predict_us(GemmPlan const& plan, GemmRequest const& request, DeviceInfo const& device);

// Time that a residual adds to a convolution, the same for all of its kernels (GEMM kernels read it in different ways).
double residual_us(GemmPlan const& plan, GemmRequest const& request, DeviceInfo const& device);

// The raster order and swizzle that let the tiles in flight share the most operand bytes in L2.
void choose_raster(GemmPlan& plan, GemmRequest const& request);

}  // namespace cutwheel
