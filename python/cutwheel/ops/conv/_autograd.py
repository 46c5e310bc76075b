"""Gradients of convolutions, each by the op that is made for it, so that they nest.

With z = conv(X, W) + b (+ R), Y = act(z) and G the gradient of Y:

    dz = G * act'(z), db = dz summed over images and pixels, dR = dz
    dX = dgrad(dz, W), dW = wgrad(dz, X)

conv, dgrad and wgrad are linear in each of their two operands, and the gradients of each
are the other two:

    of dgrad(G, W):  dG = conv(V, W),  dW = wgrad(G, V)
    of wgrad(G, X): dG = conv(X, V),  dX = dgrad(G, V)

with V the gradient of their result. The only activation here is relu, whose result tells what
backward needs; others are torch's, behind a convolution without one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, is_grad_enabled

from .._common.call import Op, fast_apply, is_tracing, overloads
from .._common.elementwise import Gradient, derivative, sum_rows
from .._common.errors import out_of_memory
from .._common.sizes import known
from .._common.transforms import is_transformed
from ._geometry import Geometry

_conv2d, _conv2d_direct = overloads("conv2d")
_conv2d_fused, _conv2d_fused_direct = overloads("conv2d_fused")
_conv2d_input_grad, _conv2d_input_grad_direct = overloads("conv2d_input_grad")
_conv2d_weight_grad, _conv2d_weight_grad_direct = overloads("conv2d_weight_grad")


def channels_last(tensor: Tensor) -> Tensor:
    """[N, C, ...] seen as [N, ..., C]."""
    return tensor.movedim(1, -1)


def channels_first(tensor: Tensor) -> Tensor:
    """[N, ..., C] seen as [N, C, ...]."""
    return tensor.movedim(-1, 1)


def pixels_of(image: Tensor) -> Tensor:
    """channels_last of an image, at two thirds of the cost."""
    return image.permute(0, 2, 3, 1)


# ---- by torch, inside of transforms --------------------------------------------------------------
def padded(input: Tensor, geometry: Geometry) -> Tensor:
    _, _, top, bottom, left, right, _, _ = geometry
    return F.pad(input, (left, right, top, bottom))


def backward_by_torch(
    grad: Tensor,
    input: Tensor,
    weight: Tensor,
    geometry: Geometry,
    wanted: tuple[bool, bool, bool],
    groups: int = 1,
) -> tuple[Tensor, ...]:
    """Gradients by torch of a convolution whose input is padded already."""
    strides, dilations = list(geometry[:2]), list(geometry[6:])
    result: tuple[Tensor, ...] = torch.ops.aten.convolution_backward.default(
        *(grad, input, weight, None, strides, [0, 0], dilations, False, [0, 0], groups, wanted)
    )
    return result


def _dgrad_by_torch(
    grad: Tensor, weight: Tensor, size: Sequence[int], geometry: Geometry
) -> Tensor:
    _, _, top, bottom, left, right, _, _ = geometry
    n, c, h, w = size
    image = grad.new_zeros(n, c, h + top + bottom, w + left + right)
    of_padded = backward_by_torch(grad, image, weight, geometry, (True, False, False))[0]
    return of_padded[:, :, top : top + h, left : left + w]


def _wgrad_by_torch(grad: Tensor, input: Tensor, size: Sequence[int], geometry: Geometry) -> Tensor:
    weight = grad.new_zeros(tuple(size))
    wanted = False, True, False
    return backward_by_torch(grad, padded(input, geometry), weight, geometry, wanted)[1]


# --------------------------------------------------------------------------------------------------


def _conv(input: Tensor, weight: Tensor, geometry: Geometry, allow_tf32: bool) -> Tensor:
    if is_transformed():
        image = padded(input, geometry)
        return F.conv2d(image, weight, None, geometry[:2], 0, geometry[6:])
    if is_grad_enabled() and (input.requires_grad or weight.requires_grad):
        return _conv_with_grad(input, weight, None, None, geometry, None, allow_tf32)
    call = _conv2d if is_tracing() else _conv2d_direct
    try:
        return call(input, weight, None, *geometry, allow_tf32)
    except RuntimeError as error:
        raise out_of_memory(error) from None


def _dgrad(
    grad: Tensor, weight: Tensor, size: Sequence[int], geometry: Geometry, allow_tf32: bool
) -> Tensor:
    if is_transformed():
        return _dgrad_by_torch(grad, weight, size, geometry)
    if is_grad_enabled() and (grad.requires_grad or weight.requires_grad):
        return _dgrad_with_grad(grad, weight, size, geometry, allow_tf32)
    call = _conv2d_input_grad if is_tracing() else _conv2d_input_grad_direct
    try:
        return call(grad, weight, size[2], size[3], *geometry, allow_tf32)
    except RuntimeError as error:
        raise out_of_memory(error) from None


def _wgrad(
    grad: Tensor, input: Tensor, size: Sequence[int], geometry: Geometry, allow_tf32: bool
) -> Tensor:
    if is_transformed():
        return _wgrad_by_torch(grad, input, size, geometry)
    if is_grad_enabled() and (grad.requires_grad or input.requires_grad):
        return _wgrad_with_grad(grad, input, size, geometry, allow_tf32)
    call = _conv2d_weight_grad if is_tracing() else _conv2d_weight_grad_direct
    try:
        return call(grad, input, size[2], size[3], *geometry, allow_tf32)
    except RuntimeError as error:
        raise out_of_memory(error) from None


def in_order(grad: Tensor) -> Tensor:
    """With contiguous channels: each op would make that copy for itself."""
    if is_tracing():
        is_in_order = known(grad.stride()[1] == 1) or known(grad.shape[1] == 1)
    else:
        is_in_order = grad.stride()[1] == 1 or grad.shape[1] == 1
    return grad if is_in_order else grad.contiguous(memory_format=torch.channels_last)


class Conv(torch.autograd.Function):
    """conv2d, or conv2d_fused if there is an epilogue."""

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        residual: Tensor | None,
        geometry: Geometry,
        epilogue: str | None,
        allow_tf32: bool,
    ) -> Tensor:
        if epilogue is None:
            call = _conv2d if is_tracing() else _conv2d_direct
            result = call(input, weight, bias, *geometry, allow_tf32)
        else:
            call = _conv2d_fused if is_tracing() else _conv2d_fused_direct
            result = call(input, weight, bias, residual, *geometry, epilogue, allow_tf32)
        needs_input, needs_weight, *_ = ctx.needs_input_grad
        has_relu = epilogue is not None and epilogue.endswith("relu")
        ctx.save_for_backward(
            input if needs_weight else None,
            weight if needs_input else None,
            result if has_relu else None,
        )
        # Sizes of the gradients that backward makes.
        ctx.input_size = input.shape if needs_input else None
        ctx.weight_size = weight.shape if needs_weight else None
        ctx.geometry, ctx.allow_tf32 = geometry, allow_tf32
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Gradient, ...]:
        input, weight, result = ctx.saved_tensors
        needs_input, needs_weight, needs_bias, needs_residual, *_ = ctx.needs_input_grad
        needs_dz = needs_input or needs_weight or needs_residual
        grad_bias: Gradient = None
        if result is None:
            dz = in_order(grad)
            if needs_bias:
                grad_bias = sum_rows(pixels_of(dz))
        else:
            pixels, sums = derivative(
                *(pixels_of(grad), pixels_of(result), "relu_backward"), needs_dz, needs_bias
            )
            dz = pixels.permute(0, 3, 1, 2) if needs_dz else grad
            grad_bias = sums if needs_bias else None
        given = ctx.geometry, ctx.allow_tf32
        grad_input = _dgrad(dz, weight, ctx.input_size, *given) if needs_input else None
        grad_weight = _wgrad(dz, input, ctx.weight_size, *given) if needs_weight else None
        grad_residual = dz if needs_residual else None
        return grad_input, grad_weight, grad_bias, grad_residual, None, None, None


def _gradient_op(op: str, of_other: Op, is_dgrad: bool) -> type[torch.autograd.Function]:
    """dgrad, or wgrad: V goes in the place of its result, an image or a filter.

    Args:
        of_other: gives the gradient of the second operand, W or X
    """
    overload, function = overloads(op)

    class GradientOp(torch.autograd.Function):
        @staticmethod
        def forward(
            ctx: Any,
            grad: Tensor,
            other: Tensor,
            size: Sequence[int],
            geometry: Geometry,
            allow_tf32: bool,
        ) -> Tensor:
            needs = ctx.needs_input_grad
            ctx.save_for_backward(grad if needs[1] else None, other if needs[0] else None)
            ctx.other_size, ctx.geometry, ctx.allow_tf32 = other.shape, geometry, allow_tf32
            call = overload if is_tracing() else function
            return call(grad, other, size[2], size[3], *geometry, allow_tf32)

        @staticmethod
        def backward(ctx: Any, v: Tensor) -> tuple[Gradient, ...]:
            grad, other = ctx.saved_tensors
            given = ctx.geometry, ctx.allow_tf32
            grad_grad: Gradient = None
            grad_other: Gradient = None
            if other is not None:
                grad_grad = _conv(v, other, *given) if is_dgrad else _conv(other, v, *given)
            if grad is not None:
                grad_other = of_other(grad, v, ctx.other_size, *given)
            return grad_grad, grad_other, None, None, None

    return GradientOp


_conv_with_grad: Op = fast_apply(Conv, 4)
_dgrad_with_grad: Op = fast_apply(_gradient_op("conv2d_input_grad", _wgrad, True), 2)
_wgrad_with_grad: Op = fast_apply(_gradient_op("conv2d_weight_grad", _dgrad, False), 2)
