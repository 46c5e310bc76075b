#include "core/launch.h"

#include <algorithm>

#include "core/context.h"
#include "core/sm_limit.h"

namespace cutwheel::gemm {
namespace {

// 48 KiB of dynamic shared memory need no permission.
cudaError_t permit_shared_memory(void const* kernel, int bytes) {
  return bytes > 48 * 1024 ? cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) : cudaSuccess;
}

// Clears the error, which torch would report at its next call.
Status failure(cudaError_t error) {
  cudaGetLastError();
  return {StatusCode::cuda_error, static_cast<int>(error)};
}

// Of so many clusters, those that the SMs which are left hold; at least 1.
int clusters_left(int clusters, int device, cudaLaunchConfig_t const& config) {
  int const sms = device_info(device).sm_count;
  if (sms == whole_device_info(device).sm_count) return clusters;
  int size = 1;
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    if (config.attrs[i].id != cudaLaunchAttributeClusterDimension) continue;
    auto const& extent = config.attrs[i].val.clusterDim;
    size = static_cast<int>(extent.x * extent.y * extent.z);
  }
  return std::max(1, std::min(clusters, sms / size));
}

}  // namespace

Status KernelAttributes::raise_limit(void const* kernel, int device, int shared_memory_bytes) {
  if (cudaError_t const error = permit_shared_memory(kernel, shared_memory_bytes); error != cudaSuccess) {
    return failure(error);
  }
  prepared_.fetch_or(std::uint64_t{1} << device, std::memory_order_release);
  return {};
}

int KernelAttributes::max_active_clusters(void const* kernel, int device, cudaLaunchConfig_t const& config) {
  int known = clusters_[device].load(std::memory_order_relaxed);
  if (known) return clusters_left(known, device, config);
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
  return clusters_left(known, device, config);
}

int KernelAttributes::max_active_blocks(void const* kernel, int device, LaunchShape const& shape) {
  // Threadblocks go to idle SMs first: two for each SM of the limit would take twice as many SMs.
  if (leaves_sms(device_info(device).sm_count)) return 1;
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

cudaLaunchConfig_t launch_config(LaunchShape const& shape, cudaStream_t stream, cudaLaunchAttribute (&attributes)[2]) {
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
  // A kernel that begins before the one before it has ended may take the SMs that both are to leave.
  if (shape.dependent_launch && !leaves_sms()) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  return config;
}

Status launch_kernel_with(void const* kernel, LaunchShape const& shape, void const* params, cudaStream_t stream) {
  cudaLaunchAttribute attributes[2];
  cudaLaunchConfig_t const config = launch_config(shape, stream, attributes);
  void* arguments[] = {const_cast<void*>(params)};
  cudaError_t error = cudaLaunchKernelExC(&config, kernel, arguments);
  if (error == cudaErrorInvalidValue && permit_shared_memory(kernel, shape.shared_memory_bytes) == cudaSuccess) {
    cudaGetLastError();
    error = cudaLaunchKernelExC(&config, kernel, arguments);
  }
  return error == cudaSuccess ? Status{} : failure(error);
}

Status launch_persistent_with(void const* kernel, KernelAttributes& attributes, LaunchShape const& shape, int tiles,
                              void const* params, GemmArgs const& args) {
  int const device = args.device->ordinal;
  if (Status const status = attributes.prepare(kernel, device, shape.shared_memory_bytes); !status.good()) return status;
  LaunchShape whole = shape;
  int at_once = args.device->sm_count;
  if (shape.cluster.x > 1) {
    whole.grid = shape.cluster;
    cudaLaunchAttribute launch_attributes[2];
    at_once = attributes.max_active_clusters(kernel, device, launch_config(whole, args.stream, launch_attributes));
    if (at_once == 0) return {StatusCode::not_implementable, 0};
  }
  whole.grid = dim3(static_cast<unsigned>(std::min(tiles, at_once)) * shape.cluster.x);
  return launch_kernel_with(kernel, whole, params, args.stream);
}

}  // namespace cutwheel::gemm
