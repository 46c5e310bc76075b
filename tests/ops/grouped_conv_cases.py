"""Convolutions of groups in three directions, and which of them to run."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from conv_cases import Conv
from conv_layouts import Sizes, assert_channels_last
from conv_reference import Geometry
from epilogue_reference import Epilogue
from gemm_cases import manifest

OPS = {
    "fprop": "conv2d_grouped",
    "dgrad": "conv2d_grouped_input_grad",
    "wgrad": "conv2d_grouped_weight_grad",
}
# As cuda/manifests/depthwise.toml and grouped_conv.toml list them.
NAMES = (
    *("plain", "bias", "bias_residual"),
    *(f"bias_{name}" for name in ("relu", "gelu", "gelu_tanh", "silu")),
    *(f"bias_{name}" for name in ("sigmoid", "tanh", "hardswish", "softplus")),
    *(f"bias_residual_{name}" for name in ("relu", "gelu", "gelu_tanh", "silu")),
    *(f"bias_{name}_residual" for name in ("relu", "gelu", "gelu_tanh", "silu")),
)


def epilogue(name: str) -> Epilogue:
    return Epilogue.of(name, manifest()["epilogues"][name])


class GroupedConv(Conv):
    """One direction as an op of the library takes it."""

    def _run(self, as_they_are: bool) -> torch.Tensor:
        a, b = (self.a, self.b) if as_they_are else self.positional
        op = getattr(torch.ops.cutwheel, OPS[self.direction])
        if self.direction == "fprop":
            more = self.operand("bias"), self.operand("residual")
            result: torch.Tensor = op(a, b, *more, *self.g.numbers, self.epilogue.name)
        else:
            result = op(a, b, *self.output_size[2:], *self.g.numbers, self.g.groups)
        assert_channels_last(result, self)
        return result

    def row(self) -> str:
        a, b = self.positional
        given: list[Any] = [a, b]
        size: Sequence[int] = ()
        if self.direction != "fprop":
            size = *self.output_size[2:], self.g.groups
        if self.direction == "fprop":
            given += [self.operand("bias"), self.operand("residual")]
        name = self.epilogue.name if self.direction == "fprop" else ""
        found = torch.ops.cutwheel._explain(
            OPS[self.direction], given, epilogue=name, geometry=[*self.g.numbers, *size]
        )
        row: str = json.loads(found)["plans"][0]["row"]
        return row


def problem(
    n: int,
    groups: int,
    widths: tuple[int, int],
    image: Sequence[int],
    taps: Sequence[int],
    stride: int | tuple[int, int] = 1,
    padding: int | Sequence[int] | None = None,
    dilation: int | tuple[int, int] = 1,
) -> tuple[Sizes, Sizes, Geometry]:
    """Channels and filters of a group; padding is half of the filter if none is given."""
    pads = [t // 2 for t in taps] if padding is None else padding
    channels, filters = widths
    weight = groups * filters, channels, *taps
    return (n, groups * channels, *image), weight, Geometry.of(taps, stride, pads, dilation, groups)


# Every width that a network has, both strides, and images that are no multiple of a tile.
PROBLEMS = {
    **{
        f"{width}_stride{stride}": problem(2, 6, (width, width), (19, 15), (3, 3), stride)
        for width in (4, 8, 16, 24, 32, 40, 48, 56, 64)
        for stride in (1, 2)
    },
    "wide": problem(2, 2, (112, 112), (9, 10), (3, 3)),
    "widest": problem(1, 3, (128, 128), (9, 10), (3, 3), 2),
    # Dense kernels convolve these, group by group.
    "64_channels": problem(5, 6, (64, 128), (14, 14), (3, 3)),
    "64_channels_stride": problem(5, 3, (192, 64), (15, 14), (3, 3), 2),
    "64_channels_dilated": problem(3, 4, (64, 64), (17, 18), (3, 5), 1, (2, 3), 3),
    "64_channels_small": problem(2, 32, (64, 64), (7, 7), (3, 3)),
    "128_channels_one_tap": problem(3, 4, (128, 128), (9, 11), (1, 1)),
    "more_filters": problem(2, 5, (8, 24), (11, 9), (3, 3)),
    "fewer_filters": problem(2, 5, (56, 16), (11, 9), (3, 3), 2),
    "two_groups": problem(3, 2, (8, 8), (9, 10), (3, 3)),
    "many_groups": problem(1, 130, (8, 8), (7, 7), (3, 3)),
    "pairs_of_four": problem(2, 34, (4, 4), (13, 9), (5, 5)),
    "small_images": problem(11, 8, (32, 32), (5, 4), (3, 3)),
    "small_strided_images": problem(7, 4, (24, 24), (8, 7), (3, 3), 2),
    "one_pixel": problem(9, 4, (16, 16), (1, 1), (3, 3)),
    "large_image": problem(1, 4, (8, 8), (70, 131), (3, 3)),
    "one_tap": problem(2, 4, (16, 16), (9, 11), (1, 1)),
    "one_tap_strided": problem(2, 4, (16, 16), (9, 11), (1, 1), 2),
    "even_filter": problem(2, 4, (16, 16), (13, 14), (4, 2), 1, (1, 2, 0, 1)),
    "even_filter_stride": problem(2, 4, (24, 24), (13, 14), (6, 4), 2, (3, 0, 2, 1)),
    "7x7": problem(2, 3, (64, 64), (12, 9), (7, 7)),
    "7x7_stride": problem(2, 3, (64, 64), (17, 16), (7, 7), 2),
    "sides": problem(2, 4, (16, 16), (15, 9), (3, 3), 1, (0, 2, 3, 1)),
    "sides_stride": problem(2, 4, (8, 8), (15, 9), (5, 5), 2, (3, 0, 1, 4)),
    "more_padding_than_taps": problem(2, 4, (16, 16), (6, 5), (3, 3), 1, (4, 5, 3, 6)),
    "dilated": problem(2, 4, (16, 16), (17, 18), (3, 3), 1, 5, 5),
    "dilated_stride": problem(2, 4, (24, 24), (17, 18), (3, 5), (2, 1), (2, 3), (1, 2)),
    "strides": problem(2, 4, (32, 32), (17, 18), (3, 3), (1, 2)),
}


def drawn(count: int, seed: int, even: bool = False) -> Iterator[tuple[Sizes, Sizes, Geometry]]:
    """Any of it; even: the same padding on opposite sides, as F.conv2d has it."""
    rng = random.Random(seed)
    while count:
        taps = rng.choice(((3, 3), (3, 3), (3, 3), (5, 5), (1, 1), (2, 3), (4, 5), (7, 1), (7, 7)))
        sides = tuple(rng.randint(0, max(taps)) for _ in range(4))
        if even:
            sides = (sides[0], sides[0], sides[2], sides[2])
        image = rng.randint(1, 40), rng.randint(1, 40)
        stride = rng.choice(((1, 1), (1, 1), (2, 2), (2, 2), (1, 2)))
        dilation = (1, 1) if max(taps) > 5 else rng.choice(((1, 1), (1, 1), (2, 2), (1, 2)))
        width = rng.choice((4, 8, 8, 16, 24, 32, 40, 48, 56, 64))
        filters = width if width == 4 or rng.random() < 0.7 else rng.choice((8, 16, 32, 56))
        groups = 2 * rng.randint(1, 6) if width == 4 else rng.randint(2, 9)
        images = rng.randint(1, 6)
        found = problem(images, groups, (width, filters), image, taps, stride, sides, dilation)
        if min(found[2].extents(image, taps)) < 1:
            continue
        count -= 1
        yield found
