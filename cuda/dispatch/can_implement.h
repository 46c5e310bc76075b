// Why a kernel cannot implement a request.
#pragma once

#include <string>

#include "dispatch/select.h"

namespace cutwheel {

// It becomes text on request only: a ranking goes through every kernel of the wheel.
enum class Reason {
  none,
  environment,
  architecture,
  native_is_there,
  shared_memory,
  operands,
  output,
  layouts,
  epilogue,
  scales,
  accumulation,
  grouping,
  direction,
  extents,
  unaligned,
  aligned,
  unaligned_d,
  pairs_apart,
  short_k,
  strided_cluster,
  volume,
  conv_groups,
  tensor_maps,
  padded_filter,
  shared_pixels,
  direct_conv,
  strided_dgrad,
  space_to_depth,
  few_channels,
  gathered_image,
  thin,
  summation
};

// Whether the wheel has code of this kernel that the device runs as it is: of its architecture, or assembled for it from
// PTX.
bool has_machine_code(KernelDescriptor const& kernel, DeviceInfo const& device);

// Considers the device alone. Kernels that would run through PTX count only when `ptx`.
Reason can_run_on(KernelDescriptor const& kernel, DeviceInfo const& device, bool ptx);

// Considers the request alone, which the kernel computes as a whole or, if `partial`, as the first half of split-K.
Reason can_implement(KernelDescriptor const& kernel, GemmRequest const& request, bool partial);

// Whether the kernel sums in the order that the request names.
bool has_summation_of(KernelDescriptor const& kernel, GemmRequest const& request);

bool has_epilogue_for(KernelDescriptor const& kernel, GemmRequest const& request);

std::string text_of(Reason reason, KernelDescriptor const& kernel, GemmRequest const& request, DeviceInfo const& device);

}  // namespace cutwheel
