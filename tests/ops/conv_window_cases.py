"""Convolutions that the kernels by windows serve."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from conv_layouts import Sizes
from conv_reference import Geometry

Problem = tuple[Sizes, Sizes, Geometry]

# Forward. Rectangles that cover part of a row, some rows, an image; taps at a distance; padding on
# one side, none, more than the taps reach; more filters than a block has.
WINDOWS: tuple[Problem, ...] = (
    ((3, 64, 19, 56), (64, 64, 3, 3), Geometry((1, 1), (1, 1, 1, 1))),
    ((2, 24, 33, 29), (72, 24, 3, 3), Geometry((1, 1), (2, 0, 0, 3), (2, 1))),
    ((1, 40, 5, 301), (8, 40, 1, 7), Geometry((1, 1), (0, 0, 3, 3))),
    ((5, 8, 14, 14), (136, 8, 2, 4), Geometry((1, 1), (3, 2, 5, 1), (1, 2))),
    ((2, 56, 23, 67), (48, 56, 1, 1), Geometry()),
)


# Gradients behind a stride. Strides of one side, phases without taps, one tap for each phase;
# channels of all phases that fill a tile and that are padded; rectangles beyond an image's ends.
PHASES: tuple[Problem, ...] = (
    ((3, 3, 46, 100), (64, 3, 7, 7), Geometry((2, 2), (3, 3, 3, 3))),
    ((2, 16, 34, 64), (40, 16, 3, 3), Geometry((2, 2), (1, 0, 1, 0))),
    ((1, 8, 60, 90), (24, 8, 2, 5), Geometry((2, 3), (0, 0, 2, 2))),
    ((2, 32, 15, 62), (56, 32, 1, 4), Geometry((1, 2), (0, 0, 1, 1))),
    ((2, 5, 60, 64), (64, 5, 5, 3), Geometry((4, 2), (1, 2, 1, 1), (1, 3))),
)


# By the channels of a row of a block: strides of both sides and of one, blocks that reach beyond
# the taps, channels that are padded, more filters than a block has.
BLOCKS: dict[int, tuple[Problem, ...]] = {
    16: (
        ((3, 3, 46, 100), (64, 3, 7, 7), Geometry((2, 2), (3, 3, 3, 3))),
        ((2, 16, 34, 57), (136, 16, 3, 3), Geometry((2, 1), (1, 1, 0, 2), (1, 2))),
        ((5, 13, 19, 23), (24, 13, 3, 5), Geometry((1, 1), (1, 1, 2, 2))),
        ((2, 8, 24, 64), (72, 8, 4, 4), Geometry((3, 2), (0, 0, 1, 1))),
    ),
    32: (
        ((3, 16, 38, 62), (64, 16, 3, 3), Geometry((2, 2), (1, 1, 1, 1))),
        ((2, 32, 21, 45), (72, 32, 3, 3), Geometry((1, 1), (1, 0, 2, 1), (2, 1))),
        ((3, 7, 32, 128), (8, 7, 4, 4), Geometry((4, 4))),
    ),
}


def _turned(problem: Problem) -> Problem:
    """Channels and filters exchanged: what is few of a gradient."""
    (images, c, *image), (k_out, _, *taps), g = problem
    return (images, k_out, *image), (c, k_out, *taps), g


def window_problems(row: Mapping[str, Any]) -> tuple[Problem, ...]:
    """For a row of the table; none if its family is another."""
    if row["family"] == "sm90_conv_window":
        return tuple(map(_turned, WINDOWS)) if row["direction"] == "dgrad" else WINDOWS
    if row["family"] == "sm90_conv_phases":
        return PHASES
    return BLOCKS[row["tile"][2]] if row["family"] == "sm90_conv_blocks" else ()
