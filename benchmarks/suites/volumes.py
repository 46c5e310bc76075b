"""Convolutions of volumes and transposed convolutions against cuDNN's, channels last in bfloat16.

Forward, torch gets the volumes of a causal layer with zeros in front that were put there before
the clock ran; ours reads what lies outside as zeros. torch's `backends.cudnn.benchmark` is on.
Nothing writes with ``out=``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

import cutwheel
from cutwheel.tuning.case import Case, Provider, Reference, Setting, explained, first_kernel
from cutwheel.tuning.cases.conv import ALLOWED, Operands, sets_of
from cutwheel.tuning.measure import Tensor, exactly

from ..compare import Limits
from ..problems import Transposed, Volume
from . import Suite
from .conv import tuned_cudnn

ONES = (1, 1, 1)


# ---- torch's providers
def torch_fprop(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    """x: with zeros in front and behind"""
    return functional.conv3d(x, w, b, 1, (0, 1, 1))


def torch_dgrad(dy: Tensor, w: Tensor, x: Tensor) -> Tensor:
    """x: any tensor of the input's size and strides; its values are not read"""
    return _backward(dy, x, w, [True, False, False])[0]


def torch_wgrad(dy: Tensor, x: Tensor, w: Tensor) -> Tensor:
    """w: any tensor of the filter's size and strides; its values are not read"""
    return _backward(dy, x, w, [False, True, False])[1]


def _backward(dy: Tensor, x: Tensor, w: Tensor, mask: list[bool]) -> Operands:
    """dgrad or wgrad, by `mask`, from the function that autograd calls."""
    found: Operands = torch.ops.aten.convolution_backward(
        dy, x, w, None, ONES, ONES, ONES, False, (0, 0, 0), 1, mask
    )
    return found


def torch_transposed(x: Tensor, w: Tensor, b: Tensor, shape: Transposed) -> Tensor:
    return functional.conv_transpose2d(x, w, b, shape.stride, shape.padding, shape.more)


def in_float32(function: Callable[..., Tensor], *operands: Any) -> Tensor:
    """The reference: float64, without cuDNN, would take 27 times the volume in eight bytes each."""
    with torch.backends.cudnn.flags(
        enabled=torch.backends.cudnn.enabled, benchmark=False, allow_tf32=False
    ):
        return exactly(function, *operands, dtype=torch.float32)


# ---- ours
def our_fprop(x: Tensor, w: Tensor, b: Tensor | None, shape: Volume) -> Tensor:
    result: Tensor = cutwheel.conv3d(x, w, b, 1, ((shape.front, shape.behind), 1, 1))
    return result


def our_dgrad(dy: Tensor, w: Tensor, shape: Volume) -> Tensor:
    result: Tensor = torch.ops.cutwheel.conv3d_input_grad(dy, w, *shape.input[2:], *geometry(shape))
    return result


def our_wgrad(dy: Tensor, x: Tensor, shape: Volume) -> Tensor:
    result: Tensor = torch.ops.cutwheel.conv3d_weight_grad(
        dy, x, *shape.filter[2:], *geometry(shape)
    )
    return result


def our_transposed(x: Tensor, w: Tensor, b: Tensor, shape: Transposed) -> Tensor:
    result: Tensor = cutwheel.conv_transpose2d(x, w, b, shape.stride, shape.padding, shape.more)
    return result


def geometry(shape: Volume) -> list[int]:
    """Strides; padding in front, behind, at the top, bottom, left and right; dilations."""
    return [*ONES, shape.front, shape.behind, 1, 1, 1, 1, *ONES]


# ---- cases
def case_of(
    setting: Setting,
    sets: Sequence[Operands],
    theirs: Callable[[int], Tensor],
    ours: Callable[[int], Tensor],
    reference: Reference,
    explain: Callable[[], dict[str, Any]],
) -> Case:
    shape = setting.shape
    elements = sum(map(math.prod, (shape.input, shape.filter, shape.output)))
    return Case(
        [Provider("torch", theirs), Provider("cutwheel", ours)],
        len(sets),
        reference,
        ALLOWED,
        shape.flops,
        setting.operands.dtype.itemsize * elements,
        kernels={"cutwheel": first_kernel(explain)},
        explain=explain,
    )


def explanation(
    op: str, operands: Sequence[Tensor | None], epilogue: str, numbers: Sequence[int]
) -> dict[str, Any]:
    return explained(op, operands, None, 1, False, epilogue, None, None, False, list(numbers))


def fprop(setting: Setting) -> Case:
    return _forward(setting)


def with_bias(setting: Setting) -> Case:
    """As layers have it; torch adds it in a pass of its own."""
    return _forward(setting, (setting.shape.k,))


def _forward(setting: Setting, *bias: Sequence[int]) -> Case:
    """Filters are scaled so that results are as large as inputs."""
    shape = setting.shape
    sets = sets_of(
        setting, shape.input, shape.filter, *bias, scale=math.prod(shape.filter[1:]) ** -0.5
    )
    ends = 0, 0, 0, 0, shape.front, shape.behind
    padded = [
        functional.pad(x, ends).contiguous(memory_format=torch.channels_last_3d) for x, *_ in sets
    ]
    without = () if bias else (None,)
    return case_of(
        setting,
        sets,
        lambda i: torch_fprop(padded[i], *sets[i][1:]),
        lambda i: our_fprop(*sets[i], *without, shape),
        lambda i: in_float32(torch_fprop, padded[i], *sets[i][1:]),
        lambda: explanation("conv3d", [*sets[0], *without], "", geometry(shape)),
    )


def dgrad(setting: Setting) -> Case:
    shape = setting.shape
    sets = sets_of(setting, shape.output, shape.filter, scale=math.prod(shape.filter[1:]) ** -0.5)
    x = setting.operands.channels_last(*shape.input)
    numbers = *geometry(shape), *shape.input[2:]
    return case_of(
        setting,
        sets,
        lambda i: torch_dgrad(*sets[i], x),
        lambda i: our_dgrad(*sets[i], shape),
        lambda i: in_float32(torch_dgrad, *sets[i], x),
        lambda: explanation("conv3d_input_grad", sets[0], "", numbers),
    )


def wgrad(setting: Setting) -> Case:
    shape = setting.shape
    sets = sets_of(setting, shape.output, shape.input)
    w = setting.operands.channels_last(*shape.filter)
    numbers = *geometry(shape), *shape.filter[2:]
    return case_of(
        setting,
        sets,
        lambda i: torch_wgrad(*sets[i], w),
        lambda i: our_wgrad(*sets[i], shape),
        lambda i: in_float32(torch_wgrad, *sets[i], w),
        lambda: explanation("conv3d_weight_grad", sets[0], "", numbers),
    )


def transposed(setting: Setting) -> Case:
    """With a bias"""
    shape, exact = setting.shape, setting.operands.exact
    sets = sets_of(setting, shape.input, shape.filter, (shape.k,), scale=shape.c**-0.5)
    numbers = *[shape.stride] * 2, *[shape.padding] * 4, 1, 1, *shape.output[2:]
    return case_of(
        setting,
        sets,
        lambda i: torch_transposed(*sets[i], shape),
        lambda i: our_transposed(*sets[i], shape),
        lambda i: exactly(torch_transposed, *sets[i], shape, dtype=exact),
        lambda: explanation("conv_transpose2d", sets[0], "bias", numbers),
    )


SUITE = Suite(
    {
        "volume_fprop": fprop,
        "volume_bias": with_bias,
        "volume_dgrad": dgrad,
        "volume_wgrad": wgrad,
        "transposed": transposed,
    },
    Limits(case_seconds=0.4, max_rounds=11),
    "bf16",
    context=lambda dtype: tuned_cudnn(),
)
