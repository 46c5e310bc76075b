"""GEMMs of quantised matrices, fp8 and int8, and the quantisation that makes them.

The scales are float32 tensors on the GPU, which nothing reads on the host. Which elements share a
scale is told by a recipe, a string or a member of torch.nn.functional.ScalingType:

    "tensorwise"         TensorWise         all elements of the operand
    "rowwise"            RowWise            a row of A (a token), a column of B (an output channel)
    "blockwise_1x128"    BlockWise1x128     128 elements along K of a row of A or a column of B
    "blockwise_128x128"  BlockWise128x128   128 along K and 128 columns of B

Operands have any strides and offsets, and M, N and K any extent; what a kernel cannot read as it
lies is copied. Both ops work in torch.compile(fullgraph=True) and in CUDA graphs. Neither has a
gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, is_grad_enabled

from ...errors import ScaledDtypeError
from .._common.call import increment_version, is_tracing, overloads
from .._common.errors import RAISED, reraise
from .._common.transforms import NO_DERIVATIVE, is_transformed, refuse, refuse_grad
from ._conv import scaled_conv2d
from ._grouped import scaled_grouped_mm
from ._quantize import quantize
from ._recipes import code_of
from ._torch_arguments import plain_scales

__all__ = ["quantize", "scaled_conv2d", "scaled_grouped_mm", "scaled_mm"]

if TYPE_CHECKING:
    from torch.nn.functional import ScalingType, SwizzleType

_scaled_mm, _scaled_mm_direct = overloads("scaled_mm")
_scaled_mm_out = torch.ops.cutwheel.scaled_mm.out

_NAMES = ("mat_a", "mat_b", "scale_a", "scale_b", "bias", "out")
_DIFFERENTIABLE = "cutwheel.nn.ScaledLinear with straight_through=True, which has a gradient"
_OPTIONAL = ("scale_a", "scale_b", "bias", "azp", "azp_adj", "out")


def scaled_mm(
    mat_a: Tensor,
    mat_b: Tensor,
    scale_a: Tensor | list[Tensor] | None = None,
    scale_recipe_a: str | ScalingType | list[ScalingType] | None = None,
    scale_b: Tensor | list[Tensor] | None = None,
    scale_recipe_b: str | ScalingType | list[ScalingType] | None = None,
    swizzle_a: SwizzleType | list[SwizzleType] | None = None,
    swizzle_b: SwizzleType | list[SwizzleType] | None = None,
    bias: Tensor | None = None,
    output_dtype: torch.dtype = torch.bfloat16,
    contraction_dim: Sequence[int] = (),
    use_fast_accum: bool = False,
    *,
    azp: Tensor | None = None,
    azp_adj: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """GEMM of two quantised matrices, as torch.nn.functional.scaled_mm, with its arguments.

    Args:
        mat_a: [M, K], float8_e4m3fn, float8_e5m2 or int8
        mat_b: [K, N], any of them with fp8 (but float8_e5m2 twice), int8 with int8. Read without a
            copy as the transpose of a contiguous [N, K]
        scale_a: float32, any strides: one element (tensorwise), [M, 1] (rowwise) or
            [M, ceil(K / 128)] (blockwise_1x128); None with output_dtype int32
        scale_b: float32, any strides: one element (tensorwise), [1, N] (rowwise),
            [ceil(K / 128), ceil(N / 128)] (blockwise_128x128) or [ceil(K / 128), N]
            (blockwise_1x128); None with output_dtype int32
        scale_recipe_a, scale_recipe_b: what the scales belong to. None: told from their shapes,
            tensorwise and rowwise first. Where it is given, rowwise scales may be [M] and [N]
        swizzle_a, swizzle_b: None or NO_SWIZZLE: others belong to formats that have no kernel
        bias: [N], output_dtype or float32
        output_dtype: float16, bfloat16 or float32; of int8 also int32, the integer product as it is
        contraction_dim: () or (-1, -2), which is K
        use_fast_accum: allows fp8 products to be summed in the tensor cores' own precision;
            otherwise their sums go to float32 registers every 128 elements of K. It changes
            nothing for int8 and for blockwise scales
        azp: int32, zero point of mat_a, whose values mean scale_a * (mat_a - azp): one element, [M]
            or [M, 1]. int8 only
        azp_adj: int32, [N] or [1, N]: mat_b's columns summed, mat_b.sum(0, dtype=torch.int32).
            None: computed at each call, in a pass over mat_b
        out: [M, N], any strides that do not overlap; never resized. Its dtype takes the place of
            output_dtype

    Scales, recipes and swizzles may be lists of one, as in torch.

    Returns:
        scale_a * scale_b * (mat_a @ mat_b - azp * azp_adj) + bias, [M, N]; `out` if that was given.
        It is computed in float32 (integer products in int32) and rounded once. NaN in scales stays
        NaN; with K = 0 the result is bias, or zeros

    Raises:
        TypeError: an argument that is no tensor, or of a dtype that does not fit; azp with fp8
        ValueError: shapes that fit no recipe (the message has those that would), an unknown recipe,
            `out` that overlaps, azp_adj without azp, another contraction_dim
        NotImplementedError: fp8 on a GPU below compute capability 8.9, CPU tensors, and the formats
            mxfp8 and nvfp4 (scales of float8_e8m0fnu, several of them, or swizzled; float4
            operands; blocks of 16 or 32)
        RuntimeError: a tensor requires grad; as mm
    """
    code_a = None if scale_recipe_a is None else code("scale_recipe_a", scale_recipe_a)
    code_b = None if scale_recipe_b is None else code("scale_recipe_b", scale_recipe_b)
    try:
        if (
            swizzle_a is not None
            or swizzle_b is not None
            or contraction_dim
            or type(scale_a) is list
            or type(scale_b) is list
        ):
            others = swizzle_a, swizzle_b, contraction_dim
            scale_a, scale_b = plain_scales("scaled_mm", mat_a, mat_b, scale_a, scale_b, *others)
        if is_grad_enabled() and (
            mat_a.requires_grad
            or mat_b.requires_grad
            or (scale_a is not None and scale_a.requires_grad)  # type: ignore[union-attr]
            or (scale_b is not None and scale_b.requires_grad)  # type: ignore[union-attr]
            or (bias is not None and bias.requires_grad)
            or (out is not None and out.requires_grad)
        ):
            given: Any = mat_a, mat_b, scale_a, scale_b, bias, out
            refuse_grad("scaled_mm", _DIFFERENTIABLE, _NAMES, given)
        if is_transformed():
            given = mat_a, mat_b, scale_a, scale_b, bias, out
            refuse("scaled_mm", NO_DERIVATIVE, **dict(zip(_NAMES, given, strict=True)))
        if azp is not None:
            azp_adj = operands(mat_a, mat_b, scale_a, scale_b, bias, azp, azp_adj)[-1]
        how = code_a, code_b, use_fast_accum
        if out is not None:
            _check_out_dtype(out, output_dtype)
            _scaled_mm_out(mat_a, mat_b, scale_a, scale_b, bias, azp, azp_adj, *how, out=out)
            increment_version(out)
            return out
        if output_dtype is None:
            _refuse_quantised_result()
        tensors = mat_a, mat_b, scale_a, scale_b, bias, azp, azp_adj
        call = _scaled_mm if is_tracing() else _scaled_mm_direct
        if use_fast_accum or code_a is not None or code_b is not None:
            return call(*tensors, output_dtype, *how)
        return call(*tensors, output_dtype)
    except RAISED as error:
        given = mat_a, mat_b, scale_a, scale_b, bias, out
        named: dict[str, Any] = dict(zip(_NAMES, given, strict=True))
        reraise("scaled_mm", error, _OPTIONAL, **named, azp=azp, azp_adj=azp_adj)


def code(name: str, recipe: str | ScalingType | list[ScalingType] | None) -> int | None:
    return None if recipe is None else code_of("scaled_mm", name, recipe)


def operands(
    mat_a: Tensor,
    mat_b: Tensor,
    scale_a: Any,
    scale_b: Any,
    bias: Tensor | None,
    azp: Tensor | None,
    azp_adj: Tensor | None,
) -> list[Tensor | None]:
    """Operands of scaled_mm in the library's order, with azp_adj filled in if it is left out."""
    if azp is not None and azp_adj is None and mat_b.dtype == torch.int8:
        azp_adj = column_sums(mat_b)
    return [mat_a, mat_b, scale_a, scale_b, bias, azp, azp_adj]


def column_sums(b: Tensor) -> Tensor:
    """[K, N] int8 -> [N] int32, azp_adj."""
    return b.sum(0, dtype=torch.int32)


def _refuse_quantised_result() -> None:
    raise ScaledDtypeError(
        "scaled_mm: output_dtype is None, which in torch is the dtype of mat_a, and results are "
        "not quantised here; expected float16, bfloat16 or float32"
    )


def _check_out_dtype(out: Tensor, output_dtype: torch.dtype) -> None:
    # bfloat16, the default, cannot be told from what a caller has written.
    if output_dtype not in (torch.bfloat16, None, out.dtype):
        raise ScaledDtypeError(
            f"scaled_mm: out has dtype {out.dtype}; expected {output_dtype} as output_dtype says"
        )
