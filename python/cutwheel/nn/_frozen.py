"""Buffers that half() and its kin leave as they are."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def keep_dtypes(
    module: torch.nn.Module, fn: Callable[[Tensor], Tensor]
) -> Callable[[Tensor], Tensor]:
    """`fn` of an _apply() that moves the module's buffers, and does not convert them.

    half() and its kin convert what is_floating_point() says is one, fp8 and scales included.
    """
    frozen = [buffer for buffer in module._buffers.values() if buffer is not None]

    def keep_dtype(tensor: Tensor) -> Tensor:
        moved = fn(tensor)
        if moved.dtype != tensor.dtype and any(tensor is buffer for buffer in frozen):
            return tensor.to(moved.device)
        return moved

    return keep_dtype
