"""The typed tree of an epilogue expression: what it is made of, and how it is walked.

Nodes compare by meaning: where a node stood in its text does not count.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

Parity = Literal["even", "odd"]
# C++'s OperandType: that of D, or one that does not depend on it.
ElementType = Literal["d", "f32", "s32"]


@dataclass(frozen=True)
class Kind:
    """Extents of an operand against the accumulator's [M, N], and its element type."""

    extents: str  # as manifests spell it: "row[N]", or "row[1|N]" if one value does as well
    enumerator: str  # of C++'s OperandKind
    dtype: ElementType = "d"

    @property
    def template(self) -> str:
        """Its class template in cuda/epilogue/apply.cuh."""
        return self.enumerator.title().replace("_", "")

    @property
    def is_wide(self) -> bool:
        """Whether it has two columns for each accumulator column."""
        return self.enumerator == "wide_matrix"

    @property
    def may_be_one(self) -> bool:
        """Whether a call may give a single value, for all rows or columns."""
        return "[1|" in self.extents

    def __str__(self) -> str:
        return self.extents if self.dtype == "d" else f"{self.extents} {self.dtype}"


SCALAR = Kind("scalar", "scalar")
STORE = Kind("store", "store")
_VECTORS = (Kind("row[N]", "row"), Kind("col[M]", "col"))
_MATRICES = (Kind("matrix[M,N]", "matrix"), Kind("matrix[M,2N]", "wide_matrix"))
_TENSORS = (*_VECTORS, *_MATRICES)
# Scales and zero points of quantised operands.
_BROADCAST = (Kind("row[1|N]", "row"), Kind("col[1|M]", "col"))
# As manifests spell them.
KINDS: dict[str, Kind] = {
    str(kind): kind
    for kind in (
        SCALAR,
        *_TENSORS,
        *(replace(kind, dtype="f32") for kind in _TENSORS),
        *(replace(kind, dtype="s32") for kind in _VECTORS),
        *(replace(kind, dtype="f32") for kind in _BROADCAST),
        *(replace(kind, dtype="s32") for kind in _BROADCAST),
    )
}

_MATH = Path(__file__).resolve().parents[3] / "cuda/epilogue/math.cuh"
# Name -> parameters, as the C++ defines them: each takes and returns single float32 values.
FUNCTIONS: dict[str, tuple[str, ...]] = {
    name: tuple(re.findall(r"float (\w+)", parameters))
    for name, parameters in re.findall(
        r"static float (\w+)\((float \w+(?:, float \w+)*)\)", _MATH.read_text(encoding="utf-8")
    )
}
# Forms are called like functions but have rules of their own.
FORMS: dict[str, tuple[str, ...]] = {
    "where": ("condition", "a", "b"),
    "even": ("x",),
    "odd": ("x",),
    "pair": ("x", "y"),
}
OPERATORS = ("+", "-", "*", "/")
COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")


@dataclass(frozen=True)
class _Node:
    # Where it starts, from 1; a binary operation counts from its operator.
    column: int = field(default=0, compare=False, kw_only=True)


@dataclass(frozen=True)
class Accum(_Node):
    """The accumulator of the mainloop."""


@dataclass(frozen=True)
class Scalar(_Node):
    """A run-time scalar."""

    name: str


@dataclass(frozen=True)
class Number(_Node):
    """A constant; never negative: the sign is a Negate."""

    value: float


@dataclass(frozen=True)
class Operand(_Node):
    """A tensor that is read."""

    name: str
    kind: Kind


@dataclass(frozen=True)
class Aux(_Node):
    """A value that is stored besides D."""

    name: str


@dataclass(frozen=True)
class Lane(_Node):
    """One of two neighbouring columns: even(x) or odd(x)."""

    parity: Parity
    value: Accum | Operand | Aux


@dataclass(frozen=True)
class Negate(_Node):
    value: Value


@dataclass(frozen=True)
class Binary(_Node):
    operator: str
    left: Value
    right: Value


@dataclass(frozen=True)
class Compare(_Node):
    operator: str
    left: Value
    right: Value


@dataclass(frozen=True)
class Where(_Node):
    condition: Compare
    yes: Value
    no: Value


@dataclass(frozen=True)
class Call(_Node):
    """One of FUNCTIONS."""

    function: str
    arguments: tuple[Value, ...]


@dataclass(frozen=True)
class Pair(_Node):
    """Two columns of D; only the root of an expression."""

    even: Value
    odd: Value


Symbol = Accum | Scalar | Operand | Aux
Value = Symbol | Number | Lane | Negate | Binary | Where | Call
Root = Value | Pair
Node = Root | Compare


def children(node: Node) -> tuple[Node, ...]:
    """In the order of the text. A Lane is a leaf: what it takes apart is no value of its own."""
    match node:
        case Negate(value):
            return (value,)
        case Binary(_, left, right) | Compare(_, left, right):
            return left, right
        case Where(condition, yes, no):
            return condition, yes, no
        case Call(_, arguments):
            return arguments
        case Pair(even, odd):
            return even, odd
        case _:
            return ()


def walk(node: Node) -> Iterator[Node]:
    """The node itself, then everything below it."""
    yield node
    for child in children(node):
        yield from walk(child)


def symbols(node: Node) -> Iterator[Symbol]:
    """Everything that is named in the tree, also behind even() and odd()."""
    for item in walk(node):
        if isinstance(item, Lane):
            yield item.value
        elif isinstance(item, Accum | Scalar | Operand | Aux):
            yield item


def start(node: Node) -> int:
    """Column of the first token."""
    return min(item.column for item in walk(node))
