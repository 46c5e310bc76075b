"""Chains of a traced graph, from a convolution or a linear layer on, that one kernel computes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch.fx import Graph, Node

from ..ops._common.errors import dtype_name
from ..ops._common.precision import conv_tf32_allowed, tf32_allowed
from ..ops.conv._grouped import why_not_layer
from .activations import activation_of, sum_of
from .aliases import Aliases
from .modules import FoldError, ResidualConv2d, ResidualLinear, can_fuse, fused_module
from .opaque import why_opaque

NORMS = (torch.nn.BatchNorm2d, torch.nn.SyncBatchNorm)
LAYERS = (
    *(torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d, torch.nn.Linear),
    *(torch.nn.ConvTranspose1d, torch.nn.ConvTranspose2d, torch.nn.ConvTranspose3d),
)
FUNCTIONS = (torch.nn.functional.conv2d, torch.nn.functional.linear)

NOTHING = "nothing follows it that its kernel could compute"


@dataclass
class Chain:
    """Nodes that one module is put in place of."""

    layer: torch.nn.Module
    nodes: list[Node]
    """that of the layer, then what follows, in the order of the computation"""
    norm: torch.nn.Module | None = None
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
        is_linear = isinstance(self.layer, torch.nn.Linear)
        after = [self.activation] if self.activation else []
        added = ["residual"] if self.sum is not None else []
        rest = after + added if self.residual_after_activation else added + after
        bias = ["bias"] if self.layer.bias is not None else []
        norm = ["batch norm"] if self.norm else []
        return ("linear" if is_linear else "conv", *bias, *norm, *rest)

    def operand(self) -> Node:
        """The residual now: nodes of the graph may have been replaced."""
        assert self.sum is not None
        found = sum_of(self.sum)
        assert found is not None
        return found.other(self._before_sum())

    def _before_sum(self) -> Node:
        assert self.sum is not None
        return self.nodes[self.nodes.index(self.sum) - 1]


def is_layer(module: torch.nn.Module) -> bool:
    """Whether the report says what has become of it: those of cutwheel are what they should be."""
    is_ours = type(module).__module__.startswith("cutwheel.")
    return isinstance(module, LAYERS) and not is_ours


def why_not(layer: torch.nn.Module) -> str | None:
    """Why no module of cutwheel stands for this one; None: one does."""
    kinds = {torch.nn.Conv2d: conv_tf32_allowed, torch.nn.Linear: tf32_allowed}
    if why_opaque(layer):
        return why_opaque(layer)
    if not isinstance(layer, (torch.nn.Conv2d, torch.nn.Linear)):
        kind = next(each.__name__ for each in LAYERS if isinstance(layer, each))
        if kind == "Conv1d":
            return "fuse takes convolutions of images; call cutwheel.conv1d in its place"
        return f"fuse takes convolutions of images; put cutwheel.nn.{kind} in its place"
    if type(layer) not in kinds:
        return f"it is a {type(layer).__name__}, whose class may do other things than torch's"
    dtype = layer.weight.dtype
    if isinstance(layer, torch.nn.Conv2d) and layer.groups != 1:
        because = why_not_layer(layer)
        if because is not None:
            return because
        if dtype == torch.float32 and not torch.is_autocast_enabled():
            return (
                f"groups is {layer.groups} and weight has dtype float32; cutwheel's grouped "
                "convolutions take float16 and bfloat16"
            )
    if dtype == torch.float32:
        if kinds[type(layer)]() or torch.is_autocast_enabled():
            return None
        setting = "cudnn.conv" if isinstance(layer, torch.nn.Conv2d) else "cuda.matmul"
        return (
            "weight has dtype float32, and torch's setting forbids TF32: convert the model to "
            f'bfloat16 or float16, or set torch.backends.{setting}.fp32_precision = "tf32"'
        )
    if dtype not in (torch.float16, torch.bfloat16):
        return f"weight has dtype {dtype_name(dtype)}; expected float16, bfloat16 or float32"
    return None


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
        self._extend(chain)
        if len(chain.nodes) == 1 and (isinstance(layer, torch.nn.Linear) or layer.bias is None):
            return chain.note or NOTHING
        try:
            self._make(chain)
        except FoldError as error:
            return f"the batch norm behind it is not folded: {error}"
        self._taken.update(chain.nodes)
        return chain

    def _make(self, chain: Chain) -> None:
        chain.module = fused_module(
            *(chain.layer, chain.norm, chain.activation, chain.sum is not None),
            chain.residual_after_activation,
        )
        if isinstance(chain.module, (ResidualConv2d, ResidualLinear)):
            chain.module.sum_is_in_place = chain.sum_is_in_place
            chain.module.sum_is_reversed = chain.sum_is_reversed

    def note(self, chain: Chain) -> str:
        """Why the chain ends where it does, unless another one goes on there."""
        return "" if chain.end in self._taken else chain.note

    def _extend(self, chain: Chain) -> None:
        """Takes up what follows, as far as one kernel computes it."""
        while not chain.note:
            value = chain.nodes[-1]
            known = [(user, what) for user in value.users if (what := self._what(chain, user))]
            if not known:
                return
            chain.end, what = known[0]
            if len(value.users) > 1:
                chain.note = f"the {what} behind it is not in it: others use its value, too"
            else:
                chain.note = self._take(chain, chain.end, what)

    def _what(self, chain: Chain, user: Node) -> str:
        """The part that the node would be in the chain: "batch norm", "residual" or an activation;
        "" where the kernel has no place for it."""
        layer, activation, has_sum = chain.layer, chain.activation, chain.sum is not None
        if user.op == "call_module" and type(self._modules[str(user.target)]) in NORMS:
            is_next = isinstance(layer, torch.nn.Conv2d) and len(chain.nodes) == 1
            return "batch norm" if is_next else ""
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
