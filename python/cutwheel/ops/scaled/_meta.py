"""Fake kernels of scaled_mm and quantize, as those of _fake."""

from __future__ import annotations

from typing import Any

import torch

from ...errors import ArgumentError, DtypeError, ScaledDtypeError, ShapeError
from .._common.errors import dtype_name, shape_text
from .._common.meta import (
    Shape,
    check_devices,
    check_dims,
    check_out,
    check_shape,
    check_value,
    result_shape,
)
from .._common.precision import DTYPES
from .._common.sizes import fits
from . import _recipes

_OP = "scaled_mm"
FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
QUANTIZED = (*FP8, torch.int8)


def _check_factors(a: torch.Tensor, b: torch.Tensor) -> None:
    """Their dtypes."""
    for name, tensor in (("mat_a", a), ("mat_b", b)):
        if dtype_name(tensor.dtype) == "float4_e2m1fn_x2":
            _recipes.refuse_microscaling(_OP, f"{name} has dtype float4_e2m1fn_x2")
        if tensor.dtype not in QUANTIZED:
            raise ScaledDtypeError(
                f"{_OP}: {name} has dtype {dtype_name(tensor.dtype)}; expected float8_e4m3fn, "
                "float8_e5m2 or int8 (cutwheel.quantize makes them)"
            )
    if (a.dtype == torch.int8) != (b.dtype == torch.int8):
        raise ScaledDtypeError(
            f"{_OP}: mat_b has dtype {dtype_name(b.dtype)} and mat_a has dtype "
            f"{dtype_name(a.dtype)}; expected both fp8 or both int8"
        )
    if a.dtype == b.dtype == torch.float8_e5m2:
        raise ScaledDtypeError(
            f"{_OP}: mat_a and mat_b have dtype float8_e5m2; expected float8_e4m3fn for one of "
            "them or both"
        )


def _check_result(
    a: torch.Tensor,
    scale_a: torch.Tensor | None,
    scale_b: torch.Tensor | None,
    dtype: torch.dtype,
    out_name: str,
) -> None:
    """Its dtype, and whether there are scales for it."""
    is_int8 = a.dtype == torch.int8
    if (scale_a is None) != (scale_b is None):
        absent, given = ("a", "b") if scale_a is None else ("b", "a")
        raise ArgumentError(
            f"{_OP}: scale_{absent} is None and scale_{given} is given; expected both"
        )
    if scale_a is None:
        if is_int8 and dtype == torch.int32:
            return
        rest = (
            ", or output_dtype=torch.int32 for the unscaled sums"
            if is_int8
            else " (torch.ones(1) where there is no scale)"
        )
        raise ArgumentError(f"{_OP}: scale_a and scale_b are None; expected float32 tensors{rest}")
    if dtype == torch.int32:
        raise ScaledDtypeError(
            f"{_OP}: {out_name} int32, which is for the unscaled sums of int8 operands (scale_a "
            "and scale_b None); expected float16, bfloat16 or float32 with scales"
        )
    if dtype not in DTYPES:
        raise ScaledDtypeError(
            f"{_OP}: {out_name} {dtype_name(dtype)}; expected float16, bfloat16 or float32"
            + (" (int32 without scales)" if is_int8 else "")
        )


def _check_unscaled(given: dict[str, object]) -> None:
    for name, value in given.items():
        if value is not None:
            raise ArgumentError(
                f"{_OP}: {name} is given, and scale_a and scale_b are None; expected nothing else "
                "with the unscaled sums"
            )


def _check_bias(bias: torch.Tensor, dtype: torch.dtype, n: Any) -> None:
    if bias.dtype not in (dtype, torch.float32):
        raise ScaledDtypeError(
            f"{_OP}: bias has dtype {dtype_name(bias.dtype)}; expected {dtype_name(dtype)}"
            + ("" if dtype == torch.float32 else ", the dtype of the result, or float32")
        )
    check_shape(
        bias.shape,
        (n,),
        lambda: f"{_OP}: bias has shape {shape_text(bias.shape)}; expected [{n}]",
    )


def _check_zero_point(
    a: torch.Tensor, azp: torch.Tensor | None, azp_adj: torch.Tensor | None, m: Any, n: Any
) -> None:
    if azp is None:
        if azp_adj is not None:
            raise ArgumentError(
                f"{_OP}: azp_adj is given without azp; expected azp, the zero point of mat_a, or "
                "neither"
            )
        return
    if a.dtype != torch.int8:
        raise ScaledDtypeError(
            f"{_OP}: azp is given, and mat_a has dtype {dtype_name(a.dtype)}; only int8 has a "
            "zero point"
        )
    sums = "the sums of mat_b's columns"
    if azp_adj is None:
        raise ArgumentError(
            f"{_OP}: azp is given without azp_adj; expected {sums}, mat_b.sum(0, dtype=torch.int32)"
        )
    for name, tensor in (("azp", azp), ("azp_adj", azp_adj)):
        if tensor.dtype != torch.int32:
            raise ScaledDtypeError(
                f"{_OP}: {name} has dtype {dtype_name(tensor.dtype)}; expected int32"
            )
    check_value(
        (azp.numel() == 1) | fits(azp.shape, (m,), (m, 1)),
        lambda: (
            f"{_OP}: azp has shape {shape_text(azp.shape)}; expected one element, [{m}] or [{m}, 1]"
        ),
    )
    check_value(
        fits(azp_adj.shape, (n,), (1, n)),
        lambda: (
            f"{_OP}: azp_adj has shape {shape_text(azp_adj.shape)}; expected [{n}] or [1, {n}], "
            f"{sums}"
        ),
    )


def _check(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor | None,
    scale_b: torch.Tensor | None,
    bias: torch.Tensor | None,
    azp: torch.Tensor | None,
    azp_adj: torch.Tensor | None,
    dtype: torch.dtype,
    recipe_a: int | None,
    recipe_b: int | None,
    out_name: str,
) -> Shape:
    """The shape of the result."""
    extra = {"bias": bias, "azp": azp, "azp_adj": azp_adj}
    scales = {"scale_a": scale_a, "scale_b": scale_b}
    check_devices(_OP, {"mat_a": a, "mat_b": b, **scales, **extra})
    for name, tensor in (("mat_a", a), ("mat_b", b)):
        check_dims(_OP, name, tensor, 2)
    _check_factors(a, b)
    m, n = result_shape(_OP, ("mat_a", "mat_b"), a, b, 2)
    _check_result(a, scale_a, scale_b, dtype, out_name)
    if scale_a is None or scale_b is None:
        _check_unscaled({**extra, "scale_recipe_a": recipe_a, "scale_recipe_b": recipe_b})
        return m, n
    _recipes.check_scale_dtype(_OP, "scale_a", scale_a)
    _recipes.check_scale_dtype(_OP, "scale_b", scale_b)
    extents, is_int8 = (m, n, a.shape[1]), a.dtype == torch.int8
    _recipes.check_scales(_OP, scale_a, scale_b, recipe_a, recipe_b, *extents, is_int8)
    if bias is not None:
        _check_bias(bias, dtype, n)
    _check_zero_point(a, azp, azp_adj, m, n)
    return m, n


def _scaled_mm(
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    scale_a: torch.Tensor | None,
    scale_b: torch.Tensor | None,
    bias: torch.Tensor | None = None,
    azp: torch.Tensor | None = None,
    azp_adj: torch.Tensor | None = None,
    output_dtype: torch.dtype | None = None,
    scale_recipe_a: int | None = None,
    scale_recipe_b: int | None = None,
    use_fast_accum: bool = False,
) -> torch.Tensor:
    dtype = torch.bfloat16 if output_dtype is None else output_dtype
    operands = (mat_a, mat_b, scale_a, scale_b, bias, azp, azp_adj)
    shape = _check(*operands, dtype, scale_recipe_a, scale_recipe_b, "output_dtype is")
    return mat_a.new_empty(shape, dtype=dtype)


def _scaled_mm_out(
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    scale_a: torch.Tensor | None,
    scale_b: torch.Tensor | None,
    bias: torch.Tensor | None = None,
    azp: torch.Tensor | None = None,
    azp_adj: torch.Tensor | None = None,
    scale_recipe_a: int | None = None,
    scale_recipe_b: int | None = None,
    use_fast_accum: bool = False,
    *,
    out: torch.Tensor,
) -> None:
    check_devices(_OP, {"mat_a": mat_a, "mat_b": mat_b, "out": out})
    operands = (mat_a, mat_b, scale_a, scale_b, bias, azp, azp_adj)
    shape = _check(*operands, out.dtype, scale_recipe_a, scale_recipe_b, "out has dtype")
    check_out(_OP, out, shape)


def _quantize(
    x: torch.Tensor, recipe: int, dtype: torch.dtype, symmetric: bool = True
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    op = "quantize"
    if dtype not in QUANTIZED:
        raise DtypeError(
            f"{op}: dtype is {dtype_name(dtype)}; expected float8_e4m3fn, float8_e5m2 or int8"
        )
    if not symmetric and dtype != torch.int8:
        raise ArgumentError(
            f"{op}: symmetric is False and dtype is {dtype_name(dtype)}; only int8 has a zero point"
        )
    if dtype == torch.int8 and recipe not in (_recipes.TENSORWISE, _recipes.ROWWISE):
        raise ArgumentError(
            f"{op}: recipe is blockwise and dtype is int8; expected tensorwise or rowwise for "
            "int8, or float8_e4m3fn or float8_e5m2"
        )
    check_devices(op, {"x": x})
    if x.dtype not in DTYPES:
        raise DtypeError(
            f"{op}: x has dtype {dtype_name(x.dtype)}; expected float16, bfloat16 or float32"
        )
    is_matrix = recipe == _recipes.BLOCKWISE_128X128
    if x.dim() < 2 or (is_matrix and x.dim() > 2):
        raise ShapeError(
            f"{op}: x has {x.dim()} dimensions (shape {shape_text(x.shape)}); expected "
            + ("[M, K] for blockwise_128x128" if is_matrix else "[..., K], at least 2")
        )
    m, k = 1, x.shape[-1]
    for size in x.shape[:-1]:
        m = m * size
    blocks = _recipes.blocks(k)
    shape: tuple[Any, Any] | tuple[Any] = (1,)
    if recipe == _recipes.ROWWISE:
        shape = (m, 1)
    elif recipe == _recipes.BLOCKWISE_128X128:
        shape = (_recipes.blocks(m), blocks)
    if recipe == _recipes.BLOCKWISE_1X128:
        # Rows of one block lie side by side, on 16 bytes, as TMA loads them.
        strides = (1, (m + 3) // 4 * 4)
        scales = x.new_empty_strided((m, blocks), strides, dtype=torch.float32)
    else:
        scales = x.new_empty(shape, dtype=torch.float32)
    return (
        x.new_empty(x.shape, dtype=dtype),
        scales,
        x.new_empty((0,) if symmetric else shape, dtype=torch.int32),
    )


def register() -> None:
    """Gives the ops of this module their fake kernels."""
    for op, fake in (
        ("scaled_mm", _scaled_mm),
        ("scaled_mm.out", _scaled_mm_out),
        ("quantize", _quantize),
    ):
        torch.library.register_fake(f"cutwheel::{op}", fake)
