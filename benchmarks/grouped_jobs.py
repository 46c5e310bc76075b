"""Which grouped products are measured, and how their rows are spread over the groups. Needs neither
torch nor a GPU."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

GROUPS = ("forward", "dgrad", "wgrad", "fp8", "fp8_fast", "gated")
SKEWS = ("uniform", "skewed")
DTYPE = "bf16, e4m3"
EMPTY = 8  # of so many groups, one is empty where they are skewed


class GroupedShape(NamedTuple):
    """D_g[M_g, N] = A_g[M_g, K] B_g[K, N], with M rows in all groups together."""

    groups: int
    m: int
    n: int
    k: int

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k

    def __str__(self) -> str:
        return f"{self.groups} groups, {self.m} x {self.n} x {self.k}"


class Job(NamedTuple):
    """group: what is computed, of GROUPS; skew: of SKEWS"""

    group: str
    skew: str
    shape: GroupedShape

    def fields(self) -> dict[str, Any]:
        return {
            "group": self.group,
            "skew": self.skew,
            **self.shape._asdict(),
            "largest": max(sizes(self.shape, self.skew)),
        }

    def __str__(self) -> str:
        return f"{self.group} {self.skew} {self.shape}"


def sizes(shape: GroupedShape, skew: str) -> list[int]:
    """Rows of each group: all alike, or by Zipf's law in random order with some groups empty."""
    if skew == "uniform":
        weights = [1.0] * shape.groups
    else:
        empty = max(1, shape.groups // EMPTY) if shape.groups > 1 else 0
        filled = shape.groups - empty
        weights = [1 / (rank + 1) for rank in range(filled)] + [0.0] * empty
        random.Random(shape.groups).shuffle(weights)
    total, before, last, found = sum(weights), 0.0, 0, []
    for weight in weights:
        before += weight
        end = round(shape.m * before / total)
        found.append(end - last)
        last = end
    return found


def ends(counts: Sequence[int]) -> list[int]:
    found, last = [], 0
    for count in counts:
        last += count
        found.append(last)
    return found


def shapes(table: Mapping[str, Any], *, quick: bool = False) -> list[GroupedShape]:
    cases = table["grouped"]["quick"]["cases"] if quick else table["grouped"]["cases"]
    found = [GroupedShape(*case) for case in cases]
    for shape in found:
        if min(shape) < 1:
            raise ValueError(f"grouped case {shape}: groups, M, N and K must be at least 1")
    return found


def jobs(
    wanted: Sequence[GroupedShape],
    groups: Sequence[str] = GROUPS,
    skews: Sequence[str] = SKEWS,
) -> list[Job]:
    """One group after another, in the order of GROUPS."""
    return [
        Job(group, skew, shape)
        for group in GROUPS
        if group in groups
        for shape in wanted
        for skew in SKEWS
        if skew in skews
    ]
