"""Gated linear units: act(x @ gate.T + b) * (x @ up.T + c) of one kernel.

The kernel reads gate and up where they lie: in turn, in halves of one tensor, or in two. Biases it
reads in turn, so others are copied, in the graph or, where Inductor knows them as constants
(`torch._inductor.config.freezing`), once. Freezing makes weights row-major, which the kernel does
not read: these are packed once, too.
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
from .gemms import form_of
from .products import Product, product_of, why_not
from .report import Replacement
from .sizes import is_same, static, value_of

aten, ops = torch.ops.aten, torch.ops.cutwheel

_SPLITS = (aten.split_with_sizes.default, aten.split.Tensor)
ALTERNATING, HALVES, APART = "alternating", "halves", "apart"


class _Layer(NamedTuple):
    """A product, and the bias that is added to it."""

    product: Product
    bias: fx.Node | None
    node: fx.Node
    """the sum; without a bias, or where the product adds it, the product"""
    inner: frozenset[fx.Node]
    """what computes the sum of the product"""
    shape: Any = None
    """in which the bias is added; None: the product's"""


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
    other: _Layer | None = None
    """of `up`, where they are apart"""


def _views(node: fx.Node, columns: Any) -> list[fx.Node]:
    group = [node]
    for each in group:
        for user in each.users:
            value = value_of(user)
            if is_reshape(user) and value is not None and is_same(value.shape[-1], columns):
                group.append(user)
    return group


def _layers(product: Product) -> list[_Layer]:
    """The product with the bias that follows it, and as it is; none, if it adds what is no bias."""
    form, none = form_of(product), frozenset[fx.Node]()
    if product.c is not None:
        is_row = product.is_plain_sum and form.is_bias(product.c)
        return [_Layer(product, product.c, product.node, none)] if is_row else []
    found = [_Layer(product, None, product.node, none)]
    group = _views(product.node, value_of(product.node).shape[-1])  # type: ignore[union-attr]
    users = {user for node in group for user in node.users} - set(group)
    if len(users) != 1:
        return found
    (add,) = users
    value = value_of(add)
    if add.target is not aten.add.Tensor or add.kwargs or value is None:
        return found
    before = [each for each in add.args if each in group]
    biases = [each for each in add.args if each not in group and form.is_bias(each)]
    if len(before) == 1 == len(biases) and value.dtype == product.dtype:
        (operand,), (bias,) = before, biases
        assert isinstance(operand, fx.Node)
        assert isinstance(bias, fx.Node)
        shape = None if operand is product.node else operand.args[1]
        inner = frozenset({*group, add} - {product.node})
        found.insert(0, _Layer(product, bias, add, inner, shape))
    return found


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


def _gates(layer: _Layer) -> list[_Gate]:
    """The ways to take a layer's result for a gate and what it gates."""
    columns, product = static(layer.product.n), layer.product.node
    if columns is None:
        return []
    group = _views(layer.node, columns)
    own = frozenset({*layer.inner, *group} - {product})
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
            inner = own | {*splits, *parts}
            ordered = parts if first == 0 else parts[::-1]
            halves = how == HALVES
            gates = [_Gate(how, ordered[0], ordered[1], viewed, inner)]
            if halves:
                gates.append(_Gate(how, ordered[1], ordered[0], viewed, inner, True))
            return gates
    return [_Gate(APART, view, view, view, own) for view in group]


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
    return product.op in ("mm", "addmm") and product.layout in layouts and not why_not(product)


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
    for layer in _layers(product):
        for gate in _gates(layer):
            for name, chain, up in _tail_of(gate, product.dtype):
                found = _complete(product, gate, chain, up)
                if found is None:
                    continue
                gate, chain = found
                return _judge(graph, layer, gate, name, chain, target, context)
    return []


def _layer_before(node: Any) -> _Layer | None:
    """The layer whose result a node is."""
    candidates = [node]
    if isinstance(node, fx.Node) and node.target is aten.add.Tensor:
        candidates = list(node.args)
    for candidate in candidates:
        while isinstance(candidate, fx.Node) and is_reshape(candidate):
            candidate = candidate.args[0]
        product = product_of(candidate) if isinstance(candidate, fx.Node) else None
        for layer in [] if product is None else _layers(product):
            if layer.node is node:
                return layer
    return None


def _is_same_matrix(one: fx.Node, other: fx.Node) -> bool:
    """Whether two nodes are the same rows of the same tensor, each maybe by a view of its own."""
    if one is other:
        return True
    shapes = [value_of(each) for each in (one, other)]
    if any(value is None for value in shapes):
        return False
    first, second = (value.shape for value in shapes if value is not None)
    if not all(is_same(x, y) for x, y in zip(first, second, strict=True)):
        return False
    sources = []
    for node in (one, other):
        while is_reshape(node) and isinstance(node.args[0], fx.Node):
            node = node.args[0]
        sources.append(node)
    return sources[0] is sources[1]


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
    other = _layer_before(up)
    if other is None or other.product.node is product.node:
        return None
    if not _is_same_matrix(other.product.a, product.a):
        return None
    if not _may_be_gated(other.product) or static(other.product.n) != static(product.n):
        return None
    inner = chain.inner | set(views) | other.inner
    whole = Chain(chain.tail, inner, activation=chain.activation)
    if not _is_alone(whole, product.node, other.product.node):
        return None
    return gate._replace(other=other), whole


def _judge(
    graph: fx.Graph,
    layer: _Layer,
    gate: _Gate,
    name: str,
    chain: Chain,
    target: Target,
    context: Any,
) -> list[Replacement]:
    product = layer.product
    layers = [layer] if gate.other is None else [layer, gate.other]
    # Where gate and up are apart, gate comes first; in halves, one tensor has both.
    has_bias = any(each.bias is not None for each in layers)
    epilogue = f"gated_bias_{name}" if has_bias else f"gated_{name}"
    if not target.has_kernel("gemm", product.dtype, "tnt", epilogue):
        return []
    if target.why_not_fused(f"gated{end_of(chain.tail)}", name, product.m) is not None:
        return []
    if context.is_written_between(product.node, chain.tail):
        return []
    is_row_major = any(each.product.layout != "tn" for each in layers)
    if gate.how == ALTERNATING and is_row_major:
        return []
    k = static(product.k)
    if gate.how != ALTERNATING and (k is None or k * product.dtype.itemsize % 16):
        return []  # rows that kernels do not read where they lie would be copied at each call
    with graph.inserting_before(chain.tail):
        up: fx.Node | None = None
        if gate.how == ALTERNATING:
            weight, bias = rewriting.transposed(graph, product.b, product.node), layer.bias
        else:
            if is_row_major:
                rows = [x.t() for x in (_constant_of(y.product.b) for y in layers) if x is not None]
                weight = _packed(graph, rows, gate.is_swapped, product.node)
            else:
                weight, up = _two_of(graph, layers, gate, product)
            bias = _bias_of(graph, layers, gate, product) if has_bias else None
        args: tuple[Any, ...] = (product.a, weight, bias, None, epilogue)
        if up is not None:
            allow_tf32 = product.dtype == torch.float32
            args = (*args, allow_tf32, up)
    sizes = gate.viewed.args[1] if is_reshape(gate.viewed) else layer.shape
    shape = None
    if sizes is not None:
        columns = static(product.n)
        assert isinstance(sizes, (list, tuple))
        assert columns is not None
        shape = [*sizes[:-1], columns if gate.how == APART else columns // 2]
    whole = Chain(chain.tail, chain.inner, shape)
    rewriting.put(graph, product.node, whole, ops.linear_fused.default, args, None)
    text = f"linear_fused({epilogue})"
    entries = [Replacement(product.op, str(product), text)]
    if gate.other is not None:
        other = gate.other.product
        rewriting.erase_unused(graph, [other.node])
        entries.append(Replacement(other.op, str(other), text))
    return entries


def _two_of(
    graph: fx.Graph, layers: list[_Layer], gate: _Gate, product: Product
) -> tuple[fx.Node, fx.Node]:
    """The weights of gate and up, [F, K] each."""
    found = [rewriting.transposed(graph, each.product.b, product.node) for each in layers]
    if len(found) == 1:
        found = _halves(graph, found[0], product.node)
    first, second = found[::-1] if gate.is_swapped else found
    return first, second


def _halves(graph: fx.Graph, node: fx.Node, like: fx.Node) -> list[fx.Node]:
    rows = value_of(node).shape[0]  # type: ignore[union-attr]
    spans = (0, rows // 2), (rows // 2, rows)
    return [rewriting.emit(graph, aten.slice.Tensor, (node, 0, *span), like) for span in spans]


def _bias_of(graph: fx.Graph, layers: list[_Layer], gate: _Gate, product: Product) -> fx.Node:
    """The biases of gate and up in turn, [2F]; one that is not there counts as zeros."""
    known = [None if each.bias is None else _constant_of(each.bias, 1) for each in layers]
    columns = [static(each.product.n) or 0 for each in layers]
    if all(each.bias is None or x is not None for each, x in zip(layers, known, strict=True)):
        like = next(x for x in known if x is not None)
        parts = [
            like.new_zeros(count) if x is None else x
            for x, count in zip(known, columns, strict=True)
        ]
        return _packed(graph, parts, gate.is_swapped, product.node)
    node = product.node
    some = next(each.bias for each in layers if each.bias is not None)
    nodes = [
        each.bias
        if each.bias is not None
        else rewriting.emit(graph, aten.zeros_like.default, (some,), node)
        for each in layers
    ]
    if len(nodes) == 1:
        nodes = _halves(graph, nodes[0], node)
    pairs = nodes[::-1] if gate.is_swapped else nodes
    columns_apart = [rewriting.emit(graph, aten.unsqueeze.default, (x, 1), node) for x in pairs]
    stacked = rewriting.emit(graph, aten.cat.default, (columns_apart, 1), node)
    return rewriting.emit(graph, aten.reshape.default, (stacked, [-1]), node)


def _constant_of(node: fx.Node, dims: int = 2) -> Tensor | None:
    """A weight [K, N] that Inductor has frozen, maybe transposed, or of one dimension a bias;
    None: another. Constants of a graph that is not frozen may be exchanged later, as those of a
    package of AOTInductor."""
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
    return value if isinstance(value, Tensor) and value.dim() == dims else None


def _packed(graph: fx.Graph, parts: list[Tensor], is_swapped: bool, like: fx.Node) -> fx.Node:
    """A constant [2F, K], or [2F], of the graph: the rows of gate and up in turn.

    Args:
        parts: those of gate and of up, or of both in halves
    """
    gate, up = torch.cat(parts).chunk(2)
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
