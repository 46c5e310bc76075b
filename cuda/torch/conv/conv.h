// Convolutions for callers in C++, and which of them this wheel serves; the ops themselves are in the registry.
#pragma once

#include <torch/csrc/stable/c/shim.h>
#include <torch/headeronly/util/shim_utils.h>

#include "torch/conv/geometry.h"
#include "torch/tensor/tensor.h"

namespace cutwheel {

// 0: no kernel of this wheel serves convolutions of this kind on the device; 1: one does through PTX; 2: a native one does.
// direction as in Direction; an empty name is that of no epilogue, of fprop. Runs nothing and looks at no extents.
std::int64_t conv_served(std::int64_t direction, std::int64_t device, ScalarType dtype, ScalarType out_dtype,
                         StringHandle epilogue, bool has_bias, bool unit_stride, bool is_volume);

// One convolution of images, or a gradient of one. Tensors [N, C, H, W] in any memory format, results in channels_last.
struct Conv2d {
  Direction direction;
  // input and weight [Ko, C / groups, R, S]; the gradient of the result and the weight; that gradient and the input.
  Tensor const& a;
  Tensor const& b;
  Tensor const* bias;  // [Ko], of fprop; null: none
  Extents2d size;      // of a gradient: H and W of the input, or R and S of the weight
  ConvGeometry geometry;
  std::int64_t groups;
};

Tensor run_conv2d(Conv2d const& conv);
// Names the kernel it would run; runs nothing but copies.
Explanation explain_conv2d(Conv2d const& conv);

// The part of both for more than one group.
Tensor run_grouped_conv2d(Conv2d const& conv);
Explanation explain_grouped_conv2d(Conv2d const& conv);

}  // namespace cutwheel
