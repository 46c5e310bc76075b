#include "torch/tensor/tensor.h"

#include <algorithm>

#include "torch/tensor/shim_errors.h"

namespace cutwheel {
namespace {

void check(AOTITorchError error, char const* what) {
  if (error != 0) fail_shim(what);
}

Tensor make(std::int64_t const* sizes, std::int64_t const* strides, int dims, ScalarType type, int device) {
  AtenTensorHandle handle = nullptr;
  // The shims number types as torch does.
  AOTITorchError const error = aoti_torch_empty_strided(dims, sizes, strides, static_cast<std::int32_t>(type),
                                                        aoti_torch_device_type_cuda(), device, &handle);
  if (error != 0) fail_allocation(sizes, dims, element_bytes_of(type), device);
  return Tensor(handle);
}

// Elements from the first to one past the last that the view touches.
std::int64_t span(Matrix const& x) {
  if (x.batch == 0 || x.rows == 0 || x.cols == 0) return 0;
  return (x.batch - 1) * x.batch_stride + (x.rows - 1) * x.row_stride + (x.cols - 1) * x.col_stride + 1;
}

}  // namespace

Matrix matrix_of(Tensor const& tensor) {
  auto const sizes = tensor.sizes();
  auto const strides = tensor.strides();
  std::size_t const dims = sizes.size();
  Matrix matrix{tensor.data_ptr(), 1, 1, 1, 0, 0, 0};
  if (dims > 0) matrix.cols = sizes[dims - 1], matrix.col_stride = strides[dims - 1];
  if (dims > 1) matrix.rows = sizes[dims - 2], matrix.row_stride = strides[dims - 2];
  if (dims > 2) matrix.batch = sizes[dims - 3], matrix.batch_stride = strides[dims - 3];
  return matrix;
}

ScalarType type_of(Tensor const& tensor) {
  std::int32_t type = 0;
  check(aoti_torch_get_dtype(tensor.get(), &type), "tell a dtype");
  return static_cast<ScalarType>(type);  // the numbers are part of torch's file format
}

DType dtype_of(ScalarType type) {
  switch (type) {
    case ScalarType::Half: return DType::f16;
    case ScalarType::BFloat16: return DType::bf16;
    case ScalarType::Float8_e4m3fn: return DType::e4m3;
    case ScalarType::Float8_e5m2: return DType::e5m2;
    case ScalarType::Char: return DType::s8;
    case ScalarType::Int: return DType::s32;
    default: return DType::f32;
  }
}

std::string list_text(std::int64_t const* values, std::size_t count) {
  std::string text = "[";
  for (std::size_t i = 0; i < count; ++i) text += (i ? ", " : "") + std::to_string(values[i]);
  return text + "]";
}

std::string shape_text(Tensor const& tensor) {
  auto const sizes = tensor.sizes();
  return list_text(sizes.data(), sizes.size());
}

std::string dtype_text(ScalarType type) {
  switch (type) {
    case ScalarType::Byte: return "uint8";
    case ScalarType::Char: return "int8";
    case ScalarType::Short: return "int16";
    case ScalarType::Int: return "int32";
    case ScalarType::Long: return "int64";
    case ScalarType::Half: return "float16";
    case ScalarType::Float: return "float32";
    case ScalarType::Double: return "float64";
    case ScalarType::ComplexHalf: return "complex32";
    case ScalarType::ComplexFloat: return "complex64";
    case ScalarType::ComplexDouble: return "complex128";
    default: break;
  }
  // Python's names of all others are C++'s in small letters.
  std::string text = torch::headeronly::toString(type);
  for (char& letter : text) {
    if (letter >= 'A' && letter <= 'Z') letter += 'a' - 'A';
  }
  return text;
}

Tensor empty_strided(std::initializer_list<std::int64_t> sizes, std::initializer_list<std::int64_t> strides,
                     ScalarType type, int device) {
  return make(sizes.begin(), strides.begin(), static_cast<int>(sizes.size()), type, device);
}

Tensor empty_contiguous(std::int64_t const* sizes, int dims, ScalarType type, int device) {
  std::array<std::int64_t, kMaxDims> strides;
  std::int64_t stride = 1;
  for (int i = dims - 1; i >= 0; --i) {
    strides[static_cast<std::size_t>(i)] = stride;
    stride *= std::max<std::int64_t>(sizes[i], 1);
  }
  return make(sizes, strides.data(), dims, type, device);
}

Tensor empty_like_rows(Tensor const& like, std::int64_t cols, ScalarType type, int device) {
  auto const sizes = like.sizes();
  std::array<std::int64_t, kMaxDims> shape;
  std::copy(sizes.begin(), sizes.end(), shape.begin());
  shape[sizes.size() - 1] = cols;
  return empty_contiguous(shape.data(), static_cast<int>(sizes.size()), type, device);
}

Tensor empty_bytes(std::int64_t bytes, int device) { return empty_strided({bytes}, {1}, ScalarType::Byte, device); }

void fail_copy(char const* what, Tensor const& tensor) {
  empty_bytes(tensor.numel() * element_bytes_of(type_of(tensor)), static_cast<int>(tensor.get_device_index()));
  fail_shim(what);
}

Tensor reinterpret(Tensor const& owner, void const* data, std::int64_t const* sizes, std::int64_t const* strides,
                   int dims) {
  // An increment: torch adds the owner's own storage offset.
  std::int64_t const offset =
      (static_cast<char const*>(data) - static_cast<char const*>(owner.data_ptr())) / element_bytes_of(type_of(owner));
  AtenTensorHandle handle = nullptr;
  check(aoti_torch__reinterpret_tensor(owner.get(), dims, sizes, strides, offset, &handle), "make a view");
  return Tensor(handle);
}

namespace {

Tensor last_dimensions(Tensor const& owner, Matrix const& matrix, int dims) {
  std::int64_t const sizes[] = {matrix.batch, matrix.rows, matrix.cols};
  std::int64_t const strides[] = {matrix.batch_stride, matrix.row_stride, matrix.col_stride};
  return reinterpret(owner, matrix.data, sizes + 3 - dims, strides + 3 - dims, dims);
}

}  // namespace

Tensor view_of(Tensor const& owner, Matrix const& matrix) { return last_dimensions(owner, matrix, 3); }

Tensor matrix_view(Tensor const& owner, Matrix const& matrix) { return last_dimensions(owner, matrix, 2); }

bool overlaps(Matrix const& x, int x_bytes, Matrix const& y, int y_bytes) {
  auto const* const x_begin = static_cast<char const*>(x.data);
  auto const* const y_begin = static_cast<char const*>(y.data);
  if (span(x) == 0 || span(y) == 0) return false;
  if (x_begin + span(x) * x_bytes <= y_begin || y_begin + span(y) * y_bytes <= x_begin) return false;
  bool const column_slices = x_bytes == y_bytes && x.batch == 1 && y.batch == 1 && x.col_stride == 1 && y.col_stride == 1 &&
                             x.row_stride == y.row_stride && x.cols <= x.row_stride && y.cols <= y.row_stride;
  if (!column_slices) return true;
  std::int64_t const pitch = x.row_stride;
  std::int64_t const distance = (y_begin - x_begin) / x_bytes;
  std::int64_t const shift = ((distance % pitch) + pitch) % pitch;  // where y's first column falls in a row of x
  return shift < x.cols || shift + y.cols > pitch;
}

bool same_view(Matrix const& x, Matrix const& y) {
  auto const same = [](std::int64_t size, std::int64_t stride, std::int64_t other_size, std::int64_t other_stride) {
    return size == other_size && (size == 1 || stride == other_stride);
  };
  return x.data == y.data && same(x.batch, x.batch_stride, y.batch, y.batch_stride) &&
         same(x.rows, x.row_stride, y.rows, y.row_stride) && same(x.cols, x.col_stride, y.cols, y.col_stride);
}

bool overlaps_itself(Matrix const& x) {
  if (span(x) == 0) return false;
  struct Axis {
    std::int64_t size, stride;
  };
  std::array<Axis, 3> axes{{{x.batch, x.batch_stride}, {x.rows, x.row_stride}, {x.cols, x.col_stride}}};
  std::sort(axes.begin(), axes.end(), [](Axis const& p, Axis const& q) { return p.stride < q.stride; });
  std::int64_t reach = 0;  // elements already named by the axes of smaller stride
  for (Axis const& axis : axes) {
    if (axis.size == 1) continue;
    if (axis.stride <= reach) return true;
    reach += (axis.size - 1) * axis.stride;
  }
  return false;
}

DeviceScope::DeviceScope(int device) {
  std::int32_t current = -1;
  check(aoti_torch_get_current_device_index(&current), "tell the current device");
  if (current == device && has_context_of(device)) return;
  context_.emplace();
  if (current != device) guard_.emplace(device);
  // A new thread has a device but no context yet; encoding a tensor map, which comes before the first launch, needs one.
  if (!has_context_of(device)) ContextScope::set_primary(device);
}

}  // namespace cutwheel
