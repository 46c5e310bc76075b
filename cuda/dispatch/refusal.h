// Why a row of the table is no candidate.
#pragma once

#include <string>

#include "dispatch/select.h"

namespace cutwheel {

// It becomes text only for those who ask: a ranking goes through all rows of the wheel.
enum class Refusal {
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
  short_k,
  tensor_maps,
  windows,
  phases,
  blocks
};

// Of the device alone. PTX rows count only when `ptx`.
Refusal device_refusal(KernelRow const& row, DeviceInfo const& device, bool ptx);

// Of what is asked of the row's op, as the whole of it or (partial) as the first half of split-K.
Refusal request_refusal(KernelRow const& row, GemmRequest const& request, bool partial);

bool has_epilogue_for(KernelRow const& row, GemmRequest const& request);

std::string text_of(Refusal refusal, KernelRow const& row, GemmRequest const& request, DeviceInfo const& device);

}  // namespace cutwheel
