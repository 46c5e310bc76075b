// Parts of a generated epilogue (epilogue_<name>.cuh), and its application to fragments: the same on every architecture.
// The families load the fragments, most of them through CUTLASS's visitors.
#pragma once

#include <cutlass/array.h>
#include <cutlass/numeric_conversion.h>

#include <cstdint>
#include <tuple>
#include <type_traits>
#include <utility>

#include "core/args/gemm.h"
#include "core/cutlass_types.cuh"
#include "epilogue/info.h"
#include "epilogue/math.cuh"

namespace cutwheel::gemm::epilogue {

// Two neighbouring columns: one unit of an epilogue that halves or doubles the width.
struct Pair {
  float even, odd;
};

// Operands by their position in GemmArgs::epilogue, with rows and columns as the caller sees them.
template <OperandKind kind, int index, DType type, bool may_be_one = false>
struct Operand {
  static constexpr OperandKind kKind = kind;
  static constexpr int kIndex = index;
  static constexpr DType kType = type;
  static constexpr bool kMayBeOne = may_be_one;  // of rows and columns: one value does for all
};
template <int index>
using Scalar = Operand<OperandKind::scalar, index, DType::f32>;
template <int index, DType type, bool may_be_one = false>
using Row = Operand<OperandKind::row, index, type, may_be_one>;
template <int index, DType type, bool may_be_one = false>
using Col = Operand<OperandKind::col, index, type, may_be_one>;
template <int index, DType type>
using Matrix = Operand<OperandKind::matrix, index, type>;
template <int index, DType type>
using WideMatrix = Operand<OperandKind::wide_matrix, index, type>;
template <int index, DType type>
using Store = Operand<OperandKind::store, index, type>;

template <class... Operands>
struct OperandList {
  static constexpr int kCount = sizeof...(Operands);
};

template <class T>
struct TypeIdentity {
  using type = T;
};

template <int bytes>
struct UnsignedOf;
template <>
struct UnsignedOf<1> {
  using type = std::uint8_t;
};
template <>
struct UnsignedOf<2> {
  using type = std::uint16_t;
};

// The element that one accumulator column reads or writes. Where widths differ it is a part of an element, or two of them,
// so that tiles of D and of wide matrices have the accumulator's shape and CUTLASS's loads and stores need no change. Two
// 16-bit elements are passed as a float, because CUTLASS converts C tiles of any other type to float when it loads them.
template <DType type, Width width>
struct ElementPerColumnOf {
  using type_ = Element<type>;
};
template <DType type>
struct ElementPerColumnOf<type, Width::half> {
  using type_ = typename UnsignedOf<sizeof(Element<type>) / 2>::type;
};
template <DType type>
struct ElementPerColumnOf<type, Width::twice> {
  static_assert(sizeof(Element<type>) == 2, "a doubled width takes 16-bit elements");
  using type_ = float;
};
template <DType type, Width width>
using ElementPerColumn = typename ElementPerColumnOf<type, width>::type_;

template <class Operand>
using ElementOfOperand =
    ElementPerColumn<Operand::kType, Operand::kKind == OperandKind::wide_matrix ? Width::twice : Width::same>;

// Columns of the user's tensor in one such element.
template <class Operand>
constexpr int kColumnsOf = Operand::kKind == OperandKind::wide_matrix ? 2 : 1;

template <class To, class From>
CUTLASS_DEVICE To bit_cast(From const& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}

// Conversions of 8-bit elements. CUTLASS's are volatile assembly, which no load is moved across: each column's operands
// would be read for every row, and a reciprocal of a scale computed for each value.
template <class E>
constexpr bool kIsEightBits = std::is_same_v<E, std::int8_t> || std::is_same_v<E, cutlass::float_e4m3_t>;

// Rounds to the nearest, ties to even; 8-bit values saturate.
template <class E, int N>
CUTLASS_DEVICE cutlass::Array<E, N> round_to(cutlass::Array<float, N> const& values) {
  if constexpr (!kIsEightBits<E>) {
    return cutlass::NumericArrayConverter<E, float, N>{}(values);
  } else {
    static_assert(N % 2 == 0);
    std::uint16_t pairs[N / 2];
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < N / 2; ++i) {
      float const low = values[2 * i], high = values[2 * i + 1];
      if constexpr (std::is_same_v<E, std::int8_t>) {
        std::uint32_t pair;
        asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, 0;" : "=r"(pair) : "r"(__float2int_rn(high)), "r"(__float2int_rn(low)));
        pairs[i] = static_cast<std::uint16_t>(pair);
      } else {
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pairs[i]) : "f"(high), "f"(low));
      }
    }
    cutlass::Array<E, N> result;
    memcpy(&result, pairs, sizeof(pairs));
    return result;
  }
}

template <class E, int N>
CUTLASS_DEVICE cutlass::Array<float, N> widen(cutlass::Array<E, N> const& values) {
  if constexpr (!kIsEightBits<E>) {
    return cutlass::NumericArrayConverter<float, E, N>{}(values);
  } else if constexpr (std::is_same_v<E, std::int8_t>) {
    cutlass::Array<float, N> result;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < N; ++i) result[i] = static_cast<float>(static_cast<int>(values[i]));
    return result;
  } else {
    static_assert(N % 2 == 0);
    std::uint16_t pairs[N / 2];
    memcpy(pairs, &values, sizeof(pairs));
    cutlass::Array<float, N> result;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < N / 2; ++i) {
      cutlass::Array<cutlass::half_t, 2> pair;
      std::uint32_t bits;
      asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(bits) : "h"(pairs[i]));
      memcpy(&pair, &bits, sizeof(bits));
      result[2 * i] = static_cast<float>(pair[0]), result[2 * i + 1] = static_cast<float>(pair[1]);
    }
    return result;
  }
}

// A fragment of an operand as floats: N of them, or N pairs of a wide matrix.
template <class Operand, class FragmentElement, int N>
CUTLASS_DEVICE auto to_float(cutlass::Array<FragmentElement, N> const& fragment) {
  using E = Element<Operand::kType>;
  if constexpr (Operand::kKind == OperandKind::wide_matrix) {
    return cutlass::NumericArrayConverter<float, E, 2 * N>{}(bit_cast<cutlass::Array<E, 2 * N>>(fragment));
  } else {
    return widen(fragment);
  }
}

// Unit i of a fragment, as compute() takes it: a float, or two columns. In an epilogue that halves the width a unit is a
// pair of columns of everything but scalars.
template <class Operand, Width width, int N>
CUTLASS_DEVICE auto unit_of(cutlass::Array<float, N> const& values, int i) {
  if constexpr (Operand::kKind == OperandKind::wide_matrix ||
                (width == Width::half && Operand::kKind != OperandKind::scalar)) {
    return Pair{values[2 * i], values[2 * i + 1]};
  } else {
    return values[i];
  }
}

// Applies Epilogue to fragments of N accumulator columns each. `Inputs` is a tuple of float arrays, one for each
// operand; `stores` receives what is stored besides D. Returns the fragment of D, N elements per column.
template <class Epilogue, DType d, class Operands, class Stores>
struct Apply;

template <class Epilogue, DType d, class... Operands, class... Stores>
struct Apply<Epilogue, d, OperandList<Operands...>, OperandList<Stores...>> {
  static constexpr Width kWidth = Epilogue::kWidth;
  static constexpr int kStores = sizeof...(Stores);
  using ElementD = ElementPerColumn<d, kWidth>;
  using E = Element<d>;
  template <int N>
  using StoreFragments = cutlass::Array<float, N>[kStores > 0 ? kStores : 1];

  // Every column of a pair lies in the same thread, one behind the other. Integer sums are stored as they are where D is an
  // integer, else they are rounded to float first: by 2^-24 of the sum, far below what 16 bits of D can tell.
  template <class Accumulator, int N, class Inputs>
  CUTLASS_DEVICE static cutlass::Array<ElementD, N> run(cutlass::Array<Accumulator, N> const& accum, Inputs const& inputs,
                                                        StoreFragments<N>& stores) {
    if constexpr (d == DType::s32) {
      static_assert(std::is_same_v<Accumulator, E> && sizeof...(Operands) + sizeof...(Stores) == 0);
      return accum;
    } else {
      return run(cutlass::NumericArrayConverter<float, Accumulator, N>{}(accum), inputs, stores,
                 std::index_sequence_for<Operands...>{}, std::index_sequence_for<Stores...>{});
    }
  }

  // The columns of a pair lie in lanes that differ in bit 2, as rows of an accumulator of wgmma that holds D^T do. Both
  // lanes compute the result and keep the part of its bytes that belongs to their column.
  template <int N, class Inputs>
  CUTLASS_DEVICE static cutlass::Array<ElementD, N> run_across_lanes(cutlass::Array<float, N> const& accum,
                                                                     Inputs const& inputs, StoreFragments<N>& stores) {
    static_assert(kWidth == Width::half);
    return run_across_lanes(accum, inputs, stores, std::index_sequence_for<Operands...>{},
                            std::index_sequence_for<Stores...>{});
  }

 private:
  template <int N, class Inputs, std::size_t... I, std::size_t... S>
  CUTLASS_DEVICE static cutlass::Array<ElementD, N> run(cutlass::Array<float, N> const& accum, Inputs const& inputs,
                                                        StoreFragments<N>& stores, std::index_sequence<I...>,
                                                        std::index_sequence<S...>) {
    constexpr int kUnits = kWidth == Width::half ? N / 2 : N, kResults = kWidth == Width::twice ? 2 * N : kUnits;
    cutlass::Array<float, kResults> result;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kUnits; ++i) {
      if constexpr (kWidth == Width::half) {
        static_assert(N % 2 == 0);
        Pair stored[kStores > 0 ? kStores : 1];
        Epilogue::compute(Pair{accum[2 * i], accum[2 * i + 1]}, unit_of<Operands, kWidth>(std::get<I>(inputs), i)...,
                          stored[S]..., result[i]);
        ((stores[S][2 * i] = stored[S].even, stores[S][2 * i + 1] = stored[S].odd), ...);
      } else if constexpr (kWidth == Width::twice) {
        Pair pair;
        Epilogue::compute(accum[i], unit_of<Operands, kWidth>(std::get<I>(inputs), i)..., pair);
        result[2 * i] = pair.even;
        result[2 * i + 1] = pair.odd;
      } else {
        Epilogue::compute(accum[i], unit_of<Operands, kWidth>(std::get<I>(inputs), i)..., stores[S][i]..., result[i]);
      }
    }
    return bit_cast<cutlass::Array<ElementD, N>>(round_to<E>(result));
  }

  template <class Operand>
  CUTLASS_DEVICE static auto across(float own, bool odd) {
    if constexpr (Operand::kKind == OperandKind::scalar) {
      return own;
    } else {
      float const other = __shfl_xor_sync(0xffffffffu, own, 4);
      return odd ? Pair{other, own} : Pair{own, other};
    }
  }

  template <int N, class Inputs, std::size_t... I, std::size_t... S>
  CUTLASS_DEVICE static cutlass::Array<ElementD, N> run_across_lanes(cutlass::Array<float, N> const& accum,
                                                                     Inputs const& inputs, StoreFragments<N>& stores,
                                                                     std::index_sequence<I...>, std::index_sequence<S...>) {
    using Accumulator = Operand<OperandKind::matrix, -1, DType::f32>;
    bool const odd = threadIdx.x & 4;
    cutlass::Array<float, N> result;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < N; ++i) {
      Pair stored[kStores > 0 ? kStores : 1];
      Epilogue::compute(across<Accumulator>(accum[i], odd), across<Operands>(std::get<I>(inputs)[i], odd)..., stored[S]...,
                        result[i]);
      ((stores[S][i] = odd ? stored[S].odd : stored[S].even), ...);
    }
    using Bits = typename UnsignedOf<sizeof(E)>::type;
    auto const bits = bit_cast<cutlass::Array<Bits, N>>(round_to<E>(result));
    cutlass::Array<ElementD, N> d_fragment;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < N; ++i) {
      d_fragment[i] = static_cast<ElementD>(odd ? bits[i] >> (8 * sizeof(ElementD)) : bits[i]);
    }
    return d_fragment;
  }
};

}  // namespace cutwheel::gemm::epilogue
