"""Expressions of epilogues, computed by torch."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional


def _of_tensors(function: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """Numbers become tensors."""

    def call(*values: Any) -> torch.Tensor:
        device = next((v.device for v in values if isinstance(v, torch.Tensor)), None)
        return function(*(torch.as_tensor(value, device=device) for value in values))

    return call


def _gradient(function: Callable[..., torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    def gradient(x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            return torch.autograd.grad(function(leaf).sum(), leaf)[0]

    return gradient


def _pair(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    both = torch.broadcast_tensors(x, y)  # type: ignore[no-untyped-call]
    return torch.stack(both, -1).flatten(-2)


_ACTIVATIONS: dict[str, Callable[..., torch.Tensor]] = {
    "relu": torch.relu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "hardswish": functional.hardswish,
    "softplus": functional.softplus,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **_ACTIVATIONS,
    **{f"{name}_grad": _gradient(function) for name, function in _ACTIVATIONS.items()},
    "leaky_relu": lambda x, slope: torch.where(x > 0, x, x * slope),
    "where": lambda c, a, b: torch.where(c, torch.as_tensor(a).to(b), b),
    "min": _of_tensors(torch.minimum),
    "max": _of_tensors(torch.maximum),
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


def evaluate(text: str, values: Mapping[str, Any]) -> Any:
    """The value of an epilogue's expression.

    Raises:
        ValueError: it has something that is not known here
    """
    return _value(ast.parse(text, mode="eval").body, values)


def _value(node: ast.expr, values: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name) and node.id in values:
        return values[node.id]
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.left, values), _value(node.right, values))
    if isinstance(node, ast.UnaryOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.operand, values))
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        right = _value(node.comparators[0], values)
        return _OPERATORS[type(node.ops[0])](_value(node.left, values), right)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        function = _FUNCTIONS.get(node.func.id)
        if function is not None:
            return function(*(_value(argument, values) for argument in node.args))
    raise ValueError(f"{ast.unparse(node)} is not known here")
