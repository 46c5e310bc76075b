"""Descriptors of operands in shared memory are those that CuTe computes from its layouts.

Kernels compute them from a few multiplications, since CuTe's templates take the compiler longer
than all the rest of a kernel. Here CuTe says, for tiles of all kinds, where each instruction of
each stage begins and what its descriptor holds; `Sm90TileOperand` has to say the same.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

PROGRAM = r"""
#include <cstdio>
#include <cute/atom/mma_atom.hpp>
#include <cute/tensor.hpp>
inline int min(int a, int b) { return a < b ? a : b; }  // the GPU's own
#include "sm90/direct_conv/wgmma_traits.cuh"
#include "sm90/native/load/tiles.cuh"
using namespace cute;
using Major = SM90::GMMA::Major;

// Operand A in blocks of 64 rows, of which each warpgroup has every other one, or B in parts of
// `columns`.
template <class E, int extent, int k, Major major, bool is_a, int columns, int warpgroups>
void check() {
  using Own = cutwheel::gemm::Sm90TileOperand<E, extent, k, major>;
  constexpr bool kIsK = major == Major::K;
  constexpr int kStages = 2, kStep = 32 / sizeof(E), kRows = is_a ? 64 : columns;
  using Atom = std::conditional_t<kIsK, SM90::GMMA::Layout_K_SW128_Atom<E>,
                                  SM90::GMMA::Layout_MN_SW128_Atom<E>>;
  using Order = std::conditional_t<kIsK, Step<_1, _2, _3>, Step<_2, _1, _3>>;
  using Tile = Shape<Int<extent>, Int<k>, Int<kStages>>;
  using Instruction = decltype(cutwheel::gemm::sm90_wgmma<
      E, E, float, Shape<_64, Int<columns>, Int<k>>, is_a ? major : Major::K,
      is_a ? Major::K : major>());
  auto const mma =
      make_tiled_mma(Instruction{}, Layout<Shape<Int<warpgroups>, _1, _1>>{});
  alignas(1024) static char memory[1];
  auto const all = make_tensor(make_smem_ptr(reinterpret_cast<E*>(memory)),
                               tile_to_shape(Atom{}, Tile{}, Order{}));
  for (int warpgroup = 0; warpgroup < warpgroups; ++warpgroup) {
    auto const slice = mma.get_slice(128 * warpgroup);
    auto const part = [&] {
      if constexpr (is_a) {
        return slice.partition_A(all);
      } else {
        return slice.partition_B(all);
      }
    }();
    auto const* const tile = reinterpret_cast<E const*>(memory);
    auto const theirs = SM90::GMMA::make_gmma_desc<major>(tensor<0>(part)).bitfield;
    auto const ours = Own::template descriptor<kRows>(tile, 64 * warpgroup).bitfield;
    std::printf("%d %d %d = %d %d %d\n", int(theirs.layout_type_), int(theirs.stride_byte_offset_),
                int(theirs.leading_byte_offset_), int(ours.layout_type_),
                int(ours.stride_byte_offset_), int(ours.leading_byte_offset_));
    auto const layout = replace<0>(recast<uint128_t const>(part).layout(), Layout<_1, _0>{});
    auto const* const first = reinterpret_cast<char const*>(raw_pointer_cast(part.data()));
    for (int stage = 0; stage < kStages; ++stage) {
      for (int block = 0; block < int(size<1>(layout)); ++block) {
        for (int i = 0; i < k / kStep; ++i) {
          int const row = is_a ? 64 * (block * warpgroups + warpgroup) : block * columns;
          std::printf("%d = %d\n", int((first - memory) / 16 + layout(0, block, i, stage)),
                      Own::offset(row, i * kStep, stage));
        }
      }
    }
  }
}
template <class E, int extent, int k, Major major, int warpgroups>
void check_rows() {
  check<E, extent, k, major, true, 64, warpgroups>();
}
template <class E, int extent, int k, Major major, int columns = extent>
void check_columns() {
  check<E, extent, k, major, false, columns, 1>();
}
int main() {
  using F8 = float_e4m3_t;
  check_rows<half_t, 256, 128, Major::K, 2>();
  check_rows<half_t, 256, 128, Major::MN, 2>();
  check_rows<F8, 64, 256, Major::K, 1>();
  check_columns<half_t, 112, 128, Major::K>();
  check_columns<half_t, 64, 64, Major::MN>();
  check_columns<half_t, 192, 128, Major::MN>();
  check_columns<F8, 96, 128, Major::K, 48>();
}
"""


@pytest.mark.slow
def test_descriptors_and_offsets_are_those_of_cute(
    repository: Path, compiled_with_cutlass: Callable[..., Path], tmp_path: Path
) -> None:
    generate = [sys.executable, repository / "cmake" / "kernelgen" / "generate.py"]
    generate += ["--source-dir", repository, "--output-dir", tmp_path]
    subprocess.run([*generate, "--kernels", "gemm_sm90a_*_pad_rows"], check=True)
    program = compiled_with_cutlass(PROGRAM, tmp_path)
    done = subprocess.run([program], check=True, capture_output=True, text=True)
    found = [line.split(" = ") for line in done.stdout.splitlines() if " = " in line]
    # Two stages of so many instructions, and a descriptor for each warpgroup.
    assert len(found) == 2 * (32 + 32 + 8 + 8 + 4 + 8 + 8) + 2 + 2 + 1 + 1 + 1 + 1 + 1
    assert [theirs for theirs, _ in found] == [ours for _, ours in found]
