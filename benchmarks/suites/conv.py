"""Convolutions against cuDNN's, channels last in bfloat16.

cutwheel.tuning.cases.conv has the three directions of a convolution without a bias; `fused` is
relu(conv + bias + residual). torch's `backends.cudnn.benchmark` is on. Nothing writes with
``out=``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch.nn import functional

import cutwheel
from cutwheel.tuning.case import Case, Setting
from cutwheel.tuning.cases import conv
from cutwheel.tuning.cases.conv import our_dgrad, our_wgrad, torch_dgrad, torch_fprop, torch_wgrad
from cutwheel.tuning.measure import exactly
from cutwheel.tuning.shapes import Conv

from ..compare import HostCase, Limits, Run
from . import Suite
from .host import backward_of

CUDNN_FUSED = "cudnn_convolution_add_relu"

Tensor = torch.Tensor


@contextmanager
def tuned_cudnn() -> Iterator[None]:
    """cuDNN measures its algorithms for each problem and takes the fastest."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


# ---- both providers
def eager_fused(x: Tensor, w: Tensor, b: Tensor, r: Tensor, shape: Conv) -> Tensor:
    z = functional.conv2d(x, w, b, shape.stride, shape.padding, shape.dilation)
    return functional.relu(z + r)


def cudnn_fused(x: Tensor, w: Tensor, b: Tensor, r: Tensor, shape: Conv) -> Tensor:
    """relu(conv + b + r) in one call of cuDNN, where it has that"""
    result: Tensor = torch.cudnn_convolution_add_relu(x, w, r, 1.0, b, *conv.pairs(shape), 1)
    return result


def our_fprop(x: Tensor, w: Tensor, shape: Conv) -> Tensor:
    where = shape.stride, shape.padding, shape.dilation, shape.groups
    result: Tensor = cutwheel.conv2d(x, w, None, *where)
    return result


def our_fused(x: Tensor, w: Tensor, b: Tensor, r: Tensor, shape: Conv) -> Tensor:
    where = shape.stride, shape.padding, shape.dilation
    result: Tensor = cutwheel.conv2d(x, w, b, *where, activation="relu", residual=r)
    return result


# ---- groups
def fused(setting: Setting) -> Case:
    """relu(conv + bias + residual); filters are scaled so that the convolution is as the others"""
    shape = setting.shape
    scale = (shape.c * shape.r * shape.s) ** -0.5
    sets = conv.sets_of(setting, shape.input, shape.filter, (shape.k,), shape.output, scale=scale)

    def expected(i: int) -> Tensor:
        x, w, b, r = sets[i]
        z = exactly(torch_fprop, x, w, shape, dtype=setting.operands.exact)
        return functional.relu(z.add_(b.float()[:, None, None]).add_(r.float()))

    baselines = {"eager": eager_fused, CUDNN_FUSED: cudnn_fused}
    return conv.case_of(setting, "fused", sets, baselines, our_fused, expected, sets[0][3].nbytes)


# ---- CPU time
HOST_SHAPE = Conv(2, 64, 8, 8, 64, 3, 3, 1, 1, 1)
POINTWISE = HOST_SHAPE._replace(r=1, s=1, padding=0)


def host(device: str) -> list[HostCase]:
    shape = HOST_SHAPE

    def operand(size: tuple[int, ...], grad: bool = False) -> Tensor:
        made = torch.randn(size, dtype=torch.bfloat16, device=device)
        if len(size) == 4:
            made = made.contiguous(memory_format=torch.channels_last)
        return made.requires_grad_(grad)

    x, w, dy = operand(shape.input), operand(shape.filter), operand(shape.output)
    w1, b = operand(POINTWISE.filter), operand((shape.k,))
    xg, wg = operand(shape.input, grad=True), operand(shape.filter, grad=True)

    def pair(name: str, call: Callable[[Callable[..., Tensor]], Run]) -> HostCase:
        return HostCase(name, call(torch_fprop), call(our_fprop))

    return [
        pair("conv2d", lambda conv: lambda: conv(x, w, shape)),
        pair("conv2d, 1 x 1", lambda conv: lambda: conv(x, w1, POINTWISE)),
        HostCase(
            "conv2d, dgrad",
            lambda: torch_dgrad(dy, w, shape, x),
            lambda: our_dgrad(dy, w, shape),
        ),
        HostCase(
            "conv2d, wgrad",
            lambda: torch_wgrad(dy, x, shape, w),
            lambda: our_wgrad(dy, x, shape),
        ),
        pair("conv2d, with grad", lambda conv: lambda: conv(xg, wg, shape)),
        pair(
            "conv2d, forward + backward",
            lambda conv: backward_of(lambda: conv(xg, wg, shape), (xg, wg), dy),
        ),
        HostCase(
            "conv2d, bias + residual + relu, eager",
            lambda: eager_fused(x, w, b, dy, shape),
            lambda: our_fused(x, w, b, dy, shape),
        ),
    ]


DIRECTIONS: dict[str, Callable[[Setting], Case]] = {
    "fprop": functools.partial(conv.fprop, ours=our_fprop),
    "dgrad": conv.dgrad,
    "wgrad": conv.wgrad,
}
SUITE = Suite(
    {
        **DIRECTIONS,
        "fused": fused,
        **{f"depthwise_{name}": made for name, made in DIRECTIONS.items()},
        **{f"grouped_{name}": made for name, made in DIRECTIONS.items()},
    },
    Limits(case_seconds=0.4, max_rounds=15),
    "bf16",
    host=host,
    context=lambda dtype: tuned_cudnn(),
)
