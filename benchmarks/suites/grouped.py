"""Grouped GEMMs of experts against what torch has for the same, on even and on skewed groups.

cutwheel.tuning.cases.grouped has `forward`, `dgrad`, `wgrad` and fp8; `gated` is the forward GEMM
with its gated activation, N the width of gate and up. Nothing writes with ``out=``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

import cutwheel
from cutwheel.tuning.case import Case, Provider, Setting
from cutwheel.tuning.cases import grouped
from cutwheel.tuning.measure import E4M3, Error

from ..compare import HostCase, Limits, Run
from . import Suite, kernel
from .host import SIZE, backward_of

# Products of two normally distributed values have large errors.
ALLOWED_GATED = Error(1e-2, 5e-1)

Tensor = torch.Tensor


def eager_gated(x: Tensor, weight: Tensor, offs: Tensor) -> Tensor:
    """weight [G, 2F, K]: the rows of gate, then those of up."""
    gate, up = grouped.torch_grouped_mm(x, weight.mT, offs).chunk(2, -1)
    return functional.silu(gate) * up


def our_gated(x: Tensor, weight: Tensor, offs: Tensor) -> Tensor:
    """weight: as eager_gated"""
    result: Tensor = cutwheel.grouped_gated_linear(x, weight, offs=offs, activation="silu")
    return result


# ---- groups
def gated(setting: Setting) -> Case:
    """silu(x gate^T) * (x up^T): the first half of an expert MLP; N is gate's and up's together"""
    (groups, m, n, k), normal = setting.shape, setting.operands.normal
    spans, offs = grouped.rows_of(setting)
    half = n // 2
    # torch keeps three results for a moment: the GEMM's, silu of its half, and what is returned.
    buffers = setting.buffers(2 * (m * k + groups * n * k), 2 * m * (half + n))
    x = [normal(m, k) for _ in range(buffers)]
    # Activations bend near 1.
    w = [normal(groups, n, k, scale=k**-0.5) for _ in range(buffers)]

    def expected(i: int) -> Tensor:
        def one(g: int, rows: slice) -> Tensor:
            gate, up = setting.operands.matmul(x[i][rows], w[i][g].t()).chunk(2, 1)
            return functional.silu(gate) * up

        return grouped.by_rows(spans, one, m, half)

    return Case(
        [
            Provider("eager", lambda i: eager_gated(x[i], w[i], offs)),
            Provider("cutwheel", lambda i: our_gated(x[i], w[i], offs)),
        ],
        buffers,
        expected,
        ALLOWED_GATED,
        setting.shape.flops,
        2 * (m * (k + half) + grouped.filled(spans) * n * k),
        kernels={"cutwheel": kernel("grouped_gated_linear", x[0], w[0], offs=offs)},
    )


# ---- CPU time
def host(device: str, groups: int = 8, rows: int = 16) -> list[HostCase]:
    """rows: of each group"""

    def operand(*shape: int, grad: bool = False) -> Tensor:
        return torch.randn(*shape, dtype=torch.bfloat16, device=device).requires_grad_(grad)

    total = groups * rows
    offs = torch.arange(rows, total + 1, rows, dtype=torch.int32, device=device)
    x, w = operand(total, SIZE), operand(groups, SIZE, SIZE)
    xg, wg = operand(total, SIZE, grad=True), operand(groups, SIZE, SIZE, grad=True)
    grad = operand(total, SIZE)
    q, qw = x.to(E4M3), w.to(E4M3)
    scale, scale_w = torch.ones(total, device=device), torch.ones(groups, SIZE, device=device)

    def pair(name: str, call: Callable[[Callable[..., Tensor]], Run]) -> HostCase:
        return HostCase(name, call(grouped.torch_grouped_mm), call(grouped.our_grouped_mm))

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
        HostCase("scaled_grouped_mm", scaled(grouped.torch_scaled), scaled(grouped.our_scaled)),
        HostCase(
            "grouped_gated_linear, eager",
            lambda: eager_gated(x, w, offs),
            lambda: our_gated(x, w, offs),
        ),
    ]


SUITE = Suite(
    {
        "forward": grouped.forward,
        "dgrad": grouped.dgrad,
        "wgrad": grouped.wgrad,
        "fp8": functools.partial(grouped.scaled_forward, recipe="rowwise"),
        "fp8_fast": functools.partial(grouped.scaled_forward, recipe="rowwise", fast=True),
        "gated": gated,
    },
    Limits(replay_seconds=1.5e-3, case_seconds=0.25, max_rounds=15),
    "bf16, e4m3",
    host=host,
)
