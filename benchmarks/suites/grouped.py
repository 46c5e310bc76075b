"""Grouped products of experts against what torch has for the same, on even and on skewed groups.

`forward`, `dgrad` and `wgrad` are the three products of a linear layer of every expert, in
bfloat16: x [T, K] and weights [G, N, K], the gradient of the result [T, N] and the same weights,
that gradient transposed and x. `fp8` is the forward product with a scale for each row of x and of
the weights, `gated` the forward product with its gated activation, N the width of gate and up.
Nothing writes with ``out=``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

import cutwheel
from cutwheel.tuning.measure import E4M3, Error, product, spans

from ..compare import Case, HostCase, Limits, Run, Setting, Side
from . import Suite, kernel
from .host import SIZE, backward_of
from .scaled import ALLOWED, ALLOWED_FAST, exact_product

# Products of two normally distributed values have large errors.
ALLOWED_GATED = Error(1e-2, 5e-1)
CHECKED_BYTES = 8e9  # of the float32 reference of a result: of a larger one, some groups

Tensor = torch.Tensor


# ---- both sides; their operands are those of torch's functions
def torch_grouped_mm(a: Tensor, b: Tensor, offs: Tensor) -> Tensor:
    """Without the Python of torch.nn.functional.grouped_mm around it."""
    return torch._grouped_mm(a, b, offs=offs)


def our_grouped_mm(a: Tensor, b: Tensor, offs: Tensor) -> Tensor:
    result: Tensor = cutwheel.grouped_mm(a, b, offs=offs)
    return result


def torch_scaled(
    a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, offs: Tensor, fast: bool
) -> Tensor:
    return torch._scaled_grouped_mm(
        a, b, scale_a, scale_b, offs=offs, out_dtype=torch.bfloat16, use_fast_accum=fast
    )


def our_scaled(
    a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, offs: Tensor, fast: bool
) -> Tensor:
    given: dict[str, Any] = {"output_dtype": torch.bfloat16, "use_fast_accum": fast}
    result: Tensor = cutwheel.scaled_grouped_mm(a, b, scale_a, scale_b=scale_b, offs=offs, **given)
    return result


def eager_gated(x: Tensor, weight: Tensor, offs: Tensor) -> Tensor:
    """weight [G, 2F, K]: the rows of gate, then those of up."""
    gate, up = torch_grouped_mm(x, weight.mT, offs).chunk(2, -1)
    return functional.silu(gate) * up


def our_gated(x: Tensor, weight: Tensor, offs: Tensor) -> Tensor:
    """weight: see packed"""
    result: Tensor = cutwheel.grouped_gated_linear(x, weight, offs=offs, activation="silu")
    return result


def packed(weight: Tensor) -> Tensor:
    """Rows of gate and up in turn, as cutwheel.pack_gated_weight makes them."""
    gate, up = weight.chunk(2, 1)
    return torch.stack((gate, up), 2).flatten(1, 2)


# ---- groups
def _rows_of(setting: Setting) -> tuple[list[tuple[int, int]], Tensor]:
    """Rows of each group, and their ends as an operand"""
    ends = setting.shape.ends(setting.problem.variant)
    return spans(ends), setting.operands.ends(ends)


def _filled(rows_of: Sequence[tuple[int, int]]) -> int:
    return sum(last > first for first, last in rows_of)


def by_rows(
    rows_of: Sequence[tuple[int, int]],
    one: Callable[[int, slice], Tensor],
    rows: int,
    columns: int,
) -> Tensor:
    """one(group, its rows) of all groups, as float32 [rows, columns]"""
    parts = [
        (slice(first, last), one(g, slice(first, last)))
        for g, (first, last) in enumerate(rows_of)
        if last > first
    ]
    result = torch.zeros(rows, columns, device=parts[0][1].device)
    for where, part in parts:
        result[where] = part
    return result


def forward(setting: Setting) -> Case:
    """x [T, K] times weights [G, N, K], transposed"""
    return _of_rows(setting, setting.shape.k, setting.shape.n, transposed=True)


def dgrad(setting: Setting) -> Case:
    """The gradient of the result [T, N] times weights [G, N, K]"""
    return _of_rows(setting, setting.shape.n, setting.shape.k, transposed=False)


def _of_rows(setting: Setting, inner: int, columns: int, transposed: bool) -> Case:
    (groups, m, n, k), normal = setting.shape, setting.operands.normal
    rows_of, offs = _rows_of(setting)
    slots = setting.slots(2 * (m * inner + groups * n * k), 2 * m * columns)
    x = [normal(m, inner) for _ in range(slots)]
    stored = [normal(groups, n, k) for _ in range(slots)]
    w = [weights.mT if transposed else weights for weights in stored]  # [G, inner, columns]

    def expected(i: int) -> Tensor:
        return by_rows(rows_of, lambda g, rows: product(x[i][rows], w[i][g]), m, columns)

    return Case(
        [
            Side("torch", lambda i: torch_grouped_mm(x[i], w[i], offs)),
            Side("cutwheel", lambda i: our_grouped_mm(x[i], w[i], offs)),
        ],
        slots,
        expected,
        ALLOWED,
        setting.shape.flops,
        2 * (m * (inner + columns) + _filled(rows_of) * n * k),
        kernels={"cutwheel": kernel("grouped_mm", x[0], w[0], offs=offs)},
    )


def wgrad(setting: Setting) -> Case:
    """The gradient of the result, transposed, [N, T] times x [T, K], to [G, N, K]

    Of torch's result groups without rows are not looked at; ours are zeros and checked in whole,
    unless all groups together would be too large.
    """
    (groups, m, n, k), normal = setting.shape, setting.operands.normal
    rows_of, offs = _rows_of(setting)
    slots = setting.slots(2 * m * (n + k), 2 * groups * n * k)
    dy = [normal(m, n) for _ in range(slots)]
    x = [normal(m, k) for _ in range(slots)]
    most = max(1, int(CHECKED_BYTES // (4 * n * k)))
    with_rows = [g for g, (first, last) in enumerate(rows_of) if last > first]
    chosen = with_rows[:: -(-len(with_rows) // most)]
    is_whole = groups <= most

    def one(i: int, g: int) -> Tensor:
        rows = slice(*rows_of[g])
        return product(dy[i][rows].t(), x[i][rows])

    def some(result: Tensor) -> tuple[Tensor, ...]:
        return tuple(result[g] for g in chosen)

    def expected(i: int) -> tuple[Tensor, ...]:
        return tuple(one(i, g) for g in chosen)

    def whole(i: int) -> Tensor:
        result = torch.zeros(groups, n, k, device=setting.operands.device)
        for g in with_rows:
            result[g] = one(i, g)
        return result

    def ours(i: int) -> Any:
        result = our_grouped_mm(dy[i].t(), x[i], offs)
        return result if is_whole else some(result)

    return Case(
        [
            Side("torch", lambda i: some(torch_grouped_mm(dy[i].t(), x[i], offs)), expected),
            Side("cutwheel", ours, whole if is_whole else expected),
        ],
        slots,
        expected,
        ALLOWED,
        setting.shape.flops,
        2 * (m * (n + k) + groups * n * k),
        kernels={"cutwheel": kernel("grouped_mm", dy[0].t(), x[0], offs=offs)},
    )


def fp8(setting: Setting, fast: bool) -> Case:
    """As forward, of e4m3 with a scale for each row of x and of the weights"""
    (groups, m, n, k), make = setting.shape, setting.operands
    rows_of, offs = _rows_of(setting)
    slots = setting.slots(m * k + groups * n * k, 2 * m * n)
    x = [make.eight_bits(m, k) for _ in range(slots)]
    w = [make.eight_bits(groups, n, k) for _ in range(slots)]
    scale_x, scale_w = make.scales(m), make.scales(groups, n)

    def expected(i: int) -> Tensor:
        def one(g: int, rows: slice) -> Tensor:
            return exact_product(x[i][rows], w[i][g]) * scale_x[rows, None] * scale_w[g]

        return by_rows(rows_of, one, m, n)

    def side(name: str, call: Callable[..., Tensor]) -> Side:
        return Side(name, lambda i: call(x[i], w[i].mT, scale_x, scale_w, offs, fast))

    more: dict[str, Any] = {"scale_b": scale_w, "offs": offs, "use_fast_accum": fast}
    return Case(
        [side("torch", torch_scaled), side("cutwheel", our_scaled)],
        slots,
        expected,
        ALLOWED_FAST if fast else ALLOWED,
        setting.shape.flops,
        m * (k + 2 * n) + _filled(rows_of) * n * k,
        kernels={"cutwheel": kernel("scaled_grouped_mm", x[0], w[0].mT, scale_x, **more)},
    )


def gated(setting: Setting) -> Case:
    """silu(x gate^T) * (x up^T): the first half of an expert MLP; N is gate's and up's together"""
    (groups, m, n, k), normal = setting.shape, setting.operands.normal
    rows_of, offs = _rows_of(setting)
    half = n // 2
    # Weights are kept packed, too. torch keeps three results for a moment: the product, silu of
    # its half, and what is returned.
    slots = setting.slots(2 * (m * k + 2 * groups * n * k), 2 * m * (half + n))
    x = [normal(m, k) for _ in range(slots)]
    # Activations bend near 1.
    w = [normal(groups, n, k, scale=k**-0.5) for _ in range(slots)]
    of_ours = [packed(weight) for weight in w]

    def expected(i: int) -> Tensor:
        def one(g: int, rows: slice) -> Tensor:
            gate, up = product(x[i][rows], w[i][g].t()).chunk(2, 1)
            return functional.silu(gate) * up

        return by_rows(rows_of, one, m, half)

    return Case(
        [
            Side("eager", lambda i: eager_gated(x[i], w[i], offs)),
            Side("cutwheel", lambda i: our_gated(x[i], of_ours[i], offs)),
        ],
        slots,
        expected,
        ALLOWED_GATED,
        setting.shape.flops,
        2 * (m * (k + half) + _filled(rows_of) * n * k),
        kernels={"cutwheel": kernel("grouped_gated_linear", x[0], of_ours[0], offs=offs)},
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
    of_ours = packed(w)

    def pair(name: str, call: Callable[[Callable[..., Tensor]], Run]) -> HostCase:
        return HostCase(name, call(torch_grouped_mm), call(our_grouped_mm))

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
        HostCase("scaled_grouped_mm", scaled(torch_scaled), scaled(our_scaled)),
        HostCase(
            "grouped_gated_linear, eager",
            lambda: eager_gated(x, w, offs),
            lambda: our_gated(x, of_ours, offs),
        ),
    ]


SUITE = Suite(
    {
        "forward": forward,
        "dgrad": dgrad,
        "wgrad": wgrad,
        "fp8": functools.partial(fp8, fast=False),
        "fp8_fast": functools.partial(fp8, fast=True),
        "gated": gated,
    },
    Limits(replay_seconds=1.5e-3, case_seconds=0.25, max_rounds=15),
    "bf16, e4m3",
    host=host,
)
