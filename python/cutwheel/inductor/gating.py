"""Gated linear units: act(x @ gate.T) * (x @ up.T) of one kernel.

The kernel wants the rows of gate and up in turn. A model may hold them so. If it holds them apart,
or in halves, they are packed once, where Inductor knows them as constants
(`torch._inductor.config.freezing`): to pack parameters at each call would cost more than it saves.
"""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from . import rewriting
from .chains import Chain, is_reshape
from .consumers import end_of
from .formulas import applied_to, before_casts, is_cast
from .gains import Target
from .products import Product, product_of, why_not
from .report import Replacement
from .sizes import is_same, static, value_of

aten, ops = torch.ops.aten, torch.ops.cutwheel

_SPLITS = (aten.split_with_sizes.default, aten.split.Tensor)
ALTERNATING, HALVES, APART = "alternating", "halves", "apart"


_NOT_PACKED = "gate and up are to be packed first: cutwheel.replace_layers does, or freezing"


class _Gate(NamedTuple):
    """What the activation is applied to, and what its result is multiplied by."""

    how: str
    gate: fx.Node
    up: fx.Node
    viewed: fx.Node
    """what the two are parts of; where they are apart, the gate's"""
    inner: frozenset[fx.Node]
    """what computes them of the product's value"""
    is_swapped: bool = False
    """whether the gate is the second half"""
    other: Product | None = None
    """of `up`, where they are apart"""


def _views(node: fx.Node, columns: Any) -> list[fx.Node]:
    group = [node]
    for each in group:
        for user in each.users:
            value = value_of(user)
            if is_reshape(user) and value is not None and is_same(value.shape[-1], columns):
                group.append(user)
    return group


def _part(node: fx.Node, columns: int) -> tuple[str, int] | None:
    """Which part of the last dimension a node takes: (ALTERNATING or HALVES, 0 or 1)."""
    if node.target is operator.getitem:
        split = node.args[0]
        assert isinstance(split, fx.Node)
        half = columns // 2
        fits = split.args[1] in (half, [half, half]) and _is_last(split, 2)
        return (HALVES, int(node.args[1])) if fits else None  # type: ignore[arg-type]
    if node.target is not aten.slice.Tensor or not _is_last(node, 1):
        return None
    given: list[Any] = list(node.args[2:])
    given += [None, None, 1][len(given) :]
    start, end, step = given
    start = 0 if start is None else start
    end = columns if end is None or (isinstance(end, int) and end > columns) else end
    if not all(isinstance(each, int) for each in (start, end, step)):
        return None
    if step == 2 and start in (0, 1) and end >= columns - 1 + start:
        return ALTERNATING, start
    if step == 1 and (start, end) in ((0, columns // 2), (columns // 2, columns)):
        return HALVES, int(start != 0)
    return None


def _is_last(node: fx.Node, position: int) -> bool:
    """Whether an argument is the last dimension."""
    value = value_of(node.args[0])
    dim = node.args[position] if len(node.args) > position else node.kwargs.get("dim", 0)
    return value is not None and dim in (-1, value.dim() - 1)


def _gates(product: Product) -> list[_Gate]:
    """The ways to take a product for a gate and what it gates."""
    columns = static(product.n)
    if columns is None:
        return []
    group = _views(product.node, columns)
    users = {user for node in group for user in node.users} - set(group)
    splits = {user for user in users if user.target in _SPLITS}
    if len(splits) == 1 == len(users):
        (split,) = splits
        parts = list(split.users)
    else:
        splits, parts = set(), list(users)
    found = [_part(node, columns) for node in parts if node.op == "call_function"]
    if len(parts) == 2 and len(found) == 2 and None not in found and columns % 16 == 0:
        (how, first), (same, second) = found  # type: ignore[misc]
        viewed = (next(iter(splits)) if splits else parts[0]).args[0]
        if how == same and {first, second} == {0, 1} and isinstance(viewed, fx.Node):
            inner = frozenset({*group, *splits, *parts} - {product.node})
            ordered = parts if first == 0 else parts[::-1]
            halves = how == HALVES
            gates = [_Gate(how, ordered[0], ordered[1], viewed, inner)]
            if halves:
                gates.append(_Gate(how, ordered[1], ordered[0], viewed, inner, True))
            return gates
    return [_Gate(APART, view, view, view, frozenset(group) - {product.node}) for view in group]


def _tail_of(gate: _Gate, dtype: torch.dtype) -> list[tuple[str, Chain, fx.Node]]:
    """Activation, chain, and what the activation's result is multiplied by, for each activation
    of the gate whose result goes nowhere but into a product with another value."""
    found = []
    for applied in applied_to({gate.gate}):
        inner, result = set(applied.inner), applied.result
        while len(result.users) == 1 and is_cast(next(iter(result.users))):
            inner.add(result)
            (result,) = result.users
        if len(result.users) != 1:
            continue
        (tail,) = result.users
        if tail.target is not aten.mul.Tensor or tail.kwargs:
            continue
        inner.add(result)
        others = [each for each in tail.args if each is not result]
        casts: set[fx.Node] = set()
        up = before_casts(others[0], casts) if len(others) == 1 else None
        if not isinstance(up, fx.Node):
            continue
        inner |= casts
        value = value_of(tail)
        if value is not None and value.dtype != dtype and len(tail.users) == 1:
            (cast,) = tail.users
            if is_cast(cast):
                inner.add(tail)
                tail, value = cast, value_of(cast)
        if value is None or value.dtype != dtype:
            continue
        chain = Chain(tail, frozenset(inner | gate.inner), activation=applied.name)
        found.append((applied.name, chain, up))
    return found


def _may_be_gated(product: Product) -> bool:
    """Freezing joins the weights of CUDA tensors into one that is row-major; packed anew, it is
    column-major as the kernel wants it."""
    layouts = ("tn",) if _constant_of(product.b) is None else ("tn", "tt")
    return product.op == "mm" and product.layout in layouts and not why_not(product)


def _is_alone(chain: Chain, *nodes: fx.Node) -> bool:
    """Whether nothing outside of the chain needs what it does not compute any more."""
    allowed = {*chain.inner, chain.tail, *nodes}
    return all(user in allowed for node in (*chain.inner, *nodes) for user in node.users)


def replace_gated(graph: fx.Graph, node: fx.Node, context: Any) -> list[Replacement]:
    """Puts a kernel in the place of a gated linear unit that begins with a product. Empty: it
    begins none, or stays as it is."""
    product = product_of(node)
    if product is None or not _may_be_gated(product):
        return []
    target = context.target(product.device)
    if isinstance(target, str):
        return []
    for gate in _gates(product):
        for name, chain, up in _tail_of(gate, product.dtype):
            found = _complete(product, gate, chain, up)
            if found is None:
                continue
            gate, chain = found
            return _judge(graph, product, gate, name, chain, target, context)
    return []


def _complete(
    product: Product, gate: _Gate, chain: Chain, up: fx.Node
) -> tuple[_Gate, Chain] | None:
    """With the other product, where gate and up are apart; None: `up` is not what it gates."""
    if gate.how != APART:
        is_alone = up is gate.up and _is_alone(chain, product.node)
        return (gate, chain) if is_alone else None
    views = []
    while is_reshape(up):
        views.append(up)
        up = up.args[0]  # type: ignore[assignment]
    other = product_of(up) if isinstance(up, fx.Node) else None
    if other is None or other.node is product.node or other.a is not product.a:
        return None
    if not _may_be_gated(other) or static(other.n) != static(product.n):
        return None
    inner = chain.inner | set(views)
    whole = Chain(chain.tail, inner, activation=chain.activation)
    if not _is_alone(whole, product.node, other.node):
        return None
    return gate._replace(other=other), whole


def _judge(
    graph: fx.Graph,
    product: Product,
    gate: _Gate,
    name: str,
    chain: Chain,
    target: Target,
    context: Any,
) -> list[Replacement]:
    epilogue = f"gated_{name}"
    weights = [product.b] + ([gate.other.b] if gate.other is not None else [])
    if not target.has_kernel("gemm", product.dtype, "tnt", epilogue):
        return []
    if target.why_not_fused(f"gated{end_of(chain.tail)}", name, product.m) is not None:
        return []
    if context.is_written_between(product.node, chain.tail):
        return []
    if gate.how != ALTERNATING and not all(_constant_of(each) is not None for each in weights):
        for each in (product, gate.other):
            if each is not None:
                context.notes[each.node] = _NOT_PACKED
        return []
    if gate.how == ALTERNATING and product.layout != "tn":
        return []
    with graph.inserting_before(chain.tail):
        if gate.how == ALTERNATING:
            weight = rewriting.transposed(graph, product.b, product.node)
        else:
            weight = _packed(graph, weights, gate.is_swapped, product.node)
        args = product.a, weight, None, None, epilogue
    shape = None
    if is_reshape(gate.viewed):
        sizes = gate.viewed.args[1]
        columns = static(product.n)
        assert isinstance(sizes, (list, tuple))
        assert columns is not None
        shape = [*sizes[:-1], columns if gate.how == APART else columns // 2]
    whole = Chain(chain.tail, chain.inner, shape)
    rewriting.put(graph, product.node, whole, ops.linear_fused.default, args, None)
    text = f"linear_fused({epilogue})"
    entries = [Replacement(product.op, str(product), text)]
    if gate.other is not None:
        rewriting.erase_unused(graph, [gate.other.node])
        entries.append(Replacement(gate.other.op, str(gate.other), text))
    return entries


def _constant_of(node: fx.Node) -> Tensor | None:
    """A weight [K, N] that Inductor has frozen, maybe transposed; None: another. Constants of a
    graph that is not frozen may be exchanged later, as those of a package of AOTInductor."""
    from torch._inductor import config

    if not config.freezing:
        return None
    if node.target is aten.permute.default and node.args[1] == [1, 0]:
        before = _constant_of(node.args[0])  # type: ignore[arg-type]
        return None if before is None else before.t()
    if node.op != "get_attr" or node.graph.owning_module is None:
        return None
    value: Any = node.graph.owning_module
    for part in str(node.target).split("."):
        value = getattr(value, part, None)
    return value if isinstance(value, Tensor) and value.dim() == 2 else None


def _packed(graph: fx.Graph, weights: list[fx.Node], is_swapped: bool, like: fx.Node) -> fx.Node:
    """A constant [2F, K] of the graph: the rows of gate and up in turn."""
    constants = [_constant_of(each) for each in weights]
    rows = torch.cat([each.t() for each in constants if each is not None])  # gate, then up
    gate, up = rows.chunk(2)
    if is_swapped:
        gate, up = up, gate
    value = torch.stack((gate, up), 1).flatten(0, 1)
    module = graph.owning_module
    assert module is not None
    name = f"_cutwheel_gated_{sum(1 for each in graph.nodes if each.op == 'get_attr')}"
    while hasattr(module, name):
        name += "_"
    module.register_buffer(name, value, persistent=False)
    node = graph.get_attr(name)
    from torch._guards import detect_fake_mode

    mode = detect_fake_mode([value_of(like)])
    node.meta["val"] = value if mode is None else mode.from_tensor(value, static_shapes=True)
    return node
