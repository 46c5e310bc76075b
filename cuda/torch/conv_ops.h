// Convolutions as torch sees them: tensors [N, C, H, W] in any memory format, results in channels_last. Geometry is eight
// numbers: as three lists they would take torch two to three times as long.
#pragma once

#include <torch/csrc/stable/c/shim.h>
#include <torch/headeronly/util/shim_utils.h>

#include <optional>

#include "torch/conv_request.h"

namespace cutwheel {

// weight [Ko, C, R, S], bias [Ko].
Tensor conv2d_op(Tensor const& input, Tensor const& weight, std::optional<Tensor> const& bias, std::int64_t stride_h,
                 std::int64_t stride_w, std::int64_t padding_top, std::int64_t padding_bottom, std::int64_t padding_left,
                 std::int64_t padding_right, std::int64_t dilation_h, std::int64_t dilation_w, bool allow_tf32);
// residual [N, Ko, P, Q].
Tensor conv2d_fused(Tensor const& input, Tensor const& weight, std::optional<Tensor> const& bias,
                    std::optional<Tensor> const& residual, std::int64_t stride_h, std::int64_t stride_w,
                    std::int64_t padding_top, std::int64_t padding_bottom, std::int64_t padding_left,
                    std::int64_t padding_right, std::int64_t dilation_h, std::int64_t dilation_w, StringHandle epilogue,
                    bool allow_tf32);
Tensor conv2d_input_grad(Tensor const& grad_output, Tensor const& weight, std::int64_t input_h, std::int64_t input_w,
                         std::int64_t stride_h, std::int64_t stride_w, std::int64_t padding_top,
                         std::int64_t padding_bottom, std::int64_t padding_left, std::int64_t padding_right,
                         std::int64_t dilation_h, std::int64_t dilation_w, bool allow_tf32);
// The sums of split-K are added in a fixed order: all results are deterministic.
Tensor conv2d_weight_grad(Tensor const& grad_output, Tensor const& input, std::int64_t weight_h, std::int64_t weight_w,
                          std::int64_t stride_h, std::int64_t stride_w, std::int64_t padding_top,
                          std::int64_t padding_bottom, std::int64_t padding_left, std::int64_t padding_right,
                          std::int64_t dilation_h, std::int64_t dilation_w, bool allow_tf32, bool deterministic);
// 8 bits; scale_input one value, scale_weight one value or [Ko].
Tensor scaled_conv2d(Tensor const& input, Tensor const& weight, Tensor const& scale_input, Tensor const& scale_weight,
                     std::optional<Tensor> const& bias, std::int64_t stride_h, std::int64_t stride_w,
                     std::int64_t padding_top, std::int64_t padding_bottom, std::int64_t padding_left,
                     std::int64_t padding_right, std::int64_t dilation_h, std::int64_t dilation_w,
                     std::optional<ScalarType> out_dtype);

// The calls that these make, for explain, too. They name what they are given.
ConvCall conv2d_call(Tensor const& input, Tensor const& weight, std::optional<Tensor> const& bias,
                     ConvGeometry const& geometry, bool allow_tf32);
ConvCall conv_gradient_call(Direction direction, Tensor const& grad_output, Tensor const& other, Extents2d const& size,
                            ConvGeometry const& geometry, bool allow_tf32);
ConvCall scaled_conv_call(Tensor const& input, Tensor const& weight, Tensor const& scale_input, Tensor const& scale_weight,
                          std::optional<Tensor> const& bias, ConvGeometry const& geometry,
                          std::optional<ScalarType> out_dtype);

// 0: no kernel of this wheel serves convolutions of this kind on the device; 1: one does through PTX; 2: a native one does.
// direction as in Direction; an empty name is that of no epilogue, of fprop. Runs nothing and looks at no extents.
std::int64_t conv_served(std::int64_t direction, std::int64_t device, ScalarType dtype, ScalarType out_dtype,
                         StringHandle epilogue, bool has_bias, bool unit_stride);

}  // namespace cutwheel
