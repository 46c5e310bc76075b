// Description of an epilogue for the host. The table kEpilogues is generated (epilogues.h).
#pragma once

#include "core/types.h"

namespace cutwheel {

// Bounds what one kernel is given; the longest epilogue of the wheel has four.
constexpr int kMaxEpilogueOperands = 8;

// Extents against the accumulator's [M, N]: a wide matrix is [M, 2N]. A store is an output besides D, as wide as the
// accumulator.
enum class OperandKind : int { scalar, row, col, matrix, wide_matrix, store };

// Columns of D against those of the accumulator: half as many where pairs of columns are combined into one, twice as many
// where each column yields two.
enum class Width : int { same, half, twice };

// Element type of a tensor operand: D's, or one that the manifest names.
enum class OperandType : int { d, f32, s32 };

struct EpilogueOperandInfo {
  char const* name;
  OperandKind kind;
  OperandType type;
  bool may_be_one;  // of a row or column: a single value, broadcast, does as well
};

// Operands stand by position: the index of their value in GemmArgs::epilogue.
struct EpilogueInfo {
  char const* name;
  char const* expr;
  Addend addend;
  Width width;
  bool has_accum;  // else it belongs to an elementwise kernel
  int count;
  EpilogueOperandInfo operands[kMaxEpilogueOperands];
};

}  // namespace cutwheel
