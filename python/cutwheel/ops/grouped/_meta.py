"""Meta functions of grouped_mm, grouped_linear and scaled_grouped_mm. Results are contiguous."""

from __future__ import annotations

import torch

from .._common.meta import (
    Shape,
    check_dims,
    check_operand,
    declared_epilogue,
    register,
    result_width,
)

Tensor = torch.Tensor
_NAMES = "mat_a", "mat_b"


def _rows_shape(op: str, a: Tensor, b: Tensor) -> Shape:
    """Shape of the result where the rows of A are grouped: [T, K], [G, K, N] -> [T, N]."""
    check_operand(op, _NAMES, a, b, [b.shape[1]], "G", a.shape[1], "N")
    return a.shape[0], b.shape[2]


def _grouped_mm(
    mat_a: Tensor, mat_b: Tensor, offs: Tensor, out_dtype: torch.dtype | None
) -> Tensor:
    op = "grouped_mm"
    check_dims(op, "mat_a", mat_a, 2)
    check_dims(op, "mat_b", mat_b, 2, 3)
    if mat_b.dim() == 3:
        return mat_a.new_empty(_rows_shape(op, mat_a, mat_b), dtype=out_dtype)
    check_operand(op, _NAMES, mat_a, mat_b, mat_b.shape[:1], mat_a.shape[1], "N")
    check_dims(op, "offs", offs, 1)
    shape = offs.shape[0], mat_a.shape[0], mat_b.shape[1]
    return mat_a.new_empty(shape, dtype=out_dtype)


def _grouped_linear_fused_aux(
    input: Tensor, weight: Tensor, epilogue: str
) -> tuple[Tensor, Tensor]:
    """D, and z, which the epilogue stores."""
    op = "grouped_linear"
    declared = declared_epilogue(op, epilogue)
    check_dims(op, "input", input, 2)
    check_dims(op, "weight", weight, 3)
    _, n, k = weight.shape
    check_operand(op, ("input", "weight"), input, weight, [k], "G", "N", input.shape[1])
    rows = input.shape[0]
    return input.new_empty((rows, result_width(declared, n))), input.new_empty((rows, n))


def _grouped_linear_fused(input: Tensor, weight: Tensor, epilogue: str) -> Tensor:
    return _grouped_linear_fused_aux(input, weight, epilogue)[0]


def _scaled_grouped_mm(mat_a: Tensor, mat_b: Tensor, output_dtype: torch.dtype | None) -> Tensor:
    op = "scaled_grouped_mm"
    check_dims(op, "mat_a", mat_a, 2)
    check_dims(op, "mat_b", mat_b, 3)
    return mat_a.new_empty(_rows_shape(op, mat_a, mat_b), dtype=output_dtype or torch.bfloat16)


register(
    {
        "grouped_mm": _grouped_mm,
        "grouped_mm_accumulate": None,
        "grouped_linear_fused": _grouped_linear_fused,
        "grouped_linear_fused_aux": _grouped_linear_fused_aux,
        "scaled_grouped_mm": _scaled_grouped_mm,
    }
)
