"""What follows a product or a convolution and fits into its epilogue.

A chain begins with the node whose value the kernel's accumulator has. At each step the value is
viewed, a bias or a residual is added to it, or an activation is applied. A step is taken only if
nothing else needs the value before it, with one exception: the argument of an activation, which
the kernel can store besides the result, as training needs it for backward.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, fx

from .formulas import Applied, applied_to, is_cast
from .sizes import value_of

aten = torch.ops.aten


@dataclass(frozen=True)
class Form:
    """What may follow a kind of kernel."""

    keeps_rows: Callable[[fx.Node], bool]
    """whether a node is a view that an epilogue knows nothing of"""
    is_bias: Callable[[Any], bool]
    is_residual: Callable[[Any, fx.Node], bool]
    """of an operand, and of the value that it is added to"""


@dataclass(frozen=True)
class Chain:
    """Nodes that one kernel computes."""

    tail: fx.Node
    """the last one, whose value is the kernel's result"""
    inner: frozenset[fx.Node]
    """the others, which are not needed any more"""
    shape: Any = None
    """arguments of the view from the kernel's result to the tail; None: they have one shape"""
    bias: Any = None
    residual: Any = None
    activation: str | None = None
    residual_is_last: bool = False
    stored: fx.Node | None = None
    """the argument of the activation, where others use it"""
    stored_shape: Any = None
    """as `shape`, of `stored`"""

    @property
    def epilogue(self) -> str:
        """As the manifest calls it. A missing bias stands for zeros."""
        last = self.residual is not None and self.residual_is_last
        parts = (
            "bias",
            "residual" if self.residual is not None and not last else "",
            self.activation or "",
            "residual" if last else "",
            "aux" if self.stored is not None else "",
        )
        return "_".join(part for part in parts if part)

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing to be fused but a bias."""
        return self.residual is None and self.activation is None


@dataclass
class _Walk:
    form: Form
    dtype: torch.dtype
    found: list[Chain] = field(default_factory=list)
    stop: str = ""
    """why it went no further"""

    def group(self, first: fx.Node) -> list[fx.Node]:
        """The value and its views."""
        group = [first]
        for node in group:
            group += [user for user in node.users if self.form.keeps_rows(user)]
        return group

    def step(self, chain: Chain) -> Chain | None:
        """The chain that is longer by one operation."""
        group = self.group(chain.tail)
        users = {user for node in group for user in node.users} - set(group)
        if chain.stored is not None:
            self.stop = "what the activation is applied to is stored"
            return None
        if len(users) == 1:
            longer = self._add(chain, group, next(iter(users)))
            if longer is not None:
                return longer
        if chain.activation is not None:
            return None
        for applied in applied_to(set(group)):
            longer = self._activate(chain, group, users, applied)
            if longer is not None:
                return longer
        if len(users) > 1:
            self.stop = "several operations use the result"
        return None

    def _shape_of(self, chain: Chain, node: fx.Node) -> Any:
        """How the kernel's result is viewed as a node of the group."""
        return chain.shape if node is chain.tail else node.args[1]

    def _add(self, chain: Chain, group: list[fx.Node], user: fx.Node) -> Chain | None:
        if user.target is not aten.add.Tensor or user.kwargs:
            return None
        before = [each for each in user.args if each in group]
        others = [each for each in user.args if each not in group]
        value = value_of(user)
        if len(before) != 1 or len(others) != 1 or value is None or value.dtype != self.dtype:
            self.stop = "a sum in another dtype" if value is not None and others else ""
            return None
        (operand,), (other,) = before, others
        assert isinstance(operand, fx.Node)
        longer = replace(
            chain,
            tail=user,
            inner=chain.inner | set(group),
            shape=self._shape_of(chain, operand),
        )
        is_first = chain.activation is None
        if is_first and chain.bias is None and chain.residual is None and self.form.is_bias(other):
            return replace(longer, bias=other)
        if chain.residual is None and self.form.is_residual(other, operand):
            return replace(longer, residual=other, residual_is_last=not is_first)
        self.stop = "a sum with another shape, dtype or layout"
        return None

    def _activate(
        self, chain: Chain, group: list[fx.Node], users: set[fx.Node], applied: Applied
    ) -> Chain | None:
        tail, inner = applied.result, set(applied.inner)
        value = value_of(tail)
        if value is not None and value.dtype != self.dtype and len(tail.users) == 1:
            (cast,) = tail.users
            if is_cast(cast):
                inner.add(tail)
                tail, value = cast, value_of(cast)
        if value is None or value.dtype != self.dtype:
            self.stop = "an activation in another dtype"
            return None
        if any(user not in inner and user is not tail for node in inner for user in node.users):
            self.stop = "a part of the activation is used elsewhere"
            return None
        is_shared = bool(users - inner - {tail})
        return replace(
            chain,
            tail=tail,
            inner=chain.inner | inner | (set() if is_shared else set(group)),
            shape=self._shape_of(chain, applied.argument),
            activation=applied.name,
            stored=chain.tail if is_shared else None,
            stored_shape=chain.shape,
        )


def chains_of(
    node: fx.Node, dtype: torch.dtype, form: Form, bias: Any = None, residual: Any = None
) -> tuple[list[Chain], str]:
    """The chains that begin with a node, longest first, down to the node alone; and why none is
    longer.

    Args:
        bias, residual: of the node itself, as addmm and convolution have one
    """
    walk = _Walk(form, dtype)
    chain: Chain | None = Chain(node, frozenset(), bias=bias, residual=residual)
    while chain is not None:
        walk.found.append(chain)
        chain = walk.step(chain)
    return walk.found[::-1], walk.stop


def is_reshape(node: fx.Node) -> bool:
    return node.op == "call_function" and node.target in (
        aten.reshape.default,
        aten.view.default,
        aten._unsafe_view.default,
    )


def mutating_positions(graph: fx.Graph, order: dict[fx.Node, int]) -> list[int]:
    """Where operations write to what they are given. No read may be moved over them."""
    return [
        order[node]
        for node in graph.nodes
        if node.op == "call_function"
        and isinstance(node.target, torch._ops.OpOverload)
        and node.target._schema.is_mutable
    ]


def same_value(node: Any, like: Tensor) -> bool:
    """Whether a node is a tensor of the dtype and on the device of another."""
    value = value_of(node)
    return value is not None and value.dtype == like.dtype and value.device == like.device
