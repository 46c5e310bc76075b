"""Grouped GEMMs of experts: forward, dgrad and wgrad of their linear layers, and fp8 with scales.

The operands are x [T, K], weights [G, N, K] and the gradient of the result [T, N]; the variant of
a setting says how the T rows are spread over the groups.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

import cutwheel

from ..case import Case, Provider, Setting, explained, first_kernel
from ..measure import E4M3, Tensor, blocks, outer_major, scaled, spans
from .scaled import ALLOWED, ALLOWED_FAST, exact_matmul

CHECKED_BYTES = 8e9  # of the float32 reference of a result: of a larger one, some groups


# ---- both providers; their operands are those of torch's functions
def torch_grouped_mm(a: Tensor, b: Tensor, offs: Tensor) -> Tensor:
    """Without the Python of torch.nn.functional.grouped_mm around it."""
    return torch._grouped_mm(a, b, offs=offs)


def our_grouped_mm(a: Tensor, b: Tensor, offs: Tensor) -> Tensor:
    return cutwheel.grouped_mm(a, b, offs=offs)


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
    return cutwheel.scaled_grouped_mm(a, b, scale_a, scale_b=scale_b, offs=offs, **given)


# ---- groups
def rows_of(setting: Setting) -> tuple[list[tuple[int, int]], Tensor]:
    """Rows of each group, and their ends as an operand"""
    ends = setting.shape.ends(setting.variant)
    return spans(ends), setting.operands.ends(ends)


def filled(rows: Sequence[tuple[int, int]]) -> int:
    """How many groups have rows"""
    return sum(last > first for first, last in rows)


def by_rows(
    spans_of: Sequence[tuple[int, int]],
    one: Callable[[int, slice], Tensor],
    rows: int,
    columns: int,
) -> Tensor:
    """one(group, its rows) of all groups, as float32 [rows, columns]"""
    parts = [
        (slice(first, last), one(g, slice(first, last)))
        for g, (first, last) in enumerate(spans_of)
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


def columns(setting: Setting) -> Case:
    """Weights [G, N, K] times x transposed, [K, T]: groups are columns of the result [N, T]."""
    return _of_rows(setting, setting.shape.k, setting.shape.n, transposed=True, as_columns=True)


def _of_rows(
    setting: Setting, inner: int, outer: int, *, transposed: bool, as_columns: bool = False
) -> Case:
    """inner, outer: extents of x and of the result beside rows"""
    (groups, m, n, k), normal = setting.shape, setting.operands.normal
    rows, offs = rows_of(setting)
    itemsize = setting.operands.dtype.itemsize
    buffers = setting.buffers(itemsize * (m * inner + groups * n * k), itemsize * m * outer)
    x = [normal(m, inner) for _ in range(buffers)]
    stored = [normal(groups, n, k) for _ in range(buffers)]
    w = [weights.mT if transposed else weights for weights in stored]  # [G, inner, outer]
    matmul = setting.operands.matmul

    def expected(i: int) -> Tensor:
        found = by_rows(rows, lambda g, own: matmul(x[i][own], w[i][g]), m, outer)
        return found.t() if as_columns else found

    def by_torch(i: int) -> Tensor:
        found = torch_grouped_mm(x[i], w[i], offs)
        return found.t() if as_columns else found

    def ours(i: int) -> Tensor:
        if as_columns:
            return our_grouped_mm(stored[i], x[i].t(), offs)
        return our_grouped_mm(x[i], w[i], offs)

    def explain() -> dict[str, Any]:
        return explained("grouped_mm", [x[0], w[0], offs, None], None, 1, False)

    return Case(
        [Provider("torch", by_torch), Provider("cutwheel", ours)],
        buffers,
        expected,
        ALLOWED,
        setting.shape.flops,
        itemsize * (m * (inner + outer) + filled(rows) * n * k),
        kernels={"cutwheel": first_kernel(explain)},
        explain=explain,
    )


def wgrad(setting: Setting) -> Case:
    """The gradient of the result, transposed, [N, T] times x [T, K], to [G, N, K]

    Groups without rows are ignored in torch's result. Ours are zeros, and are checked in whole,
    unless all groups together would be too large.
    """
    (groups, m, n, k), make = setting.shape, setting.operands
    rows, offs = rows_of(setting)
    itemsize = make.dtype.itemsize
    buffers = setting.buffers(itemsize * m * (n + k), itemsize * groups * n * k)
    dy = [make.normal(m, n) for _ in range(buffers)]
    x = [make.normal(m, k) for _ in range(buffers)]
    most = max(1, int(CHECKED_BYTES // (4 * n * k)))
    with_rows = [g for g, (first, last) in enumerate(rows) if last > first]
    chosen = with_rows[:: -(-len(with_rows) // most)]
    is_whole = groups <= most

    def one(i: int, g: int) -> Tensor:
        own = slice(*rows[g])
        return make.matmul(dy[i][own].t(), x[i][own])

    def some(result: Tensor) -> tuple[Tensor, ...]:
        return tuple(result[g] for g in chosen)

    def expected(i: int) -> tuple[Tensor, ...]:
        return tuple(one(i, g) for g in chosen)

    def whole(i: int) -> Tensor:
        result = torch.zeros(groups, n, k, device=make.device)
        for g in with_rows:
            result[g] = one(i, g)
        return result

    def ours(i: int) -> Any:
        result = our_grouped_mm(dy[i].t(), x[i], offs)
        return result if is_whole else some(result)

    def explain() -> dict[str, Any]:
        return explained("grouped_mm", [dy[0].t(), x[0], offs, None], None, 1, False)

    return Case(
        [
            Provider("torch", lambda i: some(torch_grouped_mm(dy[i].t(), x[i], offs)), expected),
            Provider("cutwheel", ours, whole if is_whole else expected),
        ],
        buffers,
        expected,
        ALLOWED,
        setting.shape.flops,
        itemsize * (m * (n + k) + groups * n * k),
        kernels={"cutwheel": first_kernel(explain)},
        explain=explain,
    )


def scaled_forward(setting: Setting, recipe: str, fast: bool = False) -> Case:
    """As forward, of e4m3 with scales of rows, or of blocks of x and of the weights."""
    (groups, m, n, k), make = setting.shape, setting.operands
    rows, offs = rows_of(setting)
    buffers = setting.buffers(m * k + groups * n * k, 2 * m * n)
    x = [make.eight_bits(m, k, dtype=E4M3) for _ in range(buffers)]
    w = [make.eight_bits(groups, n, k, dtype=E4M3) for _ in range(buffers)]
    is_rowwise = recipe == "rowwise"
    if is_rowwise:
        scale_x, scale_w = make.scales(m), make.scales(groups, n)
        given = scale_x, scale_w
    else:
        scale_x, scale_w = make.scales(m, blocks(k)), make.scales(groups, blocks(n), blocks(k))
        given = outer_major(scale_x), scale_w.mT

    def one(i: int, g: int, own: slice) -> Tensor:
        if is_rowwise:
            return exact_matmul(x[i][own], w[i][g]) * scale_x[own, None] * scale_w[g]
        return exact_matmul(
            scaled(x[i][own], scale_x[own], torch.bfloat16),
            scaled(w[i][g], scale_w[g], torch.bfloat16),
        )

    def provider(name: str, call: Callable[..., Tensor]) -> Provider:
        return Provider(name, lambda i: call(x[i], w[i].mT, *given, offs, fast))

    by_torch = [provider("torch", torch_scaled)] if is_rowwise else []

    def explain() -> dict[str, Any]:
        rest = torch.bfloat16, 1, False, "", None, None, fast
        return explained("scaled_grouped_mm", [x[0], w[0].mT, *given, offs, None], *rest)

    return Case(
        [*by_torch, provider("cutwheel", our_scaled)],
        buffers,
        lambda i: by_rows(rows, lambda g, own: one(i, g, own), m, n),
        ALLOWED_FAST if fast else ALLOWED,
        setting.shape.flops,
        m * (k + 2 * n) + filled(rows) * n * k,
        kernels={"cutwheel": first_kernel(explain)},
        explain=explain,
    )
