"""Which scaled products and quantisations are measured. Needs neither torch nor a GPU."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .shapes import GemmShape

RECIPES = ("rowwise", "tensorwise", "blockwise", "int8", "quantize")
ACCUMULATION = {"fast": "fp8_fast", "promoted": "fp8"}  # use_fast_accum: group
QUANTIZE = ("tensorwise", "rowwise", "blockwise_1x128", "blockwise_128x128", "rowwise_int8")
DTYPE = "e4m3, int8"


class Job(NamedTuple):
    """group: fp8_fast, fp8, blockwise, int8 or quantize; N is 0 where there is none"""

    group: str
    shape: GemmShape
    recipes: tuple[str, ...] = ()

    def fields(self) -> dict[str, Any]:
        of = {"group": self.group, "recipe": "+".join(self.recipes)}
        return of | dataclasses.asdict(self.shape)

    def __str__(self) -> str:
        extents = f"{self.shape.m} x {self.shape.k}" if not self.shape.n else str(self.shape)
        return f"{self.group} {'+'.join(self.recipes)} {extents}"


def jobs(
    table: Mapping[str, Any],
    shapes: Sequence[GemmShape],
    recipes: Sequence[str],
    accumulation: Sequence[str] = tuple(ACCUMULATION),
    limit: int | None = None,
) -> list[Job]:
    """One group after another; limit: the most shapes of each, spread over the list."""
    found: list[Job] = []
    chosen = spread_out(shapes, limit)
    of_epilogue = tuple(r for r in ("tensorwise", "rowwise") if r in recipes)
    if of_epilogue:
        for kind, group in ACCUMULATION.items():
            if kind in accumulation:
                found += [Job(group, shape, of_epilogue) for shape in chosen]
    for group in ("blockwise", "int8"):
        if group in recipes:
            found += [Job(group, shape, (group,)) for shape in chosen]
    if "quantize" in recipes:
        extents = table["scaled"]["quantize"]
        for name in QUANTIZE:
            both = extents["w" if name == "blockwise_128x128" else "x"]
            for m, k in spread_out(both, limit):
                found.append(Job("quantize", GemmShape(m, 0, k), (name,)))
    return found


def spread_out(items: Sequence[Any], limit: int | None) -> list[Any]:
    """In their order, drawn at random: every n-th of them might all have the same M."""
    if limit is None or limit >= len(items):
        return list(items)
    return [items[i] for i in sorted(random.Random(0).sample(range(len(items)), limit))]
