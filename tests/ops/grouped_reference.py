"""Grouped products as loops over the groups: in float64 the reference, in less torch's own product.

Grouped products are defined here a second time, from the documentation and not from the package.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from gemm_cases import torch_product
from reference import Problem

# By the ranks of a and b; what is grouped: rows of D, K, columns of D, nothing.
KINDS = {(2, 3): "rows", (2, 2): "k", (3, 2): "columns", (3, 3): "batched"}


def kind_of(a: torch.Tensor, b: torch.Tensor) -> str:
    return KINDS[a.dim(), b.dim()]


def spans(ends: Sequence[int], total: int) -> list[tuple[int, int]]:
    """[first, last) of each group; an end that decreases or lies outside is moved."""
    found, first = [], 0
    for end in ends:
        last = min(max(first, end), total)
        found.append((first, last))
        first = last
    return found


def loop(
    a: torch.Tensor,
    b: torch.Tensor,
    ends: Sequence[int] | None,
    bias: torch.Tensor | None = None,
    mm: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = torch.matmul,
) -> torch.Tensor:
    """The grouped product; differentiable. Elements that no group covers are zeros.

    Args:
        bias: [G, N]; [G, M] of grouped columns
    """
    kind = kind_of(a, b)
    if kind == "batched":
        parts = [mm(x, y) for x, y in zip(a, b, strict=True)]
        d = torch.stack(parts) if parts else a.new_zeros(0, a.shape[1], b.shape[2])
        return d if bias is None else d + bias.unsqueeze(1)
    assert ends is not None
    total = {"rows": a.shape[0], "k": b.shape[0], "columns": b.shape[1]}[kind]
    found = spans(ends, total)
    if kind == "k":
        return torch.stack([mm(a[:, first:last], b[first:last]) for first, last in found])
    covered = found[-1][1] if found else 0
    if kind == "columns":
        parts = [mm(a[g], b[:, first:last]) for g, (first, last) in enumerate(found)]
        if bias is not None:
            parts = [part + row[:, None] for part, row in zip(parts, bias, strict=True)]
        parts.append(parts[0].new_zeros(a.shape[1], total - covered))
        return torch.cat(parts, 1)
    parts = [mm(a[first:last], b[g]) for g, (first, last) in enumerate(found)]
    if bias is not None:
        parts = [part + row for part, row in zip(parts, bias, strict=True)]
    parts.append(parts[0].new_zeros(total - covered, b.shape[2]))
    return torch.cat(parts)


def problem(
    a: torch.Tensor,
    b: torch.Tensor,
    ends: Sequence[int] | None,
    bias: torch.Tensor | None = None,
    addend: torch.Tensor | None = None,
) -> Problem:
    """addend: what the product is added to"""
    a64, b64 = a.detach().double(), b.detach().double()
    bias64 = None if bias is None else bias.detach().double()
    value = loop(a64, b64, ends, bias64)
    magnitude = loop(a64.abs(), b64.abs(), ends, None if bias64 is None else bias64.abs())
    if addend is not None:
        value, magnitude = value + addend.double(), magnitude + addend.double().abs()
    k = a.shape[-1]
    if kind_of(a, b) == "k":
        assert ends is not None
        k = max(last - first for first, last in spans(ends, k))
    return Problem(value, magnitude, k, a.dtype)


def torchs(
    a: torch.Tensor,
    b: torch.Tensor,
    ends: Sequence[int] | None,
    d: torch.dtype,
    bias: torch.Tensor | None = None,
    addend: torch.Tensor | None = None,
) -> torch.Tensor:
    """torch.mm for each group; torch._grouped_mm has neither all dtypes nor all strides."""
    exact = bias is not None or addend is not None  # rounded once, at the end
    inner = torch.float32 if exact else d

    def mm(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if 0 in (*x.shape, *y.shape):
            return x.new_zeros(x.shape[0], y.shape[1], dtype=inner)
        return torch_product(x, y, inner)

    result = loop(a, b, ends, None if bias is None else bias.float(), mm)
    return (result if addend is None else result + addend.float()).to(d)
