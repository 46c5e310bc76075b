"""Epilogue expressions evaluated by torch, from the manifest's text alone.

Nothing is shared with the generator: what an expression means is said here a second time, so that
the two can disagree. `evaluate` runs an expression on tensors of any dtype: in float64 it is the
reference, in the dtype of a kernel it is torch's own sequence of ops. `Bound` runs beside the
reference and counts how far right results may be from it.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

Value = Any  # a tensor, or a float: scalars, constants, and 0 for an operand that is left out

KINDS = ("scalar", "row[N]", "col[M]", "matrix[M,N]", "matrix[M,2N]")
IMPLICIT_SCALARS = ("alpha", "beta")


@dataclass(frozen=True)
class Epilogue:
    """An entry of manifest.json's "epilogues"."""

    name: str
    expr: str
    aux: Mapping[str, str]
    operands: Mapping[str, str]
    width: str

    @classmethod
    def of(cls, name: str, entry: Mapping[str, Any]) -> Epilogue:
        operands = dict(entry.get("operands", {}))
        aux = dict(entry.get("aux", {}))
        return cls(name, entry["expr"], aux, operands, entry.get("width") or "same")

    @property
    def names(self) -> set[str]:
        """All names that its expressions mention, functions left out."""
        trees = [ast.parse(text, mode="eval") for text in (self.expr, *self.aux.values())]
        nodes = [node for tree in trees for node in ast.walk(tree)]
        called = {node.func.id for node in nodes if isinstance(node, ast.Call)}  # type: ignore[attr-defined]
        return {node.id for node in nodes if isinstance(node, ast.Name)} - called

    @property
    def has_accum(self) -> bool:
        return "accum" in self.names

    @property
    def scalars(self) -> list[str]:
        """By position: alpha, beta, then as declared."""
        declared = [name for name, kind in self.operands.items() if kind == "scalar"]
        return [name for name in IMPLICIT_SCALARS if name in self.names] + declared

    @property
    def tensors(self) -> dict[str, str]:
        """name: kind without dtype, by position"""
        return {n: kind.split()[0] for n, kind in self.operands.items() if kind != "scalar"}

    def is_float32(self, name: str) -> bool:
        return self.operands[name].endswith(" f32")

    def columns(self, n: int) -> int:
        """Columns of D for a product (elementwise: matrix operands) of n columns."""
        return {"same": n, "half": n // 2, "twice": 2 * n}[self.width]


# ---- functions -----------------------------------------------------------------------------------
def _half(first: int) -> Callable[[Value], Value]:
    def take(x: Value) -> Value:
        return x[..., first::2] if isinstance(x, torch.Tensor) and x.dim() else x

    return take


def _pair(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x, y = torch.broadcast_tensors(x, y)
    return torch.stack((x, y), -1).flatten(-2)


def _of_tensors(function: Callable[..., torch.Tensor]) -> Callable[..., Value]:
    """For functions that take no Python numbers: those become tensors of the others' dtype."""

    def call(*values: Value) -> Value:
        tensors = [v for v in values if isinstance(v, torch.Tensor)]
        device = tensors[0].device if tensors else None
        dtype = next((v.dtype for v in tensors if v.is_floating_point()), torch.float64)
        return function(
            *(
                v if isinstance(v, torch.Tensor) else torch.tensor(v, dtype=dtype, device=device)
                for v in values
            )
        )

    return call


def _derivative(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Value]:
    """By torch's own backward formula."""

    def derivative(x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            leaf = x.detach().clone().requires_grad_()
            (slope,) = torch.autograd.grad(function(leaf).sum(), leaf)
        return slope

    return _of_tensors(derivative)


def _gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return functional.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Callable[..., torch.Tensor]] = {
    "identity": lambda x: x,
    "relu": torch.relu,
    "gelu": functional.gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": functional.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "hardswish": functional.hardswish,
    "softplus": functional.softplus,
}
FUNCTIONS: dict[str, Callable[..., Value]] = {
    **{name: _of_tensors(function) for name, function in ACTIVATIONS.items()},
    **{f"{name}_grad": _derivative(f) for name, f in ACTIVATIONS.items() if name != "identity"},
    "leaky_relu": _of_tensors(lambda x, slope: torch.where(x > 0, x, x * slope)),
    "where": _of_tensors(lambda c, a, b: torch.where(c.bool(), *torch.broadcast_tensors(a, b))),
    "min": _of_tensors(torch.minimum),
    "max": _of_tensors(torch.maximum),
    "abs": _of_tensors(torch.abs),
    "clamp": _of_tensors(lambda x, low, high: torch.clamp(x, low, high)),
    "even": _half(0),
    "odd": _half(1),
    "pair": _of_tensors(_pair),
}
OPERATORS: dict[type, Callable[..., Value]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.USub: operator.neg,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


def walk(node: ast.AST, values: Mapping[str, Value], functions: Mapping[str, Any]) -> Value:
    """The value of an expression's tree. Operators are those of the values themselves."""

    def of(child: ast.AST) -> Value:
        return walk(child, values, functions)

    match node:
        case ast.Expression(body=body):
            return of(body)
        case ast.Constant(value=int() | float() as number):
            return float(number)
        case ast.Name(id=name):
            return values[name]
        case ast.BinOp(left=left, op=op, right=right):
            return OPERATORS[type(op)](of(left), of(right))
        case ast.UnaryOp(op=op, operand=operand):
            return OPERATORS[type(op)](of(operand))
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return OPERATORS[type(op)](of(left), of(right))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
            return functions[name](*(of(argument) for argument in arguments))
    raise ValueError(f"the reference does not know {ast.unparse(node)!r}")


def evaluate(
    epilogue: Epilogue, values: Mapping[str, Value], functions: Mapping[str, Any] = FUNCTIONS
) -> list[Value]:
    """[D, aux...] in the dtype of the values, which are already broadcast (see `placed`)."""
    known = {"alpha": 1.0, "beta": 1.0, **values}
    for name, text in epilogue.aux.items():
        known[name] = walk(ast.parse(text, mode="eval"), known, functions)
    d = walk(ast.parse(epilogue.expr, mode="eval"), known, functions)
    return [d, *(known[name] for name in epilogue.aux)]


def placed(kind: str, x: torch.Tensor | None) -> Value:
    """An operand as it broadcasts against [..., M, N]; one that is left out is zeros."""
    if x is None:
        return 0.0
    if kind == "row[N]":
        return x if x.dim() == 1 else x.unsqueeze(-2)
    return x.unsqueeze(-1) if kind == "col[M]" else x


# ---- how far a right result may be away ----------------------------------------------------------
@dataclass(eq=False)
class Bound:
    """A float64 value with the weights of the errors made on the way to it, to first order.

    approx counts the errors of approximated functions, in units of their argument (of 1, where
    that is larger and the function is bounded); wide those of float32 arithmetic and of the
    product, in units of what was added up, |A| |B| for the product.
    """

    value: Value
    approx: Value
    wide: Value

    @classmethod
    def of(cls, x: Value, wide: Value | None = None) -> Bound:
        return cls(x, 0.0, abs(x) if wide is None else wide)

    @staticmethod
    def _lift(x: Value) -> Bound:
        if isinstance(x, Bound):
            return x
        is_condition = isinstance(x, torch.Tensor) and x.dtype == torch.bool
        return Bound(x, 0.0, 0.0) if is_condition else Bound.of(x)

    def _joined(self, other: Value, value: Value, mine: Value, theirs: Value) -> Bound:
        """Errors of both, each times the derivative of the result with respect to it."""
        other = Bound._lift(other)
        return Bound(
            value,
            abs(mine) * self.approx + abs(theirs) * other.approx,
            abs(mine) * self.wide + abs(theirs) * other.wide,
        )

    def __add__(self, other: Value) -> Bound:
        return self._joined(other, self.value + Bound._lift(other).value, 1.0, 1.0)

    def __sub__(self, other: Value) -> Bound:
        return self._joined(other, self.value - Bound._lift(other).value, 1.0, 1.0)

    def __rsub__(self, other: Value) -> Bound:
        return Bound._lift(other) - self

    def __mul__(self, other: Value) -> Bound:
        theirs = Bound._lift(other).value
        return self._joined(other, self.value * theirs, theirs, self.value)

    def __truediv__(self, other: Value) -> Bound:
        theirs = Bound._lift(other).value
        value = self.value / theirs
        return self._joined(other, value, 1.0 / theirs, value / theirs)

    def __rtruediv__(self, other: Value) -> Bound:
        return Bound._lift(other) / self

    def __neg__(self) -> Bound:
        return Bound(-self.value, self.approx, self.wide)

    __radd__, __rmul__ = __add__, __mul__

    def __lt__(self, other: Value) -> Value:
        return self.value < Bound._lift(other).value

    def __le__(self, other: Value) -> Value:
        return self.value <= Bound._lift(other).value

    def __gt__(self, other: Value) -> Value:
        return self.value > Bound._lift(other).value

    def __ge__(self, other: Value) -> Value:
        return self.value >= Bound._lift(other).value

    def __eq__(self, other: object) -> Value:
        return self.value == Bound._lift(other).value

    def __ne__(self, other: object) -> Value:
        return self.value != Bound._lift(other).value


SLOPE = 1.2  # no activation is steeper
EXACT = ("identity", "relu", "leaky_relu", "hardswish", "relu_grad", "hardswish_grad")
BOUNDED = ("sigmoid", "tanh")


def _as_wide_as(value: Value, weight: Value) -> Value:
    if not isinstance(value, torch.Tensor):
        return weight
    return value.new_zeros(value.shape) + weight


def _bound_function(name: str, function: Callable[..., Value]) -> Callable[..., Bound]:
    def call(*arguments: Value) -> Bound:
        lifted = [Bound._lift(x) for x in arguments]
        value = function(*(x.value for x in lifted))
        if name in ("even", "odd", "pair"):  # the weights go where their values go
            approx = function(*(_as_wide_as(x.value, x.approx) for x in lifted))
            return Bound(value, approx, function(*(_as_wide_as(x.value, x.wide) for x in lifted)))
        if name == "where":
            lifted = lifted[1:]  # near its threshold a condition may turn out either way
        approx, wide = lifted[0].approx, lifted[0].wide
        for other in lifted[1:]:
            approx, wide = approx + other.approx, wide + other.wide
        if name in FUNCTIONS and name.removesuffix("_grad") in ACTIVATIONS:
            approx, wide = SLOPE * approx, SLOPE * wide
            if name not in EXACT:
                size = abs(lifted[0].value)
                flat = name in BOUNDED or name.endswith("_grad")
                approx = approx + (torch.ones_like(size) if flat else size)
        return Bound(value, approx, wide)

    return call


BOUND_FUNCTIONS = {name: _bound_function(name, f) for name, f in FUNCTIONS.items()}
