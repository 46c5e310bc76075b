#include <string_view>

#include "core/error.h"
#include "torch/grouped_request.h"

namespace cutwheel {
namespace {

constexpr char const* kOp = "scaled_grouped_mm";

bool has_shape(Tensor const& tensor, std::initializer_list<std::int64_t> shape) {
  auto const sizes = tensor.sizes();
  if (sizes.size() != shape.size()) return false;
  std::size_t i = 0;
  for (std::int64_t extent : shape) {
    if (sizes[i++] != extent) return false;
  }
  return true;
}

void check_scale(GroupedCall const& call, char const* argument, Tensor const& scale) {
  check_device(kOp, argument, scale, call.device, "mat_a");
  ScalarType const type = type_of(scale);
  if (type == ScalarType::Float) return;
  if (type == ScalarType::Float8_e8m0fnu || type == ScalarType::Float8_e4m3fn) fail_on_microscaling(kOp, argument, type);
  fail(ErrorKind::type, kOp, ": ", argument, " has dtype ", dtype_text(type), "; expected float32");
}

}  // namespace

void check_grouped_scales(GroupedCall& call) {
  Tensor const &a = *call.scale_a, &b = *call.scale_b;
  check_scale(call, "scale_a", a);
  check_scale(call, "scale_b", b);
  std::int64_t const k_blocks = ceil_div(call.k, kScaleBlock), n_blocks = ceil_div(call.n, kScaleBlock);
  bool const rowwise = (has_shape(a, {call.m}) || has_shape(a, {call.m, 1})) &&
                       (has_shape(b, {call.batch, call.n}) || has_shape(b, {call.batch, 1, call.n}));
  if (rowwise) return;
  if (has_shape(a, {call.m, k_blocks}) && has_shape(b, {call.batch, k_blocks, n_blocks})) {
    // Over an empty K there is nothing to scale.
    if (call.k > 0) call.scales = BlockScales::a1x128_b128x128;
    return;
  }
  fail(ErrorKind::shape, kOp, ": scale_a has shape ", shape_text(a), " and scale_b has shape ", shape_text(b),
       " where T=", call.m, ", N=", call.n, ", K=", call.k, " in ", call.batch,
       " groups; expected row-wise scales: scale_a [", call.m, "] or [", call.m, ", 1], scale_b [", call.batch, ", ",
       call.n, "] or [", call.batch, ", 1, ", call.n,
       "]; or block-wise ones (1x128 for mat_a, 128x128 for mat_b): scale_a [", call.m, ", ", k_blocks, "], scale_b [",
       call.batch, ", ", k_blocks, ", ", n_blocks, "]");
}

ScaledForm choose_grouped_form(GroupedCall const& call) {
  bool const block = call.scales != BlockScales::none;
  Epilogue const same = block ? Epilogue::block_bias : Epilogue::scaled;
  ScaledForm const float32{same, ScalarType::Float};
  if (call.d_type == ScalarType::Float) return float32;
  bool const bias_f32 = call.bias && call.bias->scalar_type() == ScalarType::Float;
  Epilogue const with_f32 = block ? Epilogue::block_bias_f32 : Epilogue::scaled_bias_f32;
  ScaledForm const direct{bias_f32 ? with_f32 : same, call.d_type};
  DeviceInfo const& device = device_info(call.device);
  GroupedCall asked = call;
  std::optional<ScaledForm> some;
  // What has no kernel of its own is written in float32 and converted. Where there is none either, a float32 bias is
  // rounded to the dtype of the result.
  for (ScaledForm const& form : {direct, float32, ScaledForm{same, call.d_type}}) {
    asked.form = form;
    std::optional<GemmPlan> const plan = choose_plan(request_of(asked));
    if (plan && runs_native(plan->row->arch, device.major, device.minor)) return form;
    if (plan && !some) some = form;
  }
  return some.value_or(direct);
}

}  // namespace cutwheel
