// How long a plan takes, in microseconds: good enough to rank plans, never to promise a time.
#pragma once

#include "dispatch/select.h"

namespace cutwheel {

// What a problem is to a kernel: threadblock tiles, and how many steps along K each takes, in the mean.
struct TileCount {
  double tiles, k_tiles;
};
TileCount count_tiles(KernelDescriptor const& row, GemmRequest const& request, int splits);

double predict_us(GemmPlan const& plan, GemmRequest const& request, DeviceInfo const& device);

// What a residual adds to the prediction for a convolution: all of its kernels read it alike, those of products do not.
double residual_us(GemmPlan const& plan, GemmRequest const& request, DeviceInfo const& device);

// The raster order and swizzle that let the tiles in flight share the most operand bytes in L2.
void choose_raster(GemmPlan& plan, GemmRequest const& request);

}  // namespace cutwheel
