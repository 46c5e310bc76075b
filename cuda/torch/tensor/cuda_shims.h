// The shims that live in libtorch_cuda only, as weak references: null in a CPU-only torch, which must still load this
// library. USE_CUDA stays undefined, or torch's own header would declare them strong. The signatures are stable since
// torch 2.9.
#pragma once

#include <cuda_runtime_api.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <cstdint>

#include "core/error.h"

extern "C" {
__attribute__((weak)) AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device_index, void** stream);
}

namespace cutwheel {

inline bool torch_has_cuda() { return &aoti_torch_get_current_cuda_stream != nullptr; }

inline cudaStream_t current_stream(int device) {
  if (!torch_has_cuda()) fail(ErrorKind::runtime, "this PyTorch was built without CUDA; install a CUDA build of torch");
  void* stream = nullptr;
  if (aoti_torch_get_current_cuda_stream(device, &stream) != 0) {
    fail(ErrorKind::runtime, "torch has no current CUDA stream for device ", device);
  }
  return static_cast<cudaStream_t>(stream);
}

}  // namespace cutwheel
