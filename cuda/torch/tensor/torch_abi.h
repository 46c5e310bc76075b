// Types that are to the C++ ABI what torch's are, for functions of torch's that are called by their mangled names.
// References are pointers, an at::Tensor is one owning pointer (what a handle points to), std::optional is libstdc++'s on
// both sides, and ArrayRef is a pointer and a length.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <optional>

namespace cutwheel {

using torch::stable::Tensor;

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

}  // namespace cutwheel
