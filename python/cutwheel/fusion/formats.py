"""Memory formats: what leaves a graph lies in memory as it does without fusing.

A convolution of torch returns channels last if its input or its weight is channels last, else a
contiguous image. So do those of volumes, and of signals, whose input torch makes contiguous first.
One of cutwheel returns channels last always. Within a graph that is as good, and the next
convolution reads it without a copy. But the caller, and what the graph calls that depends on
strides (as_strided, modules that are not looked into), are given images in the format that they
would have without cutwheel.

Which one that is is known at run time only. It is that of the values that came into the graph in
another way than from a fused convolution, in the order in which torch asks them.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from .. import nn as ours
from .aliases import Aliases, written_by
from .layers import CONVS
from .opaque import why_opaque

# --- at run time


class IsContiguous(nn.Module):
    """Whether a convolution of torch would return a contiguous image for this one.

    None: it does not decide. Nor does an operand of a sum that is broadcast along channels or
    pixels.

    Args:
        dims: of an image 2, of a volume 3, of a signal 1
    """

    def __init__(self, dims: int) -> None:
        super().__init__()
        self.dims = dims

    def forward(self, image: Any, is_operand: bool) -> bool | None:
        dims = self.dims
        if not isinstance(image, Tensor) or image.dim() not in (dims + 1, dims + 2):
            return None
        if is_operand and (image.shape[-dims - 1] == 1 or image.shape[-dims:].numel() == 1):
            return None
        if dims == 1 and not is_operand:
            return True  # torch makes a signal contiguous first
        return not is_channels_last(image if image.dim() == dims + 2 else image.unsqueeze(0))


class InFormat(nn.Module):
    """A value that is channels last, or contiguous if the first who decides is."""

    def forward(self, value: Tensor, *is_contiguous: bool | None) -> Tensor:
        for decision in is_contiguous:
            if decision is not None:
                # Strides follow from the sizes, also where a size is 1 and others would do.
                return value.reshape(-1).view(value.shape) if decision else value
        return value


def is_channels_last(image: Tensor) -> bool:
    """As torch's suggest_memory_format of [N, C, H, W] or [N, C, D, H, W], and of [N, C, L] with a
    height of 1: contiguous where both would do."""
    if image.dim() == 3:
        image = image.unsqueeze(2)
    sizes, strides = image.shape, image.stride()
    least = 0
    for dim in (1, *range(image.dim() - 1, 1, -1), 0):
        if sizes[dim] == 0 or strides[dim] < least or strides[1] == 0:
            return False
        if dim == 0 and least == strides[1]:
            return False
        least = strides[dim] * sizes[dim]
    return True


def weight_formats(model: nn.Module) -> dict[Tensor, bool]:
    """Which weights of convolutions are channels last."""
    return {
        parameter: is_channels_last(parameter)
        for parameter in model.parameters()
        if parameter.dim() in (3, 4, 5)
    }


# --- what is known of functions


def _named(*names: str) -> frozenset[object]:
    """Methods and functions, those that write to their first argument included."""
    found: set[object] = set()
    for name in names:
        found |= {name, f"{name}_", f"__{name}__", f"__i{name}__", f"__r{name}__"}
        for each in (name, f"{name}_", f"i{name}"):
            functions = (getattr(owner, each, None) for owner in (torch, F, operator))
            found |= {function for function in functions if callable(function)}
    return frozenset(found)


_OF_TWO = _named("add", "sub", "mul", "div", "truediv", "true_divide", "maximum", "minimum")
"""whose result has the format of the first operand that decides"""
_OF_ALL = frozenset((torch.cat, torch.concat, torch.concatenate))
"""whose result has the format of the operands if they all have the same"""
_OF_ONE = _named(
    *("relu", "relu6", "silu", "gelu", "sigmoid", "tanh", "hardswish", "hardsigmoid", "hardtanh"),
    *("softplus", "leaky_relu", "elu", "celu", "selu", "mish", "clamp", "clamp_min", "clamp_max"),
    *("neg", "abs", "exp", "sqrt", "rsqrt", "square", "pow", "erf", "log", "clone"),
    *("half", "bfloat16", "float", "double", "dropout", "dropout2d", "dropout3d", "batch_norm"),
    *("max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "interpolate", "pad"),
    *("max_pool3d", "avg_pool3d", "adaptive_avg_pool3d"),
    *("mean", "sum", "amax", "amin", "softmax"),
)
_OF_ONE_MODULES = (
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, nn.GroupNorm),
    *(nn.Dropout, nn.Dropout2d, nn.Dropout3d, nn.Upsample, nn.ZeroPad2d, nn.ReflectionPad2d),
    *(nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d),
    *(nn.MaxPool3d, nn.AvgPool3d, nn.AdaptiveAvgPool3d),
    *(nn.ReLU, nn.ReLU6, nn.SiLU, nn.GELU, nn.Sigmoid, nn.Tanh, nn.Hardswish, nn.Hardsigmoid),
    *(nn.Hardtanh, nn.Softplus, nn.LeakyReLU, nn.ELU, nn.Mish),
)
_FUNCTIONS = (F.conv1d, F.conv2d, F.conv3d)
_PARTS = frozenset(("chunk", "split", "narrow", torch.chunk, torch.split, torch.narrow))
"""which take a part of an image and leave the order of its strides; as getitem does"""
_VIEW_NAMES = ("flatten", "reshape", "permute", "transpose", "movedim", "unflatten", "squeeze")
_VIEWS = frozenset((*_VIEW_NAMES, *(getattr(torch, name) for name in _VIEW_NAMES)))
"""behind which the order is another one"""
_ANY_STRIDES = frozenset(("size", "dim", "numel", F.linear, F.layer_norm))
"""whose result, strides included, does not depend on the strides of the first argument"""
_ANY_STRIDES_MODULES = (nn.Linear, nn.LayerNorm, ours.Linear)
_NO_STRIDES = ("shape", "ndim", "dtype", "device", "is_cuda")


# --- in the graph

IMAGE, PART, VIEW = "image", "part of an image", "view in another order"


class Fused(NamedTuple):
    """A call of a fused convolution."""

    node: Node
    weight: Tensor
    """of the convolution that it stands for"""
    sum_is_reversed: bool


class _Value(NamedTuple):
    """One that may be channels last where it would be contiguous without cutwheel."""

    deciding: tuple[tuple[Node, bool, int], ...]
    """who decides what it would be: the first of these that does; whether it is the operand of a
    sum; and the dimensions of its pixels, 2 of images, 3 of volumes and 1 of signals"""
    kind: str


def _first(node: Node) -> Node | None:
    found = node.args[0] if node.args else node.kwargs.get("input")
    return found if isinstance(found, Node) else None


class Formats:
    """Memory formats of the values of one graph, which it changes.

    Args:
        before: what weight_formats said before anything was fused
    """

    def __init__(
        self, module: GraphModule, fused: list[Fused], before: Mapping[Tensor, bool]
    ) -> None:
        self._module, self._graph, self._before = module, module.graph, before
        self._modules = dict(module.named_modules(remove_duplicate=False))
        self._parameters = dict(module.named_parameters(remove_duplicate=False))
        self._fused = {each.node: each for each in fused}
        self._values: dict[Node, _Value] = {}
        self._at_once: set[Node] = set()
        self._first: dict[Node, _Value] = {}  # of those that are restored at once
        self._restored: dict[Node, Node] = {}
        self._decisions: dict[tuple[Node, bool, int], Node] = {}
        self._helpers: dict[int, str] = {}

    def restore(self) -> None:
        """Puts what is asked for its strides into the format that it has without cutwheel."""
        aliases = Aliases(self._graph, self._modules)
        while True:
            uses = self._look()
            needed = {each for arg, _ in uses for each in self._made_of(arg)}
            late = [each for each in needed if aliases.is_written_behind(each)]
            if not late:
                break
            self._at_once |= {self._root(each, aliases) for each in late}
        for node in self._first:
            users = list(node.users)
            made = self._in_format(node)
            for user in users:
                user.replace_input_with(node, made)
        for arg, user in uses:
            user.replace_input_with(arg, self._in_format(arg))
        for node, value in reversed(self._values.items()):
            if not node.users and value.kind != IMAGE:
                self._graph.erase_node(node)

    def _look(self) -> list[tuple[Node, Node]]:
        """At all nodes; arguments that must be in the format that they would have, and whose."""
        self._values.clear()
        self._first.clear()
        uses: list[tuple[Node, Node]] = []
        for node in self._graph.nodes:
            value, dependent = self._look_at(node)
            if value is not None:
                (self._first if node in self._at_once else self._values)[node] = value
            uses += [(arg, node) for arg in dependent]
        return uses

    def _root(self, node: Node, aliases: Aliases) -> Node:
        """The image whose memory the value may be in. It is restored as soon as it is there: a copy
        that is made later would miss what is written to it."""
        origins = aliases.origins([node])
        return next(
            each
            for each, value in self._values.items()
            if value.kind == IMAGE and not origins.isdisjoint(aliases.origins([each]))
        )

    def _look_at(self, node: Node) -> tuple[_Value | None, list[Node]]:
        """The node's value, if it may be in another format; and arguments of the node that must not
        be."""
        strange = [arg for arg in node.all_input_nodes if arg in self._values]
        views = [arg for arg in strange if self._values[arg].kind == VIEW]
        weight = self._weight(node)
        if weight is not None:
            asked = self._asked_by_convolution(node)
            dims = weight.dim() - 2
            if dims == 1 and asked:  # asked itself, and nobody that it comes from
                return _Value(tuple((*each, dims) for each in asked), IMAGE), views
            return (self._value(asked, dims) if asked else None), views
        if not strange:
            return None, []
        first = _first(node)
        others = [arg for arg in strange if arg is not first]
        if self._ignores_strides(node):
            return None, others
        kind = self._kind_of_view(node)
        if kind and first in self._values and not others:
            found = self._values[first]
            return found._replace(kind=VIEW if VIEW in (kind, found.kind) else kind), []
        operands = [] if views else self._operands(node)
        if any(arg not in operands for arg in strange):
            return None, strange
        dims = self._values[strange[0]].deciding[0][2]
        asked = [(each, len(operands) > 1 and node.target not in _OF_ALL) for each in operands]
        if node.target in _OF_ALL and len({self._value([each], dims) for each in asked}) > 1:
            return None, strange
        written = written_by(node, self._modules)
        if not written:
            return self._value(asked, dims), []
        if written != [first] or first is None:
            return None, strange
        if first not in self._values:
            return None, []
        is_image = self._values[first].kind == IMAGE
        return (self._values[first], []) if is_image else (None, strange)

    def _value(self, asked: list[tuple[Node, bool]], dims: int) -> _Value:
        deciding: dict[tuple[Node, bool, int], None] = {}
        for each in asked:
            found = self._values.get(each[0])
            if found is None or found.kind == VIEW:
                deciding[(*each, dims)] = None
            else:
                deciding |= dict.fromkeys(found.deciding)
        return _Value(tuple(deciding), IMAGE)

    def _weight(self, node: Node) -> Tensor | None:
        """That of a convolution."""
        if node in self._fused:
            return self._fused[node].weight
        if node.op == "call_module":
            module = self._modules[str(node.target)]
            is_known = type(module) in CONVS and not why_opaque(module)
            return module.weight if is_known else None
        if node.target in _FUNCTIONS:
            weight = node.args[1] if len(node.args) > 1 else node.kwargs.get("weight")
            if isinstance(weight, Node) and weight.op == "get_attr":
                return self._parameters.get(str(weight.target))
        return None

    def _asked_by_convolution(self, node: Node) -> list[tuple[Node, bool]]:
        """Whom torch would ask for the format of a result that is channels last here."""
        weight, image = self._weight(node), _first(node)
        if weight is None or image is None:
            return []
        asked: list[tuple[Node, bool]] = []
        fused = self._fused.get(node)
        if fused is not None and fused.sum_is_reversed:
            asked = [(arg, True) for arg in node.args[1:] if isinstance(arg, Node)]
        if self._before.get(weight, True):
            return asked
        is_new = fused is not None or is_channels_last(weight) or image in self._values
        return [*asked, (image, False)] if is_new else asked

    def _module_of(self, node: Node) -> nn.Module | None:
        module = self._modules[str(node.target)] if node.op == "call_module" else None
        return None if module is None or why_opaque(module) else module

    def _ignores_strides(self, node: Node) -> bool:
        """Whether the result does not depend on the strides of its first argument."""
        if isinstance(self._module_of(node), _ANY_STRIDES_MODULES):
            return True
        return node.target in _ANY_STRIDES or (
            node.target is getattr and node.args[1] in _NO_STRIDES
        )

    def _kind_of_view(self, node: Node) -> str:
        if isinstance(self._module_of(node), nn.Flatten) or node.target in _VIEWS:
            return VIEW
        if node.target is not operator.getitem:
            return PART if node.target in _PARTS else ""
        index = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
        is_plain = all(each is ... or isinstance(each, (int, slice)) for each in index)
        return PART if is_plain else ""

    def _operands(self, node: Node) -> list[Node]:
        """Those that the format of the result is taken from, in this order."""
        module = self._module_of(node)
        if module is not None:
            is_known = type(module) in _OF_ONE_MODULES
            count = 1 if is_known and not getattr(module, "return_indices", False) else 0
        elif node.op == "call_module" or node.kwargs.get("return_indices"):
            count = 0
        else:
            count = 2 if node.target in _OF_TWO else 1 if node.target in (_OF_ONE | _OF_ALL) else 0
        found: list[Node] = []
        torch.fx.map_arg(node.args[:count] or _first(node), found.append)
        return found if count else []

    def _made_of(self, node: Node) -> Iterator[Node]:
        yield node
        if self._values[node].kind != IMAGE:
            for arg in node.all_input_nodes:
                if arg in self._values:
                    yield from self._made_of(arg)

    def _in_format(self, node: Node) -> Node:
        value = self._values.get(node) or self._first.get(node)
        if value is None:
            return node
        if node not in self._restored:
            decisions = [self._decision(*each) for each in value.deciding]
            with self._graph.inserting_after(node):
                self._restored[node] = (
                    self._graph.call_module(self._helper(0), (node, *decisions))
                    if value.kind == IMAGE
                    else self._graph.node_copy(node, self._in_format)
                )
        return self._restored[node]

    def _decision(self, node: Node, is_operand: bool, dims: int) -> Node:
        key = node, is_operand, dims
        if key not in self._decisions:
            asked = after = self._in_format(node)
            while after.op == "placeholder" and after.next.op == "placeholder":
                after = after.next
            with self._graph.inserting_after(after):
                self._decisions[key] = self._graph.call_module(
                    self._helper(dims), (asked, is_operand)
                )
        return self._decisions[key]

    def _helper(self, dims: int) -> str:
        """The name of the module that asks images of so many dimensions; of 0, of InFormat."""
        if dims not in self._helpers:
            name = "is_contiguous" if dims else "in_format"
            while hasattr(self._module, name):
                name += "_"
            made = IsContiguous(dims) if dims else InFormat()
            self._module.add_submodule(name, made.eval())
            self._helpers[dims] = name
        return self._helpers[dims]
