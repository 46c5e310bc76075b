"""Shapes as values, and the lists of shapes.toml. Needs neither torch nor a GPU."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tomllib

SHAPES_FILE = Path(__file__).with_name("shapes.toml")
Table = Mapping[str, Any]

EMPTY = 8  # of so many groups, one is empty where they are skewed


class Gemm(NamedTuple):
    """D[M, N] = A[M, K] B[K, N]; N is 0 where nothing is multiplied."""

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

    def fields(self, recipe: str) -> dict[str, Any]:
        return ({"recipe": recipe} if recipe else {}) | self._asdict()

    def __str__(self) -> str:
        return " x ".join(str(extent) for extent in self if extent)


class Grouped(NamedTuple):
    """D_g[M_g, N] = A_g[M_g, K] B_g[K, N], with M rows in all groups together."""

    groups: int
    m: int
    n: int
    k: int

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k

    def ends(self, skew: str) -> list[int]:
        """Behind the last row of each group: rows are spread evenly, or by Zipf's law in random
        order with some groups empty."""
        if skew == "uniform":
            weights = [1.0] * self.groups
        else:
            empty = max(1, self.groups // EMPTY) if self.groups > 1 else 0
            filled = self.groups - empty
            weights = [1 / (rank + 1) for rank in range(filled)] + [0.0] * empty
            random.Random(self.groups).shuffle(weights)
        total, before, found = sum(weights), 0.0, []
        for weight in weights:
            before += weight
            found.append(round(self.m * before / total))
        return found

    def sizes(self, skew: str) -> list[int]:
        """Rows of each group"""
        ends = self.ends(skew)
        return [last - first for first, last in zip((0, *ends), ends, strict=False)]

    def fields(self, skew: str) -> dict[str, Any]:
        return {"skew": skew, **self._asdict(), "largest": max(self.sizes(skew))}

    def __str__(self) -> str:
        return f"{self.groups} groups, {self.m} x {self.n} x {self.k}"


class Conv(NamedTuple):
    """x [N, C, H, W] with filters [K, C, R, S]; stride, padding and dilation of both dimensions."""

    n: int
    c: int
    h: int
    w: int
    k: int
    r: int
    s: int
    stride: int
    padding: int
    dilation: int

    @property
    def p(self) -> int:
        return (self.h + 2 * self.padding - self.dilation * (self.r - 1) - 1) // self.stride + 1

    @property
    def q(self) -> int:
        return (self.w + 2 * self.padding - self.dilation * (self.s - 1) - 1) // self.stride + 1

    @property
    def input(self) -> tuple[int, int, int, int]:
        return self.n, self.c, self.h, self.w

    @property
    def filter(self) -> tuple[int, int, int, int]:
        return self.k, self.c, self.r, self.s

    @property
    def output(self) -> tuple[int, int, int, int]:
        return self.n, self.k, self.p, self.q

    @property
    def flops(self) -> int:
        """The same for fprop, dgrad and wgrad."""
        return 2 * self.n * self.p * self.q * self.k * self.c * self.r * self.s

    @property
    def elements(self) -> int:
        """Elements of input, filter and output together."""
        n, c, h, w = self.input
        return n * c * h * w + self.k * c * self.r * self.s + n * self.k * self.p * self.q

    def fields(self, _: str) -> dict[str, Any]:
        """m: rows of the product that a convolution is"""
        return {"shape": list(self), "m": self.n * self.p * self.q}

    def __str__(self) -> str:
        image = f"{self.n} x {self.c} x {self.h} x {self.w}"
        text = f"{image}, {self.k} of {self.r} x {self.s}, stride {self.stride}"
        return text + (f", dilation {self.dilation}" if self.dilation != 1 else "")


# ---- the lists
def load(path: Path = SHAPES_FILE) -> dict[str, Any]:
    with path.open("rb") as file:
        return tomllib.load(file)


def _listed(table: Table, name: str, quick: bool) -> Mapping[str, Any]:
    listed: Mapping[str, Any] = table[name]["quick"] if quick else table[name]
    return listed


def gemm_shapes(
    table: Table,
    *,
    quick: bool = False,
    m: Sequence[int] | None = None,
    nk: Sequence[tuple[int, int]] | None = None,
    square: Sequence[int] | None = None,
) -> list[Gemm]:
    """Every M times every [N, K], then the squares, each once.

    A filter replaces what it names. Naming only squares leaves the others out, and naming only M or
    [N, K] leaves the squares out: a filter means "these and nothing else".
    """
    gemm = _listed(table, "gemm", quick)
    filtered = m is not None or nk is not None
    crossed = filtered or square is None
    if square is None:
        square = [] if filtered else gemm["square"]
    ms = gemm["m"] if m is None else m
    nks = gemm["nk"] if nk is None else nk
    shapes = [Gemm(mi, n, k) for n, k in nks for mi in ms] if crossed else []
    shapes += [Gemm(s, s, s) for s in square]
    for shape in shapes:
        if min(shape) < 1:
            raise ValueError(f"gemm shape {tuple(shape)}: M, N and K must be at least 1")
    return list(dict.fromkeys(shapes))


def layer_shapes(
    table: Table,
    *,
    quick: bool = False,
    m: Sequence[int] | None = None,
    nk: Sequence[tuple[int, int]] | None = None,
) -> list[Gemm]:
    """Every M of [fused] times every [N, K]; a filter replaces what it names."""
    fused = _listed(table, "fused", quick)
    nks = nk or fused.get("nk") or table["gemm"]["nk"]
    return list(dict.fromkeys(Gemm(mi, n, k) for n, k in nks for mi in m or fused["m"]))


def grouped_shapes(
    table: Table, *, quick: bool = False, cases: Sequence[int] | None = None
) -> list[Grouped]:
    """cases: numbers of those wanted"""
    found = [Grouped(*case) for case in _listed(table, "grouped", quick)["cases"]]
    for shape in found:
        if min(shape) < 1:
            raise ValueError(f"grouped case {shape}: groups, M, N and K must be at least 1")
    return found if cases is None else [found[number] for number in cases]


def conv_shapes(
    table: Table, *, quick: bool = False, cases: Sequence[int] | None = None
) -> list[Conv]:
    """cases: numbers of those wanted"""
    found = [Conv(*case) for case in _listed(table, "conv", quick)["cases"]]
    for shape in found:
        if min(shape._replace(padding=1)) < 1 or min(shape.p, shape.q) < 1 or shape.padding < 0:
            raise ValueError(f"conv case {list(shape)}: expected sizes of at least 1, and a result")
    return found if cases is None else [found[number] for number in cases]


def compiled_shapes(table: Table, names: Sequence[str] | None) -> set[Gemm] | None:
    """Where torch.compile is a baseline, too: "all" (None), "none", or "MxNxK"; else [fused]'s."""
    if names is None:
        return {Gemm(*shape) for shape in table["fused"]["compile"]}
    if list(names) in (["all"], ["none"]):
        return None if names[0] == "all" else set()
    return {Gemm(*extents(name, 3, "512x4096x14336 (M, N, K)")) for name in names}


def extents(text: str, count: int, example: str) -> tuple[int, ...]:
    """``"4096x14336"`` -> ``(4096, 14336)``"""
    parts = text.lower().split("x")
    if len(parts) != count or not all(part.isdecimal() for part in parts):
        raise ValueError(f"{text!r} is no shape of {count} numbers: write it as {example}")
    return tuple(map(int, parts))
