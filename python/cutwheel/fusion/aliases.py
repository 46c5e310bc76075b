"""Which values of a traced graph may share memory, and what writes to them.

A fused module that takes a residual reads its input where the sum was, which is later than where
the convolution was. That must not move it past a write to that memory.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch._ops import OpOverload, OpOverloadPacket
from torch.fx import Graph, Node

from .. import nn
from .modules import (
    CastingLinear,
    ChannelsFirstLinear,
    PointwiseConv2d,
    ResidualConv2d,
    ResidualConv3d,
    ResidualLinear,
)
from .opaque import why_opaque

_CALLERS = "the caller's tensors"

# Their results are memory of their own.
_ALLOCATING_MODULES = (
    *(torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d, torch.nn.Linear),
    *(torch.nn.ConvTranspose1d, torch.nn.ConvTranspose2d, torch.nn.ConvTranspose3d),
    *(torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d),
    *(torch.nn.SyncBatchNorm, torch.nn.LayerNorm, torch.nn.RMSNorm),
    *(torch.nn.GroupNorm, torch.nn.MaxPool2d, torch.nn.AvgPool2d, torch.nn.AdaptiveAvgPool2d),
    *(torch.nn.ReLU, torch.nn.SiLU, torch.nn.GELU, torch.nn.Sigmoid, torch.nn.Hardswish),
    *(nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
    *(nn.Linear, ResidualConv2d, ResidualConv3d, ResidualLinear, CastingLinear),
    *(ChannelsFirstLinear, PointwiseConv2d),
)
_ALLOCATING_FUNCTIONS: tuple[Callable[..., Any], ...] = (
    *(operator.add, operator.sub, operator.mul, operator.truediv, operator.neg, operator.matmul),
    *(torch.add, torch.sub, torch.mul, torch.div, torch.matmul, torch.cat, torch.stack),
    *(torch.relu, F.relu, F.silu, F.gelu, torch.sigmoid, F.hardswish),
)
_ALLOCATING_METHODS = (
    *("add", "sub", "mul", "div", "pow", "neg", "abs", "exp", "log", "sqrt", "rsqrt", "matmul"),
    *("relu", "sigmoid", "tanh", "softmax", "log_softmax", "clamp", "masked_fill", "clone"),
    *("sum", "mean", "amax", "amin", "argmax", "norm", "var", "std", "repeat"),
    *("eq", "ne", "lt", "le", "gt", "ge"),
)
_IN_PLACE_OPERATORS: tuple[Callable[..., Any], ...] = tuple(
    getattr(operator, name)
    for name in (
        *("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "imatmul"),
        *("iand", "ior", "ixor", "ilshift", "irshift", "iconcat", "setitem", "delitem"),
    )
)
_PURE = ("torch", "math", "_operator", "builtins")
"""modules whose functions write only what their names or arguments say"""


class Aliases:
    """Which values of a graph share memory, as the graph is at construction."""

    def __init__(self, graph: Graph, modules: dict[str, torch.nn.Module]) -> None:
        self._origins: dict[Node, frozenset[object]] = {}
        self._writes: list[tuple[int, frozenset[object]]] = []
        self._places: dict[Node, int] = {}
        for place, node in enumerate(graph.nodes):
            self._places[node] = place
            written = written_by(node, modules)
            if written:
                self._writes.append((place, self.origins(written)))
            self._origins[node] = self._origins_of(node, written, modules)

    def is_written_between(self, first: Node, last: Node, values: Iterable[Node]) -> bool:
        """Whether what lies behind `first` and before `last` may write to one of the values."""
        watched = self.origins(values)
        span = range(self._places[first] + 1, self._places[last])
        return any(place in span and not watched.isdisjoint(to) for place, to in self._writes)

    def is_written_behind(self, value: Node) -> bool:
        """Whether anything may write to the value once it is there."""
        watched, first = self._origins[value], self._places[value]
        return any(place > first and not watched.isdisjoint(to) for place, to in self._writes)

    def origins(self, nodes: Iterable[Node]) -> frozenset[object]:
        """The memory that the values may be in, as nodes or names of attributes."""
        return frozenset().union(*(self._origins[node] for node in nodes))

    def _origins_of(
        self, node: Node, written: list[Node], modules: dict[str, torch.nn.Module]
    ) -> frozenset[object]:
        """The nodes whose memory the value may be in."""
        if len(written) == 1:
            return self.origins(written)
        if node.op == "placeholder":
            return frozenset((_CALLERS,))
        if node.op == "get_attr":
            return frozenset((str(node.target),))
        if node.op == "call_module" and type(modules[str(node.target)]) in _ALLOCATING_MODULES:
            return frozenset((node,))
        if node.op == "call_function" and node.target in _ALLOCATING_FUNCTIONS:
            return frozenset((node,))
        if node.op == "call_method" and node.target in _ALLOCATING_METHODS:
            return frozenset((node,))
        return self.origins(node.all_input_nodes) or frozenset((node,))


def written_by(node: Node, modules: dict[str, torch.nn.Module]) -> list[Node]:
    """The arguments that the node may write to."""
    first = _nodes_in(node.args[:1])
    if node.op == "call_module":
        module = modules[str(node.target)]
        known = type(module).__module__.startswith(("torch.nn.", "cutwheel."))
        if not known or why_opaque(module):
            return node.all_input_nodes
        return first if getattr(module, "inplace", False) else []
    if node.op == "call_method":
        name = str(node.target)
        is_dunder = name.endswith("__")
        writes = name.startswith("__i") or name == "__setitem__" if is_dunder else name[-1] == "_"
        return first if writes else []
    if node.op == "call_function":
        return _written_by_function(node, first)
    return []


def _written_by_function(node: Node, first: list[Node]) -> list[Node]:
    assert callable(node.target)
    if isinstance(node.target, OpOverload):
        return _written_by_schema(node, node.target)
    if isinstance(node.target, OpOverloadPacket):
        names: list[str] = node.target.overloads()  # type: ignore[no-untyped-call]
        overloads = [getattr(node.target, name) for name in names]
        return [each for op in overloads for each in _written_by_schema(node, op)]
    name = getattr(node.target, "__name__", "")
    if (getattr(node.target, "__module__", None) or "torch").split(".")[0] not in _PURE:
        return node.all_input_nodes
    written = _nodes_in(node.kwargs.get("out"))
    if node.target in _IN_PLACE_OPERATORS or (name.endswith("_") and not name.endswith("__")):
        return first + written
    return first + written if _is_in_place(node) else written


def _written_by_schema(node: Node, op: OpOverload) -> list[Node]:
    written: list[Node] = []
    for place, argument in enumerate(op._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = node.args[place] if place < len(node.args) else node.kwargs.get(argument.name)
            written += _nodes_in(given)
    return written


def _nodes_in(argument: Any) -> list[Node]:
    found: list[Node] = []
    torch.fx.map_arg(argument, found.append)
    return found


def _is_in_place(node: Node) -> bool:
    """Whether a function of torch.nn.functional was called with inplace=True."""
    if "inplace" in node.kwargs:
        return bool(node.kwargs["inplace"])
    try:
        given = inspect.signature(node.target).bind(*node.args, **node.kwargs)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
    return bool(given.arguments.get("inplace", False))
