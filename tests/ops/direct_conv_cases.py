"""Problems for each form of direct convolution."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from conv_layouts import Sizes
from conv_reference import Geometry

Problem = tuple[Sizes, Sizes, Geometry]

# Output tiles that cover part of a row, some rows, an image; dilated taps; padding on one side,
# none, more than the taps reach; more filters than a tile has.
PLAIN: tuple[Problem, ...] = (
    ((3, 64, 19, 56), (64, 64, 3, 3), Geometry((1, 1), (1, 1, 1, 1))),
    ((2, 24, 33, 29), (72, 24, 3, 3), Geometry((1, 1), (2, 0, 0, 3), (2, 1))),
    ((1, 40, 5, 301), (8, 40, 1, 7), Geometry((1, 1), (0, 0, 3, 3))),
    ((5, 8, 14, 14), (136, 8, 2, 4), Geometry((1, 1), (3, 2, 5, 1), (1, 2))),
    ((2, 56, 23, 67), (48, 56, 1, 1), Geometry()),
)


# Strides of one dimension, residue classes without taps, one tap for each class; channels of all
# classes that fill a tile and that are padded; output tiles that extend past the image.
STRIDED_DGRAD: tuple[Problem, ...] = (
    ((3, 3, 46, 100), (64, 3, 7, 7), Geometry((2, 2), (3, 3, 3, 3))),
    ((2, 16, 34, 64), (40, 16, 3, 3), Geometry((2, 2), (1, 0, 1, 0))),
    ((1, 8, 60, 90), (24, 8, 2, 5), Geometry((2, 3), (0, 0, 2, 2))),
    ((2, 32, 15, 62), (56, 32, 1, 4), Geometry((1, 2), (0, 0, 1, 1))),
    ((2, 5, 60, 64), (64, 5, 5, 3), Geometry((4, 2), (1, 2, 1, 1), (1, 3))),
)


# By the channels of a row of a block: strides of both dimensions and of one, blocks that extend
# past the taps, padded channels, more filters than a tile has.
SPACE_TO_DEPTH: dict[int, tuple[Problem, ...]] = {
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


# Images that the stride divides and others; each number of channels; padding that taps do not
# reach; dilated taps; more filters than a tile has.
FEW_CHANNELS: tuple[Problem, ...] = (
    ((3, 3, 46, 100), (64, 3, 7, 7), Geometry((2, 2), (3, 3, 3, 3))),
    ((1, 3, 51, 341), (32, 3, 3, 3), Geometry((2, 2), (1, 1, 1, 1))),
    ((2, 4, 33, 64), (136, 4, 5, 4), Geometry((2, 2), (0, 3, 2, 0))),
    ((5, 1, 19, 43), (24, 1, 3, 5), Geometry((2, 2), (1, 1, 2, 2), (1, 2))),
    ((2, 2, 24, 65), (8, 2, 2, 2), Geometry((2, 2))),
)


def _turned(problem: Problem) -> Problem:
    """Channels and filters exchanged: dgrad reads few filters."""
    (images, c, *image), (k_out, _, *taps), g = problem
    return (images, k_out, *image), (c, k_out, *taps), g


def direct_conv_problems(row: Mapping[str, Any]) -> tuple[Problem, ...]:
    """Problems for a kernel of the manifest; none for another family."""
    if row["family"] == "sm90_direct_conv":
        return tuple(map(_turned, PLAIN)) if row["direction"] == "dgrad" else PLAIN
    if row["family"] == "sm90_strided_dgrad":
        return STRIDED_DGRAD
    if row["family"] == "sm90_few_channels":
        return FEW_CHANNELS
    return SPACE_TO_DEPTH[row["tile"][2]] if row["family"] == "sm90_space_to_depth" else ()
