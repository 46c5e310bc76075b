"""Matrix products of a graph, and what follows them: found, judged, replaced."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from . import rewriting
from .chains import Chain, Form, chains_of, is_reshape, same_value
from .consumers import end_of
from .gains import Target
from .products import Product, product_of, why_not
from .report import Replacement
from .sizes import is_contiguous, is_same, same_shape, static, value_of

ops = torch.ops.cutwheel


def form_of(product: Product) -> Form:
    """Which views, biases and residuals an epilogue of the product can take."""
    like = value_of(product.node)
    assert like is not None
    columns = like.shape[-1]

    def keeps_rows(node: fx.Node) -> bool:
        value = value_of(node)
        return is_reshape(node) and value is not None and is_same(value.shape[-1], columns)

    def is_row(node: Any) -> bool:
        value = value_of(node)
        return same_value(node, like) and value is not None and _is_row(value, columns)

    def is_matrix(node: Any, of: fx.Node) -> bool:
        value, wanted = value_of(node), value_of(of)
        if value is None or wanted is None or not same_value(node, like):
            return False
        return same_shape(value, wanted) and is_contiguous(value) and _is_aligned(value)

    return Form(keeps_rows, is_row, is_matrix)


def _is_row(value: Tensor, columns: Any) -> bool:
    return value.dim() == 1 and is_same(value.shape[0], columns) and is_contiguous(value)


def _is_aligned(value: Tensor) -> bool:
    offset = static(value.storage_offset())
    return offset is not None and offset * value.dtype.itemsize % 16 == 0


def replace_product(graph: fx.Graph, node: fx.Node, context: Any) -> Replacement | None:
    """Puts a kernel in the place of a product, with as much of what follows it as is expected to
    be faster. None: the node is no product."""
    product = product_of(node)
    if product is None:
        return None

    def entry(by: str | None, reason: str = "") -> Replacement:
        return Replacement(product.op, str(product), by, reason)

    target = context.target(product.device)
    if isinstance(target, str):
        return entry(None, target)
    because = why_not(product)
    if because is not None:
        return entry(None, because)
    fused, stop = _fused(graph, product, target, context)
    if fused is not None:
        return entry(fused, stop)
    plain = _why_not_plain(product, target)
    if plain is None and context.autotuned and product.op == "mm":
        return entry(None, "max-autotune measures it (external_matmul)")
    if plain is not None:
        return entry(None, "; ".join(dict.fromkeys(each for each in (plain, stop) if each)))
    return entry(_put_plain(graph, product), stop)


def _fused(
    graph: fx.Graph, product: Product, target: Target, context: Any
) -> tuple[str | None, str]:
    """What a fused kernel was put in as, and why nothing more is in it."""
    if product.op not in ("mm", "addmm") or product.layout != "tn" or not product.is_plain_sum:
        return None, ""
    form = form_of(product)
    bias = residual = None
    if product.c is not None:
        if form.is_bias(product.c):
            bias = product.c
        elif form.is_residual(product.c, product.node):
            residual = product.c
        else:
            return None, ""
    chains, stop = chains_of(product.node, product.dtype, form, bias, residual)
    reasons = []
    for chain in chains:
        if chain.is_plain:
            break
        because = _why_not_chain(product, chain, target)
        if because is None and context.is_written_between(product.node, chain.tail):
            because = "an operation between them writes to its operands"
        if because is not None:
            reasons.append(f"not {chain.epilogue}: {because}")
            continue
        return _put_fused(graph, product, chain), "; ".join(reasons) or stop
    return None, "; ".join(reasons) or stop


def _why_not_chain(product: Product, chain: Chain, target: Target) -> str | None:
    if not target.has_kernel("gemm", product.dtype, "tnt", chain.epilogue):
        return "no kernel of this wheel runs natively"
    if not target.only_faster:
        return None
    if chain.stored is not None:
        return "an epilogue that stores its argument was not measured"
    if chain.activation is not None and chain.residual is not None:
        return "an activation and a residual together were not measured"
    kind = "residual" if chain.activation is None else "activation"
    return target.why_not_fused(kind + end_of(chain.tail), chain.activation, product.m)


def _put_fused(graph: fx.Graph, product: Product, chain: Chain) -> str:
    place = chain.tail if chain.stored is None else chain.stored
    with graph.inserting_before(place):
        weight = rewriting.transposed(graph, product.b, product.node)
    packet = ops.linear_fused if chain.stored is None else ops.linear_fused_aux
    args = product.a, weight, chain.bias, chain.residual, chain.epilogue
    rewriting.put(graph, product.node, chain, packet.default, args, static(product.n))
    return f"{packet.__name__}({chain.epilogue})"


def _why_not_plain(product: Product, target: Target) -> str | None:
    if product.c is not None:
        value, result = value_of(product.c), value_of(product.node)
        if value is None or result is None or not same_value(product.c, result):
            return "C has another dtype"
        is_row = product.op == "addmm" and _is_row(value, result.shape[-1])
        if not is_row and not (same_shape(value, result) and is_contiguous(value)):
            return "C is neither a row nor a matrix of the result's shape"
        if is_row and product.layout == "tn" and target.only_faster:
            missing = target.why_not_product(product)
            if missing is not None and "kernel" in missing:
                return missing
            return target.why_not_fused("bias", None, product.m)
    return target.why_not_product(product)


def _put_plain(graph: fx.Graph, product: Product) -> str:
    packet = getattr(ops, product.op)
    args: tuple[Any, ...] = product.a, product.b
    if product.c is not None:
        args = product.c, *args, None, product.beta, product.alpha
    with graph.inserting_before(product.node):
        made = rewriting.emit(graph, packet.default, args, product.node)
    product.node.replace_all_uses_with(made)
    graph.erase_node(product.node)
    return product.op
