"""Which nodes of a traced graph are activations, sums, products and permutations, in the ways that
models write them."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch.fx import Node

_MODULES: dict[type[torch.nn.Module], str] = {
    torch.nn.ReLU: "relu",
    torch.nn.SiLU: "silu",
    torch.nn.GELU: "gelu",
    torch.nn.Sigmoid: "sigmoid",
    torch.nn.Tanh: "tanh",
    torch.nn.Hardswish: "hardswish",
    torch.nn.Softplus: "softplus",
    torch.nn.LeakyReLU: "leaky_relu",
}
_FUNCTIONS: dict[object, str] = {
    **dict.fromkeys((F.relu, F.relu_, torch.relu, torch.relu_), "relu"),
    F.silu: "silu",
    F.gelu: "gelu",
    **dict.fromkeys((F.sigmoid, torch.sigmoid, torch.sigmoid_), "sigmoid"),
    **dict.fromkeys((F.tanh, torch.tanh, torch.tanh_), "tanh"),
    F.hardswish: "hardswish",
    F.softplus: "softplus",
    F.leaky_relu: "leaky_relu",
}
_METHODS = {
    **dict.fromkeys(("relu", "relu_"), "relu"),
    **dict.fromkeys(("sigmoid", "sigmoid_"), "sigmoid"),
    **dict.fromkeys(("tanh", "tanh_"), "tanh"),
}
# Names and defaults of what the functions take behind their input, in their order.
_OPTIONS: dict[str, dict[str, object]] = {
    "gelu": {"approximate": "none"},
    "softplus": {"beta": 1, "threshold": 20},
    "leaky_relu": {"negative_slope": 0.01},
}

_SUMS = (operator.add, operator.iadd, torch.add)
_SUM_METHODS = ("add", "add_", "__add__", "__iadd__", "__radd__")
_PRODUCTS = (operator.mul, operator.imul, torch.mul, torch.multiply)
_PRODUCT_METHODS = ("mul", "mul_", "__mul__", "__imul__", "__rmul__", "multiply", "multiply_")
_IN_PLACE_PRODUCTS = (operator.imul, "mul_", "__imul__", "multiply_")
_IN_PLACE_SUMS = (operator.iadd, "add_", "__iadd__")


def activation_of(node: Node, modules: dict[str, torch.nn.Module]) -> str | None:
    """The name that cutwheel knows the activation of the node's first argument by."""
    name: str | None
    if node.op == "call_module":
        module = modules[str(node.target)]
        name = _MODULES.get(type(module))
        if name is None or len(node.args) != 1 or node.kwargs:
            return None
        found = {option: getattr(module, option) for option in _OPTIONS.get(name, ())}
    elif node.op == "call_function":
        name = _FUNCTIONS.get(node.target)
        if name is None or not node.args:
            return None
        found = dict(zip((*_OPTIONS.get(name, ()), "inplace"), node.args[1:], strict=False))
        found |= node.kwargs
    elif node.op == "call_method":
        name = _METHODS.get(str(node.target))
        found = {}
    else:
        return None
    if name is None:
        return None
    found.pop("inplace", None)
    if name == "gelu" and found.get("approximate") == "tanh":
        return "gelu_tanh"
    expected = _OPTIONS.get(name, {})
    return name if all(expected.get(key) == value for key, value in found.items()) else None


class Sum(NamedTuple):
    """a + b, of two values of the graph"""

    a: Node
    b: Node
    is_in_place: bool
    """it is written to a"""

    def other(self, one: Node) -> Node:
        return self.b if one is self.a else self.a


def sum_of(node: Node) -> Sum | None:
    if node.op not in ("call_function", "call_method"):
        return None
    if node.target not in (_SUMS if node.op == "call_function" else _SUM_METHODS):
        return None
    given: dict[str, Any] = dict(node.kwargs)
    if given.pop("alpha", 1) != 1 or given or len(node.args) != 2:
        return None
    a, b = node.args
    if not isinstance(a, Node) or not isinstance(b, Node):
        return None
    return Sum(a, b, node.target in _IN_PLACE_SUMS)


def factor_of(node: Node, value: Node) -> Node | None:
    """The other factor of a product with a value, which is not written to that."""
    if node.op not in ("call_function", "call_method") or node.kwargs or len(node.args) != 2:
        return None
    if node.target not in (_PRODUCTS if node.op == "call_function" else _PRODUCT_METHODS):
        return None
    a, b = node.args
    if not isinstance(a, Node) or not isinstance(b, Node) or a is b:
        return None
    if node.target in _IN_PLACE_PRODUCTS and a is not value:
        return None
    return b if a is value else a


def moves_channels_first(node: Node) -> bool:
    """Whether it permutes [N, ..., C] to [N, C, ...]."""
    is_call = node.op == "call_method" and node.target == "permute"
    if not is_call and not (node.op == "call_function" and node.target is torch.permute):
        return False
    given: Any = node.args[1:] if not node.kwargs else (node.kwargs.get("dims"),)
    dims = given[0] if len(given) == 1 and isinstance(given[0], (tuple, list)) else given
    if len(dims) < 3 or not all(type(dim) is int for dim in dims):
        return False
    last = len(dims) - 1
    return [dim % len(dims) for dim in dims] == [0, last, *range(1, last)]
