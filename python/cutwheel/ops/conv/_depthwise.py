"""Depthwise convolutions: each channel has a filter of its own.

conv2d hands them over where groups are as many as the input's channels and filters. Gradients are
those of _autograd, each by the op that is made for it, so that they nest.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, is_grad_enabled

from .._common.call import Op, distinct, fast_apply, is_tracing, overloads
from .._common.elementwise import Gradient, derivative, sum_rows
from .._common.errors import out_of_memory
from .._common.sizes import known
from .._common.transforms import is_transformed
from ._autograd import backward_by_torch, in_order, padded, pixels_of
from ._geometry import Geometry

_depthwise, _depthwise_direct = overloads("conv2d_depthwise")
_input_grad, _input_grad_direct = overloads("conv2d_depthwise_input_grad")
_weight_grad, _weight_grad_direct = overloads("conv2d_depthwise_weight_grad")

COMPOSED_IN_KERNEL = ("sigmoid", "tanh", "hardswish", "softplus")
"""activations that the kernels have besides those of ACTIVATIONS, without a residual"""


def is_depthwise(input: Tensor, weight: Tensor, groups: int) -> bool:
    """Whether kernels of depthwise convolutions take the call, dtypes aside.

    torch says what is wrong with groups that are no number.
    """
    if not isinstance(groups, int):
        try:
            groups = operator.index(groups)
        except TypeError:
            return False
    return (
        groups > 1
        and input.dim() == weight.dim() == 4
        and known(input.shape[1] == groups)
        and known(weight.shape[0] == groups)
        and known(weight.shape[1] == 1)
    )


def is_depthwise_layer(layer: torch.nn.Conv2d) -> bool:
    """The same of a module."""
    return 1 < layer.groups == layer.in_channels == layer.out_channels


# ---- by torch, inside of transforms --------------------------------------------------------------
def _dgrad_by_torch(
    grad: Tensor, weight: Tensor, size: Sequence[int], geometry: Geometry
) -> Tensor:
    _, _, top, bottom, left, right, _, _ = geometry
    n, c, h, w = size
    image = grad.new_zeros(n, c, h + top + bottom, w + left + right)
    wanted = True, False, False
    result = backward_by_torch(grad, image, weight, geometry, wanted, c)[0]
    return result[:, :, top : top + h, left : left + w]


def _wgrad_by_torch(grad: Tensor, input: Tensor, size: Sequence[int], geometry: Geometry) -> Tensor:
    weight, wanted = grad.new_zeros(tuple(size)), (False, True, False)
    return backward_by_torch(grad, padded(input, geometry), weight, geometry, wanted, size[0])[1]


# --------------------------------------------------------------------------------------------------


def _conv(input: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
    if is_transformed():
        image = padded(input, geometry)
        return F.conv2d(image, weight, None, geometry[:2], 0, geometry[6:], weight.shape[0])
    if is_grad_enabled() and (input.requires_grad or weight.requires_grad):
        return _with_grad(input, weight, None, None, geometry, "plain")
    call = _depthwise if is_tracing() else _depthwise_direct
    try:
        return call(input, weight, None, None, *geometry, "plain")
    except RuntimeError as error:
        raise out_of_memory(error) from None


def _dgrad(grad: Tensor, weight: Tensor, size: Sequence[int], geometry: Geometry) -> Tensor:
    if is_transformed():
        return _dgrad_by_torch(grad, weight, size, geometry)
    if is_grad_enabled() and (grad.requires_grad or weight.requires_grad):
        return _dgrad_with_grad(grad, weight, size, geometry)
    call = _input_grad if is_tracing() else _input_grad_direct
    try:
        return call(grad, weight, size[2], size[3], *geometry)
    except RuntimeError as error:
        raise out_of_memory(error) from None


def _wgrad(grad: Tensor, input: Tensor, size: Sequence[int], geometry: Geometry) -> Tensor:
    if is_transformed():
        return _wgrad_by_torch(grad, input, size, geometry)
    if is_grad_enabled() and (grad.requires_grad or input.requires_grad):
        return _wgrad_with_grad(grad, input, size, geometry)
    call = _weight_grad if is_tracing() else _weight_grad_direct
    try:
        return call(grad, input, size[2], size[3], *geometry)
    except RuntimeError as error:
        raise out_of_memory(error) from None


class Depthwise(torch.autograd.Function):
    """conv2d_depthwise, whose only activation is relu where a gradient is needed."""

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        residual: Tensor | None,
        geometry: Geometry,
        epilogue: str,
    ) -> Tensor:
        call = _depthwise if is_tracing() else _depthwise_direct
        result = call(input, weight, bias, residual, *geometry, epilogue)
        needs_input, needs_weight, *_ = ctx.needs_input_grad
        ctx.save_for_backward(
            input if needs_weight else None,
            weight if needs_input else None,
            result if epilogue.endswith("relu") else None,
        )
        ctx.input_size = input.shape if needs_input else None
        ctx.weight_size = weight.shape if needs_weight else None
        ctx.geometry = geometry
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
        grad_input = _dgrad(dz, weight, ctx.input_size, ctx.geometry) if needs_input else None
        grad_weight = _wgrad(dz, input, ctx.weight_size, ctx.geometry) if needs_weight else None
        return grad_input, grad_weight, grad_bias, dz if needs_residual else None, None, None


class _InputGrad(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, grad: Tensor, weight: Tensor, size: Sequence[int], geometry: Geometry
    ) -> Tensor:
        needs = ctx.needs_input_grad
        ctx.save_for_backward(grad if needs[1] else None, weight if needs[0] else None)
        ctx.weight_size, ctx.geometry = weight.shape, geometry
        call = _input_grad if is_tracing() else _input_grad_direct
        return call(grad, weight, size[2], size[3], *geometry)

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Gradient, ...]:
        grad, weight = ctx.saved_tensors
        of_grad = None if weight is None else _conv(v, weight, ctx.geometry)
        of_weight = None if grad is None else _wgrad(grad, v, ctx.weight_size, ctx.geometry)
        return of_grad, of_weight, None, None


class _WeightGrad(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, grad: Tensor, input: Tensor, size: Sequence[int], geometry: Geometry
    ) -> Tensor:
        needs = ctx.needs_input_grad
        ctx.save_for_backward(grad if needs[1] else None, input if needs[0] else None)
        ctx.input_size, ctx.geometry = input.shape, geometry
        call = _weight_grad if is_tracing() else _weight_grad_direct
        return call(grad, input, size[2], size[3], *geometry)

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Gradient, ...]:
        grad, input = ctx.saved_tensors
        of_grad = None if input is None else _conv(input, v, ctx.geometry)
        of_input = None if grad is None else _dgrad(grad, v, ctx.input_size, ctx.geometry)
        return of_grad, of_input, None, None


_with_grad: Op = fast_apply(Depthwise, 4)
_dgrad_with_grad: Op = fast_apply(_InputGrad, 2)
_wgrad_with_grad: Op = fast_apply(_WeightGrad, 2)


def run(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    geometry: Geometry,
    epilogue: str | None,
    needs_grad: bool,
) -> Tensor:
    """The kernel's part of a call."""
    name = ("plain" if bias is None else "bias") if epilogue is None else epilogue
    if needs_grad:
        if is_tracing():
            input, weight, bias, residual = distinct(input, weight, bias, residual)
        return _with_grad(input, weight, bias, residual, geometry, name)
    call = _depthwise if is_tracing() else _depthwise_direct
    return call(input, weight, bias, residual, *geometry, name)
