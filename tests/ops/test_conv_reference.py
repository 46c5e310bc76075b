"""The reference of convolutions against F.conv2d and its gradients, in float64 on the CPU."""

from __future__ import annotations

import random

import conv_reference
import pytest
import torch
from conv_reference import Geometry, channels_last_strides, dgrad, fprop, longest_sum, wgrad
from torch.nn import functional

DOUBLE = torch.float64


def _drawn(seed: int) -> tuple[Geometry, tuple[int, ...], tuple[int, ...]]:
    rng = random.Random(seed)
    while True:
        groups = rng.choice((1, 1, 1, 2, 3))
        n, c, k_out = rng.randint(1, 3), groups * rng.randint(1, 4), groups * rng.randint(1, 4)
        h, w, r, s = rng.randint(1, 9), rng.randint(1, 9), rng.randint(1, 4), rng.randint(1, 4)
        g = Geometry(
            (rng.randint(1, 3), rng.randint(1, 3)),
            (rng.randint(0, 3), rng.randint(0, 3), rng.randint(0, 3), rng.randint(0, 3)),
            (rng.randint(1, 3), rng.randint(1, 3)),
            groups,
        )
        if min(g.extents((h, w), (r, s))) > 0:
            return g, (n, c, h, w), (k_out, c // groups, r, s)


def _torchs(x: torch.Tensor, weight: torch.Tensor, g: Geometry) -> torch.Tensor:
    top, bottom, left, right = g.padding
    x = functional.pad(x, (left, right, top, bottom))
    return functional.conv2d(x, weight, None, g.stride, 0, g.dilation, g.groups)


@pytest.mark.parametrize("seed", range(60))
def test_three_directions(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if seed % 2:
        monkeypatch.setattr(conv_reference, "LARGEST", 1)  # each image by itself
    g, input_size, weight_size = _drawn(seed)
    x = torch.randn(input_size, dtype=DOUBLE, requires_grad=True)
    weight = torch.randn(weight_size, dtype=DOUBLE, requires_grad=True)
    expected = _torchs(x, weight, g)
    dy = torch.randn_like(expected)
    dx, dw = torch.autograd.grad(expected, (x, weight), dy)
    torch.testing.assert_close(fprop(x, weight, g), expected)
    torch.testing.assert_close(dgrad(dy, weight, input_size, g), dx)
    torch.testing.assert_close(wgrad(dy, x, weight_size, g), dw)
    ours = torch.autograd.grad(fprop(x, weight, g), (x, weight), dy)
    for got, want in zip(ours, (dx, dw), strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("padding", ["same", "valid", 2, (1, 2)], ids=str)
@pytest.mark.parametrize("kernel", [(1, 1), (3, 3), (2, 4), (5, 2)], ids=str)
def test_padding_as_torch_has_it(kernel: tuple[int, int], padding: str | int) -> None:
    x = torch.randn(2, 3, 13, 12, dtype=DOUBLE)
    weight = torch.randn(4, 3, *kernel, dtype=DOUBLE)
    for dilation in (1, 2, (2, 1)):
        g = Geometry.of(kernel, 1, padding, dilation)
        expected = functional.conv2d(x, weight, None, 1, padding, dilation)
        torch.testing.assert_close(fprop(x, weight, g), expected)


def test_longest_sums() -> None:
    g = Geometry.of((3, 3), 1, 1)
    assert longest_sum("fprop", (2, 5, 1, 1), (7, 5, 3, 3), g) == 5  # one tap of nine is no padding
    assert longest_sum("dgrad", (2, 5, 1, 1), (7, 5, 3, 3), g) == 7
    assert longest_sum("wgrad", (2, 5, 1, 1), (7, 5, 3, 3), g) == 2
    assert longest_sum("fprop", (2, 5, 8, 8), (7, 5, 3, 3), g) == 45
    assert longest_sum("wgrad", (2, 5, 8, 8), (7, 5, 3, 3), g) == 128
    assert longest_sum("fprop", (0, 5, 8, 8), (7, 5, 3, 3), g) == 1


@pytest.mark.parametrize("sizes", [(2, 3, 4, 5), (2, 1, 4, 5), (1, 8, 1, 1), (0, 3, 4, 5)], ids=str)
def test_channels_last_strides(sizes: tuple[int, ...]) -> None:
    made = torch.empty(sizes, memory_format=torch.channels_last)
    assert made.stride() == channels_last_strides(sizes)
