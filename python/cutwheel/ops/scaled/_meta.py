"""Meta functions of scaled_mm and quantize."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ...errors import ShapeError
from .._common.errors import shape_text
from .._common.meta import matmul_shape, register
from ._recipes import BLOCKWISE_1X128, BLOCKWISE_128X128, ROWWISE, blocks


def _scaled_mm(mat_a: Tensor, mat_b: Tensor, output_dtype: torch.dtype | None) -> Tensor:
    shape = matmul_shape("scaled_mm", ("mat_a", "mat_b"), mat_a, mat_b, 2)
    return mat_a.new_empty(shape, dtype=output_dtype or torch.bfloat16)


def _quantize(
    x: Tensor, recipe: int, dtype: torch.dtype, symmetric: bool
) -> tuple[Tensor, Tensor, Tensor]:
    is_matrix = recipe == BLOCKWISE_128X128
    if x.dim() < 2 or (is_matrix and x.dim() > 2):
        raise ShapeError(
            f"quantize: x has {x.dim()} dimensions (shape {shape_text(x.shape)}); expected "
            + ("[M, K] for blockwise_128x128" if is_matrix else "[..., K], at least 2")
        )
    m, k = math.prod(x.shape[:-1]), x.shape[-1]
    shapes = {ROWWISE: (m, 1), BLOCKWISE_128X128: (blocks(m), blocks(k))}
    shape: tuple[Any, ...] = shapes.get(recipe, (1,))
    scales = x.new_empty(shape, dtype=torch.float32)
    if recipe == BLOCKWISE_1X128:
        # Rows of one block lie side by side, on 16 bytes, as TMA loads them.
        strides = (1, (m + 3) // 4 * 4)
        scales = x.new_empty_strided((m, blocks(k)), strides, dtype=torch.float32)
    zero_points = x.new_empty((0,) if symmetric else shape, dtype=torch.int32)
    return x.new_empty(x.shape, dtype=dtype), scales, zero_points


register({"scaled_mm": _scaled_mm, "scaled_mm.out": None, "quantize": _quantize})
