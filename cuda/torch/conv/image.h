// Images and filters, as kernels of convolutions access them: channels last.
#pragma once

#include <array>
#include <vector>

#include "torch/tensor/access.h"

namespace cutwheel {

// [N, H, W, C], or of a filter [Ko, R, S, C]; strides in elements. A size of 1 has the stride that it would have if more
// followed: what torch says of it means nothing.
struct Image {
  void* data = nullptr;
  std::array<std::int64_t, 4> sizes{}, strides{};

  std::int64_t channels() const { return sizes[3]; }
  std::int64_t pixels() const { return sizes[0] * sizes[1] * sizes[2]; }
};

// The image of a tensor [N, C, H, W] in any memory format.
Image image_of(Tensor const& tensor);

// Whether all pixels are evenly spaced, as rows of one matrix.
bool is_even(Image const& image);

// A tensor [N, H, W, C] over the memory of `owner`.
Tensor view_of(Tensor const& owner, Image const& image);

// The same memory as torch names it, [N, C, H, W].
Tensor nchw_view(Tensor const& owner, Image const& image);

// An uninitialised tensor [N, C, H, W] with exactly the strides of channels_last.
Tensor empty_channels_last(std::array<std::int64_t, 4> const& sizes, ScalarType type, int device);

// An uninitialised tensor [N, C, D, H, W] with exactly the strides of channels_last_3d.
Tensor empty_channels_last_3d(std::array<std::int64_t, 5> const& sizes, ScalarType type, int device);

// How a kernel wants an image.
struct ImageForm {
  std::int64_t channels;      // those that are added are zeros
  int fold = 1;               // pixels of a row that are one to the kernel, with the channels of all of them
  bool even = false;          // is_even
  std::int64_t h = 0, w = 0;  // if these are more than it has, rows and pixels of zeros follow
};

// As kernels read images: as it lies if that will do, else a copy. Channels times fold are a multiple of 16 bytes.
Image readable_image(Tensor const& tensor, ImageForm const& form, int device, std::vector<Tensor>& keep);

// Windows that slide along rows: the pixels of each are one to the kernel, with the channels of all of them.
struct WindowForm {
  std::int64_t channels;
  std::int64_t pixels, stride, count;  // of a window, from one to the next, of them in a row
  std::int64_t pad;                    // zeros in front of a row
};

// A copy of an image, [N, H, count, pixels * channels], whose windows overlap in memory. Channels are a multiple of 16
// bytes.
Image windows_of(Tensor const& tensor, WindowForm const& form, int device, std::vector<Tensor>& keep);

struct FilterForm {
  std::int64_t filters, channels;  // those that are added are zeros
  std::int64_t pitch_unit = 1;     // filters begin at multiples of so many elements
};

// As kernels read filters: the taps of each are contiguous.
Image readable_filter(Tensor const& tensor, FilterForm const& form, int device, std::vector<Tensor>& keep);

// A row for each filter: its taps with so many channels each. Those that are added are zeros.
Matrix filter_rows(Tensor const& tensor, std::int64_t channels, int device, std::vector<Tensor>& keep);

// The filter of the convolution that is the gradient of the input at stride 1: kinds of channels swapped, taps reversed. A
// copy of [Ko, C, R, S] as [C, R, S, Ko].
Image flipped_filter(Tensor const& tensor, FilterForm const& form, int device, std::vector<Tensor>& keep);

// A copy in which two dimensions are reversed.
Tensor flip(Tensor const& filter, std::int64_t one, std::int64_t other);

}  // namespace cutwheel
