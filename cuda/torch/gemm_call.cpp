#include "torch/gemm_call.h"

#include <algorithm>
#include <cstring>

#include "dispatch/batch_invariance.h"
#include "dispatch/epilogue_names.h"

namespace cutwheel {

// --- Checks

void check_defined(char const* op, char const* argument, Tensor const& tensor) {
  if (!tensor.defined()) fail(ErrorKind::type, op, ": ", argument, " is None; expected a Tensor");
}

void check_device(char const* op, char const* argument, Tensor const& tensor, int device, char const* device_of) {
  check_defined(op, argument, tensor);
  if (!tensor.is_cuda()) {
    fail(ErrorKind::device, op, ": ", argument, " is not on a CUDA device; all tensors must be on cuda:", device);
  }
  if (tensor.get_device_index() != device) {
    fail(ErrorKind::device, op, ": ", argument, " is on cuda:", tensor.get_device_index(), " and ", device_of,
         " is on cuda:", device, "; all tensors must be on the same device");
  }
}

void check_dims(OpNames const& names, char const* argument, Tensor const& tensor, int dims) {
  if (tensor.dim() != dims) {
    fail(ErrorKind::shape, names.op, ": ", argument, " has ", tensor.dim(), " dimensions (shape ", shape_text(tensor),
         "); expected ", dims);
  }
}

void check_extent(char const* op, std::int64_t extent) {
  if (extent > kMaxExtent) {
    fail(ErrorKind::shape, op, ": a dimension has ", extent, " elements; at most ", kMaxExtent, " are supported");
  }
}

void check_devices(GemmCallBase& call) {
  OpNames const& names = call.names;
  Tensor const &a = *call.a, &b = *call.b;
  check_defined(names.op, names.a, a);
  check_defined(names.op, names.b, b);
  if (call.out) check_defined(names.op, "out", *call.out);
  if (!a.is_cuda() && !b.is_cuda()) {
    fail(ErrorKind::not_implemented, names.op, ": ", names.a,
         " is not on a CUDA device; cutwheel's kernels run on CUDA devices");
  }
  if (!a.is_cuda()) fail(ErrorKind::device, names.op, ": ", names.a, " is not on a CUDA device; all tensors must be");
  call.device = a.get_device_index();
  check_device(names.op, names.b, b, call.device, names.a);
}

bool is_supported(ScalarType type) {
  return type == ScalarType::Half || type == ScalarType::BFloat16 || type == ScalarType::Float;
}

void check_supported(char const* op, char const* argument, char const* what, ScalarType type) {
  if (is_supported(type)) return;
  fail(ErrorKind::type, op, ": ", argument, what, dtype_text(type), "; expected float16, bfloat16 or float32");
}

void check_operand_types(GemmCallBase& call) {
  OpNames const& names = call.names;
  call.type = type_of(*call.a);
  check_supported(names.op, names.a, " has dtype ", call.type);
  call.b_type = type_of(*call.b);
  if (call.b_type != call.type) {
    fail(ErrorKind::type, names.op, ": ", names.b, " has dtype ", dtype_text(call.b_type), "; expected ",
         dtype_text(call.type), " as ", names.a, " has");
  }
}

void check_float_types(GemmCallBase& call, bool allow_tf32) {
  OpNames const& names = call.names;
  check_operand_types(call);
  call.d_type = call.out ? type_of(*call.out) : call.out_dtype.value_or(call.type);
  if (call.d_type != call.type && call.d_type != ScalarType::Float) {
    fail(ErrorKind::type, names.op, ": ", call.out ? "out has dtype " : "out_dtype is ", dtype_text(call.d_type),
         "; expected ", dtype_text(call.type), call.type == ScalarType::Float ? "" : " or float32");
  }
  if (call.type == ScalarType::Float && !allow_tf32) {
    fail(ErrorKind::runtime, names.op,
         ": float32 operands are multiplied on TF32 tensor cores only, and torch's setting forbids "
         "TF32; allow it with torch.backends.cuda.matmul.fp32_precision = \"tf32\" (or "
         "torch.set_float32_matmul_precision(\"high\"))"
         ", or pass float16 or bfloat16");
  }
}

void check_type(char const* op, char const* argument, Tensor const& tensor, ScalarType wanted, char const* note) {
  ScalarType const type = type_of(tensor);
  if (type == wanted) return;
  fail(ErrorKind::type, op, ": ", argument, " has dtype ", dtype_text(type), "; expected ", dtype_text(wanted), note);
}

bool has_shape(Tensor const& tensor, std::initializer_list<std::int64_t> shape) {
  auto const sizes = tensor.sizes();
  return std::equal(sizes.begin(), sizes.end(), shape.begin(), shape.end());
}

bool has_rows_of(Tensor const& tensor, Tensor const& like, std::int64_t cols) {
  auto const sizes = tensor.sizes(), wanted = like.sizes();
  bool fits = sizes.size() == wanted.size() && sizes[sizes.size() - 1] == cols;
  for (std::size_t i = 0; fits && i + 1 < wanted.size(); ++i) fits = sizes[i] == wanted[i];
  return fits;
}

std::string rows_text(Tensor const& like, std::int64_t cols) {
  auto const sizes = like.sizes();
  std::array<std::int64_t, kMaxDims> shape;
  std::copy(sizes.begin(), sizes.end(), shape.begin());
  shape[sizes.size() - 1] = cols;
  return list_text(shape.data(), sizes.size());
}

void check_operands(GemmCallBase& call) {
  OpNames const& names = call.names;
  Tensor const &a = *call.a, &b = *call.b;
  Matrix const left = matrix_of(a), right = matrix_of(b);
  call.batch = left.batch, call.m = left.rows, call.k = left.cols, call.n = right.cols;
  if (right.rows != call.k || right.batch != call.batch) {
    fail_shape(names.op, names.b, b, '[', names.dims == 3 ? concat(call.batch, ", ") : "", call.k, ", N] as ", names.a,
               " has shape ", shape_text(a));
  }
}

void fail_overlap(char const* op, char const* label, char const* argument) {
  fail(ErrorKind::value, op, ": ", label, " overlaps ", argument, " in memory; expected separate tensors");
}

void check_apart(GemmCallBase const& call, Tensor const& out, char const* label, Tensor const& input,
                 char const* argument) {
  if (overlaps(matrix_of(input), element_bytes_of(type_of(input)), matrix_of(out), element_bytes_of(call.d_type))) {
    fail_overlap(call.names.op, label, argument);
  }
}

void check_out(GemmCallBase const& call, Tensor const& out, char const* label, std::int64_t cols) {
  OpNames const& names = call.names;
  check_device(names.op, label, out, call.device, names.a);
  check_type(names.op, label, out, call.d_type);
  Matrix const target = matrix_of(out);
  bool const fits = out.dim() == names.dims && target.batch == call.batch && target.rows == call.m && target.cols == cols;
  if (!fits) {
    fail_shape(names.op, label, out, '[', names.dims == 3 ? concat(call.batch, ", ") : "", call.m, ", ", cols,
               "] (out is never resized)");
  }
  if (overlaps_itself(target)) {
    fail(ErrorKind::value, names.op, ": ", label,
         " overlaps itself (an expanded view?); expected memory of its own for each element");
  }
  check_apart(call, out, label, *call.a, names.a);
  check_apart(call, out, label, *call.b, names.b);
}

// --- Epilogues by name

bool is_named(EpilogueOperandInfo const& operand, OperandKind kind, char const* name) {
  return operand.kind == kind && std::strcmp(operand.name, name) == 0;
}

bool is_neutral(EpilogueOperandInfo const& operand) {
  return is_named(operand, OperandKind::scalar, "alpha") || is_named(operand, OperandKind::scalar, "beta");
}

int stores_of(EpilogueInfo const& info) {
  return static_cast<int>(std::count_if(info.operands, info.operands + info.count, [](EpilogueOperandInfo const& operand) {
    return operand.kind == OperandKind::store;
  }));
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

void check_takes(char const* op, EpilogueInfo const& info, char const* argument, bool is_given) {
  bool const takes = std::any_of(info.operands, info.operands + info.count, [&](EpilogueOperandInfo const& operand) {
    return std::strcmp(operand.name, argument) == 0;
  });
  if (is_given && !takes) {
    fail(ErrorKind::value, op, ": ", argument, " is given, and epilogue \"", info.name, "\" has no such operand");
  }
}

void fail_operand(char const* op, EpilogueInfo const& info, int position, char const* expected) {
  fail(ErrorKind::value, op, ": epilogue \"", info.name, "\" has an operand ", info.operands[position].name, "; expected ",
       expected);
}

void check_stores(char const* op, char const* fused, EpilogueInfo const& info, int stores) {
  int const found = stores_of(info);
  if (found == stores) return;
  fail(ErrorKind::value, op, ": epilogue \"", info.name, "\" stores ", found, " tensors besides the result; ", fused,
       " takes one that stores none, ", fused, "_aux one that stores one");
}

void check_as_weight(GemmCallBase const& call, char const* argument, Tensor const& tensor) {
  OpNames const& names = call.names;
  check_device(names.op, argument, tensor, call.device, names.a);
  check_type(names.op, argument, tensor, call.b_type, concat(" as ", names.b, " has").c_str());
  auto const own = tensor.sizes(), wanted = call.b->sizes();
  if (own.size() != wanted.size() || !std::equal(own.begin(), own.end(), wanted.begin())) {
    fail_shape(names.op, argument, tensor, shape_text(*call.b), " as ", names.b, " has");
  }
}

void check_up(GemmCallBase const& call, EpilogueInfo const& info, Tensor const& up) {
  OpNames const& names = call.names;
  check_as_weight(call, "up", up);
  if (info.width != Width::half) {
    fail(ErrorKind::value, names.op, ": up is given, and epilogue \"", info.name, "\" combines no pairs of columns");
  }
}

void check_pairs(GemmCallBase const& call, EpilogueInfo const& info) {
  if (info.width != Width::half || call.n % 2 == 0) return;
  fail(ErrorKind::shape, call.names.op, ": ", call.names.b, " has shape ", shape_text(*call.b), "; epilogue \"", info.name,
       "\" combines pairs of columns, so N must be even");
}

// --- Operands

GemmRequest request_of(GemmCallBase const& call, Op op, ScalarType d_type) {
  auto const multiplied = [](ScalarType type) { return type == ScalarType::Float ? DType::tf32 : dtype_of(type); };
  GemmRequest request;
  request.op = op;
  request.device = call.device;
  request.a = multiplied(call.type), request.b = multiplied(call.b_type);
  request.d = dtype_of(d_type);
  request.layout_a = kContiguousK.a, request.layout_b = kContiguousK.b;
  request.m = static_cast<int>(call.m), request.n = static_cast<int>(call.n), request.k = static_cast<int>(call.k);
  request.batch_invariant = !call.sums_batch && batch_invariant();
  return request;
}

GemmOperands zero_operands(GemmCallBase const& call, std::vector<Tensor>& keep) {
  std::int64_t const k = access_elements(call.type), rows = std::max({call.m, call.n, std::int64_t{1}});
  Tensor zeros = empty_strided({rows, k}, {k, 1}, call.type, call.device);
  torch::stable::zero_(zeros);
  keep.push_back(zeros);
  void* const data = zeros.data_ptr();
  return {{{data, 1, call.m, k, 0, k, 1}, zeros}, {{data, call.batch, k, call.n, 0, 1, k}, zeros}, k};
}

PreparedOperands prepare_operands(GemmCallBase const& call, GemmOperands const& operands, Layouts preferred,
                                  CopyPolicy copy_policy, std::vector<Tensor>& keep) {
  std::int64_t const whole_k = round_up(operands.k, access_elements(call.type));
  bool const pad_k = copy_policy.extents && preferred.a == Layout::row && operands.k != whole_k;
  auto const prepared = [&](View const& x, ScalarType type, Layout layout) {
    return prepare_operand(x.matrix, x.owner, type, layout, copy_policy, pad_k, call.device, keep);
  };
  PreparedOperand const a = prepared(operands.a, call.type, preferred.a);
  PreparedOperand b = prepared(operands.b, call.b_type, preferred.b);
  b.operand.pair_stride = operands.b.pair_stride, b.operand.odd_first = operands.b.odd_first;
  return {a, b, static_cast<int>(pad_k ? whole_k : operands.k), a.extent_aligned && b.extent_aligned};
}

gemm::EpilogueValue prepare_result(Output& output, Matrix const& target, ScalarType type, std::int64_t pitch,
                                   bool force_temporary, int device) {
  Matrix const x = prepare_output(output, target, type, pitch, force_temporary, device);
  return {x.data, leading_of(x, pitch), x.batch == 1 ? 0 : x.batch_stride, 0};
}

void place_d(gemm::GemmArgs& args, gemm::EpilogueValue const& d) {
  args.d = d.data;
  args.d_leading = d.leading;
  args.d_batch_stride = d.batch_stride;
}

gemm::EpilogueValue prepare_vector(EpilogueOperandInfo const& operand, Tensor const& tensor, ScalarType type,
                                   std::int64_t columns, int device, std::vector<Tensor>& keep) {
  Matrix x = vector_of(tensor);
  // One value (or an expanded one) is read alone, wherever it lies.
  bool const is_one = operand.may_be_one && (x.cols == 1 || x.col_stride == 0);
  if (!is_one || type_of(tensor) != type) {
    bool const pad = operand.kind == OperandKind::row && columns > x.cols;
    std::int64_t const pitch = round_up(pad ? columns : x.cols, access_elements(type));
    x = readable(x, tensor, type, pitch, pad, device, keep);
  }
  return {x.data, is_one ? 0 : 1, 0, 0};
}

}  // namespace cutwheel
