"""scaled_conv2d: a convolution of quantised tensors, fp8 or int8.

Scales are those that cutwheel.quantize makes: one for the input, and one for the filters, or one
for each of them. There is no gradient.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, is_grad_enabled

from .._common.call import is_tracing, overloads
from .._common.errors import RAISED, reraise
from .._common.transforms import NO_DERIVATIVE, is_transformed, refuse, refuse_grad
from ..conv._geometry import check_rank, geometry

_NAMES = ("input", "weight", "bias", "scale_input", "scale_weight")
_scaled, _scaled_direct = overloads("scaled_conv2d")


def scaled_conv2d(
    input: Tensor,
    weight: Tensor,
    scale_input: Tensor,
    scale_weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    *,
    out_dtype: torch.dtype = torch.bfloat16,
) -> Tensor:
    """Convolution of quantised tensors, with the scales that their values were made with.

    Args:
        input: [N, C, H, W] or [C, H, W], float8_e4m3fn or int8, any strides; channels last is read
            without a copy
        weight: [Ko, C, R, S], dtype of input
        scale_input: float32, one value
        scale_weight: float32, one value, or one for each filter, [Ko]
        bias: [Ko], dtype of the result or float32
        stride, padding, dilation: as in conv2d
        out_dtype: bfloat16 (default), float16 or float32

    Returns:
        scale_input * scale_weight * conv + bias, [N, Ko, P, Q] in channels-last strides, or
        [Ko, P, Q]; computed in float32 (integer sums in int32) and rounded once. It has no gradient

    Raises:
        ValueError: shapes that do not fit
        TypeError: a dtype that is none of the above
        RuntimeError: a tensor requires grad; as mm
        NotImplementedError: as mm; fp8 on a GPU below compute capability 8.9
    """
    op = "scaled_conv2d"
    try:
        if is_grad_enabled() and (
            input.requires_grad
            or weight.requires_grad
            or scale_input.requires_grad
            or scale_weight.requires_grad
            or (bias is not None and bias.requires_grad)
        ):
            tensors = input, weight, bias, scale_input, scale_weight
            refuse_grad(op, "conv2d", _NAMES, tensors)
        if is_transformed():
            tensors = input, weight, bias, scale_input, scale_weight
            refuse(op, NO_DERIVATIVE, **dict(zip(_NAMES, tensors, strict=True)))
        if input.dim() != 4:
            check_rank(op, "input", input, "[N, C, H, W]", "[C, H, W]")
        where = geometry(op, weight, stride, padding, dilation)
        is_batch = input.dim() == 4
        images = input if is_batch else input.unsqueeze(0)
        call = _scaled if is_tracing() else _scaled_direct
        result = call(images, weight, scale_input, scale_weight, bias, *where, out_dtype)
        return result if is_batch else result.squeeze(0)
    except RAISED as error:
        tensors = input, weight, bias, scale_input, scale_weight
        reraise(op, error, ("bias",), **dict(zip(_NAMES, tensors, strict=True)))
