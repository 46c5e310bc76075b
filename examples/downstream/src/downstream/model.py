"""An image classifier of three products, each one call of cutwheel."""

from __future__ import annotations

import torch

import cutwheel

CHANNELS, FILTERS, HIDDEN, CLASSES = 16, 32, 64, 16
DTYPE = torch.bfloat16


class Classifier(torch.nn.Module):
    """For inference: convolution, mean over the pixels, hidden layer, int8 head.

    int8, because every GPU that cutwheel supports has it; fp8 needs compute capability 8.9.
    """

    def __init__(self, device: torch.device | str) -> None:
        super().__init__()
        shapes = {
            "filters": (FILTERS, CHANNELS, 3, 3),
            "hidden_weight": (HIDDEN, FILTERS),
            "hidden_bias": (HIDDEN,),
        }
        for name, shape in shapes.items():
            self.register_buffer(name, torch.empty(shape, device=device, dtype=DTYPE))
        head = torch.empty(CLASSES, HIDDEN, device=device, dtype=torch.int8)
        self.register_buffer("head", head)
        self.register_buffer("head_scale", torch.empty(CLASSES, 1, device=device))

    @torch.no_grad()
    def randomize(self) -> Classifier:
        """Random weights; the head is quantised by cutwheel, which needs a GPU."""
        for weight in (self.filters, self.hidden_weight):
            weight.normal_(std=weight[0].numel() ** -0.5)
        self.hidden_bias.normal_()
        head = torch.randn(CLASSES, HIDDEN, device=self.head.device, dtype=DTYPE)
        self.head, self.head_scale = cutwheel.quantize(head, "rowwise", torch.int8)
        return self

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """[N, 16, H, W] -> [N, 16]"""
        x = cutwheel.conv2d(images, self.filters, padding=1, activation="relu")
        x = x.mean((2, 3))
        x = cutwheel.linear(x, self.hidden_weight, self.hidden_bias, activation="gelu")
        values, scales = cutwheel.quantize(x, "rowwise", torch.int8)
        return cutwheel.scaled_mm(values, self.head.t(), scales, scale_b=self.head_scale.t())
