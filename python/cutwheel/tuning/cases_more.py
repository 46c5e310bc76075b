"""Grouped products and convolutions as calls on rotated operands."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from ..ops.grouped import grouped_mm
from ..ops.scaled._grouped import scaled_grouped_mm
from .cases import (
    DTYPES,
    Case,
    Maker,
    Tensor,
    blocks,
    exact,
    explained,
    make_addmm,
    make_gated,
    make_gemm,
    make_linear,
    make_mm,
    make_scaled,
    outer_major,
    spread,
)

_GROUPED_MM, _SCALED_GROUPED_MM = 8, 11
_CHECKED_BYTES = 4 << 30  # of a float32 reference of groups along K


def _spans(groups: int, total: int) -> list[tuple[int, int]]:
    """Groups as equal as can be: the library knows their mean alone."""
    ends = [total * (g + 1) // groups for g in range(groups)]
    return list(zip([0, *ends[:-1]], ends, strict=True))


def make_grouped(make: Maker) -> Case:
    groups, total, n, k = make.job.shape
    spans = _spans(groups, total)
    offs = torch.tensor([end for _, end in spans], dtype=torch.int32, device=make.device)
    if make.job.family.variant == "k":
        return _of_k(make, offs, spans)
    itemsize = DTYPES[make.job.family.dtype].itemsize
    slots = make.slots((total * k + groups * n * k) * itemsize)
    x = [make.random(total, k) for _ in range(slots)]
    w = [make.random(groups, n, k) for _ in range(slots)]
    columns = make.job.family.variant == "columns"

    def call(i: int) -> Tensor:
        if columns:  # [G, N, K] [K, T]
            return grouped_mm(w[i], x[i].t(), offs=offs)
        return grouped_mm(x[i], w[i].mT, offs=offs)

    def reference() -> Tensor:
        parts = [exact(torch.mm, x[0][a:b], w[0][g].t()) for g, (a, b) in enumerate(spans)]
        rows = torch.cat(parts)
        return rows.t() if columns else rows

    def torchs() -> Tensor:
        rows = torch._grouped_mm(x[0], w[0].mT, offs=offs)
        return rows.t() if columns else rows

    operands = [x[0], w[0].mT, offs, None]
    return Case(
        slots,
        call,
        lambda: explained(_GROUPED_MM, operands, None, 1, False),
        reference,
        torchs,
    )


def _of_k(make: Maker, offs: Tensor, spans: list[tuple[int, int]]) -> Case:
    """[T, N]^T [T, K] of each group"""
    groups, total, n, k = make.job.shape
    itemsize = DTYPES[make.job.family.dtype].itemsize
    slots = make.slots((total * k + total * n) * itemsize)
    dy = [make.random(total, n) for _ in range(slots)]
    x = [make.random(total, k) for _ in range(slots)]
    most = max(1, _CHECKED_BYTES // (4 * n * k))
    chosen = list(range(0, groups, -(-groups // most)))

    def reference() -> Tensor:
        parts = [
            exact(torch.mm, dy[0][slice(*spans[g])].t(), x[0][slice(*spans[g])]) for g in chosen
        ]
        return torch.stack(parts)

    return Case(
        slots,
        lambda i: grouped_mm(dy[i].t(), x[i], offs=offs),
        lambda: explained(_GROUPED_MM, [dy[0].t(), x[0], offs, None], None, 1, False),
        reference,
        lambda: torch._grouped_mm(dy[0].t(), x[0], offs=offs),
        lambda result: result[chosen] if len(chosen) < groups else result,
    )


def make_scaled_grouped(make: Maker) -> Case:
    groups, total, n, k = make.job.shape
    recipe, _, speed = make.job.family.variant.partition("+")
    fast, spans = speed == "fast", _spans(groups, total)
    offs = torch.tensor([end for _, end in spans], dtype=torch.int32, device=make.device)
    slots = make.slots(total * k + groups * n * k)
    x = [make.eight_bits(total, k) for _ in range(slots)]
    w = [make.eight_bits(groups, n, k) for _ in range(slots)]
    if recipe == "rowwise":
        scale_x, scale_w = make.scales(total, 1), make.scales(groups, n, 1)
        given = scale_x.view(total), scale_w.view(groups, n)
    else:
        scale_x, scale_w = make.scales(total, blocks(k)), make.scales(groups, blocks(n), blocks(k))
        given = outer_major(scale_x), scale_w.mT

    def reference() -> Tensor:
        return torch.cat(
            [
                exact(torch.mm, spread(x[0][a:b], scale_x[a:b]), spread(w[0][g], scale_w[g]).t())
                for g, (a, b) in enumerate(spans)
            ]
        )

    def torchs() -> Tensor:
        return torch._scaled_grouped_mm(
            x[0], w[0].mT, *given, offs=offs, out_dtype=torch.bfloat16, use_fast_accum=fast
        )

    rest = torch.bfloat16, 1, False, "", None, None, fast
    operands = [x[0], w[0].mT, *given, offs, None]
    return Case(
        slots,
        lambda i: scaled_grouped_mm(
            x[i], w[i].mT, given[0], scale_b=given[1], offs=offs, use_fast_accum=fast
        ),
        lambda: explained(_SCALED_GROUPED_MM, operands, *rest),
        reference,
        torchs if recipe == "rowwise" else None,
    )


def make_conv(make: Maker) -> Case:
    images, c, h, w, filters, r, s, stride, padding, dilation = make.job.shape
    variant, tf32 = make.job.family.variant, make.job.family.dtype == "tf32"
    p = (h + 2 * padding - dilation * (r - 1) - 1) // stride + 1
    q = (w + 2 * padding - dilation * (s - 1) - 1) // stride + 1
    if p < 1 or q < 1:
        raise ValueError(f"{make.job}: the filter is larger than the padded image")
    image, weight, result = (images, c, h, w), (filters, c, r, s), (images, filters, p, q)
    left, right = {
        "fprop": (image, weight),
        "dgrad": (result, weight),
        "wgrad": (result, image),
    }[variant]
    itemsize = DTYPES[make.job.family.dtype].itemsize

    def elements(size: tuple[int, ...]) -> int:
        return size[0] * size[1] * size[2] * size[3]

    def operand(size: tuple[int, ...]) -> Tensor:
        n, channels, height, width = size
        return make.random(n, height, width, channels).permute(0, 3, 1, 2)

    slots = make.slots((elements(left) + elements(right)) * itemsize)
    a = [operand(left) for _ in range(slots)]
    b = [operand(right) for _ in range(slots)]
    other = operand(image if variant == "dgrad" else weight)  # of its sizes alone
    ops = torch.ops.cutwheel
    pairs = [stride] * 2, [padding] * 2, [dilation] * 2
    where = *[stride] * 2, *[padding] * 4, *[dilation] * 2

    def torchs(x: Tensor, y: Tensor) -> Tensor:
        if variant == "fprop":
            return functional.conv2d(x, y, None, stride, padding, dilation)
        is_dgrad = variant == "dgrad"
        third = other.to(x.dtype)
        mask = [is_dgrad, not is_dgrad, False]
        operands = (x, third, y) if is_dgrad else (x, y, third)
        found: Any = torch.ops.aten.convolution_backward(
            *operands, None, *pairs, False, [0, 0], 1, mask
        )
        gradient: Tensor = found[0 if is_dgrad else 1]
        return gradient

    def call(i: int) -> Tensor:
        result: Tensor
        if variant == "fprop":
            result = ops.conv2d(a[i], b[i], None, *where, tf32)
        elif variant == "dgrad":
            result = ops.conv2d_input_grad(a[i], b[i], h, w, *where, tf32)
        else:
            result = ops.conv2d_weight_grad(a[i], b[i], r, s, *where, tf32)
        return result

    def explain() -> dict[str, Any]:
        number, size, operands = {
            "fprop": (0, (0, 0), [a[0], b[0], None]),
            "dgrad": (3, (h, w), [a[0], b[0]]),
            "wgrad": (4, (r, s), [a[0], b[0]]),
        }[variant]
        text = ops._explain_conv(number, operands, *where, None, tf32, "", *size)
        found: dict[str, Any] = json.loads(text)
        return found

    return Case(slots, call, explain, lambda: exact(torchs, a[0], b[0]), lambda: torchs(a[0], b[0]))


MAKERS: dict[str, Callable[[Maker], Case]] = {
    "mm": make_mm,
    "addmm": make_addmm,
    "linear": make_linear,
    "gated_linear": make_gated,
    "gemm": make_gemm,
    "scaled_mm": make_scaled,
    "grouped_mm": make_grouped,
    "scaled_grouped_mm": make_scaled_grouped,
    "conv2d": make_conv,
}


def make_case(make: Maker) -> Case:
    """Raises ValueError for a job that means nothing."""
    return MAKERS[make.job.family.op](make)
