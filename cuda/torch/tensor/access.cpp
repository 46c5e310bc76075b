#include "torch/tensor/access.h"

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "core/args/pad.h"
#include "torch/launch.h"

namespace cutwheel {
namespace {

Tensor reshaped(Tensor const& tensor, std::vector<std::int64_t> sizes) {
  try {
    return torch::stable::reshape(tensor, sizes);
  } catch (std::runtime_error const&) {
    fail_copy("reshape an operand", tensor);
  }
}

bool pad_rows(Matrix const& source, Matrix const& target, int element_bytes, int device) {
  Padded padded;
  padded.images = source.batch, padded.rows = padded.target_rows = source.rows, padded.row_elements = source.cols;
  padded.image_stride = source.batch_stride, padded.row_stride = source.row_stride, padded.target_pitch = target.row_stride;
  return pad(padded, source.data, target.data, element_bytes, device);
}

}  // namespace

bool pad(Padded const& x, void const* source, void* target, int element_bytes, int device) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max() - 65535;
  std::int64_t const pitch = x.target_pitch * element_bytes, all_rows = x.images * x.target_lines * x.target_rows;
  bool const is_empty = x.images * x.lines * x.rows * x.row_elements == 0;
  if (is_empty || all_rows > kMost || pitch > kMost) return false;
  DeviceInfo const& info = device_info(device);
  KernelDescriptor const* const kernel = choose_pad_kernel(info);
  if (!kernel) return false;
  auto const number = [](std::int64_t n) { return static_cast<int>(n); };
  gemm::PadArgs args;
  args.source = static_cast<std::uint8_t const*>(source), args.target = static_cast<std::uint8_t*>(target);
  args.images = number(x.images), args.lines = number(x.lines), args.rows = number(x.rows);
  args.row_bytes = number(x.row_elements * element_bytes);
  args.image_stride = x.image_stride * element_bytes, args.line_stride = x.line_stride * element_bytes;
  args.row_stride = x.row_stride * element_bytes;
  args.target_lines = number(x.target_lines), args.target_rows = number(x.target_rows);
  args.target_pitch = pitch;
  args.first_row = number(x.first_row);
  args.device = &info;
  return launch_kernel(*kernel, args, "a copy");
}

View flatten_rows(Tensor const& tensor, std::int64_t rows, std::int64_t cols, std::vector<Tensor>& keep) {
  auto const sizes = tensor.sizes();
  auto const strides = tensor.strides();
  std::size_t const dims = sizes.size();
  Matrix matrix{tensor.data_ptr(), 1, rows, cols, 0, cols, strides[dims - 1]};
  std::int64_t expected = -1;  // the stride the next outer dimension must have
  for (std::size_t i = dims - 1; i-- > 0;) {
    if (sizes[i] == 1) continue;
    if (expected >= 0 && strides[i] != expected) {
      Tensor copy = reshaped(tensor, {rows, cols});
      keep.push_back(copy);
      return {matrix_of(copy), std::move(copy)};
    }
    if (expected < 0) matrix.row_stride = strides[i];
    expected = strides[i] * sizes[i];
  }
  return {matrix, tensor};
}

bool accessible(Matrix const& x, ScalarType type) {
  std::int64_t const unit = access_elements(type);
  return aligned(x.data) && (x.col_stride == 1 || x.cols == 1) && (x.rows == 1 || x.row_stride % unit == 0) &&
         (x.batch == 1 || x.batch_stride % unit == 0);
}

Matrix copy_padded(Matrix const& source, Tensor const& owner, ScalarType type, std::int64_t pitch, int device,
                   std::vector<Tensor>& keep) {
  pitch = std::max(pitch, access_elements(type));
  std::int64_t const rows = std::max<std::int64_t>(source.rows, 1);
  Tensor buffer =
      empty_strided({std::max<std::int64_t>(source.batch, 1), rows, pitch}, {rows * pitch, pitch, 1}, type, device);
  Matrix const target{buffer.data_ptr(), source.batch, source.rows, source.cols, rows * pitch, pitch, 1};
  if (source.col_stride == 1 && owner.scalar_type() == type && pad_rows(source, target, element_bytes_of(type), device)) {
    keep.push_back(std::move(buffer));
    return target;
  }
  if (pitch != source.cols) torch::stable::zero_(buffer);
  Tensor view = view_of(buffer, target);
  torch::stable::copy_(view, view_of(owner, source));
  keep.push_back(std::move(buffer));
  return target;
}

Matrix readable(Matrix const& x, Tensor const& owner, ScalarType type, std::int64_t pitch, bool force_copy, int device,
                std::vector<Tensor>& keep) {
  bool const as_it_lies = !force_copy && owner.scalar_type() == type && accessible(x, type);
  return as_it_lies ? x : copy_padded(x, owner, type, pitch, device, keep);
}

Matrix readable_rows(Tensor const& tensor, std::int64_t rows, std::int64_t cols, int device, std::vector<Tensor>& keep) {
  ScalarType const type = type_of(tensor);
  std::int64_t const pitch = round_up(cols, access_elements(type));
  View const view = flatten_rows(tensor, rows, cols, keep);
  Matrix x = readable(view.matrix, view.owner, type, pitch, /*force_copy=*/false, device, keep);
  x.row_stride = leading_of(x, pitch);
  return x;
}

Matrix vector_of(Tensor const& tensor) {
  auto const sizes = tensor.sizes();
  auto const strides = tensor.strides();
  Matrix vector{tensor.data_ptr(), 1, 1, 1, 0, 0, 1};
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] != 1) vector.cols = sizes[i], vector.col_stride = strides[i];
  }
  return vector;
}

PreparedOperand prepare_operand(Matrix matrix, Tensor const& owner, ScalarType type, Layout preferred,
                                CopyPolicy copy_policy, bool force_copy, int device, std::vector<Tensor>& keep) {
  std::int64_t const unit = access_elements(type);
  // Oriented so that the contiguous dimension is the last one.
  auto const oriented = [&](Layout layout) { return layout == Layout::row ? matrix : matrix.transposed(); };
  auto const fits = [&](Layout layout, bool anywhere) {
    Matrix const x = oriented(layout);
    bool const lies_well = anywhere ? x.col_stride == 1 : accessible(x, type);
    return !force_copy && lies_well && (!copy_policy.extents || x.cols % unit == 0);
  };
  Layout const other = preferred == Layout::row ? Layout::column : Layout::row;
  std::optional<Layout> as_it_lies;
  for (bool const anywhere : {false, true}) {
    if (as_it_lies || (anywhere && copy_policy.operands)) break;
    if (fits(preferred, anywhere)) {
      as_it_lies = preferred;
    } else if (!copy_policy.layouts && fits(other, anywhere)) {
      as_it_lies = other;
    }
  }
  PreparedOperand prepared;
  prepared.layout = as_it_lies.value_or(preferred);
  Matrix chosen = oriented(prepared.layout);
  if (!as_it_lies) chosen = copy_padded(chosen, owner, type, round_up(chosen.cols, unit), device, keep);
  // A copy is padded with zeros: as good as aligned.
  prepared.extent_aligned = copy_policy.extents || chosen.cols % unit == 0;
  prepared.aligned = copy_policy.operands || accessible(chosen, type);
  prepared.operand.data = chosen.data;
  prepared.operand.leading = leading_of(chosen, round_up(chosen.cols, unit));
  prepared.operand.batch_stride = chosen.batch == 1 ? 0 : chosen.batch_stride;
  return prepared;
}

std::int64_t distance_between(Matrix const& one, Matrix const& other, ScalarType type, bool whole_accesses) {
  bool const one_stride =
      (one.rows == 1 || one.row_stride == other.row_stride) && (one.batch == 1 || one.batch_stride == other.batch_stride);
  bool const fits = !whole_accesses || one.cols % access_elements(type) == 0;
  if (!one_stride || !fits || !accessible(one, type) || !accessible(other, type)) return 0;
  std::int64_t const bytes = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(other.data)) -
                             static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(one.data));
  constexpr std::int64_t kMostBytes = std::int64_t{1} << 40;  // of a tensor map
  return bytes > -kMostBytes && bytes < kMostBytes ? bytes / element_bytes_of(type) : 0;
}

View pairs_of(View const& even, View const& odd, ScalarType type, CopyPolicy copy_policy, bool may_be_apart, int device,
              std::vector<Tensor>& keep) {
  Matrix const& x = even.matrix;
  if (std::int64_t const stride = may_be_apart ? distance_between(x, odd.matrix, type, copy_policy.extents) : 0) {
    bool const odd_first = stride < 0;
    View const& first = odd_first ? odd : even;
    return {first.matrix.transposed(), first.owner, odd_first ? -stride : stride, odd_first};
  }
  std::int64_t const pitch = round_up(std::max<std::int64_t>(x.cols, 1), access_elements(type));
  Tensor buffer = empty_strided({x.batch, x.rows, 2, pitch}, {x.rows * 2 * pitch, 2 * pitch, pitch, 1}, type, device);
  if (pitch != x.cols) torch::stable::zero_(buffer);
  auto* const data = static_cast<char*>(buffer.data_ptr());
  for (View const* each : {&even, &odd}) {
    std::int64_t const skipped = each == &odd ? pitch * element_bytes_of(type) : 0;
    Tensor target = view_of(buffer, {data + skipped, x.batch, x.rows, x.cols, x.rows * 2 * pitch, 2 * pitch, 1});
    torch::stable::copy_(target, view_of(each->owner, each->matrix));
  }
  keep.push_back(buffer);
  return {{data, x.batch, x.cols, 2 * x.rows, x.rows * 2 * pitch, 1, pitch}, std::move(buffer)};
}

bool writable(Matrix const& x, ScalarType type) { return accessible(x, type) && x.cols % access_elements(type) == 0; }

Matrix prepare_output(Output& output, Matrix const& target, ScalarType type, std::int64_t pitch, bool force_temporary,
                      int device) {
  output.temporary.reset();
  if (!force_temporary && writable(target, type)) return target;
  output.temporary = empty_strided({target.batch, target.rows, pitch}, {target.rows * pitch, pitch, 1}, type, device);
  output.copy_from = {output.temporary->data_ptr(), target.batch, target.rows, target.cols, target.rows * pitch, pitch, 1};
  output.copy_to = target;
  return output.copy_from;
}

void finish_output(Output& output) {
  if (!output.temporary) return;
  Tensor target = view_of(*output.tensor, output.copy_to);
  torch::stable::copy_(target, view_of(*output.temporary, output.copy_from));
}

}  // namespace cutwheel
