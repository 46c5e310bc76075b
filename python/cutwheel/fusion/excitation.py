"""Squeeze-and-excite: means over all pixels, and products with one number for each channel.

Both are products of matrices, where those are faster than torch's kernels. That is known of a call
only, so the modules decide at each one. Numbers are those of an H100 in bfloat16, in microseconds.
"""

from __future__ import annotations

import operator
from collections.abc import Collection
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, is_autocast_enabled
from torch.fx import GraphModule, Node

from .. import nn
from ..ops.gemm import addmm, baddbmm
from .aliases import Aliases
from .modules import ResidualConv2d
from .opaque import why_opaque

_HALVES = (torch.float16, torch.bfloat16)
_MOST_PIXELS = 128 * 128


class PixelMean(torch.nn.Module):
    """The mean over all pixels, [N, C, H, W] -> [N, C, 1, 1], as a product with ones.

    64 images of 144 channels and 56 x 56 pixels: 23, by torch 34; one image: 5 and 10. torch is
    faster for batches of few pixels, and for one image of few channels.
    """

    ones: Tensor

    def __init__(self, like: Tensor) -> None:
        super().__init__()
        # Made here: what is made while a CUDA graph is captured has no values before its replay.
        self.register_buffer("ones", like.new_ones(_MOST_PIXELS), persistent=False)

    def forward(self, image: Tensor) -> Tensor:
        if not self._suits(image):
            return F.adaptive_avg_pool2d(image, 1)
        n, c, h, w = image.shape
        pixels, ones = image.permute(0, 2, 3, 1).flatten(1, 2), self.ones[: h * w].unsqueeze(0)
        nothing, alpha = self.ones[:c], 1 / (h * w)
        if n == 1:
            mean = addmm(nothing, ones, pixels[0], beta=0.0, alpha=alpha)
        else:
            rows = ones.expand(n, 1, h * w)
            mean = baddbmm(nothing.expand(n, 1, c), rows, pixels, beta=0.0, alpha=alpha)
        return mean.view(n, 1, 1, c).permute(0, 3, 1, 2)

    def _suits(self, image: Tensor) -> bool:
        if not isinstance(image, Tensor) or image.dim() != 4 or is_autocast_enabled():
            return False
        n, c, h, w = image.shape
        is_fast = h * w > 49 if n > 1 else c >= 64
        return (
            (image.dtype, image.device) == (self.ones.dtype, self.ones.device)
            and is_fast
            and n > 0
            and c % 8 == 0
            and c <= _MOST_PIXELS
            and 0 < h * w <= _MOST_PIXELS
            and _is_channels_last(image)
        )


class ExcitedConv2d(ResidualConv2d):
    """A convolution of one tap of a product of an image and a gate [N, C, 1, 1].

    The gates scale the weight, of each image, in place of the image, which is larger: 64 images of
    144 channels and 56 x 56 pixels, 24 filters: 32 in place of 112.
    """

    def forward(self, a: Any, b: Any, *residual: Any) -> Any:  # type: ignore[override]
        for image, gate in ((a, b), (b, a)):
            if self._suits(image, gate, *residual):
                return self._excited(image, gate, *residual)
        if residual:
            return super().forward(a * b, *residual)
        return nn.Conv2d.forward(self, a * b)

    def _excited(self, image: Tensor, gate: Tensor, residual: Tensor | None = None) -> Tensor:
        assert self.bias is not None
        n, _, h, w = image.shape
        pixels = image.permute(0, 2, 3, 1).flatten(1, 2)  # [N, H W, C]
        weight = self.weight.flatten(1) * gate.flatten(1).unsqueeze(1)  # [N, Ko, C]
        if residual is None:
            result = baddbmm(self.bias, pixels, weight.mT)
        else:
            added = residual.permute(0, 2, 3, 1).flatten(1, 2)
            result = baddbmm(added, pixels, weight.mT).add_(self.bias)
        return result.view(n, h, w, self.out_channels).permute(0, 3, 1, 2)

    def _suits(self, image: Any, gate: Any, residual: Any = None) -> bool:
        if not isinstance(image, Tensor) or not isinstance(gate, Tensor) or image.dim() != 4:
            return False
        n, c, h, w = image.shape
        k = self.out_channels
        # Weights are written and read for each image; behind a residual, the bias takes a pass.
        is_fast = n > 1 and 2 * h * w >= 3 * k and (residual is None or 4 * k <= c)
        if not is_fast or is_autocast_enabled() or image.dtype != self.weight.dtype:
            return False
        if residual is not None and not (
            isinstance(residual, Tensor)
            and residual.shape == (n, k, h, w)
            and residual.dtype == image.dtype
            and _is_channels_last(residual)
        ):
            return False
        return (
            gate.shape == (n, self.in_channels, 1, 1)
            and c == self.in_channels
            and gate.dtype == image.dtype
            and _is_channels_last(image)
        )


def _is_channels_last(image: Tensor) -> bool:
    return image.permute(0, 2, 3, 1).is_contiguous()


# --- in the graph


def excite(module: GraphModule, fused: Collection[Node]) -> None:
    """Puts the modules into a graph.

    Args:
        fused: calls of fused modules, each of which is called once
    """
    targets = [module.get_submodule(str(node.target)) for node in fused]
    like: Any = targets[0].weight
    if like.dtype not in _HALVES or like.is_meta:
        return
    graph, modules = module.graph, dict(module.named_modules(remove_duplicate=False))
    aliases = Aliases(graph, modules)
    for node in list(graph.nodes):
        if _is_pixel_mean(node, modules):
            with graph.inserting_before(node):
                made = graph.call_module(
                    _added(module, "pixel_mean", PixelMean(like)), node.args[:1]
                )
            node.replace_all_uses_with(made)
            graph.erase_node(node)
        elif node in fused and (product := _gated(node, modules, aliases)) is not None:
            conv: Any = modules[str(node.target)]
            conv.__class__ = ExcitedConv2d  # which has the same attributes
            node.args = (*product.args, *node.args[1:])
            graph.erase_node(product)


def _added(module: GraphModule, name: str, made: torch.nn.Module) -> str:
    number = 0
    while hasattr(module, f"{name}{number}"):
        number += 1
    module.add_submodule(f"{name}{number}", made.eval())
    return f"{name}{number}"


def _is_pixel_mean(node: Node, modules: dict[str, torch.nn.Module]) -> bool:
    if node.op == "call_module":
        module: Any = modules.get(str(node.target))
        is_pool = type(module) is torch.nn.AdaptiveAvgPool2d and not why_opaque(module)
        size = module.output_size if is_pool else None
        given = node.args[1:] or node.kwargs
    else:
        is_pool = node.op == "call_function" and node.target is F.adaptive_avg_pool2d
        size = node.args[1] if is_pool and len(node.args) == 2 else None
        given = node.kwargs
    is_one = size == 1 or size in ((1, 1), [1, 1])
    return is_pool and is_one and not given and isinstance(node.args[0], Node)


def _gated(node: Node, modules: dict[str, torch.nn.Module], aliases: Aliases) -> Node | None:
    """The product in front of a convolution of one tap, if both can be one module."""
    conv: Any = modules.get(str(node.target)) if node.op == "call_module" else None
    if type(conv) not in (nn.Conv2d, ResidualConv2d) or not node.args or node.kwargs:
        return None
    is_point = (conv.kernel_size, conv.stride, conv.groups) == ((1, 1), (1, 1), 1)
    if not is_point or conv.padding != (0, 0) or conv.activation is not None or conv.bias is None:
        return None
    product = node.args[0]
    if (
        not isinstance(product, Node)
        or product.op != "call_function"
        or product.target not in (operator.mul, torch.mul)
        or [*product.users] != [node]
        or product.kwargs
        or len(product.args) != 2
        or any(not isinstance(factor, Node) or factor is node for factor in product.args)
        or product.args[0] is product.args[1]
    ):
        return None
    if product in node.args[1:] or aliases.is_written_between(
        product, node, product.all_input_nodes
    ):
        return None
    return product
