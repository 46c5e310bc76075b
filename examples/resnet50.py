#!/usr/bin/env python3
"""ResNet-50 for inference: fused by cutwheel against the same model in eager torch.

    python examples/resnet50.py                # batch 64, bfloat16, channels last
    python examples/resnet50.py --compile      # torch.compile as one more side: takes a minute

The weights are random, so nothing is downloaded; batch norms get the statistics of one batch. It
prints what was fused, how far the logits of both models are from those in float32, and the time of
a call in a CUDA graph. It exits with 1 if the fused model's logits are further off than they may
be.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
from collections.abc import Callable, Mapping

import torch

import cutwheel

BLOCKS = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))
"""of each stage: channels inside a block, how many blocks, stride of the first one"""
EXPANSION = 4
TOLERANCE = 2.0
"""the fused model's error over the eager one's, which are alike: folded weights are rounded another
time, results less often"""

Model = torch.nn.Module


class Bottleneck(torch.nn.Module):
    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = width * EXPANSION
        self.conv1 = torch.nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = torch.nn.BatchNorm2d(width)
        self.conv2 = torch.nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = torch.nn.BatchNorm2d(width)
        self.conv3 = torch.nn.Conv2d(width, out, 1, bias=False)
        self.bn3 = torch.nn.BatchNorm2d(out)
        self.relu = torch.nn.ReLU(inplace=True)
        self.downsample: Model | None = None
        if stride != 1 or channels != out:
            self.downsample = torch.nn.Sequential(
                torch.nn.Conv2d(channels, out, 1, stride, bias=False), torch.nn.BatchNorm2d(out)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += identity
        result: torch.Tensor = self.relu(out)
        return result


class ResNet50(torch.nn.Module):
    """The names of parameters are those of torchvision's."""

    def __init__(self, classes: int = 1000, width: int = 64) -> None:
        super().__init__()
        channels = width
        self.conv1 = torch.nn.Conv2d(3, channels, 7, stride=2, padding=3, bias=False)
        self.bn1 = torch.nn.BatchNorm2d(channels)
        self.relu = torch.nn.ReLU(inplace=True)
        self.maxpool = torch.nn.MaxPool2d(3, stride=2, padding=1)
        for number, (inside, count, stride) in enumerate(BLOCKS, 1):
            inside = inside * width // 64
            blocks = []
            for block in range(count):
                blocks.append(Bottleneck(channels, inside, stride if block == 0 else 1))
                channels = inside * EXPANSION
            self.add_module(f"layer{number}", torch.nn.Sequential(*blocks))
        self.avgpool = torch.nn.AdaptiveAvgPool2d(1)
        self.fc = torch.nn.Linear(channels, classes)
        for module in self.modules():
            if isinstance(module, torch.nn.Conv2d):
                torch.nn.init.kaiming_normal_(module.weight, mode="fan_out")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for number in range(1, len(BLOCKS) + 1):
            x = getattr(self, f"layer{number}")(x)
        logits: torch.Tensor = self.fc(torch.flatten(self.avgpool(x), 1))
        return logits


def make(
    device: str = "cuda", dtype: torch.dtype = torch.bfloat16, size: int = 224, width: int = 64
) -> Model:
    """In eval mode; like a trained one in that a block changes little of what passes it by.

    Without that, 53 random layers in a row make noise of any difference, roundings included.
    """
    torch.manual_seed(0)
    model = ResNet50(width=width).to(device, memory_format=torch.channels_last)
    for name, norm in model.named_modules():
        if isinstance(norm, torch.nn.BatchNorm2d):
            norm.momentum = None  # the mean of all batches, which is one
            is_last = name.endswith("bn3")
            torch.nn.init.uniform_(norm.weight, *((0.05, 0.15) if is_last else (0.5, 1.0)))
            torch.nn.init.normal_(norm.bias, std=0.1)
    with torch.no_grad():
        model.train()(images(16, size, device, torch.float32))
    return model.eval().to(dtype)


def images(batch: int, size: int, device: str, dtype: torch.dtype) -> torch.Tensor:
    x = torch.randn(batch, 3, size, size, device=device, dtype=dtype)
    return x.contiguous(memory_format=torch.channels_last)


def errors(model: Model, others: Mapping[str, Model], x: torch.Tensor) -> dict[str, float]:
    """Relative error of each one's logits against the model in float32: ||out - ref|| / ||ref||."""
    # cuDNN would take TF32 for float32.
    with torch.no_grad(), torch.backends.cudnn.flags(enabled=False):
        reference = copy.deepcopy(model).float()(x.float()).double()
    with torch.no_grad():
        found = {name: other(x).double() for name, other in others.items()}
    return {name: float((y - reference).norm() / reference.norm()) for name, y in found.items()}


def captured(model: Model, x: torch.Tensor) -> Callable[[], float]:
    """A CUDA graph of the model; each call replays it and returns its milliseconds."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.no_grad(), torch.cuda.stream(stream):
        for _ in range(3):
            model(x)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        model(x)
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def replay() -> float:
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        milliseconds: float = start.elapsed_time(stop)
        return milliseconds

    return replay


def measure(models: Mapping[str, Model], x: torch.Tensor, rounds: int) -> dict[str, float]:
    """Median milliseconds of each; they take turns, so that clocks move all alike."""
    replays = {name: captured(model, x) for name, model in models.items()}
    times: dict[str, list[float]] = {name: [] for name in models}
    for number in range(rounds + 3):
        for name, replay in replays.items():
            elapsed = replay()
            if number >= 3:  # the first ones warm up
                times[name].append(elapsed)
    return {name: statistics.median(values) for name, values in times.items()}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="ResNet-50, fused against eager")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--report", action="store_true", help="print every layer of the report")
    parser.add_argument("--compile", action="store_true", help="measure torch.compile, too")
    parser.add_argument("--mode", default="default", help="of torch.compile")
    given = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        parser.error("the fused model runs on a CUDA GPU, and torch sees none")
    torch.backends.cudnn.benchmark = True
    model = make()
    x = images(given.batch, 224, "cuda", torch.bfloat16)
    fused = cutwheel.fuse(model)
    report = str(fused.fusion_report)
    print(report if given.report else report.splitlines()[0])
    models = {"eager": model, "fused": fused}
    if given.compile:
        models["compile"] = torch.compile(model, mode=given.mode)  # type: ignore[assignment]
    found = errors(model, models, x)
    for name, error in found.items():
        print(f"  {name:8} logits {error:.1e} from float32")
    times = measure(models, x, given.rounds)
    for name, milliseconds in times.items():
        print(f"  {name:8} {milliseconds:.3f} ms, {given.batch / milliseconds * 1e3:.0f} images/s")
    for name in times.keys() - {"fused"}:
        print(f"  fused is {times[name] / times['fused']:.2f} times as fast as {name}")
    if not found["fused"] <= TOLERANCE * found["eager"]:
        print(f"  the fused model's logits are wrong: expected {TOLERANCE} times eager's error")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
