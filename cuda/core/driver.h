// The CUDA driver, reached through the runtime so that the library loads where libcuda.so.1 does not exist.
#pragma once

#include <string>

namespace cutwheel {

struct DriverStatus {
  bool ok = false;
  int driver_version = 0;  // as CUDA counts: 13000 is CUDA 13.0; 0 when there is no driver
  int required = 0;
  std::string message;  // what is wrong and what to do; empty when ok
};

// Never throws. The answer is kept for the life of the process once it is good.
DriverStatus driver_status();

// Throws RuntimeError with driver_status().message.
void require_driver();

// The driver's function of this name, which every driver that require_driver() accepts has. Throws RuntimeError.
void* find_driver_function(char const* name);
template <class Signature>
Signature* driver_function(char const* name) {
  return reinterpret_cast<Signature*>(find_driver_function(name));
}

// The CUresult of the last tensor map that could not be encoded on this thread, and clears it; 0 when all went well.
int take_tensor_map_error();

}  // namespace cutwheel
