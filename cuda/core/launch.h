// Launching: what has to be done once for each kernel and device, and cudaLaunchKernelExC.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>

#include "core/args/gemm.h"

namespace cutwheel::gemm {

struct LaunchShape {
  dim3 grid, block;
  int shared_memory_bytes = 0;
  dim3 cluster = dim3(1, 1, 1);
  // Programmatic dependent launch: the kernel may start while its predecessor drains; it waits itself before it reads.
  bool dependent_launch = false;
};

// Facts about one kernel on each device. A kernel has one static object of this, zero-initialised (no dynamic initialiser).
class KernelAttributes {
 public:
  // Raises the limit of dynamic shared memory on the first call for a device. In another context than that call's,
  // launch_kernel does it.
  Status prepare(void const* kernel, int device, int shared_memory_bytes) {
    bool const is_prepared = prepared_.load(std::memory_order_acquire) >> device & 1;
    return is_prepared ? Status{} : raise_limit(kernel, device, shared_memory_bytes);
  }

  // How many clusters of this kernel fit on the device at once: GPCs with an odd number of SMs make it less than the
  // quotient, and a persistent grid that assumes more would run in two waves. The primary context is asked: one with fewer
  // SMs would leave its number to all later calls.
  int max_active_clusters(void const* kernel, int device, cudaLaunchConfig_t const& config);

  // How many threadblocks of this kernel an SM holds at once; at least 1.
  int max_active_blocks(void const* kernel, int device, LaunchShape const& shape);

 private:
  Status raise_limit(void const* kernel, int device, int shared_memory_bytes);

  std::atomic<std::uint64_t> prepared_;
  std::atomic<int> clusters_[kMaxDevices];
  std::atomic<int> blocks_[kMaxDevices];
};

cudaLaunchConfig_t launch_config(LaunchShape const& shape, cudaStream_t stream, cudaLaunchAttribute (&attributes)[2]);

// `params`: the only argument of the kernel.
Status launch_kernel_with(void const* kernel, LaunchShape const& shape, void const* params, cudaStream_t stream);

template <class Params>
Status launch_kernel(void const* kernel, LaunchShape const& shape, Params const& params, cudaStream_t stream) {
  return launch_kernel_with(kernel, shape, &params, stream);
}

// For a kernel whose threadblocks, or clusters along x, take one of `tiles` after another: the grid is as many of them as
// the device holds at once. `shape`: all the rest.
Status launch_persistent_with(void const* kernel, KernelAttributes& attributes, LaunchShape const& shape, int tiles,
                              void const* params, GemmArgs const& args);

template <class Params>
Status launch_persistent(void const* kernel, KernelAttributes& attributes, LaunchShape const& shape, int tiles,
                         Params const& params, GemmArgs const& args) {
  return launch_persistent_with(kernel, attributes, shape, tiles, &params, args);
}

}  // namespace cutwheel::gemm
