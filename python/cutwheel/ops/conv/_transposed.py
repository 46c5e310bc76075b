"""Transposed convolutions: dgrad kernels, which may add a bias and apply relu.

A transposed convolution of X is the gradient of the input of a convolution whose result has the
shape of X. So weight, stride, padding and dilation are those of that convolution.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, is_autocast_enabled, is_grad_enabled

from ...errors import ArgumentError, ShapeError
from .._common import by_torch
from .._common.activations import check_activation
from .._common.batch_invariance import refuse_torch
from .._common.call import distinct, is_tracing, overloads
from .._common.errors import dtype_name, shape_text
from .._common.precision import DTYPES, autocast_operands, conv_tf32_allowed
from .._common.sizes import differ
from . import _convolve as conv
from . import _volume as volume
from ._autograd import channels_first, channels_last, transposed_with_grad
from ._geometry import Geometry, Sizes, check_rank, spread

_conv_served: Callable[..., int] = torch.ops.cutwheel._conv_served.default
_DGRAD, _NATIVE = 2, 2  # as the library numbers directions, and answers
_OPS = {8: overloads("conv_transpose2d"), 12: overloads("conv_transpose3d")}
_BY_TORCH = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
_SHAPES = (
    ("[N, C, L]", "[C, L]", "[C, Ko, S]"),
    ("[N, C, H, W]", "[C, H, W]", "[C, Ko, R, S]"),
    ("[N, C, D, H, W]", "[C, D, H, W]", "[C, Ko, T, R, S]"),
)


class Transposed(NamedTuple):
    """A call as dgrad of images or volumes, or why torch computes it."""

    input: Tensor
    weight: Tensor
    size: tuple[Any, ...]
    """extents of the result"""
    where: Geometry
    because: str | None
    unfold: Callable[[Tensor], Tensor]
    """of the result"""


class Plan(NamedTuple):
    """The kernel's part of a call, and torch's part behind it."""

    epilogue: str
    """plain, bias or bias_relu"""
    adds_bias: bool
    """by torch"""
    activation: str | None
    """by torch"""


def plan_of(activation: str | None, has_bias: bool, before: bool, serves_bias: bool) -> Plan:
    """As much as possible in the kernel; a residual is added by torch.

    Args:
        before: a residual comes before the activation
        serves_bias: whether there are kernels with a bias
    """
    if not serves_bias:
        return Plan("plain", has_bias, activation)
    if activation == "relu" and not before:
        return Plan("bias_relu", False, None)
    return Plan("bias" if has_bias else "plain", False, activation)


def transpose(
    op: str,
    input: Tensor,
    weight: Tensor,
    stride: Sizes,
    padding: Sizes,
    output_padding: Sizes,
    groups: int,
    dilation: Sizes,
) -> Transposed:
    """The call of an input with a batch."""
    dims = int(op[-2])
    of_weight = _SHAPES[dims - 1][2]
    check_rank(op, "weight", weight, of_weight)
    strides, pads = spread(op, "stride", stride, dims), spread(op, "padding", padding, dims)
    spacing = spread(op, "dilation", dilation, dims)
    more = spread(op, "output_padding", output_padding, dims)
    c = input.shape[1]
    if groups == 1 and differ(weight.shape[0], c):
        raise ShapeError(
            f"{op}: weight has shape {shape_text(weight.shape)} and input has {c} channels; "
            f"expected a weight {of_weight.replace('C', str(c), 1)}"
        )
    for name, values, least in (
        ("stride", strides, 1),
        ("padding", pads, 0),
        ("output_padding", more, 0),
    ):
        if any(value < least for value in values):
            raise ArgumentError(f"{op}: {name} is {values}; expected integers from {least} on")
    limits = [max(step, space) for step, space in zip(strides, spacing, strict=True)]
    if any(each >= limit for each, limit in zip(more, limits, strict=True)):
        raise ArgumentError(
            f"{op}: output_padding is {more}; expected less than the stride {strides} or the "
            f"dilation {spacing}"
        )
    size = tuple(
        (extent - 1) * step - 2 * pad + space * (taps - 1) + 1 + extra
        for extent, step, pad, space, taps, extra in zip(
            input.shape[2:], strides, pads, spacing, weight.shape[2:], more, strict=True
        )
    )
    sides = tuple(side for pad in pads for side in (pad, pad))
    where = (*strides, *sides, *spacing)
    unfold: Callable[[Tensor], Tensor] = _as_it_is
    if dims == 1:
        input, weight, unfold = input.unsqueeze(2), weight.unsqueeze(2), _signal
        size, where = (1, *size), (1, strides[0], 0, 0, *sides, 1, *spacing)
    elif dims == 3 and (weight.shape[2], strides[0], pads[0], more[0]) == (1, 1, 0, 0):
        unfold = functools.partial(_volume_of, input.shape[0], input.shape[2])
        input = channels_first(channels_last(input).flatten(0, 1))
        weight, size = weight.squeeze(2), size[1:]
        where = (*strides[1:], *sides[2:], *spacing[1:])
    because = _why_torch(input, weight, groups, where)
    if because is None and any(each >= step for each, step in zip(more, strides, strict=True)):
        because = f"output_padding is {more}; cutwheel's kernels take less than the stride"
    return Transposed(input, weight, size, where, because, unfold)


def _as_it_is(result: Tensor) -> Tensor:
    return result


def _signal(result: Tensor) -> Tensor:
    return result.squeeze(2)


def _volume_of(images: int, depth: int, slices: Tensor) -> Tensor:
    pixels = channels_last(slices)
    return channels_first(pixels.view(images, depth, *pixels.shape[1:]))


def _why_torch(input: Tensor, weight: Tensor, groups: int, where: Geometry) -> str | None:
    if len(where) == 12:
        return volume.why_torch(input, weight, groups, where)
    if groups != 1:
        return f"groups is {groups}; cutwheel's transposed convolutions have one group"
    if input.dtype not in DTYPES:
        return f"input has dtype {dtype_name(input.dtype)}; expected float16, bfloat16 or float32"
    return by_torch.why_convolution(input)


def serves_bias(input: Tensor) -> bool:
    """Whether kernels of this wheel add a bias to a gradient on the input's GPU."""
    if input.dtype == torch.float32:
        return False
    if not input.is_cuda or not torch.cuda.is_available():
        return True
    return _has_bias_kernel(input.get_device(), input.dtype)


def _has_bias_kernel(device: int, dtype: torch.dtype) -> bool:
    return _conv_served(_DGRAD, device, dtype, dtype, "bias", True) == _NATIVE


# torch.compile takes the answer at trace time as a constant.
_has_bias_kernel._dynamo_marked_constant = True  # type: ignore[attr-defined]


def convolve_transposed(
    op: str,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sizes,
    padding: Sizes,
    output_padding: Sizes,
    groups: int,
    dilation: Sizes,
    activation: str | None,
    residual: Tensor | None,
    residual_after_activation: bool,
) -> Tensor:
    """A transposed convolution of as many dimensions as `op` names."""
    if activation is not None:
        check_activation(activation, conv.CONV_ACTIVATIONS, op)
    dims = int(op[-2])
    batch, single, _ = _SHAPES[dims - 1]
    check_rank(op, "input", input, batch, single)
    if input.dim() == dims + 1:
        added = residual if residual is None else residual.unsqueeze(0)
        where = (stride, padding, output_padding, groups, dilation)
        rest = (activation, added, residual_after_activation)
        result = convolve_transposed(op, input.unsqueeze(0), weight, bias, *where, *rest)
        return result.squeeze(0)
    if is_autocast_enabled():
        input, weight, bias = autocast_operands(input, weight, bias)
    call = transpose(op, input, weight, stride, padding, output_padding, groups, dilation)
    is_last = residual_after_activation
    if call.because is not None:
        conv.check_torch_dtype(op, input)
        refuse_torch(op, call.because)
        by_torch.tell_choice(op, call.because, input, weight)
        if groups == 1 and input.dtype == torch.float32 and not conv_tf32_allowed():
            by_torch.tell(op, by_torch.ALLOW_CONV_TF32)
        by_torchs: Any = _BY_TORCH[dims]
        given = (stride, padding, output_padding, groups, dilation)
        z = conv.in_channels_last_order(by_torchs(input, weight, bias, *given))
        return conv.finish(op, z, activation, residual, is_last)
    before = residual is not None and not (is_last and activation is not None)
    plan = plan_of(activation, bias is not None, before, serves_bias(input))
    z = call.unfold(_run(call, bias, plan))
    if plan.adds_bias:
        assert bias is not None
        z = z + bias.view(-1, *(1,) * dims)
    return conv.finish(op, z, plan.activation, residual, is_last)


def _run(call: Transposed, bias: Tensor | None, plan: Plan) -> Tensor:
    """The kernel's part."""
    input, weight = call.input, call.weight
    bias = None if plan.adds_bias else bias
    rest: Sequence[Any] = plan.epilogue, input.dtype == torch.float32
    if is_grad_enabled() and any(
        tensor is not None and tensor.requires_grad for tensor in (input, weight, bias)
    ):
        if is_tracing():
            input, weight, bias = distinct(input, weight, bias)
        return transposed_with_grad(input, weight, bias, call.size, call.where, *rest)
    overload, direct = _OPS[len(call.where)]
    run = overload if is_tracing() else direct
    return run(input, weight, bias, *call.size, *call.where, *rest)
