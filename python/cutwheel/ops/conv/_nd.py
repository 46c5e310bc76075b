"""conv1d and conv3d, where they are only a shape of conv2d.

A signal [N, C, L] is an image of height 1. A volume whose filter has one tap along the depth, which
is neither strided nor padded there, is a batch of its slices: [N, C, D, H, W] as [N D, C, H, W].
One whose filter has taps along the depth alone is an image of D rows: [N, C, D, H W].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from .._common.errors import wrong_shape
from .._common.sizes import differ
from ._autograd import channels_first, channels_last
from ._convolve import convolve
from ._geometry import (
    Padding,
    Sizes,
    check_padding_name,
    check_rank,
    geometry_of,
    pairs,
    parts,
    sides_of,
    spread,
)


class Folded(NamedTuple):
    """A convolution as one of images."""

    input: Tensor
    weight: Tensor
    residual: Tensor | None
    stride: tuple[int, int]
    padding: Padding
    dilation: tuple[int, int]
    unfold: Callable[[Tensor], Tensor]
    """of the result"""


def convolve_folded(
    op: str,
    folded: Folded,
    bias: Tensor | None,
    groups: int,
    activation: str | None,
    residual_after_activation: bool,
) -> Tensor:
    where = (folded.stride, folded.padding, folded.dilation, groups)
    rest = (activation, folded.residual, residual_after_activation)
    return folded.unfold(convolve(op, folded.input, folded.weight, bias, *where, *rest))


def fold_signal(
    op: str,
    input: Tensor,
    weight: Tensor,
    stride: Sizes,
    padding: Padding,
    dilation: Sizes,
    residual: Tensor | None,
) -> Folded:
    """Folds an input with a batch."""
    check_rank(op, "input", input, "[N, C, L]", "[C, L]")
    check_rank(op, "weight", weight, "[Ko, C, S]")
    step, spacing = spread(op, "stride", stride, 1), spread(op, "dilation", dilation, 1)
    sides: Padding
    if isinstance(padding, str):
        check_padding_name(op, padding, step)
        sides = padding
    else:
        sides = (0, *pairs(sides_of(op, padding, 1)))
    if residual is not None:
        check_rank(op, "residual", residual, "[N, Ko, Q]")
    return Folded(
        input.unsqueeze(2),
        weight.unsqueeze(2),
        None if residual is None else residual.unsqueeze(2),
        (1, step[0]),
        sides,
        (1, spacing[0]),
        lambda result: result.squeeze(2),
    )


def fold_volume(
    op: str,
    input: Tensor,
    weight: Tensor,
    stride: Sizes,
    padding: Padding,
    dilation: Sizes,
    residual: Tensor | None,
) -> Folded | None:
    """Folds an input with a batch; None: the convolution is not one of images."""
    check_rank(op, "input", input, "[N, C, D, H, W]", "[C, D, H, W]")
    check_rank(op, "weight", weight, "[Ko, C, T, R, S]")
    if residual is not None:
        check_rank(op, "residual", residual, "[N, Ko, D', P, Q]")
    strides, sides, spacing = parts(geometry_of(op, weight, stride, padding, dilation, 3))
    around = pairs(sides)
    if (weight.shape[2], strides[0], *sides[:2]) == (1, 1, 0, 0):
        return _slices(op, input, weight, residual, (strides[1:], around[1:], spacing[1:]))
    if (*weight.shape[3:], *strides[1:], *sides[2:]) == (1, 1, 1, 1, 0, 0, 0, 0):
        where = (strides[0], 1), (around[0], 0), (spacing[0], 1)
        return _rows(op, input, weight, residual, where)
    return None


def _slices(
    op: str, input: Tensor, weight: Tensor, residual: Tensor | None, where: tuple[Any, Any, Any]
) -> Folded:
    """[N, C, D, H, W] as [N D, C, H, W], a view if the channels are last."""
    images, depth = input.shape[0], input.shape[2]
    if residual is not None and (
        differ(residual.shape[0], images) or differ(residual.shape[2], depth)
    ):
        wanted = images, weight.shape[0], depth, "P", "Q"
        raise wrong_shape(op, "residual", residual, wanted, ", the shape of the result")

    def fold(volume: Tensor) -> Tensor:
        return channels_first(channels_last(volume).flatten(0, 1))

    def unfold(result: Tensor) -> Tensor:
        pixels = channels_last(result)
        return channels_first(pixels.view(images, depth, *pixels.shape[1:]))

    added = None if residual is None else fold(residual)
    return Folded(fold(input), weight.squeeze(2), added, *where, unfold)


def _rows(
    op: str, input: Tensor, weight: Tensor, residual: Tensor | None, where: tuple[Any, Any, Any]
) -> Folded:
    """[N, C, D, H, W] as [N, C, D, H W], a view if slices lie as one row."""
    h, w = input.shape[3:]
    if residual is not None and (differ(residual.shape[3], h) or differ(residual.shape[4], w)):
        wanted = input.shape[0], weight.shape[0], "D'", h, w
        raise wrong_shape(op, "residual", residual, wanted, ", the shape of the result")

    def fold(volume: Tensor) -> Tensor:
        return channels_first(channels_last(volume).flatten(2, 3))

    def unfold(result: Tensor) -> Tensor:
        pixels = channels_last(result)
        return channels_first(pixels.view(*pixels.shape[:2], h, w, pixels.shape[3]))

    added = None if residual is None else fold(residual)
    return Folded(fold(input), weight.squeeze(4), added, *where, unfold)
