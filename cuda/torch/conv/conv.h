// Which convolutions this wheel serves; the ops themselves are in the registry.
#pragma once

#include <torch/csrc/stable/c/shim.h>
#include <torch/headeronly/util/shim_utils.h>

#include "torch/tensor.h"

namespace cutwheel {

// 0: no kernel of this wheel serves convolutions of this kind on the device; 1: one does through PTX; 2: a native one does.
// direction as in Direction; an empty name is that of no epilogue, of fprop. Runs nothing and looks at no extents.
std::int64_t conv_served(std::int64_t direction, std::int64_t device, ScalarType dtype, ScalarType out_dtype,
                         StringHandle epilogue, bool has_bias, bool unit_stride, bool is_volume);

}  // namespace cutwheel
