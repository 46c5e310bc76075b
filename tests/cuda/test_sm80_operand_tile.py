"""Operands of mma.sync in shared memory: what threads copy there is what lanes read as fragments.

A program of the host walks through tiles of all kinds: each vector is copied once, each lane's
words are the elements that mma.sync wants there, and what a warp reads at once lies in all banks.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import cuda_toolchain

cutlass_library = pytest.importorskip("cutlass_library", reason="brings CUTLASS's headers")

PROGRAM = r"""
#include <cstdio>
#include <map>
#include <set>
#include <utility>
// For the host's compiler; nothing here runs on a GPU.
#undef __NVCC__
float __uint_as_float(unsigned);
unsigned __float_as_uint(float);
float __fmaf_rn(float, float, float);
#include "sm80/operand_tile.cuh"
using namespace cutwheel;
using namespace cutwheel::gemm;

int failures = 0;
void expect(bool holds, char const* what, char const* name) {
  if (!holds) std::printf("%s: %s\n", name, what), ++failures;
}
// What lies at each byte of a tile: row of A or column of B, and byte along K (or element of K, and
// byte across).
using Bytes = std::map<int, std::pair<int, int>>;

template <class Tile, int threads, int vector_bytes>
Bytes copied(char const* name) {
  using Map = Sm80CopyMap<Tile, threads, vector_bytes>;
  Bytes bytes;
  for (int thread = 0; thread < threads; ++thread) {
    for (int i = 0; i < Map::kCopies; ++i) {
      int const row = Map::row(thread) + i / Map::kContiguous * Map::kRowsApart;
      int const element = Map::element(thread) + i % Map::kContiguous * Map::kElementsApart;
      int const at = Map::offset_of_copy(Map::offset(thread), i);
      for (int b = 0; b < vector_bytes; ++b) {
        bool const is_new = bytes.insert({at + b, {row, element * Tile::kElementBytes + b}}).second;
        expect(is_new, "a byte is written twice", name);
      }
    }
  }
  expect(int(bytes.size()) == Tile::kBytes, "bytes are missing", name);
  expect(bytes.begin()->first == 0 && bytes.rbegin()->first == Tile::kBytes - 1, "outside", name);
  return bytes;
}

// Lanes of one phase read `bytes` each: 128 in all, of 32 banks.
void expect_banks(std::set<int> const& banks, char const* name) {
  expect(int(banks.size()) == 32, "lanes read the same banks", name);
}

template <class Tile, bool is_a, int extent>
void fragments(Bytes const& bytes, int tile_extent, char const* name) {
  using Fragment = Sm80Fragment<Tile, is_a, extent>;
  constexpr int kStep = 32, kSize = Tile::kElementBytes;
  // Row of A or column of B, and byte along K, of element `e` of a word.
  auto const is_right = [&](int at, int e, int row, int k_byte) {
    auto const [first, second] = bytes.at(at + e);
    if (Tile::kIsKContiguous) return first == row && second == k_byte + e;
    return first == k_byte / kSize && second == row * kSize + e;
  };
  for (int first = 0; first < tile_extent; first += extent) {
    for (int step = 0; step < Tile::kK * kSize / kStep; ++step) {
      for (int mma = 0; mma < Fragment::kMmas; ++mma) {
        for (int word = 0; word < Fragment::kWords; ++word) {
          std::set<int> banks;
          for (int lane = 0; lane < 32; ++lane) {
            int const row = first + mma * (is_a ? 16 : 8) + (is_a ? word % 2 * 8 : 0) + lane / 4;
            int const k_byte = step * kStep + (is_a ? word / 2 : word) * 16 + lane % 4 * 4;
            if constexpr (Tile::kIsReadByWords) {
              int const at = Fragment::word_at(Fragment::lane_offset(first, lane), step, mma, word);
              expect(is_right(at, 0, row, k_byte) && is_right(at, 3, row, k_byte), "word", name);
              banks.insert(at / 4 % 32);
            } else {
              // ldmatrix: the lanes of a matrix give its rows, and get a word of one of them each.
              int const matrix = is_a ? word : mma % 2 * 2 + word, pair = is_a ? mma : mma / 2;
              auto const row_at = [&](int i) {
                return Fragment::matrices_at(Fragment::lane_offset(first, matrix * 8 + i), step,
                                             pair);
              };
              for (int b = 0; b < 16; b += 4) banks.insert((row_at(lane % 8) + b) / 4 % 32);
              if constexpr (Tile::kIsKContiguous) {
                int const at = row_at(lane / 4) + lane % 4 * 4;
                expect(is_right(at, 0, row, k_byte) && is_right(at, 3, row, k_byte), "word", name);
              } else {
                for (int half = 0; half < 2; ++half) {  // an element of two rows
                  int const at = row_at(lane % 4 * 2 + half) + lane / 4 * 2;
                  expect(is_right(at, 0, row, k_byte + 2 * half), "element", name);
                }
              }
            }
          }
          expect_banks(banks, name);
        }
      }
    }
  }
}

template <DType type, bool k_contiguous, int extent, int k, int threads, int warp, int bytes = 16>
void check(char const* name) {
  using Tile = Sm80OperandTile<type, k_contiguous, extent, k>;
  Bytes const written = copied<Tile, threads, bytes>(name);
  fragments<Tile, true, warp>(written, extent, name);
  fragments<Tile, false, warp>(written, extent, name);
}

int main() {
  check<DType::bf16, true, 128, 32, 128, 64>("16 bits along K");
  check<DType::bf16, true, 64, 64, 128, 32>("16 bits along K, 128 bytes");
  check<DType::bf16, true, 16, 64, 64, 16>("16 bits along K, few rows");
  check<DType::bf16, true, 64, 128, 64, 32>("16 bits along K, fewer rows at once than a period");
  check<DType::bf16, false, 128, 32, 128, 64>("16 bits across K");
  check<DType::bf16, false, 64, 64, 128, 32>("16 bits across K, 64 of them");
  check<DType::bf16, false, 32, 64, 64, 16>("16 bits across K, 32 of them");
  check<DType::f16, false, 256, 32, 256, 64>("16 bits across K, 256 of them");
  check<DType::tf32, true, 128, 16, 128, 64>("32 bits along K");
  check<DType::tf32, true, 128, 16, 128, 64, 4>("32 bits along K, one at a time");
  check<DType::tf32, false, 128, 16, 128, 64>("32 bits across K");
  check<DType::tf32, false, 256, 16, 256, 64>("32 bits across K, 256 of them");
  check<DType::tf32, false, 64, 32, 128, 32>("32 bits across K, 64 of them");
  check<DType::s8, true, 128, 64, 128, 64>("8 bits");
  check<DType::e4m3, true, 64, 128, 256, 32>("8 bits, 128 bytes");
  std::printf("%d failures\n", failures);
  return failures != 0;
}
"""


def test_fragments_are_what_was_copied(repository: Path, tmp_path: Path) -> None:
    try:
        nvcc = cuda_toolchain.find_nvcc().path
    except cuda_toolchain.ToolchainError as error:
        pytest.skip(f"needs the headers of CUDA: {error}")
    source, program = tmp_path / "main.cpp", tmp_path / "main"
    source.write_text(PROGRAM)
    cutlass = Path(cutlass_library.__path__[0], "source", "include")
    options = ["-std=c++17", f"-I{repository / 'cuda'}", f"-I{cutlass}"]
    subprocess.run([nvcc, *options, source, "-o", program], check=True)
    done = subprocess.run([program], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[:2000]
    assert done.stdout == "0 failures\n"
