"""Gradients of linear and gated_linear, with and without an epilogue.

With z = X W^T + b (+ R, if the residual is added before the activation), Y = act(z) (+ R, if it is
added after it) and G the gradient of Y:

    dz = G * act'(z), db = dz summed over rows, dX = dz W, dW = dz^T X
    dR = dz (added before the activation) or G (after it)

dz and db come from one elementwise kernel, dX and dW from the public ops, so all of it can be
differentiated again. For that, z is an output of the forward's node, which nobody but this module
sees: what backward reads of it then has a history, through which the second derivative flows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, is_autocast_enabled, is_grad_enabled

# Circular, and used at call time only: the gradients are made of the public functions.
from .. import gemm  # comes before its own gradients, which are taken from below
from .. import linear as _public
from .._common import sharding
from .._common.call import is_tracing, overloads
from .._common.elementwise import Gradient, derivative, halves_of, sum_rows
from .._common.errors import RAISED, out_of_memory
from ..gemm._autograd import has_kernel, is_column_major, linear_gradients, matmul

_linear, _linear_direct = overloads("linear")
_gemm, _gemm_direct = overloads("gemm")
_linear_fused, _linear_fused_direct = overloads("linear_fused")
_linear_fused_aux, _linear_fused_aux_direct = overloads("linear_fused_aux")
_input_gradient, _input_gradient_direct = overloads("gated_input_gradient")

# Where backward finds z. SAVED z has no history: torch.compile, which knows no second derivatives,
# would keep an additional output alive.
NOWHERE, RESULT, RECOMPUTED, SAVED, OUTPUT = "nowhere", "result", "recomputed", "saved", "output"


def _rows(tensor: Tensor) -> Tensor:
    """[..., X] as [rows, X]; unlike reshape(-1, X) for X = 0, too."""
    dims = tensor.dim()
    if dims == 2:
        return tensor
    return tensor.flatten(0, -2) if dims > 1 else tensor.unsqueeze(0)


def _times(input: Tensor, matrix: Tensor) -> Tensor:
    """[..., N] @ [N, K], by a shorter way where there is nothing for autograd or autocast to do."""
    if input.dim() == 2:
        return matmul(input, matrix)
    allow_tf32 = input.dtype == torch.float32
    if not (is_grad_enabled() or is_autocast_enabled() or is_tracing()) and has_kernel(allow_tf32):
        try:
            if allow_tf32:
                return _linear_direct(input, matrix.t(), None, True)
            return _linear_direct(input, matrix.t())
        except RAISED:
            sharding.reraise_if_sharded(input, matrix)  # else the public function says it
    return _public.linear(input, matrix.t())


def _of_weight(dz: Tensor, input: Tensor, weight_is_column_major: bool) -> Tensor:
    """wgrad, [N, K], laid out as the weight is."""
    dy, x = _rows(dz), _rows(input)  # [rows, N], [rows, K]
    if weight_is_column_major:
        return matmul(x.t(), dy).t()
    return matmul(dy.t(), x)


def _of_operands(
    dz: Tensor, input: Tensor | None, weight: Tensor | None, weight_is_column_major: bool
) -> tuple[Gradient, Gradient]:
    """dgrad and wgrad. Either needs the other's operand, which is None where it is not wanted."""
    if input is not None and weight is not None:
        both = linear_gradients(dz, input, weight, weight_is_column_major)
        if both is not None:
            return both
    grad_input = None if weight is None else _times(dz, weight)
    grad_weight = None if input is None else _of_weight(dz, input, weight_is_column_major)
    return grad_input, grad_weight


def _derivative_of_gemm(
    grad: Tensor, input: Tensor, weight: Tensor, bias: Tensor | None, activation_backward: str
) -> Tensor:
    """grad * act'(X W^T + b) in one kernel: z is computed again, and never leaves its registers."""
    allow_tf32 = input.dtype == torch.float32
    rows, operands = _rows(input), [bias, _rows(grad)]
    epilogue = f"bias_{activation_backward}"
    call = _gemm if is_tracing() else _gemm_direct
    try:
        dz = call(rows, weight.t(), epilogue, operands, [1.0], None, allow_tf32)[0]
    except RuntimeError as error:
        raise out_of_memory(error) from None
    return dz.view(grad.shape)


def _gradients(
    ctx: Any, grad: Gradient, grad_z: Gradient = None
) -> tuple[Gradient, Gradient, Gradient, Gradient]:
    """Gradients of input, weight, bias and residual from those of Y [..., N] and, in a second
    backward pass, of z."""
    input, weight, bias, z = ctx.saved_tensors
    needs_input, needs_weight, needs_bias, needs_residual = ctx.needs_input_grad[:4]
    needs_dz = needs_input or needs_weight or (needs_residual and not ctx.residual_is_last)
    dz: Gradient = grad_z
    grad_bias: Gradient = None
    if grad is not None and (needs_dz or needs_bias):
        if ctx.activation_backward is None:
            dz = grad
        else:
            is_single = grad.dtype == torch.float32
            is_apart = sharding.calls is not None and sharding.calls.computes_z_first(grad)
            if z is None and not is_grad_enabled() and has_kernel(is_single) and not is_apart:
                dz = _derivative_of_gemm(grad, input, weight, bias, ctx.activation_backward)
            else:
                if z is None:
                    z = _public.linear(input, weight, bias).to(grad.dtype)
                is_only, name = grad_z is None, ctx.activation_backward
                dz, sums = derivative(
                    grad, z, name, needs_dz or not is_only, needs_bias and is_only
                )
                if grad_z is not None:
                    dz = dz + grad_z
                elif needs_bias:
                    grad_bias = sums
    grad_input: Gradient = None
    grad_weight: Gradient = None
    if dz is not None:
        if needs_bias and grad_bias is None:
            grad_bias = sum_rows(dz)
        grad_input, grad_weight = _of_operands(dz, input, weight, ctx.weight_is_column_major)
    grad_residual = (grad if ctx.residual_is_last else dz) if needs_residual else None
    return grad_input, grad_weight, grad_bias, grad_residual


def gradients(
    grad: Tensor, input: Tensor, weight: Tensor, transposed: bool, wanted: Sequence[bool]
) -> tuple[Gradient, Gradient, Gradient]:
    """Those of input, weight and bias that are wanted, of linear or, transposed, of mm and addmm;
    they can be differentiated."""
    layer = weight.t() if transposed else weight
    of_input, of_layer = _of_operands(
        grad,
        input if wanted[1] else None,
        layer if wanted[0] else None,
        is_column_major(layer, tracing=False),
    )
    of_weight = of_layer.t() if of_layer is not None and transposed else of_layer
    return of_input, of_weight, sum_rows(grad) if wanted[2] else None


class Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None, allow_tf32: bool
    ) -> Tensor:
        needs = ctx.needs_input_grad
        ctx.save_for_backward(input if needs[1] else None, weight if needs[0] else None)
        tracing = is_tracing()
        ctx.weight_is_column_major = needs[1] and is_column_major(weight, tracing)
        call = _linear if tracing else _linear_direct
        return call(input, weight, bias, True) if allow_tf32 else call(input, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Gradient, ...]:
        # _gradients without an epilogue: what one needs costs microseconds.
        input, weight = ctx.saved_tensors
        grad_bias = sum_rows(grad) if ctx.needs_input_grad[2] else None
        return *_of_operands(grad, input, weight, ctx.weight_is_column_major), grad_bias, None


class LinearFused(torch.autograd.Function):
    """With an epilogue: returns the result, or (result, z) where z_from is OUTPUT."""

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        residual: Tensor | None,
        epilogue: str,
        activation_backward: str | None,
        residual_is_last: bool,
        z_from: str,
        allow_tf32: bool,
    ) -> Tensor | tuple[Tensor, Tensor]:
        tracing, needs = is_tracing(), ctx.needs_input_grad
        result: Tensor
        z: Tensor | None = None
        if z_from in (SAVED, OUTPUT):
            with_z = _linear_fused_aux if tracing else _linear_fused_aux_direct
            result, z = with_z(input, weight, bias, residual, epilogue, allow_tf32)
        else:
            call = _linear_fused if tracing else _linear_fused_direct
            result = call(input, weight, bias, residual, epilogue, allow_tf32)
        ctx.save_for_backward(
            input if needs[1] else None,
            weight if needs[0] else None,
            bias if z_from == RECOMPUTED else None,
            result if z_from == RESULT else z,
        )
        ctx.weight_is_column_major = needs[1] and is_column_major(weight, tracing)
        ctx.activation_backward = activation_backward
        ctx.residual_is_last = residual_is_last
        if z_from != OUTPUT:
            return result
        # Without this, a first backward pass would add zeros as the gradient of z.
        ctx.set_materialize_grads(False)
        assert z is not None
        return result, z

    @staticmethod
    def backward(ctx: Any, grad: Gradient, grad_z: Gradient = None) -> tuple[Gradient, ...]:
        return (*_gradients(ctx, grad, grad_z), None, None, None, None, None)


class GatedLinear(torch.autograd.Function):
    """A gated unit of two matrices: returns the result, or (result, z) where z_from is OUTPUT.

    `weight` is the gate's, [F, K], and `up` as large; where `up` is None, `weight` has both,
    [2F, K], one behind the other. dz has its columns so, too: then products read it, and write
    gradients, as the weights lie.
    """

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        weight: Tensor,
        up: Tensor | None,
        bias: Tensor | None,
        epilogue: str,
        activation_backward: str,
        z_from: str,
        allow_tf32: bool,
    ) -> Tensor | tuple[Tensor, Tensor]:
        tracing, needs = is_tracing(), ctx.needs_input_grad
        gate, second = weight.chunk(2) if up is None else (weight, up)
        call = _linear_fused_aux if tracing else _linear_fused_aux_direct
        result, z = call(input, gate, bias, None, epilogue, allow_tf32, second)
        ctx.save_for_backward(
            input if needs[1] or needs[2] else None,
            weight if needs[0] else None,
            up if needs[0] else None,
            z,
        )
        ctx.is_apart = up is not None
        ctx.weight_is_column_major = needs[1] and is_column_major(weight, tracing)
        ctx.activation_backward = activation_backward
        if z_from != OUTPUT:
            made: Tensor = result
            return made
        # Without this, a first backward pass would add zeros as the gradient of z.
        ctx.set_materialize_grads(False)
        return result, z

    @staticmethod
    def backward(ctx: Any, grad: Gradient, grad_z: Gradient = None) -> tuple[Gradient, ...]:
        input, weight, up, z = ctx.saved_tensors
        needs_input, needs_weight, needs_up, needs_bias = ctx.needs_input_grad[:4]
        needs_dz = needs_input or needs_weight or needs_up
        dz: Gradient = None
        grad_bias: Gradient = None
        if grad is not None:
            name = ctx.activation_backward
            dz, sums = derivative(grad, z, name, needs_dz, needs_bias, True)
            if needs_bias:
                grad_bias = sums
        if grad_z is not None:
            if needs_dz:
                dz = halves_of(grad_z) if dz is None else dz + halves_of(grad_z)
            if needs_bias:
                of_z = sum_rows(grad_z)
                grad_bias = of_z if grad_bias is None else grad_bias + of_z
        found: list[Gradient] = [None, None, None]
        if dz is not None and needs_dz:
            if ctx.is_apart:
                found = gradients_of_two(dz, input, weight, up, (needs_weight, needs_up))
            else:
                column_major = ctx.weight_is_column_major
                found[:2] = _of_operands(dz, input if needs_weight else None, weight, column_major)
        return *found, grad_bias, None, None, None, None


def gradients_of_two(
    dz: Tensor,
    input: Tensor | None,
    gate: Tensor | None,
    up: Tensor | None,
    wanted: tuple[bool, bool],
) -> list[Gradient]:
    """The gradients of a gated unit's input, gate and up, where its weights are two tensors."""
    of_gate, of_up = dz.chunk(2, dim=-1)
    grad_input: Gradient = None
    if gate is not None and up is not None:
        if is_grad_enabled() or not has_kernel(dz.dtype == torch.float32):
            first = _rows(_times(of_gate, gate))
            summed = gemm.addmm(first, _rows(of_up), up)
            grad_input = summed.view(*dz.shape[:-1], gate.shape[-1])
        else:
            call = _input_gradient if is_tracing() else _input_gradient_direct
            try:
                grad_input = call(dz, gate, up, dz.dtype == torch.float32)
            except RuntimeError as error:
                raise out_of_memory(error) from None
    halves: list[Gradient] = [None, None]
    if all(wanted):
        assert input is not None
        halves = list(_of_weight(dz, input, False).chunk(2))
    elif any(wanted):
        assert input is not None
        index = wanted.index(True)
        halves[index] = _of_weight((of_gate, of_up)[index], input, False)
    return [grad_input, *halves]
