"""What the convolution benchmarks compare: torch's convolutions, and the library measured."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch.nn import functional

from .conv_jobs import ConvShape

Tensor = torch.Tensor
Operands = tuple[Tensor, ...]

CUDNN_FUSED = "cudnn_convolution_add_relu"


def torch_fprop(x: Tensor, w: Tensor, shape: ConvShape) -> Tensor:
    return functional.conv2d(x, w, None, shape.stride, shape.padding, shape.dilation)


def torch_dgrad(dy: Tensor, w: Tensor, shape: ConvShape, x: Tensor) -> Tensor:
    """x: any tensor of the input's size and strides; its values are not read"""
    return _backward(dy, x, w, shape, [True, False, False])[0]


def torch_wgrad(dy: Tensor, x: Tensor, shape: ConvShape, w: Tensor) -> Tensor:
    """w: any tensor of the filter's size and strides; its values are not read"""
    return _backward(dy, x, w, shape, [False, True, False])[1]


def _backward(dy: Tensor, x: Tensor, w: Tensor, shape: ConvShape, mask: list[bool]) -> Operands:
    """What autograd calls, for one of the gradients."""
    stride, padding, dilation = _pairs(shape)
    found: Operands = torch.ops.aten.convolution_backward(
        dy, x, w, None, stride, padding, dilation, False, [0, 0], 1, mask
    )
    return found


def _pairs(shape: ConvShape) -> tuple[list[int], list[int], list[int]]:
    return [shape.stride] * 2, [shape.padding] * 2, [shape.dilation] * 2


def eager_fused(x: Tensor, w: Tensor, b: Tensor, r: Tensor, shape: ConvShape) -> Tensor:
    z = functional.conv2d(x, w, b, shape.stride, shape.padding, shape.dilation)
    return functional.relu(z + r)


def cudnn_fused(x: Tensor, w: Tensor, b: Tensor, r: Tensor, shape: ConvShape) -> Tensor:
    """relu(conv + b + r) in one call of cuDNN, where it has that"""
    result: Tensor = torch.cudnn_convolution_add_relu(x, w, r, 1.0, b, *_pairs(shape), 1)
    return result


@contextmanager
def tuned_cudnn() -> Iterator[None]:
    """cuDNN measures its algorithms for each problem and takes the fastest."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


@dataclass(frozen=True)
class Library:
    """What is measured against torch."""

    name: str
    fprop: Callable[[Tensor, Tensor, ConvShape], Tensor]
    dgrad: Callable[[Tensor, Tensor, ConvShape, Tensor], Tensor]
    wgrad: Callable[[Tensor, Tensor, ConvShape, Tensor], Tensor]
    fused: Callable[[Tensor, Tensor, Tensor, Tensor, ConvShape], Tensor]
    fuse: Callable[[torch.nn.Module], torch.nn.Module]
    kernel: Callable[[str, ConvShape, Operands], str | None]  # (group, .., its operands)


def library(name: str) -> Library:
    """cutwheel, or torch again: the noise."""
    if name == "torch":
        return Library(
            "torch (again)",
            torch_fprop,
            torch_dgrad,
            torch_wgrad,
            eager_fused,
            copy.deepcopy,
            lambda group, shape, operands: None,
        )
    import cutwheel  # a torch-only run needs no cutwheel

    ops = torch.ops.cutwheel

    def fprop(x: Tensor, w: Tensor, shape: ConvShape) -> Tensor:
        result: Tensor = cutwheel.conv2d(x, w, None, shape.stride, shape.padding, shape.dilation)
        return result

    # What backward calls: the gradients have no function of their own.
    def dgrad(dy: Tensor, w: Tensor, shape: ConvShape, _: Tensor) -> Tensor:
        result: Tensor = ops.conv2d_input_grad(dy, w, *shape.input[2:], *geometry(shape))
        return result

    def wgrad(dy: Tensor, x: Tensor, shape: ConvShape, _: Tensor) -> Tensor:
        result: Tensor = ops.conv2d_weight_grad(dy, x, *shape.filter[2:], *geometry(shape))
        return result

    def fused(x: Tensor, w: Tensor, b: Tensor, r: Tensor, shape: ConvShape) -> Tensor:
        where = shape.stride, shape.padding, shape.dilation
        result: Tensor = cutwheel.conv2d(x, w, b, *where, activation="relu", residual=r)
        return result

    def kernel(group: str, shape: ConvShape, operands: Operands) -> str | None:
        numbers = {"fprop": 0, "fused": 1, "dgrad": 3, "wgrad": 4}  # of the library's explanations
        sizes = {"dgrad": shape.input, "wgrad": shape.filter}
        given = [*operands, None] if group == "fprop" else [*operands]
        epilogue = "bias_residual_relu" if group == "fused" else ""
        size = sizes.get(group, ())[2:]
        text = ops._explain_conv(
            numbers[group], given, *geometry(shape), None, False, epilogue, *size
        )
        plans = json.loads(text)["plans"]
        return str(plans[0]["row"]) if plans else None

    return Library("cutwheel", fprop, dgrad, wgrad, fused, cutwheel.fuse, kernel)


def geometry(shape: ConvShape) -> list[int]:
    """Strides; padding at the top, bottom, left and right; dilations."""
    stride, padding, dilation = _pairs(shape)
    return [*stride, *padding, *padding, *dilation]
