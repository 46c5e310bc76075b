"""Expressions of epilogues, computed by torch."""

from __future__ import annotations

import ast
import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from .activations import ACTIVATIONS, COMPOSED

_aten = torch.ops.aten

# A parsed expression: a number, a name, or a function and what it is applied to.
Tree = float | str | tuple[str, tuple[Any, ...]]


def _pair(x: Tensor, y: Tensor) -> Tensor:
    both = torch.broadcast_tensors(x, y)  # type: ignore[no-untyped-call]
    return torch.stack(both, -1).flatten(-2)


def _where(condition: Tensor, a: Any, b: Any) -> Tensor:
    return torch.where(condition, a, b)


def _min(a: Any, b: Any) -> Tensor:
    if not isinstance(a, Tensor):
        a, b = b, a
    return torch.minimum(a, b) if isinstance(b, Tensor) else torch.clamp(a, max=b)


def _max(a: Any, b: Any) -> Tensor:
    if not isinstance(a, Tensor):
        a, b = b, a
    return torch.maximum(a, b) if isinstance(b, Tensor) else torch.clamp(a, min=b)


def _silu_grad(x: Tensor) -> Tensor:
    sigmoid = torch.sigmoid(x)
    return sigmoid * (1 + x * (1 - sigmoid))


def _sigmoid_grad(x: Tensor) -> Tensor:
    sigmoid = torch.sigmoid(x)
    return sigmoid * (1 - sigmoid)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "identity": lambda x: x,
    **ACTIVATIONS,
    **COMPOSED,
    # torch's own derivatives.
    "relu_grad": lambda x: _aten.threshold_backward(torch.ones_like(x), x, 0),
    "gelu_grad": lambda x: _aten.gelu_backward(torch.ones_like(x), x),
    "gelu_tanh_grad": lambda x: _aten.gelu_backward(torch.ones_like(x), x, approximate="tanh"),
    "silu_grad": _silu_grad,
    "sigmoid_grad": _sigmoid_grad,
    "tanh_grad": lambda x: 1 - torch.tanh(x).square(),
    "hardswish_grad": lambda x: _aten.hardswish_backward(torch.ones_like(x), x),
    "softplus_grad": lambda x: _aten.softplus_backward(torch.ones_like(x), x, 1, 20),
    "where": _where,
    "min": _min,
    "max": _max,
    "abs": torch.abs,
    "clamp": torch.clamp,
    "even": lambda x: x[..., 0::2],
    "odd": lambda x: x[..., 1::2],
    "pair": _pair,
}
_OPERATORS: dict[type, Callable[..., Any]] = {
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
_FUNCTIONS.update({kind.__name__: function for kind, function in _OPERATORS.items()})


def evaluate(text: str, values: Mapping[str, Any]) -> Any:
    """The value of an epilogue's expression.

    Raises:
        ValueError: it has something that is not known here
    """
    return _value(_parse(text), values)


def _value(tree: Tree, values: Mapping[str, Any]) -> Any:
    if isinstance(tree, tuple):
        function, arguments = tree
        return _FUNCTIONS[function](*[_value(argument, values) for argument in arguments])
    if not isinstance(tree, str):
        return tree
    if tree not in values:
        raise ValueError(f"{tree} is not known here")
    return values[tree]


def _parse(text: str) -> Tree:
    return _parsed(text)


# torch.compile takes the tree as a constant.
_parse._dynamo_marked_constant = True  # type: ignore[attr-defined]


@functools.cache
def _parsed(text: str) -> Tree:
    return _tree(ast.parse(text, mode="eval").body)


def _tree(node: ast.expr) -> Tree:
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return node.value
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return type(node.op).__name__, (_tree(node.left), _tree(node.right))
    if isinstance(node, ast.UnaryOp) and type(node.op) in _OPERATORS:
        return type(node.op).__name__, (_tree(node.operand),)
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _OPERATORS:
        return type(node.ops[0]).__name__, (_tree(node.left), _tree(node.comparators[0]))
    name = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
    if isinstance(node, ast.Call) and name in _FUNCTIONS:
        return name, tuple(_tree(argument) for argument in node.args)
    raise ValueError(f"{ast.unparse(node)} is not known here")
