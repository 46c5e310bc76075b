"""Tuning jobs: ops, dtypes, shapes. Needs neither torch nor a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .shapes import FORMS, Conv, Gemm, Grouped, Kind, Shape, fits, listed, parse


@dataclass(frozen=True)
class Op:
    """Choices for an op; the first of each is the default."""

    shape: Kind
    dtypes: tuple[str, ...]
    variants: tuple[str, ...]
    """empty: any name of an epilogue"""


_DENSE = ("bf16", "f16", "tf32")
_RECIPES = ("rowwise", "tensorwise", "blockwise", "blockwise_1x128")
OPS = {
    # The layouts of a linear layer: forward, and its two gradients.
    "mm": Op(Gemm, _DENSE, ("plain", "dgrad", "wgrad")),
    "addmm": Op(Gemm, _DENSE, ("row", "matrix")),
    "linear": Op(
        Gemm,
        _DENSE,
        ("bias", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "hardswish", "softplus"),
    ),
    "gated_linear": Op(Gemm, _DENSE, ("silu", "gelu", "gelu_tanh", "relu")),
    "gemm": Op(Gemm, _DENSE, ()),
    "scaled_mm": Op(
        Gemm,
        ("fp8", "int8"),
        (*_RECIPES[:2], *(f"{recipe}+fast" for recipe in _RECIPES[:2]), *_RECIPES[2:]),
    ),
    "grouped_mm": Op(Grouped, ("bf16", "f16"), ("rows", "columns", "k")),
    "scaled_grouped_mm": Op(Grouped, ("fp8",), ("rowwise", "rowwise+fast", "blockwise")),
    "conv2d": Op(Conv, _DENSE, ("fprop", "dgrad", "wgrad")),
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
    shape: Shape

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
        kind = OPS[family.op].shape
        fitting = [text for text in shapes if fits(text, kind)]
        used.update(fitting)
        own = [parse(text, kind, "--shape") for text in fitting]
        for shape in own:
            if isinstance(shape, Conv) and shape.groups > 1:
                raise ValueError(f"--shape {shape}: in groups there are no plans to choose from")
        own += listed(document, kind, quick=quick) if document is not None else []
        if not own:
            raise ValueError(
                f"{family} has no shapes: give --shape {FORMS[kind]} or --shapes FILE.toml"
            )
        found += [Job(family, shape) for shape in dict.fromkeys(own)]
    if unused := [text for text in shapes if text not in used]:
        raise ValueError(f"--shape {unused[0]} fits none of the ops")
    return found
