#include "torch/conv/image.h"

#include <algorithm>

#include "torch/tensor/shim_errors.h"

namespace cutwheel {
namespace {

using Four = std::array<std::int64_t, 4>;

Four contiguous_strides(Four const& sizes) { return {sizes[1] * sizes[2] * sizes[3], sizes[2] * sizes[3], sizes[3], 1}; }

void name_strides_of_ones(Image& image) {
  std::int64_t next = 1;
  for (std::size_t i = 4; i-- > 0;) {
    if (image.sizes[i] == 1) image.strides[i] = next;
    next = image.strides[i] * image.sizes[i];
  }
}

// With zeros where the source has nothing: behind its sizes, and in the first pad_w pixels of rows.
Image copy_of(Tensor const& owner, Image const& source, Four const& sizes, std::int64_t pad_w, int device,
              std::vector<Tensor>& keep) {
  Image copy{nullptr, sizes, contiguous_strides(sizes)};
  Tensor buffer = empty_strided({sizes[0], sizes[1], sizes[2], sizes[3]},
                                {copy.strides[0], copy.strides[1], copy.strides[2], 1}, owner.scalar_type(), device);
  copy.data = buffer.data_ptr();
  Four kept = source.sizes;
  kept[1] = std::min(kept[1], sizes[1]), kept[2] = std::min(kept[2], sizes[2] - pad_w);
  int const bytes = element_bytes_of(owner.scalar_type());
  Padded padded;
  padded.images = kept[0], padded.lines = kept[1], padded.rows = kept[2], padded.row_elements = kept[3];
  padded.image_stride = source.strides[0], padded.line_stride = source.strides[1], padded.row_stride = source.strides[2];
  padded.target_lines = sizes[1], padded.target_rows = sizes[2], padded.target_pitch = sizes[3], padded.first_row = pad_w;
  bool const is_whole = sizes == kept, has_rows = source.strides[3] == 1 && sizes[0] == kept[0];
  if (is_whole || !has_rows || !pad(padded, source.data, copy.data, bytes, device)) {
    if (!is_whole) torch::stable::zero_(buffer);
    char* const first = static_cast<char*>(copy.data) + pad_w * sizes[3] * bytes;
    if (kept[1] > 0 && kept[2] > 0) {
      Tensor target = view_of(buffer, Image{first, kept, copy.strides});
      torch::stable::copy_(target, view_of(owner, Image{source.data, kept, source.strides}));
    }
  }
  keep.push_back(std::move(buffer));
  return copy;
}

Image copy_of(Tensor const& owner, Image const& source, FilterForm const& form, int device, std::vector<Tensor>& keep) {
  auto const [own_filters, r, s, own_channels] = source.sizes;
  std::int64_t const row = r * s * form.channels, pitch = round_up(row, form.pitch_unit);
  std::int64_t const access = access_elements(owner.scalar_type());  // of what writes padded rows
  if (pitch == row && form.channels % access == 0) {
    return copy_of(owner, source, {form.filters, r, s, form.channels}, 0, device, keep);
  }
  Image const target{nullptr, {form.filters, r, s, form.channels}, {pitch, s * form.channels, form.channels, 1}};
  bool const is_matrix = form.channels == own_channels && source.strides == contiguous_strides(source.sizes);
  if (is_matrix && pitch % access == 0) {
    Image const rows{source.data, {1, 1, own_filters, row}, {own_filters * row, own_filters * row, row, 1}};
    return {copy_of(owner, rows, {1, 1, form.filters, pitch}, 0, device, keep).data, target.sizes, target.strides};
  }
  Tensor buffer = empty_strided({form.filters, pitch}, {pitch, 1}, owner.scalar_type(), device);
  torch::stable::zero_(buffer);
  Tensor kept = view_of(buffer, Image{buffer.data_ptr(), source.sizes, target.strides});
  torch::stable::copy_(kept, view_of(owner, source));
  keep.push_back(buffer);
  return {buffer.data_ptr(), target.sizes, target.strides};
}

// Strides of 0, of expanded tensors, are none for a tensor map.
bool accessible(Image const& image, ScalarType type) {
  std::int64_t const unit = access_elements(type);
  bool fits = aligned(image.data) && image.strides[3] == 1 && image.channels() % unit == 0;
  for (std::size_t i = 0; i < 3; ++i) fits = fits && image.strides[i] > 0 && image.strides[i] % unit == 0;
  return fits;
}

}  // namespace

Tensor flip(Tensor const& filter, std::int64_t one, std::int64_t other) {
  std::array<StableIValue, 2> stack{torch::stable::detail::from(filter),
                                    torch::stable::detail::from(std::vector<std::int64_t>{one, other})};
  if (torch_call_dispatcher("aten::flip", "", stack.data(), TORCH_ABI_VERSION) != 0) {
    fail_copy("flip a filter", filter);
  }
  return torch::stable::detail::to<Tensor>(stack[0]);
}

Image image_of(Tensor const& tensor) {
  auto const sizes = tensor.sizes();
  auto const strides = tensor.strides();
  Image image{
      tensor.data_ptr(), {sizes[0], sizes[2], sizes[3], sizes[1]}, {strides[0], strides[2], strides[3], strides[1]}};
  name_strides_of_ones(image);
  return image;
}

bool is_even(Image const& image) {
  return image.strides[1] == image.strides[2] * image.sizes[2] && image.strides[0] == image.strides[1] * image.sizes[1];
}

Tensor view_of(Tensor const& owner, Image const& image) {
  return reinterpret(owner, image.data, image.sizes.data(), image.strides.data(), 4);
}

Tensor nchw_view(Tensor const& owner, Image const& image) {
  Four const &s = image.sizes, &t = image.strides;
  Four const sizes{s[0], s[3], s[1], s[2]}, strides{t[0], t[3], t[1], t[2]};
  return reinterpret(owner, image.data, sizes.data(), strides.data(), 4);
}

Tensor empty_channels_last(Four const& sizes, ScalarType type, int device) {
  std::int64_t const c = sizes[1], w = sizes[3], h = sizes[2];
  return empty_strided({sizes[0], c, h, w}, {c * h * w, 1, w * c, c}, type, device);
}

Tensor empty_channels_last_3d(std::array<std::int64_t, 5> const& sizes, ScalarType type, int device) {
  auto const [n, c, d, h, w] = sizes;
  return empty_strided({n, c, d, h, w}, {c * w * h * d, 1, c * w * h, c * w, c}, type, device);
}

Image readable_image(Tensor const& tensor, ImageForm const& form, int device, std::vector<Tensor>& keep) {
  auto const folded = [&](Image image) {
    image.sizes[2] /= form.fold, image.sizes[3] *= form.fold;
    image.strides[2] *= form.fold;
    return image;
  };
  Image const image = image_of(tensor);
  bool const foldable = form.fold == 1 || (image.strides[3] == 1 && image.strides[2] == image.channels());
  Four const sizes{image.sizes[0], std::max(form.h, image.sizes[1]), std::max(form.w, image.sizes[2]), form.channels};
  bool const fits = sizes == image.sizes && foldable && (!form.even || is_even(image));
  if (fits && accessible(folded(image), tensor.scalar_type())) return folded(image);
  return folded(copy_of(tensor, image, sizes, 0, device, keep));
}

Image windows_of(Tensor const& tensor, WindowForm const& form, int device, std::vector<Tensor>& keep) {
  Image const source = image_of(tensor);
  std::int64_t const images = source.sizes[0], h = source.sizes[1], c = form.channels;
  // Rows are a multiple of the stride, as strides of tensor maps should be of each other.
  std::int64_t const w = round_up((form.count - 1) * form.stride + form.pixels, form.stride);
  Image const copy = copy_of(tensor, source, {images, h, w, c}, form.pad, device, keep);
  return {copy.data, {images, h, form.count, form.pixels * c}, {copy.strides[0], copy.strides[1], form.stride * c, 1}};
}

Image readable_filter(Tensor const& tensor, FilterForm const& form, int device, std::vector<Tensor>& keep) {
  Image const filter = image_of(tensor);
  auto const [filters, r, s, channels] = filter.sizes;
  bool const whole = form.filters == filters && form.channels == channels && r * s * channels % form.pitch_unit == 0;
  if (whole && filter.strides == contiguous_strides(filter.sizes) && aligned(filter.data)) return filter;
  return copy_of(tensor, filter, form, device, keep);
}

Matrix filter_rows(Tensor const& tensor, std::int64_t channels, int device, std::vector<Tensor>& keep) {
  Image filter = image_of(tensor);
  auto const [filters, r, s, own_channels] = filter.sizes;
  std::int64_t const columns = r * s * channels;
  if (channels != own_channels || filter.strides != contiguous_strides(filter.sizes)) {
    filter = copy_of(tensor, filter, {filters, channels, access_elements(tensor.scalar_type())}, device, keep);
  }
  return {filter.data, 1, filters, columns, 0, filter.strides[0], 1};
}

Image flipped_filter(Tensor const& tensor, FilterForm const& form, int device, std::vector<Tensor>& keep) {
  Tensor const flipped = flip(tensor, 2, 3);
  Image filter = image_of(flipped);
  std::swap(filter.sizes[0], filter.sizes[3]);
  std::swap(filter.strides[0], filter.strides[3]);
  return copy_of(flipped, filter, form, device, keep);
}

}  // namespace cutwheel
