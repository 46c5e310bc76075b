#include "torch/epilogue_ops.h"

#include <cstring>

#include "core/error.h"
#include "dispatch/epilogue_names.h"
#include "torch/text_argument.h"

namespace cutwheel {
namespace {

constexpr OpNames kGemm{"gemm", nullptr, "a", "b", 2};
constexpr OpNames kBatchedGemm{"gemm", nullptr, "a", "b", 3};

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

// linear has no argument for a scalar: it is called with the neutral values.
bool is_neutral(EpilogueOperandInfo const& scalar) {
  return std::strcmp(scalar.name, "alpha") == 0 || std::strcmp(scalar.name, "beta") == 0;
}

void run_linear(PreparedGemm& prepared, Tensor const& input, Tensor const& weight, std::optional<Tensor> const& bias,
                std::optional<Tensor> const& residual, StringHandle name, bool allow_tf32, int stores) {
  TextArgument const text(name);
  EpilogueCall epilogue;
  epilogue.id = named_epilogue("linear", text.view(), /*has_accum=*/true);
  bind_linear(epilogue, bias ? &*bias : nullptr, residual ? &*residual : nullptr);
  if (int const found = stores_of(epilogue.info()); found != stores) {
    fail(ErrorKind::value, "linear: epilogue \"", epilogue.info().name, "\" stores ", found,
         " tensors besides the result; linear_fused takes one that stores none, linear_fused_aux one that stores one");
  }
  GemmCall call = make_call(kLinear, input, weight, std::nullopt, allow_tf32);
  call.linear = true;
  call.epilogue = &epilogue;
  run_call(prepared, call);
}

}  // namespace

int stores_of(EpilogueInfo const& info) {
  int count = 0;
  for (int i = 0; i < info.count; ++i) count += info.operands[i].kind == OperandKind::store;
  return count;
}

OpNames const& gemm_names(Tensor const& a) {
  std::int64_t const dims = a.dim();
  if (dims != 2 && dims != 3) {
    fail(ErrorKind::shape, "gemm: a has ", dims, " dimensions (shape ", shape_text(a), "); expected [M, K] or [B, M, K]");
  }
  return dims == 3 ? kBatchedGemm : kGemm;
}

Epilogue named_epilogue(char const* op, std::string_view name, bool has_accum) {
  std::optional<Epilogue> const found = find_epilogue(name);
  if (!found) {
    fail(ErrorKind::value, op, ": epilogue \"", name,
         "\" is not declared in this wheel; declared: ", declared_epilogues(has_accum));
  }
  if (!is_for_gemm(*found)) {
    fail(ErrorKind::value, op, ": epilogue \"", name,
         "\" is one of scaled_mm; expected one of: ", declared_epilogues(has_accum));
  }
  if (info_of(*found).has_accum != has_accum) {
    fail(ErrorKind::value, op, ": epilogue \"", name,
         has_accum ? "\" is that of an elementwise kernel, without a product; expected one of: "
                   : "\" is that of a product; expected one of: ",
         declared_epilogues(has_accum));
  }
  return *found;
}

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

void bind_linear(EpilogueCall& epilogue, Tensor const* bias, Tensor const* residual) {
  EpilogueInfo const& info = epilogue.info();
  bool takes_bias = false, takes_residual = false;
  for (int i = 0; i < info.count; ++i) {
    std::size_t const position = static_cast<std::size_t>(i);
    EpilogueOperandInfo const& operand = info.operands[i];
    if (operand.kind == OperandKind::store) continue;
    if (operand.kind == OperandKind::row && std::strcmp(operand.name, "bias") == 0) {
      takes_bias = true;
      epilogue.tensors[position] = bias;
    } else if (operand.kind == OperandKind::matrix && std::strcmp(operand.name, "residual") == 0) {
      takes_residual = true;
      epilogue.tensors[position] = residual;
    } else if (operand.kind == OperandKind::scalar && is_neutral(operand)) {
      epilogue.scalars[position] = 1;
    } else {
      fail(ErrorKind::value, "linear: epilogue \"", info.name, "\" has an operand ", operand.name,
           "; expected none but bias, a row, and residual, a matrix: call gemm for others");
    }
  }
  auto const refuse = [&](char const* argument) {
    fail(ErrorKind::value, "linear: ", argument, " is given, and epilogue \"", info.name, "\" has no such operand");
  };
  if (bias && !takes_bias) refuse("bias");
  if (residual && !takes_residual) refuse("residual");
}

std::vector<Tensor> gemm_named(Tensor const& a, Tensor const& b, StringHandle epilogue_name,
                               OptionalTensors const& operands, std::vector<double> const& scalars,
                               std::optional<ScalarType> out_dtype, bool allow_tf32) {
  TextArgument const name(epilogue_name);
  EpilogueCall epilogue;
  epilogue.id = named_epilogue("gemm", name.view(), /*has_accum=*/true);
  bind_gemm(epilogue, operands, scalars);
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
  TextArgument const name(epilogue_name);
  EpilogueCall epilogue;
  epilogue.id = named_epilogue("gemm", name.view(), /*has_accum=*/true);
  bind_gemm(epilogue, operands, scalars);
  EpilogueInfo const& info = epilogue.info();
  std::size_t const wanted = 1 + static_cast<std::size_t>(stores_of(info));
  if (out.size() != wanted) {
    fail(ErrorKind::value, "gemm: out has ", out.size(), " tensors; expected ", wanted, " for epilogue \"", info.name,
         "\": the result, and what it stores besides (",
         names_of(info, [](OperandKind kind) { return kind == OperandKind::store; }), ")");
  }
  std::size_t next = 1;
  for (int i = 0; i < info.count; ++i) {
    if (info.operands[i].kind == OperandKind::store) epilogue.tensors[static_cast<std::size_t>(i)] = &out[next++];
  }
  GemmCall call = make_call(gemm_names(a), a, b, std::nullopt, allow_tf32);
  call.epilogue = &epilogue;
  call.out = &out[0];
  PreparedGemm prepared;
  run_call(prepared, call);
}

Tensor linear_fused(Tensor const& input, Tensor const& weight, std::optional<Tensor> const& bias,
                    std::optional<Tensor> const& residual, StringHandle epilogue, bool allow_tf32) {
  PreparedGemm prepared;
  run_linear(prepared, input, weight, bias, residual, epilogue, allow_tf32, /*stores=*/0);
  return *std::move(prepared.d.tensor);
}

std::tuple<Tensor, Tensor> linear_fused_aux(Tensor const& input, Tensor const& weight, std::optional<Tensor> const& bias,
                                            std::optional<Tensor> const& residual, StringHandle epilogue, bool allow_tf32) {
  PreparedGemm prepared;
  run_linear(prepared, input, weight, bias, residual, epilogue, allow_tf32, /*stores=*/1);
  return {*std::move(prepared.d.tensor), *std::move(prepared.stores[0].tensor)};
}

}  // namespace cutwheel
