#include <algorithm>
#include <array>
#include <tuple>

#include "torch/gemm.h"
#include "torch/registry.h"

namespace cutwheel {

// --- Checks

namespace {

char const* name_of_operand(GemmCall const& call, int position) { return call.epilogue->info().operands[position].name; }

void check_shape(GemmCall const& call, Tensor const& tensor, OperandKind kind, char const* name) {
  bool const of_matrix = is_matrix(kind);
  std::int64_t const wide_n = kind == OperandKind::wide_matrix ? 2 * call.n : call.n;
  if (call.linear && of_matrix) {
    // linear's matrices have the leading dimensions of its input.
    if (has_rows_of(tensor, *call.a, wide_n)) return;
    fail_shape(call.names.op, name, tensor, rows_text(*call.a, wide_n), ", the shape of the result");
  }
  // The batch may stand in front.
  std::array<std::int64_t, 3> const matrix{call.batch, call.m, wide_n};
  std::array<std::int64_t, 3> const vector{call.batch, kind == OperandKind::col ? call.m : call.n};
  std::int64_t const* const wanted = of_matrix ? matrix.data() : vector.data();
  std::size_t const dims = of_matrix ? 2 : 1;
  bool const may_be_batched = call.names.dims == 3;
  auto const sizes = tensor.sizes();
  if (std::equal(sizes.begin(), sizes.end(), wanted + 1, wanted + 1 + dims)) return;
  if (may_be_batched && std::equal(sizes.begin(), sizes.end(), wanted, wanted + 1 + dims)) return;
  fail_shape(call.names.op, name, tensor, list_text(wanted + 1, dims),
             may_be_batched ? " or " + list_text(wanted, dims + 1) : "");
}

void check_operand(GemmCall const& call, int position) {
  EpilogueOperandInfo const& operand = call.epilogue->info().operands[position];
  Tensor const& tensor = *call.epilogue->tensors[static_cast<std::size_t>(position)];
  check_device(call.names.op, operand.name, tensor, call.device, call.names.a);
  check_type(call.names.op, operand.name, tensor, operand_type(operand, call.d_type),
             operand.type == OperandType::d ? ", the dtype of the result" : "");
  if (operand.may_be_one && tensor.numel() == 1) return;
  check_shape(call, tensor, operand.kind, operand.name);
}

// As mm, addmm and linear have them: they know split-K, and other tiles.
void use_classic_form(GemmCall& call) {
  EpilogueCall& epilogue = *call.epilogue;
  Addend const addend = epilogue.info().addend;
  call.alpha = epilogue.scalars[0];
  call.beta = addend == Addend::matrix ? epilogue.scalars[1] : 1;
  if (addend != Addend::none) {
    int const position = addend == Addend::row ? 1 : 2;
    call.names.c = name_of_operand(call, position);
    call.c = epilogue.tensors[static_cast<std::size_t>(position)];
    if (call.c && addend == Addend::row && call.c->dim() == 2) {
      epilogue.batched_row = view_of(*call.c, epilogue_matrix(call, position));
      call.c = &*epilogue.batched_row;
    }
  }
  call.epilogue = nullptr;
}

}  // namespace

void check_epilogue(GemmCall& call) {
  EpilogueInfo const& info = call.epilogue->info();
  if (call.up) check_up(call, info, *call.up);
  check_pairs(call, info);
  for (int i = 0; i < info.count; ++i) {
    if (info.operands[i].kind == OperandKind::store || !call.epilogue->tensors[static_cast<std::size_t>(i)]) continue;
    check_operand(call, i);
  }
  if (info.addend != Addend::other) use_classic_form(call);
}

void check_epilogue_outs(GemmCall const& call) {
  EpilogueCall const& epilogue = *call.epilogue;
  EpilogueInfo const& info = epilogue.info();
  struct Out {
    Tensor const* tensor;
    std::string label;
  };
  std::vector<Out> outs{{call.out, "out"}};
  for (int i = 0; i < info.count; ++i) {
    if (info.operands[i].kind != OperandKind::store) continue;
    outs.push_back({epilogue.tensors[static_cast<std::size_t>(i)], concat("out[", outs.size(), "]")});
  }
  if (outs.size() > 1) outs[0].label = "out[0]";
  int const d_bytes = element_bytes_of(call.d_type);
  for (std::size_t i = 0; i < outs.size(); ++i) {
    Tensor const& out = *outs[i].tensor;
    char const* const label = outs[i].label.c_str();
    check_out(call, out, label, i == 0 ? columns_of(info.width, call.n) : call.n);
    if (call.up) check_apart(call, out, label, *call.up, "up");
    Matrix const target = matrix_of(out);
    for (std::size_t j = 0; j < i; ++j) {
      if (overlaps(matrix_of(*outs[j].tensor), d_bytes, target, d_bytes)) {
        fail_overlap(call.names.op, label, outs[j].label.c_str());
      }
    }
    for (int j = 0; j < info.count; ++j) {
      OperandKind const kind = info.operands[j].kind;
      Tensor const* const tensor = epilogue.tensors[static_cast<std::size_t>(j)];
      if (!tensor || kind == OperandKind::store) continue;
      Matrix const x = epilogue_matrix(call, j);
      // The very same view of a matrix is fine: a thread reads its elements before it writes there.
      ScalarType const type = type_of(*tensor);
      if (is_matrix(kind) && type == call.d_type && same_view(x, target)) continue;
      if (overlaps(x, element_bytes_of(type), target, d_bytes)) {
        fail_overlap(call.names.op, label, info.operands[j].name);
      }
    }
  }
}

// --- Operands

namespace {

// A row, column or matrix. `whole_n`: the columns that a kernel may read.
gemm::EpilogueValue prepare_tensor(GemmCall const& call, int position, std::int64_t whole_n, bool pad_extents,
                                   std::vector<Tensor>& keep) {
  Tensor const& tensor = *call.epilogue->tensors[static_cast<std::size_t>(position)];
  EpilogueOperandInfo const& operand = call.epilogue->info().operands[position];
  OperandKind const kind = operand.kind;
  ScalarType const type = type_of(tensor);
  View const view = call.linear && is_matrix(kind)
                        ? flatten_rows(tensor, call.m, kind == OperandKind::wide_matrix ? 2 * call.n : call.n, keep)
                        : View{epilogue_matrix(call, position), tensor};
  std::int64_t const columns = kind == OperandKind::col ? call.m : kind == OperandKind::wide_matrix ? 2 * whole_n : whole_n;
  std::int64_t const pitch = round_up(columns, access_elements(type));
  Matrix x = view.matrix;
  // A column is as long as it is: kernels pad N and K, never M.
  bool const pad = pad_extents && kind != OperandKind::col && call.n != whole_n;
  x = readable(x, view.owner, type, pitch, pad, call.device, keep);
  gemm::EpilogueValue value;
  value.data = x.data;
  value.leading = operand.may_be_one ? tensor.numel() != 1 : leading_of(x, pitch);
  value.batch_stride = x.batch == 1 ? 0 : x.batch_stride;
  return value;
}

}  // namespace

Matrix epilogue_matrix(GemmCall const& call, int position) {
  Tensor const& tensor = *call.epilogue->tensors[static_cast<std::size_t>(position)];
  Matrix const x = matrix_of(tensor);
  OperandKind const kind = call.epilogue->info().operands[position].kind;
  if (kind != OperandKind::row && kind != OperandKind::col) return x;
  // [B, N]: each of a batch has a row.
  return {x.data, x.rows, 1, x.cols, x.row_stride, 0, x.col_stride};
}

void prepare_epilogue(PreparedGemm& prepared, GemmCall const& call, CopyPolicy copy_policy) {
  EpilogueCall const& epilogue = *call.epilogue;
  EpilogueInfo const& info = epilogue.info();
  std::int64_t const whole_n = round_up(call.n, access_elements(call.d_type));
  prepared.request.addend = Addend::other;
  prepared.request.epilogue = epilogue.id;
  auto store = prepared.stores.begin();
  for (int i = 0; i < info.count; ++i) {
    gemm::EpilogueValue value;
    if (info.operands[i].kind == OperandKind::scalar) {
      value.value = epilogue.scalars[static_cast<std::size_t>(i)];
    } else if (info.operands[i].kind == OperandKind::store) {
      value = prepare_result(*store, result_matrix(call, *store->tensor, call.n), call.d_type, whole_n,
                             copy_policy.extents && call.n != whole_n, call.device);
      ++store;
    } else if (epilogue.tensors[static_cast<std::size_t>(i)]) {
      value = prepare_tensor(call, i, whole_n, copy_policy.extents, prepared.keep);
    }
    prepared.args.epilogue[i] = value;
  }
}

void bind_layer(char const* op, EpilogueCall& epilogue, Tensor const* bias, Tensor const* residual) {
  EpilogueInfo const& info = epilogue.info();
  for (int i = 0; i < info.count; ++i) {
    std::size_t const position = static_cast<std::size_t>(i);
    EpilogueOperandInfo const& operand = info.operands[i];
    if (is_named(operand, OperandKind::row, "bias")) {
      epilogue.tensors[position] = bias;
    } else if (is_named(operand, OperandKind::matrix, "residual")) {
      epilogue.tensors[position] = residual;
    } else if (is_neutral(operand)) {
      epilogue.scalars[position] = 1;
    } else if (operand.kind != OperandKind::store) {
      fail_operand(op, info, i, "none but bias, a row, and residual, a matrix: call gemm for others");
    }
  }
  check_takes(op, info, "bias", bias);
  check_takes(op, info, "residual", residual);
}

// --- Ops

namespace {

constexpr OpNames kGemm{"gemm", "matmul", nullptr, "a", "b", 2};
constexpr OpNames kBatchedGemm{"gemm", "matmul", nullptr, "a", "b", 3};

bool is_tensor(OperandKind kind) { return kind != OperandKind::scalar && kind != OperandKind::store; }

// "bias, residual": the operands for which `wanted` holds.
template <class Wanted>
std::string names_of(EpilogueInfo const& info, Wanted wanted) {
  std::string text;
  for (int i = 0; i < info.count; ++i) {
    if (!wanted(info.operands[i].kind)) continue;
    text += text.empty() ? "" : ", ";
    text += info.operands[i].name;
  }
  return text.empty() ? "none" : text;
}

// The names of gemm's arguments, by the rank of a; throws for any other rank.
OpNames const& gemm_names(Tensor const& a) {
  check_defined("gemm", "a", a);
  std::int64_t const dims = a.dim();
  if (dims != 2 && dims != 3) {
    fail(ErrorKind::shape, "gemm: a has ", dims, " dimensions (shape ", shape_text(a), "); expected [M, K] or [B, M, K]");
  }
  return dims == 3 ? kBatchedGemm : kGemm;
}

// Fills a call's epilogue; throws where what is given is not what the epilogue takes.
void bind_gemm(EpilogueCall& epilogue, OptionalTensors const& operands, std::vector<double> const& scalars) {
  EpilogueInfo const& info = epilogue.info();
  std::size_t tensor = 0, scalar = 0;
  for (int i = 0; i < info.count; ++i) {
    std::size_t const position = static_cast<std::size_t>(i);
    OperandKind const kind = info.operands[i].kind;
    if (is_tensor(kind)) {
      if (tensor < operands.size() && operands[tensor]) epilogue.tensors[position] = &*operands[tensor];
      ++tensor;
    } else if (kind == OperandKind::scalar) {
      if (scalar < scalars.size()) epilogue.scalars[position] = static_cast<float>(scalars[scalar]);
      ++scalar;
    }
  }
  if (tensor != operands.size()) {
    fail(ErrorKind::value, "gemm: operands has ", operands.size(), " tensors; epilogue \"", info.name, "\" takes ", tensor,
         ": ", names_of(info, is_tensor));
  }
  if (scalar != scalars.size()) {
    fail(ErrorKind::value, "gemm: scalars has ", scalars.size(), " values; epilogue \"", info.name, "\" takes ", scalar,
         ": ", names_of(info, [](OperandKind kind) { return kind == OperandKind::scalar; }));
  }
}

EpilogueCall bound_gemm(StringHandle name, OptionalTensors const& operands, std::vector<double> const& scalars) {
  TextArgument const text(name);
  EpilogueCall epilogue;
  epilogue.id = named_epilogue("gemm", text.view(), /*has_accum=*/true);
  bind_gemm(epilogue, operands, scalars);
  return epilogue;
}

// `out` has the result, then what the epilogue stores.
void bind_outs(char const* op, EpilogueCall& epilogue, std::vector<Tensor> const& out) {
  EpilogueInfo const& info = epilogue.info();
  std::size_t const wanted = 1 + static_cast<std::size_t>(stores_of(info));
  if (out.size() != wanted) {
    fail(ErrorKind::value, op, ": out has ", out.size(), " tensors; expected ", wanted, " for epilogue \"", info.name,
         "\": the result, and what it stores besides (",
         names_of(info, [](OperandKind kind) { return kind == OperandKind::store; }), ")");
  }
  std::size_t next = 1;
  for (int i = 0; i < info.count; ++i) {
    if (info.operands[i].kind == OperandKind::store) epilogue.tensors[static_cast<std::size_t>(i)] = &out[next++];
  }
}

// a [M, K] or [B, M, K], b [K, N] or [B, K, N]; operands and scalars by position. Returns D and what the epilogue stores.
std::vector<Tensor> gemm_named(Tensor const& a, Tensor const& b, StringHandle epilogue_name,
                               OptionalTensors const& operands, std::vector<double> const& scalars,
                               std::optional<ScalarType> out_dtype, bool allow_tf32) {
  EpilogueCall epilogue = bound_gemm(epilogue_name, operands, scalars);
  GemmCall call = make_call(gemm_names(a), a, b, out_dtype, allow_tf32);
  call.epilogue = &epilogue;
  PreparedGemm prepared;
  run_call(prepared, call);
  std::vector<Tensor> results;
  results.reserve(1 + prepared.stores.size());
  results.push_back(*std::move(prepared.d.tensor));
  for (Output& store : prepared.stores) results.push_back(*std::move(store.tensor));
  return results;
}

void gemm_named_out(Tensor const& a, Tensor const& b, StringHandle epilogue_name, OptionalTensors const& operands,
                    std::vector<double> const& scalars, bool allow_tf32, std::vector<Tensor> const& out) {
  EpilogueCall epilogue = bound_gemm(epilogue_name, operands, scalars);
  bind_outs("gemm", epilogue, out);
  GemmCall call = make_call(gemm_names(a), a, b, std::nullopt, allow_tf32);
  call.epilogue = &epilogue;
  call.out = &out[0];
  PreparedGemm prepared;
  run_call(prepared, call);
}

// With `out` the results go there, and the epilogue says how many they are; else it has so many `stores`.
void run_linear(PreparedGemm& prepared, Tensor const& input, Tensor const& weight, std::optional<Tensor> const& bias,
                std::optional<Tensor> const& residual, StringHandle name, bool allow_tf32, std::optional<Tensor> const& up,
                int stores, std::vector<Tensor> const* out = nullptr) {
  TextArgument const text(name);
  EpilogueCall epilogue;
  epilogue.id = named_epilogue("linear", text.view(), /*has_accum=*/true);
  bind_layer("linear", epilogue, bias ? &*bias : nullptr, residual ? &*residual : nullptr);
  if (out) {
    bind_outs("linear", epilogue, *out);
  } else {
    check_stores("linear", "linear_fused", epilogue.info(), stores);
  }
  GemmCall call = make_call(kLinear, input, weight, std::nullopt, allow_tf32);
  call.linear = true;
  call.up = up ? &*up : nullptr;
  call.epilogue = &epilogue;
  if (out) call.out = &out->front();
  run_call(prepared, call);
}

// input [..., K], weight [N, K], bias [N], residual [..., N]. With up, both are [N / 2, K], for even columns and odd ones.
Tensor linear_fused(Tensor const& input, Tensor const& weight, std::optional<Tensor> const& bias,
                    std::optional<Tensor> const& residual, StringHandle epilogue, bool allow_tf32,
                    std::optional<Tensor> const& up) {
  PreparedGemm prepared;
  run_linear(prepared, input, weight, bias, residual, epilogue, allow_tf32, up, /*stores=*/0);
  return *std::move(prepared.d.tensor);
}

// And what the epilogue stores, [..., N].
std::tuple<Tensor, Tensor> linear_fused_aux(Tensor const& input, Tensor const& weight, std::optional<Tensor> const& bias,
                                            std::optional<Tensor> const& residual, StringHandle epilogue, bool allow_tf32,
                                            std::optional<Tensor> const& up) {
  PreparedGemm prepared;
  run_linear(prepared, input, weight, bias, residual, epilogue, allow_tf32, up, /*stores=*/1);
  return {*std::move(prepared.d.tensor), *std::move(prepared.stores[0].tensor)};
}

// input [M, K] and residual [M, N]; out: the result, [M, N] or what the epilogue makes of it, then what it stores.
void linear_fused_out(Tensor const& input, Tensor const& weight, std::optional<Tensor> const& bias,
                      std::optional<Tensor> const& residual, StringHandle epilogue, bool allow_tf32,
                      std::optional<Tensor> const& up, std::vector<Tensor> const& out) {
  check_defined("linear", kLinear.a, input);
  check_dims(kLinear, kLinear.a, input, 2);
  PreparedGemm prepared;
  run_linear(prepared, input, weight, bias, residual, epilogue, allow_tf32, up, /*stores=*/0, &out);
}

Explanation explain_named(Question const& asked) {
  EpilogueCall epilogue;
  epilogue.id = named_epilogue("gemm", asked.epilogue, /*has_accum=*/true);
  EpilogueInfo const& info = epilogue.info();
  std::vector<double> scalars;
  for (int i = 0; i < info.count; ++i) {
    if (info.operands[i].kind != OperandKind::scalar) continue;
    scalars.push_back(is_named(info.operands[i], OperandKind::scalar, "beta") ? asked.beta : 1);
  }
  Tensor const &a = asked.tensor(0), &b = asked.tensor(1);
  OptionalTensors const rest(asked.operands.begin() + 2, asked.operands.end());
  bind_gemm(epilogue, rest, scalars);
  GemmCall call = make_call(gemm_names(a), a, b, asked.out_dtype, asked.allow_tf32);
  call.epilogue = &epilogue;
  return explain_call(call);
}

Explanation explain_linear(Question const& asked) {
  EpilogueCall epilogue;
  epilogue.id = named_epilogue("linear", asked.epilogue, /*has_accum=*/true);
  bind_layer("linear", epilogue, asked.optional(2), asked.optional(3));
  GemmCall call = make_call(kLinear, asked.tensor(0), asked.tensor(1), std::nullopt, asked.allow_tf32);
  call.linear = true;
  call.up = asked.optional(4);
  call.epilogue = &epilogue;
  return explain_call(call);
}

}  // namespace

Ops fused_ops() {
  return {
      op<&gemm_named, kGemm>(
          "gemm(Tensor a, Tensor b, str epilogue, Tensor?[] operands, float[] scalars, ScalarType? out_dtype=None, "
          "bool allow_tf32=False) -> Tensor[]",
          {2, 2 + kMaxEpilogueOperands, explain_named}),
      op<&gemm_named_out, kGemm>(
          "gemm.out(Tensor a, Tensor b, str epilogue, Tensor?[] operands, float[] scalars, bool allow_tf32=False, *, "
          "Tensor(a!)[] out) -> ()"),
      op<&linear_fused, kLinear>(
          "linear_fused(Tensor input, Tensor weight, Tensor? bias, Tensor? residual, str epilogue, bool allow_tf32=False, "
          "Tensor? up=None) -> Tensor",
          {2, 5, explain_linear}),
      op<&linear_fused_out, kLinear>(
          "linear_fused.out(Tensor input, Tensor weight, Tensor? bias, Tensor? residual, str epilogue, "
          "bool allow_tf32=False, Tensor? up=None, *, Tensor(a!)[] out) -> ()"),
      op<&linear_fused_aux, kLinear>(
          "linear_fused_aux(Tensor input, Tensor weight, Tensor? bias, Tensor? residual, str epilogue, "
          "bool allow_tf32=False, Tensor? up=None) -> (Tensor, Tensor)",
          {2, 5, explain_linear}),
  };
}

}  // namespace cutwheel
