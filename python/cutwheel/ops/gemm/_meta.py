"""Meta functions of mm, bmm, addmm, baddbmm and gemm. Results are contiguous."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._common.errors import check_dims, shape_text
from .._common.meta import (
    Shape,
    check_value,
    declared_epilogue,
    matmul_shape,
    register,
    result_width,
)
from .._common.sizes import known


def _check_broadcast(op: str, c: Tensor, shape: Shape) -> None:
    """Checks that C broadcasts to the shape of the result."""
    text = (
        f"{op}: input has shape {shape_text(c.shape)}; expected one that broadcasts to "
        f"{shape_text(shape)}"
    )
    check_value(c.dim() <= len(shape), text)
    for size, wanted in zip(reversed(c.shape), reversed(shape), strict=False):
        # As torch's own ops do, this takes a size that is not known for none of 1.
        if not known(size == 1):
            check_value(size == wanted, text)


def _matmul(op: str, dims: int, a: str, b: str) -> Callable[..., Tensor]:
    def infer(arguments: dict[str, Any]) -> Tensor:
        left, right = arguments[a], arguments[b]
        shape = matmul_shape(op, (a, b), left, right, dims)
        if a != "input":
            _check_broadcast(op, arguments["input"], shape)
        result: Tensor = left.new_empty(shape, dtype=arguments["out_dtype"])
        return result

    return infer


def _gemm(a: Tensor, b: Tensor, epilogue: str, out_dtype: torch.dtype | None) -> list[Tensor]:
    declared = declared_epilogue("gemm", epilogue)
    check_dims("gemm", "a", a, 2, 3)
    *rows, n = matmul_shape("gemm", ("a", "b"), a, b, a.dim())
    widths: list[Any] = [result_width(declared, n), *[n] * len(declared.aux)]
    return [a.new_empty((*rows, width), dtype=out_dtype) for width in widths]


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "mm": _matmul("mm", 2, "input", "mat2"),
    "bmm": _matmul("bmm", 3, "input", "mat2"),
    "addmm": _matmul("addmm", 2, "mat1", "mat2"),
    "baddbmm": _matmul("baddbmm", 3, "batch1", "batch2"),
    "gemm": _gemm,
}
register({**_FUNCTIONS, **{f"{op}.out": None for op in _FUNCTIONS}})
