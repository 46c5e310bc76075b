// Vocabulary shared by every room: element types, layouts, architectures.
#pragma once

#include <cstdint>

namespace cutwheel {

// tf32 is float32 in memory, multiplied on TF32 tensor cores.
enum class DType : int { f16, bf16, f32, tf32 };

// Of a matrix as the user names it: row = last dimension contiguous ('t'), column = first dimension contiguous ('n').
enum class Layout : int { row, column };

// The value is major * 10 + minor. sm90a is architecture-specific code: it runs on compute capability 9.0 and nothing else.
enum class Arch : int { sm80 = 80, sm89 = 89, sm90a = 90 };

enum class Schedule : int { none, multistage, pingpong, cooperative, streamk, warpspecialized };

// The epilogues of mm and addmm by what they add to the product: a row is one vector [N] for all rows of D, a matrix is [M,
// N]. Every other epilogue is chosen by its name.
enum class Addend : int { none, row, matrix, other };

enum class RasterOrder : int { along_m, along_n };

constexpr int element_bytes(DType type) { return type == DType::f16 || type == DType::bf16 ? 2 : 4; }

constexpr char const* name_of(DType type) {
  switch (type) {
    case DType::f16: return "f16";
    case DType::bf16: return "bf16";
    case DType::f32: return "f32";
    case DType::tf32: return "tf32";
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
    case Schedule::streamk: return "streamk";
    case Schedule::warpspecialized: return "warpspecialized";
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
