#!/usr/bin/env python3
"""A block of a UNet and the decoder of latents, as Stable Diffusion XL has them.

    python examples/unet.py               # both, in eager torch and by cutwheel, compiled or not
    python examples/unet.py unet --batch 8
    python examples/unet.py decoder --no-compile

Weights are random, bfloat16 and channels last. cutwheel.fuse takes biases and residuals into
convolutions and linear layers, where it measures that this is faster, and cutwheel.replace_layers
computes the gated linear units and the linear layers that are left. For each way the program prints
how far the result is from float32, and the time of a call in a CUDA graph beside torch's. It exits
with 1 if cutwheel's result is more than twice as far off as that of eager torch.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F

import cutwheel

TOLERANCE = 2.0
"""cutwheel's error over that of eager torch"""
WIDTHS = {"unet": 320, "decoder": 128}
"""channels in front of the block, and those of the decoder's last stage"""
HEAD = 64
TOKENS, TEXT = 77, 2048
"""of the text: how many, and how wide"""

Tensor = torch.Tensor
Model = torch.nn.Module


def groups(channels: int) -> int:
    return 32 if channels % 32 == 0 and channels >= 128 else max(channels // 4, 1)


class ResBlock(torch.nn.Module):
    """Two convolutions behind group norms, with the step's embedding between them."""

    def __init__(self, channels: int, out: int, embedding: int = 0) -> None:
        super().__init__()
        self.norm1 = torch.nn.GroupNorm(groups(channels), channels)
        self.conv1 = torch.nn.Conv2d(channels, out, 3, padding=1)
        self.step = torch.nn.Linear(embedding, out) if embedding else None
        self.norm2 = torch.nn.GroupNorm(groups(out), out)
        self.conv2 = torch.nn.Conv2d(out, out, 3, padding=1)
        same = channels == out
        self.shortcut: Model = torch.nn.Identity() if same else torch.nn.Conv2d(channels, out, 1)

    def forward(self, x: Tensor, step: Tensor | None = None) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        if self.step is not None:
            h = h + self.step(F.silu(step))[:, :, None, None]
        h = self.conv2(F.silu(self.norm2(h)))
        result: Tensor = h + self.shortcut(x)
        return result


class Attention(torch.nn.Module):
    """Of tokens [N, T, C] among themselves, or to another sequence [N, S, `width`]."""

    def __init__(self, channels: int, width: int, heads: int, bias: bool = False) -> None:
        super().__init__()
        self.heads = heads
        self.to_q = torch.nn.Linear(channels, channels, bias)
        self.to_k = torch.nn.Linear(width, channels, bias)
        self.to_v = torch.nn.Linear(width, channels, bias)
        self.to_out = torch.nn.Linear(channels, channels)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        q, k, v = (
            each.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for each in (self.to_q(x), self.to_k(context), self.to_v(context))
        )
        h = F.scaled_dot_product_attention(q, k, v)
        result: Tensor = self.to_out(h.transpose(1, 2).flatten(2))
        return result


class GEGLU(torch.nn.Module):
    """A gated linear unit: half of the projection times GELU of the other half."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.proj = torch.nn.Linear(channels, 2 * out)

    def forward(self, x: Tensor) -> Tensor:
        values, gate = self.proj(x).chunk(2, -1)
        result: Tensor = values * F.gelu(gate)
        return result


class TransformerBlock(torch.nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        heads = max(channels // HEAD, 1)
        self.norm1, self.norm2, self.norm3 = (torch.nn.LayerNorm(channels) for _ in range(3))
        self.attention = Attention(channels, channels, heads)
        self.cross = Attention(channels, TEXT, heads)
        self.up = GEGLU(channels, 4 * channels)
        self.down = torch.nn.Linear(4 * channels, channels)

    def forward(self, x: Tensor, text: Tensor) -> Tensor:
        h = self.norm1(x)
        x = x + self.attention(h, h)
        x = x + self.cross(self.norm2(x), text)
        result: Tensor = x + self.down(self.up(self.norm3(x)))
        return result


class ImageTransformer(torch.nn.Module):
    """Pixels as tokens."""

    def __init__(self, channels: int, depth: int) -> None:
        super().__init__()
        self.norm = torch.nn.GroupNorm(groups(channels), channels)
        self.proj_in = torch.nn.Linear(channels, channels)
        self.blocks = torch.nn.ModuleList(TransformerBlock(channels) for _ in range(depth))
        self.proj_out = torch.nn.Linear(channels, channels)

    def forward(self, x: Tensor, text: Tensor) -> Tensor:
        h = self.proj_in(self.norm(x).permute(0, 2, 3, 1).flatten(1, 2))
        for block in self.blocks:
            h = block(h, text)
        h = self.proj_out(h).unflatten(1, x.shape[-2:])
        result: Tensor = h.permute(0, 3, 1, 2) + x
        return result


class UNetBlock(torch.nn.Module):
    """The second block on the way down: [N, C, H, W] -> [N, 2 C, H / 2, W / 2]."""

    def __init__(self, width: int, depth: int = 2, layers: int = 2) -> None:
        super().__init__()
        out, embedding = 2 * width, 4 * width
        channels = [width, *[out] * (layers - 1)]
        self.res = torch.nn.ModuleList(ResBlock(c, out, embedding) for c in channels)
        self.attention = torch.nn.ModuleList(ImageTransformer(out, depth) for _ in channels)
        self.smaller = torch.nn.Conv2d(out, out, 3, stride=2, padding=1)

    def forward(self, x: Tensor, step: Tensor, text: Tensor) -> Tensor:
        for res, attention in zip(self.res, self.attention):  # noqa: B905  (torch.fx knows no strict)
            x = attention(res(x, step), text)
        result: Tensor = self.smaller(x)
        return result


class PixelAttention(torch.nn.Module):
    """Of all pixels among themselves, in one head."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = torch.nn.GroupNorm(groups(channels), channels)
        self.attention = Attention(channels, channels, 1, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x).permute(0, 2, 3, 1).flatten(1, 2)
        h = self.attention(h, h).unflatten(1, x.shape[-2:])
        result: Tensor = x + h.permute(0, 3, 1, 2)
        return result


class Upsample(torch.nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))
        return result


class Decoder(torch.nn.Module):
    """Latents [N, 4, H, W] -> images [N, 3, 8 H, 8 W]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        channels = 4 * width
        layers: list[Model] = [torch.nn.Conv2d(4, channels, 3, padding=1)]
        layers += [ResBlock(channels, channels), PixelAttention(channels)]
        layers += [ResBlock(channels, channels)]
        for stage, out in enumerate((4 * width, 4 * width, 2 * width, width)):
            for _ in range(3):
                layers.append(ResBlock(channels, out))
                channels = out
            if stage < 3:
                layers.append(Upsample(channels))
        self.body = torch.nn.Sequential(*layers)
        self.norm = torch.nn.GroupNorm(groups(channels), channels)
        self.out = torch.nn.Conv2d(channels, 3, 3, padding=1)

    def forward(self, z: Tensor) -> Tensor:
        result: Tensor = self.out(F.silu(self.norm(self.body(z))))
        return result


PARTS: dict[str, Callable[[int], Model]] = {"unet": UNetBlock, "decoder": Decoder}


def make(
    part: str, device: str = "cuda", dtype: torch.dtype = torch.bfloat16, width: int = 0
) -> Model:
    """`unet` or `decoder`, in eval mode; width in place of that of WIDTHS."""
    torch.manual_seed(0)
    model = PARTS[part](width or WIDTHS[part])
    return model.to(device, dtype, memory_format=torch.channels_last).eval()


def inputs(
    part: str,
    batch: int,
    size: int,
    device: str = "cuda",
    dtype: torch.dtype = torch.bfloat16,
    width: int = 0,
) -> tuple[Tensor, ...]:
    """What a call takes: x, and of the UNet the step's embedding and the text."""
    width = width or WIDTHS[part]

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device, dtype=dtype)

    channels = width if part == "unet" else 4
    x = normal(batch, channels, size, size).contiguous(memory_format=torch.channels_last)
    if part == "decoder":
        return (x,)
    return x, normal(batch, 4 * width), normal(batch, TOKENS, TEXT)


def by_cutwheel(model: Model, example: tuple[Tensor, ...] | None = None) -> Model:
    """A copy: fused, where that is faster if there is an example, and other linear layers, too."""
    fused = cutwheel.fuse(model, example)
    print(str(fused.fusion_report).splitlines()[0])
    print(str(cutwheel.replace_layers(fused)).splitlines()[0])
    return fused


def errors(
    model: Model, ways: Mapping[str, Callable[..., Tensor]], given: tuple[Tensor, ...]
) -> dict[str, float]:
    """Relative error of each one's result against the model in float32: ||y - ref|| / ||ref||."""
    precise = copy.deepcopy(model).float()
    with torch.no_grad(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        want = precise(*(each.float() for each in given)).double()
    with torch.no_grad():
        found = {name: way(*given).double() for name, way in ways.items()}
    return {name: float((y - want).norm() / want.norm()) for name, y in found.items()}


def captured(call: Callable[..., Tensor], given: tuple[Tensor, ...]) -> Callable[[], float]:
    """A CUDA graph of a call; each call of the result replays it and returns its milliseconds."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.no_grad(), torch.cuda.stream(stream):
        for _ in range(3):
            call(*given)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        call(*given)
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def replay() -> float:
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        milliseconds: float = start.elapsed_time(stop)
        return milliseconds

    return replay


def measure(
    ways: Mapping[str, Callable[..., Tensor]], given: tuple[Tensor, ...], rounds: int
) -> dict[str, float]:
    """Median milliseconds of each; they take turns, so that clocks move all alike."""
    replays = {name: captured(way, given) for name, way in ways.items()}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 3):
        for name, replay in replays.items():
            elapsed = replay()
            if number >= 3:  # the first ones warm up
                times[name].append(elapsed)
    return {name: statistics.median(values) for name, values in times.items()}


def show(part: str, found: Mapping[str, float], times: Mapping[str, float]) -> bool:
    """Prints the table; False if cutwheel's results are wrong."""
    best = min(time for name, time in times.items() if "cutwheel" not in name)
    print(f"{part:<22}{'error':>9}{'ms':>10}   beside eager   beside torch's best")
    for name, time in times.items():
        beside = f"{times['torch'] / time:>12.2f}{best / time:>20.2f}"
        print(f"  {name:<20}{found[name]:>9.4f}{time:>10.3f}{beside}")
    ours = {name: error for name, error in found.items() if "cutwheel" in name}
    for name, error in ours.items():
        if not error <= TOLERANCE * found["torch"]:
            print(f"  {name} is wrong: expected at most {TOLERANCE} times the error of eager torch")
    return all(error <= TOLERANCE * found["torch"] for error in ours.values())


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="*", default=[], help="unet, decoder (both)")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--size", type=int, default=64, help="of the latents' sides")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--no-compile", action="store_true", help="without torch.compile")
    given = parser.parse_args(arguments)
    if unknown := set(given.parts) - set(PARTS):
        parser.error(f"parts are {', '.join(PARTS)}, not {', '.join(sorted(unknown))}")
    if not torch.cuda.is_available():
        parser.error("the kernels run on a CUDA GPU, and torch sees none")
    torch.backends.cudnn.benchmark = True
    is_good = True
    for part in given.parts or PARTS:
        model, x = make(part), inputs(part, given.batch, given.size)
        ours = by_cutwheel(model, x)
        ways: dict[str, Callable[..., Tensor]] = {"torch": model, "cutwheel": ours}
        if not given.no_compile:
            ways["torch.compile"] = torch.compile(model, dynamic=False)
            ways["cutwheel, compiled"] = torch.compile(ours, dynamic=False)
        found = errors(model, ways, x)
        is_good &= show(part, found, measure(ways, x, given.rounds))
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
