#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "dispatch/epilogue_names.h"
#include "torch/epilogue_ops.h"
#include "torch/grouped_request.h"

namespace cutwheel {
namespace {

constexpr ErrorKind kType = ErrorKind::type, kValue = ErrorKind::value, kShape = ErrorKind::shape;

// A linear layer has no argument for a scalar: it is called with the neutral values.
bool is_neutral(EpilogueOperandInfo const& operand) {
  return operand.kind == OperandKind::scalar &&
         (std::strcmp(operand.name, "alpha") == 0 || std::strcmp(operand.name, "beta") == 0);
}

bool is_bias(EpilogueOperandInfo const& operand) {
  return operand.kind == OperandKind::row && std::strcmp(operand.name, "bias") == 0;
}

void check_dimensions(GroupedCall& call) {
  OpNames const& names = call.names;
  Tensor const &a = *call.a, &b = *call.b;
  check_dims(names, names.a, a, 2);
  if (call.linear || call.is_scaled) {
    check_dims(names, names.b, b, 3);
  } else if (call.accumulates) {
    check_dims(names, names.b, b, 2);
  } else if (b.dim() != 2 && b.dim() != 3) {
    fail(kShape, names.op, ": ", names.b, " has ", b.dim(), " dimensions (shape ", shape_text(b),
         "); expected [G, K, N] for groups of mat_a's rows, or [T, N] for groups of its columns");
  }
  call.grouping = b.dim() == 3 ? Grouping::rows : Grouping::k;
}

ScalarType fp8_type(char const* argument, Tensor const& tensor) {
  ScalarType const type = type_of(tensor);
  if (type == ScalarType::Float4_e2m1fn_x2) fail_on_microscaling(kScaledGroupedMm.op, argument, type);
  if (type != ScalarType::Float8_e4m3fn && type != ScalarType::Float8_e5m2) {
    fail(kType, "scaled_grouped_mm: ", argument, " has dtype ", dtype_text(type),
         "; expected float8_e4m3fn or float8_e5m2 (cutwheel.quantize makes them)");
  }
  return type;
}

void check_scaled_types(GroupedCall& call) {
  call.type = fp8_type("mat_a", *call.a);
  call.b_type = fp8_type("mat_b", *call.b);
  if (call.type == ScalarType::Float8_e5m2 && call.b_type == call.type) {
    fail(kType,
         "scaled_grouped_mm: mat_a and mat_b have dtype float8_e5m2; expected float8_e4m3fn for one of them or both");
  }
  call.d_type = call.out_dtype.value_or(ScalarType::BFloat16);
  if (!is_supported(call.d_type)) {
    fail(kType, "scaled_grouped_mm: output_dtype is ", dtype_text(call.d_type), "; expected float16, bfloat16 or float32");
  }
}

void check_types(GroupedCall& call) {
  if (call.accumulates && type_of(*call.out) != ScalarType::Float) {
    fail(kType, call.names.op, ": out has dtype ", dtype_text(type_of(*call.out)), "; expected float32");
  }
  if (call.is_scaled) {
    check_scaled_types(call);
  } else {
    check_float_types(call, call.allow_tf32);
    call.b_type = call.type;
  }
}

void check_extents(GroupedCall& call) {
  OpNames const& names = call.names;
  Tensor const &a = *call.a, &b = *call.b;
  Matrix const left = matrix_of(a), right = call.linear ? matrix_of(b).transposed() : matrix_of(b);
  call.m = left.rows, call.k = left.cols, call.n = right.cols;
  if (right.rows != call.k) {
    char const* const open = call.grouping == Grouping::rows ? "[G, " : "[";
    fail(kShape, names.op, ": ", names.b, " has shape ", shape_text(b), "; expected ", open,
         call.linear ? concat("N, ", call.k) : concat(call.k, ", N"), "] as ", names.a, " has shape ", shape_text(a));
  }
  std::int64_t const widest = columns_of(call.width(), call.n);
  for (std::int64_t extent : {call.m, call.n, widest, call.k}) check_extent(names.op, extent);
}

void check_ends(GroupedCall& call) {
  OpNames const& names = call.names;
  Tensor const& ends = *call.ends;
  check_device(names.op, "offs", ends, call.device, names.a);
  ScalarType const type = type_of(ends);
  if (type != ScalarType::Int && type != ScalarType::Long) {
    fail(kType, names.op, ": offs has dtype ", dtype_text(type), "; expected int32 or int64");
  }
  if (ends.dim() != 1) {
    fail(kShape, names.op, ": offs has ", ends.dim(), " dimensions (shape ", shape_text(ends),
         "); expected 1: the end of each group");
  }
  call.batch = ends.size(0);
  if (call.grouping == Grouping::rows && call.b->size(0) != call.batch) {
    fail(kShape, names.op, ": offs has ", call.batch, " elements; expected ", call.b->size(0), ", one for each matrix of ",
         names.b, " (shape ", shape_text(*call.b), ")");
  }
  if (call.batch < 1 || call.batch > kMaxGroups) {
    fail(kShape, names.op, ": offs has ", call.batch, " elements, one for each group; expected 1 to ", kMaxGroups,
         " groups", call.batch > kMaxGroups ? ": split the call" : "");
  }
}

void check_bias(GroupedCall const& call) {
  OpNames const& names = call.names;
  Tensor const& bias = *call.bias;
  if (call.grouping == Grouping::k) {
    fail(kValue, names.op, ": bias is given, and the groups are along K (mat_b has 2 dimensions); expected None");
  }
  check_device(names.op, "bias", bias, call.device, names.a);
  // A bias in another dtype than the result is converted: a row for each group is little.
  ScalarType const type = type_of(bias), other = call.is_scaled ? ScalarType::Float : call.type;
  if (type != call.d_type && type != other) {
    fail(kType, names.op, ": bias has dtype ", dtype_text(type), "; expected ", dtype_text(other),
         other == call.d_type ? "" : concat(" or ", dtype_text(call.d_type)));
  }
  if (bias.dim() != 2 || bias.size(0) != call.batch || bias.size(1) != call.n) {
    fail(kShape, names.op, ": bias has shape ", shape_text(bias), "; expected [", call.batch, ", ", call.n,
         "], a row for each group");
  }
}

void check_epilogue(GroupedCall const& call) {
  EpilogueInfo const& info = info_of(*call.epilogue);
  if (info.width == Width::half && call.n % 2 != 0) {
    fail(kShape, call.names.op, ": ", call.names.b, " has shape ", shape_text(*call.b), "; epilogue \"", info.name,
         "\" combines pairs of columns, so N must be even");
  }
  bool const takes_bias = std::any_of(info.operands, info.operands + info.count, is_bias);
  if (call.bias && !takes_bias) {
    fail(kValue, call.names.op, ": bias is given, and epilogue \"", info.name, "\" has no such operand");
  }
}

void check_accumulator(GroupedCall const& call) {
  OpNames const& names = call.names;
  Tensor const& out = *call.out;
  check_device(names.op, "out", out, call.device, names.a);
  Matrix const target = matrix_of(out);
  if (out.dim() != 3 || target.batch != call.batch || target.rows != call.m || target.cols != call.n) {
    fail(kShape, names.op, ": out has shape ", shape_text(out), "; expected [", call.batch, ", ", call.m, ", ", call.n,
         "], a matrix for each group");
  }
  std::int64_t stride = 1;
  for (std::int64_t i = 2; i >= 0; --i) {
    if (out.size(i) != 1 && out.numel() > 0 && out.stride(i) != stride) {
      fail(kValue, names.op, ": out is not contiguous (shape ", shape_text(out), "); expected contiguous memory");
    }
    stride *= out.size(i);
  }
  check_apart(call, out, "out", *call.a, names.a);
  check_apart(call, out, "out", *call.b, names.b);
}

}  // namespace

Epilogue grouped_epilogue(std::string_view name, std::optional<int> stores) {
  char const* const op = kGroupedLinear.op;
  Epilogue const epilogue = named_epilogue(op, name, /*has_accum=*/true);
  EpilogueInfo const& info = info_of(epilogue);
  for (int i = 0; i < info.count; ++i) {
    EpilogueOperandInfo const& operand = info.operands[i];
    if (operand.kind != OperandKind::store && !is_bias(operand) && !is_neutral(operand)) {
      fail(kValue, op, ": epilogue \"", info.name, "\" has an operand ", operand.name,
           "; expected none but bias, a row for each group");
    }
  }
  if (int const found = stores_of(info); found != stores.value_or(found)) {
    fail(kValue, op, ": epilogue \"", info.name, "\" stores ", found,
         " tensors besides the result; grouped_linear_fused takes one that stores none, grouped_linear_fused_aux one that "
         "stores one");
  }
  return epilogue;
}

void check_grouped(GroupedCall& call) {
  check_devices(call);
  check_dimensions(call);
  check_types(call);
  check_extents(call);
  check_ends(call);
  // Those of grouped_mm know a bias of another dtype.
  if (call.epilogue) check_epilogue(call);
  if (call.epilogue && info_of(*call.epilogue).addend != Addend::other) call.epilogue.reset();
  if (call.bias) check_bias(call);
  if (call.is_scaled) check_grouped_scales(call);
  if (call.accumulates) check_accumulator(call);
}

}  // namespace cutwheel
