"""Convolutional models of the suite `models`: random weights, in eval mode, channels last.

ResNet-50 is that of examples/resnet50.py, parts of a diffusion model are those of examples/unet.py;
the others of images are torchvision's. The decoder of videos is written down here: causal
convolutions, RMS norms and SiLU in residual blocks, as the decoders of Wan 2.1 and HunyuanVideo
have them.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F

Tensor = torch.Tensor
Model = torch.nn.Module


@functools.cache
def example(name: str) -> ModuleType:
    path = Path(__file__).parents[1] / "examples" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules[name] = found
    spec.loader.exec_module(found)
    return found


# ---- a decoder of videos
class CausalConv3d(torch.nn.Module):
    """No frame sees a later one: all padding along the depth is in front."""

    def __init__(self, channels: int, filters: int, taps: tuple[int, int, int]) -> None:
        super().__init__()
        depth, h, w = taps
        self.padding = (w // 2, w // 2, h // 2, h // 2, depth - 1, 0)
        self.conv = torch.nn.Conv3d(channels, filters, taps)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.conv(F.pad(x, self.padding))
        return result


class ChannelNorm(torch.nn.Module):
    """RMS norm of the channels of each pixel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        normed = F.rms_norm(x.movedim(1, -1), self.weight.shape, self.weight)
        return normed.movedim(-1, 1)


class VideoBlock(torch.nn.Module):
    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = ChannelNorm(channels), CausalConv3d(channels, out, (3, 3, 3))
        self.norm2, self.conv2 = ChannelNorm(out), CausalConv3d(out, out, (3, 3, 3))
        same = channels == out
        self.shortcut = torch.nn.Identity() if same else torch.nn.Conv3d(channels, out, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        h = self.conv2(F.silu(self.norm2(h)))
        result: Tensor = h + self.shortcut(x)
        return result


class Upsample(torch.nn.Module):
    """Twice the height and width, half the channels; and twice the frames but the first's."""

    def __init__(self, channels: int, is_temporal: bool) -> None:
        super().__init__()
        self.time = CausalConv3d(channels, 2 * channels, (3, 1, 1)) if is_temporal else None
        self.conv = torch.nn.Conv3d(channels, channels // 2, (1, 3, 3), padding=(0, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        if self.time is not None:
            pairs = self.time(x).unflatten(1, (2, -1))  # [N, 2, C, D, H, W]
            frames = pairs.permute(0, 3, 1, 4, 5, 2).flatten(1, 2)  # [N, 2 D, H, W, C]
            x = frames[:, 1:].movedim(-1, 1)
        result: Tensor = self.conv(F.interpolate(x, scale_factor=(1.0, 2.0, 2.0), mode="nearest"))
        return result


class VideoDecoder(torch.nn.Module):
    """Latents [N, 16, D, H, W] -> videos [N, 3, 4 D - 3, 8 H, 8 W]."""

    def __init__(self, width: int = 96, latents: int = 16, blocks: int = 3) -> None:
        super().__init__()
        channels = 4 * width
        layers: list[Model] = [CausalConv3d(latents, channels, (3, 3, 3))]
        layers += [VideoBlock(channels, channels) for _ in range(2)]
        for stage, out in enumerate((4 * width, 4 * width, 2 * width, width)):
            for _ in range(blocks):
                layers.append(VideoBlock(channels, out))
                channels = out
            if stage < 3:
                layers.append(Upsample(channels, stage < 2))
                channels //= 2
        self.body = torch.nn.Sequential(*layers)
        self.norm, self.out = ChannelNorm(channels), CausalConv3d(channels, 3, (3, 3, 3))

    def forward(self, z: Tensor) -> Tensor:
        result: Tensor = self.out(F.silu(self.norm(self.body(z))))
        return result


# ---- making them
def _of_torchvision(name: str) -> Model:
    """Raises ImportError without torchvision."""
    made: Model = getattr(importlib.import_module("torchvision.models"), name)()
    return made


DIFFUSION = {"unet_block": "unet", "image_decoder": "decoder"}
"""of the parts of examples/unet.py"""
NAMES = {
    "convnext_t": "convnext_tiny",
    "efficientnet_b0": "efficientnet_b0",
    "mobilenet_v3_l": "mobilenet_v3_large",
    "regnet_y_8gf": "regnet_y_8gf",
}
"""of torchvision's functions"""
BLOCKS = ("MBConv", "InvertedResidual", "ResBottleneckBlock")
"""classes whose last batch norm is that in front of the sum"""


def _soften(model: Model) -> None:
    """Weights like those of a trained model, of which a block changes little of what passes it by.

    Without that, random layers in a row make noise of any difference, roundings included.
    """
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = None  # the mean of all batches, which is one
            torch.nn.init.uniform_(module.weight, 0.5, 1.0)
            torch.nn.init.normal_(module.bias, std=0.1)
        scale = getattr(module, "layer_scale", None)
        if isinstance(scale, torch.nn.Parameter):
            torch.nn.init.uniform_(scale, 0.05, 0.15)
    for module in model.modules():
        if type(module).__name__ in BLOCKS:
            last = [each for each in module.modules() if isinstance(each, torch.nn.BatchNorm2d)][-1]
            torch.nn.init.uniform_(last.weight, 0.05, 0.15)


def _images_model(name: str, size: int, device: str) -> Model:
    model: Any = _of_torchvision(NAMES[name])
    model.to(device, memory_format=torch.channels_last)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    _soften(model)
    with torch.no_grad():
        model.train()(images(16, size, device, torch.float32))
    made: Model = model.eval()
    return made


def images(batch: int, size: int, device: str, dtype: torch.dtype) -> Tensor:
    made: Tensor = example("resnet50").images(batch, size, device, dtype)
    return made


def make(name: str, size: int, device: str, dtype: torch.dtype, width: int = 0) -> Model:
    """A model in eval mode, channels last, its batch norms with the statistics of one batch.

    Args:
        name: resnet50, video_decoder, one of DIFFUSION or one of NAMES
        size: of an image's sides
        width: of ResNet-50, the decoders and the UNet, in place of theirs
    """
    torch.manual_seed(0)
    if name in DIFFUSION:
        part: Model = example("unet").make(DIFFUSION[name], device, dtype, width)
        return part
    if name == "resnet50":
        made: Model = example("resnet50").make(device, dtype, size, width or 64)
        return made
    if name == "video_decoder":
        decoder: Model = VideoDecoder(width or 96).to(device, dtype).eval()
        for parameter in decoder.parameters():
            if parameter.dim() == 5:
                parameter.data = parameter.contiguous(memory_format=torch.channels_last_3d)
        return decoder
    return _images_model(name, size, device).to(dtype)
