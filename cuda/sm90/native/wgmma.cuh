// Which wgmma multiplies tiles of a shape.
#pragma once

#include <cute/arch/mma_sm90.hpp>

#include <cstdint>
#include <type_traits>
#include <utility>

#include "wgmma_widths.cuh"  // generated

namespace cutwheel::gemm {

// The widths that CUTLASS's plain headers declare; others are our own.
constexpr bool sm90_is_plain_width(int columns) {
  return columns == 8 || columns == 16 || columns == 32 || columns == 64 || columns == 96 || columns == 128 ||
         columns == 192 || columns == 256;
}

template <class A, class B, class Accumulator, class Tile, cute::SM90::GMMA::Major major_a = cute::SM90::GMMA::Major::K,
          cute::SM90::GMMA::Major major_b = cute::SM90::GMMA::Major::K>
constexpr auto sm90_wgmma() {
  constexpr int kColumns = cute::size<1>(Tile{});
  if constexpr (sm90_is_plain_width(kColumns)) {
    return cute::SM90::GMMA::ss_op_selector<A, B, Accumulator, Tile, major_a, major_b>();
  } else {
    static_assert(std::is_same_v<A, B> && std::is_same_v<Accumulator, float>);
    return Wgmma<A, kColumns, major_a, major_b>{};
  }
}

// The values of a thread, in the order of wgmma. A tensor of CuTe would be the same to the GPU and a second's work to the
// compiler. They have to begin as zeros: where they are undefined, the assembler serialises the wgmmas (C7515).
template <class T, int count>
struct Sm90Accumulator {
  T values[count];
  CUTLASS_DEVICE T& operator()(int i) { return values[i]; }
  CUTLASS_DEVICE T const& operator()(int i) const { return values[i]; }
};

template <int count, class Values>
CUTLASS_DEVICE void sm90_clear(Values& values) {
  CUTLASS_PRAGMA_UNROLL
  for (int i = 0; i < count; ++i) values(i) = 0;
}

// Keeps the compiler from moving what reads or writes these across wgmmas.
CUTLASS_DEVICE void sm90_fence(float& value) { asm volatile("" : "+f"(value)::"memory"); }
CUTLASS_DEVICE void sm90_fence(std::int32_t& value) { asm volatile("" : "+r"(value)::"memory"); }
template <int count, class Values>
CUTLASS_DEVICE void sm90_fence(Values& values) {
  CUTLASS_PRAGMA_UNROLL
  for (int i = 0; i < count; ++i) sm90_fence(values(i));
}

// A descriptor moved by `units` of 16 bytes. 32 bits suffice: the upper half has no part of the address.
CUTLASS_DEVICE constexpr cute::GmmaDescriptor sm90_advance(cute::GmmaDescriptor desc, int units) {
  desc.reg32_[0] += static_cast<std::uint32_t>(units);
  return desc;
}

// D += A B, or A B. D is as many values as the instruction has, from `first` on.
template <class Instruction, class Values, std::size_t... i>
CUTLASS_DEVICE void sm90_multiply(cute::GmmaDescriptor a, cute::GmmaDescriptor b, Values& d, int first,
                                  cute::SM90::GMMA::ScaleOut scale, std::index_sequence<i...>) {
  using Register = std::remove_extent_t<typename Instruction::CRegisters>;
  Instruction::fma(a, b, reinterpret_cast<Register&>(d(first + static_cast<int>(i)))..., scale);
}
template <class Instruction, class Values>
CUTLASS_DEVICE void sm90_multiply(cute::GmmaDescriptor a, cute::GmmaDescriptor b, Values& d, int first,
                                  cute::SM90::GMMA::ScaleOut scale) {
  constexpr std::size_t kValues = std::extent_v<typename Instruction::CRegisters>;
  sm90_multiply<Instruction>(a, b, d, first, scale, std::make_index_sequence<kValues>{});
}

}  // namespace cutwheel::gemm
