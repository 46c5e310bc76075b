"""Fake kernels of the ops that take an epilogue by name, as those of _fake."""

from __future__ import annotations

from typing import Any

import torch

from ..errors import ArgumentError, DtypeError, ShapeError
from ._fake import (
    DTYPES,
    Shape,
    check_devices,
    check_dims,
    check_linear,
    check_out,
    check_shape,
    check_value,
    dtype_name,
    result_dtype,
    result_shape,
    shape_text,
)
from .epilogue import Epilogue, epilogues, find


def declared_epilogue(op: str, name: str) -> Epilogue:
    found = find(name)
    if found is None:
        declared = ", ".join(epilogue.name for epilogue in epilogues())
        raise ArgumentError(
            f'{op}: epilogue "{name}" is not declared in this wheel; declared: {declared}'
        )
    return found


def result_width(epilogue: Epilogue, n: Any) -> Any:
    """Columns of D, where the product has `n`."""
    return {"same": n, "half": n // 2, "twice": 2 * n}[epilogue.width]


def check_even(op: str, epilogue: Epilogue, name: str, n: Any) -> None:
    if epilogue.width == "half":
        check_value(
            n % 2 == 0,
            lambda: (
                f"{op}: {name} makes {n} columns; expected an even number, as epilogue "
                f'"{epilogue.name}" takes them in pairs'
            ),
        )


def _check_dtype(op: str, name: str, tensor: torch.Tensor, dtype: torch.dtype) -> None:
    if tensor.dtype != dtype:
        raise DtypeError(
            f"{op}: {name} has dtype {dtype_name(tensor.dtype)}; expected {dtype_name(dtype)}"
        )


def _check_shape(op: str, name: str, tensor: torch.Tensor, *allowed: Shape) -> None:
    """That it is one of the shapes, which are of different lengths."""
    expected = next((shape for shape in allowed if len(shape) == tensor.dim()), allowed[0])
    check_shape(
        tensor.shape,
        expected,
        lambda: (
            f"{op}: {name} has shape {shape_text(tensor.shape)}; expected "
            f"{' or '.join(shape_text(shape) for shape in allowed)}"
        ),
    )


def _check_linear_fused(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    epilogue: str,
    allow_tf32: bool,
    stores: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """D, and the product's shape and dtype as a tensor."""
    declared = declared_epilogue("linear", epilogue)
    op = "gated_linear" if declared.width == "half" else "linear"
    tensors = {name for name, kind in declared.operands.items() if kind != "scalar"}
    scalars = set(declared.operands) - tensors
    fits = tensors <= {"bias", "residual"} and scalars <= {"alpha", "beta"} and declared.has_accum
    if not fits or len(declared.aux) != stores:
        raise ArgumentError(f'{op}: epilogue "{epilogue}" is none for this op')
    for name, tensor in (("bias", bias), ("residual", residual)):
        if tensor is not None and name not in tensors:
            raise ArgumentError(
                f'{op}: {name} is given, and epilogue "{epilogue}" has no such operand'
            )
    check_devices(op, {"input": input, "weight": weight, "bias": bias, "residual": residual})
    dtype, shape = check_linear(op, input, weight, bias, allow_tf32)
    check_even(op, declared, "weight", shape[-1])
    result = input.new_empty((*shape[:-1], result_width(declared, shape[-1])), dtype=dtype)
    if residual is not None:
        _check_dtype(op, "residual", residual, dtype)
        _check_shape(op, "residual", residual, tuple(result.shape))
    return result, input.new_empty(shape, dtype=dtype)


def _linear_fused(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    epilogue: str,
    allow_tf32: bool = False,
) -> torch.Tensor:
    return _check_linear_fused(input, weight, bias, residual, epilogue, allow_tf32, 0)[0]


def _linear_fused_aux(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    epilogue: str,
    allow_tf32: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    return _check_linear_fused(input, weight, bias, residual, epilogue, allow_tf32, 1)


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
        _check_dtype("gemm", name, operand, torch.float32 if kind.endswith(" f32") else dtype)
        _check_shape("gemm", name, operand, expected, *([(*batch, *expected)] if batch else []))
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
        _check_dtype("gemm", f"out[{index}]", one, dtype)
        check_out("gemm", one, shape)


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
        _check_dtype(op, name, operand, first.dtype)
        _check_shape(op, name, operand, (*rows, 2 * n if is_wide else n))
    columns = result_width(declared, n)
    return (
        first.new_empty((*rows, columns) if with_result else (0,)),
        first.new_empty((columns,) if with_sums else (0,)),
    )


def register() -> None:
    """Gives every op of this module its fake kernel."""
    for op, fake in (
        ("linear_fused", _linear_fused),
        ("linear_fused_aux", _linear_fused_aux),
        ("gemm", _gemm),
        ("gemm.out", _gemm_out),
        ("elementwise", _elementwise),
    ):
        torch.library.register_fake(f"cutwheel::{op}", fake)
