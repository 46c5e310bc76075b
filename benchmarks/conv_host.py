"""CPU time of a convolution: images so small that the GPU is not waited for."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .conv_jobs import ConvShape
from .conv_sides import Tensor, eager_fused, library, torch_dgrad, torch_fprop, torch_wgrad
from .host import HostCase, Run, backward_of

SHAPE = ConvShape(2, 64, 8, 8, 64, 3, 3, 1, 1, 1)
POINTWISE = SHAPE._replace(r=1, s=1, padding=0)

Fprop = Callable[[Tensor, Tensor, ConvShape], Tensor]


def make_cases(side: str, device: str = "cuda") -> list[HostCase]:
    """`side`: "cutwheel", or "torch" to see what the harness calls a difference."""
    ours = library(side)

    def operand(size: tuple[int, ...], grad: bool = False) -> Tensor:
        made = torch.randn(size, dtype=torch.bfloat16, device=device)
        if len(size) == 4:
            made = made.contiguous(memory_format=torch.channels_last)
        return made.requires_grad_(grad)

    x, w, dy = operand(SHAPE.input), operand(SHAPE.filter), operand(SHAPE.output)
    w1, b = operand(POINTWISE.filter), operand((SHAPE.k,))
    xg, wg = operand(SHAPE.input, grad=True), operand(SHAPE.filter, grad=True)

    def pair(name: str, call: Callable[[Fprop], Run]) -> HostCase:
        return HostCase(name, call(torch_fprop), call(ours.fprop))

    def fused(call: Callable[..., Tensor]) -> Run:
        return lambda: call(x, w, b, dy, SHAPE)

    return [
        pair("conv2d", lambda conv: lambda: conv(x, w, SHAPE)),
        pair("conv2d, 1 x 1", lambda conv: lambda: conv(x, w1, POINTWISE)),
        HostCase(
            "conv2d, dgrad",
            lambda: torch_dgrad(dy, w, SHAPE, x),
            lambda: ours.dgrad(dy, w, SHAPE, x),
        ),
        HostCase(
            "conv2d, wgrad",
            lambda: torch_wgrad(dy, x, SHAPE, w),
            lambda: ours.wgrad(dy, x, SHAPE, w),
        ),
        pair("conv2d, with grad", lambda conv: lambda: conv(xg, wg, SHAPE)),
        pair(
            "conv2d, forward + backward",
            lambda conv: backward_of(lambda: conv(xg, wg, SHAPE), (xg, wg), dy),
        ),
        HostCase("conv2d, bias + residual + relu, eager", fused(eager_fused), fused(ours.fused)),
    ]
