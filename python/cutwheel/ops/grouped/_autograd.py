"""Gradients of the grouped GEMMs, by the same public ops, so that they nest.

With D_g = A_g B_g (+ b_g) for each group g, and G_g the gradient of D_g:

    dA_g = G_g B_g^T, dB_g = A_g^T G_g, db_g = G_g summed over its rows

Where the rows of A are grouped, dA has grouped rows, too, and dB has grouped K: its groups are
those of what is summed over. Where K is grouped, it is the other way around.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, is_autocast_enabled, is_grad_enabled

# Circular, and used at call time only: the gradients are made of the public functions.
from .. import grouped
from .._common.call import is_tracing, overloads
from .._common.elementwise import Gradient, derivative, halves_of
from .._common.errors import RAISED
from .._common.precision import tf32_allowed
from .._common.sizes import is_contiguous
from .._common.transforms import is_transformed
from ..gemm._autograd import is_column_major
from ..linear._autograd import OUTPUT, RESULT
from ._group_sums import sum_groups
from ._permutation import permute, unpermute

_grouped_mm, _grouped_mm_direct = overloads("grouped_mm")
_fused, _fused_direct = overloads("grouped_linear_fused")
_fused_aux, _fused_aux_direct = overloads("grouped_linear_fused_aux")
_gathered_aux, _gathered_aux_direct = overloads("grouped_linear_gathered_aux")


def _grouped_matmul(a: Tensor, b: Tensor, offs: Tensor) -> Tensor:
    """grouped_mm, by a shorter way where there is nothing for autograd or autocast to do."""
    if not (is_grad_enabled() or is_autocast_enabled() or is_tracing() or is_transformed()):
        try:
            allow_tf32 = a.dtype == torch.float32 and tf32_allowed()
            if allow_tf32:
                return _grouped_mm_direct(a, b, offs, None, None, True)
            return _grouped_mm_direct(a, b, offs)
        except RAISED:
            pass  # the public function says it in its own words
    return grouped.grouped_mm(a, b, offs=offs)


def _over_rows(left: Tensor, right: Tensor, offs: Tensor, is_column_major: bool) -> Tensor:
    """[T, K], [T, N] -> [G, K, N]: the GEMM over the rows of each group, left_g^T right_g."""
    if is_column_major:
        return _grouped_matmul(right.mT, left, offs).mT
    return _grouped_matmul(left.mT, right, offs)


class GroupedRows(torch.autograd.Function):
    """A [T, K], B [G, K, N] -> [T, N]

    With accumulate_into, [G, K, N] in float32, backward adds dB to that and returns none.
    """

    @staticmethod
    def forward(
        ctx: Any,
        a: Tensor,
        b: Tensor,
        offs: Tensor,
        bias: Tensor | None,
        out_dtype: torch.dtype | None,
        allow_tf32: bool,
        accumulate_into: Tensor | None,
    ) -> Tensor:
        needs = ctx.needs_input_grad
        ctx.save_for_backward(a if needs[1] else None, b if needs[0] else None, offs)
        tracing = is_tracing()
        ctx.b_is_column_major = needs[1] and is_column_major(b, tracing)
        ctx.dtype = a.dtype
        ctx.bias_dtype = None if bias is None else bias.dtype
        # Not among the saved tensors: it is meant to change before backward comes.
        ctx.accumulate_into = accumulate_into
        call = _grouped_mm if tracing else _grouped_mm_direct
        return call(a, b, offs, bias, out_dtype, allow_tf32)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Gradient, ...]:
        a, b, offs = ctx.saved_tensors
        grad_a: Gradient = None
        grad_b: Gradient = None
        grad_bias: Gradient = None
        if ctx.needs_input_grad[3]:
            grad_bias = sum_groups(grad, offs).to(ctx.bias_dtype)
        if grad.dtype != ctx.dtype:
            grad = grad.to(ctx.dtype)
        if b is not None:
            grad_a = _grouped_matmul(grad, b.mT, offs)
        if a is not None and ctx.accumulate_into is not None:
            if is_grad_enabled():
                raise RuntimeError(
                    "grouped_mm: accumulate_into has no second derivative; call backward() "
                    "without create_graph, or grouped_mm without accumulate_into"
                )
            grouped.grouped_mm(a.mT, grad, offs=offs, accumulate_into=ctx.accumulate_into)
        elif a is not None:
            grad_b = _over_rows(a, grad, offs, ctx.b_is_column_major)
        return grad_a, grad_b, None, grad_bias, None, None, None


class GroupedK(torch.autograd.Function):
    """A [M, T], B [T, N] -> [G, M, N]"""

    @staticmethod
    def forward(
        ctx: Any,
        a: Tensor,
        b: Tensor,
        offs: Tensor,
        out_dtype: torch.dtype | None,
        allow_tf32: bool,
    ) -> Tensor:
        needs = ctx.needs_input_grad
        ctx.save_for_backward(a if needs[1] else None, b if needs[0] else None, offs)
        tracing = is_tracing()
        ctx.a_is_row_major = needs[0] and is_contiguous(a, tracing)
        ctx.dtype = a.dtype
        call = _grouped_mm if tracing else _grouped_mm_direct
        return call(a, b, offs, None, out_dtype, allow_tf32)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Gradient, ...]:
        a, b, offs = ctx.saved_tensors
        grad_a: Gradient = None
        grad_b: Gradient = None
        if grad.dtype != ctx.dtype:
            grad = grad.to(ctx.dtype)
        if b is not None:
            grad_a = _grouped_matmul(b, grad.mT, offs).mT  # [T, M] -> [M, T]
            if ctx.a_is_row_major:
                grad_a = grad_a.contiguous()
        if a is not None:
            grad_b = _grouped_matmul(a.mT, grad, offs)  # [T, N]
        return grad_a, grad_b, None, None, None


def _gradient_of_z(ctx: Any, z: Tensor, grad: Gradient, grad_z: Gradient) -> Gradient:
    """From the gradient of Y [T, N] and, in a second backward pass, that of z."""
    if grad is None:
        return halves_of(grad_z) if ctx.in_halves and grad_z is not None else grad_z
    in_halves = ctx.in_halves
    of_result: Tensor = derivative(grad, z, ctx.activation_backward, True, False, in_halves)[0]
    if grad_z is None:
        return of_result
    return (halves_of(grad_z) if in_halves else grad_z) + of_result


def _gradients(
    ctx: Any, grad: Gradient, grad_z: Gradient = None
) -> tuple[Gradient, Gradient, None, Gradient]:
    """Gradients of input, weight, offs and bias."""
    input, weight, offs, z = ctx.saved_tensors
    needs_input, needs_weight, _, needs_bias = ctx.needs_input_grad[:4]
    dz = _gradient_of_z(ctx, z, grad, grad_z)
    if dz is None:
        return None, None, None, None
    grad_input: Gradient = None
    grad_weight: Gradient = None
    grad_bias: Gradient = None
    if needs_input:
        grad_input = _grouped_matmul(dz, weight, offs)  # [T, N] with [G, N, K]
    if needs_weight:
        grad_weight = _over_rows(dz, input, offs, ctx.weight_is_column_major)  # [G, N, K]
    if needs_bias:
        grad_bias = sum_groups(dz, offs).to(ctx.bias_dtype)
    return grad_input, grad_weight, None, grad_bias


class GroupedFused(torch.autograd.Function):
    """With an epilogue: returns the result, or (result, z) where z_from is OUTPUT.

    z_from is RESULT, SAVED or OUTPUT, as for linear. in_halves: the weight has the rows of gate,
    then those of up, and so have dz and what is made of it.
    """

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        weight: Tensor,
        offs: Tensor,
        bias: Tensor | None,
        epilogue: str,
        activation_backward: str,
        z_from: str,
        allow_tf32: bool,
        in_halves: bool,
    ) -> Tensor | tuple[Tensor, Tensor]:
        tracing, needs = is_tracing(), ctx.needs_input_grad
        first, up = weight.chunk(2, 1) if in_halves else (weight, None)
        if z_from == RESULT:
            call = _fused if tracing else _fused_direct
            result = z = call(input, weight, offs, bias, epilogue, allow_tf32)
        else:
            with_z = _fused_aux if tracing else _fused_aux_direct
            result, z = with_z(input, first, offs, bias, epilogue, allow_tf32, up)
        ctx.save_for_backward(input if needs[1] else None, weight if needs[0] else None, offs, z)
        ctx.weight_is_column_major = needs[1] and is_column_major(weight, tracing)
        ctx.bias_dtype = None if bias is None else bias.dtype
        ctx.activation_backward, ctx.in_halves = activation_backward, in_halves
        if z_from != OUTPUT:
            return result
        # Without this, a first backward pass would add zeros as the gradient of z.
        ctx.set_materialize_grads(False)
        return result, z

    @staticmethod
    def backward(ctx: Any, grad: Gradient, grad_z: Gradient = None) -> tuple[Gradient, ...]:
        return (*_gradients(ctx, grad, grad_z), None, None, None, None, None)


class GatheredGated(torch.autograd.Function):
    """Tokens [T, K] by expert, with a gate: returns the result [T k, F], or (result, z) where
    z_from is OUTPUT, else SAVED. Rows by expert are not kept: backward makes them again."""

    @staticmethod
    def forward(
        ctx: Any,
        tokens: Tensor,
        weight: Tensor,
        places: Tensor,
        sources: Tensor,
        offs: Tensor,
        epilogue: str,
        activation_backward: str,
        z_from: str,
        in_halves: bool,
    ) -> Tensor | tuple[Tensor, Tensor]:
        tracing, needs = is_tracing(), ctx.needs_input_grad
        first, up = weight.chunk(2, 1) if in_halves else (weight, None)
        call: Any = _gathered_aux if tracing else _gathered_aux_direct
        made: tuple[Tensor, Tensor] = call(tokens, places, sources, first, offs, epilogue, up)
        kept = tokens if needs[1] else None, weight if needs[0] else None
        ctx.save_for_backward(*kept, places, offs, made[1])
        ctx.weight_is_column_major = needs[1] and is_column_major(weight, tracing)
        ctx.activation_backward, ctx.in_halves = activation_backward, in_halves
        if z_from != OUTPUT:
            return made[0]
        ctx.set_materialize_grads(False)
        return made

    @staticmethod
    def backward(ctx: Any, grad: Gradient, grad_z: Gradient = None) -> tuple[Gradient, ...]:
        tokens, weight, places, offs, z = ctx.saved_tensors
        dz = _gradient_of_z(ctx, z, grad, grad_z)
        grad_tokens: Gradient = None
        grad_weight: Gradient = None
        if dz is not None and weight is not None:
            grad_tokens = unpermute(_grouped_matmul(dz, weight, offs), places, None, offs)
        if dz is not None and tokens is not None:
            rows = permute(tokens, places)
            grad_weight = _over_rows(dz, rows, offs, ctx.weight_is_column_major)
        return grad_tokens, grad_weight, None, None, None, None, None, None, None
