"""Gradients behind torch's own autograd node (_common/node.py) that are differentiated or traced.

There the node calls this op in place of its kernel: what it is made of nests, and has meta
functions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._common.elementwise import Gradient
from .conv import _autograd as images
from .conv import _grouped as groups_of_images
from .linear import _autograd as layers

Gradients = tuple[Gradient, Gradient, Gradient]


def _gradients(
    grad: Tensor,
    input: Tensor,
    weight: Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
    wanted: list[bool],
) -> Gradients:
    if not stride:
        return layers.gradients(grad, input, weight, transposed, wanted)
    (sh, sw), (top, left), (dh, dw) = stride, padding, dilation
    where = sh, sw, top, top, left, left, dh, dw
    if groups > 1:
        return groups_of_images.gradients(grad, input, weight, where, groups, wanted)
    return images.gradients(grad, input, weight, where, wanted)


_library: Any = torch.library.Library("cutwheel", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define(
    "_node_gradients(Tensor grad_output, Tensor input, Tensor weight, int[] stride, int[] padding, "
    "int[] dilation, bool transposed, int[] output_padding, int groups, bool[3] output_mask) "
    "-> (Tensor, Tensor, Tensor)"
)
_library.impl("_node_gradients", _gradients, "CompositeImplicitAutograd")
