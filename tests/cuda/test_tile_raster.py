"""The raster order of tiles: each is visited once, whatever swizzle was requested, and in the same
order where divisions are prepared.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

PROGRAM = r"""
#include <cstdio>
#include "core/tile_raster.cuh"
using namespace cutwheel::gemm;
int main() {
  int m, n, batch, swizzle, along_m;
  while (std::scanf("%d %d %d %d %d", &m, &n, &batch, &swizzle, &along_m) == 5) {
    int const across = along_m ? n : m;
    TileRaster const order{m, n, batch, swizzle_width(swizzle, across), along_m != 0};
    PreparedTileRaster const prepared = PreparedTileRaster::of(order);
    for (int index = 0; index < order.count(); ++index) {
      int at_m, at_n, at_batch;
      order.at(index, at_m, at_n, at_batch);
      int own_m, own_n, own_batch;
      prepared.at(index, own_m, own_n, own_batch);
      if (own_m != at_m || own_n != at_n || own_batch != at_batch) return 1;
      std::printf("%d %d %d ", at_batch, at_m, at_n);
    }
    std::puts("");
  }
}
"""


@pytest.fixture(scope="module")
def program(compiled: Callable[[str], Path]) -> Path:
    return compiled(PROGRAM)


SWIZZLES = (-1, 0, 1, 2, 4, 7, 8, 64, 2**30, 2**31 - 1)
TILES = ((1, 1, 1), (3, 5, 2), (40, 7, 1), (1, 130, 1), (17, 16, 3))


def orders(program: Path, asked: list[tuple[int, ...]]) -> list[list[tuple[int, int, int]]]:
    """Tiles (batch, M, N) in order, for each (tiles along M, along N, batch, swizzle, along_m)."""
    text = "\n".join(" ".join(map(str, one)) for one in asked) + "\n"
    run = subprocess.run([str(program)], input=text, capture_output=True, text=True, check=True)
    found = [list(map(int, line.split())) for line in run.stdout.splitlines()]
    return [list(zip(one[0::3], one[1::3], one[2::3], strict=True)) for one in found]


def test_every_tile_is_visited_once(program: Path) -> None:
    asked = [
        (*tiles, swizzle, along) for tiles in TILES for swizzle in SWIZZLES for along in (0, 1)
    ]
    for (m, n, batch, *_), visited in zip(asked, orders(program, asked), strict=True):
        every = [(b, y, x) for b in range(batch) for y in range(m) for x in range(n)]
        assert sorted(visited) == every
        assert [b for b, _, _ in visited] == sorted(b for b, _, _ in visited)


def test_a_band_is_as_wide_as_was_asked(program: Path) -> None:
    (visited,) = orders(program, [(4, 6, 1, 2, 1)])
    assert [(m, n) for _, m, n in visited[:5]] == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]
