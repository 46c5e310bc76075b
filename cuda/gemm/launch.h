// Launching: what has to be done once for each kernel and device, and cudaLaunchKernelExC.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>

#include "common/context.h"
#include "gemm/params.h"

namespace cutwheel::gemm {

struct LaunchShape {
  dim3 grid, block;
  int shared_memory_bytes = 0;
  dim3 cluster = dim3(1, 1, 1);
  // Programmatic dependent launch: the kernel may start while its predecessor drains; it waits itself before it reads.
  bool dependent_launch = false;
};

// 48 KiB of dynamic shared memory need no permission.
inline cudaError_t permit_shared_memory(void const* kernel, int bytes) {
  return bytes > 48 * 1024 ? cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) : cudaSuccess;
}

// Facts about one kernel on each device. A kernel has one static object of this, zero-initialised (no dynamic initialiser).
class KernelFacts {
 public:
  // Raises the limit of dynamic shared memory on the first call for a device. Of another context than that call's,
  // launch_kernel does it.
  cudaError_t prepare(void const* kernel, int device, int shared_memory_bytes) {
    std::uint64_t const bit = std::uint64_t{1} << device;
    if (prepared_.load(std::memory_order_acquire) & bit) return cudaSuccess;
    if (cudaError_t const error = permit_shared_memory(kernel, shared_memory_bytes); error != cudaSuccess) return error;
    prepared_.fetch_or(bit, std::memory_order_release);
    return cudaSuccess;
  }

  // How many clusters of this kernel fit on the device at once: GPCs with an odd number of SMs make it less than the
  // quotient, and a persistent grid that assumes more would run in two waves. Asked for in the primary context: one with
  // fewer SMs would leave its number to all later calls.
  int max_active_clusters(void const* kernel, int device, cudaLaunchConfig_t const& config) {
    int known = clusters_[device].load(std::memory_order_relaxed);
    if (known) return known;
    ContextScope const scope;
    ContextScope::set_primary(device);
    cudaLaunchConfig_t asked = config;
    asked.stream = nullptr;  // it may belong to another context
    permit_shared_memory(kernel, static_cast<int>(asked.dynamicSmemBytes));
    if (cudaOccupancyMaxActiveClusters(&known, kernel, &asked) != cudaSuccess || known <= 0) {
      cudaGetLastError();
      return 0;
    }
    clusters_[device].store(known, std::memory_order_relaxed);
    return known;
  }

  // How many threadblocks of this kernel an SM holds at once; at least 1.
  int max_active_blocks(void const* kernel, int device, LaunchShape const& shape) {
    int known = blocks_[device].load(std::memory_order_relaxed);
    if (known) return known;
    if (cudaOccupancyMaxActiveBlocksPerMultiprocessor(&known, kernel, static_cast<int>(shape.block.x),
                                                      static_cast<std::size_t>(shape.shared_memory_bytes)) != cudaSuccess ||
        known <= 0) {
      cudaGetLastError();
      return 1;
    }
    blocks_[device].store(known, std::memory_order_relaxed);
    return known;
  }

 private:
  std::atomic<std::uint64_t> prepared_;
  std::atomic<int> clusters_[kMaxDevices];
  std::atomic<int> blocks_[kMaxDevices];
};

inline cudaLaunchConfig_t launch_config(LaunchShape const& shape, cudaStream_t stream,
                                        cudaLaunchAttribute (&attributes)[2]) {
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = static_cast<std::size_t>(shape.shared_memory_bytes);
  config.stream = stream;
  config.attrs = attributes;
  if (shape.cluster.x * shape.cluster.y * shape.cluster.z > 1) {
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs].val.clusterDim.x = shape.cluster.x;
    attributes[config.numAttrs].val.clusterDim.y = shape.cluster.y;
    attributes[config.numAttrs++].val.clusterDim.z = shape.cluster.z;
  }
  if (shape.dependent_launch) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  return config;
}

template <class Params>
Status launch_kernel(void const* kernel, LaunchShape const& shape, Params const& params, cudaStream_t stream) {
  cudaLaunchAttribute attributes[2];
  cudaLaunchConfig_t const config = launch_config(shape, stream, attributes);
  void* arguments[] = {const_cast<void*>(static_cast<void const*>(&params))};
  cudaError_t error = cudaLaunchKernelExC(&config, kernel, arguments);
  if (error == cudaErrorInvalidValue && permit_shared_memory(kernel, shape.shared_memory_bytes) == cudaSuccess) {
    cudaGetLastError();
    error = cudaLaunchKernelExC(&config, kernel, arguments);
  }
  if (error != cudaSuccess) {
    cudaGetLastError();  // or torch would report it at its next call
    return {StatusCode::cuda_error, static_cast<int>(error)};
  }
  return {};
}

}  // namespace cutwheel::gemm
