// The variables that restrict which kernels may run.
#pragma once

#include <optional>
#include <string>

#include "dispatch/kernel_descriptor.h"

namespace cutwheel {

// CUTWHEEL_ARCH (sm80 | sm89 | sm90a) keeps only kernels of that architecture, through PTX where need be; CUTWHEEL_KERNEL
// keeps one GEMM kernel by its name.
struct Environment {
  std::optional<Arch> arch;
  std::string kernel;

  bool admits(KernelDescriptor const& descriptor) const {
    return (!arch || descriptor.arch == *arch) && (kernel.empty() || !is_gemm(descriptor) || kernel == descriptor.name);
  }
};

// Read at the first use and again by reload_environment(). Throws for a value that means nothing.
Environment environment();
void reload_environment();

// Changes with the environment: what was chosen under another number no longer holds.
unsigned environment_generation();

// Invalidates remembered choices for another reason: tables of measurements were loaded.
void forget_choices();

}  // namespace cutwheel
