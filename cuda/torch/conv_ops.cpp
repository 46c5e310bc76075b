#include "torch/conv_ops.h"

#include "core/error.h"
#include "torch/epilogue_ops.h"
#include "torch/text_argument.h"

namespace cutwheel {
namespace {

Tensor const* pointer(std::optional<Tensor> const& tensor) { return tensor ? &*tensor : nullptr; }

}  // namespace

ConvCall conv2d_call(Tensor const& input, Tensor const& weight, std::optional<Tensor> const& bias,
                     ConvGeometry const& geometry, bool allow_tf32) {
  ConvCall call = make_conv_call(kConv2d, Direction::fprop, input, weight, geometry, allow_tf32);
  call.bias = pointer(bias);
  return call;
}

ConvCall conv_gradient_call(Direction direction, Tensor const& grad_output, Tensor const& other, Extents2d const& size,
                            ConvGeometry const& geometry, bool allow_tf32) {
  OpNames const& names = direction == Direction::dgrad ? kConvInputGrad : kConvWeightGrad;
  ConvCall call = make_conv_call(names, direction, grad_output, other, geometry, allow_tf32);
  call.size = size;
  return call;
}

ConvCall scaled_conv_call(Tensor const& input, Tensor const& weight, Tensor const& scale_input, Tensor const& scale_weight,
                          std::optional<Tensor> const& bias, ConvGeometry const& geometry,
                          std::optional<ScalarType> out_dtype) {
  ConvCall call = make_conv_call(kScaledConv2d, Direction::fprop, input, weight, geometry, /*allow_tf32=*/false);
  call.bias = pointer(bias);
  call.scale_input = &scale_input, call.scale_weight = &scale_weight;
  call.out_dtype = out_dtype;
  call.is_scaled = true;
  return call;
}

Tensor conv2d_op(Tensor const& input, Tensor const& weight, std::optional<Tensor> const& bias, std::int64_t stride_h,
                 std::int64_t stride_w, std::int64_t padding_top, std::int64_t padding_bottom, std::int64_t padding_left,
                 std::int64_t padding_right, std::int64_t dilation_h, std::int64_t dilation_w, bool allow_tf32) {
  ConvCall call = conv2d_call(
      input, weight, bias,
      {{stride_h, stride_w}, {padding_top, padding_bottom, padding_left, padding_right}, {dilation_h, dilation_w}},
      allow_tf32);
  return run_conv(call);
}

Tensor conv2d_fused(Tensor const& input, Tensor const& weight, std::optional<Tensor> const& bias,
                    std::optional<Tensor> const& residual, std::int64_t stride_h, std::int64_t stride_w,
                    std::int64_t padding_top, std::int64_t padding_bottom, std::int64_t padding_left,
                    std::int64_t padding_right, std::int64_t dilation_h, std::int64_t dilation_w, StringHandle epilogue,
                    bool allow_tf32) {
  TextArgument const name(epilogue);
  ConvCall call = conv2d_call(
      input, weight, bias,
      {{stride_h, stride_w}, {padding_top, padding_bottom, padding_left, padding_right}, {dilation_h, dilation_w}},
      allow_tf32);
  call.residual = pointer(residual);
  call.epilogue = conv_epilogue(name.view());
  return run_conv(call);
}

Tensor conv2d_input_grad(Tensor const& grad_output, Tensor const& weight, std::int64_t input_h, std::int64_t input_w,
                         std::int64_t stride_h, std::int64_t stride_w, std::int64_t padding_top,
                         std::int64_t padding_bottom, std::int64_t padding_left, std::int64_t padding_right,
                         std::int64_t dilation_h, std::int64_t dilation_w, bool allow_tf32) {
  ConvCall call = conv_gradient_call(
      Direction::dgrad, grad_output, weight, {input_h, input_w},
      {{stride_h, stride_w}, {padding_top, padding_bottom, padding_left, padding_right}, {dilation_h, dilation_w}},
      allow_tf32);
  return run_conv(call);
}

Tensor conv2d_weight_grad(Tensor const& grad_output, Tensor const& input, std::int64_t weight_h, std::int64_t weight_w,
                          std::int64_t stride_h, std::int64_t stride_w, std::int64_t padding_top,
                          std::int64_t padding_bottom, std::int64_t padding_left, std::int64_t padding_right,
                          std::int64_t dilation_h, std::int64_t dilation_w, bool allow_tf32, bool /*deterministic*/) {
  ConvCall call = conv_gradient_call(
      Direction::wgrad, grad_output, input, {weight_h, weight_w},
      {{stride_h, stride_w}, {padding_top, padding_bottom, padding_left, padding_right}, {dilation_h, dilation_w}},
      allow_tf32);
  return run_conv(call);
}

Tensor scaled_conv2d(Tensor const& input, Tensor const& weight, Tensor const& scale_input, Tensor const& scale_weight,
                     std::optional<Tensor> const& bias, std::int64_t stride_h, std::int64_t stride_w,
                     std::int64_t padding_top, std::int64_t padding_bottom, std::int64_t padding_left,
                     std::int64_t padding_right, std::int64_t dilation_h, std::int64_t dilation_w,
                     std::optional<ScalarType> out_dtype) {
  ConvCall call = scaled_conv_call(
      input, weight, scale_input, scale_weight, bias,
      {{stride_h, stride_w}, {padding_top, padding_bottom, padding_left, padding_right}, {dilation_h, dilation_w}},
      out_dtype);
  return run_conv(call);
}

std::int64_t conv_served(std::int64_t direction, std::int64_t device, ScalarType dtype, ScalarType out_dtype,
                         StringHandle epilogue, bool has_bias, bool unit_stride) {
  TextArgument const name(epilogue);
  if (direction < 1 || direction > 3) {
    fail(ErrorKind::value, "_conv_served: direction is ", direction, "; expected 1 (fprop), 2 (dgrad) or 3 (wgrad)");
  }
  ConvCall call{{kConv2d, nullptr, nullptr}, static_cast<Direction>(direction), {{1, 1}, {0, 0, 0, 0}, {1, 1}}};
  call.type = dtype, call.d_type = out_dtype, call.device = static_cast<int>(device);
  int const step = unit_stride ? 1 : 2;
  call.problem = {32, 64, 64, 256, 256, 3, 3, 64 / step, 64 / step, 1, 1, step, step, 1, 1};
  if (!name.view().empty()) call.epilogue = conv_epilogue(name.view());
  call.is_scaled = element_bytes_of(dtype) == 1;
  if (has_bias && !call.epilogue && !call.is_scaled && call.direction == Direction::fprop) call.epilogue = Epilogue::bias;
  ConvWay const way = choose_way(call);
  if (way.route == ConvRoute::none) return 0;
  DeviceInfo const& info = device_info(call.device);
  return runs_native(way.plan->row->arch, info.major, info.minor) ? 2 : 1;
}

}  // namespace cutwheel
