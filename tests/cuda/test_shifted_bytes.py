"""Unaligned reads: 16 bytes from any byte of 32, compiled for the host."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

PROGRAM = r"""
#include <cstdint>
#include <cstdio>
#include <cstring>
#define __device__
struct uint4 { std::uint32_t x, y, z, w; };
inline std::uint32_t __funnelshift_r(std::uint32_t low, std::uint32_t high, std::uint32_t bits) {
  std::uint64_t const both = std::uint64_t{high} << 32 | low;
  return static_cast<std::uint32_t>(both >> (bits & 31));
}
#include "core/shifted_bytes.cuh"
int main() {
  unsigned char bytes[32], found[16];
  for (int i = 0; i < 32; ++i) bytes[i] = static_cast<unsigned char>(7 * i + 11);
  uint4 low, high;
  std::memcpy(&low, bytes, 16);
  std::memcpy(&high, bytes + 16, 16);
  for (int shift = 0; shift < 16; ++shift) {
    uint4 const words = cutwheel::shifted_bytes(low, high, shift);
    std::memcpy(found, &words, 16);
    std::printf("%d", std::memcmp(found, bytes + shift, 16) == 0);
  }
}
"""
CUDA = Path(__file__).parents[2] / "cuda"


def test_every_shift_finds_its_sixteen_bytes(tmp_path: Path) -> None:
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    source, program = tmp_path / "shifts.cpp", tmp_path / "shifts"
    source.write_text(PROGRAM)
    command = [compiler, "-std=c++17", "-I", str(CUDA), "-o", str(program), str(source)]
    subprocess.run(command, check=True)
    done = subprocess.run([str(program)], capture_output=True, text=True, check=True)
    assert done.stdout == "1" * 16
