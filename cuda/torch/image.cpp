#include "torch/image.h"

#include <algorithm>

#include "torch/shim_errors.h"

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

// With zeros where the source has nothing.
Image copy_of(Tensor const& owner, Image const& source, std::int64_t filters, std::int64_t channels, int device,
              std::vector<Tensor>& keep) {
  Four const& sizes = source.sizes;
  Image copy{nullptr, {filters, sizes[1], sizes[2], channels}, {}};
  copy.strides = contiguous_strides(copy.sizes);
  Tensor buffer = empty_strided({copy.sizes[0], copy.sizes[1], copy.sizes[2], copy.sizes[3]},
                                {copy.strides[0], copy.strides[1], copy.strides[2], 1}, owner.scalar_type(), device);
  copy.data = buffer.data_ptr();
  if (filters != sizes[0] || channels != sizes[3]) torch::stable::zero_(buffer);
  Tensor target = view_of(buffer, Image{copy.data, sizes, copy.strides});
  torch::stable::copy_(target, view_of(owner, source));
  keep.push_back(std::move(buffer));
  return copy;
}

// Strides of 0, of expanded tensors, are none for a tensor map.
bool accessible(Image const& image, ScalarType type) {
  std::int64_t const unit = access_elements(type);
  bool fits = aligned(image.data) && image.strides[3] == 1 && image.channels() % unit == 0;
  for (std::size_t i = 0; i < 3; ++i) fits = fits && image.strides[i] > 0 && image.strides[i] % unit == 0;
  return fits;
}

Tensor flip_taps(Tensor const& filter) {
  std::array<StableIValue, 2> stack{torch::stable::detail::from(filter),
                                    torch::stable::detail::from(std::vector<std::int64_t>{2, 3})};
  if (torch_call_dispatcher("aten::flip", "", stack.data(), TORCH_ABI_VERSION) != 0) {
    fail_copy("flip a filter", filter);
  }
  return torch::stable::detail::to<Tensor>(stack[0]);
}

}  // namespace

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

Image readable_image(Tensor const& tensor, ImageForm const& form, int device, std::vector<Tensor>& keep) {
  auto const folded = [&](Image image) {
    image.sizes[2] /= form.fold, image.sizes[3] *= form.fold;
    image.strides[2] *= form.fold;
    return image;
  };
  Image const image = image_of(tensor);
  bool const foldable = form.fold == 1 || (image.strides[3] == 1 && image.strides[2] == image.channels());
  bool const fits = form.channels == image.channels() && foldable && (!form.even || is_even(image));
  if (fits && accessible(folded(image), tensor.scalar_type())) return folded(image);
  return folded(copy_of(tensor, image, image.sizes[0], form.channels, device, keep));
}

Image windows_of(Tensor const& tensor, WindowForm const& form, int device, std::vector<Tensor>& keep) {
  Image source = image_of(tensor);
  std::int64_t const images = source.sizes[0], h = source.sizes[1], c = form.channels;
  // Rows are a multiple of the stride, as strides of tensor maps should be of each other.
  std::int64_t const w = round_up((form.count - 1) * form.stride + form.pixels, form.stride);
  Four const sizes{images, h, w, c}, strides = contiguous_strides(sizes);
  Tensor buffer = empty_strided({images, h, w, c}, {strides[0], strides[1], c, 1}, tensor.scalar_type(), device);
  torch::stable::zero_(buffer);
  source.sizes[2] = std::min(source.sizes[2], w - form.pad);
  if (source.sizes[2] > 0) {
    char* const first = static_cast<char*>(buffer.data_ptr()) + form.pad * c * element_bytes_of(tensor.scalar_type());
    Tensor target = view_of(buffer, Image{first, source.sizes, strides});
    torch::stable::copy_(target, view_of(tensor, source));
  }
  keep.push_back(buffer);
  return {buffer.data_ptr(), {images, h, form.count, form.pixels * c}, {strides[0], strides[1], form.stride * c, 1}};
}

Image readable_filter(Tensor const& tensor, std::int64_t filters, std::int64_t channels, int device,
                      std::vector<Tensor>& keep) {
  Image const filter = image_of(tensor);
  bool const whole = filters == filter.sizes[0] && channels == filter.channels();
  if (whole && filter.strides == contiguous_strides(filter.sizes) && aligned(filter.data)) return filter;
  return copy_of(tensor, filter, filters, channels, device, keep);
}

Image flipped_filter(Tensor const& tensor, std::int64_t filters, std::int64_t channels, int device,
                     std::vector<Tensor>& keep) {
  Tensor const flipped = flip_taps(tensor);
  Image filter = image_of(flipped);
  std::swap(filter.sizes[0], filter.sizes[3]);
  std::swap(filter.strides[0], filter.strides[3]);
  return copy_of(flipped, filter, channels, filters, device, keep);
}

}  // namespace cutwheel
