#include "core/device.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <memory>
#include <mutex>

#include "core/context.h"
#include "core/driver.h"
#include "core/error.h"
#include "core/sm_limit.h"

namespace cutwheel {
namespace {

int attribute(cudaDeviceAttr which, int ordinal) {
  int value = 0;
  if (cudaError_t error = cudaDeviceGetAttribute(&value, which, ordinal); error != cudaSuccess) {
    fail(ErrorKind::runtime, "CUDA device ", ordinal, " cannot be queried: ", cudaGetErrorString(error));
  }
  return value;
}

// All of the device. The driver is asked, with the primary context current: with the runtime of CUDA 12, grids fitted the
// SMs of the green context in which the first call was made.
int sms_of_device(int ordinal) {
  ContextScope const scope;
  if (has_context_of(ordinal)) ContextScope::set_primary(ordinal);
  int sms = 0;
  auto* const ask = driver_function<CUresult(int*, CUdevice_attribute, CUdevice)>("cuDeviceGetAttribute");
  if (ask(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, ordinal) == CUDA_SUCCESS && sms > 0) return sms;
  return attribute(cudaDevAttrMultiProcessorCount, ordinal);
}

std::unique_ptr<DeviceInfo> query(int ordinal) {
  require_driver();
  auto info = std::make_unique<DeviceInfo>();
  info->ordinal = ordinal;
  info->major = attribute(cudaDevAttrComputeCapabilityMajor, ordinal);
  info->minor = attribute(cudaDevAttrComputeCapabilityMinor, ordinal);
  info->sm_count = sms_of_device(ordinal);
  info->shared_memory_bytes = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, ordinal);
  info->l2_bytes = attribute(cudaDevAttrL2CacheSize, ordinal);
  info->sm_clock_ghz = attribute(cudaDevAttrClockRate, ordinal) * 1e-6;
  // DDR: two transfers per clock.
  info->memory_gb_per_s =
      2e-6 * attribute(cudaDevAttrMemoryClockRate, ordinal) * attribute(cudaDevAttrGlobalMemoryBusWidth, ordinal) / 8.0;
  if (info->sm_clock_ghz <= 0) info->sm_clock_ghz = 1.5;
  if (info->memory_gb_per_s <= 0) info->memory_gb_per_s = info->major >= 9 ? 3000 : info->minor == 0 ? 1500 : 600;
  cudaDeviceProp properties;
  if (cudaGetDeviceProperties(&properties, ordinal) == cudaSuccess) info->name = properties.name;
  return info;
}

}  // namespace

DeviceInfo const& whole_device_info(int ordinal) {
  static std::once_flag flags[kMaxDevices];
  static std::unique_ptr<DeviceInfo> infos[kMaxDevices];
  if (ordinal < 0 || ordinal >= kMaxDevices) {
    fail(ErrorKind::runtime, "CUDA device ", ordinal, " is out of range: at most ", kMaxDevices, " devices are supported");
  }
  // call_once lets a later call try again when query throws.
  std::call_once(flags[ordinal], [&] { infos[ordinal] = query(ordinal); });
  return *infos[ordinal];
}

DeviceInfo const& device_info(int ordinal) { return limited_device_info(whole_device_info(ordinal)); }

bool runs_native(Arch arch, int major, int minor) {
  if (arch == Arch::sm90a) return major == 9 && minor == 0;
  int const value = static_cast<int>(arch);
  return value / 10 == major && value % 10 <= minor;
}

bool runs_ptx(Arch arch, int major, int minor) {
  return arch != Arch::sm90a && static_cast<int>(arch) <= major * 10 + minor;
}

}  // namespace cutwheel
