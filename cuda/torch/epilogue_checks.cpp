#include "core/error.h"
#include "torch/gemm_request.h"

namespace cutwheel {
namespace {

char const* name_of_operand(GemmCall const& call, int position) { return call.epilogue->info().operands[position].name; }

// What the shape must be; `batch` is empty or names the batch in front.
std::string expected_shape(GemmCall const& call, OperandKind kind, std::string const& batch) {
  switch (kind) {
    case OperandKind::row: return concat('[', batch, call.n, ']');
    case OperandKind::col: return concat('[', batch, call.m, ']');
    case OperandKind::wide_matrix: return concat('[', batch, call.m, ", ", 2 * call.n, ']');
    default: return concat('[', batch, call.m, ", ", call.n, ']');
  }
}

// linear's matrices have the leading dimensions of its input.
void check_linear_matrix(GemmCall const& call, Tensor const& tensor, char const* name, std::int64_t cols) {
  auto const sizes = tensor.sizes(), wanted = call.a->sizes();
  bool fits = sizes.size() == wanted.size() && sizes[sizes.size() - 1] == cols;
  for (std::size_t i = 0; fits && i + 1 < wanted.size(); ++i) fits = sizes[i] == wanted[i];
  if (fits) return;
  std::string text = "[";
  for (std::size_t i = 0; i + 1 < wanted.size(); ++i) text += std::to_string(wanted[i]) + ", ";
  fail(ErrorKind::shape, call.names.op, ": ", name, " has shape ", shape_text(tensor), "; expected ", text, cols,
       "], the shape of the result");
}

void check_shape(GemmCall const& call, Tensor const& tensor, OperandKind kind, char const* name) {
  bool const is_matrix = kind == OperandKind::matrix || kind == OperandKind::wide_matrix;
  if (call.linear && is_matrix) {
    check_linear_matrix(call, tensor, name, kind == OperandKind::wide_matrix ? 2 * call.n : call.n);
    return;
  }
  auto const sizes = tensor.sizes();
  std::size_t const dims = is_matrix ? 2 : 1;
  bool const batched = sizes.size() == dims + 1 && call.names.dims == 3 && !call.linear;
  bool fits = batched ? sizes[0] == call.batch : sizes.size() == dims;
  if (fits) {
    std::int64_t const last = sizes[sizes.size() - 1];
    switch (kind) {
      case OperandKind::row: fits = last == call.n; break;
      case OperandKind::col: fits = last == call.m; break;
      default: fits = sizes[sizes.size() - 2] == call.m && last == (kind == OperandKind::wide_matrix ? 2 * call.n : call.n);
    }
  }
  if (fits) return;
  fail(ErrorKind::shape, call.names.op, ": ", name, " has shape ", shape_text(tensor), "; expected ",
       expected_shape(call, kind, ""),
       call.names.dims == 3 ? " or " + expected_shape(call, kind, concat(call.batch, ", ")) : "");
}

void check_operand(GemmCall const& call, int position) {
  EpilogueOperandInfo const& operand = call.epilogue->info().operands[position];
  Tensor const& tensor = *call.epilogue->tensors[static_cast<std::size_t>(position)];
  check_device(call.names.op, operand.name, tensor, call.device, call.names.a);
  ScalarType const wanted = operand_type(operand, call.d_type);
  if (tensor.scalar_type() != wanted) {
    fail(ErrorKind::type, call.names.op, ": ", operand.name, " has dtype ", dtype_text(tensor.scalar_type()), "; expected ",
         dtype_text(wanted), operand.type == OperandType::d ? ", the dtype of the result" : "");
  }
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
  if (info.width == Width::half && call.n % 2 != 0) {
    fail(ErrorKind::shape, call.names.op, ": ", call.names.b, " has shape ", shape_text(*call.b), "; epilogue \"",
         info.name, "\" combines pairs of columns, so N must be even");
  }
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
    Matrix const target = matrix_of(out);
    for (std::size_t j = 0; j < i; ++j) {
      if (overlaps(matrix_of(*outs[j].tensor), d_bytes, target, d_bytes)) {
        fail(ErrorKind::value, call.names.op, ": ", label, " overlaps ", outs[j].label,
             " in memory; expected separate tensors");
      }
    }
    for (int j = 0; j < info.count; ++j) {
      OperandKind const kind = info.operands[j].kind;
      Tensor const* const tensor = epilogue.tensors[static_cast<std::size_t>(j)];
      if (!tensor || kind == OperandKind::store) continue;
      Matrix const x = epilogue_matrix(call, j);
      // The very same view of a matrix is fine: a thread reads its elements before it writes there.
      bool const is_matrix = kind == OperandKind::matrix || kind == OperandKind::wide_matrix;
      if (is_matrix && tensor->scalar_type() == call.d_type && same_view(x, target)) continue;
      if (overlaps(x, element_bytes_of(tensor->scalar_type()), target, d_bytes)) {
        fail(ErrorKind::value, call.names.op, ": ", label, " overlaps ", info.operands[j].name,
             " in memory; expected separate tensors");
      }
    }
  }
}

}  // namespace cutwheel
