"""Rows of a mixture of experts: sorted by expert, moved there and back. Each of them is one kernel.

With T tokens and k choices each, places [T, k] says where each choice lies among the T k rows that
are sorted by expert. Rows from the last of offs on are of no expert. The three functions of rows
are linear, and gradients of each other:

    permute     rows[places[t, i]] = weights[t, i] tokens[t]
    unpermute   tokens[t] = sum over i of weights[t, i] rows[places[t, i]]
    dots        [t, i] = rows[places[t, i]] . tokens[t], the gradient of the weights of either
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, is_grad_enabled

from .._common.call import is_tracing, overloads
from .._common.errors import RAISED, reraise

_route, _route_direct = overloads("moe_route")
_PERMUTE, _UNPERMUTE, _DOTS = "moe_permute", "moe_unpermute", "moe_permute_dots"
_FOR = "experts"  # in errors: callers know the layer, not these ops
_calls = {op: overloads(op) for op in (_PERMUTE, _UNPERMUTE, _DOTS)}


class Routing(NamedTuple):
    """Where rows go. All are int32."""

    places: Tensor
    """[T, k], the place of each choice among the rows that are sorted by expert"""
    sources: Tensor
    """[T k], the token of each place"""
    offs: Tensor
    """[G], the end of each expert's rows; those behind the last are of no expert"""


def route(expert_ids: Tensor, num_experts: int) -> Routing:
    """Sorts choices by expert, those of one in their order.

    Args:
        expert_ids: [T, k], int32 or int64; one that is not in 0 to num_experts - 1 is none
        num_experts: G, 1 to 1024
    """
    call: Any = _route if is_tracing() else _route_direct
    try:
        return Routing(*call(expert_ids.contiguous(), num_experts))
    except RAISED as error:
        reraise(_FOR, error, expert_ids=expert_ids)


def permute(
    tokens: Tensor, places: Tensor, weights: Tensor | None = None, offs: Tensor | None = None
) -> Tensor:
    """[T, H] -> [T k, H]. With weights, [T, k], rows of no expert are zeros."""
    if _needs_grad(tokens, weights):
        return _moved_with_grad(tokens, weights, places, offs, _PERMUTE)
    return _call(_PERMUTE, [tokens], [places, weights, offs])


def unpermute(
    rows: Tensor, places: Tensor, weights: Tensor | None = None, offs: Tensor | None = None
) -> Tensor:
    """[T k, H] -> [T, H]. Sums are taken in float32 and rounded once; rows of no expert add
    nothing, whatever is in them."""
    if _needs_grad(rows, weights):
        return _moved_with_grad(rows, weights, places, offs, _UNPERMUTE)
    return _call(_UNPERMUTE, [rows], [places, weights, offs])


def _products(rows: Tensor, tokens: Tensor, places: Tensor, offs: Tensor | None) -> Tensor:
    """[T k, H], [T, H] -> [T, k], float32"""
    if _needs_grad(rows, tokens):
        return _dots_with_grad(rows, tokens, places, offs)
    return _call(_DOTS, [rows, tokens], [places, offs])


def _needs_grad(x: Tensor, y: Tensor | None) -> bool:
    return is_grad_enabled() and (x.requires_grad or (y is not None and y.requires_grad))


def _call(op: str, matrices: Sequence[Tensor], rest: Sequence[Tensor | None]) -> Tensor:
    others = [x if x is None else x.contiguous() for x in rest]
    traced, direct = _calls[op]
    try:
        result: Tensor = (traced if is_tracing() else direct)(*matrices, *others)
    except RAISED as error:
        reraise(_FOR, error)
    return result


class _Moved(torch.autograd.Function):
    """permute of tokens or unpermute of rows: the gradient of either goes the other way."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weights: Tensor | None,
        places: Tensor,
        offs: Tensor | None,
        op: str,
    ) -> Tensor:
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weights, places, offs)
        ctx.op = op
        return _call(op, [x], [places, weights, offs])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weights, places, offs = ctx.saved_tensors
        is_permute = ctx.op == _PERMUTE
        of_x = of_weights = None
        if ctx.needs_input_grad[0]:
            of_x = (unpermute if is_permute else permute)(grad, places, weights, offs)
        if x is not None:
            rows, tokens = (grad, x) if is_permute else (x, grad)
            of_weights = _products(rows, tokens, places, offs).to(weights.dtype)
        return of_x, of_weights, None, None, None


class _Dots(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, tokens: Tensor, places: Tensor, offs: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(rows, tokens, places, offs)
        return _call(_DOTS, [rows, tokens], [places, offs])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        rows, tokens, places, offs = ctx.saved_tensors
        of_rows = of_tokens = None
        if ctx.needs_input_grad[0]:
            of_rows = permute(tokens, places, grad, offs)
        if ctx.needs_input_grad[1]:
            of_tokens = unpermute(rows, places, grad, offs)
        return of_rows, of_tokens, None, None


_moved_with_grad: Callable[..., Tensor] = _Moved.apply
_dots_with_grad: Callable[..., Tensor] = _Dots.apply
