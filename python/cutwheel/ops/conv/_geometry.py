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
Padding = str | int | Sequence[int | Sequence[int]]
"""of a dimension a number for both ends, or two"""


Geometry = tuple[int, ...]
"""Eight numbers, as the ops take them: strides along H and W; padding at the top, bottom, left and
right; dilations along H and W. Of volumes twelve, those along the depth first."""


def parts(geometry: Geometry) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Strides, padding and dilations."""
    dims = len(geometry) // 4
    return geometry[:dims], geometry[dims : 3 * dims], geometry[3 * dims :]


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
        and type(vertical := padding[0]) is int
        and type(horizontal := padding[1]) is int
    ):
        return *stride, vertical, vertical, horizontal, horizontal, *dilation
    return geometry_of(op, weight, stride, padding, dilation, 2)


def geometry_of(
    op: str, weight: Tensor, stride: Sizes, padding: Padding, dilation: Sizes, dims: int
) -> Geometry:
    """geometry() of a convolution of any number of dimensions."""
    steps, spacing = spread(op, "stride", stride, dims), spread(op, "dilation", dilation, dims)
    if not isinstance(padding, str):
        return *steps, *sides_of(op, padding, dims), *spacing
    check_padding_name(op, padding, steps)
    sides: tuple[int, ...] = (0,) * (2 * dims)
    if padding == "same":
        # The library refuses a weight of another number of dimensions.
        taps = weight.shape[2:] if weight.dim() == dims + 2 else (1,) * dims
        total = [d * (size - 1) for d, size in zip(spacing, taps, strict=True)]
        sides = tuple(side for pad in total for side in (pad // 2, pad - pad // 2))
    return *steps, *sides, *spacing


def sides_of(op: str, padding: int | Sequence[int | Sequence[int]], dims: int) -> tuple[int, ...]:
    """Padding in front of and behind each of the dimensions."""
    given = padding if isinstance(padding, Sequence) else ()
    if not any(isinstance(each, Sequence) for each in given):
        numbers = spread(op, "padding", padding, dims)  # type: ignore[arg-type]
        return tuple(side for number in numbers for side in (number, number))
    both = [each if isinstance(each, Sequence) else (each, each) for each in given]
    if len(both) != dims or any(len(each) != 2 for each in both):
        raise ArgumentError(
            f"{op}: padding is {padding}; expected a number, or for each of {dims} dimensions a "
            "number or two: in front and behind"
        )
    return tuple(integer(op, "padding", side) for each in both for side in each)


def pairs(sides: tuple[int, ...]) -> tuple[int | tuple[int, int], ...]:
    """Padding as arguments have it: of each dimension a number, or two where they differ."""
    both = zip(sides[::2], sides[1::2], strict=True)
    return tuple(before if before == after else (before, after) for before, after in both)


def check_padding_name(op: str, padding: str, stride: tuple[int, ...]) -> None:
    if padding not in ("same", "valid"):
        raise ArgumentError(
            f"{op}: padding is {padding!r}; expected 'same', 'valid', a number, or a number or two "
            "for each dimension"
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
