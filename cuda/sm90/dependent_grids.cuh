// Programmatic dependent launch: a kernel may begin while the one before it ends. CUTLASS's grid_dependency_control.h has
// the same two instructions, and includes most of CUTLASS.
#pragma once

#include <cutlass/cutlass.h>

namespace cutwheel {

// Lets the next kernel begin.
CUTLASS_DEVICE void launch_dependent_grids() { asm volatile("griddepcontrol.launch_dependents;"); }

// Waits until the kernels before this one have ended and their results are visible.
CUTLASS_DEVICE void wait_on_dependent_grids() { asm volatile("griddepcontrol.wait;"); }

}  // namespace cutwheel
