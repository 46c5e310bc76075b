"""Meta functions of grouped GEMMs and of the ops that move their rows. Results are contiguous."""

from __future__ import annotations

import torch
from torch import Tensor

from .._common.errors import check_dims
from .._common.meta import check_operand, check_shape, declared_epilogue, register, result_width


def _grouped_rows(op: str, a: Tensor, b: Tensor, dtype: torch.dtype | None) -> Tensor:
    """[T, K], [G, K, N] -> [T, N]"""
    check_dims(op, "mat_a", a, 2)
    check_operand(op, ("mat_a", "mat_b"), a, b, "G", a.shape[1], "N")
    return a.new_empty((a.shape[0], b.shape[2]), dtype=dtype)


def _grouped_mm(
    mat_a: Tensor, mat_b: Tensor, offs: Tensor, out_dtype: torch.dtype | None
) -> Tensor:
    op = "grouped_mm"
    check_dims(op, "mat_a", mat_a, 2)
    if mat_b.dim() == 3:
        return _grouped_rows(op, mat_a, mat_b, out_dtype)
    check_dims(op, "mat_b", mat_b, 2, 3)
    check_operand(op, ("mat_a", "mat_b"), mat_a, mat_b, mat_a.shape[1], "N")
    check_dims(op, "offs", offs, 1)
    shape = offs.shape[0], mat_a.shape[0], mat_b.shape[1]
    return mat_a.new_empty(shape, dtype=out_dtype)


def _linear_fused_aux(
    input: Tensor, weight: Tensor, epilogue: str, up: Tensor | None
) -> tuple[Tensor, Tensor]:
    """D, and z, which the epilogue stores."""
    return _results(input, input, weight, epilogue, up)


def _linear_fused(input: Tensor, weight: Tensor, epilogue: str, up: Tensor | None) -> Tensor:
    return _linear_fused_aux(input, weight, epilogue, up)[0]


def _linear_gathered_aux(
    input: Tensor, sources: Tensor, weight: Tensor, epilogue: str, up: Tensor | None
) -> tuple[Tensor, Tensor]:
    """As _linear_fused_aux, of as many rows as there are sources."""
    return _results(input, sources, weight, epilogue, up)


def _linear_gathered(
    input: Tensor, sources: Tensor, weight: Tensor, epilogue: str, up: Tensor | None
) -> Tensor:
    return _linear_gathered_aux(input, sources, weight, epilogue, up)[0]


def _results(
    input: Tensor, rows_of: Tensor, weight: Tensor, epilogue: str, up: Tensor | None
) -> tuple[Tensor, Tensor]:
    op = "grouped_linear"
    declared = declared_epilogue(op, epilogue)
    check_dims(op, "input", input, 2)
    check_operand(op, ("input", "weight"), input, weight, "G", "N", input.shape[1])
    rows, n = rows_of.shape[0], weight.shape[1]
    if up is not None:
        check_shape(op, "up", up, weight.shape, " as weight has")
        n = 2 * n
    return input.new_empty((rows, result_width(declared, n))), input.new_empty((rows, n))


def _scaled_grouped_mm(mat_a: Tensor, mat_b: Tensor, output_dtype: torch.dtype | None) -> Tensor:
    return _grouped_rows("scaled_grouped_mm", mat_a, mat_b, output_dtype or torch.bfloat16)


def _moe_route(expert_ids: Tensor, num_experts: int) -> tuple[Tensor, Tensor, Tensor]:
    places = expert_ids.new_empty(expert_ids.shape, dtype=torch.int32)
    return places, places.new_empty(expert_ids.numel()), places.new_empty(num_experts)


def _moe_permute(tokens: Tensor, places: Tensor) -> Tensor:
    return tokens.new_empty((places.numel(), tokens.shape[1]))


def _moe_unpermute(rows: Tensor, places: Tensor) -> Tensor:
    return rows.new_empty((places.shape[0], rows.shape[1]))


def _moe_permute_dots(rows: Tensor, places: Tensor) -> Tensor:
    return rows.new_empty(places.shape, dtype=torch.float32)


register(
    {
        "grouped_mm": _grouped_mm,
        "grouped_mm_accumulate": None,
        "grouped_linear_fused": _linear_fused,
        "grouped_linear_fused_aux": _linear_fused_aux,
        "grouped_linear_gathered": _linear_gathered,
        "grouped_linear_gathered_aux": _linear_gathered_aux,
        "scaled_grouped_mm": _scaled_grouped_mm,
        "moe_route": _moe_route,
        "moe_permute": _moe_permute,
        "moe_unpermute": _moe_unpermute,
        "moe_permute_dots": _moe_permute_dots,
    }
)
