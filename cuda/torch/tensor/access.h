// Memory as kernels access it, in pieces of 16 bytes (TMA, cp.async and vector loads alike), and copies of what does not
// lie so.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/args/gemm.h"
#include "torch/tensor/tensor.h"

namespace cutwheel {

constexpr int kAccessBytes = 16;

// Elements of a type in one access.
constexpr std::int64_t access_elements(ScalarType type) { return kAccessBytes / element_bytes_of(type); }

inline bool aligned(void const* data) { return reinterpret_cast<std::uintptr_t>(data) % kAccessBytes == 0; }

// A matrix and the tensor whose memory it names.
struct View {
  Matrix matrix;
  Tensor owner;
  // As in gemm::Operand: a B may be two matrices, of which `matrix` is the one that lies first. `owner` has its memory, and
  // the caller holds the other's.
  std::int64_t pair_stride = 0;
  bool odd_first = false;
};

// [..., cols] as one matrix [rows, cols]: as it lies where the strides allow it, else a copy.
View flatten_rows(Tensor const& tensor, std::int64_t rows, std::int64_t cols, std::vector<Tensor>& keep);

// Whether rows can be accessed as they lie: contiguous, each on 16 bytes.
bool accessible(Matrix const& x, ScalarType type);

// The stride between rows that kernels are given: that of a single row means nothing.
inline std::int64_t leading_of(Matrix const& x, std::int64_t pitch) { return x.rows == 1 ? pitch : x.row_stride; }

// A row-major copy with `pitch` elements from row to row, a multiple of 16 bytes. What lies between is zero, so that a
// kernel may read it. Converts to `type`.
Matrix copy_padded(Matrix const& source, Tensor const& owner, ScalarType type, std::int64_t pitch, int device,
                   std::vector<Tensor>& keep);

// A matrix as kernels read it: as it lies if that will do, else (or `force_copy`) as a copy in `type`.
Matrix readable(Matrix const& x, Tensor const& owner, ScalarType type, std::int64_t pitch, bool force_copy, int device,
                std::vector<Tensor>& keep);

// A copy with zeros, in elements: the source is [images, lines, rows], the target [images, target_lines, target_rows] of
// target_pitch each.
struct Padded {
  std::int64_t images = 1, lines = 1, rows = 0, row_elements = 0;
  std::int64_t image_stride = 0, line_stride = 0, row_stride = 0;  // of the source
  std::int64_t target_lines = 1, target_rows = 0, target_pitch = 0;
  std::int64_t first_row = 0;  // of the target's lines that has a source
};

// Copies by a kernel of our own; false if there is none, or if numbers are too large for it.
bool pad(Padded const& x, void const* source, void* target, int element_bytes, int device);

// [..., cols] of a tensor as kernels read it: rows, with the stride between them in `row_stride`.
Matrix readable_rows(Tensor const& tensor, std::int64_t rows, std::int64_t cols, int device, std::vector<Tensor>& keep);

// The elements of a tensor with one dimension that is not 1, as one row.
Matrix vector_of(Tensor const& tensor);

// Copies that selection asks for when no kernel takes the operands as they lie.
struct CopyPolicy {
  bool layouts = false;  // those that are preferred: of copies, with the most kernels
  bool extents = false;  // contiguous extents that are multiples of 16 bytes (cp.async kernels need that)
  // Copies of A and B, and of D, where they do not lie on 16 bytes.
  bool operands = true, result = true;
};

struct PreparedOperand {
  gemm::Operand operand;
  Layout layout;
  bool extent_aligned, aligned;
};

// A or B. Takes it as it lies if its memory can be accessed so, unless `force_copy`. `preferred` decides where both layouts
// would do, and for a copy.
PreparedOperand prepare_operand(Matrix matrix, Tensor const& owner, ScalarType type, Layout preferred,
                                CopyPolicy copy_policy, bool force_copy, int device, std::vector<Tensor>& keep);

// Elements from one matrix to another as large, negative if it lies in front, where kernels can read both with one stride;
// 0 where they cannot. `whole_accesses`: rows are multiples of 16 bytes.
std::int64_t distance_between(Matrix const& one, Matrix const& other, ScalarType type, bool whole_accesses);

// The columns of a B [K, 2F] that is held as two matrices [F, K], or two batches of them: as they lie if kernels can read
// both with one stride, else a copy in which they alternate. `may_be_apart`: false asks for the copy.
View pairs_of(View const& even, View const& odd, ScalarType type, CopyPolicy copy_policy, bool may_be_apart, int device,
              std::vector<Tensor>& keep);

// One result on its way: what the op returns (or out=), and where a kernel writes it if it cannot be written as it lies.
struct Output {
  std::optional<Tensor> tensor;
  std::optional<Tensor> temporary;
  Matrix copy_from, copy_to;
};

// Whether every kernel can write it as it lies. Stores through CUTLASS's tensor maps write the whole 16 bytes in which a
// row ends, and what follows in memory may be somebody else's.
bool writable(Matrix const& x, ScalarType type);

// Returns the matrix for the kernel to write, oriented as `target`: the target itself, or, if `force_temporary`, or it is
// not writable(), one whose rows are `pitch` elements apart.
Matrix prepare_output(Output& output, Matrix const& target, ScalarType type, std::int64_t pitch, bool force_temporary,
                      int device);

// After the launch: copies the temporary, if there is one, into the result.
void finish_output(Output& output);

}  // namespace cutwheel
