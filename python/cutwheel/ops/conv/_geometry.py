"""Stride, padding and dilation: from torch's spellings to what the library takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ...errors import ArgumentError, ShapeError
from .._common.errors import shape_text
from .._common.numbers import integer

Sizes = int | Sequence[int]
"""a number for all dimensions, or one for each"""
Padding = str | Sizes


Geometry = tuple[int, ...]
"""Eight numbers, as the ops take them: strides along H and W; padding at the top, bottom, left and
right; dilations along H and W."""


def spread(op: str, name: str, value: Sizes, dims: int) -> tuple[int, ...]:
    """A number for each of the dimensions."""
    if type(value) is int:
        return (value,) * dims
    if type(value) is tuple and len(value) == dims:
        return value
    if not isinstance(value, Sequence) or isinstance(value, str):
        return (integer(op, name, value),) * dims
    given = tuple(value)
    for each in given:
        if type(each) is not int:
            given = tuple([integer(op, name, one) for one in given])
            break
    if len(given) == 1:
        return given * dims
    if len(given) != dims:
        raise ArgumentError(f"{op}: {name} is {given}; expected a number, or {dims} of them")
    return given


def geometry(op: str, weight: Tensor, stride: Sizes, padding: Padding, dilation: Sizes) -> Geometry:
    """The geometry of a convolution with `weight` [Ko, C, R, S].

    "same" is torch's: where the padding of a dimension is odd, its end has the larger half.
    """
    # The usual spellings first, numbers and a module's pairs: this is a part of every convolution's
    # CPU time.
    if type(stride) is int and type(padding) is int and type(dilation) is int:
        return stride, stride, padding, padding, padding, padding, dilation, dilation
    if (
        type(stride) is tuple
        and type(padding) is tuple
        and type(dilation) is tuple
        and len(stride) == len(padding) == len(dilation) == 2
    ):
        vertical, horizontal = padding
        return *stride, vertical, vertical, horizontal, horizontal, *dilation
    steps, spacing = spread(op, "stride", stride, 2), spread(op, "dilation", dilation, 2)
    sides: tuple[int, ...]
    if isinstance(padding, str):
        check_padding_name(op, padding, steps)
        sides = (0, 0, 0, 0)
        if padding == "same":
            # The library refuses a weight that has not 4 dimensions.
            taps = weight.shape[-2:] if weight.dim() == 4 else (1, 1)
            total = [d * (size - 1) for d, size in zip(spacing, taps, strict=True)]
            sides = tuple(side for pad in total for side in (pad // 2, pad - pad // 2))
    else:
        vertical, horizontal = spread(op, "padding", padding, 2)
        sides = (vertical, vertical, horizontal, horizontal)
    return *steps, *sides, *spacing


def check_padding_name(op: str, padding: str, stride: tuple[int, ...]) -> None:
    if padding not in ("same", "valid"):
        raise ArgumentError(
            f"{op}: padding is {padding!r}; expected 'same', 'valid', a number, or a number for "
            "each dimension"
        )
    if padding == "same" and any(step != 1 for step in stride):
        raise ArgumentError(
            f"{op}: padding is 'same' and stride is {stride}; expected a stride of 1: with another "
            "one the result has not the input's size"
        )


def output_size(size: Any, before: Any, after: Any, taps: Any, step: Any, spacing: Any) -> Any:
    """Extent of the output along one dimension, by those of image, paddings and filter."""
    return (size + before + after - spacing * (taps - 1) - 1) // step + 1


def check_rank(op: str, name: str, tensor: Tensor, *expected: str) -> None:
    """That the tensor has as many dimensions as one of the shapes, which are written as text."""
    if tensor.dim() not in [text.count(",") + 1 for text in expected]:
        raise ShapeError(
            f"{op}: {name} has {tensor.dim()} dimensions (shape {shape_text(tensor.shape)}); "
            f"expected {' or '.join(expected)}"
        )
