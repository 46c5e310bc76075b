"""New nodes in a graph, with the fake tensors that Inductor wants of them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, fx

from .chains import Chain

aten = torch.ops.aten
_KEPT_META = ("original_aten", "from_node", "seq_nr", "stack_trace", "nn_module_stack")


def emit(
    graph: fx.Graph,
    target: Any,
    args: tuple[Any, ...],
    like: fx.Node,
    *,
    keeps_strides: bool = False,
    **options: Any,
) -> fx.Node:
    """A call with its fake result, at the graph's insertion point.

    Args:
        like: the node whose place in the user's code the new one takes
        keeps_strides: Inductor may not choose others for the operands
        options: further arguments, none of them a node
    """
    node = graph.call_function(target, args, options)
    node.meta.update({key: like.meta[key] for key in _KEPT_META if key in like.meta})
    given = fx.map_arg(args, lambda each: each.meta["val"])
    with _fake_mode(given):
        node.meta["val"] = target(*given, **options)
    if keeps_strides:  # as it marks what the user calls
        node.meta["eager_input_vals"] = given, options
    return node


def _fake_mode(values: Any) -> Any:
    from torch._guards import detect_fake_mode

    tensors = [each for each in torch.utils._pytree.tree_leaves(values) if isinstance(each, Tensor)]
    return detect_fake_mode(tensors) or nullcontext()


def reshaped(graph: fx.Graph, node: fx.Node, shape: Any, like: fx.Node) -> fx.Node:
    """The node in the shape that a view of the graph has; None: as it is."""
    return node if shape is None else emit(graph, aten.reshape.default, (node, shape), like)


def transposed(graph: fx.Graph, matrix: fx.Node, like: fx.Node) -> fx.Node:
    """[K, N] as [N, K]: what the graph had transposed, or a view."""
    if matrix.op == "call_function":
        swaps = matrix.target is aten.permute.default and list(matrix.args[1]) == [1, 0]  # type: ignore[arg-type]
        if swaps or matrix.target is aten.t.default:
            before = matrix.args[0]
            assert isinstance(before, fx.Node)
            return before
    return emit(graph, aten.permute.default, (matrix, [1, 0]), like)


def put(
    graph: fx.Graph,
    node: fx.Node,
    chain: Chain,
    target: Any,
    args: tuple[Any, ...],
    columns: Any,
    *,
    keeps_strides: bool = False,
) -> None:
    """Puts a kernel in the place of a chain that begins with `node`.

    Args:
        target, args: the op; matrices that the chain has in other shapes are brought into [M, N]
        columns: N, if residuals are to be matrices; None: they are as the result
        keeps_strides: of emit
    """
    place = chain.tail if chain.stored is None else chain.stored
    with graph.inserting_before(place):
        if columns is not None and chain.residual is not None:
            value = chain.residual.meta["val"]
            if value.dim() != 2:
                flat = emit(
                    graph, aten.reshape.default, (chain.residual, [-1, columns]), chain.tail
                )
                args = tuple(flat if each is chain.residual else each for each in args)
        made = emit(graph, target, args, chain.tail, keeps_strides=keeps_strides)
        if chain.stored is not None:
            import operator

            stored = emit(graph, operator.getitem, (made, 1), chain.stored)
            made = emit(graph, operator.getitem, (made, 0), chain.tail)
            whole = reshaped(graph, stored, chain.stored_shape, chain.stored)
        result = reshaped(graph, made, chain.shape, chain.tail)
    if chain.stored is not None:
        chain.stored.replace_all_uses_with(whole)
    chain.tail.replace_all_uses_with(result)
    erase_unused(graph, (*chain.inner, chain.tail, node, *([chain.stored] if chain.stored else [])))


def erase_unused(graph: fx.Graph, nodes: Iterable[fx.Node]) -> None:
    """Erases those of the nodes that nothing uses any more."""
    left = set(nodes)
    while True:
        unused = [node for node in left if not node.users]
        if not unused:
            return
        for node in unused:
            graph.erase_node(node)
            left.remove(node)
