"""Shapes of GEMMs, grouped GEMMs and convolutions, and the lists of them in a TOML file.

Needs neither torch nor a GPU.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

EMPTY = 8  # one group in so many is empty where groups are "skewed"


class Gemm(NamedTuple):
    """D[M, N] = A[M, K] B[K, N]; N is 0 where nothing is multiplied."""

    m: int
    n: int
    k: int

    @property
    def flops(self) -> int:
        """A multiplication and an addition for each of M N K terms."""
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


class Batched(NamedTuple):
    """As many GEMMs, D[B, M, N] = A[B, M, K] B[B, K, N]."""

    batch: int
    m: int
    n: int
    k: int

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.m * self.n * self.k

    def input_bytes(self, itemsize: int) -> int:
        return self.batch * Gemm(*self[1:]).input_bytes(itemsize)

    def min_bytes(self, itemsize: int) -> int:
        return self.batch * Gemm(*self[1:]).min_bytes(itemsize)

    def fields(self, _: str) -> dict[str, Any]:
        return self._asdict()

    def __str__(self) -> str:
        return " x ".join(map(str, self))


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
        """The offset behind the last row of each group.

        Args:
            skew: "uniform"; "skewed": Zipf's law in random order, some groups empty; "zipf": the
                same without; "random": each group has a random share
        """
        if skew == "uniform":
            weights = [1.0] * self.groups
        elif skew == "random":
            draw = random.Random(f"{skew} {self}")
            weights = [draw.random() for _ in range(self.groups)]
        else:
            is_skewed = skew == "skewed" and self.groups > 1
            empty = max(1, self.groups // EMPTY) if is_skewed else 0
            weights = [1 / (rank + 1) for rank in range(self.groups - empty)] + [0.0] * empty
            random.Random(self.groups if skew == "skewed" else f"{skew} {self}").shuffle(weights)
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
    """x [N, C, H, W] with filters [K, C / groups, R, S]; stride, padding and dilation of both
    dimensions."""

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
    groups: int = 1

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
        return self.k, self.c // self.groups, self.r, self.s

    @property
    def output(self) -> tuple[int, int, int, int]:
        return self.n, self.k, self.p, self.q

    @property
    def flops(self) -> int:
        """The same for fprop, dgrad and wgrad."""
        return 2 * self.n * self.p * self.q * math.prod(self.filter)

    @property
    def elements(self) -> int:
        """Elements of input, filter and output together."""
        return sum(math.prod(size) for size in (self.input, self.filter, self.output))

    def fields(self, _: str) -> dict[str, Any]:
        """m: rows of the implicit GEMM"""
        return {
            "shape": list(self if self.groups > 1 else self[:-1]),
            "m": self.n * self.p * self.q,
        }

    def __str__(self) -> str:
        image = f"{self.n} x {self.c} x {self.h} x {self.w}"
        text = f"{image}, {self.k} of {self.r} x {self.s}, stride {self.stride}"
        text += f", dilation {self.dilation}" if self.dilation != 1 else ""
        return text + (f", {self.groups} groups" if self.groups > 1 else "")


Shape = Gemm | Batched | Grouped | Conv
Kind = type[Gemm] | type[Batched] | type[Grouped] | type[Conv]
TABLES: dict[Kind, str] = {Gemm: "gemm", Batched: "bmm", Grouped: "grouped", Conv: "conv"}
FORMS: dict[Kind, str] = {
    Gemm: "MxNxK",
    Batched: "BxMxNxK",
    Grouped: "GxTxNxK",
    Conv: "NxCxHxWxKxRxSxSTRIDExPADDINGxDILATION[xGROUPS]",
}


def checked(kind: Kind, values: Sequence[int], where: str) -> Shape:
    """Raises ValueError for extents that no problem has; `where` names their place in it."""
    shape: Shape = kind(*values)
    if any(value < (name != "padding") for name, value in shape._asdict().items()):
        raise ValueError(f"{where}: extents are at least 1")
    if isinstance(shape, Conv) and min(shape.p, shape.q) < 1:
        raise ValueError(f"{where}: the filter is larger than the padded image")
    if isinstance(shape, Conv) and (shape.c % shape.groups or shape.k % shape.groups):
        raise ValueError(f"{where}: {shape.groups} groups do not divide the channels and filters")
    return shape


def _has_length(kind: Kind, length: int) -> bool:
    """Whether a shape of this kind is written as so many numbers."""
    return len(kind._fields) - len(kind._field_defaults) <= length <= len(kind._fields)


def fits(text: str, kind: Kind) -> bool:
    """Whether it has as many numbers as a shape of this kind."""
    return _has_length(kind, len(text.split("x")))


def parse(text: str, kind: Kind, where: str) -> Shape:
    """``"128x4096x4096"`` -> Gemm(128, 4096, 4096). Raises ValueError."""
    parts = text.lower().split("x")
    if not _has_length(kind, len(parts)) or not all(part.isdecimal() for part in parts):
        raise ValueError(f"{where} {text}: expected {FORMS[kind]}")
    return checked(kind, tuple(map(int, parts)), text)


def read_toml(path: Path) -> dict[str, Any]:
    """Raises ValueError for what is no TOML, OSError for what cannot be read."""
    if sys.version_info >= (3, 11):
        import tomllib

        with path.open("rb") as stream:
            try:
                return tomllib.load(stream)
            except RecursionError:
                expected = "expected tables of shapes"
                raise ValueError(f"{path} is nested too deeply; {expected}") from None
    raise ValueError("--shapes needs Python 3.11; give shapes with --shape")


def listed(document: Mapping[str, Any], kind: Kind, *, quick: bool = False) -> list[Any]:
    """The shapes of this kind in a file such as benchmarks/shapes.toml, each once.

    [gemm] has m and nk, each M with each [N, K], and square; the others have cases. A table "quick"
    in one of them has fewer. A file without the table has no shapes.

    Raises:
        ValueError: a table that is none
    """
    name = TABLES[kind]
    table = document.get(name, {})
    if quick:
        table = table.get("quick", table)
    try:
        if kind is Gemm:
            found = [(m, *nk) for nk in table.get("nk", ()) for m in table.get("m", ())]
            found += [(side,) * 3 for side in table.get("square", ())]
        else:
            found = [tuple(case) for case in table.get("cases", ())]
        for shape in found:
            if not _has_length(kind, len(shape)) or not all(isinstance(v, int) for v in shape):
                raise ValueError(f"[{name}] has the shape {list(shape)}: expected {FORMS[kind]}")
    except TypeError:
        raise ValueError(f"[{name}] has no lists of whole numbers") from None
    return [checked(kind, s, f"[{name}] {list(s)}") for s in dict.fromkeys(found)]
