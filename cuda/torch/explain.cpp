#include "torch/explain.h"

#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "torch/conv.h"
#include "torch/grouped.h"

namespace cutwheel {

namespace {

constexpr std::int64_t kAddmmOp = 2, kBaddbmmOp = 3, kLinearOp = 4, kGemmOp = 5, kLinearFusedOp = 6;

// Explains a call that was planned, or has nothing to compute.
ExplainedGemm explain_prepared(PreparedGemm const& prepared, int device, bool computes) {
  bool const output_copy = prepared.d.temporary || std::any_of(prepared.stores.begin(), prepared.stores.end(),
                                                               [](Output const& x) { return x.temporary.has_value(); });
  ExplainedGemm explained{prepared.request, {}, {}, prepared.keep.size(), output_copy};
  if (computes)
    explained.plans = rank_plans(prepared.request, device_info(device), &explained.rejections, &explained.source);
  return explained;
}

}  // namespace

void check_count(char const* op, std::size_t count, std::size_t least, std::size_t most) {
  if (count < least || count > most) {
    fail(ErrorKind::value, "explain: ", op, " takes ", least, least == most ? "" : concat(" to ", most), " tensors, got ",
         count);
  }
}

Tensor const& required(char const* op, OptionalTensors const& operands, std::size_t i) {
  if (!operands[i]) fail(ErrorKind::value, "explain: tensor ", i, " of ", op, " is None; expected a Tensor");
  return *operands[i];
}

namespace {

template <class Call>
ExplainedGemm explain_call(Call& call) {
  check(call);
  DeviceScope const scope(call.device);
  PreparedGemm prepared;
  bool const computes = start(prepared, call) == Work::gemm;
  if (computes) {
    plan_gemm(prepared, call);
  } else {
    prepare_request(prepared, call);
  }
  return explain_prepared(prepared, call.device, computes);
}

}  // namespace

namespace {

ExplainedGemm explain_named(std::int64_t op, OptionalTensors const& operands, std::optional<ScalarType> out_dtype,
                            double beta, bool allow_tf32, std::string_view name) {
  bool const is_linear = op == kLinearFusedOp;
  char const* const op_name = is_linear ? "linear" : "gemm";
  check_count(op_name, operands.size(), 2, is_linear ? 4 : 2 + kMaxEpilogueOperands);
  Tensor const &a = required(op_name, operands, 0), &b = required(op_name, operands, 1);
  EpilogueCall epilogue;
  epilogue.id = named_epilogue(op_name, name, /*has_accum=*/true);
  OptionalTensors const rest(operands.begin() + 2, operands.end());
  if (is_linear) {
    auto const at = [&](std::size_t i) { return i < rest.size() && rest[i] ? &*rest[i] : nullptr; };
    bind_linear(epilogue, at(0), at(1));
  } else {
    // Scalars do not matter, but for beta, which may be 0.
    EpilogueInfo const& info = epilogue.info();
    std::vector<double> scalars;
    for (int i = 0; i < info.count; ++i) {
      if (info.operands[i].kind != OperandKind::scalar) continue;
      scalars.push_back(std::strcmp(info.operands[i].name, "beta") == 0 ? beta : 1);
    }
    bind_gemm(epilogue, rest, scalars);
  }
  GemmCall call = make_call(is_linear ? kLinear : gemm_names(a), a, b, out_dtype, allow_tf32);
  call.linear = is_linear;
  call.epilogue = &epilogue;
  return explain_call(call);
}

}  // namespace

ExplainedGemm explain_gemm(std::int64_t op, OptionalTensors const& operands, std::optional<ScalarType> out_dtype,
                           double beta, bool allow_tf32, std::string_view epilogue) {
  if (op == kGemmOp || op == kLinearFusedOp) {
    return explain_named(op, operands, out_dtype, beta, allow_tf32, epilogue);
  }
  static constexpr OpNames const* kOps[] = {&kMm, &kBmm, &kAddmm, &kBaddbmm, &kLinear};
  if (op < 0 || op >= static_cast<std::int64_t>(std::size(kOps)))
    fail(ErrorKind::value, "explain: op ", op, " is not known");
  OpNames const& names = *kOps[op];
  bool const c_first = op == kAddmmOp || op == kBaddbmmOp, is_linear = op == kLinearOp;
  check_count(names.op, operands.size(), c_first ? 3 : 2, c_first || is_linear ? 3 : 2);
  std::size_t const factor = c_first ? 1 : 0;
  GemmCall call = make_call(names, required(names.op, operands, factor), required(names.op, operands, factor + 1),
                            out_dtype, allow_tf32);
  call.linear = is_linear;
  if (c_first) call.c = &required(names.op, operands, 0);
  if (is_linear && operands.size() == 3 && operands[2]) call.c = &*operands[2];
  call.beta = beta;
  return explain_call(call);
}

ExplainedGemm explain_scaled(OptionalTensors const& operands, std::optional<ScalarType> out_dtype,
                             std::optional<std::int64_t> recipe_a, std::optional<std::int64_t> recipe_b,
                             bool use_fast_accum) {
  constexpr char const* kOp = "scaled_mm";
  check_count(kOp, operands.size(), 2, 7);
  OptionalTensors all = operands;
  all.resize(7);
  Tensor const &a = required(kOp, all, 0), &b = required(kOp, all, 1);
  ScaledCall call = make_scaled_call(a, b, all[2], all[3], all[4], all[5], all[6], recipe_a, recipe_b, use_fast_accum);
  call.out_dtype = out_dtype;
  return explain_call(call);
}

ExplainedGemm explain_grouped(std::int64_t op, OptionalTensors const& operands, std::optional<ScalarType> out_dtype,
                              bool allow_tf32, std::string_view epilogue, bool use_fast_accum) {
  static constexpr OpNames const* kOps[] = {&kGroupedMm, &kGroupedMmAccumulate, &kGroupedLinear, &kScaledGroupedMm};
  char const* const name = kOps[op - kGroupedMmOp]->op;
  std::size_t const least = op == kGroupedAccumulateOp ? 4 : op == kScaledGroupedMmOp ? 5 : 3;
  check_count(name, operands.size(), least, std::max<std::size_t>(least, op == kScaledGroupedMmOp ? 6 : 4));
  OptionalTensors all = operands;
  all.resize(6);
  auto const tensor = [&](std::size_t i) -> Tensor const& { return required(name, all, i); };
  GroupedCall call = [&] {
    switch (op) {
      case kGroupedAccumulateOp: return grouped_accumulate_call(tensor(0), tensor(1), tensor(2), allow_tf32, tensor(3));
      case kGroupedLinearOp:
        return grouped_linear_call(tensor(0), tensor(1), tensor(2), all[3], grouped_epilogue(epilogue), allow_tf32);
      case kScaledGroupedMmOp:
        return scaled_grouped_call(tensor(0), tensor(1), tensor(2), tensor(3), tensor(4), all[5], out_dtype,
                                   use_fast_accum);
      default: return grouped_mm_call(tensor(0), tensor(1), tensor(2), all[3], out_dtype, allow_tf32);
    }
  }();
  return explain_call(call);
}

// --- Convolutions

namespace {

constexpr std::int64_t kConvOp = 0, kFusedOp = 1, kScaledOp = 2, kInputGradOp = 3, kWeightGradOp = 4;

ExplainedGemm explain_checked(ConvCall const& call) {
  ConvVariant variant;
  if (call.problem.images > 0) variant = choose_variant(call);
  if (variant.algorithm == ConvAlgorithm::product) {
    ConvProduct product;
    make_gemm_view(product, call);
    ExplainedGemm explained = product.scaled ? explain_call(*product.scaled) : explain_call(*product.gemm);
    explained.operand_copies += product.keep.size();
    explained.route = name_of(variant.algorithm);
    return explained;
  }
  PreparedConv prepared;
  bool const computes = variant.algorithm != ConvAlgorithm::none;
  if (computes) {
    prepare_conv(prepared, call, variant);
  } else {
    ScaledForm const form{call.epilogue.value_or(call.is_scaled ? Epilogue::scaled
                                                 : call.bias    ? Epilogue::bias
                                                                : Epilogue::plain),
                          call.d_type};
    prepared.request = request_of(call, ConvAlgorithm::implicit, form);
  }
  ExplainedGemm explained{prepared.request,          {}, {}, prepared.keep.size(), prepared.d.temporary.has_value(),
                          name_of(variant.algorithm)};
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
  check(call);
  DeviceScope const scope(call.device);
  return explain_checked(call);
}

}  // namespace cutwheel
