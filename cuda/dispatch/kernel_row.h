// The table of kernels: one row for each kernel of the manifest, written by kernelgen (kernel_table.cpp).
#pragma once

#include <cstdint>

#include "common/types.h"
#include "epilogues.h"  // generated: enum class Epilogue, kEpilogues
#include "gemm/params.h"

namespace cutwheel {

enum class Op : int { gemm };
enum class Family : int { sm80_multistage, sm90_warpspecialized, splitk_reduce, elementwise };

struct Extent3 {
  int m, n, k;
};

struct KernelRow {
  char const* name;
  Op op;
  Family family;
  Arch arch;
  bool has_ptx;
  DType a, b, acc, d;
  Layout layout_a, layout_b;  // user's frame; D is row-major
  Epilogue epilogue;
  Extent3 tile, cluster;  // the kernel's own frame: with swap_ab its M runs along the user's N
  int stages;             // 0: as many as fit
  Schedule schedule;
  bool swap_ab;   // computes D^T = B^T A^T
  int alignment;  // elements of A and B per access
  int const* shared_memory_bytes;
  gemm::Status (*launch)(gemm::GemmArgs const&);
  std::int64_t (*workspace_bytes)(gemm::GemmArgs const&);
};

constexpr EpilogueInfo const& info_of(Epilogue epilogue) { return kEpilogues[static_cast<int>(epilogue)]; }

// Whether selection may choose the row for a product. The others are found by what they are: the second half of split-K,
// and elementwise kernels.
constexpr bool is_gemm(KernelRow const& row) {
  return row.family == Family::sm80_multistage || row.family == Family::sm90_warpspecialized;
}

extern KernelRow const kKernelRows[];
extern int const kKernelRowCount;

}  // namespace cutwheel
