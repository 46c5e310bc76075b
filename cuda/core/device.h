// Properties of a GPU, queried once per process and device.
#pragma once

#include <cstdint>
#include <string>

#include "core/types.h"

namespace cutwheel {

struct DeviceInfo {
  int ordinal = 0;
  int major = 0, minor = 0;
  int sm_count = 0;
  int shared_memory_bytes = 0;  // per block, opted in
  int l2_bytes = 0;
  double memory_gb_per_s = 0;  // from clock and bus width where the driver tells them, else a data-sheet guess
  double sm_clock_ghz = 0;
  std::string name;
};

constexpr int kMaxDevices = 64;  // one bit per device in the launchers' masks

// Throws RuntimeError when the driver, the device or the runtime cannot serve; the text says what to do.
DeviceInfo const& device_info(int ordinal);

// Whether a GPU of this compute capability runs machine code, or PTX, of the architecture.
bool runs_native(Arch arch, int major, int minor);
bool runs_ptx(Arch arch, int major, int minor);

}  // namespace cutwheel
