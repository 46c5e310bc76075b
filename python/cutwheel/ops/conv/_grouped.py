"""Convolutions of groups: each filter has the channels of its group, in depthwise ones one.

conv2d hands over what their kernels take. Gradients are those of _autograd, each by the op that is
made for it, so that they nest.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, is_grad_enabled

from .._common import node
from .._common.call import Op, distinct, fast_apply, is_tracing, overloads
from .._common.elementwise import Gradient, derivative, sum_rows
from .._common.errors import out_of_memory
from .._common.sizes import known
from .._common.transforms import is_transformed
from ._autograd import backward_by_torch, in_order, padded, pixels_of
from ._geometry import Geometry

_grouped, _grouped_direct = overloads("conv2d_grouped")
_input_grad, _input_grad_direct = overloads("conv2d_grouped_input_grad")
_weight_grad, _weight_grad_direct = overloads("conv2d_grouped_weight_grad")

COMPOSED_IN_KERNEL = ("sigmoid", "tanh", "hardswish", "softplus")
"""activations that the kernels have besides those of ACTIVATIONS, without a residual"""


# What shared memory has room for, on every GPU: taps and pixels along one side of a filter, the
# channels of a group, and those times taps.
_MOST_TAPS, _LONGEST_SPAN, _MOST_CHANNELS, _MOST_PRODUCTS = 7, 11, 128, 49 * 64
_WIDTHS = "multiples of 8 up to 128 channels and filters a group, four of each, or one of each"


def why_not(
    channels: Any, filters: Any, groups: int, taps: Sequence[Any], where: Geometry
) -> str | None:
    """Why no kernel takes groups of so many channels and filters; None: one does.

    Args:
        channels, filters: of a group
        taps: of a filter, along H and W
        where: paddings do not matter
    """
    if known(channels == 1) and known(filters == 1):
        return None
    are_eights = known(channels % 8 == 0) and known(filters % 8 == 0)
    are_fours = known(channels == 4) and known(filters == 4) and groups % 2 == 0
    has_room = known(channels <= _MOST_CHANNELS) and known(filters <= _MOST_CHANNELS)
    if not (has_room and (are_eights or are_fours)):
        return (
            f"groups is {groups}, of {channels} channels and {filters} filters; cutwheel's grouped "
            f"convolutions have {_WIDTHS}"
        )
    spans = [(count - 1) * step + 1 for count, step in zip(taps, where[6:], strict=True)]
    products = taps[0] * taps[1]
    fits = (
        all(known(count <= _MOST_TAPS) for count in taps)
        and all(known(span <= _LONGEST_SPAN) for span in spans)
        and known(products * channels <= _MOST_PRODUCTS)
        and known(products * filters <= _MOST_PRODUCTS)
        and max(where[:2]) <= 2
    )
    if fits:
        return None
    return (
        f"groups is {groups}, of {channels} channels and {filters} filters of {taps[0]} x {taps[1]}"
        f" (stride {where[:2]}, dilation {where[6:]}); cutwheel's grouped convolutions have "
        f"strides of 1 and 2, at most {_MOST_TAPS} taps along a side that span {_LONGEST_SPAN} "
        f"pixels, and at most {_MOST_PRODUCTS} taps times channels, or filters, of a group"
    )


def why_not_call(input: Tensor, weight: Tensor, groups: int, where: Geometry) -> str | None:
    """The same of a call, dtypes aside. torch says what is wrong with groups that are no number."""
    try:
        count = operator.index(groups)
    except TypeError:
        return f"groups is {groups!r}"
    filters = weight.shape[0] if weight.dim() else 0
    if not (
        count > 1
        and input.dim() == weight.dim() == 4
        and known(input.shape[1] == weight.shape[1] * count)
        and known(filters % count == 0)
        and known(filters > 0)
    ):
        return f"groups is {count}, which is not known to divide channels and filters"
    return why_not(weight.shape[1], filters // count, count, weight.shape[2:], where)


# ---- by torch, inside of transforms --------------------------------------------------------------
def _dgrad_by_torch(
    grad: Tensor, weight: Tensor, size: Sequence[int], geometry: Geometry, groups: int
) -> Tensor:
    _, _, top, bottom, left, right, _, _ = geometry
    n, c, h, w = size
    image = grad.new_zeros(n, c, h + top + bottom, w + left + right)
    wanted = True, False, False
    result = backward_by_torch(grad, image, weight, geometry, wanted, groups)[0]
    return result[:, :, top : top + h, left : left + w]


def _wgrad_by_torch(
    grad: Tensor, input: Tensor, size: Sequence[int], geometry: Geometry, groups: int
) -> Tensor:
    weight, wanted = grad.new_zeros(tuple(size)), (False, True, False)
    return backward_by_torch(grad, padded(input, geometry), weight, geometry, wanted, groups)[1]


# --------------------------------------------------------------------------------------------------


def _conv(input: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
    if is_transformed():
        image = padded(input, geometry)
        groups = input.shape[1] // weight.shape[1]
        return F.conv2d(image, weight, None, geometry[:2], 0, geometry[6:], groups)
    if is_grad_enabled() and (input.requires_grad or weight.requires_grad):
        return _with_grad(input, weight, None, None, geometry, "plain")
    call = _grouped if is_tracing() else _grouped_direct
    try:
        return call(input, weight, None, None, *geometry, "plain")
    except RuntimeError as error:
        raise out_of_memory(error) from None


def _dgrad(
    grad: Tensor, weight: Tensor, size: Sequence[int], geometry: Geometry, groups: int
) -> Tensor:
    if is_transformed():
        return _dgrad_by_torch(grad, weight, size, geometry, groups)
    if is_grad_enabled() and (grad.requires_grad or weight.requires_grad):
        return _dgrad_with_grad(grad, weight, size, geometry, groups)
    call = _input_grad if is_tracing() else _input_grad_direct
    try:
        return call(grad, weight, size[2], size[3], *geometry, groups)
    except RuntimeError as error:
        raise out_of_memory(error) from None


def _wgrad(
    grad: Tensor, input: Tensor, size: Sequence[int], geometry: Geometry, groups: int
) -> Tensor:
    if is_transformed():
        return _wgrad_by_torch(grad, input, size, geometry, groups)
    if is_grad_enabled() and (grad.requires_grad or input.requires_grad):
        return _wgrad_with_grad(grad, input, size, geometry, groups)
    call = _weight_grad if is_tracing() else _weight_grad_direct
    try:
        return call(grad, input, size[2], size[3], *geometry, groups)
    except RuntimeError as error:
        raise out_of_memory(error) from None


def gradients(
    grad: Tensor,
    input: Tensor,
    weight: Tensor,
    geometry: Geometry,
    groups: int,
    wanted: Sequence[bool],
) -> tuple[Gradient, Gradient, Gradient]:
    """As those of _autograd."""
    dz = in_order(grad)
    return (
        _dgrad(dz, weight, input.shape, geometry, groups) if wanted[0] else None,
        _wgrad(dz, input, weight.shape, geometry, groups) if wanted[1] else None,
        sum_rows(pixels_of(dz)) if wanted[2] else None,
    )


class Grouped(torch.autograd.Function):
    """conv2d_grouped, whose only activation is relu where a gradient is needed."""

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
        call = _grouped if is_tracing() else _grouped_direct
        result = call(input, weight, bias, residual, *geometry, epilogue)
        needs_input, needs_weight, *_ = ctx.needs_input_grad
        ctx.save_for_backward(
            input if needs_weight else None,
            weight if needs_input else None,
            result if epilogue.endswith("relu") else None,
        )
        ctx.input_size = input.shape if needs_input else None
        ctx.weight_size = weight.shape if needs_weight else None
        ctx.geometry, ctx.groups = geometry, input.shape[1] // weight.shape[1]
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
        where = ctx.geometry, ctx.groups
        grad_input = _dgrad(dz, weight, ctx.input_size, *where) if needs_input else None
        grad_weight = _wgrad(dz, input, ctx.weight_size, *where) if needs_weight else None
        return grad_input, grad_weight, grad_bias, dz if needs_residual else None, None, None


class _InputGrad(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        grad: Tensor,
        weight: Tensor,
        size: Sequence[int],
        geometry: Geometry,
        groups: int,
    ) -> Tensor:
        needs = ctx.needs_input_grad
        ctx.save_for_backward(grad if needs[1] else None, weight if needs[0] else None)
        ctx.weight_size, ctx.geometry, ctx.groups = weight.shape, geometry, groups
        call = _input_grad if is_tracing() else _input_grad_direct
        return call(grad, weight, size[2], size[3], *geometry, groups)

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Gradient, ...]:
        grad, weight = ctx.saved_tensors
        of_grad = None if weight is None else _conv(v, weight, ctx.geometry)
        of_weight: Gradient = None
        if grad is not None:
            of_weight = _wgrad(grad, v, ctx.weight_size, ctx.geometry, ctx.groups)
        return of_grad, of_weight, None, None, None


class _WeightGrad(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        grad: Tensor,
        input: Tensor,
        size: Sequence[int],
        geometry: Geometry,
        groups: int,
    ) -> Tensor:
        needs = ctx.needs_input_grad
        ctx.save_for_backward(grad if needs[1] else None, input if needs[0] else None)
        ctx.input_size, ctx.geometry, ctx.groups = input.shape, geometry, groups
        call = _weight_grad if is_tracing() else _weight_grad_direct
        return call(grad, input, size[2], size[3], *geometry, groups)

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Gradient, ...]:
        grad, input = ctx.saved_tensors
        of_grad = None if input is None else _conv(input, v, ctx.geometry)
        of_input: Gradient = None
        if grad is not None:
            of_input = _dgrad(grad, v, ctx.input_size, ctx.geometry, ctx.groups)
        return of_grad, of_input, None, None, None


_with_grad: Op = fast_apply(Grouped, 4)
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
    if is_tracing():
        input = in_order(input)
        residual = residual if residual is None else in_order(residual)
    if needs_grad:
        if epilogue is None and node.serves(input, weight) and node.is_even(geometry):
            groups = input.shape[1] // weight.shape[1]
            return node.convolution(input, weight, bias, geometry, groups)
        if is_tracing():
            input, weight, bias, residual = distinct(input, weight, bias, residual)
        return _with_grad(input, weight, bias, residual, geometry, name)
    call = _grouped if is_tracing() else _grouped_direct
    return call(input, weight, bias, residual, *geometry, name)
