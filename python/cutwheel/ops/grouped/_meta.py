"""Fake kernels of the grouped products, as those of _fake."""

from __future__ import annotations

from typing import Any

import torch

from ...errors import ArgumentError, DtypeError, ScaledDtypeError, ShapeError
from .._common.errors import dtype_name, shape_text
from .._common.meta import (
    Shape,
    check_devices,
    check_dims,
    check_even,
    check_out,
    check_shape,
    check_value,
    declared_epilogue,
    result_dtype,
    result_width,
)
from .._common.precision import DTYPES
from .._common.sizes import fits
from ..scaled import _recipes
from ..scaled._meta import FP8

_MM, _SCALED = "grouped_mm", "scaled_grouped_mm"
# As many as the kernels keep the places of in shared memory.
_MAX_GROUPS = 1024


def _check_ends(op: str, offs: torch.Tensor, of: str = "", matrices: Any = None) -> Any:
    """The number of groups; `matrices` has one for each, if it is given."""
    if offs.dtype not in (torch.int32, torch.int64):
        raise DtypeError(f"{op}: offs has dtype {dtype_name(offs.dtype)}; expected int32 or int64")
    if offs.dim() != 1:
        raise ShapeError(
            f"{op}: offs has {offs.dim()} dimensions (shape {shape_text(offs.shape)}); expected 1: "
            "the end of each group"
        )
    groups = offs.shape[0]
    if matrices is not None:
        check_value(
            groups == matrices.shape[0],
            lambda: (
                f"{op}: offs has {groups} elements; expected {matrices.shape[0]}, one for each "
                f"matrix of {of} (shape {shape_text(matrices.shape)})"
            ),
        )
    check_value(
        groups >= 1,
        lambda: (
            f"{op}: offs has {groups} elements, one for each group; expected 1 to {_MAX_GROUPS} "
            "groups"
        ),
    )
    check_value(
        groups <= _MAX_GROUPS,
        lambda: (
            f"{op}: offs has {groups} elements, one for each group; expected 1 to {_MAX_GROUPS} "
            "groups: split the call"
        ),
    )
    return groups


def _check_bias(op: str, bias: torch.Tensor | None, shape: Shape, *dtypes: torch.dtype) -> None:
    if bias is None:
        return
    if bias.dtype not in dtypes:
        wanted = " or ".join(dict.fromkeys(dtype_name(dtype) for dtype in dtypes))
        raise DtypeError(f"{op}: bias has dtype {dtype_name(bias.dtype)}; expected {wanted}")
    check_shape(
        bias.shape,
        shape,
        lambda: (
            f"{op}: bias has shape {shape_text(bias.shape)}; expected {shape_text(shape)}, a row "
            "for each group"
        ),
    )


def _check_inner(op: str, b: torch.Tensor, a: torch.Tensor, expected: str, size: Any) -> None:
    check_value(
        size == a.shape[1],
        lambda: (
            f"{op}: mat_b has shape {shape_text(b.shape)}; expected {expected} as mat_a has shape "
            f"{shape_text(a.shape)}"
        ),
    )


def _check_k(op: str, a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor) -> Shape:
    """Shape of the result where K is grouped."""
    _check_inner(op, b, a, f"[{a.shape[1]}, N]", b.shape[0])
    return _check_ends(op, offs), a.shape[0], b.shape[1]


def _check_rows(op: str, a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor) -> Shape:
    """Shape of the result where the rows of A are grouped."""
    _check_inner(op, b, a, f"[G, {a.shape[1]}, N]", b.shape[1])
    _check_ends(op, offs, "mat_b", b)
    return a.shape[0], b.shape[2]


def _grouped_mm(
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    offs: torch.Tensor,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    allow_tf32: bool = False,
) -> torch.Tensor:
    check_devices(_MM, {"mat_a": mat_a, "mat_b": mat_b, "offs": offs, "bias": bias})
    check_dims(_MM, "mat_a", mat_a, 2)
    if mat_b.dim() not in (2, 3):
        raise ShapeError(
            f"{_MM}: mat_b has {mat_b.dim()} dimensions (shape {shape_text(mat_b.shape)}); "
            "expected [G, K, N] for groups of mat_a's rows, or [T, N] for groups of its columns"
        )
    dtype = result_dtype(_MM, ("mat_a", "mat_b"), mat_a, mat_b, out_dtype, allow_tf32)
    if mat_b.dim() == 3:
        shape = _check_rows(_MM, mat_a, mat_b, offs)
        _check_bias(_MM, bias, (mat_b.shape[0], mat_b.shape[2]), mat_a.dtype, dtype)
        return mat_a.new_empty(shape, dtype=dtype)
    if bias is not None:
        raise ArgumentError(
            f"{_MM}: bias is given, and the groups are along K (mat_b has 2 dimensions); "
            "expected None"
        )
    return mat_a.new_empty(_check_k(_MM, mat_a, mat_b, offs), dtype=dtype)


def _grouped_mm_accumulate(
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    offs: torch.Tensor,
    allow_tf32: bool = False,
    *,
    out: torch.Tensor,
) -> None:
    op = "grouped_mm_accumulate"
    check_devices(op, {"mat_a": mat_a, "mat_b": mat_b, "offs": offs, "out": out})
    check_dims(op, "mat_a", mat_a, 2)
    check_dims(op, "mat_b", mat_b, 2)
    result_dtype(op, ("mat_a", "mat_b"), mat_a, mat_b, None, allow_tf32)
    if out.dtype != torch.float32:
        raise DtypeError(f"{op}: out has dtype {dtype_name(out.dtype)}; expected float32")
    check_out(op, out, _check_k(op, mat_a, mat_b, offs))


def _check_linear(
    input: torch.Tensor,
    weight: torch.Tensor,
    offs: torch.Tensor,
    bias: torch.Tensor | None,
    epilogue: str,
    allow_tf32: bool,
    stores: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """D, and the product's shape and dtype as a tensor."""
    declared = declared_epilogue("grouped_linear", epilogue)
    op = "grouped_gated_linear" if declared.width == "half" else "grouped_linear"
    tensors = {name for name, kind in declared.operands.items() if kind != "scalar"}
    scalars = set(declared.operands) - tensors
    fits = tensors <= {"bias"} and scalars <= {"alpha", "beta"} and declared.has_accum
    if not fits or len(declared.aux) != stores:
        raise ArgumentError(f'{op}: epilogue "{epilogue}" is none for this op')
    if bias is not None and "bias" not in tensors:
        raise ArgumentError(f'{op}: bias is given, and epilogue "{epilogue}" has no such operand')
    check_devices(op, {"input": input, "weight": weight, "offs": offs, "bias": bias})
    check_dims(op, "input", input, 2)
    check_dims(op, "weight", weight, 3)
    dtype = result_dtype(op, ("input", "weight"), input, weight, None, allow_tf32)
    groups, n, k = weight.shape
    check_value(
        k == input.shape[1],
        lambda: (
            f"{op}: weight has shape {shape_text(weight.shape)}; expected "
            f"[G, N, {input.shape[1]}] as input has shape {shape_text(input.shape)}"
        ),
    )
    _check_ends(op, offs, "weight", weight)
    _check_bias(op, bias, (groups, n), dtype)
    check_even(op, declared, "weight", n)
    rows = input.shape[0]
    return (
        input.new_empty((rows, result_width(declared, n)), dtype=dtype),
        input.new_empty((rows, n), dtype=dtype),
    )


def _grouped_linear_fused(
    input: torch.Tensor,
    weight: torch.Tensor,
    offs: torch.Tensor,
    bias: torch.Tensor | None,
    epilogue: str,
    allow_tf32: bool = False,
) -> torch.Tensor:
    return _check_linear(input, weight, offs, bias, epilogue, allow_tf32, 0)[0]


def _grouped_linear_fused_aux(
    input: torch.Tensor,
    weight: torch.Tensor,
    offs: torch.Tensor,
    bias: torch.Tensor | None,
    epilogue: str,
    allow_tf32: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    return _check_linear(input, weight, offs, bias, epilogue, allow_tf32, 1)


def _check_factors(a: torch.Tensor, b: torch.Tensor) -> None:
    """Their dtypes."""
    for name, tensor in (("mat_a", a), ("mat_b", b)):
        if dtype_name(tensor.dtype) == "float4_e2m1fn_x2":
            _recipes.refuse_microscaling(_SCALED, f"{name} has dtype float4_e2m1fn_x2")
        if tensor.dtype not in FP8:
            raise ScaledDtypeError(
                f"{_SCALED}: {name} has dtype {dtype_name(tensor.dtype)}; expected float8_e4m3fn "
                "or float8_e5m2 (cutwheel.quantize makes them)"
            )
    if a.dtype == b.dtype == torch.float8_e5m2:
        raise ScaledDtypeError(
            f"{_SCALED}: mat_a and mat_b have dtype float8_e5m2; expected float8_e4m3fn for one of "
            "them or both"
        )


def _check_scales(
    scale_a: torch.Tensor, scale_b: torch.Tensor, a: torch.Tensor, b: torch.Tensor
) -> None:
    t, k = a.shape
    groups, _, n = b.shape
    blocks = _recipes.blocks(k)
    rows, columns = ((t,), (t, 1)), ((groups, n), (groups, 1, n))
    tiles_a, tiles_b = (t, blocks), (groups, blocks, _recipes.blocks(n))
    for name, scale in (("scale_a", scale_a), ("scale_b", scale_b)):
        _recipes.check_scale_dtype(_SCALED, name, scale)
    is_rowwise = fits(scale_a.shape, *rows) & fits(scale_b.shape, *columns)
    is_blockwise = fits(scale_a.shape, tiles_a) & fits(scale_b.shape, tiles_b)
    check_value(
        is_rowwise | is_blockwise,
        lambda: (
            f"{_SCALED}: scale_a has shape {shape_text(scale_a.shape)} and scale_b has shape "
            f"{shape_text(scale_b.shape)} where T={t}, G={groups}, N={n}, K={k}; expected\n"
            f"  rowwise: scale_a {' or '.join(map(shape_text, rows))}, scale_b "
            f"{' or '.join(map(shape_text, columns))}\n"
            f"  blockwise_1x128 for mat_a and blockwise_128x128 for mat_b: scale_a "
            f"{shape_text(tiles_a)}, scale_b {shape_text(tiles_b)}\n"
            "(scale_b has the orientation of mat_b, [G, K, N]: transpose the scales of weights "
            "[G, N, K])"
        ),
    )


def _scaled_grouped_mm(
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    offs: torch.Tensor,
    bias: torch.Tensor | None = None,
    output_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> torch.Tensor:
    scales = {"scale_a": scale_a, "scale_b": scale_b}
    check_devices(_SCALED, {"mat_a": mat_a, "mat_b": mat_b, **scales, "offs": offs, "bias": bias})
    check_dims(_SCALED, "mat_a", mat_a, 2)
    check_dims(_SCALED, "mat_b", mat_b, 3)
    _check_factors(mat_a, mat_b)
    shape = _check_rows(_SCALED, mat_a, mat_b, offs)
    dtype = torch.bfloat16 if output_dtype is None else output_dtype
    if dtype not in DTYPES:
        raise ScaledDtypeError(
            f"{_SCALED}: output_dtype is {dtype_name(dtype)}; expected float16, bfloat16 or float32"
        )
    _check_scales(scale_a, scale_b, mat_a, mat_b)
    _check_bias(_SCALED, bias, (mat_b.shape[0], mat_b.shape[2]), torch.float32, dtype)
    return mat_a.new_empty(shape, dtype=dtype)


def register() -> None:
    """Gives every op of this module its fake kernel."""
    for op, fake in (
        ("grouped_mm", _grouped_mm),
        ("grouped_mm_accumulate", _grouped_mm_accumulate),
        ("grouped_linear_fused", _grouped_linear_fused),
        ("grouped_linear_fused_aux", _grouped_linear_fused_aux),
        ("scaled_grouped_mm", _scaled_grouped_mm),
    ):
        torch.library.register_fake(f"cutwheel::{op}", fake)
