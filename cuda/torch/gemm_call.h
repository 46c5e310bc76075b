// The arguments of a call: what GEMMs of every op share of their checks and operands.
#pragma once

#include <limits>
#include <optional>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "dispatch/select.h"
#include "torch/tensor/access.h"
#include "torch/tensor/tensor.h"

namespace cutwheel {

// An op and its arguments, as messages name them.
struct OpNames {
  char const* op;
  char const* torch_op;  // torch's function for CPU tensors; nullptr: there is none
  char const* c;         // nullptr: takes none
  char const* a;
  char const* b;
  int dims;  // of a and b; linear's input may have more
};

// A request; types and extents are filled in once it is checked.
struct GemmCallBase {
  // Whether there are kernels for operands that do not lie on 16 bytes.
  static constexpr bool kTakesUnaligned = false;

  OpNames names;
  Tensor const* a;
  Tensor const* b;
  std::optional<ScalarType> out_dtype = std::nullopt;
  Tensor const* out = nullptr;

  ScalarType type = ScalarType::BFloat16;  // of a
  ScalarType b_type = ScalarType::BFloat16;
  ScalarType d_type = ScalarType::BFloat16;
  int device = 0;
  std::int64_t m = 0, n = 0, k = 0, batch = 1;
  bool sums_batch = false;  // K runs through the batch, as that of a weight's gradient does: no row to keep the same

  bool empty() const { return m == 0 || n == 0 || batch == 0; }
};

// How operands are copied: the layouts with the most kernels. Groups along K of 16-bit operands have kernels for operands
// that are contiguous along M and N, as gradients of weights have them; all others read K contiguous.
struct Layouts {
  Layout a, b;
  bool operator==(Layouts const& o) const { return a == o.a && b == o.b; }
};
constexpr Layouts kContiguousK{Layout::row, Layout::column};
constexpr Layouts copied_layouts(Grouping grouping, DType a) {
  bool const along_k = grouping == Grouping::k && element_bytes(a) == 2;
  return along_k ? Layouts{Layout::column, Layout::row} : kContiguousK;
}

// CUTLASS rounds extents up to tiles and clusters in int; this leaves room for any of them.
constexpr std::int64_t kMaxExtent = std::numeric_limits<std::int32_t>::max() - 65535;

// Type of an epilogue's tensor operand, where D has type `d`.
constexpr ScalarType operand_type(EpilogueOperandInfo const& operand, ScalarType d) {
  return operand.type == OperandType::d ? d : operand.type == OperandType::f32 ? ScalarType::Float : ScalarType::Int;
}

// Columns of D where the GEMM has n.
constexpr std::int64_t columns_of(Width width, std::int64_t n) {
  return width == Width::half ? n / 2 : width == Width::twice ? 2 * n : n;
}

// Checks that there is a tensor: the dispatcher takes None for an undefined one.
void check_defined(char const* op, char const* argument, Tensor const& tensor);
void check_device(char const* op, char const* argument, Tensor const& tensor, int device, char const* device_of);
void check_dims(OpNames const& names, char const* argument, Tensor const& tensor, int dims);
void check_extent(char const* op, std::int64_t extent);
// Checks that operands and out= are tensors, and that the operands are on one CUDA device: fills `device`.
void check_devices(GemmCallBase& call);

bool is_supported(ScalarType type);
// Checks for float16, bfloat16 or float32; `what` is " has dtype " or " is ".
void check_supported(char const* op, char const* argument, char const* what, ScalarType type);
// Checks the types of A and B without scales, and fills them.
void check_operand_types(GemmCallBase& call);
// The same and the type of D.
void check_float_types(GemmCallBase& call, bool allow_tf32);
// `note` follows the name of the type.
void check_type(char const* op, char const* argument, Tensor const& tensor, ScalarType wanted, char const* note = "");

template <class... Expected>
[[noreturn, gnu::noinline, gnu::cold]] void fail_shape(char const* op, char const* argument, Tensor const& tensor,
                                                       Expected const&... expected) {
  fail(ErrorKind::shape, op, ": ", argument, " has shape ", shape_text(tensor), "; expected ", expected...);
}

bool has_shape(Tensor const& tensor, std::initializer_list<std::int64_t> shape);
// [..., cols], where `like` is [..., any].
bool has_rows_of(Tensor const& tensor, Tensor const& like, std::int64_t cols);
std::string rows_text(Tensor const& like, std::int64_t cols);

// Checks that a has as many columns as b has rows, in matrices or batches of them: fills the extents.
void check_operands(GemmCallBase& call);
// Checks an out= of `cols` columns, also for overlap with itself and with A and B.
void check_out(GemmCallBase const& call, Tensor const& out, char const* label, std::int64_t cols);
[[noreturn]] void fail_overlap(char const* op, char const* label, char const* argument);
void check_apart(GemmCallBase const& call, Tensor const& out, char const* label, Tensor const& input, char const* argument);

// --- Epilogues by name

bool is_named(EpilogueOperandInfo const& operand, OperandKind kind, char const* name);
// A scalar for which a layer has no argument: it is called with the neutral value, 1.
bool is_neutral(EpilogueOperandInfo const& operand);
constexpr bool is_matrix(OperandKind kind) { return kind == OperandKind::matrix || kind == OperandKind::wide_matrix; }

// How many outputs it has besides D.
int stores_of(EpilogueInfo const& info);
// The epilogue of a name; throws for a name that is not declared, or one with an accumulator where none is expected.
Epilogue named_epilogue(char const* op, std::string_view name, bool has_accum);

// Refuses an argument that is given and that the epilogue does not take.
void check_takes(char const* op, EpilogueInfo const& info, char const* argument, bool is_given);
[[noreturn]] void fail_operand(char const* op, EpilogueInfo const& info, int position, char const* expected);
// For ops `fused`, which takes epilogues without stores, and `fused`_aux, which takes those with one.
void check_stores(char const* op, char const* fused, EpilogueInfo const& info, int stores);
// Checks a tensor that is to be as B is.
void check_as_weight(GemmCallBase const& call, char const* argument, Tensor const& tensor);
// The weight of the odd columns, where B is that of the even ones alone.
void check_up(GemmCallBase const& call, EpilogueInfo const& info, Tensor const& up);
// An epilogue that combines pairs of columns needs an even number of them.
void check_pairs(GemmCallBase const& call, EpilogueInfo const& info);

// --- Operands

// Device, types and extents of the call, and the layouts that all operands can be copied to.
GemmRequest request_of(GemmCallBase const& call, Op op, ScalarType d_type);

struct GemmOperands {
  View a, b;  // [M, K] and [K, N], or [G, K, N] for groups that are not along K
  std::int64_t k;
};

// No kernel reads a K of 0, but an epilogue applies to its result, too: then both operands are zeros, of the shortest K
// that can be accessed.
GemmOperands zero_operands(GemmCallBase const& call, std::vector<Tensor>& keep);

struct PreparedOperands {
  PreparedOperand a, b;
  int k;
  bool extents_aligned;
};

// cp.async kernels read whole accesses of what is contiguous: copies have zeros along K up to the next multiple, which add
// nothing.
PreparedOperands prepare_operands(GemmCallBase const& call, GemmOperands const& operands, Layouts preferred,
                                  CopyPolicy copy_policy, std::vector<Tensor>& keep);

// D, or what an epilogue stores, as a kernel writes it.
gemm::EpilogueValue prepare_result(Output& output, Matrix const& target, ScalarType type, std::int64_t pitch,
                                   bool force_temporary, int device);
void place_d(gemm::GemmArgs& args, gemm::EpilogueValue const& d);

// A row or column, or one value for all of it. `columns`: of a row, those that a kernel may read.
gemm::EpilogueValue prepare_vector(EpilogueOperandInfo const& operand, Tensor const& tensor, ScalarType type,
                                   std::int64_t columns, int device, std::vector<Tensor>& keep);

}  // namespace cutwheel
