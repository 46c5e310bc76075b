#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "torch/conv_request.h"
#include "torch/epilogue_ops.h"

namespace cutwheel {
namespace {

constexpr ErrorKind kType = ErrorKind::type, kValue = ErrorKind::value, kShape = ErrorKind::shape;

using Sizes = std::array<std::int64_t, 4>;

std::string list_text(std::int64_t const* values, std::size_t count) {
  std::string text = "[";
  for (std::size_t i = 0; i < count; ++i) text += (i ? ", " : "") + std::to_string(values[i]);
  return text + "]";
}

std::string sizes_text(Sizes const& sizes) { return list_text(sizes.data(), sizes.size()); }

Sizes sizes_of(Tensor const& tensor) {
  auto const sizes = tensor.sizes();
  return {sizes[0], sizes[1], sizes[2], sizes[3]};
}

template <std::size_t kCount>
void check_list(ConvCall const& call, char const* argument, std::array<std::int64_t, kCount> const& values,
                std::int64_t least, char const* what) {
  bool fits = true;
  for (std::int64_t value : values) fits = fits && value >= least && value <= kMaxExtent;
  if (!fits) {
    fail(kValue, call.names.op, ": ", argument, " is ", list_text(values.data(), kCount), "; expected ", kCount,
         " integers from ", least, " on: ", what);
  }
}

void check_geometry(ConvCall const& call) {
  check_list(call, "stride", call.geometry.stride, 1, "along H and W");
  check_list(call, "padding", call.geometry.padding, 0, "top, bottom, left, right");
  check_list(call, "dilation", call.geometry.dilation, 1, "along H and W");
}

// Of the gradient's result: the call gives two of its sizes, and its tensors have the others.
Sizes given_size(ConvCall const& call) {
  auto const [h, w] = call.size;
  if (call.direction == Direction::dgrad) {
    check_list(call, "size of the input", call.size, 0, "H and W");
    return {call.a->size(0), call.b->size(1), h, w};
  }
  check_list(call, "size of the weight", call.size, 0, "R and S");
  return {call.a->size(1), call.b->size(1), h, w};
}

// Only the batch may be empty.
void check_not_empty(ConvCall const& call, char const* argument, Sizes const& sizes, std::size_t first) {
  for (std::size_t i = first; i < sizes.size(); ++i) {
    if (sizes[i] < 1) {
      fail(kShape, call.names.op, ": ", argument, " has shape ", sizes_text(sizes), "; expected ",
           first ? "no 0 but that of an empty batch" : "no 0");
    }
  }
}

// Sizes of the three tensors, of which two were given.
struct ConvSizes {
  Sizes x, w, y;
};

std::int64_t out_extent(ConvCall const& call, ConvSizes const& sizes, std::size_t axis) {
  ConvGeometry const& g = call.geometry;
  std::int64_t const before = g.padding[2 * axis], after = g.padding[2 * axis + 1];
  std::int64_t const padded = sizes.x[axis + 2] + before + after;
  if (padded > kMaxExtent) {
    fail(kShape, call.names.op, ": ", axis ? "W" : "H", " with its padding is ", padded, "; at most ", kMaxExtent,
         " is supported");
  }
  std::int64_t const taps = sizes.w[axis + 2];
  // What a filter spans; its extents are below 2^31, so this fits.
  std::int64_t const span = g.dilation[axis] * (taps - 1) + 1;
  if (span > padded) {
    fail(kShape, call.names.op, ": along ", axis ? "W" : "H", " the filter spans ", span, " pixels (", taps,
         " taps, dilation ", g.dilation[axis], ") and the input has ", padded, " with its padding (", before, " + ",
         sizes.x[axis + 2], " + ", after, "); expected a filter that fits: pad the input");
  }
  return (padded - span) / g.stride[axis] + 1;
}

void check_channels(ConvCall const& call, ConvSizes const& sizes) {
  std::int64_t const in = sizes.x[1], of_filter = sizes.w[1];
  if (in == of_filter) return;
  bool const grouped = of_filter < in && in % of_filter == 0 && sizes.w[0] % (in / of_filter) == 0;
  fail(kShape, call.names.op, ": weight has shape ", sizes_text(sizes.w), " and input has ", in,
       " channels; expected a weight [Ko, ", in, ", R, S]",
       grouped
           ? concat(", as kernels convolve in one group: for ", in / of_filter, " groups use torch.nn.functional.conv2d")
           : "");
}

void check_grad_output(ConvCall const& call, ConvSizes const& sizes) {
  Sizes const given = sizes_of(*call.a);
  if (given == sizes.y) return;
  fail(kShape, call.names.op, ": grad_output has shape ", sizes_text(given), "; expected ", sizes_text(sizes.y),
       ", the shape of the result for an input ", sizes_text(sizes.x), " and a weight ", sizes_text(sizes.w));
}

void check_count(ConvCall const& call, char const* what, std::int64_t a, std::int64_t b, std::int64_t c) {
  // Each is at most 2^31.
  bool const fits = a <= kMaxExtent && b <= kMaxExtent && c <= kMaxExtent && a * b <= kMaxExtent && a * b * c <= kMaxExtent;
  if (!fits) {
    fail(kShape, call.names.op, ": ", what, " is ", a, " * ", b, " * ", c, "; at most ", kMaxExtent, " is supported");
  }
}

void fill_problem(ConvCall& call, ConvSizes const& sizes) {
  // Room for the channels that are added.
  constexpr std::int64_t kAdded = kAccessBytes;
  check_count(call, "N * H * W", sizes.x[0], sizes.x[2], sizes.x[3]);
  check_count(call, "N * P * Q", sizes.y[0], sizes.y[2], sizes.y[3]);
  check_count(call, "R * S * C", sizes.w[2], sizes.w[3], sizes.w[1] + kAdded);
  check_count(call, "R * S * Ko", sizes.w[2], sizes.w[3], sizes.w[0] + kAdded);
  auto const number = [](std::int64_t x) { return static_cast<int>(x); };
  ConvGeometry const& g = call.geometry;
  conv2d::ConvProblem& p = call.problem;
  p.images = number(sizes.x[0]), p.c = number(sizes.x[1]), p.h = number(sizes.x[2]), p.w = number(sizes.x[3]);
  p.k_out = number(sizes.w[0]), p.r = number(sizes.w[2]), p.s = number(sizes.w[3]);
  p.p = number(sizes.y[2]), p.q = number(sizes.y[3]);
  p.pad_h = number(g.padding[0]), p.pad_w = number(g.padding[2]);
  p.stride_h = number(g.stride[0]), p.stride_w = number(g.stride[1]);
  p.dilation_h = number(g.dilation[0]), p.dilation_w = number(g.dilation[1]);
  std::int64_t const pixels = sizes.x[0] * sizes.x[2] * sizes.x[3], positions = sizes.y[0] * sizes.y[2] * sizes.y[3];
  std::int64_t const taps = sizes.w[2] * sizes.w[3];
  switch (call.direction) {
    case Direction::dgrad: call.m = pixels, call.n = sizes.x[1], call.k = taps * sizes.w[0]; break;
    case Direction::wgrad: call.m = sizes.w[0], call.n = taps * sizes.x[1], call.k = positions; break;
    default: call.m = positions, call.n = sizes.w[0], call.k = taps * sizes.x[1];
  }
}

void check_sizes(ConvCall& call) {
  ConvSizes sizes{};
  switch (call.direction) {
    case Direction::dgrad: sizes.x = given_size(call), sizes.w = sizes_of(*call.b); break;
    case Direction::wgrad: sizes.x = sizes_of(*call.b), sizes.w = given_size(call); break;
    default: sizes.x = sizes_of(*call.a), sizes.w = sizes_of(*call.b);
  }
  check_not_empty(call, call.direction == Direction::dgrad ? "the input" : "input", sizes.x, 1);
  check_not_empty(call, call.direction == Direction::wgrad ? "the weight" : "weight", sizes.w, 0);
  check_channels(call, sizes);
  check_count(call, "R * S * C", sizes.w[2], sizes.w[3], sizes.w[1]);
  sizes.y = {sizes.x[0], sizes.w[0], out_extent(call, sizes, 0), out_extent(call, sizes, 1)};
  if (call.direction != Direction::fprop) check_grad_output(call, sizes);
  fill_problem(call, sizes);
}

void check_types(ConvCall& call) {
  OpNames const& names = call.names;
  call.type = type_of(*call.a);
  if (!is_supported(call.type)) {
    fail(kType, names.op, ": ", names.a, " has dtype ", dtype_text(call.type), "; expected float16, bfloat16 or float32");
  }
  if (type_of(*call.b) != call.type) {
    fail(kType, names.op, ": ", names.b, " has dtype ", dtype_text(type_of(*call.b)), "; expected ", dtype_text(call.type),
         " as ", names.a, " has");
  }
  call.d_type = call.type;
  if (call.type == ScalarType::Float && !call.allow_tf32) {
    fail(ErrorKind::runtime, names.op,
         ": float32 tensors are convolved on TF32 tensor cores only, and torch's setting forbids TF32; allow it with "
         "torch.backends.cudnn.conv.fp32_precision = \"tf32\" (or torch.backends.cudnn.allow_tf32 = True), or pass float16 "
         "or bfloat16");
  }
}

void check_scaled_types(ConvCall& call) {
  OpNames const& names = call.names;
  call.type = type_of(*call.a);
  if (call.type != ScalarType::Float8_e4m3fn && call.type != ScalarType::Char) {
    fail(kType, names.op, ": input has dtype ", dtype_text(call.type),
         "; expected float8_e4m3fn or int8 (cutwheel.quantize makes them)");
  }
  if (type_of(*call.b) != call.type) {
    fail(kType, names.op, ": weight has dtype ", dtype_text(type_of(*call.b)), "; expected ", dtype_text(call.type),
         " as input has");
  }
  call.d_type = call.out_dtype.value_or(ScalarType::BFloat16);
  if (!is_supported(call.d_type)) {
    fail(kType, names.op, ": out_dtype is ", dtype_text(call.d_type), "; expected float16, bfloat16 or float32");
  }
}

void check_scale(ConvCall const& call, char const* argument, Tensor const& scale, bool for_each_filter) {
  check_device(call.names.op, argument, scale, call.device, "input");
  if (type_of(scale) != ScalarType::Float) {
    fail(kType, call.names.op, ": ", argument, " has dtype ", dtype_text(type_of(scale)), "; expected float32");
  }
  bool const fits = scale.numel() == 1 || (for_each_filter && scale.dim() == 1 && scale.size(0) == call.n);
  if (!fits) {
    fail(kShape, call.names.op, ": ", argument, " has shape ", shape_text(scale), "; expected one element",
         for_each_filter ? concat(" or [", call.n, "], one for each filter") : "");
  }
}

void check_bias(ConvCall const& call) {
  Tensor const& bias = *call.bias;
  check_device(call.names.op, "bias", bias, call.device, call.names.a);
  ScalarType const type = type_of(bias);
  if (type != call.d_type && !(call.is_scaled && type == ScalarType::Float)) {
    fail(kType, call.names.op, ": bias has dtype ", dtype_text(type), "; expected ", dtype_text(call.d_type),
         call.is_scaled ? ", the dtype of the result, or float32" : "");
  }
  if (bias.dim() != 1 || bias.size(0) != call.n) {
    fail(kShape, call.names.op, ": bias has shape ", shape_text(bias), "; expected [", call.n, "]");
  }
}

void check_residual(ConvCall const& call) {
  Tensor const& residual = *call.residual;
  check_device(call.names.op, "residual", residual, call.device, call.names.a);
  if (type_of(residual) != call.d_type) {
    fail(kType, call.names.op, ": residual has dtype ", dtype_text(type_of(residual)), "; expected ",
         dtype_text(call.d_type));
  }
  conv2d::ConvProblem const& p = call.problem;
  Sizes const wanted{p.images, p.k_out, p.p, p.q};
  if (residual.dim() != 4 || sizes_of(residual) != wanted) {
    fail(kShape, call.names.op, ": residual has shape ", shape_text(residual), "; expected ", sizes_text(wanted),
         ", the shape of the result");
  }
}

bool takes(EpilogueInfo const& info, char const* name) {
  return std::any_of(info.operands, info.operands + info.count,
                     [&](EpilogueOperandInfo const& operand) { return std::strcmp(operand.name, name) == 0; });
}

void check_epilogue(ConvCall const& call) {
  EpilogueInfo const& info = info_of(*call.epilogue);
  auto const check = [&](char const* argument, Tensor const* tensor) {
    if (tensor && !takes(info, argument)) {
      fail(kValue, call.names.op, ": ", argument, " is given, and epilogue \"", info.name, "\" has no such operand");
    }
  };
  check("bias", call.bias);
  check("residual", call.residual);
}

}  // namespace

Epilogue conv_epilogue(std::string_view name) {
  char const* const op = kConv2d.op;
  Epilogue const epilogue = named_epilogue(op, name, /*has_accum=*/true);
  EpilogueInfo const& info = info_of(epilogue);
  if (info.width != Width::same || stores_of(info) > 0) {
    fail(kValue, op, ": epilogue \"", info.name,
         "\" changes the number of columns or stores more than the result; expected one that does neither");
  }
  for (int i = 0; i < info.count; ++i) {
    EpilogueOperandInfo const& operand = info.operands[i];
    auto const is = [&](OperandKind kind, char const* name) {
      return operand.kind == kind && std::strcmp(operand.name, name) == 0;
    };
    if (!is(OperandKind::scalar, "alpha") && !is(OperandKind::row, "bias") && !is(OperandKind::matrix, "residual")) {
      fail(kValue, op, ": epilogue \"", info.name, "\" has an operand ", operand.name,
           "; expected none but bias and residual");
    }
  }
  return epilogue;
}

void check_conv(ConvCall& call) {
  check_devices(call);
  check_dims(call.names, call.names.a, *call.a, 4);
  check_dims(call.names, call.names.b, *call.b, 4);
  if (call.is_scaled) {
    check_scaled_types(call);
  } else {
    check_types(call);
  }
  check_geometry(call);
  check_sizes(call);
  if (call.epilogue) check_epilogue(call);
  if (call.bias) check_bias(call);
  if (call.residual) check_residual(call);
  if (!call.is_scaled) return;
  check_scale(call, "scale_input", *call.scale_input, /*for_each_filter=*/false);
  check_scale(call, "scale_weight", *call.scale_weight, /*for_each_filter=*/true);
}

}  // namespace cutwheel
