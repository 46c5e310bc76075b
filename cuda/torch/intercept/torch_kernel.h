// torch's own kernels behind its dispatcher, as at::cuda::mm, called by what their names say of their arguments.
//
// A mangled name holds the types of the arguments: a torch that changes them has no such symbol, and the op stays with
// torch. The shims of AOTInductor (aoti_torch_cuda_mm_out) call the same functions, but turn their exceptions into a code:
// a bad argument or a full memory would lose class and text. torch.library.get_kernel takes Python.
#pragma once

#include <atomic>

#include "torch/intercept/account.h"
#include "torch/tensor/torch_abi.h"

namespace cutwheel {

// Where torch's kernel of an op that is taken is.
inline std::array<std::atomic<void*>, kTakenCount> g_torch_kernels{};

template <class Function>
Function* torch_kernel(Taken op) {
  void* const found = g_torch_kernels[static_cast<std::size_t>(op)].load(std::memory_order_acquire);
  return reinterpret_cast<Function*>(found);
}

}  // namespace cutwheel
