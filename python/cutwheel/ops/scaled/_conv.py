"""scaled_conv2d: a convolution of quantised tensors, fp8 or int8.

Scales are those that cutwheel.quantize makes: one for the input, and one for the filters, or one
for each of them. A result of 8 bits has one, too, and is the input of the next layer. There is no
gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, is_grad_enabled

from .._common.activations import ACTIVATIONS, check_activation
from .._common.call import is_tracing, overloads
from .._common.errors import RAISED, reraise
from .._common.transforms import NO_DERIVATIVE, is_transformed, refuse, refuse_grad
from ..conv._geometry import check_rank, geometry

_OPTIONAL = ("bias", "residual", "scale_residual", "scale_result")
_NAMES = ("input", "weight", "bias", "scale_input", "scale_weight", *_OPTIONAL[1:])
SCALED_CONV_ACTIVATIONS = ("relu", "silu")
_QUANTIZED = (torch.float8_e4m3fn, torch.int8)
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
    activation: str | None = None,
    residual: Tensor | None = None,
    scale_residual: Tensor | None = None,
    scale_result: Tensor | None = None,
) -> Tensor:
    """Convolution of quantised tensors, with the scales that their values were made with.

    Args:
        input: [N, C, H, W] or [C, H, W], float8_e4m3fn or int8, any strides; channels last is read
            without a copy
        weight: [Ko, C, R, S], dtype of input
        scale_input: float32, one value
        scale_weight: float32, one value, or one for each filter, [Ko]
        bias: [Ko], dtype of the result or float32; of a result of 8 bits float32 (read as it is),
            bfloat16 or float16
        stride, padding, dilation: as in conv2d
        out_dtype: bfloat16 (default), float16, float32, or the dtype of input
        activation: None, "relu" or "silu"; of the latter without a residual
        residual: added before the activation, of a result of 8 bits alone: exactly its shape and
            dtype, any strides; channels last is read without a copy
        scale_residual: float32, one value; with a residual
        scale_result: float32, one value, by which a result of 8 bits is divided; with no other

    Returns:
        y = act(scale_input * scale_weight * conv + bias + scale_residual * residual), [N, Ko, P, Q]
        in channels-last strides, or [Ko, P, Q]; computed in float32 (integer sums in int32) and
        rounded once. Of 8 bits it is y * (1 / scale_result), rounded to the nearest (ties to even)
        and saturated to 448 (float8_e4m3fn) or -128 to 127 (int8); NaN stays NaN in float8_e4m3fn
        and becomes 0 in int8. It has no gradient

    Raises:
        ValueError: shapes that do not fit; an activation that is not known; a scale without what
            it belongs to, or the other way around; a residual with a result of other than 8 bits
            or with silu
        TypeError: a dtype that is none of the above
        RuntimeError: a tensor requires grad; as mm
        NotImplementedError: as mm; fp8 on a GPU below compute capability 8.9
    """
    op = "scaled_conv2d"
    scales = scale_residual, scale_result
    tensors = input, weight, bias, scale_input, scale_weight, residual, *scales
    try:
        if activation is not None and activation != "relu":
            check_activation(activation, SCALED_CONV_ACTIVATIONS, op)
        if is_grad_enabled() and (
            input.requires_grad
            or weight.requires_grad
            or scale_input.requires_grad
            or scale_weight.requires_grad
            or (bias is not None and bias.requires_grad)
            or (residual is not None and residual.requires_grad)
            or (scale_residual is not None and scale_residual.requires_grad)
            or (scale_result is not None and scale_result.requires_grad)
        ):
            refuse_grad(op, "conv2d", _NAMES, tensors)
        if is_transformed():
            refuse(op, NO_DERIVATIVE, **dict(zip(_NAMES, tensors, strict=True)))
        if input.dim() != 4:
            check_rank(op, "input", input, "[N, C, H, W]", "[C, H, W]")
        where = geometry(op, weight, stride, padding, dilation)
        is_batch = input.dim() == 4
        images, added = input, residual
        if not is_batch:
            images = input.unsqueeze(0)
            added = None if residual is None else residual.unsqueeze(0)
        fused, behind = fused_activation(activation, out_dtype)
        call = _scaled if is_tracing() else _scaled_direct
        rest = out_dtype, added, *scales, fused
        result = call(images, weight, scale_input, scale_weight, bias, *where, *rest)
        if behind is not None:
            result = ACTIVATIONS[behind](result)
        return result if is_batch else result.squeeze(0)
    except RAISED as error:
        reraise(op, error, _OPTIONAL, **dict(zip(_NAMES, tensors, strict=True)))


def fused_activation(activation: str | None, out_dtype: Any) -> tuple[str, str | None]:
    """What the kernel applies ("": nothing), and what torch does behind it."""
    if activation == "silu" and out_dtype not in _QUANTIZED:
        return "", activation
    return activation or "", None
