// The mode in which a row of a result is the same bits, whatever rows are computed with it.
#pragma once

#include "dispatch/select.h"

namespace cutwheel {

// Whether the mode is on, for all threads: backward passes run on threads of torch.
bool batch_invariant();
void set_batch_invariant(bool enabled);

// The summation order that a GEMM is limited to in the mode; null: any. A kernel's order and its epilogue decide every bit
// of a result, so the tile may still follow M.
//
// Depends on types, epilogue and scales, on the device's compute capability and on the environment: on neither extents nor
// how operands lie, which batches differ in. It is the order that most kernels have, for the widest choice of tiles.
// Convolutions name their order themselves (GemmRequest::summation), as their algorithms decide it.
char const* invariant_order(GemmRequest const& request, DeviceInfo const& device);

}  // namespace cutwheel
