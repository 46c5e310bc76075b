#include "core/context.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "core/driver.h"
#include "core/error.h"

namespace cutwheel {
namespace {

struct Functions {
  CUresult (*get_device)(CUdevice*) = driver_function<CUresult(CUdevice*)>("cuCtxGetDevice");
  CUresult (*get_current)(CUcontext*) = driver_function<CUresult(CUcontext*)>("cuCtxGetCurrent");
  CUresult (*set_current)(CUcontext) = driver_function<CUresult(CUcontext)>("cuCtxSetCurrent");
};

Functions const& functions() {
  static Functions const found;  // looked up again by the next call where this throws
  return found;
}

}  // namespace

bool has_context_of(int device) {
  CUdevice current = -1;  // numbered as the runtime numbers devices
  return functions().get_device(&current) == CUDA_SUCCESS && current == device;
}

ContextScope::ContextScope() {
  CUcontext current = nullptr;
  if (functions().get_current(&current) == CUDA_SUCCESS) previous_ = current;
}

ContextScope::~ContextScope() {
  if (previous_) functions().set_current(static_cast<CUcontext>(previous_));
}

void ContextScope::set_primary(int device) {
  if (cudaError_t const error = cudaSetDevice(device); error != cudaSuccess) {
    cudaGetLastError();  // or torch would report it at its next call
    fail(ErrorKind::runtime, "CUDA device ", device, " cannot be made current: ", cudaGetErrorString(error));
  }
}

}  // namespace cutwheel
