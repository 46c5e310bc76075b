"""What the scaled benchmarks compare: torch's ways to the same result, and the library measured."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .sides import compiled_for_any_shape

E4M3, INT8 = torch.float8_e4m3fn, torch.int8
LARGEST = {E4M3: 448.0, INT8: 127.0}
BLOCK = 128
INT_MM_ROWS = 32  # torch._int_mm wants more than 16 rows

Tensor = torch.Tensor


def blocks(extent: int) -> int:
    return -(-extent // BLOCK)


def outer_major(x: Tensor) -> Tensor:
    """Stride 1 along the first extent: how torch and cuBLAS want the scales of 1x128."""
    return x.t().contiguous().t()


# ---- products
def torch_scaled_mm(x: Tensor, w: Tensor, scale_x: Tensor, scale_w: Tensor, fast: bool) -> Tensor:
    """w [N, K]; scale_w as torch wants it"""
    return torch._scaled_mm(
        x, w.t(), scale_x, scale_w, out_dtype=torch.bfloat16, use_fast_accum=fast
    )


def scaling(accum: Tensor, scale_x: Tensor, scale_w: Tensor) -> Tensor:
    return (accum.float() * scale_x * scale_w).to(torch.bfloat16)


def int_mm(x: Tensor, w: Tensor, scale_x: Tensor, scale_w: Tensor, scaling: Any) -> Tensor:
    """x [at least INT_MM_ROWS, K]; rows beyond those of scale_x [M, 1] are padding."""
    result: Tensor = scaling(torch._int_mm(x, w.t())[: scale_x.shape[0]], scale_x, scale_w)
    return result


@functools.cache
def compiled_scaling() -> Callable[..., Tensor]:
    return compiled_for_any_shape(scaling)


# ---- quantisation
def eager_quantize(x: Tensor, recipe: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """What is written by hand for x [M, K], M and K multiples of a block: a scale, then a cast."""
    largest, wide = LARGEST[dtype], x.float()
    m, k = x.shape
    if recipe == "blockwise_1x128":
        wide = wide.view(m, -1, BLOCK)
        scale = wide.abs().amax(-1, keepdim=True) / largest
    elif recipe == "blockwise_128x128":
        wide = wide.view(m // BLOCK, BLOCK, -1, BLOCK)
        scale = wide.abs().amax((1, 3), keepdim=True) / largest
    elif recipe == "rowwise":
        scale = wide.abs().amax(-1, keepdim=True) / largest
    else:
        scale = wide.abs().amax() / largest
    values = wide / scale
    if dtype == INT8:
        values = values.round()
    values = values.clamp(-largest, largest).to(dtype).view(m, k)
    if recipe == "blockwise_1x128":
        return values, outer_major(scale.squeeze(-1))
    if recipe == "blockwise_128x128":
        return values, scale.view(m // BLOCK, -1)
    return values, scale.view(-1, 1) if recipe == "rowwise" else scale.view(1)


@functools.cache
def compiled_quantize(recipe: str, dtype: torch.dtype) -> Callable[..., Any]:
    return compiled_for_any_shape(functools.partial(eager_quantize, recipe=recipe, dtype=dtype))


# ---- the library measured
@dataclass(frozen=True)
class Library:
    """scaled_mm: (x [M, K], w [N, K], scale_x, scale_w as torch wants it, fast) -> [M, N] bf16"""

    name: str
    scaled_mm: Callable[..., Tensor]
    int8_mm: Callable[..., Tensor]  # (x [M, K], w, scale_x [M, 1], scale_w [1, N])
    quantize: Callable[..., tuple[Tensor, Tensor]]  # (x, recipe, dtype)
    kernel: Callable[..., str | None]  # of scaled_mm
    pads: bool = False  # int8_mm wants INT_MM_ROWS


def library(name: str) -> Library:
    """cutwheel, or torch again: the noise."""
    if name == "torch":
        return Library(
            "torch (again)",
            torch_scaled_mm,
            functools.partial(int_mm, scaling=scaling),
            eager_quantize,
            lambda *operands: None,
            pads=True,
        )
    import cutwheel  # a torch-only run needs no cutwheel

    def scaled_mm(
        x: Tensor, w: Tensor, scale_x: Tensor, scale_w: Tensor, fast: bool = False
    ) -> Tensor:
        result: Tensor = cutwheel.scaled_mm(
            x, w.t(), scale_x, scale_b=scale_w, output_dtype=torch.bfloat16, use_fast_accum=fast
        )
        return result

    def kernel(
        x: Tensor, w: Tensor, scale_x: Tensor, scale_w: Tensor, fast: bool = False
    ) -> str | None:
        row: str | None = cutwheel.explain(
            "scaled_mm", x, w.t(), scale_x, scale_b=scale_w, use_fast_accum=fast
        ).row
        return row

    return Library("cutwheel", scaled_mm, scaled_mm, cutwheel.quantize, kernel)
