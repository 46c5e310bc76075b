// The table of kernels: one row for each kernel of the manifest, written by kernelgen (kernel_table.cpp).
#pragma once

#include <array>
#include <cstdint>

#include "core/args/gemm.h"
#include "core/types.h"
#include "epilogues.h"  // generated: enum class Epilogue, kEpilogues
#include "families.h"   // generated: enum class Family, kFamilyNames

namespace cutwheel {

enum class Op : int { gemm, scaled_mm, grouped_mm, conv2d };

struct Extent3 {
  int m, n, k;
};

struct KernelDescriptor {
  char const* name;
  Op op;
  Family family;
  Arch arch;
  bool has_ptx;
  DType a, b, acc, d;
  Layout layout_a, layout_b;  // as the caller sees them; D is row-major. Meaningless for convolutions
  Epilogue epilogue;
  Extent3 tile, cluster;  // as the kernel sees them: with swap_ab its M is the caller's N
  int stages;             // 0: as many as fit
  Schedule schedule;
  bool swap_ab;           // computes D^T = B^T A^T
  bool fast_accum;        // fp8: sums stay in the tensor cores, which keep fewer bits of them than float32 has
  BlockScales scales;     // applied by the mainloop
  QuantizeRecipe recipe;  // of a quantize kernel
  Grouping grouping;      // of a grouped_mm kernel
  Direction direction;    // of a conv2d kernel
  char const*
      summation;  // the order of its sums (kernelgen/summation.py): one key, the same bits. Null: none to choose from
  std::array<int, 2> assembled;  // major versions of newer GPUs that its PTX was assembled for at build time; 0: none
  int const* shared_memory_bytes;
  gemm::Status (*launch)(gemm::GemmArgs const&);
  std::int64_t (*workspace_bytes)(gemm::GemmArgs const&);
};

constexpr EpilogueInfo const& info_of(Epilogue epilogue) { return kEpilogues[static_cast<int>(epilogue)]; }

// Whether an epilogue has an operand of this kind.
constexpr bool has_operand(Epilogue epilogue, OperandKind kind) {
  EpilogueInfo const& info = info_of(epilogue);
  for (int i = 0; i < info.count; ++i) {
    if (info.operands[i].kind == kind) return true;
  }
  return false;
}

// Bytes of one element of an epilogue's tensor operand, where D has this type.
constexpr int element_bytes(EpilogueOperandInfo const& operand, DType d) {
  return operand.type == OperandType::d ? element_bytes(d) : 4;
}

// Direct convolutions, whose taps read one halo tile in shared memory.
constexpr bool is_direct_conv(KernelDescriptor const& row) {
  return row.family == Family::sm90_direct_conv || row.family == Family::sm90_strided_dgrad ||
         row.family == Family::sm90_space_to_depth || row.family == Family::sm90_few_channels;
}

// Whether selection may choose the row for a GEMM. The others are found by what they are: the second half of split-K,
// elementwise and quantize kernels.
constexpr bool is_gemm(KernelDescriptor const& row) {
  return row.family == Family::sm80_multistage || row.family == Family::sm90_warpspecialized ||
         row.family == Family::sm90_blockwise || row.family == Family::sm89_blockwise ||
         row.family == Family::sm90_persistent || row.family == Family::sm90_unaligned ||
         row.family == Family::sm90_grouped || row.family == Family::sm80_grouped || row.family == Family::sm90_conv ||
         row.family == Family::sm90_gather_conv || row.family == Family::sm90_row_conv || row.family == Family::sm80_conv ||
         row.family == Family::thin || is_direct_conv(row);
}

constexpr bool takes_slices(KernelDescriptor const& row) {
  return row.family == Family::sm90_persistent && takes_slices(row.d, row.schedule, row.cluster.k);
}

// The persistent kernels of our own for dense GEMMs on Hopper. Rows of their D may begin anywhere, unless the epilogue
// stores more than D.
constexpr bool is_native_dense(KernelDescriptor const& row) {
  return row.family == Family::sm90_persistent || row.family == Family::sm90_unaligned;
}

// The persistent kernels of our own for Hopper, dense, grouped and convolutions.
constexpr bool is_native(KernelDescriptor const& row) {
  return is_native_dense(row) || row.family == Family::sm90_grouped || row.family == Family::sm90_conv ||
         row.family == Family::sm90_gather_conv || row.family == Family::sm90_row_conv;
}

// The Hopper kernels: wgmma and TMA, and one threadblock on an SM that goes through many tiles.
constexpr bool is_persistent(KernelDescriptor const& row) {
  return row.family == Family::sm90_warpspecialized || row.family == Family::sm90_blockwise || is_native(row) ||
         is_direct_conv(row);
}

constexpr char const* name_of(Op op) {
  switch (op) {
    case Op::gemm: return "gemm";
    case Op::scaled_mm: return "scaled_mm";
    case Op::grouped_mm: return "grouped_mm";
    case Op::conv2d: return "conv2d";
  }
  return "?";
}

extern KernelDescriptor const kKernels[];
extern int const kKernelCount;

}  // namespace cutwheel
