// Which wgmma multiplies tiles of a shape.
#pragma once

#include <cute/atom/mma_atom.hpp>
#include <cute/tensor.hpp>

#include "wgmma_widths.cuh"  // generated

namespace cutwheel::gemm {

// The widths that CUTLASS's plain headers declare; others are our own.
constexpr bool sm90_is_plain_width(int columns) {
  return columns <= 32 || columns == 64 || columns == 96 || columns == 128 || columns == 192 || columns == 256;
}

template <class A, class B, class Accumulator, class Tile, cute::GMMA::Major major_a = cute::GMMA::Major::K,
          cute::GMMA::Major major_b = cute::GMMA::Major::K>
constexpr auto sm90_wgmma() {
  constexpr int kColumns = cute::size<1>(Tile{});
  if constexpr (sm90_is_plain_width(kColumns)) {
    return cute::GMMA::ss_op_selector<A, B, Accumulator, Tile, major_a, major_b>();
  } else {
    static_assert(std::is_same_v<A, B> && std::is_same_v<Accumulator, float>);
    return Wgmma<A, kColumns, major_a, major_b>{};
  }
}

}  // namespace cutwheel::gemm
