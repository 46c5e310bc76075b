"""CPU time of a call of the grouped products: operands so small that the GPU is not waited for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .grouped_sides import (
    E4M3,
    Tensor,
    eager_gated,
    library,
    packed,
    torch_grouped_mm,
    torch_scaled,
)
from .host import SIZE, HostCase, Run, backward_of

GROUPS = 8
ROWS = 16  # of each group

GroupedMm = Callable[[Tensor, Tensor, Tensor], Tensor]


def make_cases(side: str, device: str = "cuda") -> list[HostCase]:
    """`side`: "cutwheel", or "torch" to see what the harness calls a difference."""
    ours = library(side)

    def operand(*shape: int, grad: bool = False) -> Tensor:
        return torch.randn(*shape, dtype=torch.bfloat16, device=device).requires_grad_(grad)

    total = GROUPS * ROWS
    offs = torch.arange(ROWS, total + 1, ROWS, dtype=torch.int32, device=device)
    x, w = operand(total, SIZE), operand(GROUPS, SIZE, SIZE)
    xg, wg = operand(total, SIZE, grad=True), operand(GROUPS, SIZE, SIZE, grad=True)
    grad = operand(total, SIZE)
    q, qw = x.to(E4M3), w.to(E4M3)
    scale, scale_w = (torch.ones(*extents, device=device) for extents in ((total,), (GROUPS, SIZE)))
    of_ours = w if ours.is_torch else packed(w)

    def pair(name: str, call: Callable[[GroupedMm], Run]) -> HostCase:
        return HostCase(name, call(torch_grouped_mm), call(ours.grouped_mm))

    def scaled(call: Callable[..., Any]) -> Run:
        return lambda: call(q, qw.mT, scale, scale_w, offs, False)

    return [
        pair("grouped_mm", lambda mm: lambda: mm(x, w.mT, offs)),
        pair("grouped_mm, dgrad", lambda mm: lambda: mm(grad, w, offs)),
        pair("grouped_mm, wgrad", lambda mm: lambda: mm(grad.t(), x, offs)),
        pair("grouped_mm, with grad", lambda mm: lambda: mm(xg, wg.mT, offs)),
        pair(
            "grouped_mm, forward + backward",
            lambda mm: backward_of(lambda: mm(xg, wg.mT, offs), (xg, wg), grad),
        ),
        HostCase("scaled_grouped_mm", scaled(torch_scaled), scaled(ours.scaled)),
        HostCase(
            "grouped_gated_linear, eager",
            lambda: eager_gated(x, w, offs),
            lambda: ours.gated(x, of_ours, offs),
        ),
    ]
