// Arguments of kernels that sort the rows of a mixture of experts, and move them.
#pragma once

#include <cstdint>

#include "core/args/gemm.h"

namespace cutwheel::gemm {

// Kernels receive these as GemmArgs const&. A row is one of the T k choices of T tokens; its place is where it lies when
// rows are sorted by expert.
struct RouteArgs : GemmArgs {
  void const* ids = nullptr;        // [T, k], contiguous
  bool is_int64 = false;            // else int32
  int rows = 0, choices = 1;        // T k; k
  int count = 0;                    // of experts
  std::int32_t* places = nullptr;   // [T, k]
  std::int32_t* sources = nullptr;  // [T k]: the token of each place
  std::int32_t* ends = nullptr;     // [count]
};

// A grouped GEMM of rows whose numbers are given: a has `tokens` rows, and row i of the GEMM is row sources[i] of it, or
// zeros where there is none.
struct GatheredArgs : GemmArgs {
  std::int32_t const* sources = nullptr;  // [m], on the device
  int tokens = 0;
};

// A place outside of the rows is nowhere: nothing is read or written.
struct PermuteArgs : GemmArgs {
  int tokens = 0, rows = 0, choices = 1, columns = 0;
  void const* token_data = nullptr;  // [T, columns]; written by Unpermute
  std::int64_t token_stride = 0;
  void const* row_data = nullptr;  // [rows, columns]; written by Permute
  std::int64_t row_stride = 0;
  std::int32_t const* places = nullptr;  // [T, k], contiguous
  void const* weights = nullptr;         // [T, k], contiguous; null: ones
  DType weight_type = DType::f32;
  float* dots = nullptr;              // [T, k]; written by PermuteDots
  std::int32_t const* end = nullptr;  // of the rows of all experts, on the device; null: all rows have one
};

}  // namespace cutwheel::gemm
