"""Grouped GEMMs of quantised matrices: a weight in fp8 for each group of rows.

Recipes are those of cutwheel.ops.scaled, groups those of cutwheel.ops.grouped. There is no
gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, is_grad_enabled

from ...errors import ArgumentError
from .._common import sharding
from .._common.call import is_tracing, overloads
from .._common.errors import RAISED, reraise
from .._common.transforms import NO_DERIVATIVE, is_transformed, refuse, refuse_grad
from ._recipes import code_of
from ._torch_arguments import check_grouped_recipes, plain_scales

if TYPE_CHECKING:
    from torch.nn.functional import ScalingType, SwizzleType

_OP = "scaled_grouped_mm"
_NAMES = ("mat_a", "mat_b", "scale_a", "scale_b", "bias")
_scaled, _scaled_direct = overloads("scaled_grouped_mm")


def scaled_grouped_mm(
    mat_a: Tensor,
    mat_b: Tensor,
    scale_a: Tensor | list[Tensor],
    scale_recipe_a: str | ScalingType | list[ScalingType] | None = None,
    scale_b: Tensor | list[Tensor] | None = None,
    scale_recipe_b: str | ScalingType | list[ScalingType] | None = None,
    swizzle_a: SwizzleType | list[SwizzleType] | None = None,
    swizzle_b: SwizzleType | list[SwizzleType] | None = None,
    bias: Tensor | None = None,
    offs: Tensor | None = None,
    output_dtype: torch.dtype = torch.bfloat16,
    contraction_dim: Sequence[int] = (),
    use_fast_accum: bool = False,
) -> Tensor:
    """GEMM of fp8 operands with grouped rows and the scales that their values were made with.

    Arguments are those of torch.nn.functional.scaled_grouped_mm; scale_b and offs have to be given.

    Args:
        mat_a: [T, K], float8_e4m3fn or float8_e5m2
        mat_b: [G, K, N], float8_e4m3fn or float8_e5m2 (but not float8_e5m2 twice). Read without a
            copy as the transpose of a contiguous [G, N, K]
        scale_a: float32, any strides: a scale for each row, [T] or [T, 1], or for each 128 elements
            of a row, [T, ceil(K / 128)]
        scale_b: float32, any strides: a scale for each column, [G, N] or [G, 1, N], or, with the
            second kind of scale_a, for each block of 128x128, [G, ceil(K / 128), ceil(N / 128)]
        scale_recipe_a, scale_recipe_b: rowwise, or blockwise_1x128 and blockwise_128x128. None:
            told from the shapes of the scales
        swizzle_a, swizzle_b, contraction_dim: as in scaled_mm
        bias: [G, N], dtype of the result or float32
        offs: [G], int32 or int64, on the device of mat_a: the end of each group's rows
        output_dtype: bfloat16 (default), float16 or float32
        use_fast_accum: as in scaled_mm

    Returns:
        scale_a * scale_b * (a_g @ b_g) + bias_g for each group's rows, [T, N], with a_g those of
        mat_a and b_g = mat_b[g]; rows behind offs[-1] are zeros. It has no gradient

    Raises:
        ValueError: shapes that do not fit, scales that fit no recipe, no offs
        TypeError: a dtype that is none of the above
        RuntimeError: a tensor requires grad; as mm
        NotImplementedError: as mm; a GPU below compute capability 8.9
    """
    try:
        if (
            swizzle_a is not None
            or swizzle_b is not None
            or contraction_dim
            or type(scale_a) is list
            or type(scale_b) is list
        ):
            others = swizzle_a, swizzle_b, contraction_dim
            scale_a, scale_b = plain_scales(_OP, mat_a, mat_b, scale_a, scale_b, *others)
        if scale_recipe_a is not None or scale_recipe_b is not None:
            codes = code("scale_recipe_a", scale_recipe_a), code("scale_recipe_b", scale_recipe_b)
            check_grouped_recipes(_OP, mat_a, mat_b, scale_a, scale_b, *codes)
        if is_grad_enabled() and (
            mat_a.requires_grad
            or mat_b.requires_grad
            or scale_a.requires_grad  # type: ignore[union-attr]
            or scale_b.requires_grad  # type: ignore[union-attr]
            or (bias is not None and bias.requires_grad)
        ):
            given: Any = mat_a, mat_b, scale_a, scale_b, bias
            refuse_grad(_OP, "grouped_mm", _NAMES, given)
        if is_transformed():
            given = mat_a, mat_b, scale_a, scale_b, bias
            refuse(_OP, NO_DERIVATIVE, **dict(zip(_NAMES, given, strict=True)))
        if sharding.calls is not None and sharding.calls.is_sharded(mat_a, mat_b):
            given = {"scale_a": scale_a, "scale_b": scale_b, "bias": bias}
            how = output_dtype, use_fast_accum
            return _sharded(mat_a, mat_b, offs, given, how)  # type: ignore[arg-type]
        call = _scaled if is_tracing() else _scaled_direct
        return call(mat_a, mat_b, scale_a, scale_b, offs, bias, output_dtype, use_fast_accum)
    except RAISED as error:
        if offs is None:
            raise ArgumentError(
                f"{_OP}: offs is None; expected the end of each group, [G]"
            ) from None
        given = mat_a, mat_b, scale_a, scale_b, bias
        named: dict[str, Any] = dict(zip(_NAMES, given, strict=True))
        reraise(_OP, error, ("bias",), **named, offs=offs)


def _sharded(
    a: Tensor, b: Tensor, offs: Tensor, others: dict[str, Any], how: tuple[Any, ...]
) -> Tensor:
    def call(a: Tensor, b: Tensor, ends: Tensor, others: dict[str, Any]) -> Tensor:
        return _scaled(a, b, others["scale_a"], others["scale_b"], ends, others["bias"], *how)

    result: Tensor = sharding.calls.grouped(_OP, call, a, b, offs, others)
    return result


def code(name: str, recipe: str | ScalingType | list[ScalingType] | None) -> int | None:
    return None if recipe is None else code_of(_OP, name, recipe)
