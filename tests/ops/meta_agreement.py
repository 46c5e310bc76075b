"""Whether the ops' meta functions say what their kernels return: shape, dtype and strides."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether it is neither fake, wrapped by a subclass, nor on meta."""
    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and not tensor.is_meta


def on_meta(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def described(result: Any) -> list[tuple[tuple[int, ...], torch.dtype, tuple[int, ...]]]:
    """Shape, dtype and strides of each tensor."""
    tensors = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    return [(tuple(t.shape), t.dtype, t.stride()) for t in tensors]


class MetaAgreement(TorchDispatchMode):
    """Compares every result of an op of `namespace` with that of the same call on meta tensors."""

    def __init__(self, namespace: str = "cutwheel") -> None:
        super().__init__()
        self.namespace = namespace
        self.compared = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        if function.namespace == self.namespace:
            self._compare(function, args, kwargs, described(result))
        return result

    def _compare(self, function: Any, args: Any, kwargs: Any, real: Any) -> None:
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if not real or not all(map(is_plain, given)):
            return
        args, kwargs = tree_map_only(torch.Tensor, on_meta, (args, kwargs))
        inferred = described(function(*args, **kwargs))
        self.compared += 1
        assert inferred == real, (
            f"{function}: the meta function says {inferred}, the kernel returns {real} "
            "(shape, dtype, strides of each result)"
        )
