#include "torch/grouped.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "core/error.h"
#include "dispatch/epilogue_names.h"
#include "torch/cuda_shims.h"
#include "torch/fused.h"
#include "torch/gemm.h"
#include "torch/text_argument.h"

namespace cutwheel {

// --- Checks

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

// --- Scales

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

// --- Operands

namespace {

// No kernel reads a K of 0, but a bias and an epilogue apply to its result: then both operands are zeros, of the shortest
// K that can be accessed. All groups have the same B.
GemmOperands operands_of(GroupedCall const& call, std::vector<Tensor>& keep) {
  if (call.k == 0) {
    std::int64_t const k = access_elements(call.type), rows = std::max({call.m, call.n, std::int64_t{1}});
    Tensor zeros = empty_strided({rows, k}, {k, 1}, call.type, call.device);
    torch::stable::zero_(zeros);
    keep.push_back(zeros);
    void* const data = zeros.data_ptr();
    return {{{data, 1, call.m, k, 0, k, 1}, zeros}, {{data, call.batch, k, call.n, 0, 1, k}, zeros}, k};
  }
  Matrix const b = matrix_of(*call.b);
  return {{matrix_of(*call.a), *call.a}, {call.linear ? b.transposed() : b, *call.b}, call.k};
}

// The ends as a kernel reads them, one behind the other.
gemm::GroupArgs prepare_ends(GroupedCall const& call, std::vector<Tensor>& keep) {
  Tensor const& ends = *call.ends;
  ScalarType const type = ends.scalar_type();
  gemm::GroupArgs groups{ends.data_ptr(), type == ScalarType::Long, static_cast<int>(call.batch), call.first_k};
  if (call.batch > 1 && ends.stride(0) != 1) {
    Tensor copy = empty_strided({call.batch}, {1}, type, call.device);
    torch::stable::copy_(copy, ends);
    groups.ends = copy.data_ptr();
    keep.push_back(std::move(copy));
  }
  return groups;
}

// A row for each group, of [G, N] or [G, 1, N]. `whole_n`: the columns that a kernel may read.
gemm::Operand prepare_rows(GroupedCall const& call, Tensor const& tensor, ScalarType type, std::int64_t whole_n,
                           bool pad_extents, std::vector<Tensor>& keep) {
  Matrix const rows{tensor.data_ptr(), call.batch, 1, call.n, tensor.stride(0), 0, tensor.stride(tensor.dim() - 1)};
  bool const pad = pad_extents && call.n != whole_n;
  std::int64_t const pitch = round_up(whole_n, access_elements(type));
  Matrix const x = readable(rows, tensor, type, pitch, pad, call.device, keep);
  return {x.data, 0, x.batch == 1 ? 0 : x.batch_stride};
}

gemm::EpilogueValue prepare_row_operand(GroupedCall const& call, Tensor const& tensor, ScalarType type,
                                        std::int64_t whole_n, bool pad_extents, std::vector<Tensor>& keep) {
  gemm::Operand const rows = prepare_rows(call, tensor, type, whole_n, pad_extents, keep);
  return {const_cast<void*>(rows.data), /*leading=*/1, rows.batch_stride, 0};
}

// A value for each row of D.
gemm::EpilogueValue prepare_column(GroupedCall const& call, Tensor const& tensor, std::vector<Tensor>& keep) {
  Matrix x = vector_of(tensor);
  bool const is_one = x.cols == 1 || x.col_stride == 0;  // read alone, wherever it lies
  if (!is_one) {
    std::int64_t const pitch = round_up(x.cols, access_elements(ScalarType::Float));
    x = readable(x, tensor, ScalarType::Float, pitch, /*force_copy=*/false, call.device, keep);
  }
  return {x.data, is_one ? 0 : 1, 0, 0};
}

void prepare_epilogue(PreparedGemm& prepared, GroupedCall const& call, Epilogue epilogue, CopyPolicy copy_policy) {
  EpilogueInfo const& info = info_of(epilogue);
  ScalarType const d_type = call.kernel_d_type();
  std::int64_t const whole_n = round_up(call.n, access_elements(d_type));
  auto store = prepared.stores.begin();
  for (int i = 0; i < info.count; ++i) {
    EpilogueOperandInfo const& operand = info.operands[i];
    std::string_view const name = operand.name;
    gemm::EpilogueValue value;
    if (operand.kind == OperandKind::scalar) {
      value.value = 1;
    } else if (operand.kind == OperandKind::store) {
      Matrix const x = prepare_output(*store, matrix_of(*store->tensor), d_type, whole_n,
                                      copy_policy.extents && call.n != whole_n, call.device);
      value.data = x.data;
      value.leading = leading_of(x, whole_n);
      ++store;
    } else if (name == "scale_a" && call.k > 0) {
      value = prepare_column(call, *call.scale_a, prepared.keep);
    } else if ((name == "scale_b" && call.k > 0) || (name == "bias" && call.bias)) {
      Tensor const& tensor = name == "bias" ? *call.bias : *call.scale_b;
      value = prepare_row_operand(call, tensor, operand_type(operand, d_type), whole_n, copy_policy.extents, prepared.keep);
    }
    prepared.args.epilogue[i] = value;
  }
}

// C is D: kernels add to what lies there, also where that is a copy.
void prepare_accumulator(PreparedGemm& prepared) {
  gemm::GemmArgs& args = prepared.args;
  if (prepared.d.temporary) {
    Tensor target = view_of(*prepared.d.temporary, prepared.d.copy_from);
    torch::stable::copy_(target, view_of(*prepared.d.tensor, prepared.d.copy_to));
  }
  args.c = {args.d, args.d_leading, args.d_batch_stride};
  args.beta = 1;
}

}  // namespace

GemmRequest request_of(GroupedCall const& call) {
  GemmRequest request;
  request.op = Op::grouped_mm;
  request.device = call.device;
  request.a = call.type == ScalarType::Float ? DType::tf32 : dtype_of(call.type);
  request.b = call.b_type == ScalarType::Float ? DType::tf32 : dtype_of(call.b_type);
  request.d = dtype_of(call.kernel_d_type());
  Layouts const layouts = copied_layouts(call.grouping, request.a);
  request.layout_a = layouts.a, request.layout_b = layouts.b;
  if (std::optional<Epilogue> const epilogue = call.kernel_epilogue()) {
    request.addend = Addend::other;
    request.epilogue = *epilogue;
  } else {
    request.addend = call.accumulates ? Addend::matrix : call.bias ? Addend::row : Addend::none;
  }
  request.fast_accum = call.use_fast_accum;
  request.scales = call.scales;
  bool const rows = call.grouping == Grouping::rows;
  request.m = static_cast<int>(rows ? ceil_div(call.m, call.batch) : call.m);
  request.n = static_cast<int>(call.n);
  request.k = static_cast<int>(rows ? call.k : ceil_div(call.k, call.batch));
  request.batch = request.groups = static_cast<int>(call.batch);
  request.grouping = call.grouping;
  return request;
}

void prepare_grouped(PreparedGemm& prepared, GroupedCall const& call, CopyPolicy copy_policy) {
  std::vector<Tensor>& keep = prepared.keep;
  keep.clear();  // of a first try; work already enqueued on them is ordered by the stream
  prepared.request = request_of(call);
  GemmRequest& request = prepared.request;
  Layouts const preferred{request.layout_a, request.layout_b};
  copy_policy.layouts = copy_policy.layouts || call.is_scaled;  // 8-bit tensor cores read nothing else
  GemmOperands const operands = operands_of(call, keep);
  // cp.async kernels read whole accesses of what is contiguous. Along K copies of both operands have zeros up to the next
  // multiple, which add nothing to a group that ends there.
  bool const k_contiguous = preferred.a == Layout::row;
  std::int64_t const whole_k = round_up(operands.k, access_elements(call.type));
  bool const pad_k = copy_policy.extents && k_contiguous && operands.k != whole_k;
  PreparedOperand const a =
      prepare_operand(operands.a.matrix, operands.a.owner, call.type, preferred.a, copy_policy, pad_k, call.device, keep);
  PreparedOperand const b =
      prepare_operand(operands.b.matrix, operands.b.owner, call.b_type, preferred.b, copy_policy, pad_k, call.device, keep);

  gemm::GemmArgs& args = prepared.args;
  args.m = static_cast<int>(call.m), args.n = static_cast<int>(call.n);
  args.k = static_cast<int>(pad_k ? whole_k : operands.k);
  args.batch = 1;
  args.a = a.operand, args.b = b.operand;
  args.groups = prepare_ends(call, keep);
  if (call.scales != BlockScales::none) {
    args.scale_a = block_scales(*call.scale_a, /*k_first=*/false);
    args.scale_b = block_scales(*call.scale_b, /*k_first=*/true);
  }

  ScalarType const d_type = call.kernel_d_type();
  std::int64_t const unit = access_elements(d_type), whole_n = round_up(call.n, unit);
  std::int64_t const pitch = round_up(columns_of(call.width(), whole_n), unit);
  Matrix const d = prepare_output(prepared.d, matrix_of(*prepared.d.tensor), d_type, pitch,
                                  (copy_policy.extents && call.n != whole_n) || d_type != call.d_type, call.device);
  args.d = d.data;
  args.d_leading = leading_of(d, pitch);
  args.d_batch_stride = d.batch == 1 ? 0 : d.batch_stride;

  args.alpha = 1, args.beta = 0;
  if (std::optional<Epilogue> const epilogue = call.kernel_epilogue()) {
    prepare_epilogue(prepared, call, *epilogue, copy_policy);
  } else if (call.accumulates) {
    prepare_accumulator(prepared);
  } else if (call.bias) {
    args.c = prepare_rows(call, *call.bias, d_type, whole_n, copy_policy.extents, keep);
    args.beta = 1;
  }
  request.layout_a = a.layout, request.layout_b = b.layout;
  request.extents_aligned = a.extent_aligned && b.extent_aligned && (copy_policy.extents || call.n == whole_n);
}

// --- Running

namespace {

Tensor make_result(GroupedCall const& call, std::int64_t cols) {
  std::int64_t const shape[] = {call.batch, call.m, cols};
  bool const rows = call.grouping == Grouping::rows;
  return empty_contiguous(rows ? shape + 1 : shape, rows ? 2 : 3, call.d_type, call.device);
}

// Groups along a K that one accumulator does not take: part after part, added up in float32.
void run_in_parts(Tensor& result, GroupedCall const& call, std::int64_t part) {
  bool const is_float32 = call.d_type == ScalarType::Float;
  std::int64_t const shape[] = {call.batch, call.m, call.n};
  Tensor total = is_float32 ? result : empty_contiguous(shape, 3, ScalarType::Float, call.device);
  if (!call.accumulates) torch::stable::zero_(total);
  auto const advance = [&](Matrix& x, std::int64_t elements) {
    x.data = static_cast<char*>(x.data) + elements * element_bytes_of(call.type);
  };
  for (std::int64_t first = 0; first < call.k; first += part) {
    Matrix a = matrix_of(*call.a), b = matrix_of(*call.b);
    a.cols = b.rows = std::min(part, call.k - first);
    advance(a, first * a.col_stride);
    advance(b, first * b.row_stride);
    Tensor const a_part = matrix_view(*call.a, a), b_part = matrix_view(*call.b, b);
    GroupedCall one = make_grouped_call(call.names, a_part, b_part, *call.ends);
    one.allow_tf32 = call.allow_tf32;
    one.accumulates = true;
    one.out = &total;
    one.first_k = first;
    PreparedGemm prepared;
    run_grouped(prepared, one);
  }
  if (!is_float32) torch::stable::copy_(result, total);
}

}  // namespace

bool start_grouped(PreparedGemm& prepared, GroupedCall const& call) {
  prepared.d.tensor = call.out ? *call.out : make_result(call, columns_of(call.width(), call.n));
  if (call.epilogue) {
    EpilogueInfo const& info = info_of(*call.epilogue);
    for (int i = 0; i < info.count; ++i) {
      if (info.operands[i].kind == OperandKind::store) prepared.stores.emplace_back().tensor = make_result(call, call.n);
    }
  }
  return !call.empty() && (call.grouping == Grouping::rows || call.k > 0);
}

GemmPlan plan_grouped(PreparedGemm& prepared, GroupedCall& call) {
  if (call.is_scaled) call.form = choose_grouped_form(call);
  prepare_grouped(prepared, call, {});
  return plan_product(prepared, call, [&](CopyPolicy copy_policy) { prepare_grouped(prepared, call, copy_policy); });
}

void run_grouped(PreparedGemm& prepared, GroupedCall& call) {
  check_grouped(call);
  DeviceScope const scope(call.device);
  bool const multiplies = start_grouped(prepared, call);
  if (!multiplies) {
    // Groups along an empty K: each result is zeros, or stays what it is.
    if (!call.empty() && !call.accumulates) torch::stable::zero_(*prepared.d.tensor);
    return;
  }
  // A part reads and writes the results of all groups: the more groups, the longer it is, and the less likely has one of
  // them all of it.
  std::int64_t const part = kLongestSum * std::clamp<std::int64_t>(call.batch / 8, 1, 8);
  if (call.grouping == Grouping::k && call.k > part) {
    run_in_parts(*prepared.d.tensor, call, part);
    return;
  }
  prepared.args.device = &device_info(call.device);
  prepared.args.stream = current_stream(call.device);
  GemmPlan const plan = plan_grouped(prepared, call);
  launch_gemm(prepared, call, plan);
  finish_output(prepared.d);
  for (Output& store : prepared.stores) finish_output(store);
}

// --- Ops

namespace {

Tensor run(GroupedCall call) {
  PreparedGemm prepared;
  run_grouped(prepared, call);
  return *std::move(prepared.d.tensor);
}

void run_linear(PreparedGemm& prepared, Tensor const& input, Tensor const& weight, Tensor const& offs,
                std::optional<Tensor> const& bias, StringHandle name, bool allow_tf32, int stores) {
  TextArgument const text(name);
  GroupedCall call = grouped_linear_call(input, weight, offs, bias, grouped_epilogue(text.view(), stores), allow_tf32);
  run_grouped(prepared, call);
}

}  // namespace

GroupedCall grouped_mm_call(Tensor const& a, Tensor const& b, Tensor const& offs, std::optional<Tensor> const& bias,
                            std::optional<ScalarType> out_dtype, bool allow_tf32) {
  GroupedCall call = make_grouped_call(kGroupedMm, a, b, offs);
  call.bias = bias ? &*bias : nullptr;
  call.out_dtype = out_dtype;
  call.allow_tf32 = allow_tf32;
  return call;
}

GroupedCall grouped_accumulate_call(Tensor const& a, Tensor const& b, Tensor const& offs, bool allow_tf32,
                                    Tensor const& out) {
  GroupedCall call = make_grouped_call(kGroupedMmAccumulate, a, b, offs);
  call.allow_tf32 = allow_tf32;
  call.accumulates = true;
  call.out = &out;
  return call;
}

GroupedCall grouped_linear_call(Tensor const& input, Tensor const& weight, Tensor const& offs,
                                std::optional<Tensor> const& bias, Epilogue epilogue, bool allow_tf32) {
  GroupedCall call = make_grouped_call(kGroupedLinear, input, weight, offs);
  call.bias = bias ? &*bias : nullptr;
  call.allow_tf32 = allow_tf32;
  call.linear = true;
  call.epilogue = epilogue;
  return call;
}

GroupedCall scaled_grouped_call(Tensor const& a, Tensor const& b, Tensor const& scale_a, Tensor const& scale_b,
                                Tensor const& offs, std::optional<Tensor> const& bias, std::optional<ScalarType> out_dtype,
                                bool use_fast_accum) {
  GroupedCall call = make_grouped_call(kScaledGroupedMm, a, b, offs);
  call.scale_a = &scale_a, call.scale_b = &scale_b;
  call.bias = bias ? &*bias : nullptr;
  call.out_dtype = out_dtype;
  call.use_fast_accum = use_fast_accum;
  call.is_scaled = true;
  return call;
}

Tensor grouped_mm(Tensor const& a, Tensor const& b, Tensor const& offs, std::optional<Tensor> const& bias,
                  std::optional<ScalarType> out_dtype, bool allow_tf32) {
  return run(grouped_mm_call(a, b, offs, bias, out_dtype, allow_tf32));
}

void grouped_mm_accumulate(Tensor const& a, Tensor const& b, Tensor const& offs, bool allow_tf32, Tensor const& out) {
  run(grouped_accumulate_call(a, b, offs, allow_tf32, out));
}

Tensor grouped_linear_fused(Tensor const& input, Tensor const& weight, Tensor const& offs,
                            std::optional<Tensor> const& bias, StringHandle epilogue, bool allow_tf32) {
  PreparedGemm prepared;
  run_linear(prepared, input, weight, offs, bias, epilogue, allow_tf32, /*stores=*/0);
  return *std::move(prepared.d.tensor);
}

std::tuple<Tensor, Tensor> grouped_linear_fused_aux(Tensor const& input, Tensor const& weight, Tensor const& offs,
                                                    std::optional<Tensor> const& bias, StringHandle epilogue,
                                                    bool allow_tf32) {
  PreparedGemm prepared;
  run_linear(prepared, input, weight, offs, bias, epilogue, allow_tf32, /*stores=*/1);
  return {*std::move(prepared.d.tensor), *std::move(prepared.stores[0].tensor)};
}

Tensor scaled_grouped_mm(Tensor const& a, Tensor const& b, Tensor const& scale_a, Tensor const& scale_b, Tensor const& offs,
                         std::optional<Tensor> const& bias, std::optional<ScalarType> out_dtype, bool use_fast_accum) {
  return run(scaled_grouped_call(a, b, scale_a, scale_b, offs, bias, out_dtype, use_fast_accum));
}

}  // namespace cutwheel
