"""Random epilogues as manifests write them, and what Python says that they compute.

Nothing here uses kernelgen: the text is evaluated by Python itself.
"""

from __future__ import annotations

import ast
import ctypes
import math
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

SCALARS = ["alpha", "beta"]
# Names that C++ needs spelled differently are among them.
OPERANDS = {
    "slope": "scalar",
    "double": "row[N]",
    "bias": "row[N] f32",
    "short": "col[M]",
    "azp": "col[1|M] s32",
    "scale": "row[1|N] f32",
    "azp_adj": "row[N] s32",
    "c": "matrix[M,N]",
    "grad": "matrix[M,N] f32",
    "wide": "matrix[M,2N]",
}
ACTIVATIONS = ["relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "hardswish", "softplus"]
UNARY = ["abs", "identity", *ACTIVATIONS, *(f"{name}_grad" for name in ACTIVATIONS)]
ARITY = {**dict.fromkeys(UNARY, 1), "min": 2, "max": 2, "leaky_relu": 2, "clamp": 3}
NUMBERS = ["0", "1", "2", "0.5", "0.1", "3.25", "1e-3", "1e20", "7.", ".125", "0x10"]
COMPARISONS = ["<", "<=", ">", ">=", "==", "!="]


@st.composite
def _expressions(draw: st.DrawFn, leaves: list[str], depth: int = 3) -> str:
    """Text over `leaves`, with and without parentheses and spaces."""

    def inner() -> str:
        text = draw(_expressions(leaves, depth - 1))
        return f"({text})" if draw(st.booleans()) else text

    kinds = ["binary"] * 5 + ["sign", "where", "call", "leaf"] if depth else ["leaf"]
    match draw(st.sampled_from(kinds)):
        case "binary":
            operator = draw(st.sampled_from("+-*/"))
            space = draw(st.sampled_from(["", " ", "\n"]))
            return f"{inner()}{space}{operator}{space}{inner()}"
        case "sign":
            return f"-{inner()}"
        case "where":
            comparison = draw(st.sampled_from(COMPARISONS))
            return f"where({inner()} {comparison} {inner()}, {inner()}, {inner()})"
        case "call":
            name = draw(st.sampled_from(sorted(ARITY)))
            return f"{name}({', '.join(inner() for _ in range(ARITY[name]))})"
    return draw(st.sampled_from([*leaves, *leaves, draw(st.sampled_from(NUMBERS))]))


def names_in(*texts: str) -> set[str]:
    return {name for text in texts for name in re.findall(r"[a-z_][a-z0-9_]*", text)}


@st.composite
def epilogue_bodies(draw: st.DrawFn) -> dict[str, Any]:
    """A valid [epilogue.x] of any width: "expr", "operands", "aux"."""
    width = draw(st.sampled_from(["same", "half", "twice"]))
    allowed = [
        n for n, k in OPERANDS.items() if width != "half" or k.startswith(("scalar", "row[N]"))
    ]
    # At most four, with two scalars and two aux: eight is the limit.
    kinds = {n: OPERANDS[n] for n in draw(st.permutations(allowed))[: draw(st.integers(0, 4))]}
    values = [n for n, kind in kinds.items() if "2N" not in kind]
    wide = [f"{p}({n})" for n, kind in kinds.items() if "2N" in kind for p in ("even", "odd")]
    full = ["accum", *SCALARS, *values, *wide]
    aux: dict[str, str] = {}
    if width != "twice":
        for name in draw(st.sampled_from([[], ["z"], ["z", "long"]])):
            aux[name] = draw(_expressions([*full, *aux])) + " + accum"
    if width == "half":
        paired = ["accum", *(n for n, k in kinds.items() if k != "scalar"), *aux]
        leaves = [f"{p}({n})" for n in paired for p in ("even", "odd")]
        scalars = [*SCALARS, *(n for n, k in kinds.items() if k == "scalar")]
        expr = f"{draw(_expressions([*leaves, *scalars]))} - {draw(st.sampled_from(leaves))}"
    elif width == "twice":
        expr = f"pair({draw(_expressions(full))}, {draw(_expressions(full))} + accum)"
    else:
        tensors = [value for value in full if value not in (*SCALARS, "slope")]
        expr = f"{draw(_expressions([*full, *aux]))} * {draw(st.sampled_from(tensors))}"
    used = names_in(expr, *aux.values())
    return {"expr": expr, "operands": {n: k for n, k in kinds.items() if n in used}, "aux": aux}


def positions(body: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(name, kind) in the order that launches give them."""
    used = names_in(body["expr"], *body["aux"].values())
    return [
        *((name, "scalar") for name in SCALARS if name in used),
        *body["operands"].items(),
        *((name, "store") for name in body["aux"]),
    ]


def width_of(body: Mapping[str, Any]) -> str:
    expr = body["expr"]
    if expr.startswith("pair("):
        return "twice"
    taken_apart = {name for _, name in re.findall(r"\b(even|odd)\((\w+)\)", expr)}
    return "half" if any("2N" not in body["operands"].get(n, "") for n in taken_apart) else "same"


class F32(float):
    """float32 arithmetic: a double rounds to it as the operation itself would."""

    def __new__(cls, value: float) -> F32:
        return super().__new__(cls, ctypes.c_float(value).value)

    def __add__(self, other: float) -> F32:
        return F32(float(self) + float(other))

    def __sub__(self, other: float) -> F32:
        return F32(float(self) - float(other))

    def __mul__(self, other: float) -> F32:
        return F32(float(self) * float(other))

    def __neg__(self) -> F32:
        return F32(-float(self))

    def __truediv__(self, other: float) -> F32:
        x, y = float(self), float(other)
        if y != 0 or math.isnan(x):
            return F32(x / y if y != 0 else x)
        if x == 0:
            return F32(math.nan)
        return F32(math.copysign(math.inf, x) * math.copysign(1, y))

    @property
    def bits(self) -> int:
        """-1 for every NaN: its sign and payload mean nothing."""
        return -1 if math.isnan(self) else struct.unpack("<I", struct.pack("<f", self))[0]


@dataclass
class Pair:
    even: Any
    odd: Any


def _function(name: str) -> Callable[..., F32]:
    """A stand-in: another linear form for each function, so that none is taken for another."""
    factor = F32(sorted(ARITY).index(name) + 2)

    def function(*arguments: F32) -> F32:
        total = factor
        for argument in arguments:
            total = total * F32(0.5) + argument
        return total

    return function


FUNCTIONS = {name: _function(name) for name in ARITY}


def stub_functions() -> str:
    """The same stand-ins in C++."""
    lines = []
    for index, (name, arity) in enumerate(sorted(ARITY.items())):
        parameters = ", ".join(f"float a{i}" for i in range(arity))
        total = f"{index + 2}.f"
        for i in range(arity):
            total = f"({total} * 0.5f + a{i})"
        lines.append(f"  static float {name}({parameters}) {{ return {total}; }}")
    return "\n".join(lines)


class _Numbers(ast.NodeTransformer):
    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        return ast.copy_location(ast.Call(ast.Name("F32", ast.Load()), [node], []), node)


def _evaluate(text: str, values: Mapping[str, Any]) -> Any:
    tree = _Numbers().visit(ast.parse(f"({text})", mode="eval"))
    scope = {
        **FUNCTIONS,
        "F32": F32,
        "where": lambda condition, yes, no: yes if condition else no,
        "even": lambda x: x.even,
        "odd": lambda x: x.odd,
        "pair": Pair,
        **values,
    }
    return eval(compile(ast.fix_missing_locations(tree), "expr", "eval"), {}, scope)


def reference(body: Mapping[str, Any], values: Mapping[str, Any]) -> list[F32]:
    """Every aux, then D, flattened; `values` are F32 or Pair, as compute() takes them."""
    known = dict(values)
    results: list[F32] = []
    for name, text in body["aux"].items():
        if width_of(body) == "half":
            halves = [
                {n: getattr(v, parity) if isinstance(v, Pair) else v for n, v in known.items()}
                for parity in ("even", "odd")
            ]
            known[name] = Pair(*(_evaluate(text, half) for half in halves))
        else:
            known[name] = _evaluate(text, known)
        results += _flat(known[name])
    return results + _flat(_evaluate(body["expr"], known))


def _flat(value: Any) -> list[F32]:
    return [value.even, value.odd] if isinstance(value, Pair) else [value]
