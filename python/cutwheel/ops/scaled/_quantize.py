"""quantize: the values and scales that scaled_mm takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, overload

import torch
from torch import Tensor, is_grad_enabled

from .._common import sharding
from .._common.call import is_tracing, overloads
from .._common.errors import RAISED, reraise
from .._common.transforms import NO_DERIVATIVE, is_transformed, refuse
from ._recipes import code_of

if TYPE_CHECKING:
    from torch.nn.functional import ScalingType

_quantize, _quantize_direct = overloads("quantize")


@overload
def quantize(
    x: Tensor,
    recipe: str | ScalingType,
    dtype: torch.dtype = ...,
    *,
    symmetric: Literal[True] = ...,
) -> tuple[Tensor, Tensor]: ...
@overload
def quantize(
    x: Tensor, recipe: str | ScalingType, dtype: torch.dtype = ..., *, symmetric: Literal[False]
) -> tuple[Tensor, Tensor, Tensor]: ...
def quantize(
    x: Tensor,
    recipe: str | ScalingType,
    dtype: torch.dtype = torch.float8_e4m3fn,
    *,
    symmetric: bool = True,
) -> tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor]:
    """Values and scales for scaled_mm, such that x is about scales * values.

    Args:
        x: [..., K], two dimensions or more, float16, bfloat16 or float32. Its rows, M of them, are
            those of x.reshape(-1, K)
        recipe: which elements share a scale: all ("tensorwise"), a row ("rowwise"), 128 elements of
            a row ("blockwise_1x128"), or 128 rows and 128 columns ("blockwise_128x128", of a matrix
            only); or a member of torch.nn.functional.ScalingType
        dtype: float8_e4m3fn, float8_e5m2, or int8 (tensorwise and rowwise)
        symmetric: False, of int8 only: with a zero point, x is about scales * (values - azp)

    Returns:
        (values, scales), and azp behind them if symmetric is False.

        values: the shape of x, contiguous: x / scale, rounded to the nearest (ties to even) and
        saturated

        scales: float32, the largest |x| over the largest value of dtype (448, 57344 or 127): [1],
        [M, 1], [M, ceil(K / 128)] with strides (1, M rounded up to a multiple of 4), or
        [ceil(M / 128), ceil(K / 128)]. 1 where all elements are 0. NaN where one is NaN or
        infinite: so is whatever is computed from it

        azp: int32, [1] or [M, 1]; with lo = min(x, 0) and hi = max(x, 0) over the elements that
        share it, scale = (hi - lo) / 255 and azp = -128 - round(lo / scale)

        They are what scaled_mm takes as mat_a and scale_a. A weight [N, K], quantised as it is,
        goes there transposed: mat_b = values.t(), scale_b = scales.t() (scales itself if
        tensorwise). Nothing of it has a gradient

    Raises:
        TypeError: x is no tensor, or a dtype is none of those above
        ValueError: an unknown recipe, fewer than two dimensions, or what has no kernel: int8 by
            blocks, a zero point for fp8
        RuntimeError: x requires grad, unless gradients are disabled; as mm
        NotImplementedError: as mm
    """
    code = code_of("quantize", "recipe", recipe)
    try:
        if is_transformed():
            refuse("quantize", NO_DERIVATIVE, x=x)
        if x.requires_grad:
            if is_grad_enabled():
                raise RuntimeError(
                    "quantize: x requires grad, and the derivative of quantize is not implemented: "
                    "pass x.detach(), or call it under torch.no_grad()"
                )
            x = x.detach()
        call = _quantize if is_tracing() else _quantize_direct
        if sharding.calls is not None and sharding.calls.is_sharded(x):
            values, scales, azp = sharding.calls.quantize(x, code, dtype, symmetric, call)
        else:
            values, scales, azp = call(x, code, dtype, symmetric)
    except RAISED as error:
        reraise("quantize", error, (), x=x)
    return (values, scales) if symmetric else (values, scales, azp)
