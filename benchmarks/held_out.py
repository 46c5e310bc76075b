"""Shapes kept aside: drawn at random, in none of the lists that kernels were tuned with.

Ranges are those of models in use. A seed gives the same shapes everywhere; it is in the record,
and another one draws others. Needs neither torch nor a GPU.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from .shapes import Conv, Gemm, Grouped

SEED = 20260
COUNT = 24  # products; other sections take a part of it

# Widths of published models: hidden sizes and heads times their width, then feed-forward layers.
HIDDEN = (
    512,
    768,
    896,
    1024,
    1152,
    1280,
    1536,
    1600,
    1792,
    2048,
    2304,
    2560,
    2880,
    3072,
    3200,
    3584,
)
HIDDEN += (3840, 4096, 4544, 4608, 5120, 5376, 6144, 6656, 7168, 8192, 9216, 12288)
INNER = (
    2816,
    3072,
    4304,
    4864,
    5504,
    5632,
    6912,
    8192,
    8960,
    9728,
    10240,
    11008,
    12800,
    13824,
    14336,
)
INNER += (16384, 17920, 18944, 20480, 21504, 22016, 24576, 25600, 27648, 28672, 29568)
SHARDS = (1, 1, 1, 2, 4, 8)  # tensor parallel
ODD = 0.15  # part of the extents that are a multiple of 8 but not of 64
EXPERTS = (4, 8, 16, 32, 60, 64, 128)
EXPERT_WIDTHS = (512, 704, 768, 1024, 1408, 1536, 1792, 2048, 2560, 2816, 3584, 6400)
CHANNELS = (16, 24, 32, 48, 64, 80, 96, 112, 128, 160, 192, 256, 320, 384, 480, 512, 640, 768, 960)
IMAGES = (7, 8, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112)
MOST_PIXELS = 1 << 26  # elements of an image tensor

Shape = TypeVar("Shape")


def _log_uniform(draw: random.Random, low: int, high: int) -> int:
    return round(math.exp(draw.uniform(math.log(low), math.log(high))))


def _extent(draw: random.Random, widths: tuple[int, ...]) -> int:
    """A width or a shard of it, a multiple of 64 but for some."""
    size = draw.choice(widths) // draw.choice(SHARDS)
    if draw.random() < ODD:
        return max(8, size // 8 * 8 + 8 * draw.choice((-3, -1, 1, 3)))
    return max(64, round(size / 64) * 64)


def _distinct(
    seed: int, name: str, count: int, one: Callable[[random.Random], Shape | None]
) -> list[Shape]:
    draw = random.Random(f"{seed} {name}")
    found: dict[Shape, None] = {}
    while len(found) < count:
        shape = one(draw)
        if shape is not None:
            found[shape] = None
    return list(found)


def products(
    table: Mapping[str, Any], count: int = COUNT, seed: int = SEED, least_m: int = 1
) -> list[Gemm]:
    """M from `least_m` to 16384, N and K of models; never a weight of the lists.

    Two products that differ in least_m alone are not the same ones: M is drawn anew.
    """
    known = {tuple(pair) for pair in table["gemm"]["nk"]}

    def one(draw: random.Random) -> Gemm | None:
        m = _log_uniform(draw, least_m, 16384)
        pair = _extent(draw, HIDDEN), _extent(draw, HIDDEN if draw.random() < 0.4 else INNER)
        n, k = pair if draw.random() < 0.5 else pair[::-1]
        return None if (n, k) in known else Gemm(m, n, k)

    return _distinct(seed, f"products {least_m}", count, one)


def groups(table: Mapping[str, Any], count: int, seed: int = SEED) -> list[Grouped]:
    """Experts of 512 to 6400 columns, and up to 16384 rows together."""
    known = {tuple(case[2:]) for case in table["grouped"]["cases"]}

    def one(draw: random.Random) -> Grouped | None:
        rows = _log_uniform(draw, 128, 16384)
        experts = draw.choice(EXPERTS)
        hidden = draw.choice([width for width in HIDDEN if 1024 <= width <= 6144])
        pair = draw.choice(EXPERT_WIDTHS), round(hidden / 64) * 64
        n, k = pair if draw.random() < 0.5 else pair[::-1]
        return None if (n, k) in known else Grouped(experts, rows, n, k)

    return _distinct(seed, "groups", count, one)


def convolutions(table: Mapping[str, Any], count: int, seed: int = SEED) -> list[Conv]:
    """Filters of 1 x 1, 3 x 3 and 5 x 5, stride 1 or 2, images of 7 to 112 pixels."""
    known = {tuple(case) for case in table["conv"]["cases"]}

    def one(draw: random.Random) -> Conv | None:
        images = _log_uniform(draw, 1, 128)
        c, k, size = draw.choice(CHANNELS), draw.choice(CHANNELS), draw.choice(IMAGES)
        r = draw.choice((1, 1, 3, 3, 3, 5))
        stride = draw.choice((1, 1, 1, 2))
        shape = Conv(images, c, size, size, k, r, r, stride, r // 2, 1)
        is_large = images * max(c, k) * size * size > MOST_PIXELS
        return None if is_large or tuple(shape) in known else shape

    return _distinct(seed, "convolutions", count, one)
