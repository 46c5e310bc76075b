// Small helpers over the stable Tensor. With tensors of at most a few dimensions everything here stays off the heap.
#pragma once

#include <cuda_runtime_api.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "core/context.h"
#include "core/types.h"

namespace cutwheel {

constexpr int kMaxDims = 64;  // torch's own limit

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// One matrix of a batch, as a view of somebody's memory; strides in elements.
struct Matrix {
  void* data = nullptr;
  std::int64_t batch = 1, rows = 0, cols = 0;
  std::int64_t batch_stride = 0, row_stride = 0, col_stride = 0;

  Matrix transposed() const { return {data, batch, cols, rows, batch_stride, col_stride, row_stride}; }
};

// The last two dimensions are the matrix, a third is the batch; missing ones have extent 1.
Matrix matrix_of(Tensor const& tensor);

// As the tensor has it. torch's own conversion throws for types that are newer than the torch we are built for: those of
// mxfp8 and nvfp4 scales, which have to be refused by name.
ScalarType type_of(Tensor const& tensor);

// Bytes of an element of an operand, result or copy.
constexpr int element_bytes_of(ScalarType type) {
  switch (type) {
    case ScalarType::Float:
    case ScalarType::Int: return 4;
    case ScalarType::Half:
    case ScalarType::BFloat16: return 2;
    default: return 1;
  }
}

// For types that kernels know. float32 as an operand of mm is DType::tf32.
DType dtype_of(ScalarType type);

std::string list_text(std::int64_t const* values, std::size_t count);  // [1, 2, 3]
std::string shape_text(Tensor const& tensor);
// torch's name in Python: float16, complex64, float8_e4m3fn, ...
std::string dtype_text(ScalarType type);

Tensor empty_strided(std::initializer_list<std::int64_t> sizes, std::initializer_list<std::int64_t> strides,
                     ScalarType type, int device);
Tensor empty_contiguous(std::int64_t const* sizes, int dims, ScalarType type, int device);
Tensor empty_bytes(std::int64_t bytes, int device);
// [..., cols] where `like` is [..., any].
Tensor empty_like_rows(Tensor const& like, std::int64_t cols, ScalarType type, int device);

// Where an op of torch's failed to make a copy of `tensor`: throws OutOfMemoryError if there is no memory for one, else
// RuntimeError: torch could not <what>.
[[noreturn]] void fail_copy(char const* what, Tensor const& tensor);

// A tensor over the memory of `owner`, from `data` on.
Tensor reinterpret(Tensor const& owner, void const* data, std::int64_t const* sizes, std::int64_t const* strides, int dims);

// A [batch, rows, cols] tensor over the memory of `owner`.
Tensor view_of(Tensor const& owner, Matrix const& matrix);
// The same of a batch of 1, [rows, cols].
Tensor matrix_view(Tensor const& owner, Matrix const& matrix);

// Do two views share a byte? Exact for matrices of one element size and row stride (slices of one buffer), else by address.
bool overlaps(Matrix const& x, int x_bytes, Matrix const& y, int y_bytes);
// The same elements at the same places; strides of extents of 1 do not matter. For matrices of one element type.
bool same_view(Matrix const& x, Matrix const& y);
// Does the view name a byte twice?
bool overlaps_itself(Matrix const& x);

// Makes the device current for torch, and a context of it for the driver, where they are not; puts both back.
class DeviceScope {
 public:
  explicit DeviceScope(int device);
  DeviceScope(DeviceScope const&) = delete;
  DeviceScope& operator=(DeviceScope const&) = delete;

 private:
  std::optional<ContextScope> context_;  // destroyed last: the guard makes a primary context current
  std::optional<torch::stable::accelerator::DeviceGuard> guard_;
};

}  // namespace cutwheel
