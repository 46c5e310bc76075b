// grouped_mm and its like: a GEMM for each group, where the ends of groups lie on the device and the host never reads
// them.
#include "torch/grouped.h"

#include <algorithm>
#include <string_view>

#include "core/args/routing.h"
#include "torch/gemm.h"
#include "torch/registry.h"
#include "torch/routing.h"
#include "torch/scaled.h"

namespace cutwheel {

namespace {

constexpr OpNames kGroupedMm{"grouped_mm", "nn.functional.grouped_mm", nullptr, "mat_a", "mat_b", 2};
constexpr OpNames kGroupedMmAccumulate{"grouped_mm_accumulate", nullptr, nullptr, "mat_a", "mat_b", 2};
constexpr OpNames kGroupedLinear{"grouped_linear", nullptr, nullptr, "input", "weight", 2};
constexpr OpNames kScaledGroupedMm{"scaled_grouped_mm", nullptr, nullptr, "mat_a", "mat_b", 2};

// A kernel keeps the places of all groups in shared memory.
constexpr std::int64_t kMaxGroups = 1024;

// In terms of GemmCallBase, with groups of rows M is T, the rows of all groups; with groups of K, K is that of all groups.
// batch counts the groups.
struct GroupedCall : GemmCallBase {
  Tensor const* ends = nullptr;  // offs, [G]
  // Null: not given.
  Tensor const* bias = nullptr;  // [G, N]
  Tensor const* scale_a = nullptr;
  Tensor const* scale_b = nullptr;
  bool allow_tf32 = false;
  bool use_fast_accum = false;
  bool is_scaled = false;
  bool linear = false;                              // b is [G, N, K]
  Tensor const* up = nullptr;                       // [G, N / 2, K]: as GemmCall has it
  Tensor const* sources = nullptr;                  // [T], the row of a for each row; null: a is in the order of groups
  bool accumulates = false;                         // out += A @ B
  std::int64_t first_k = 0;                         // of groups along K: that of the operands, from which ends are counted
  std::optional<Epilogue> epilogue = std::nullopt;  // asked for by its name; else a bias is added, or nothing

  Grouping grouping = Grouping::rows;
  BlockScales scales = BlockScales::none;  // of a scaled GEMM: as in ScaledCall
  ScaledForm form{};                       // of a scaled GEMM

  // The epilogue of the kernel that runs; nothing if the operands decide it.
  std::optional<Epilogue> kernel_epilogue() const { return is_scaled ? std::optional<Epilogue>(form.epilogue) : epilogue; }
  ScalarType kernel_d_type() const { return is_scaled ? form.d_type : d_type; }
  Width width() const { return epilogue ? info_of(*epilogue).width : Width::same; }
};

GroupedCall make_grouped_call(OpNames const& names, Tensor const& a, Tensor const& b, Tensor const& ends) {
  GroupedCall call{{names, &a, &b}};
  call.ends = &ends;
  return call;
}

// --- Checks

constexpr ErrorKind kType = ErrorKind::type, kValue = ErrorKind::value, kShape = ErrorKind::shape;

bool is_bias(EpilogueOperandInfo const& operand) { return is_named(operand, OperandKind::row, "bias"); }

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
  call.sums_batch = call.grouping == Grouping::k;
}

void check_types(GroupedCall& call) {
  OpNames const& names = call.names;
  if (call.accumulates) check_type(names.op, "out", *call.out, ScalarType::Float);
  if (!call.is_scaled) {
    check_float_types(call, call.allow_tf32);
    return;
  }
  check_scaled_operands(call, /*may_be_int8=*/false);
  call.d_type = call.out_dtype.value_or(ScalarType::BFloat16);
  check_supported(names.op, "output_dtype", " is ", call.d_type);
}

void check_extents(GroupedCall& call) {
  OpNames const& names = call.names;
  Tensor const &a = *call.a, &b = *call.b;
  Matrix const left = matrix_of(a), right = call.linear ? matrix_of(b).transposed() : matrix_of(b);
  call.m = call.sources ? call.sources->numel() : left.rows, call.k = left.cols, call.n = right.cols * (call.up ? 2 : 1);
  if (right.rows != call.k) {
    char const* const open = call.grouping == Grouping::rows ? "[G, " : "[";
    fail_shape(names.op, names.b, b, open, call.linear ? concat("N, ", call.k) : concat(call.k, ", N"), "] as ", names.a,
               " has shape ", shape_text(a));
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
    fail_shape(names.op, "bias", bias, '[', call.batch, ", ", call.n, "], a row for each group");
  }
}

void check_accumulator(GroupedCall const& call) {
  OpNames const& names = call.names;
  Tensor const& out = *call.out;
  check_device(names.op, "out", out, call.device, names.a);
  Matrix const target = matrix_of(out);
  if (out.dim() != 3 || target.batch != call.batch || target.rows != call.m || target.cols != call.n) {
    fail_shape(names.op, "out", out, '[', call.batch, ", ", call.m, ", ", call.n, "], a matrix for each group");
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

// The epilogue of a name, with no operands but a bias and as many stores as are asked for. Throws for any other.
Epilogue grouped_epilogue(std::string_view name, std::optional<int> stores = std::nullopt) {
  char const* const op = kGroupedLinear.op;
  Epilogue const epilogue = named_epilogue(op, name, /*has_accum=*/true);
  EpilogueInfo const& info = info_of(epilogue);
  for (int i = 0; i < info.count; ++i) {
    EpilogueOperandInfo const& operand = info.operands[i];
    if (operand.kind != OperandKind::store && !is_bias(operand) && !is_neutral(operand)) {
      fail_operand(op, info, i, "none but bias, a row for each group");
    }
  }
  if (stores) check_stores(op, "grouped_linear_fused", info, *stores);
  return epilogue;
}

constexpr char const* kOp = "scaled_grouped_mm";

// Fills what the scales are.
void check_scales(GroupedCall& call) {
  Tensor const &a = *call.scale_a, &b = *call.scale_b;
  check_scale_type(call, "scale_a", a);
  check_scale_type(call, "scale_b", b);
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

// Shapes, dtypes, devices, scales, out: throws the error that names the argument; fills types, extents and the grouping.
void check(GroupedCall& call) {
  check_devices(call);
  check_dimensions(call);
  check_types(call);
  check_extents(call);
  check_ends(call);
  if (call.epilogue) {
    EpilogueInfo const& info = info_of(*call.epilogue);
    if (call.up) check_up(call, info, *call.up);
    check_pairs(call, info);
    check_takes(call.names.op, info, "bias", call.bias);
    // Those of grouped_mm know a bias of another dtype.
    if (info.addend != Addend::other) call.epilogue.reset();
  }
  if (call.bias) check_bias(call);
  if (call.is_scaled) check_scales(call);
  if (call.accumulates) check_accumulator(call);
}

// --- Operands

// The request that selection sees if operands are fully aligned and in the layouts of copies.
GemmRequest request_of(GroupedCall const& call) {
  GemmRequest request = request_of(call, Op::grouped_mm, call.kernel_d_type());
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
  request.k = static_cast<int>(rows ? call.k : ceil_div(call.k, call.batch));
  request.batch = request.groups = static_cast<int>(call.batch);
  request.grouping = call.grouping;
  return request;
}

ScaledForm choose_form(GroupedCall const& call) {
  ScaledEpilogues const epilogues = call.scales != BlockScales::none ? kBlockScaled : kScaled;
  GroupedCall asked = call;
  return choose_form(scaled_forms(epilogues, call.d_type, call.bias), call.device, [&](ScaledForm const& form) {
    asked.form = form;
    return request_of(asked);
  });
}

// All groups have the same B of zeros.
GemmOperands operands_of(GroupedCall const& call, CopyPolicy copy_policy, std::vector<Tensor>& keep) {
  if (call.k == 0) return zero_operands(call, keep);
  Matrix const b = matrix_of(*call.b);
  View const a{matrix_of(*call.a), *call.a};
  if (!call.up) return {a, {call.linear ? b.transposed() : b, *call.b}, call.k};
  View const even{b, *call.b}, odd{matrix_of(*call.up), *call.up};
  return {a, pairs_of(even, odd, call.type, copy_policy, /*may_be_apart=*/true, call.device, keep), call.k};
}

// The ends as a kernel reads them, one behind the other.
gemm::GroupArgs prepare_ends(GroupedCall const& call, std::vector<Tensor>& keep) {
  Tensor const& ends = *call.ends;
  ScalarType const type = type_of(ends);
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
gemm::EpilogueValue prepare_rows(GroupedCall const& call, Tensor const& tensor, ScalarType type, std::int64_t whole_n,
                                 bool pad_extents, std::vector<Tensor>& keep) {
  Matrix const rows{tensor.data_ptr(), call.batch, 1, call.n, tensor.stride(0), 0, tensor.stride(tensor.dim() - 1)};
  bool const pad = pad_extents && call.n != whole_n;
  std::int64_t const pitch = round_up(whole_n, access_elements(type));
  Matrix const x = readable(rows, tensor, type, pitch, pad, call.device, keep);
  return {x.data, /*leading=*/1, x.batch == 1 ? 0 : x.batch_stride, 0};
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
      value = prepare_result(*store, matrix_of(*store->tensor), d_type, whole_n, copy_policy.extents && call.n != whole_n,
                             call.device);
      ++store;
    } else if (name == "scale_a" && call.k > 0) {
      value = prepare_vector(operand, *call.scale_a, ScalarType::Float, 0, call.device, prepared.keep);
    } else if ((name == "scale_b" && call.k > 0) || (name == "bias" && call.bias)) {
      Tensor const& tensor = name == "bias" ? *call.bias : *call.scale_b;
      value = prepare_rows(call, tensor, operand_type(operand, d_type), whole_n, copy_policy.extents, prepared.keep);
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

void prepare(PreparedGemm& prepared, GroupedCall const& call, CopyPolicy copy_policy) {
  std::vector<Tensor>& keep = prepared.keep;
  keep.clear();  // of a first try; work already enqueued on them is ordered by the stream
  prepared.request = request_of(call);
  GemmRequest& request = prepared.request;
  copy_policy.layouts = copy_policy.layouts || call.is_scaled;  // 8-bit tensor cores read nothing else
  PreparedOperands const operands =
      prepare_operands(call, operands_of(call, copy_policy, keep), {request.layout_a, request.layout_b}, copy_policy, keep);

  gemm::GemmArgs& args = prepared.args;
  args.m = static_cast<int>(call.m), args.n = static_cast<int>(call.n), args.k = operands.k;
  args.batch = 1;
  args.a = operands.a.operand, args.b = operands.b.operand;
  args.groups = prepare_ends(call, keep);
  if (call.scales != BlockScales::none) {
    args.scale_a = block_scales(*call.scale_a, /*k_first=*/false);
    args.scale_b = block_scales(*call.scale_b, /*k_first=*/true);
  }

  ScalarType const d_type = call.kernel_d_type();
  std::int64_t const unit = access_elements(d_type), whole_n = round_up(call.n, unit);
  std::int64_t const pitch = round_up(columns_of(call.width(), whole_n), unit);
  bool const needs_copy = (copy_policy.extents && call.n != whole_n) || d_type != call.d_type;
  place_d(args, prepare_result(prepared.d, matrix_of(*prepared.d.tensor), d_type, pitch, needs_copy, call.device));

  args.alpha = 1, args.beta = 0;
  if (std::optional<Epilogue> const epilogue = call.kernel_epilogue()) {
    prepare_epilogue(prepared, call, *epilogue, copy_policy);
  } else if (call.accumulates) {
    prepare_accumulator(prepared);
  } else if (call.bias) {
    gemm::EpilogueValue const rows = prepare_rows(call, *call.bias, d_type, whole_n, copy_policy.extents, keep);
    args.c = {rows.data, /*leading=*/0, rows.batch_stride};
    args.beta = 1;
  }
  request.pairs_apart = args.b.pair_stride != 0;
  request.layout_a = operands.a.layout, request.layout_b = operands.b.layout;
  request.extents_aligned = operands.extents_aligned && (copy_policy.extents || call.n == whole_n);
}

void prepare_request(PreparedGemm& prepared, GroupedCall const& call) { prepared.request = request_of(call); }

// --- Running

Tensor make_result(GroupedCall const& call, std::int64_t cols) {
  std::int64_t const shape[] = {call.batch, call.m, cols};
  bool const rows = call.grouping == Grouping::rows;
  return empty_contiguous(rows ? shape + 1 : shape, rows ? 2 : 3, call.d_type, call.device);
}

Work start(PreparedGemm& prepared, GroupedCall& call) {
  prepared.d.tensor = call.out ? *call.out : make_result(call, columns_of(call.width(), call.n));
  for (int i = call.epilogue ? stores_of(info_of(*call.epilogue)) : 0; i > 0; --i) {
    prepared.stores.emplace_back().tensor = make_result(call, call.n);
  }
  if (call.is_scaled) call.form = choose_form(call);
  if (call.empty()) return Work::none;
  return call.grouping == Grouping::rows || call.k > 0 ? Work::gemm : Work::empty_k;
}

// Groups along an empty K: each result is zeros, or stays what it is.
void fill_empty_k(PreparedGemm& prepared, GroupedCall const& call) {
  if (!call.accumulates) torch::stable::zero_(*prepared.d.tensor);
}

// Groups along a K that one accumulator does not take: part after part, added up in float32.
Tensor run_in_parts(GroupedCall const& call, std::int64_t part) {
  bool const is_float32 = call.d_type == ScalarType::Float;
  Tensor result = call.out ? *call.out : make_result(call, call.n);
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
    run_call(one);
  }
  if (!is_float32) torch::stable::copy_(result, total);
  return result;
}

// Checks and runs a call of grouped_mm.
Tensor run_mm(GroupedCall call) {
  check(call);
  DeviceScope const scope(call.device);
  // A part reads and writes the results of all groups: the more groups, the longer it is, and the less likely has one of
  // them all of it.
  std::int64_t const part = kLongestSum * std::clamp<std::int64_t>(call.batch / 8, 1, 8);
  if (call.grouping == Grouping::k && call.k > part && !call.empty()) return run_in_parts(call, part);
  PreparedGemm prepared;
  run_checked(prepared, call);
  return *std::move(prepared.d.tensor);
}

// --- Ops: offs has the end of each group, int32 or int64, on the device

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
                                std::optional<Tensor> const& bias, Epilogue epilogue, bool allow_tf32,
                                std::optional<Tensor> const& up) {
  GroupedCall call = make_grouped_call(kGroupedLinear, input, weight, offs);
  call.bias = bias ? &*bias : nullptr;
  call.up = up ? &*up : nullptr;
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

// a [M, T], b [T, N]: out [G, M, N] += A @ B of each group.
void grouped_mm_accumulate(Tensor const& a, Tensor const& b, Tensor const& offs, bool allow_tf32, Tensor const& out) {
  run_mm(grouped_accumulate_call(a, b, offs, allow_tf32, out));
}

void run_linear(PreparedGemm& prepared, Tensor const& input, Tensor const& weight, Tensor const& offs,
                std::optional<Tensor> const& bias, StringHandle name, bool allow_tf32, std::optional<Tensor> const& up,
                int stores) {
  TextArgument const text(name);
  Epilogue const epilogue = grouped_epilogue(text.view(), stores);
  GroupedCall call = grouped_linear_call(input, weight, offs, bias, epilogue, allow_tf32, up);
  run_call(prepared, call);
}

// input [T, K], weight [G, N, K], bias [G, N]. With up, both are [G, N / 2, K], for even columns and odd ones.
Tensor grouped_linear_fused(Tensor const& input, Tensor const& weight, Tensor const& offs,
                            std::optional<Tensor> const& bias, StringHandle epilogue, bool allow_tf32,
                            std::optional<Tensor> const& up) {
  PreparedGemm prepared;
  run_linear(prepared, input, weight, offs, bias, epilogue, allow_tf32, up, /*stores=*/0);
  return *std::move(prepared.d.tensor);
}

// And what the epilogue stores, [T, N].
std::tuple<Tensor, Tensor> grouped_linear_fused_aux(Tensor const& input, Tensor const& weight, Tensor const& offs,
                                                    std::optional<Tensor> const& bias, StringHandle epilogue,
                                                    bool allow_tf32, std::optional<Tensor> const& up) {
  PreparedGemm prepared;
  run_linear(prepared, input, weight, offs, bias, epilogue, allow_tf32, up, /*stores=*/1);
  return {*std::move(prepared.d.tensor), *std::move(prepared.stores[0].tensor)};
}

// Rows of which the kernel finds the tokens itself. False: there is no kernel for it, and nothing is enqueued.
bool launch_gathered(PreparedGemm& prepared, GroupedCall& call) {
  // On an H100 (benchmarks/results/native_kernels/grouped/h100_gathered_rows.json) it makes no difference below 32 rows in
  // a group. Up to 128 of them, where weights are most of what is read, or up to 2048 columns it takes 0.71 to 1.0 of the
  // time of a copy and a GEMM; above both 0.99 to 1.17.
  constexpr std::int64_t kLeastRows = 32, kFewRows = 128, kFewColumns = 2048;
  DeviceInfo const& device = device_info(call.device);
  KernelDescriptor const* const kernel =
      choose_gathered_kernel(device, dtype_of(call.type), call.epilogue.value_or(Epilogue::plain));
  bool const is_worth_it = call.m >= kLeastRows * call.batch && (call.n <= kFewColumns || call.m < kFewRows * call.batch);
  if (!kernel || !is_worth_it) return false;
  Matrix const a = matrix_of(*call.a);
  if (a.col_stride != 1 || !accessible(a, call.type)) return false;
  prepare(prepared, call, {});
  if (prepared.request.layout_a != kernel->layout_a || prepared.request.layout_b != kernel->layout_b) return false;
  gemm::GatheredArgs args;
  static_cast<gemm::GemmArgs&>(args) = prepared.args;
  args.sources = static_cast<std::int32_t const*>(call.sources->data_ptr());
  args.tokens = static_cast<int>(a.rows);
  args.device = &device;
  if (!call.epilogue) args.epilogue[0].value = 1;
  return launch_kernel(*kernel, args, call.names.op);
}

void check_sources(GroupedCall const& call, Tensor const& places) {
  for (auto const& [name, tensor] : {std::pair{"places", &places}, std::pair{"sources", call.sources}}) {
    check_device(call.names.op, name, *tensor, call.device, call.names.a);
    check_type(call.names.op, name, *tensor, ScalarType::Int);
    if (!tensor->is_contiguous()) fail(kValue, call.names.op, ": ", name, " is not contiguous");
  }
  if (call.sources->dim() != 1) fail_shape(call.names.op, "sources", *call.sources, "[T k]");
  if (places.dim() != 2 || places.size(0) != call.a->size(0) || places.numel() != call.sources->numel()) {
    fail_shape(call.names.op, "places", places, '[', call.a->size(0), ", k], an element for each of the ",
               call.sources->numel(), " of sources");
  }
}

// Rows of tokens by expert, multiplied: as the kernel finds them, or copied into the order of experts first.
void run_gathered(PreparedGemm& prepared, Tensor const& input, Tensor const& places, Tensor const& sources,
                  Tensor const& weight, Tensor const& offs, StringHandle name, std::optional<Tensor> const& up,
                  int stores) {
  TextArgument const text(name);
  std::optional<Tensor> const none;
  Epilogue const epilogue = grouped_epilogue(text.view(), stores);
  GroupedCall call = grouped_linear_call(input, weight, offs, none, epilogue, /*allow_tf32=*/false, up);
  call.sources = &sources;
  check(call);
  check_sources(call, places);
  DeviceScope const scope(call.device);
  if (start(prepared, call) == Work::none) return;
  if (!launch_gathered(prepared, call)) {
    Tensor const rows = moe_permute(input, places, none, none);
    call.sources = nullptr;
    call.a = &rows;
    if (!launch(prepared, call.names.op, plan_gemm(prepared, call))) {
      fail(ErrorKind::not_implemented, call.names.op, ": no kernel of this wheel takes ", call.m, " rows in ", call.batch,
           " groups (N=", call.n, ", K=", call.k, ")");
    }
  }
  finish_output(prepared.d);
  for (Output& store : prepared.stores) finish_output(store);
}

// input [tokens, K], places [tokens, k], sources [T], weight [G, N, K] (and up: as above).
Tensor grouped_linear_gathered(Tensor const& input, Tensor const& places, Tensor const& sources, Tensor const& weight,
                               Tensor const& offs, StringHandle epilogue, std::optional<Tensor> const& up) {
  PreparedGemm prepared;
  run_gathered(prepared, input, places, sources, weight, offs, epilogue, up, /*stores=*/0);
  return *std::move(prepared.d.tensor);
}

// And what the epilogue stores, [T, N].
std::tuple<Tensor, Tensor> grouped_linear_gathered_aux(Tensor const& input, Tensor const& places, Tensor const& sources,
                                                       Tensor const& weight, Tensor const& offs, StringHandle epilogue,
                                                       std::optional<Tensor> const& up) {
  PreparedGemm prepared;
  run_gathered(prepared, input, places, sources, weight, offs, epilogue, up, /*stores=*/1);
  return {*std::move(prepared.d.tensor), *std::move(prepared.stores[0].tensor)};
}

Explanation explain_mm(Question const& q) {
  return explain_grouped_mm(q.tensor(0), q.tensor(1), q.tensor(2), q.operand(3), q.out_dtype, q.allow_tf32);
}

Explanation explain_accumulate(Question const& q) {
  return explain_call(grouped_accumulate_call(q.tensor(0), q.tensor(1), q.tensor(2), q.allow_tf32, q.tensor(3)));
}

Explanation explain_linear(Question const& q) {
  Epilogue const epilogue = grouped_epilogue(q.epilogue);
  return explain_call(
      grouped_linear_call(q.tensor(0), q.tensor(1), q.tensor(2), q.operand(3), epilogue, q.allow_tf32, q.operand(4)));
}

Explanation explain_scaled(Question const& q) {
  return explain_scaled_grouped_mm(q.tensor(0), q.tensor(1), q.tensor(2), q.tensor(3), q.tensor(4), q.operand(5),
                                   q.out_dtype, q.use_fast_accum);
}

}  // namespace

Tensor grouped_mm(Tensor const& a, Tensor const& b, Tensor const& offs, std::optional<Tensor> const& bias,
                  std::optional<ScalarType> out_dtype, bool allow_tf32) {
  return run_mm(grouped_mm_call(a, b, offs, bias, out_dtype, allow_tf32));
}

Explanation explain_grouped_mm(Tensor const& a, Tensor const& b, Tensor const& offs, std::optional<Tensor> const& bias,
                               std::optional<ScalarType> out_dtype, bool allow_tf32) {
  return explain_call(grouped_mm_call(a, b, offs, bias, out_dtype, allow_tf32));
}

Tensor scaled_grouped_mm(Tensor const& a, Tensor const& b, Tensor const& scale_a, Tensor const& scale_b, Tensor const& offs,
                         std::optional<Tensor> const& bias, std::optional<ScalarType> out_dtype, bool use_fast_accum) {
  return run_call(scaled_grouped_call(a, b, scale_a, scale_b, offs, bias, out_dtype, use_fast_accum));
}

Explanation explain_scaled_grouped_mm(Tensor const& a, Tensor const& b, Tensor const& scale_a, Tensor const& scale_b,
                                      Tensor const& offs, std::optional<Tensor> const& bias,
                                      std::optional<ScalarType> out_dtype, bool use_fast_accum) {
  return explain_call(scaled_grouped_call(a, b, scale_a, scale_b, offs, bias, out_dtype, use_fast_accum));
}

Ops grouped_ops() {
  return {
      op<&grouped_mm, kGroupedMm>(
          "grouped_mm(Tensor mat_a, Tensor mat_b, Tensor offs, Tensor? bias=None, ScalarType? out_dtype=None, "
          "bool allow_tf32=False) -> Tensor",
          {3, 4, explain_mm}),
      op<&grouped_mm_accumulate, kGroupedMmAccumulate>(
          "grouped_mm_accumulate(Tensor mat_a, Tensor mat_b, Tensor offs, bool allow_tf32=False, *, Tensor(a!) out) -> ()",
          {4, 4, explain_accumulate}),
      op<&grouped_linear_fused, kGroupedLinear>(
          "grouped_linear_fused(Tensor input, Tensor weight, Tensor offs, Tensor? bias, str epilogue, "
          "bool allow_tf32=False, Tensor? up=None) -> Tensor",
          {3, 5, explain_linear}),
      op<&grouped_linear_fused_aux, kGroupedLinear>(
          "grouped_linear_fused_aux(Tensor input, Tensor weight, Tensor offs, Tensor? bias, str epilogue, "
          "bool allow_tf32=False, Tensor? up=None) -> (Tensor, Tensor)",
          {3, 5, explain_linear}),
      op<&grouped_linear_gathered, kGroupedLinear>(
          "grouped_linear_gathered(Tensor input, Tensor places, Tensor sources, Tensor weight, Tensor offs, str epilogue, "
          "Tensor? up=None) -> Tensor"),
      op<&grouped_linear_gathered_aux, kGroupedLinear>(
          "grouped_linear_gathered_aux(Tensor input, Tensor places, Tensor sources, Tensor weight, Tensor offs, "
          "str epilogue, Tensor? up=None) -> (Tensor, Tensor)"),
      op<&scaled_grouped_mm, kScaledGroupedMm>(
          "scaled_grouped_mm(Tensor mat_a, Tensor mat_b, Tensor scale_a, Tensor scale_b, Tensor offs, Tensor? bias=None, "
          "ScalarType? output_dtype=None, bool use_fast_accum=False) -> Tensor",
          {5, 6, explain_scaled}),
  };
}

}  // namespace cutwheel
