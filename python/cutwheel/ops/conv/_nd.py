"""conv1d and conv3d, where they are only a shape of conv2d.

A signal [N, C, L] is an image of height 1. A volume whose filter has one tap along the depth, which
is neither strided nor padded there, is a batch of its slices: [N, C, D, H, W] as [N D, C, H, W].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from .._common.errors import wrong_shape
from .._common.sizes import differ
from ._autograd import channels_first, channels_last
from ._convolve import convolve
from ._geometry import Padding, Sizes, check_padding_name, check_rank, spread


class Folded(NamedTuple):
    """A convolution as one of images."""

    input: Tensor
    weight: Tensor
    residual: Tensor | None
    stride: tuple[int, int]
    padding: str | tuple[int, int]
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
    sides: str | tuple[int, int]
    if isinstance(padding, str):
        check_padding_name(op, padding, step)
        sides = padding
    else:
        sides = (0, *spread(op, "padding", padding, 1))  # type: ignore[assignment]
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
) -> Folded | str:
    """Folds an input with a batch, or says why the convolution is not one of images."""
    check_rank(op, "input", input, "[N, C, D, H, W]", "[C, D, H, W]")
    check_rank(op, "weight", weight, "[Ko, C, T, R, S]")
    steps, spacing = spread(op, "stride", stride, 3), spread(op, "dilation", dilation, 3)
    pads: str | tuple[int, ...]
    if isinstance(padding, str):
        check_padding_name(op, padding, steps)
        pads, along_depth = padding, 0  # one tap needs none for "same"
    else:
        pads = spread(op, "padding", padding, 3)
        along_depth, pads = pads[0], pads[1:]
    if (weight.shape[2], steps[0], along_depth) != (1, 1, 0):
        return (
            f"along the depth the filter has {weight.shape[2]} taps, the stride is {steps[0]} and "
            f"the padding {along_depth}; cutwheel's convolutions have one tap there, stride 1 and "
            "no padding"
        )
    images, depth = input.shape[0], input.shape[2]
    if residual is not None:
        check_rank(op, "residual", residual, "[N, Ko, D, P, Q]")
        if differ(residual.shape[0], images) or differ(residual.shape[2], depth):
            wanted = images, weight.shape[0], depth, "P", "Q"
            raise wrong_shape(op, "residual", residual, wanted, ", the shape of the result")

    def slices(volume: Tensor) -> Tensor:
        """[N, C, D, H, W] -> [N D, C, H, W], a view if the channels are last."""
        return channels_first(channels_last(volume).flatten(0, 1))

    def unfold(result: Tensor) -> Tensor:
        pixels = channels_last(result)
        return channels_first(pixels.view(images, depth, *pixels.shape[1:]))

    return Folded(
        slices(input),
        weight.squeeze(2),
        None if residual is None else slices(residual),
        steps[1:],  # type: ignore[arg-type]
        pads,  # type: ignore[arg-type]
        spacing[1:],  # type: ignore[arg-type]
        unfold,
    )
