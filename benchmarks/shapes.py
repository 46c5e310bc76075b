"""The shapes of shapes.toml as values."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import tomllib

SHAPES_FILE = Path(__file__).with_name("shapes.toml")


@dataclass(frozen=True, order=True)
class GemmShape:
    """D[M, N] = A[M, K] B[K, N]."""

    m: int
    n: int
    k: int

    @property
    def flops(self) -> int:
        """A multiplication and an addition for each of M N K products."""
        return 2 * self.m * self.n * self.k

    def input_bytes(self, itemsize: int) -> int:
        return (self.m * self.k + self.k * self.n) * itemsize

    def min_bytes(self, itemsize: int) -> int:
        """The fewest bytes through device memory: each input read once, the output written once."""
        return self.input_bytes(itemsize) + self.m * self.n * itemsize

    def __str__(self) -> str:
        return f"{self.m} x {self.n} x {self.k}"


class ProductJob(NamedTuple):
    """group: what is computed of the shape"""

    group: str
    shape: GemmShape

    def fields(self) -> dict[str, Any]:
        return {"group": self.group} | dataclasses.asdict(self.shape)

    def __str__(self) -> str:
        return f"{self.group} {self.shape}"


def load(path: Path = SHAPES_FILE) -> dict[str, Any]:
    with path.open("rb") as file:
        return tomllib.load(file)


def gemm_shapes(
    table: Mapping[str, Any],
    *,
    quick: bool = False,
    m: Sequence[int] | None = None,
    nk: Sequence[tuple[int, int]] | None = None,
    square: Sequence[int] | None = None,
) -> list[GemmShape]:
    """Every M times every [N, K], then the squares, each once.

    A filter replaces what it names. Naming only squares leaves the others out, and naming only M or
    [N, K] leaves the squares out: a filter means "these and nothing else".
    """
    gemm = table["gemm"]
    if quick:
        gemm = gemm["quick"]
    filtered = m is not None or nk is not None
    if square is None:
        square = [] if filtered else gemm["square"]
        crossed = True
    else:
        crossed = filtered
    ms = gemm["m"] if m is None else m
    nks = gemm["nk"] if nk is None else nk
    shapes = [GemmShape(mi, n, k) for n, k in nks for mi in ms] if crossed else []
    shapes += [GemmShape(s, s, s) for s in square]
    for shape in shapes:
        if min(shape.m, shape.n, shape.k) < 1:
            raise ValueError(f"gemm shape {shape}: M, N and K must be at least 1")
    return list(dict.fromkeys(shapes))


def fused_shapes(
    table: Mapping[str, Any],
    *,
    quick: bool = False,
    m: Sequence[int] | None = None,
    nk: Sequence[tuple[int, int]] | None = None,
) -> list[GemmShape]:
    """Every M of [fused] times every [N, K]; a filter replaces what it names."""
    fused = table["fused"]["quick"] if quick else table["fused"]
    nks = nk or fused.get("nk") or table["gemm"]["nk"]
    return list(dict.fromkeys(GemmShape(mi, n, k) for n, k in nks for mi in m or fused["m"]))


def compiled_shapes(table: Mapping[str, Any], names: Sequence[str] | None) -> set[GemmShape] | None:
    """Where torch.compile is a baseline, too: "all" (None), "none", or "MxNxK"; else [fused]'s."""
    if names is None:
        return {GemmShape(*shape) for shape in table["fused"]["compile"]}
    if list(names) == ["all"]:
        return None
    if list(names) == ["none"]:
        return set()
    shapes = set()
    for name in names:
        parts = name.lower().split("x")
        if len(parts) != 3 or not all(part.isdecimal() for part in parts):
            raise ValueError(f"{name!r} is no shape: write it as 512x4096x14336 (M, N, K)")
        shapes.add(GemmShape(*map(int, parts)))
    return shapes


def parse_nk(text: str) -> tuple[int, int]:
    """``"4096x14336"`` -> ``(4096, 14336)``, that is N, K."""
    parts = text.lower().split("x")
    if len(parts) != 2 or not all(part.isdecimal() for part in parts):
        raise ValueError(f"{text!r} is not an N, K pair: write it as 4096x14336")
    return int(parts[0]), int(parts[1])
