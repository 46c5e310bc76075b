#!/usr/bin/env python3
"""ResNet-50 in 8 bits: every convolution but the first reads and writes int8, or fp8.

    python examples/resnet50_int8.py                    # int8, batch 64, random weights and images
    python examples/resnet50_int8.py --dtype fp8
    python examples/resnet50_int8.py --weights resnet50.pth --images images.pt

Batch norms are folded into the convolutions, the largest activation of each layer is found on
calibration images (post-training quantisation), and weights are quantised with a scale for each
filter. A block then is three kernels, or four: 8-bit tensors go in and come out, and bias, relu and
the residual are in them. The first convolution, the pooling and the last layer stay in bfloat16.

It prints how well the logits agree with those of the bfloat16 model, and images per second of the
8-bit model beside those of eager torch and of cutwheel.fuse in bfloat16. It exits with 1 if the
logits disagree.
"""

from __future__ import annotations

import argparse
import copy
import sys

import torch
from resnet50 import Bottleneck, ResNet50, images, make, measure
from torch.nn.utils.fusion import fuse_conv_bn_eval

import cutwheel

DTYPES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
LEAST_COSINE = {"int8": 0.95, "fp8": 0.8}
"""of the logits' deviations from their mean. Random weights and images leave little besides these
deviations, so roundings show more than in a trained network: fused bfloat16 has 0.998"""

Model = torch.nn.Module


class Block(torch.nn.Module):
    """A bottleneck block without batch norms; of Conv2d or, quantised, of ScaledConv2d."""

    def __init__(self, conv1: Model, conv2: Model, conv3: Model, downsample: Model | None) -> None:
        super().__init__()
        self.conv1, self.conv2, self.conv3 = conv1, conv2, conv3
        self.downsample = downsample

    def forward(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
        """scale: of a quantised `x`; None: the one of the calibration"""
        if not isinstance(self.conv1, cutwheel.nn.ScaledConv2d):
            identity = x if self.downsample is None else self.downsample(x)
            result: torch.Tensor = self.conv3(self.conv2(self.conv1(x)), identity)
            return result
        identity, of_identity = x, self.conv1.input_scale if scale is None else scale
        if self.downsample is not None:
            identity, of_identity = (
                self.downsample(x, input_scale=scale),
                self.downsample.result_scale,
            )
        inside = self.conv2(self.conv1(x, input_scale=scale))
        quantized: torch.Tensor = self.conv3(inside, identity, of_identity)
        return quantized

    @classmethod
    def folded(cls, block: Bottleneck) -> Block:
        """With batch norms in the convolutions, and relu in the same kernels."""
        convs = [
            conv_of(getattr(block, f"conv{i}"), getattr(block, f"bn{i}"), "relu") for i in (1, 2, 3)
        ]
        down = block.downsample
        return cls(*convs, None if down is None else conv_of(down[0], down[1], None))  # type: ignore[index]

    def quantized(
        self, dtype: torch.dtype, name: str, scale: torch.Tensor, scales: dict[str, torch.Tensor]
    ) -> Block:
        """scale: of its input; scales: of results, by names of layers"""

        def layer(conv: str, input_scale: torch.Tensor) -> Model:
            return cutwheel.nn.ScaledConv2d.from_conv(
                getattr(self, conv),
                dtype=dtype,
                input_scale=input_scale,
                result_scale=scales[f"{name}.{conv}"],
            )

        return Block(
            layer("conv1", scale),
            layer("conv2", scales[f"{name}.conv1"]),
            layer("conv3", scales[f"{name}.conv2"]),
            None if self.downsample is None else layer("downsample", scale),
        )


class Net(torch.nn.Module):
    """ResNet50 of such blocks."""

    def __init__(self, conv1: Model, blocks: list[Block], fc: Model) -> None:
        super().__init__()
        self.conv1 = conv1
        self.maxpool = torch.nn.MaxPool2d(3, stride=2, padding=1)
        self.blocks = torch.nn.ModuleList(blocks)
        self.fc = fc

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.maxpool(self.conv1(x))
        last = self.blocks[-1].conv3
        is_quantized = isinstance(last, cutwheel.nn.ScaledConv2d)
        scale = None
        if is_quantized:
            pixels = x.permute(0, 2, 3, 1)
            values, scale = cutwheel.quantize(pixels.flatten(0, 2), "tensorwise", last.weight.dtype)
            x = values.view(pixels.shape).permute(0, 3, 1, 2)
        for number, block in enumerate(self.blocks):
            x = block(x, scale if number == 0 else None)
        if is_quantized:
            x = x.to(torch.bfloat16)
        mean = x.mean((2, 3))
        if is_quantized:
            mean = (mean * last.result_scale).to(torch.bfloat16)
        logits: torch.Tensor = self.fc(mean)
        return logits

    @classmethod
    def folded(cls, model: ResNet50) -> Net:
        blocks = [Block.folded(block) for block in model.modules() if isinstance(block, Bottleneck)]
        return cls(conv_of(model.conv1, model.bn1, "relu"), blocks, copy.deepcopy(model.fc))

    def quantized(self, dtype: torch.dtype, batches: list[torch.Tensor]) -> Net:
        """Calibrated with these batches of images."""
        names = [
            name for name, layer in self.named_modules() if isinstance(layer, cutwheel.nn.Conv2d)
        ]
        scales = cutwheel.nn.activation_scales(self, batches, names, dtype)
        scale, blocks = scales["conv1"], []
        for number, block in enumerate(self.blocks):
            name = f"blocks.{number}"
            blocks.append(block.quantized(dtype, name, scale, scales))
            scale = scales[f"{name}.conv3"]
        return Net(self.conv1, blocks, self.fc)


def conv_of(conv: Model, norm: Model, activation: str | None) -> Model:
    """Folded in float32, and rounded once."""
    dtype = conv.weight.dtype
    folded = fuse_conv_bn_eval(copy.deepcopy(conv).float(), copy.deepcopy(norm).float())
    layer = cutwheel.nn.Conv2d.from_conv(folded.to(dtype), activation)
    return layer.to(memory_format=torch.channels_last)


def agreement(logits: torch.Tensor, others: torch.Tensor) -> tuple[float, float]:
    """Cosine of the deviations from the mean logits, and how often the best class is the same."""
    mean = others.mean(0)
    pair = ((x - mean).flatten() for x in (logits, others))
    cosine = torch.nn.functional.cosine_similarity(*pair, dim=0)
    same = logits.argmax(1) == others.argmax(1)
    return float(cosine), float(same.double().mean())


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="ResNet-50 in 8 bits")
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="int8")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--weights", help="state dict of torchvision's resnet50; else random ones")
    parser.add_argument(
        "--images", help="a saved tensor [N, 3, 224, 224] to calibrate with; else random ones"
    )
    given = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        parser.error("the quantised model runs on a CUDA GPU, and torch sees none")
    torch.backends.cudnn.benchmark = True
    model = make()
    if given.weights:
        model.load_state_dict(torch.load(given.weights, weights_only=True))
    x = images(given.batch, 224, "cuda", torch.bfloat16)
    batches = [images(given.batch, 224, "cuda", torch.bfloat16) for _ in range(2)]
    if given.images:
        loaded = torch.load(given.images, weights_only=True).to("cuda", torch.bfloat16)
        batches = list(loaded.contiguous(memory_format=torch.channels_last).split(given.batch))
    quantized = Net.folded(model).quantized(DTYPES[given.dtype], batches)
    models = {"eager": model, "fused": cutwheel.fuse(model), given.dtype: quantized}
    with torch.no_grad():
        logits = {name: each(x).double() for name, each in models.items()}
    found = {name: agreement(y, logits["eager"]) for name, y in logits.items()}
    for name in list(models)[1:]:
        cosine, same = found[name]
        print(f"  {name:6} cosine with eager {cosine:.5f}, the same best class in {same:.1%}")
    times = measure(models, x, given.rounds)
    for name, milliseconds in times.items():
        kind = name if name in DTYPES else f"{name} bfloat16"
        rate = given.batch / milliseconds * 1e3
        print(f"  {kind:15} {milliseconds:.3f} ms, {rate:.0f} images/s")
    for name in list(models)[:2]:
        print(f"  {given.dtype} is {times[name] / times[given.dtype]:.2f} times as fast as {name}")
    least = LEAST_COSINE[given.dtype]
    if not found[given.dtype][0] >= least:
        print(f"  the logits disagree: expected a cosine of at least {least}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
