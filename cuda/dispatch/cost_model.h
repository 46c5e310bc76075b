// How long a plan takes, in microseconds: good enough to rank plans, never to promise a time.
#pragma once

#include "dispatch/select.h"

namespace cutwheel {

double predict_us(GemmPlan const& plan, GemmRequest const& request, DeviceInfo const& device);

// The raster order and swizzle that let the tiles in flight share the most operand bytes in L2.
void choose_raster(GemmPlan& plan, GemmRequest const& request);

}  // namespace cutwheel
