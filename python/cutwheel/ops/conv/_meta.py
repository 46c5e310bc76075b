"""Fake kernels of the convolutions, as those of _fake. Results are channels last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from ...errors import ArgumentError, DtypeError
from .._common.errors import dtype_name, shape_text
from .._common.meta import (
    Shape,
    check_devices,
    check_dims,
    check_shape,
    check_value,
    declared_epilogue,
)
from .._common.precision import DTYPES
from ..scaled._recipes import check_scale_dtype
from ._geometry import output_size

_OP, _SCALED = "conv2d", "scaled_conv2d"
_QUANTIZED = (torch.float8_e4m3fn, torch.int8)


def _channels_last(like: torch.Tensor, shape: Shape, dtype: torch.dtype) -> torch.Tensor:
    """Strides follow from the sizes alone, also where a size is 1 and others would do as well."""
    _, c, h, w = shape
    return like.new_empty_strided(shape, (h * w * c, 1, w * c, c), dtype=dtype)


def _check_numbers(op: str, name: str, numbers: Sequence[Any], least: int, what: str) -> None:
    # Numbers of torch.export's unknown sizes are among those of the input only.
    if any(number < least for number in numbers):
        raise ArgumentError(
            f"{op}: {name} is {shape_text(numbers)}; expected {len(numbers)} integers from {least} "
            f"on: {what}"
        )


class _Where(NamedTuple):
    stride: Sequence[Any]
    """along H and W"""
    padding: Sequence[Any]
    """top, bottom, left, right"""
    dilation: Sequence[Any]


def _split(given: Sequence[Any], *defaults: Any) -> tuple[_Where, tuple[Any, ...]]:
    """The eight numbers of the geometry, and the arguments behind it: torch leaves out those that
    have their default."""
    rest = tuple(given[8:])
    return _Where(given[:2], given[2:6], given[6:8]), (*rest, *defaults[len(rest) :])


def _check_geometry(op: str, where: _Where) -> None:
    _check_numbers(op, "stride", where.stride, 1, "along H and W")
    _check_numbers(op, "padding", where.padding, 0, "top, bottom, left, right")
    _check_numbers(op, "dilation", where.dilation, 1, "along H and W")


def _check_not_empty(op: str, name: str, sizes: Sequence[Any], first: int) -> None:
    for size in sizes[first:]:
        check_value(
            size >= 1,
            lambda: (
                f"{op}: {name} has shape {shape_text(sizes)}; expected no 0"
                + (" but that of an empty batch" if first else "")
            ),
        )


def _check_channels(op: str, input_size: Sequence[Any], weight_size: Sequence[Any]) -> None:
    given, taken = input_size[1], weight_size[1]

    def text() -> str:
        hint = ""
        if given % taken == 0 and weight_size[0] % (given // taken) == 0:
            hint = (
                f", as kernels convolve in one group: for {given // taken} groups use "
                "torch.nn.functional.conv2d"
            )
        return (
            f"{op}: weight has shape {shape_text(weight_size)} and input has {given} channels; "
            f"expected a weight [Ko, {given}, R, S]{hint}"
        )

    check_value(given == taken, text)


def _result_shape(
    op: str,
    input_size: Sequence[Any],
    weight_size: Sequence[Any],
    where: _Where,
    given: str = "",
) -> Shape:
    """[N, Ko, P, Q]

    Args:
        given: "input" or "weight", where its size is an argument instead of the tensor
    """
    _check_not_empty(op, "the input" if given == "input" else "input", input_size, 1)
    _check_not_empty(op, "the weight" if given == "weight" else "weight", weight_size, 0)
    _check_channels(op, input_size, weight_size)
    stride, padding, dilation = where
    pixels = []
    for dim, name in enumerate("HW"):
        size, taps = input_size[2 + dim], weight_size[2 + dim]
        before, after = padding[2 * dim], padding[2 * dim + 1]
        _check_span(op, name, size, taps, before, after, dilation[dim])
        pixels.append(output_size(size, before, after, taps, stride[dim], dilation[dim]))
    return input_size[0], weight_size[0], *pixels


def _check_span(
    op: str, name: str, size: Any, taps: Any, before: Any, after: Any, spacing: Any
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


def _check_pair(
    op: str, names: tuple[str, str], a: torch.Tensor, b: torch.Tensor, allow_tf32: bool
) -> torch.dtype:
    """Ranks and dtypes of two operands."""
    for name, tensor in zip(names, (a, b), strict=True):
        check_dims(op, name, tensor, 4)
    if a.dtype not in DTYPES:
        raise DtypeError(
            f"{op}: {names[0]} has dtype {dtype_name(a.dtype)}; expected float16, bfloat16 or "
            "float32"
        )
    if b.dtype != a.dtype:
        raise DtypeError(
            f"{op}: {names[1]} has dtype {dtype_name(b.dtype)}; expected {dtype_name(a.dtype)} as "
            f"{names[0]} has"
        )
    if a.dtype == torch.float32 and not allow_tf32:
        raise RuntimeError(
            f"{op}: float32 tensors are convolved on TF32 tensor cores only, and torch's setting "
            'forbids TF32; allow it with torch.backends.cudnn.conv.fp32_precision = "tf32" (or '
            "torch.backends.cudnn.allow_tf32 = True), or pass float16 or bfloat16"
        )
    return a.dtype


def _check_bias(
    op: str, bias: torch.Tensor | None, ko: Any, dtype: torch.dtype, or_float32: bool = False
) -> None:
    if bias is None:
        return
    if bias.dtype != dtype and not (or_float32 and bias.dtype == torch.float32):
        raise DtypeError(
            f"{op}: bias has dtype {dtype_name(bias.dtype)}; expected {dtype_name(dtype)}"
            + (", the dtype of the result, or float32" if or_float32 else "")
        )
    check_shape(
        bias.shape,
        (ko,),
        lambda: f"{op}: bias has shape {shape_text(bias.shape)}; expected [{ko}]",
    )


def _conv2d(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *given: Any,
) -> torch.Tensor:
    where, (allow_tf32,) = _split(given, False)
    check_devices(_OP, {"input": input, "weight": weight, "bias": bias})
    dtype = _check_pair(_OP, ("input", "weight"), input, weight, allow_tf32)
    _check_geometry(_OP, where)
    shape = _result_shape(_OP, input.shape, weight.shape, where)
    _check_bias(_OP, bias, shape[1], dtype)
    return _channels_last(input, shape, dtype)


def _conv2d_fused(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    *given: Any,
) -> torch.Tensor:
    _, (epilogue, allow_tf32) = _split(given, None, False)
    declared = declared_epilogue(_OP, epilogue)
    tensors = {name for name, kind in declared.operands.items() if kind != "scalar"}
    scalars = set(declared.operands) - tensors
    fits = tensors <= {"bias", "residual"} and scalars <= {"alpha", "beta"} and declared.has_accum
    if not fits or declared.aux or declared.width != "same":
        raise ArgumentError(f'{_OP}: epilogue "{epilogue}" is none for this op')
    if residual is not None and "residual" not in tensors:
        raise ArgumentError(
            f'{_OP}: residual is given, and epilogue "{epilogue}" has no such operand'
        )
    check_devices(_OP, {"input": input, "weight": weight, "bias": bias, "residual": residual})
    result = _conv2d(input, weight, bias, *given[:8], allow_tf32)
    if residual is not None:
        if residual.dtype != result.dtype:
            raise DtypeError(
                f"{_OP}: residual has dtype {dtype_name(residual.dtype)}; expected "
                f"{dtype_name(result.dtype)}"
            )
        check_shape(
            residual.shape,
            result.shape,
            lambda: (
                f"{_OP}: residual has shape {shape_text(residual.shape)}; expected "
                f"{shape_text(result.shape)}, the shape of the result"
            ),
        )
    return result


def _check_gradient(
    op: str, grad_output: torch.Tensor, shape: Shape, input_size: Shape, weight_size: Shape
) -> None:
    check_shape(
        grad_output.shape,
        shape,
        lambda: (
            f"{op}: grad_output has shape {shape_text(grad_output.shape)}; expected "
            f"{shape_text(shape)}, the shape of the result for an input "
            f"{shape_text(input_size)} and a weight {shape_text(weight_size)}"
        ),
    )


def _conv2d_input_grad(
    grad_output: torch.Tensor,
    weight: torch.Tensor,
    input_h: Any,
    input_w: Any,
    *given: Any,
) -> torch.Tensor:
    op = "conv2d_input_grad"
    where, (allow_tf32,) = _split(given, False)
    check_devices(op, {"grad_output": grad_output, "weight": weight})
    dtype = _check_pair(op, ("grad_output", "weight"), grad_output, weight, allow_tf32)
    _check_geometry(op, where)
    _check_numbers(op, "size of the input", (input_h, input_w), 0, "H and W")
    sizes = (grad_output.shape[0], weight.shape[1], input_h, input_w), weight.shape
    shape = _result_shape(op, *sizes, where, given="input")
    _check_gradient(op, grad_output, shape, *sizes)
    return _channels_last(grad_output, sizes[0], dtype)


def _conv2d_weight_grad(
    grad_output: torch.Tensor,
    input: torch.Tensor,
    weight_h: Any,
    weight_w: Any,
    *given: Any,
) -> torch.Tensor:
    op = "conv2d_weight_grad"
    where, (allow_tf32, _) = _split(given, False, False)
    check_devices(op, {"grad_output": grad_output, "input": input})
    dtype = _check_pair(op, ("grad_output", "input"), grad_output, input, allow_tf32)
    _check_geometry(op, where)
    _check_numbers(op, "size of the weight", (weight_h, weight_w), 0, "R and S")
    sizes = input.shape, (grad_output.shape[1], input.shape[1], weight_h, weight_w)
    shape = _result_shape(op, *sizes, where, given="weight")
    _check_gradient(op, grad_output, shape, *sizes)
    return _channels_last(grad_output, sizes[1], dtype)


def _check_scale(name: str, scale: torch.Tensor, ko: Any = None) -> None:
    check_scale_dtype(_SCALED, name, scale)
    fits = scale.numel() == 1
    if ko is not None and scale.dim() == 1:
        fits = fits | (scale.shape[0] == ko)
    expected = "one element" + ("" if ko is None else f" or [{ko}], one for each filter")
    check_value(
        fits,
        lambda: f"{_SCALED}: {name} has shape {shape_text(scale.shape)}; expected {expected}",
    )


def _scaled_conv2d(
    input: torch.Tensor,
    weight: torch.Tensor,
    scale_input: torch.Tensor,
    scale_weight: torch.Tensor,
    bias: torch.Tensor | None,
    *given: Any,
) -> torch.Tensor:
    where, (out_dtype,) = _split(given, None)
    scales = {"scale_input": scale_input, "scale_weight": scale_weight}
    check_devices(_SCALED, {"input": input, "weight": weight, **scales, "bias": bias})
    for name, tensor in (("input", input), ("weight", weight)):
        check_dims(_SCALED, name, tensor, 4)
    if input.dtype not in _QUANTIZED:
        raise DtypeError(
            f"{_SCALED}: input has dtype {dtype_name(input.dtype)}; expected float8_e4m3fn or int8 "
            "(cutwheel.quantize makes them)"
        )
    if weight.dtype != input.dtype:
        raise DtypeError(
            f"{_SCALED}: weight has dtype {dtype_name(weight.dtype)}; expected "
            f"{dtype_name(input.dtype)} as input has"
        )
    dtype = torch.bfloat16 if out_dtype is None else out_dtype
    if dtype not in DTYPES:
        raise DtypeError(
            f"{_SCALED}: out_dtype is {dtype_name(dtype)}; expected float16, bfloat16 or float32"
        )
    _check_geometry(_SCALED, where)
    shape = _result_shape(_SCALED, input.shape, weight.shape, where)
    _check_bias(_SCALED, bias, shape[1], dtype, or_float32=True)
    _check_scale("scale_input", scale_input)
    _check_scale("scale_weight", scale_weight, shape[1])
    return _channels_last(input, shape, dtype)


def register() -> None:
    """Gives the ops of this module their fake kernels."""
    for op, fake in (
        ("conv2d", _conv2d),
        ("conv2d_fused", _conv2d_fused),
        ("conv2d_input_grad", _conv2d_input_grad),
        ("conv2d_weight_grad", _conv2d_weight_grad),
        ("scaled_conv2d", _scaled_conv2d),
    ):
        torch.library.register_fake(f"cutwheel::{op}", fake)
