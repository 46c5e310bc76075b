#include "core/error.h"
#include "torch/scaled_request.h"

namespace cutwheel {
namespace {

constexpr ErrorKind kType = ErrorKind::type, kValue = ErrorKind::value, kShape = ErrorKind::shape;

bool is_fp8_type(ScalarType type) { return type == ScalarType::Float8_e4m3fn || type == ScalarType::Float8_e5m2; }

ScalarType factor_type(char const* argument, Tensor const& tensor) {
  ScalarType const type = type_of(tensor);
  if (type == ScalarType::Float4_e2m1fn_x2) fail_on_microscaling("scaled_mm", argument, type);
  if (!is_fp8_type(type) && type != ScalarType::Char) {
    fail(kType, "scaled_mm: ", argument, " has dtype ", dtype_text(type),
         "; expected float8_e4m3fn, float8_e5m2 or int8 (cutwheel.quantize makes them)");
  }
  return type;
}

void check_factor_types(ScaledCall& call) {
  call.type = factor_type("mat_a", *call.a);
  call.b_type = factor_type("mat_b", *call.b);
  if (is_fp8_type(call.type) != is_fp8_type(call.b_type)) {
    fail(kType, "scaled_mm: mat_b has dtype ", dtype_text(call.b_type), " and mat_a has dtype ", dtype_text(call.type),
         "; expected both fp8 or both int8");
  }
  if (call.type == ScalarType::Float8_e5m2 && call.b_type == call.type) {
    fail(kType, "scaled_mm: mat_a and mat_b have dtype float8_e5m2; expected float8_e4m3fn for one of them or both");
  }
}

// Whether this is the int32 sums of int8 products, and the type of D.
void check_result_type(ScaledCall& call) {
  call.d_type = call.out ? type_of(*call.out) : call.out_dtype.value_or(ScalarType::BFloat16);
  char const* const named = call.out ? "out has dtype " : "output_dtype is ";
  if (!call.scale_a != !call.scale_b) {
    fail(kValue, "scaled_mm: ", call.scale_a ? "scale_b" : "scale_a", " is None and ", call.scale_a ? "scale_a" : "scale_b",
         " is given; expected both");
  }
  bool const is_int32 = call.d_type == ScalarType::Int;
  if (call.is_unscaled()) {
    if (call.is_int8() && is_int32) return;
    fail(kValue, "scaled_mm: scale_a and scale_b are None; expected float32 tensors",
         call.is_int8() ? ", or output_dtype=torch.int32 for the unscaled sums"
                        : " (torch.ones(1) where there is no scale)");
  }
  if (is_int32) {
    fail(kType, "scaled_mm: ", named, "int32, which is for the unscaled sums of int8 operands (scale_a and scale_b None)",
         "; expected float16, bfloat16 or float32 with scales");
  }
  bool const is_known =
      call.d_type == ScalarType::Half || call.d_type == ScalarType::BFloat16 || call.d_type == ScalarType::Float;
  if (!is_known) {
    fail(kType, "scaled_mm: ", named, dtype_text(call.d_type), "; expected float16, bfloat16 or float32",
         call.is_int8() ? " (int32 without scales)" : "");
  }
}

void check_scale(ScaledCall const& call, char const* argument, Tensor const& scale) {
  check_device("scaled_mm", argument, scale, call.device, "mat_a");
  ScalarType const type = type_of(scale);
  if (type == ScalarType::Float) return;
  if (type == ScalarType::Float8_e8m0fnu || type == ScalarType::Float8_e4m3fn)
    fail_on_microscaling("scaled_mm", argument, type);
  fail(kType, "scaled_mm: ", argument, " has dtype ", dtype_text(type), "; expected float32");
}

void check_bias(ScaledCall const& call) {
  Tensor const& bias = *call.bias;
  check_device("scaled_mm", "bias", bias, call.device, "mat_a");
  ScalarType const type = type_of(bias);
  if (type != call.d_type && type != ScalarType::Float) {
    fail(kType, "scaled_mm: bias has dtype ", dtype_text(type), "; expected ", dtype_text(call.d_type),
         call.d_type == ScalarType::Float ? "" : ", the dtype of the result, or float32");
  }
  if (bias.dim() != 1 || bias.size(0) != call.n) {
    fail(kShape, "scaled_mm: bias has shape ", shape_text(bias), "; expected [", call.n, "]");
  }
}

// A vector of `extent` elements: [extent], or with a dimension of 1 where the matrix of that frame has one.
bool is_vector(Tensor const& tensor, std::int64_t extent, bool is_column) {
  std::int64_t const dims = tensor.dim();
  if (dims == 1) return tensor.size(0) == extent;
  return dims == 2 && tensor.size(is_column ? 0 : 1) == extent && tensor.size(is_column ? 1 : 0) == 1;
}

void check_zero_point(ScaledCall const& call) {
  auto const check = [&](char const* argument, Tensor const& tensor) {
    check_device("scaled_mm", argument, tensor, call.device, "mat_a");
    if (type_of(tensor) != ScalarType::Int) {
      fail(kType, "scaled_mm: ", argument, " has dtype ", dtype_text(type_of(tensor)), "; expected int32");
    }
  };
  if (!call.azp) {
    fail(kValue, "scaled_mm: azp_adj is given without azp; expected azp, the zero point of mat_a, or neither");
  }
  if (!call.is_int8()) {
    fail(kType, "scaled_mm: azp is given, and mat_a has dtype ", dtype_text(call.type), "; only int8 has a zero point");
  }
  if (!call.azp_adj) {
    fail(kValue,
         "scaled_mm: azp is given without azp_adj; expected the sums of mat_b's columns, mat_b.sum(0, dtype=torch.int32)");
  }
  check("azp", *call.azp);
  check("azp_adj", *call.azp_adj);
  if (call.azp->numel() != 1 && !is_vector(*call.azp, call.m, /*is_column=*/true)) {
    fail(kShape, "scaled_mm: azp has shape ", shape_text(*call.azp), "; expected one element, [", call.m, "] or [", call.m,
         ", 1]");
  }
  if (!is_vector(*call.azp_adj, call.n, /*is_column=*/false)) {
    fail(kShape, "scaled_mm: azp_adj has shape ", shape_text(*call.azp_adj), "; expected [", call.n, "] or [1, ", call.n,
         "], the sums of mat_b's columns");
  }
}

void refuse_unscaled(char const* argument, bool is_given) {
  if (is_given) {
    fail(kValue, "scaled_mm: ", argument,
         " is given, and scale_a and scale_b are None; expected nothing else with the unscaled sums");
  }
}

}  // namespace

void fail_on_microscaling(char const* op, char const* argument, ScalarType type) {
  fail(ErrorKind::not_implemented, op, ": ", argument, " has dtype ", dtype_text(type),
       ", which is of mxfp8, mxfp4 or nvfp4: they need a GPU of compute capability 10.0 or newer (B200, GB200), and no "
       "kernel of this wheel has them; expected fp8 or int8 operands with float32 scales");
}

void check_scaled(ScaledCall& call) {
  check_devices(call);
  check_dims(call.names, "mat_a", *call.a, 2);
  check_dims(call.names, "mat_b", *call.b, 2);
  check_factor_types(call);
  check_factors(call);
  for (std::int64_t extent : {call.m, call.n, call.k}) check_extent("scaled_mm", extent);
  check_result_type(call);
  if (call.is_unscaled()) {
    refuse_unscaled("bias", call.bias);
    refuse_unscaled("azp", call.azp);
    refuse_unscaled("azp_adj", call.azp_adj);
    refuse_unscaled("scale_recipe_a", call.recipe_a.has_value());
    refuse_unscaled("scale_recipe_b", call.recipe_b.has_value());
  } else {
    check_scale(call, "scale_a", *call.scale_a);
    check_scale(call, "scale_b", *call.scale_b);
    call.scales = find_scales(call);
    if (call.bias) check_bias(call);
    if (call.azp || call.azp_adj) check_zero_point(call);
  }
  if (!call.out) return;
  check_out(call, *call.out, "out", call.n);
  auto const check_input = [&](Tensor const* input, char const* argument) {
    if (input) check_apart(call, *call.out, "out", *input, argument);
  };
  check_input(call.scale_a, "scale_a");
  check_input(call.scale_b, "scale_b");
  check_input(call.bias, "bias");
  check_input(call.azp, "azp");
  check_input(call.azp_adj, "azp_adj");
}

}  // namespace cutwheel
