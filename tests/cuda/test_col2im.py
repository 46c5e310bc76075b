"""Which taps and positions a pixel of a convolution's input has, compiled for the host."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from pathlib import Path

import pytest

# As the kernel goes through them: a line for each pixel, "tap:position" of each of its columns.
PROGRAM = r"""
#include <cstdio>
#include "core/col2im_axis.h"
int main() {
  int stride, pad, dilation, taps, positions, pixels;
  while (std::scanf("%d%d%d%d%d%d", &stride, &pad, &dilation, &taps, &positions, &pixels) == 6) {
    cutwheel::conv2d::Col2imAxis const axis(stride, pad, dilation, taps, positions);
    for (int pixel = 0; pixel < pixels; ++pixel) {
      int tap = axis.first[(pixel + pad) % stride];
      if (tap < 0) tap = taps;
      int position = (pixel + pad - tap * dilation) / stride;
      for (; tap < taps; tap += axis.step, position -= axis.positions_step) {
        if (position >= 0 && position < positions) std::printf("%d:%d ", tap, position);
      }
      std::printf("\n");
    }
  }
}
"""
CUDA = Path(__file__).parents[2] / "cuda"


def test_each_pixel_has_the_columns_that_read_it(tmp_path: Path) -> None:
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    source, program = tmp_path / "columns.cpp", tmp_path / "columns"
    source.write_text(PROGRAM)
    command = [compiler, "-std=c++17", "-I", str(CUDA), "-o", str(program), str(source)]
    subprocess.run(command, check=True)
    given, wanted = [], []
    for stride, pad, dilation, taps, pixels in itertools.product(
        (1, 2, 3, 4, 6, 16, 32), (0, 1, 5), (1, 2, 3, 4), (1, 2, 3, 7, 16), (1, 8, 67)
    ):
        reach = (taps - 1) * dilation
        positions = (pixels + 2 * pad - reach - 1) // stride + 1
        if positions < 1:
            continue
        given.append(f"{stride} {pad} {dilation} {taps} {positions} {pixels}")
        for pixel in range(pixels):
            places = (
                (tap, (pixel + pad - tap * dilation) // stride)
                for tap in range(taps)
                if (pixel + pad - tap * dilation) % stride == 0
            )
            wanted.append([f"{t}:{place}" for t, place in places if 0 <= place < positions])
    assert len(given) > 500
    done = subprocess.run(
        [str(program)], input="\n".join(given), capture_output=True, text=True, check=True
    )
    assert [line.split() for line in done.stdout.splitlines()] == wanted
