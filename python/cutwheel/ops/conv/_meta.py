"""Meta functions of the convolutions. Results are channels last."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...errors import ArgumentError
from .._common.errors import check_dims, shape_text
from .._common.meta import Shape, check_residual, check_shape, check_value, register
from ._geometry import output_size


def _channels_last(like: Tensor, shape: Shape, dtype: torch.dtype | None = None) -> Tensor:
    """Strides follow from the sizes alone, also where a size is 1 and others would do as well."""
    step, strides = shape[1], []  # type: ignore[var-annotated]
    for size in shape[:1:-1]:
        strides.insert(0, step)
        step = step * size
    return like.new_empty_strided(shape, (step, 1, *strides), dtype=dtype)


_AXES = {
    "d": ("front", "back"),
    "h": ("top", "bottom"),
    "w": ("left", "right"),
}


def _fprop(
    op: str, input: Tensor, weight: Tensor, where: dict[str, Any], dtype: torch.dtype | None = None
) -> Tensor:
    """[N, Ko, P, Q], or [N, Ko, D', P, Q]"""
    axes = "dhw" if "stride_d" in where else "hw"
    dims = len(axes) + 2
    check_dims(op, "input", input, dims)
    check_dims(op, "weight", weight, dims)
    strides = tuple(where[f"stride_{axis}"] for axis in axes)
    # Sizes that torch.export does not know are among those of the tensors only.
    if any(step < 1 for step in strides):
        raise ArgumentError(
            f"{op}: stride is {shape_text(strides)}; expected {len(axes)} integers from 1 on: "
            f"along {'D, ' if dims == 5 else ''}H and W"
        )
    c = input.shape[1]
    check_value(
        weight.shape[1] == c,
        f"{op}: weight has shape {shape_text(weight.shape)} and input has {c} channels; expected a "
        f"weight [Ko, {c}, {'T, ' if dims == 5 else ''}R, S]",
    )
    pixels = []
    for dim, axis in enumerate(axes, 2):
        first, last = _AXES[axis]
        size, taps, spacing = input.shape[dim], weight.shape[dim], where[f"dilation_{axis}"]
        before, after = where[f"padding_{first}"], where[f"padding_{last}"]
        padded, span = size + before + after, spacing * (taps - 1) + 1
        check_value(
            span <= padded,
            f"{op}: along {axis.upper()} the filter spans {span} pixels ({taps} taps, dilation "
            f"{spacing}) and the input has {padded} with its padding ({before} + {size} + {after});"
            " expected a filter that fits: pad the input",
        )
        step = where[f"stride_{axis}"]
        pixels.append(output_size(size, before, after, taps, step, spacing))
    return _channels_last(input, (input.shape[0], weight.shape[0], *pixels), dtype)


def _conv2d(input: Tensor, weight: Tensor, arguments: dict[str, Any]) -> Tensor:
    return _fprop("conv2d", input, weight, arguments)


def _conv2d_fused(
    input: Tensor, weight: Tensor, residual: Tensor | None, arguments: dict[str, Any]
) -> Tensor:
    result = _fprop("conv2d", input, weight, arguments)
    check_residual("conv2d", residual, result.shape)
    return result


def _conv2d_fused_aux(
    input: Tensor, weight: Tensor, residual: Tensor | None, arguments: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    result = _conv2d_fused(input, weight, residual, arguments)
    return result, torch.empty_like(result)


def _conv3d(input: Tensor, weight: Tensor, arguments: dict[str, Any]) -> Tensor:
    return _fprop("conv3d", input, weight, arguments)


def _conv3d_fused(
    input: Tensor, weight: Tensor, residual: Tensor | None, arguments: dict[str, Any]
) -> Tensor:
    result = _fprop("conv3d", input, weight, arguments)
    check_residual("conv3d", residual, result.shape)
    return result


def _conv3d_fused_aux(
    input: Tensor, weight: Tensor, residual: Tensor | None, arguments: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    result = _conv3d_fused(input, weight, residual, arguments)
    return result, torch.empty_like(result)


def _transposed(op: str, input: Tensor, weight: Tensor, bias: Tensor | None, size: Shape) -> Tensor:
    """[N, C, ...] of these extents."""
    dims = len(size) + 2
    check_dims(op, "input", input, dims)
    check_dims(op, "weight", weight, dims)
    c = input.shape[1]
    check_value(
        weight.shape[0] == c,
        f"{op}: weight has shape {shape_text(weight.shape)} and input has {c} channels; expected a "
        f"weight [{c}, Ko, {'T, ' if dims == 5 else ''}R, S]",
    )
    if bias is not None:
        check_shape(op, "bias", bias, (weight.shape[1],))
    return _channels_last(input, (input.shape[0], weight.shape[1], *size))


def _conv_transpose2d(
    input: Tensor, weight: Tensor, bias: Tensor | None, output_h: Any, output_w: Any
) -> Tensor:
    return _transposed("conv_transpose2d", input, weight, bias, (output_h, output_w))


def _conv_transpose3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    output_d: Any,
    output_h: Any,
    output_w: Any,
) -> Tensor:
    return _transposed("conv_transpose3d", input, weight, bias, (output_d, output_h, output_w))


def _scaled_conv2d(
    input: Tensor,
    weight: Tensor,
    out_dtype: torch.dtype | None,
    residual: Tensor | None,
    arguments: dict[str, Any],
) -> Tensor:
    dtype = out_dtype or torch.bfloat16
    result = _fprop("scaled_conv2d", input, weight, arguments, dtype)
    check_residual("scaled_conv2d", residual, result.shape)
    return result


def _dgrad(grad_output: Tensor, weight: Tensor, input_h: Any, input_w: Any) -> Tensor:
    (n, _, _, _), (_, c, _, _) = grad_output.shape, weight.shape
    return _channels_last(grad_output, (n, c, input_h, input_w))


def _wgrad(grad_output: Tensor, input: Tensor, weight_h: Any, weight_w: Any) -> Tensor:
    (_, ko, _, _), (_, c, _, _) = grad_output.shape, input.shape
    return _channels_last(grad_output, (ko, c, weight_h, weight_w))


def _dgrad_3d(
    grad_output: Tensor, weight: Tensor, input_d: Any, input_h: Any, input_w: Any
) -> Tensor:
    shape = grad_output.shape[0], weight.shape[1], input_d, input_h, input_w
    return _channels_last(grad_output, shape)


def _wgrad_3d(
    grad_output: Tensor, input: Tensor, weight_d: Any, weight_h: Any, weight_w: Any
) -> Tensor:
    shape = grad_output.shape[1], input.shape[1], weight_d, weight_h, weight_w
    return _channels_last(grad_output, shape)


def _conv2d_grouped(
    input: Tensor, weight: Tensor, residual: Tensor | None, arguments: dict[str, Any]
) -> Tensor:
    check_dims("conv2d", "input", input, 4)
    check_dims("conv2d", "weight", weight, 4)
    c, channels = input.shape[1], weight.shape[1]
    check_value(
        c % channels == 0,
        f"conv2d: weight has shape {shape_text(weight.shape)} and input has {c} channels; expected "
        "a weight [Ko, C / groups, R, S] whose channels divide them into groups",
    )
    # Sizes of the result are those of a convolution of one group.
    result = _fprop("conv2d", input[:, :channels], weight, arguments)
    check_residual("conv2d", residual, result.shape)
    return result


def _grouped_dgrad(
    grad_output: Tensor, weight: Tensor, input_h: Any, input_w: Any, groups: Any
) -> Tensor:
    (n, _, _, _), (_, c, _, _) = grad_output.shape, weight.shape
    return _channels_last(grad_output, (n, c * groups, input_h, input_w))


def _grouped_wgrad(
    grad_output: Tensor, input: Tensor, weight_h: Any, weight_w: Any, groups: Any
) -> Tensor:
    (_, ko, _, _), (_, c, _, _) = grad_output.shape, input.shape
    return _channels_last(grad_output, (ko, c // groups, weight_h, weight_w))


register(
    {
        "conv2d": _conv2d,
        "conv2d_fused": _conv2d_fused,
        "conv2d_fused_aux": _conv2d_fused_aux,
        "conv2d_input_grad": _dgrad,
        "conv2d_weight_grad": _wgrad,
        "conv_transpose2d": _conv_transpose2d,
        "conv3d": _conv3d,
        "conv3d_fused": _conv3d_fused,
        "conv3d_fused_aux": _conv3d_fused_aux,
        "conv3d_input_grad": _dgrad_3d,
        "conv3d_weight_grad": _wgrad_3d,
        "conv_transpose3d": _conv_transpose3d,
        "scaled_conv2d": _scaled_conv2d,
        "conv2d_grouped": _conv2d_grouped,
        "conv2d_grouped_input_grad": _grouped_dgrad,
        "conv2d_grouped_weight_grad": _grouped_wgrad,
    }
)
