"""Depthwise convolutions: which of them to run."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from conv_layouts import Sizes
from conv_reference import Geometry


def problem(
    n: int,
    c: int,
    image: Sequence[int],
    taps: Sequence[int],
    stride: int | tuple[int, int] = 1,
    padding: int | Sequence[int] | None = None,
    dilation: int | tuple[int, int] = 1,
) -> tuple[Sizes, Sizes, Geometry]:
    """Padding is half of the filter if none is given."""
    pads = [t // 2 for t in taps] if padding is None else padding
    return (n, c, *image), (c, 1, *taps), Geometry.of(taps, stride, pads, dilation, c)


# A filter and a stride for each kernel, and images that are no multiple of a tile.
PROBLEMS = {
    **{
        f"{taps}x{taps}_stride{stride}": problem(2, 72, (19, 30), (taps, taps), stride)
        for taps in (3, 5, 7)
        for stride in (1, 2)
    },
    "few_channels": problem(3, 8, (9, 10), (3, 3)),
    "many_channels": problem(1, 1160, (7, 7), (5, 5)),
    "wide_row": problem(2, 24, (5, 61), (1, 9)),
    "one_tap_a_row": problem(2, 24, (21, 6), (11, 1), 2),
    "one_tap": problem(2, 24, (9, 11), (1, 1)),
    "even_filter": problem(2, 40, (13, 14), (4, 2), 1, (1, 2, 0, 1)),
    "even_filter_stride": problem(2, 40, (13, 14), (6, 4), 2, (3, 0, 2, 1)),
    "large": problem(1, 40, (34, 33), (31, 31)),
    "large_stride": problem(1, 24, (40, 37), (13, 9), 2),
    "sides": problem(2, 48, (15, 9), (3, 3), 1, (0, 2, 3, 1)),
    "sides_stride": problem(2, 48, (15, 9), (5, 5), 2, (3, 0, 1, 4)),
    "more_padding_than_taps": problem(2, 16, (6, 5), (3, 3), 1, (4, 5, 3, 6)),
    "dilated": problem(2, 24, (17, 18), (3, 3), 1, 4, 4),
    "dilated_stride": problem(2, 24, (17, 18), (3, 5), (2, 1), (2, 3), (1, 2)),
    "stride3": problem(2, 24, (17, 18), (5, 5), 3),
    "strides": problem(2, 24, (17, 18), (3, 3), (1, 2)),
    "odd_channels": problem(2, 37, (11, 12), (3, 3)),
    "channels_of_four": problem(2, 28, (11, 12), (5, 5), 2),
    "two_channels": problem(3, 2, (8, 8), (3, 3)),
    "one_pixel": problem(4, 16, (1, 1), (7, 7)),
}


def drawn(count: int, seed: int, even: bool = False) -> Iterator[tuple[Sizes, Sizes, Geometry]]:
    """Any of it; even: the same padding on opposite sides, as F.conv2d has it."""
    rng = random.Random(seed)
    while count:
        taps = rng.choice(((3, 3), (3, 3), (5, 5), (7, 7), (2, 3), (4, 6), (9, 1), (1, 12)))
        sides = tuple(rng.randint(0, max(taps)) for _ in range(4))
        if even:
            sides = (sides[0], sides[0], sides[2], sides[2])
        image = rng.randint(1, 40), rng.randint(1, 40)
        stride = rng.choice(((1, 1), (1, 1), (2, 2), (2, 2), (3, 1)))
        dilation = rng.choice(((1, 1), (1, 1), (1, 1), (2, 2)))
        c = rng.choice((2, 8, 16, 24, 33, 72, 88, 120, 200, 264))
        found = problem(rng.randint(1, 4), c, image, taps, stride, sides, dilation)
        if min(found[2].extents(image, taps)) < 1:
            continue
        count -= 1
        yield found
