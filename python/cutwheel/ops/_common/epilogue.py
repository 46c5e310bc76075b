"""Epilogues: what the manifest declares to follow the accumulator, as the library tells it."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from typing import NamedTuple

import torch

from ... import _library  # importing it registers torch.ops.cutwheel
from ...errors import ArgumentError

_ops = torch.ops.cutwheel

# As the manifest writes the kinds of operands.
_KINDS = {
    "scalar": "scalar",
    "row": "row[N]",
    "col": "col[M]",
    "matrix": "matrix[M,N]",
    "wide_matrix": "matrix[M,2N]",
}


@dataclass(frozen=True)
class Epilogue:
    """The expression that follows a GEMM in the same kernel, as the manifest declares it."""

    name: str
    expr: str
    """the result, where `accum` is the element of the accumulator"""
    width: str
    """columns of the result: "same" as the accumulator, "half" or "twice" as many"""
    operands: dict[str, str]
    """name -> "scalar", "row[N]", "col[M]", "matrix[M,N]" or "matrix[M,2N]", with " f32" behind it
    where the elements are float32 whatever the result is"""
    aux: tuple[str, ...]
    """what is stored besides the result, [M, N] each, in the dtype of the result"""
    has_accum: bool
    """False: it belongs to an elementwise kernel of a backward pass, and is none for gemm"""

    def __str__(self) -> str:
        operands = ", ".join(f"{name}: {kind}" for name, kind in self.operands.items())
        stores = f", and stores {', '.join(self.aux)}" if self.aux else ""
        return f"{self.name}({operands}) = {self.expr}{stores}"


class Signature(NamedTuple):
    """The part of an epilogue that a call needs."""

    tensors: tuple[str, ...]
    kinds: tuple[str, ...]
    """of each of `tensors`, as Epilogue.operands has them"""
    float32: tuple[bool, ...]
    """of each of `tensors`, whether it is float32 whatever the result is"""
    scalars: tuple[str, ...]
    stores: int
    has_accum: bool


@functools.cache
def _table() -> dict[str, tuple[Epilogue, Signature]]:
    table = {}
    for row in json.loads(_ops._epilogues()):
        operands = [o for o in row["operands"] if o["kind"] != "store"]
        tensors = [o for o in operands if o["kind"] != "scalar"]
        stores = tuple(o["name"] for o in row["operands"] if o["kind"] == "store")
        kinds = {o["name"]: _KINDS[o["kind"]] + " f32" * bool(o["float32"]) for o in tensors}
        epilogue = Epilogue(
            name=row["name"],
            expr=row["expr"],
            width=row["width"],
            operands={o["name"]: kinds.get(o["name"], "scalar") for o in operands},
            aux=stores,
            has_accum=row["has_accum"],
        )
        signature = Signature(
            tensors=tuple(o["name"] for o in tensors),
            kinds=tuple(kinds[o["name"]] for o in tensors),
            float32=tuple(bool(o["float32"]) for o in tensors),
            scalars=tuple(o["name"] for o in operands if o["kind"] == "scalar"),
            stores=len(stores),
            has_accum=row["has_accum"],
        )
        table[epilogue.name] = epilogue, signature
    return table


def epilogues() -> list[Epilogue]:
    """The epilogues that this wheel's manifest declares, in its order."""
    return [epilogue for epilogue, _ in _table().values()]


def find(name: str) -> Epilogue | None:
    """The epilogue of that name, if the wheel has one."""
    found = _table().get(name)
    return found[0] if found else None


def _lookup(name: str) -> Signature | None:
    found = _table().get(name)
    return found[1] if found else None


# torch.compile takes the answer as a constant: the table is that of the library.
_lookup._dynamo_marked_constant = True  # type: ignore[attr-defined]


def signature_of(epilogue: str) -> Signature:
    """The signature of an epilogue that gemm takes.

    Raises:
        ValueError: it is not declared, or has no accumulator
    """
    found = _lookup(epilogue) if isinstance(epilogue, str) else None
    if found is None:
        declared = ", ".join(e.name for e in epilogues() if e.has_accum)
        raise ArgumentError(
            f"gemm: epilogue {epilogue!r} is not declared in this wheel; declared: {declared}"
        )
    if not found.has_accum:
        raise ArgumentError(
            f"gemm: epilogue {epilogue!r} is that of an elementwise kernel: it has no product"
        )
    return found


def expressions_of(epilogue: str) -> tuple[tuple[str, str], ...]:
    """Name and text of what an epilogue stores, in order, and of D, which has no name."""
    declared = _table()[epilogue][0]
    stored = _stored()[epilogue] if declared.aux else {}
    return *((name, stored[name]) for name in declared.aux), ("", declared.expr)


# torch.compile takes the answer as a constant.
expressions_of._dynamo_marked_constant = True  # type: ignore[attr-defined]


@functools.cache
def _stored() -> dict[str, dict[str, str]]:
    """By epilogue and name, the expressions of what is stored: the library tells only names."""
    manifest = json.loads(_library.PATH.with_name("manifest.json").read_text("utf-8"))
    return {name: entry["aux"] for name, entry in manifest["epilogues"].items()}
