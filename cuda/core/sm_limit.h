// How many SMs kernels may take: all, or those that a limit of ours, torch's carveout and the current context leave.
#pragma once

#include <cstdint>

#include "core/device.h"

namespace cutwheel {

// The limit of the process for all devices; 0: none. All threads have it: backward passes run on threads of torch.
int sm_limit();
void set_sm_limit(std::int64_t sms);

// Where torch keeps the SMs that its own GEMMs leave to others: its global context, and the function that reads them from
// it. 0 for both: nowhere.
void set_sm_carveout_source(std::int64_t context, std::int64_t getter);

// Whether a device of so many SMs is what a limit or a carveout has left. Green contexts and MPS limit every kernel
// themselves, and do not count.
bool leaves_sms(int sm_count);

// Whether a limit or a carveout is set at all.
bool leaves_sms();

// As device_info(), with all SMs of the device; device_info() has those that are left.
DeviceInfo const& whole_device_info(int ordinal);

// `whole`, or what is left of it: the same object for the same number of SMs, for the life of the process.
DeviceInfo const& limited_device_info(DeviceInfo const& whole);

// Of so many SMs, those that the limit and the carveout leave; at least 1.
int left_of(int sm_count);

}  // namespace cutwheel
