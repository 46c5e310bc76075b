"""Meta functions of the convolutions. Results are channels last."""

from __future__ import annotations

from typing import Any

import torch

from ...errors import ArgumentError
from .._common.errors import shape_text
from .._common.meta import (
    Shape,
    check_dims,
    check_residual,
    check_value,
    declared_epilogue,
    register,
)
from ._geometry import output_size

Tensor = torch.Tensor


def _channels_last(like: Tensor, shape: Shape, dtype: torch.dtype | None = None) -> Tensor:
    """Strides follow from the sizes alone, also where a size is 1 and others would do as well."""
    _, c, h, w = shape
    return like.new_empty_strided(shape, (h * w * c, 1, w * c, c), dtype=dtype)


def _check_channels(op: str, input: Tensor, weight: Tensor) -> None:
    given, taken = input.shape[1], weight.shape[1]

    def text() -> str:
        hint = ""
        if taken and given % taken == 0 and weight.shape[0] % (given // taken) == 0:
            hint = (
                f", as kernels convolve in one group: for {given // taken} groups use "
                "torch.nn.functional.conv2d"
            )
        return (
            f"{op}: weight has shape {shape_text(weight.shape)} and input has {given} channels; "
            f"expected a weight [Ko, {given}, R, S]{hint}"
        )

    check_value(given == taken, text)


def _check_span(
    op: str, name: str, size: Any, before: Any, after: Any, taps: Any, spacing: Any
) -> None:
    padded, span = size + before + after, spacing * (taps - 1) + 1
    check_value(
        span <= padded,
        lambda: (
            f"{op}: along {name} the filter spans {span} pixels ({taps} taps, dilation {spacing}) "
            f"and the input has {padded} with its padding ({before} + {size} + {after}); expected "
            "a filter that fits: pad the input"
        ),
    )


def _shape(op: str, input: Tensor, weight: Tensor, where: dict[str, Any]) -> Shape:
    """[N, Ko, P, Q]"""
    check_dims(op, "input", input, 4)
    check_dims(op, "weight", weight, 4)
    strides = where["stride_h"], where["stride_w"]
    # Sizes that torch.export does not know are among those of the tensors only.
    if any(step < 1 for step in strides):
        raise ArgumentError(
            f"{op}: stride is {shape_text(strides)}; expected 2 integers from 1 on: along H and W"
        )
    _check_channels(op, input, weight)
    pixels = []
    for dim, sides in ((2, ("top", "bottom")), (3, ("left", "right"))):
        size, taps = input.shape[dim], weight.shape[dim]
        before, after = (where[f"padding_{side}"] for side in sides)
        spacing = where["dilation_w" if dim == 3 else "dilation_h"]
        _check_span(op, "W" if dim == 3 else "H", size, before, after, taps, spacing)
        pixels.append(output_size(size, before, after, taps, strides[dim - 2], spacing))
    return input.shape[0], weight.shape[0], *pixels


def _conv2d(input: Tensor, weight: Tensor, arguments: dict[str, Any]) -> Tensor:
    return _channels_last(input, _shape("conv2d", input, weight, arguments))


def _conv2d_fused(
    input: Tensor,
    weight: Tensor,
    residual: Tensor | None,
    epilogue: str,
    arguments: dict[str, Any],
) -> Tensor:
    declared_epilogue("conv2d", epilogue)
    result = _conv2d(input, weight, arguments)
    check_residual("conv2d", residual, result.shape)
    return result


def _dgrad(grad_output: Tensor, weight: Tensor, input_h: Any, input_w: Any) -> Tensor:
    check_dims("conv2d_input_grad", "grad_output", grad_output, 4)
    check_dims("conv2d_input_grad", "weight", weight, 4)
    return _channels_last(grad_output, (grad_output.shape[0], weight.shape[1], input_h, input_w))


def _wgrad(grad_output: Tensor, input: Tensor, weight_h: Any, weight_w: Any) -> Tensor:
    check_dims("conv2d_weight_grad", "grad_output", grad_output, 4)
    check_dims("conv2d_weight_grad", "input", input, 4)
    return _channels_last(grad_output, (grad_output.shape[1], input.shape[1], weight_h, weight_w))


def _scaled_conv2d(
    input: Tensor, weight: Tensor, out_dtype: torch.dtype | None, arguments: dict[str, Any]
) -> Tensor:
    shape = _shape("scaled_conv2d", input, weight, arguments)
    return _channels_last(input, shape, out_dtype or torch.bfloat16)


register(
    {
        "conv2d": _conv2d,
        "conv2d_fused": _conv2d_fused,
        "conv2d_input_grad": _dgrad,
        "conv2d_weight_grad": _wgrad,
        "scaled_conv2d": _scaled_conv2d,
    }
)
