"""Convolutions and their gradients in float64: windows laid out by F.unfold, summed by products.

A convolution is defined here a second time; test_conv_reference.py holds it against
F.conv2d in float64 on the CPU. All of it is differentiable, and on a GPU it asks cuDNN for no
plans: for a problem that is computed once, those take longer than the products.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch.nn import functional

DIRECTIONS = ("fprop", "dgrad", "wgrad")
# Elements of windows that are laid out at once, a gigabyte: several processes share a GPU.
LARGEST = 1 << 27


@dataclass(frozen=True)
class Geometry:
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)  # top, bottom, left, right
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1

    @classmethod
    def of(
        cls,
        kernel: Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: str | int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
    ) -> Geometry:
        """From arguments of F.conv2d; padding may also be all four."""
        d = _pair(dilation)
        if padding == "valid":
            padding = 0
        if padding == "same":  # of an odd number the larger half goes behind
            total = [by * (extent - 1) for by, extent in zip(d, kernel, strict=True)]
            padding = [side for t in total for side in (t // 2, t - t // 2)]
        assert not isinstance(padding, str), padding
        if isinstance(padding, int) or len(padding) < 4:
            top, left = _pair(padding)
            padding = (top, top, left, left)
        return cls(_pair(stride), (padding[0], padding[1], padding[2], padding[3]), d, groups)

    @property
    def numbers(self) -> tuple[int, ...]:
        """As the library's ops take it."""
        return *self.stride, *self.padding, *self.dilation

    def extents(self, image: Sequence[int], kernel: Sequence[int]) -> tuple[int, int]:
        """(P, Q) of an image of H x W; not positive where the filter does not fit"""
        pads = (sum(self.padding[:2]), sum(self.padding[2:]))
        p, q = (
            (extent + pad - by * (taps - 1) - 1) // step + 1
            for extent, pad, by, taps, step in zip(
                image, pads, self.dilation, kernel, self.stride, strict=True
            )
        )
        return p, q

    def windows(self, x: torch.Tensor, kernel: Sequence[int]) -> torch.Tensor:
        """[N, C, H, W] -> [N, C * R * S, P * Q], zeros beyond the image"""
        top, bottom, left, right = self.padding
        x = functional.pad(x, (left, right, top, bottom))
        return functional.unfold(x, tuple(kernel), self.dilation, 0, self.stride)


def _pair(value: int | Sequence[int]) -> tuple[int, int]:
    if isinstance(value, int):
        return value, value
    first, second = value if len(value) == 2 else (value[0], value[0])
    return first, second


def _at_once(channels: int, kernel: Sequence[int], positions: Sequence[int]) -> int:
    """Images whose windows are laid out together."""
    return max(LARGEST // max(channels * math.prod(kernel) * math.prod(positions), 1), 1)


def fprop(x: torch.Tensor, weight: torch.Tensor, g: Geometry) -> torch.Tensor:
    """x [N, C, H, W], weight [Ko, C / G, R, S] -> [N, Ko, P, Q]"""
    images, (k_out, _, *kernel) = x.shape[0], weight.shape
    p, q = g.extents(x.shape[2:], kernel)
    if 0 in (x.numel(), weight.numel()):
        return x.new_zeros(images, k_out, p, q)
    if images > (some := _at_once(x.shape[1], kernel, (p, q))):
        return torch.cat([fprop(part, weight, g) for part in x.split(some)])
    windows = g.windows(x, kernel).unflatten(1, (g.groups, -1))  # [N, G, C / G * R * S, P * Q]
    filters = weight.flatten(1).unflatten(0, (g.groups, -1))  # [G, Ko / G, C / G * R * S]
    return (filters @ windows).reshape(images, k_out, p, q)


def dgrad(
    dy: torch.Tensor, weight: torch.Tensor, input_size: Sequence[int], g: Geometry
) -> torch.Tensor:
    """dy [N, Ko, P, Q] -> [N, C, H, W]"""
    (images, channels, h, w), kernel = input_size, weight.shape[2:]
    if 0 in (dy.numel(), weight.numel()):
        return dy.new_zeros(*input_size)
    if images > (some := _at_once(channels, kernel, dy.shape[2:])):
        parts = dy.split(some)
        return torch.cat([dgrad(x, weight, (len(x), *input_size[1:]), g) for x in parts])
    filters = weight.flatten(1).unflatten(0, (g.groups, -1)).mT  # [G, C / G * R * S, Ko / G]
    grads = dy.flatten(2).unflatten(1, (g.groups, -1))  # [N, G, Ko / G, P * Q]
    windows = (filters @ grads).reshape(images, -1, math.prod(dy.shape[2:]))
    top, bottom, left, right = g.padding
    whole = (h + top + bottom, w + left + right)
    x = functional.fold(windows, whole, tuple(kernel), g.dilation, 0, g.stride)
    return x[:, :channels, top : top + h, left : left + w]


def wgrad(
    dy: torch.Tensor, x: torch.Tensor, weight_size: Sequence[int], g: Geometry
) -> torch.Tensor:
    """dy [N, Ko, P, Q], x [N, C, H, W] -> [Ko, C / G, R, S]"""
    if 0 in (dy.numel(), x.numel()):
        return x.new_zeros(*weight_size)
    if len(x) > (some := _at_once(x.shape[1], weight_size[2:], dy.shape[2:])):
        parts = zip(dy.split(some), x.split(some), strict=True)
        return torch.stack([wgrad(*part, weight_size, g) for part in parts]).sum(0)
    windows = g.windows(x, weight_size[2:]).unflatten(1, (g.groups, -1))
    grads = dy.flatten(2).unflatten(1, (g.groups, -1))  # [N, G, Ko / G, P * Q]
    return (grads @ windows.mT).sum(0).reshape(*weight_size)


def longest_sum(
    direction: str, input_size: Sequence[int], weight_size: Sequence[int], g: Geometry
) -> int:
    """The most products of which an element of the result is the sum; what is padding is none."""
    (images, _, *image), (k_out, channels, *kernel) = input_size, weight_size
    if 0 in (*input_size, *weight_size):
        return 1
    one = replace(g, groups=1)
    pixels = torch.ones(1, 1, *image, dtype=torch.float64)
    taps = torch.ones(1, 1, *kernel, dtype=torch.float64)
    grads = torch.ones(1, 1, *g.extents(image, kernel), dtype=torch.float64)
    if direction == "fprop":
        count, times = fprop(pixels, taps, one), channels
    elif direction == "dgrad":
        count, times = dgrad(grads, taps, pixels.shape, one), k_out // g.groups
    else:
        count, times = wgrad(grads, pixels, taps.shape, one), images
    return max(1, times * int(count.max().item()))


def channels_last_strides(sizes: Sequence[int]) -> tuple[int, int, int, int]:
    """Strides of [N, C, H, W], for extents of 1 as well: (H * W * C, 1, W * C, C)"""
    _, c, h, w = sizes
    return h * w * c, 1, w * c, c
