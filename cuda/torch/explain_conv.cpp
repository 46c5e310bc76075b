#include <algorithm>

#include "core/error.h"
#include "torch/conv_ops.h"
#include "torch/explain.h"

namespace cutwheel {
namespace {

constexpr std::int64_t kConvOp = 0, kFusedOp = 1, kScaledOp = 2, kInputGradOp = 3, kWeightGradOp = 4;

ExplainedGemm explain_checked(ConvCall const& call) {
  ConvWay way;
  if (call.problem.images > 0) way = choose_way(call);
  if (way.route == ConvRoute::product) {
    ConvProduct product;
    make_product(product, call);
    ExplainedGemm explained = product.scaled ? explain_call(*product.scaled) : explain_call(*product.gemm);
    explained.operand_copies += product.keep.size();
    explained.route = name_of(way.route);
    return explained;
  }
  PreparedConv prepared;
  bool const computes = way.route != ConvRoute::none;
  if (computes) {
    prepare_conv(prepared, call, way);
  } else {
    ScaledForm const form{call.epilogue.value_or(call.is_scaled ? Epilogue::scaled
                                                 : call.bias    ? Epilogue::bias
                                                                : Epilogue::plain),
                          call.d_type};
    prepared.request = request_of(call, ConvRoute::implicit, form);
  }
  ExplainedGemm explained{prepared.request,  {}, {}, prepared.keep.size(), prepared.d.temporary.has_value(),
                          name_of(way.route)};
  if (call.problem.images > 0) {
    explained.plans = rank_plans(prepared.request, device_info(call.device), &explained.rejections, &explained.source);
  }
  return explained;
}

}  // namespace

ExplainedGemm explain_conv(std::int64_t op, OptionalTensors const& operands, ConvGeometry const& geometry,
                           Extents2d const& size, std::optional<ScalarType> out_dtype, bool allow_tf32,
                           std::string_view epilogue) {
  struct Counts {
    char const* name;
    std::size_t least, most;
  };
  static constexpr Counts kCounts[] = {{"conv2d", 2, 3},
                                       {"conv2d_fused", 2, 4},
                                       {"scaled_conv2d", 4, 5},
                                       {"conv2d_input_grad", 2, 2},
                                       {"conv2d_weight_grad", 2, 2}};
  if (op < 0 || op >= static_cast<std::int64_t>(std::size(kCounts))) {
    fail(ErrorKind::value, "explain: convolution ", op, " is not known");
  }
  auto const& [name, least, most] = kCounts[op];
  check_count(name, operands.size(), least, most);
  OptionalTensors all = operands;
  all.resize(5);
  auto const tensor = [&, op_name = name](std::size_t i) -> Tensor const& { return required(op_name, all, i); };
  ConvCall call = [&] {
    switch (op) {
      case kScaledOp: return scaled_conv_call(tensor(0), tensor(1), tensor(2), tensor(3), all[4], geometry, out_dtype);
      case kInputGradOp: return conv_gradient_call(Direction::dgrad, tensor(0), tensor(1), size, geometry, allow_tf32);
      case kWeightGradOp: return conv_gradient_call(Direction::wgrad, tensor(0), tensor(1), size, geometry, allow_tf32);
      default: return conv2d_call(tensor(0), tensor(1), all[2], geometry, allow_tf32);
    }
  }();
  if (op == kFusedOp) {
    call.residual = all[3] ? &*all[3] : nullptr;
    call.epilogue = conv_epilogue(epilogue);
  }
  check_conv(call);
  DeviceScope const scope(call.device);
  return explain_checked(call);
}

}  // namespace cutwheel
