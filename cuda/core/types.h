// Vocabulary shared by every room: element types, layouts, architectures.
#pragma once

#include <cstdint>

namespace cutwheel {

// tf32 is float32 in memory, multiplied on TF32 tensor cores. e4m3 is torch's float8_e4m3fn.
enum class DType : int { f16, bf16, f32, tf32, e4m3, e5m2, s8, s32 };

// Layout of a matrix as the caller sees it: row = last dimension contiguous ('t'), column = first one contiguous ('n').
enum class Layout : int { row, column };

// The value is major * 10 + minor. sm90a is architecture-specific code: it runs on compute capability 9.0 and nothing else.
enum class Arch : int { sm80 = 80, sm89 = 89, sm90a = 90 };

enum class Schedule : int { none, multistage, pingpong, cooperative, persistent };

// Whether a dense kernel of family sm90_persistent takes the slices of K of one problem, whose partial sums it writes.
// splits: threadblocks of a cluster that share K.
constexpr bool takes_slices(DType d, Schedule schedule, int splits) {
  return d == DType::f32 && (schedule == Schedule::persistent || schedule == Schedule::pingpong) && splits == 1;
}

// The epilogues of mm and addmm by their C: a row is one vector [N], broadcast over the rows of D, a matrix is [M, N].
// Every other epilogue is chosen by its name.
enum class Addend : int { none, row, matrix, other };

// Scales that differ along K, which the mainloop applies: those of A for one row and 128 of K, those of B for 128 columns
// or for one. Scales that do not are operands of the epilogue.
enum class BlockScales : int { none, a1x128_b128x128, a1x128_b1x128 };

enum class QuantizeRecipe : int {
  none,
  tensorwise,
  rowwise,
  blockwise_1x128,
  blockwise_128x128,
  tensorwise_asymmetric,
  rowwise_asymmetric
};

enum class RasterOrder : int { along_m, along_n };

// Which dimension of a grouped GEMM is ragged. rows: the rows of A and D, and each group has a B of its own. k: K of A and
// B, and each group yields a D of its own.
enum class Grouping : int { none, rows, k };

// Operands of the convolution: activation and filter (fprop), output gradient and filter (dgrad), output gradient and
// activation (wgrad).
enum class Direction : int { none, fprop, dgrad, wgrad };

// A copy of a filter with zeros: behind each tap, so that taps begin on lines of 128 bytes, or behind each filter, so that
// filters do.
enum class FilterPadding : int { none, taps, filters };

constexpr bool is_fp8(DType type) { return type == DType::e4m3 || type == DType::e5m2; }

constexpr int element_bytes(DType type) {
  if (is_fp8(type) || type == DType::s8) return 1;
  return type == DType::f16 || type == DType::bf16 ? 2 : 4;
}

constexpr char const* name_of(DType type) {
  switch (type) {
    case DType::f16: return "f16";
    case DType::bf16: return "bf16";
    case DType::f32: return "f32";
    case DType::tf32: return "tf32";
    case DType::e4m3: return "e4m3";
    case DType::e5m2: return "e5m2";
    case DType::s8: return "s8";
    case DType::s32: return "s32";
  }
  return "?";
}

constexpr char const* name_of(Arch arch) {
  switch (arch) {
    case Arch::sm80: return "sm80";
    case Arch::sm89: return "sm89";
    case Arch::sm90a: return "sm90a";
  }
  return "?";
}

constexpr char const* name_of(Schedule schedule) {
  switch (schedule) {
    case Schedule::none: return "none";
    case Schedule::multistage: return "multistage";
    case Schedule::pingpong: return "pingpong";
    case Schedule::cooperative: return "cooperative";
    case Schedule::persistent: return "persistent";
  }
  return "?";
}

constexpr char const* name_of(Addend addend) {
  switch (addend) {
    case Addend::none: return "none";
    case Addend::row: return "row";
    case Addend::matrix: return "matrix";
    case Addend::other: return "other";
  }
  return "?";
}

constexpr char const* name_of(BlockScales scales) {
  switch (scales) {
    case BlockScales::none: return "none";
    case BlockScales::a1x128_b128x128: return "1x128_128x128";
    case BlockScales::a1x128_b1x128: return "1x128_1x128";
  }
  return "?";
}

constexpr char const* name_of(QuantizeRecipe recipe) {
  switch (recipe) {
    case QuantizeRecipe::none: return "none";
    case QuantizeRecipe::tensorwise: return "tensorwise";
    case QuantizeRecipe::rowwise: return "rowwise";
    case QuantizeRecipe::blockwise_1x128: return "blockwise_1x128";
    case QuantizeRecipe::blockwise_128x128: return "blockwise_128x128";
    case QuantizeRecipe::tensorwise_asymmetric: return "tensorwise_asymmetric";
    case QuantizeRecipe::rowwise_asymmetric: return "rowwise_asymmetric";
  }
  return "?";
}

constexpr char const* name_of(Grouping grouping) {
  switch (grouping) {
    case Grouping::none: return "none";
    case Grouping::rows: return "rows";
    case Grouping::k: return "k";
  }
  return "?";
}

constexpr char const* name_of(Direction direction) {
  switch (direction) {
    case Direction::none: return "none";
    case Direction::fprop: return "fprop";
    case Direction::dgrad: return "dgrad";
    case Direction::wgrad: return "wgrad";
  }
  return "?";
}

constexpr char const* name_of(FilterPadding padding) {
  switch (padding) {
    case FilterPadding::none: return "none";
    case FilterPadding::taps: return "taps";
    case FilterPadding::filters: return "filters";
  }
  return "?";
}

constexpr char const* name_of(RasterOrder order) { return order == RasterOrder::along_m ? "along_m" : "along_n"; }

constexpr char letter_of(Layout layout) { return layout == Layout::row ? 't' : 'n'; }

template <class T>
constexpr T ceil_div(T a, T b) {
  return (a + b - 1) / b;
}

template <class T>
constexpr T round_up(T a, T b) {
  return ceil_div(a, b) * b;
}

}  // namespace cutwheel
