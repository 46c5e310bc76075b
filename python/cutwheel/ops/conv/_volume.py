"""Convolutions of volumes with taps, a stride or padding along the depth.

The kernels are those of images: TMA gathers pixels of volumes, too, on Hopper in 16 bits. Other
calls are computed by torch.nn.functional.conv3d.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, is_autocast_enabled, is_grad_enabled

from .._common import by_torch
from .._common.batch_invariance import refuse_torch
from .._common.errors import dtype_name
from .._common.precision import autocast_operands
from . import _convolve as conv
from ._geometry import Geometry, Padding, Sizes, geometry_of, parts

_conv_served: Callable[..., int] = torch.ops.cutwheel._conv_served.default
_FPROP, _NATIVE = 1, 2  # as the library numbers directions, and answers

# Tensor maps of five dimensions have 5 bits for where taps lie, and 4 for strides.
_MAX_SPAN, _MAX_PADDING, _MAX_STRIDE = 16, 15, 8
_MAX_RESIDUE_CLASSES = 16  # of dgrad


def why_torch(input: Tensor, weight: Tensor, groups: int, where: Geometry) -> str | None:
    """Why no kernel serves the call, so that torch does; None: one does."""
    if groups != 1:
        return f"groups is {groups}; cutwheel's convolutions of volumes have one group"
    if input.dtype not in (torch.float16, torch.bfloat16):
        return (
            f"input has dtype {dtype_name(input.dtype)}; cutwheel's convolutions of volumes take "
            "float16 and bfloat16"
        )
    if input.device.type == "cpu":
        return "the tensors are on the CPU"
    because = why_not_encodable(weight, where) or by_torch.why_convolution(input)
    if because is None and not has_kernels(input):
        because = "kernels for volumes need a GPU of compute capability 9.0"
    return because


def why_not_encodable(weight: Tensor, where: Geometry) -> str | None:
    """Why tensor maps of volumes have too few bits for a geometry; None: they have enough. In all
    three directions, whatever the sizes of the input are."""
    strides, sides, spacing = parts(where)
    steps = 1
    for step in strides:
        steps *= step
    reach = [d * (taps - 1) for d, taps in zip(spacing, weight.shape[2:], strict=False)]
    spans = [span + step for span, step in zip(reach, strides, strict=False)]
    if max(spans) > _MAX_SPAN + 1 or max(sides) > _MAX_PADDING or max(strides) > _MAX_STRIDE:
        return (
            f"stride is {strides}, padding {sides} and dilation {spacing}; volumes have strides up "
            f"to {_MAX_STRIDE}, padding up to {_MAX_PADDING} and taps that lie at most "
            f"{_MAX_SPAN} pixels apart"
        )
    if steps > _MAX_RESIDUE_CLASSES:
        return (
            f"stride is {strides}; cutwheel's convolutions of volumes have strides whose product "
            f"is at most {_MAX_RESIDUE_CLASSES}"
        )
    return None


def has_kernels(input: Tensor) -> bool:
    """Whether kernels of this wheel convolve volumes on the input's GPU."""
    if not input.is_cuda or not torch.cuda.is_available():
        return True
    return _has_kernel(input.get_device(), input.dtype)


def _has_kernel(device: int, dtype: torch.dtype) -> bool:
    return _conv_served(_FPROP, device, dtype, dtype, "", False, True, True) == _NATIVE


# torch.compile takes the answer at trace time as a constant.
_has_kernel._dynamo_marked_constant = True  # type: ignore[attr-defined]


def convolve_volume(
    op: str,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sizes,
    padding: Padding,
    dilation: Sizes,
    groups: int,
    activation: str | None,
    residual: Tensor | None,
    residual_after_activation: bool,
) -> Tensor:
    """conv3d of a batch, whose activation and ranks have been checked."""
    if is_autocast_enabled():
        input, weight, bias = autocast_operands(input, weight, bias)
        if residual is not None and residual.dtype != input.dtype:
            # The residual keeps its dtype, and the sum is promoted, as that of torch's functions.
            is_last = residual_after_activation
            first, last = (activation, None) if is_last else (None, activation)
            given = (stride, padding, dilation, groups, first, None, False)
            z = convolve_volume(op, input, weight, bias, *given)
            return conv.finish(op, z, last, residual, False)
    where = geometry_of(op, weight, stride, padding, dilation, 3)
    because = why_torch(input, weight, groups, where)
    if because is not None:
        conv.check_torch_dtype(op, input)
        refuse_torch(op, because)
        by_torch.tell_choice(op, because, input, weight)
        image, pads = conv.evenly_padded(input, where)
        strides, _, spacing = parts(where)
        z = F.conv3d(image, weight, bias, strides, pads, spacing, groups)
        z = conv.in_channels_last_order(z)
        return conv.finish(op, z, activation, residual, residual_after_activation)
    needs_grad = is_grad_enabled() and any(
        tensor is not None and tensor.requires_grad for tensor in (input, weight, bias, residual)
    )
    how = activation, residual is not None, bool(residual_after_activation), needs_grad
    plan = conv.plan_for(input, *how)
    inside, behind = (None, residual) if plan.adds_residual else (residual, None)
    given_to_kernel = (input, weight, bias, inside, where, plan.epilogue, False, needs_grad)
    z = conv.run(*given_to_kernel)
    return conv.finish(op, z, plan.activation, behind, residual_after_activation)
