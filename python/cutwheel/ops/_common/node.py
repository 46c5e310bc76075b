"""Products and convolutions on torch's own autograd node (cuda/torch/autograd/node.h).

It saves the host what a torch.autograd.Function costs: Python around the forward pass, and Python
in the backward pass. It serves plain tensors of 16 bits outside of torch.compile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .call import Op, is_tracing
from .transforms import is_transformed

_PLAIN = Tensor, torch.nn.Parameter
_forward: Op = torch.ops.aten.convolution_overrideable.default._op
_count_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
_is_taken = False


def serves(input: Tensor, weight: Tensor) -> bool:
    """Whether a call whose gradients are wanted, of operands of 16 bits, can have the node.

    Subclasses and dispatch modes know cutwheel's ops and not what torch's node calls. Without a
    gradient of its own, the weight would keep the input until backward: for nothing.
    """
    return (
        weight.requires_grad
        and weight.is_cuda
        and type(weight) in _PLAIN
        and type(input) in _PLAIN
        and not (is_tracing() or _count_modes() or is_transformed())
        and (_is_taken or _take())
    )


def _take() -> bool:
    global _is_taken
    _is_taken = bool(torch.ops.cutwheel._take_node())
    return _is_taken


def linear(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """[..., K], [N, K], [N] -> [..., N]"""
    return _forward(input, weight, bias, (), (), (), False, (), 1)


def product(a: Tensor, b: Tensor, row: Tensor | None = None) -> Tensor:
    """[M, K], [K, N], [N] -> [M, N]"""
    return _forward(a, b, row, (), (), (), True, (), 1)


def convolution(
    input: Tensor, weight: Tensor, bias: Tensor | None, geometry: Any, groups: int
) -> Tensor:
    """[N, C, H, W], [Ko, C / groups, R, S], [Ko] -> [N, Ko, P, Q], padded alike at both ends"""
    stride, padding, dilation = geometry[:2], geometry[2:6:2], geometry[6:]
    return _forward(input, weight, bias, stride, padding, dilation, False, (0, 0), groups)


def is_even(geometry: Any) -> bool:
    """Whether an image is padded alike at both ends."""
    return len(geometry) == 8 and geometry[2] == geometry[3] and geometry[4] == geometry[5]
