// Programmatic dependent launch: a kernel may begin while the one before it ends. As CUTLASS's
// grid_dependency_control.h, which includes most of CUTLASS for that.
#pragma once

#include <cutlass/cutlass.h>

namespace cutwheel {

// The kernel behind this one may begin.
CUTLASS_DEVICE void launch_dependent_grids() { asm volatile("griddepcontrol.launch_dependents;"); }

// What kernels before this one have written is there.
CUTLASS_DEVICE void wait_on_dependent_grids() { asm volatile("griddepcontrol.wait;"); }

}  // namespace cutwheel
