// How kernels of depthwise and grouped convolutions are launched.
#pragma once

#include <limits>

#include "core/args/grouped_conv.h"
#include "core/launch.h"

namespace cutwheel::conv2d::depthwise {

// `attributes`: of this kernel.
template <class Params>
gemm::Status launch_blocks(gemm::KernelAttributes& attributes, GroupedConvArgs const& args, void const* kernel,
                           std::int64_t blocks, int threads, int shared_memory, Params const& params,
                           bool dependent_launch) {
  if (blocks > std::numeric_limits<int>::max()) return {StatusCode::not_implementable};
  DeviceInfo const& device = *args.device;
  if (gemm::Status const status = attributes.prepare(kernel, device.ordinal, device.shared_memory_bytes); !status.good()) {
    return status;
  }
  gemm::LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(blocks));
  shape.block = dim3(static_cast<unsigned>(threads));
  shape.shared_memory_bytes = shared_memory;
  shape.dependent_launch = dependent_launch;
  return gemm::launch_kernel(kernel, shape, params, args.stream);
}

}  // namespace cutwheel::conv2d::depthwise
