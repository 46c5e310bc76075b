"""What is tuned: ops, dtypes, shapes. Needs neither torch nor a GPU."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GEMM, GROUPED, CONV = "gemm", "grouped", "conv"


@dataclass(frozen=True)
class Op:
    """What may be asked of an op; the first of each is the default."""

    shape: str
    """names of a shape's numbers"""
    table: str
    """of a TOML file, which has such shapes"""
    dtypes: tuple[str, ...]
    variants: tuple[str, ...]
    """empty: any name of an epilogue"""


_DENSE = ("bf16", "f16", "tf32")
_RECIPES = ("rowwise", "tensorwise", "blockwise", "blockwise_1x128")
OPS = {
    "mm": Op("MxNxK", GEMM, _DENSE, ("plain",)),
    "addmm": Op("MxNxK", GEMM, _DENSE, ("row", "matrix")),
    "linear": Op(
        "MxNxK",
        GEMM,
        _DENSE,
        ("bias", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "hardswish", "softplus"),
    ),
    "gated_linear": Op("MxNxK", GEMM, _DENSE, ("silu", "gelu", "gelu_tanh", "relu")),
    "gemm": Op("MxNxK", GEMM, _DENSE, ()),
    "scaled_mm": Op(
        "MxNxK",
        GEMM,
        ("fp8", "int8"),
        (*_RECIPES[:2], *(f"{recipe}+fast" for recipe in _RECIPES[:2]), *_RECIPES[2:]),
    ),
    "grouped_mm": Op("GxTxNxK", GROUPED, ("bf16", "f16"), ("rows", "columns", "k")),
    "scaled_grouped_mm": Op("GxTxNxK", GROUPED, ("fp8",), ("rowwise", "rowwise+fast", "blockwise")),
    "conv2d": Op(
        "NxCxHxWxKxRxSxSTRIDExPADDINGxDILATION", CONV, _DENSE, ("fprop", "dgrad", "wgrad")
    ),
}


@dataclass(frozen=True)
class Family:
    """Jobs that differ in their shapes only."""

    op: str
    dtype: str
    variant: str

    def __str__(self) -> str:
        return f"{self.op}:{self.dtype}:{self.variant}"


@dataclass(frozen=True)
class Job:
    family: Family
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.family} {'x'.join(map(str, self.shape))}"


def families(texts: Sequence[str], dtypes: Sequence[str], epilogues: Sequence[str]) -> list[Family]:
    """Families by "op", "op:dtype" or "op:dtype:variant"; the rest is as given, or the default.

    Raises:
        ValueError: an op, dtype or variant that is not known
    """
    found: list[Family] = []
    for text in texts:
        name, *rest = text.split(":")
        if name not in OPS:
            raise ValueError(f"--op {text}: expected one of {', '.join(OPS)}, with :dtype:variant")
        op = OPS[name]
        kinds = [rest[0]] if rest and rest[0] else list(dtypes) or [op.dtypes[0]]
        variants = [":".join(rest[1:])] if rest[1:] else list(epilogues) or [*op.variants[:1]]
        if not variants:
            raise ValueError(f"--op {text}: which epilogue? Write {name}:bf16:NAME, or --epilogue")
        for dtype in kinds:
            if dtype not in op.dtypes:
                raise ValueError(f"--op {text}: dtype {dtype}: expected {', '.join(op.dtypes)}")
            for variant in variants:
                if op.variants and variant not in op.variants:
                    expected = ", ".join(op.variants)
                    raise ValueError(f"--op {text}: variant {variant}: expected {expected}")
                found.append(Family(name, dtype, variant))
    return list(dict.fromkeys(found))


def parse_shape(text: str, op: str) -> tuple[int, ...]:
    """ "128x4096x4096" for the op. Raises ValueError."""
    form = OPS[op].shape
    parts = text.lower().split("x")
    if len(parts) != len(form.split("x")) or not all(part.isdecimal() for part in parts):
        raise ValueError(f"--shape {text}: expected {form} for {op}")
    return _checked(tuple(map(int, parts)), op, text)


def _checked(shape: tuple[int, ...], op: str, text: str) -> tuple[int, ...]:
    """Padding alone may be 0."""
    least = [1] * len(shape)
    if OPS[op].table == CONV:
        least[8] = 0
    if any(value < low for value, low in zip(shape, least, strict=True)):
        raise ValueError(f"{text}: extents are at least 1")
    return shape


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


def shapes_of(
    document: Mapping[str, Any], op: str, *, quick: bool = False
) -> list[tuple[int, ...]]:
    """The shapes of a file such as benchmarks/shapes.toml for an op; none if it has no such table.

    [gemm] has m and nk, each M with each [N, K], and square; [grouped] and [conv] have cases. A
    table "quick" in one of them has fewer.

    Raises:
        ValueError: a table that is none
    """
    name = OPS[op].table
    table = document.get(name, {})
    if quick:
        table = table.get("quick", table)
    try:
        if name != GEMM:
            found = [tuple(case) for case in table.get("cases", ())]
        else:
            found = [(m, *nk) for nk in table.get("nk", ()) for m in table.get("m", ())]
            found += [(side,) * 3 for side in table.get("square", ())]
        length = len(OPS[op].shape.split("x"))
        for shape in found:
            if len(shape) != length or not all(isinstance(value, int) for value in shape):
                raise ValueError(f"[{name}] has the shape {list(shape)}: expected {OPS[op].shape}")
            _checked(shape, op, f"[{name}] {list(shape)}")
    except TypeError:
        raise ValueError(f"[{name}] has no lists of whole numbers") from None
    return list(dict.fromkeys(found))


def jobs_of(
    wanted: Iterable[Family],
    shapes: Sequence[str],
    document: Mapping[str, Any] | None,
    *,
    quick: bool = False,
) -> list[Job]:
    """One family after the other. Shapes of the command line count where they fit the op.

    Raises:
        ValueError: a shape that fits no op, a family without shapes
    """
    wanted = list(wanted)
    found: list[Job] = []
    used: set[str] = set()
    for family in wanted:
        length = len(OPS[family.op].shape.split("x"))
        fitting = [text for text in shapes if len(text.split("x")) == length]
        used.update(fitting)
        own = [parse_shape(text, family.op) for text in fitting]
        own += shapes_of(document, family.op, quick=quick) if document is not None else []
        if not own:
            form = OPS[family.op].shape
            raise ValueError(f"{family} has no shapes: give --shape {form} or --shapes FILE.toml")
        found += [Job(family, shape) for shape in dict.fromkeys(own)]
    if unused := [text for text in shapes if text not in used]:
        raise ValueError(f"--shape {unused[0]} fits none of the ops")
    return found
