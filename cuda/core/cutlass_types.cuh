// From our vocabulary to CUTLASS's types.
#pragma once

#include <cutlass/layout/matrix.h>
#include <cutlass/numeric_types.h>

#include <cstdint>
#include <type_traits>

#include "core/types.h"

#define CUTWHEEL_GRID_CONSTANT __grid_constant__

namespace cutwheel::gemm {

template <int M, int N, int K>
struct Shape3 {
  static constexpr int kM = M, kN = N, kK = K;
};

template <DType type>
struct ElementOf;
template <>
struct ElementOf<DType::f16> {
  using type = cutlass::half_t;
};
template <>
struct ElementOf<DType::bf16> {
  using type = cutlass::bfloat16_t;
};
template <>
struct ElementOf<DType::f32> {
  using type = float;
};
// float in memory; both CUTLASS APIs then choose TF32 tensor cores.
template <>
struct ElementOf<DType::tf32> {
  using type = float;
};
template <>
struct ElementOf<DType::e4m3> {
  using type = cutlass::float_e4m3_t;
};
template <>
struct ElementOf<DType::e5m2> {
  using type = cutlass::float_e5m2_t;
};
template <>
struct ElementOf<DType::s8> {
  using type = std::int8_t;
};
template <>
struct ElementOf<DType::s32> {
  using type = std::int32_t;
};
template <DType type>
using Element = typename ElementOf<type>::type;

template <Layout layout>
using CutlassLayout = std::conditional_t<layout == Layout::row, cutlass::layout::RowMajor, cutlass::layout::ColumnMajor>;

constexpr Layout transposed(Layout layout) { return layout == Layout::row ? Layout::column : Layout::row; }

}  // namespace cutwheel::gemm
