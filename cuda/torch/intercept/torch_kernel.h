// torch's own kernels behind its dispatcher, as at::cuda::mm, called by what their names say of their arguments.
//
// A mangled name holds the types of the arguments: a torch that changes them has no such symbol, and the op stays with
// torch. The types below are to the C++ ABI what torch's are: references are pointers, an at::Tensor is one owning pointer
// (what a handle points to), std::optional is libstdc++'s on both sides, and ArrayRef is a pointer and a length. The shims
// of AOTInductor (aoti_torch_cuda_mm_out) call the same functions, but turn their exceptions into a code: a bad argument or
// a full memory would lose class and text. torch.library.get_kernel takes Python.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <tuple>

#include "torch/intercept/account.h"

namespace cutwheel {

// An at::Tensor by value. Its destructor is not trivial, so a function returns it in memory, as torch's does.
struct TorchTensor {
  void* impl = nullptr;
  TorchTensor() = default;
  TorchTensor(TorchTensor const&) = delete;
  TorchTensor(TorchTensor&& other) noexcept : impl(other.impl) { other.impl = nullptr; }
  ~TorchTensor() {}  // adopt() has taken what it owns
};

// IntArrayRef and OptionalIntArrayRef.
struct TorchList {
  std::int64_t const* data = nullptr;
  std::size_t size = 0;
};
struct TorchOptionalList {
  TorchList list;
  bool is_given = false;
};

// std::optional<at::Tensor> by reference.
struct TorchOptional {
  void* impl = nullptr;
  bool is_given = false;

  explicit TorchOptional(std::optional<Tensor> const& tensor) {
    if (tensor) impl = *reinterpret_cast<void**>(tensor->get()), is_given = true;
  }
};

// Makes `result`, a new handle of an undefined tensor, the owner of what a kernel returned.
inline void adopt(Tensor const& result, TorchTensor&& returned) {
  *reinterpret_cast<void**>(result.get()) = returned.impl;
  returned.impl = nullptr;
}

// Where torch's kernel of an op that is taken is.
inline std::array<std::atomic<void*>, kTakenCount> g_torch_kernels{};

template <class Function>
Function* torch_kernel(Taken op) {
  void* const found = g_torch_kernels[static_cast<std::size_t>(op)].load(std::memory_order_acquire);
  return reinterpret_cast<Function*>(found);
}

}  // namespace cutwheel
