"""Fake kernels of mm, bmm, addmm, baddbmm and gemm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...errors import ArgumentError, DtypeError, ShapeError
from .._common.errors import dtype_name, shape_text
from .._common.meta import (
    Names,
    Shape,
    check_devices,
    check_dims,
    check_dtype,
    check_even,
    check_out,
    check_shapes,
    check_value,
    declared_epilogue,
    result_dtype,
    result_shape,
    result_width,
)
from .._common.sizes import known


def _check_addend(
    op: str, c: torch.Tensor, shape: Shape, operand: torch.dtype, result: torch.dtype
) -> None:
    if c.dtype not in (operand, result):
        raise DtypeError(
            f"{op}: input has dtype {dtype_name(c.dtype)}; expected {dtype_name(operand)}"
        )

    def text() -> str:
        return (
            f"{op}: input has shape {shape_text(c.shape)}; expected one that broadcasts to "
            f"{shape_text(shape)}"
        )

    check_value(c.dim() <= len(shape), text)
    for size, wanted in zip(reversed(c.shape), reversed(shape), strict=False):
        # As torch's own ops do, this takes a size that is not known for none of 1.
        if not known(size == 1):
            check_value(size == wanted, text)


def _product(op: str, dims: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
    names = ("input", "mat2")

    def functional(
        input: torch.Tensor,
        mat2: torch.Tensor,
        out_dtype: torch.dtype | None = None,
        allow_tf32: bool = False,
    ) -> torch.Tensor:
        check_devices(op, {"input": input, "mat2": mat2})
        shape = result_shape(op, names, input, mat2, dims)
        dtype = result_dtype(op, names, input, mat2, out_dtype, allow_tf32)
        return input.new_empty(shape, dtype=dtype)

    def out_variant(
        input: torch.Tensor, mat2: torch.Tensor, allow_tf32: bool = False, *, out: torch.Tensor
    ) -> None:
        check_devices(op, {"input": input, "mat2": mat2, "out": out})
        shape = result_shape(op, names, input, mat2, dims)
        result_dtype(op, names, input, mat2, out.dtype, allow_tf32, "out has dtype")
        check_out(op, out, shape)

    return functional, out_variant


def _product_with_addend(
    op: str, dims: int, names: Names
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def functional(
        input: torch.Tensor,
        a: torch.Tensor,
        b: torch.Tensor,
        out_dtype: torch.dtype | None = None,
        beta: float = 1,
        alpha: float = 1,
        allow_tf32: bool = False,
    ) -> torch.Tensor:
        check_devices(op, {names[0]: a, names[1]: b, "input": input})
        shape = result_shape(op, names, a, b, dims)
        dtype = result_dtype(op, names, a, b, out_dtype, allow_tf32)
        _check_addend(op, input, shape, a.dtype, dtype)
        return a.new_empty(shape, dtype=dtype)

    def out_variant(
        input: torch.Tensor,
        a: torch.Tensor,
        b: torch.Tensor,
        beta: float = 1,
        alpha: float = 1,
        allow_tf32: bool = False,
        *,
        out: torch.Tensor,
    ) -> None:
        check_devices(op, {names[0]: a, names[1]: b, "input": input, "out": out})
        shape = result_shape(op, names, a, b, dims)
        dtype = result_dtype(op, names, a, b, out.dtype, allow_tf32, "out has dtype")
        _check_addend(op, input, shape, a.dtype, dtype)
        check_out(op, out, shape)

    return functional, out_variant


def _check_gemm(
    a: torch.Tensor,
    b: torch.Tensor,
    epilogue: str,
    operands: list[torch.Tensor | None],
    scalars: list[float],
    out_dtype: torch.dtype | None,
    allow_tf32: bool,
    out_name: str = "out_dtype is",
) -> tuple[torch.dtype, list[Shape]]:
    """Dtype, and shapes of D and the stores."""
    declared = declared_epilogue("gemm", epilogue)
    kinds = {name: kind for name, kind in declared.operands.items() if kind != "scalar"}
    if not declared.has_accum:
        raise ArgumentError(f'gemm: epilogue "{epilogue}" has no product')
    if len(operands) != len(kinds) or len(scalars) != len(declared.operands) - len(kinds):
        raise ArgumentError(
            f'gemm: epilogue "{epilogue}" takes {len(kinds)} tensors and '
            f"{len(declared.operands) - len(kinds)} scalars, not {len(operands)} and {len(scalars)}"
        )
    check_devices("gemm", {"a": a, "b": b, **dict(zip(kinds, operands, strict=True))})
    if a.dim() not in (2, 3):
        raise ShapeError(
            f"gemm: a has {a.dim()} dimensions (shape {shape_text(a.shape)}); expected 2 or 3"
        )
    check_dims("gemm", "b", b, a.dim())
    shape = result_shape("gemm", ("a", "b"), a, b, a.dim())
    dtype = result_dtype("gemm", ("a", "b"), a, b, out_dtype, allow_tf32, out_name)
    *batch, m, n = shape
    check_even("gemm", declared, "b", n)
    shapes: dict[str, Shape] = {
        "row[N]": (n,),
        "col[M]": (m,),
        "matrix[M,N]": (m, n),
        "matrix[M,2N]": (m, 2 * n),
    }
    for (name, kind), operand in zip(kinds.items(), operands, strict=True):
        if operand is None:
            continue
        expected = shapes[kind.removesuffix(" f32")]
        check_dtype("gemm", name, operand, torch.float32 if kind.endswith(" f32") else dtype)
        check_shapes("gemm", name, operand, expected, *([(*batch, *expected)] if batch else []))
    result = (*batch, m, result_width(declared, n))
    return dtype, [result, *[shape] * len(declared.aux)]


def _gemm(
    a: torch.Tensor,
    b: torch.Tensor,
    epilogue: str,
    operands: list[torch.Tensor | None],
    scalars: list[float],
    out_dtype: torch.dtype | None = None,
    allow_tf32: bool = False,
) -> list[torch.Tensor]:
    dtype, shapes = _check_gemm(a, b, epilogue, operands, scalars, out_dtype, allow_tf32)
    return [a.new_empty(shape, dtype=dtype) for shape in shapes]


def _gemm_out(
    a: torch.Tensor,
    b: torch.Tensor,
    epilogue: str,
    operands: list[torch.Tensor | None],
    scalars: list[float],
    allow_tf32: bool = False,
    *,
    out: list[torch.Tensor],
) -> None:
    dtype, shapes = _check_gemm(
        a, b, epilogue, operands, scalars, out[0].dtype, allow_tf32, "out has dtype"
    )
    if len(out) != len(shapes):
        raise ArgumentError(f"gemm: out has {len(out)} tensors; expected {len(shapes)}")
    check_devices("gemm", {"a": a, **{f"out[{index}]": one for index, one in enumerate(out)}})
    for index, (one, shape) in enumerate(zip(out, shapes, strict=True)):
        check_dtype("gemm", f"out[{index}]", one, dtype)
        check_out("gemm", one, shape)


def register() -> None:
    """Gives the ops of this module their fake kernels."""
    pairs = {
        "mm": _product("mm", 2),
        "bmm": _product("bmm", 3),
        "addmm": _product_with_addend("addmm", 2, ("mat1", "mat2")),
        "baddbmm": _product_with_addend("baddbmm", 3, ("batch1", "batch2")),
        "gemm": (_gemm, _gemm_out),
    }
    for op, (functional, out_variant) in pairs.items():
        torch.library.register_fake(f"cutwheel::{op}", functional)
        torch.library.register_fake(f"cutwheel::{op}.out", out_variant)
