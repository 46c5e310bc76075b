"""Problems drawn at random from what people run, so that no list of shapes can be tuned to.

Weights and layers are those of released models, which [drawn] of benchmarks/shapes.toml lists,
whole or as tensor parallelism cuts them. Rows are what servers and trainers have, not only powers
of two. A seed draws the same problems everywhere; what is claimed with one seed should hold with
the next. Needs neither torch nor a GPU.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

from .shapes import TABLES, Conv, Gemm, Grouped, Kind

Models = Mapping[str, Sequence[Sequence[int]]]
"""by name, what describes each of their layers"""
PARALLEL = (1, 1, 1, 2, 4, 8)  # GPUs that share a layer
LEAST_SHARD = 256
SKEWS = ("uniform", "random", "zipf")
MOST_ELEMENTS = 1 << 28  # of an image tensor
RESIZED = (1, 1, 1, 8 / 7, 12 / 7, 2)  # image sides over those that a network was made for
ASPECTS = (1, 1, 1, 4 / 3, 16 / 9)


def _any_of(models: Models, rng: random.Random) -> Sequence[int]:
    """All entries are as likely, whatever the model."""
    return rng.choice([entry for entries in models.values() for entry in entries])


def _rows(rng: random.Random, most: int) -> int:
    """Log-uniform from 1; one in five a power of two, one in five of the others a multiple of 16"""
    exact = math.exp(rng.uniform(0.0, math.log(most)))
    form = rng.random()
    if form < 0.2:
        return 1 << round(math.log2(exact))
    if form < 0.4 and exact > 16:
        return 16 * round(exact / 16)
    return max(1, round(exact))


def gemm(models: Models, rng: random.Random) -> Gemm:
    """A weight, cut along N or K as tensor parallelism does where shards stay aligned."""
    n, k = _any_of(models, rng)
    shards = rng.choice(PARALLEL)
    by_columns = shards > 1 and rng.random() < 0.5
    if by_columns and n % (8 * shards) == 0 and n >= shards * LEAST_SHARD:
        n //= shards
    elif k % (16 * shards) == 0 and k >= shards * LEAST_SHARD:
        k //= shards
    return Gemm(_rows(rng, 16384), n, k)


def grouped(models: Models, rng: random.Random) -> tuple[Grouped, str]:
    """Experts of one layer, with up to 32768 rows, and how rows are spread over them"""
    groups, n, k = _any_of(models, rng)
    return Grouped(groups, max(groups, _rows(rng, 32768)), n, k), rng.choice(SKEWS)


def conv(models: Models, rng: random.Random) -> Conv:
    """A layer of a network for images of other sizes and aspects; memory bounds the batch."""
    c, k, side, stride, padding, dilation, image = _any_of(models, rng)
    scale = rng.choice(RESIZED)
    h, w = (max(side, round(image * scale * aspect)) for aspect in (1, rng.choice(ASPECTS)))
    largest = max(c * h * w, k * h * w // stride**2)
    batch = min(_rows(rng, 256), max(1, MOST_ELEMENTS // largest))
    return Conv(batch, c, h, w, k, side, side, stride, padding, dilation)


def drawn(document: Mapping[str, Any], kind: Kind, count: int, seed: int) -> list[Any]:
    """The first `count` problems of a seed: more of them begin with the same ones.

    Returns: shapes of this kind; of grouped GEMMs pairs of a shape and how rows are spread
    """
    name = TABLES[kind]
    rng, models = random.Random(f"{seed} {name}"), document["drawn"][name]
    one = {"gemm": gemm, "grouped": grouped, "conv": conv}[name]
    return [one(models, rng) for _ in range(count)]
