"""Chains of a traced graph, from a convolution or a linear layer on, that one kernel computes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, Node

from .activations import activation_of, factor_of, moves_channels_first, sum_of
from .aliases import Aliases
from .layers import NORMS, dims_of, is_layer, why_not
from .modules import (
    FoldError,
    ResidualConv2d,
    ResidualConv3d,
    ResidualLinear,
    can_fuse,
    fused_module,
)
from .opaque import why_opaque
from .padding import padding_of

NOTHING = "nothing follows it that its kernel could compute"


@dataclass
class Chain:
    """Nodes that one module is put in place of."""

    layer: torch.nn.Module
    nodes: list[Node]
    """that of the layer, then what follows, in the order of the computation"""
    pad: Node | None = None
    """zeros around its input, put there in front of it"""
    norm: torch.nn.Module | None = None
    factor: Node | None = None
    """a parameter that its result is multiplied by"""
    scale: torch.Tensor | None = None
    """the same, one number for each channel"""
    is_channels_first: bool = False
    """the result of a linear layer is permuted to [N, C, ...]"""
    activation: str | None = None
    sum: Node | None = None
    sum_is_in_place: bool = False
    sum_is_reversed: bool = False
    residual_after_activation: bool = False
    note: str = ""
    """why it ends where it does"""
    end: Node | None = None
    """what the note is about"""
    module: torch.nn.Module = field(init=False)

    @property
    def parts(self) -> tuple[str, ...]:
        after = [self.activation] if self.activation else []
        added = ["residual"] if self.sum is not None else []
        rest = after + added if self.residual_after_activation else added + after
        pad = ["padding"] if self.pad is not None else []
        bias = ["bias"] if self.layer.bias is not None else []
        norm = ["batch norm"] if self.norm else []
        scale = ["scale"] if self.scale is not None else []
        return (*pad, self._kind(), *bias, *norm, *scale, *rest)

    def _kind(self) -> str:
        if isinstance(self.layer, torch.nn.Linear):
            return "linear"
        layer: Any = self.layer
        return "transposed conv" if layer.transposed else "conv"

    def input(self) -> Node:
        """The new module's now: nodes of the graph may have been replaced."""
        found = (self.nodes[0] if self.pad is None else self.pad).args[0]
        assert isinstance(found, Node)
        return found

    def operand(self) -> Node:
        """The residual now, likewise."""
        assert self.sum is not None
        found = sum_of(self.sum)
        assert found is not None
        return found.other(self._before_sum())

    def _before_sum(self) -> Node:
        assert self.sum is not None
        return self.nodes[self.nodes.index(self.sum) - 1]


class Matcher:
    """Finds the chains of a graph, which it does not change."""

    def __init__(self, graph: Graph, modules: dict[str, torch.nn.Module]) -> None:
        self._graph, self._modules = graph, modules
        self._aliases = Aliases(graph, modules)
        self._taken: set[Node] = set()

    def layers(self) -> Iterator[Node]:
        for node in self._graph.nodes:
            if node.op == "call_module" and is_layer(self._modules[node.target]):
                yield node

    def chain(self, node: Node) -> Chain | str:
        """The chain that begins at a layer, or why there is none."""
        layer = self._modules[str(node.target)]
        reason = why_not(layer)
        if reason is not None:
            return reason
        if len(node.args) != 1 or node.kwargs or not isinstance(node.args[0], Node):
            return "it is not called with one argument"
        chain = Chain(layer, [node])
        self._take_pad(chain)
        self._extend(chain)
        is_alone = len(chain.nodes) == 1 and chain.pad is None
        if is_alone and (isinstance(layer, torch.nn.Linear) or layer.bias is None):
            return chain.note or NOTHING
        try:
            self._make(chain)
        except FoldError as error:
            what = "scale" if chain.norm is None else "batch norm"
            return f"the {what} behind it is not folded: {error}"
        self._taken.update(chain.nodes)
        return chain

    def _make(self, chain: Chain) -> None:
        chain.module = fused_module(
            *(chain.layer, chain.norm, chain.activation, chain.sum is not None),
            *(chain.residual_after_activation, self._zeros_of(chain)),
            *(chain.scale, chain.is_channels_first),
        )
        if isinstance(chain.module, (ResidualConv2d, ResidualConv3d, ResidualLinear)):
            chain.module.sum_is_in_place = chain.sum_is_in_place
            chain.module.sum_is_reversed = chain.sum_is_reversed

    def note(self, chain: Chain) -> str:
        """Why the chain ends where it does, unless another one goes on there."""
        return "" if chain.end in self._taken else chain.note

    def _take_pad(self, chain: Chain) -> None:
        """Zeros around the input, if kernels can read them as they read padding."""
        node, layer = chain.nodes[0].args[0], chain.layer
        assert isinstance(node, Node)
        if isinstance(layer, torch.nn.Linear) or layer.transposed or layer.padding_mode != "zeros":
            return
        if padding_of(node, self._modules, dims_of(layer)) is None:
            return
        if not self._aliases.is_written_between(node, chain.nodes[0], [node]):
            chain.pad = node

    def _zeros_of(self, chain: Chain) -> tuple[int, ...]:
        if chain.pad is None:
            return ()
        return padding_of(chain.pad, self._modules, dims_of(chain.layer)) or ()

    def _extend(self, chain: Chain) -> None:
        """Takes up what follows, as far as one kernel computes it."""
        while not chain.note:
            value = chain.nodes[-1]
            known = [(user, what) for user in value.users if (what := self._what(chain, user))]
            if not known:
                break
            chain.end, what = known[0]
            if len(value.users) > 1:
                chain.note = f"the {what} behind it is not in it: others use its value, too"
            else:
                chain.note = self._take(chain, chain.end, what)
        self._drop_permutation(chain)

    def _drop_permutation(self, chain: Chain) -> None:
        """The last one, if nothing is computed behind it."""
        if chain.is_channels_first and moves_channels_first(chain.nodes[-1]):
            chain.nodes.pop()
            chain.is_channels_first = False

    def _what(self, chain: Chain, user: Node) -> str:
        """The part that the node would be in the chain: "batch norm", "residual" or an activation;
        "" where the kernel has no place for it."""
        layer, activation, has_sum = chain.layer, chain.activation, chain.sum is not None
        if user.op == "call_module" and type(self._modules[str(user.target)]) in NORMS:
            is_next = not isinstance(layer, torch.nn.Linear) and len(chain.nodes) == 1
            return "batch norm" if is_next else ""
        if self._factor(chain, user) is not None:
            return "scale"
        if moves_channels_first(user):
            is_linear = isinstance(layer, torch.nn.Linear)
            return "permutation" if is_linear and not chain.is_channels_first else ""
        found = sum_of(user)
        if found is not None:
            is_free = not has_sum and user not in self._taken and found.a is not found.b
            fits = is_free and can_fuse(layer, activation, True, activation is not None)
            return "residual" if fits else ""
        name = activation_of(user, self._modules) or ""
        fits = activation is None and bool(name) and can_fuse(layer, name, has_sum, False)
        return name if fits else ""

    def _take(self, chain: Chain, user: Node, what: str) -> str:
        """Makes it a part of the chain, or returns why not."""
        module = self._modules[str(user.target)] if user.op == "call_module" else None
        if what == "residual":
            return self._take_sum(chain, user)
        if what == "scale":
            chain.factor = factor_of(user, chain.nodes[-1])
            chain.scale = self._factor(chain, user)
            chain.nodes.append(user)
            return ""
        if what == "permutation":
            chain.is_channels_first = True
            chain.nodes.append(user)
            return ""
        reason = None if module is None else why_opaque(module)
        if what == "batch norm":
            assert module is not None
            reason = reason or _why_not_folded(module)
            chain.norm = None if reason else module
        elif not reason:
            chain.activation = what
        if reason:
            return f"the {what} behind it is not in it: {reason}"
        chain.nodes.append(user)
        return ""

    def _factor(self, chain: Chain, user: Node) -> torch.Tensor | None:
        """One number for each channel, which the node multiplies the chain's value by, if that can
        be a part of the weights."""
        layer: Any = chain.layer
        if chain.scale is not None or chain.activation is not None or chain.sum is not None:
            return None
        other = factor_of(user, chain.nodes[-1])
        found = None if other is None else self._parameter(other)
        if found is None or found.dtype != layer.weight.dtype:
            return None
        is_linear = isinstance(layer, torch.nn.Linear)
        channels = layer.out_features if is_linear else layer.out_channels
        behind = 0 if is_linear else dims_of(layer)  # dimensions behind the channels
        if chain.is_channels_first:
            permutation = next(node for node in chain.nodes if moves_channels_first(node))
            given = permutation.args[1:] or (permutation.kwargs["dims"],)
            behind = len(given[0] if len(given) == 1 else given) - 2  # type: ignore[arg-type]
        of_channels = (channels, *(1,) * behind)
        if tuple(found.shape) not in (of_channels, (1, *of_channels)):
            return None
        return found.reshape(-1)

    def _parameter(self, node: Node) -> torch.Tensor | None:
        """The parameter that a node is, or that it sees in another shape."""
        if node.op == "call_method" and node.target in ("view", "reshape"):
            found = self._parameter(node.args[0]) if isinstance(node.args[0], Node) else None
            sizes = node.args[1:]
            if found is None or node.kwargs or not all(type(size) is int for size in sizes):
                return None
            return found.reshape(sizes)  # type: ignore[arg-type]
        if node.op != "get_attr":
            return None
        owner, _, name = str(node.target).rpartition(".")
        return self._modules[owner]._parameters.get(name) if owner in self._modules else None

    def _take_sum(self, chain: Chain, user: Node) -> str:
        found, first = sum_of(user), chain.nodes[0]
        assert found is not None
        other = found.other(chain.nodes[-1])
        if other.op == "get_attr":
            return "what is added to it is a parameter, which has another shape as a rule"
        if found.is_in_place and found.a is other:
            return "the sum behind it is written to its other operand"
        if self._aliases.is_written_between(first, user, first.all_input_nodes):
            return "its input may be written to before the sum behind it"
        chain.sum, chain.residual_after_activation = user, chain.activation is not None
        chain.sum_is_in_place, chain.sum_is_reversed = found.is_in_place, found.a is other
        chain.nodes.append(user)
        return ""


def _why_not_folded(norm: torch.nn.Module) -> str | None:
    if norm.training:
        return "it is in training mode"
    if norm.running_mean is None or norm.running_var is None:
        return "it has no running statistics"
    return None
