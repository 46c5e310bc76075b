"""Fake kernel of elementwise."""

from __future__ import annotations

import torch

from ...errors import ArgumentError, DtypeError, ShapeError
from .errors import dtype_name
from .meta import (
    check_devices,
    check_dtype,
    check_shapes,
    declared_epilogue,
    result_width,
)
from .precision import DTYPES


def _elementwise(
    operands: list[torch.Tensor],
    epilogue: str,
    with_result: bool = True,
    with_sums: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    op = "elementwise"
    declared = declared_epilogue(op, epilogue)
    names = list(declared.operands)
    if declared.has_accum or len(operands) != len(names):
        raise ArgumentError(
            f'{op}: epilogue "{epilogue}" takes {", ".join(names)} and is for gemm'
            if declared.has_accum
            else f'{op}: epilogue "{epilogue}" takes {len(names)} tensors; got {len(operands)}'
        )
    check_devices(op, dict(zip(names, operands, strict=True)))
    first = operands[0]
    if first.dtype not in DTYPES:
        raise DtypeError(
            f"{op}: {names[0]} has dtype {dtype_name(first.dtype)}; expected float16, bfloat16 or "
            "float32"
        )
    if first.dim() < 1:
        raise ShapeError(f"{op}: {names[0]} has no dimensions; expected [..., N]")
    *rows, n = first.shape
    if declared.operands[names[0]] == "matrix[M,2N]":
        n = n // 2
    for name, operand in zip(names, operands, strict=True):
        is_wide = declared.operands[name] == "matrix[M,2N]"
        check_dtype(op, name, operand, first.dtype)
        check_shapes(op, name, operand, (*rows, 2 * n if is_wide else n))
    columns = result_width(declared, n)
    return (
        first.new_empty((*rows, columns) if with_result else (0,)),
        first.new_empty((columns,) if with_sums else (0,)),
    )


def register() -> None:
    """Gives the ops of this module their fake kernels."""
    torch.library.register_fake("cutwheel::elementwise", _elementwise)
