"""Fake kernels of linear, with and without an epilogue."""

from __future__ import annotations

import torch

from ...errors import ArgumentError, DtypeError, ShapeError
from .._common.errors import dtype_name, shape_text
from .._common.meta import (
    Shape,
    check_devices,
    check_dims,
    check_dtype,
    check_even,
    check_shape,
    check_shapes,
    check_value,
    declared_epilogue,
    result_dtype,
    result_width,
)


def _check_linear(
    op: str,
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    allow_tf32: bool,
) -> tuple[torch.dtype, Shape]:
    """Dtype and shape of input @ weight.T + bias."""
    if input.dim() < 1:
        raise ShapeError(f"{op}: input has no dimensions; expected [..., K]")
    check_dims(op, "weight", weight, 2)
    dtype = result_dtype(op, ("input", "weight"), input, weight, None, allow_tf32)
    n, k = weight.shape
    check_value(
        k == input.shape[-1],
        lambda: (
            f"{op}: weight has shape {shape_text(weight.shape)}; expected [N, {input.shape[-1]}] "
            f"as input has shape {shape_text(input.shape)}"
        ),
    )
    if bias is not None:
        if bias.dtype != dtype:
            raise DtypeError(
                f"{op}: bias has dtype {dtype_name(bias.dtype)}; expected {dtype_name(dtype)}"
            )
        check_shape(
            bias.shape,
            (n,),
            lambda: f"{op}: bias has shape {shape_text(bias.shape)}; expected [{n}]",
        )
    return dtype, (*input.shape[:-1], n)


def _linear(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    allow_tf32: bool = False,
) -> torch.Tensor:
    check_devices("linear", {"input": input, "weight": weight, "bias": bias})
    dtype, shape = _check_linear("linear", input, weight, bias, allow_tf32)
    return input.new_empty(shape, dtype=dtype)


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
    dtype, shape = _check_linear(op, input, weight, bias, allow_tf32)
    check_even(op, declared, "weight", shape[-1])
    result = input.new_empty((*shape[:-1], result_width(declared, shape[-1])), dtype=dtype)
    if residual is not None:
        check_dtype(op, "residual", residual, dtype)
        check_shapes(op, "residual", residual, tuple(result.shape))
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


def register() -> None:
    """Gives the ops of this module their fake kernels."""
    for op, fake in (
        ("linear", _linear),
        ("linear_fused", _linear_fused),
        ("linear_fused_aux", _linear_fused_aux),
    ):
        torch.library.register_fake(f"cutwheel::{op}", fake)
