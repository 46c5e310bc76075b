"""How images and filters of conv tests lie in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from conv_reference import channels_last_strides
from gemm_cases import canary

Lay = Callable[[torch.Tensor], torch.Tensor]
Sizes = tuple[int, int, int, int]


# Each takes values [N, C, H, W] and returns a tensor of the same values that lies otherwise; around
# them and between them is NaN.
def _nhwc(
    n: Sequence[int] = (0, 0, 1),
    h: Sequence[int] = (0, 0, 1),
    w: Sequence[int] = (0, 0, 1),
    c: Sequence[int] = (0, 0, 1),
) -> Lay:
    """For each dimension elements before, elements behind, and the step."""

    def lay(x: torch.Tensor) -> torch.Tensor:
        sizes = [x.shape[dim] for dim in (0, 2, 3, 1)]
        around = list(zip(sizes, (n, h, w, c), strict=True))
        whole = x.new_full([size * by + a + b for size, (a, b, by) in around], canary(x))
        inner = tuple(slice(a, a + size * by, by) for size, (a, _, by) in around)
        view = whole[inner].permute(0, 3, 1, 2)
        view.copy_(x)
        return view

    return lay


def _strided(strides: Callable[[Sequence[int]], Sequence[int]], offset: int = 0) -> Lay:
    """Exactly these strides, for extents of 1 as well."""

    def lay(x: torch.Tensor) -> torch.Tensor:
        flat = x.new_full((x.numel() + offset,), canary(x))
        view = flat.as_strided(x.shape, tuple(strides(x.shape)), offset)
        view.copy_(x)
        return view

    return lay


def nchw_strides(sizes: Sequence[int]) -> Sizes:
    _, c, h, w = sizes
    return c * h * w, h * w, w, 1


def _images_inside(sizes: Sequence[int]) -> Sizes:
    n, c, _, w = sizes
    return c, 1, w * n * c, n * c


def _columns_outside(sizes: Sequence[int]) -> Sizes:
    _, c, h, w = sizes
    return w * h * c, 1, c, h * c


LAYOUTS: dict[str, Lay] = {
    "channels_last": _strided(channels_last_strides),
    "nchw": _strided(nchw_strides),
    "channels_last_offset": _strided(channels_last_strides, 1),
    "nchw_offset": _strided(nchw_strides, 3),
    "images_inside": _strided(_images_inside),
    "columns_outside": _strided(_columns_outside),
    "of_more_channels": _nhwc(c=(8, 16, 1)),
    "of_odd_channels": _nhwc(c=(1, 2, 1)),
    "cropped": _nhwc(h=(1, 2, 1), w=(2, 1, 1)),
    "every_second_image": _nhwc(n=(0, 0, 2)),
    "every_second_pixel": _nhwc(h=(0, 0, 2), w=(1, 0, 2)),
    "every_second_channel": _nhwc(c=(0, 0, 2)),
}


def laid(x: torch.Tensor, name: str) -> torch.Tensor:
    if x.element_size() > 1:
        return LAYOUTS[name](x)
    # As bytes: torch does not fill 8-bit floats everywhere; 127 is NaN in both.
    return LAYOUTS[name](x.view(torch.uint8)).view(x.dtype)


def assert_channels_last(result: torch.Tensor, what: object = "") -> None:
    wanted = channels_last_strides(result.shape)
    assert result.stride() == wanted, (
        f"{what}: strides {result.stride()} of {tuple(result.shape)}; channels_last has {wanted}"
    )
