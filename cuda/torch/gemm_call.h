// From torch's arguments to a launch: what GEMM calls of every op share. gemm.h, scaled.h and grouped.h say how operands
// are checked and prepared.
#pragma once

#include <functional>
#include <limits>
#include <optional>
#include <vector>

#include "dispatch/run_gemm.h"
#include "dispatch/select.h"
#include "torch/access.h"
#include "torch/tensor.h"

namespace cutwheel {

// How an op calls its arguments, for messages.
struct OpNames {
  char const* op;
  char const* c;  // nullptr: takes none
  char const* a;
  char const* b;
  int dims;  // of a and b; linear's input may have more
};

// A request; types and extents are filled in once it is checked.
struct GemmCallBase {
  OpNames names;
  Tensor const* a;
  Tensor const* b;
  std::optional<ScalarType> out_dtype = std::nullopt;
  Tensor const* out = nullptr;

  ScalarType type = ScalarType::BFloat16;  // of a
  ScalarType d_type = ScalarType::BFloat16;
  int device = 0;
  std::int64_t m = 0, n = 0, k = 0, batch = 1;

  bool empty() const { return m == 0 || n == 0 || batch == 0; }
};

// How operands are copied: the layouts with the most kernels. Groups along K of 16-bit operands have kernels for operands
// that are contiguous along M and N, as gradients of weights have them; all others read K contiguous.
struct Layouts {
  Layout a, b;
  bool operator==(Layouts const& o) const { return a == o.a && b == o.b; }
};
constexpr Layouts copied_layouts(Grouping grouping, DType a) {
  bool const along_k = grouping == Grouping::k && element_bytes(a) == 2;
  return along_k ? Layouts{Layout::column, Layout::row} : Layouts{Layout::row, Layout::column};
}

// CUTLASS rounds extents up to tiles and clusters in int; this leaves room for any of them.
constexpr std::int64_t kMaxExtent = std::numeric_limits<std::int32_t>::max() - 65535;
constexpr int kMaxDims = 64;  // torch's own limit

// Type of an epilogue's tensor operand, where D has type `d`.
constexpr ScalarType operand_type(EpilogueOperandInfo const& operand, ScalarType d) {
  return operand.type == OperandType::d ? d : operand.type == OperandType::f32 ? ScalarType::Float : ScalarType::Int;
}

void check_device(char const* op, char const* argument, Tensor const& tensor, int device, char const* device_of);
void check_dims(OpNames const& names, char const* argument, Tensor const& tensor, int dims);
void check_extent(char const* op, std::int64_t extent);
// Checks that both operands are on one CUDA device, and fills `device`.
void check_devices(GemmCallBase& call);
// For GEMMs without scales.
bool is_supported(ScalarType type);
// Checks the types of A, B and D without scales: fills `type` and `d_type`.
void check_float_types(GemmCallBase& call, bool allow_tf32);
// Checks that a has as many columns as b has rows, in matrices or batches of them: fills the extents.
void check_operands(GemmCallBase& call);
// Checks an out= of `cols` columns, also for overlap with itself and with A and B.
void check_out(GemmCallBase const& call, Tensor const& out, char const* label, std::int64_t cols);
void check_apart(GemmCallBase const& call, Tensor const& out, char const* label, Tensor const& input, char const* argument);

// Operands as kernels take them. `keep` owns the copies that had to be made.
struct PreparedGemm {
  gemm::GemmArgs args;
  GemmRequest request;
  std::vector<Tensor> keep;
  Output d;
  std::vector<Output> stores;  // in the order of their positions
};

// A plan for the prepared call. If no row takes it as it is, `prepare` does it again, with copies. Throws if that does not
// help.
GemmPlan plan_product(PreparedGemm& prepared, GemmCallBase const& call, std::function<void(CopyPolicy)> const& prepare);

// Enqueues it, or the next best plan where a kernel refuses. Throws what went wrong.
void launch_gemm(PreparedGemm& prepared, GemmCallBase const& call, GemmPlan plan);

// Throws what a launch reported, unless that is ok or not_implementable.
void check_launch(gemm::Status status, char const* op, char const* kernel);

}  // namespace cutwheel
