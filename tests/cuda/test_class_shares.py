"""Tiles of residue classes: each is computed once, and no threadblock has much more to do than the
mean.
"""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

PROGRAM = r"""
#include <cstdio>
#include "sm90/native/scheduler/class_shares.cuh"
using cutwheel::conv2d::Sm90ClassShares;
int main() {
  int threadblocks, count, k_tiles[16], tiles[16];
  while (std::scanf("%d %d", &threadblocks, &count) == 2) {
    for (int i = 0; i < count; ++i) std::scanf("%d %d", &k_tiles[i], &tiles[i]);
    Sm90ClassShares shares;
    shares.plan(count, k_tiles, tiles, threadblocks);
    std::printf("%d ", shares.end);
    for (int index = 0; index < shares.end; ++index) {
      int of, number = index;
      shares.find(of, number);
      std::printf("%d %d ", of, number);
    }
    std::puts("");
  }
}
"""
CLASSES = 4
"""the most that are shared out"""
TILE_COST, ZEROS_COST = 3, 1
"""k-tiles that a tile counts for besides its own, and those for which a tile of zeros does"""

Class = tuple[int, int]
"""k-tiles of a tile, and tiles"""


@pytest.fixture(scope="module")
def program(compiled: Callable[[str], Path]) -> Path:
    return compiled(PROGRAM)


def shares(program: Path, asked: list[tuple[int, list[Class]]]) -> list[list[tuple[int, int]]]:
    """(class, number of the tile in it) by index, for each (threadblocks, classes)."""
    lines = (
        f"{threadblocks} {len(classes)} " + " ".join(f"{k} {tiles}" for k, tiles in classes)
        for threadblocks, classes in asked
    )
    text = "\n".join(lines) + "\n"
    run = subprocess.run([str(program)], input=text, capture_output=True, text=True, check=True)
    found = []
    for line in run.stdout.splitlines():
        end, *numbers = map(int, line.split())
        found.append(list(zip(numbers[0::2], numbers[1::2], strict=True)))
        assert len(found[-1]) == end
    return found


def loads(threadblocks: int, classes: list[Class], found: list[tuple[int, int]]) -> list[int]:
    """K-tiles of each threadblock, with what tiles cost besides."""
    sums = [0] * threadblocks
    for index, (of, _) in enumerate(found):
        if of >= 0:
            k_tiles = classes[of][0]
            sums[index % threadblocks] += k_tiles + TILE_COST if k_tiles else ZEROS_COST
    return sums


def drawn() -> list[tuple[int, list[Class]]]:
    rng = random.Random(7)
    asked = []
    for _ in range(400):
        k = rng.choice((1, 2, 3, 4, 9, 20))
        taps = rng.choice(
            (
                *((4, 2, 2, 1), (4, 4, 4, 4), (2, 1), (9, 6, 6, 4), (1, 1), (3, 1, 1)),
                *((1, 0, 0, 0), (2, 1, 0, 0), (1, 0)),  # zeros
            )
        )
        tiles = round(1.02 ** rng.uniform(0, 400))
        classes = [(k * each, max(tiles - rng.randint(0, 3), 1)) for each in taps]
        asked.append((min(rng.choice((1, 3, 16, 132)), sum(n for _, n in classes)), classes))
    return asked


def test_every_tile_is_there_once(program: Path) -> None:
    asked = drawn()
    found = shares(program, asked)
    left: list[list[Class]] = []
    for (_, classes), tiles in zip(asked, found, strict=True):
        if tiles:
            every = [(of, i) for of, (_, count) in enumerate(classes) for i in range(count)]
            assert sorted(x for x in tiles if x[0] >= 0) == every
        else:
            left.append(classes)
    # Many tiles of zeros beside one with taps may be more than a share has room for.
    assert all(classes[-1][0] == 0 for classes in left)
    assert len(left) <= len(asked) // 50


def test_nobody_has_much_more_to_do_than_others(program: Path) -> None:
    """By the rule the last tile of a threadblock went to the one that had least."""
    asked = drawn()
    for (threadblocks, classes), found in zip(asked, shares(program, asked), strict=True):
        sums = loads(threadblocks, classes, found)
        assert max(sums) - sum(sums) / len(sums) <= classes[0][0] + TILE_COST
    # 17 x 232 x 56 x 75, 3x3/2, in tiles of 128x256: dealt out in turn, some threadblocks had 52
    # k-tiles where the mean is 38.
    classes = [(16, 140), (8, 140), (8, 140), (4, 140)]
    (found,) = shares(program, [(132, classes)])
    sums = loads(132, classes, found)
    assert max(sums) <= 1.1 * sum(sums) / len(sums)


def test_many_tiles_come_in_rounds_of_all_classes(program: Path) -> None:
    classes = [(8, 1000), (4, 1000), (4, 999), (2, 999)]
    (found,) = shares(program, [(132, classes)])
    rounds = 999 // 132 - 1
    for index in range(rounds * 4 * 132):
        round_, within = divmod(index, 4 * 132)
        assert found[index] == (within // 132, round_ * 132 + within % 132)


@pytest.mark.parametrize(
    "classes",
    [[(4, 50)], [(1, 50)] + [(0, 50)] * CLASSES, [(4, 9)] * (CLASSES + 1)],
    ids=["one", "one with taps, and too many", "too many"],
)
def test_what_is_not_shared_out(program: Path, classes: list[Class]) -> None:
    assert shares(program, [(132, classes)]) == [[]]


def test_zeros_are_stored_among_other_tiles(program: Path) -> None:
    """Behind a stride of two: each round of threadblocks has some."""
    (found,) = shares(program, [(8, [(4, 30), (0, 30), (0, 30), (0, 30)])])
    assert [of for of, _ in found[: 2 * 4 * 8]] == [of for of in range(4) for _ in range(8)] * 2


def test_classes_without_taps_are_left_where_there_are_many(program: Path) -> None:
    (found,) = shares(program, [(8, [(4, 30), (2, 30), *[(0, 30)] * CLASSES])])
    assert {of for of, _ in found} <= {-1, 0, 1}
