"""Sizes and strides of fake tensors, asked without guards: a graph of any size stays one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

VECTOR_BYTES = 16
"""what a kernel reads at once: rows begin at multiples of it"""


def static(size: Any) -> int | None:
    """A size as a number; None: it is not the same in all calls of the graph."""
    if isinstance(size, int):
        return size
    expression = getattr(getattr(size, "node", None), "expr", None)
    return int(expression) if expression is not None and expression.is_Integer else None


def bounds(size: Any) -> tuple[int, int | None]:
    """The least and the largest value of a size that the graph may see; None: no limit."""
    number = static(size)
    if number is not None:
        return number, number
    try:
        interval = size.node.shape_env.bound_sympy(size.node.expr)
        lower = int(interval.lower) if interval.lower.is_finite else 0
        upper = int(interval.upper) if interval.upper.is_finite else None
    except (AttributeError, TypeError, ValueError, OverflowError):
        return 0, None
    # Without a limit of its own, a size ends where int64 does.
    return max(lower, 0), None if upper is None or upper >= 2**31 else upper


def is_same(one: Any, other: Any) -> bool:
    """Whether two sizes are known to agree."""
    if isinstance(one, int) and isinstance(other, int):
        return one == other
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return bool(statically_known_true(one == other))


def same_shape(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are known to have one shape."""
    return one.dim() == other.dim() and all(map(is_same, one.shape, other.shape))


def is_multiple(size: Any, of: int) -> bool:
    """Whether a size is known to be a multiple."""
    if isinstance(size, int):
        return size % of == 0
    return is_same(size % of, 0)


def letter(matrix: Tensor) -> str:
    """How the last two dimensions lie in memory: "t" contiguous along the last, "n" along the one
    before, "?" neither, or not in rows that begin at multiples of 16 bytes."""
    step = VECTOR_BYTES // matrix.dtype.itemsize
    rows, columns = matrix.stride()[-2:]
    others = matrix.stride()[:-2]
    if not all(is_multiple(each, step) for each in (*others, matrix.storage_offset())):
        return "?"
    if is_same(columns, 1) and is_multiple(rows, step):
        return "t"
    if is_same(rows, 1) and is_multiple(columns, step):
        return "n"
    return "?"


def is_contiguous(tensor: Tensor) -> bool:
    """Whether a tensor is known to lie in the order of its dimensions."""
    step: Any = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if not is_same(size, 1) and not is_same(stride, step):
            return False
        step = step * size
    return True


def is_channels_last(tensor: Tensor) -> bool:
    """Whether an image [N, C, H, W] is known to lie as [N, H, W, C]; volumes likewise."""
    order = 0, *range(2, tensor.dim()), 1
    return tensor.dim() in (4, 5) and is_contiguous(tensor.permute(order))


def value_of(node: Any) -> Tensor | None:
    """The fake tensor of a node."""
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return value if isinstance(value, Tensor) else None
