"""Every convolution of networks that people run, at their sizes, in three directions: kernels and
tiles that small problems never get."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
from conv_cases import Conv
from conv_layouts import Sizes
from conv_reference import DIRECTIONS, Geometry
from gemm_cases import BRAIN
from reference import poison

pytestmark = pytest.mark.gpu

IMAGE = {"inception_v3": 299}  # else 224
NETWORKS = (
    "resnet50",
    "convnext_tiny",
    "efficientnet_b0",
    "regnet_y_8gf",
    "mobilenet_v3_large",
    "shufflenet_v2_x1_0",
    "densenet121",
    "inception_v3",
    "vit_b_16",
)
IMAGES = 64


def layers(network: str) -> list[tuple[Sizes, Sizes, Geometry]]:
    """(input size, filter size, geometry), each once."""
    models = pytest.importorskip("torchvision.models", reason="the networks are torchvision's")
    found: dict[tuple[Sizes, Sizes, Geometry], None] = {}

    def note(layer: torch.nn.Conv2d, inputs: tuple[torch.Tensor]) -> None:
        filter_size = tuple(layer.weight.shape)
        rest: Any = layer.stride, layer.padding, layer.dilation, layer.groups
        geometry = Geometry.of(filter_size[2:], *rest)
        found[(IMAGES, *inputs[0].shape[1:]), filter_size, geometry] = None

    model = getattr(models, network)().to("meta").eval()
    for module in model.modules():
        if type(module) is torch.nn.Conv2d:
            module.register_forward_pre_hook(note)
    side = IMAGE.get(network, 224)
    model(torch.empty(1, 3, side, side, device="meta"))
    return [*found]


def channels_last(size: Sizes, device: str) -> torch.Tensor:
    return torch.zeros(size, dtype=BRAIN, device=device).to(memory_format=torch.channels_last)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("network", NETWORKS)
def test_layers(cutwheel: ModuleType, device: str, network: str, direction: str) -> None:
    for input_size, filter_size, g in layers(network):
        conv = Conv.random(direction, input_size, filter_size, g, BRAIN, device)
        # A gradient depends on one of the operands; the other gives its size.
        x = channels_last(input_size, device) if direction == "dgrad" else conv.positional[-1]
        weight = channels_last(filter_size, device) if direction == "wgrad" else conv.b
        if direction == "fprop":
            x = conv.positional[0]
        top, _, left, _ = g.padding
        rest = {"stride": g.stride, "padding": (top, left), "dilation": g.dilation}

        def run(
            conv: Conv = conv, x: torch.Tensor = x, weight: torch.Tensor = weight, rest: Any = rest
        ) -> torch.Tensor:
            of = {"dgrad": x, "wgrad": weight}.get(conv.direction)
            if of is not None:
                of.requires_grad_()
            y: torch.Tensor = cutwheel.conv2d(x, weight, groups=conv.g.groups, **rest)
            if of is None:
                return y
            poison(conv.output_size, conv.a.dtype, conv.a.device)
            return torch.autograd.grad(y, of, conv.positional[0])[0]

        conv.check(run)
