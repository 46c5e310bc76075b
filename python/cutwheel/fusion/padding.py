"""Zeros that a graph puts around the input of a convolution.

The graph makes a copy for them; kernels read them as they read padding.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Node

from ..ops.conv._geometry import geometry_of, pairs, parts
from .opaque import why_opaque

_MODULES = (
    *(torch.nn.ZeroPad1d, torch.nn.ZeroPad2d, torch.nn.ZeroPad3d),
    *(torch.nn.ConstantPad1d, torch.nn.ConstantPad2d, torch.nn.ConstantPad3d),
)


def padding_of(
    node: Node, modules: dict[str, torch.nn.Module], dims: int
) -> tuple[int, ...] | None:
    """Zeros in front of and behind each of the last `dims` dimensions, the first of these first.

    None: the node does not put zeros there, or somewhere else, too.
    """
    sides, value = _sides(node, modules)
    if not isinstance(sides, (tuple, list)) or len(sides) % 2 or value not in (None, 0):
        return None
    if not all(type(side) is int and side >= 0 for side in sides) or any(sides[2 * dims :]):
        return None
    both = [*zip(sides[::2], sides[1::2], strict=True)][:dims]
    both += [(0, 0)] * (dims - len(both))
    return tuple(side for pair in reversed(both) for side in pair)


def _sides(node: Node, modules: dict[str, torch.nn.Module]) -> tuple[Any, Any]:
    """As F.pad takes them, the last dimension first, and what is put there."""
    if node.op == "call_module":
        module: Any = modules[str(node.target)]
        is_known = type(module) in _MODULES and len(node.args) == 1 and not node.kwargs
        if not is_known or why_opaque(module):
            return None, None
        return module.padding, getattr(module, "value", 0)
    if node.target is not F.pad:
        return None, None
    given = dict(zip(("input", "pad", "mode", "value"), node.args, strict=False)) | node.kwargs
    if given.get("mode", "constant") != "constant" or not isinstance(given["input"], Node):
        return None, None
    return given.get("pad"), given.get("value")


def padded_more(conv: Any, zeros: tuple[int, ...]) -> Any:
    """The padding of a convolution that puts so many more zeros around its input."""
    dims = len(conv.kernel_size)
    geometry = geometry_of("fuse", conv.weight, conv.stride, conv.padding, conv.dilation, dims)
    sides = parts(geometry)[1]
    return pairs(tuple(one + other for one, other in zip(sides, zeros, strict=True)))
