"""Conditions on sizes, also where a trace does not know them.

torch.export and torch.compile have sizes that depend on data (of x.nonzero(), or mark_unbacked): an
`if` on one of them ends the trace. A condition that a trace cannot decide is asserted when it runs,
or left to the library, which checks every argument of every call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .call import is_tracing

# The one of torch's checks that torch.compile knows since 2.10.
_assert: Callable[[Any], None] = torch._check
_max: Callable[[Any, Any], Any] = torch.sym_max


def known(condition: Any) -> bool:
    """Whether the condition holds for certain."""
    if not is_tracing() and isinstance(condition, bool):
        return condition
    # Imports sympy, which nothing else needs that is not traced.
    from torch.fx.experimental.symbolic_shapes import guard_or_false

    return guard_or_false(condition)


def differ(size: Any, wanted: Any) -> bool:
    """Whether two sizes differ for certain; if that is not known, that they do not is asserted."""
    unequal = size != wanted
    if not is_tracing() and isinstance(unequal, bool):
        return unequal
    if known(unequal):
        return True
    _assert(size == wanted)
    return False


def shapes_differ(shape: Sequence[Any], wanted: Sequence[Any]) -> bool:
    """As differ, of two shapes."""
    if not is_tracing():
        try:
            return tuple(shape) != tuple(wanted)
        except RuntimeError:  # sizes that a trace does not know
            pass
    if len(shape) != len(wanted):
        return True
    for size, expected in zip(shape, wanted, strict=True):  # noqa: SIM110  (traced as it stands)
        if differ(size, expected):
            return True
    return False


def is_contiguous(tensor: Tensor, tracing: bool) -> bool:
    """For certain; `tracing` is is_tracing(), which callers know."""
    if not tracing:
        try:
            return tensor.is_contiguous()
        except RuntimeError:  # sizes that a trace does not know
            pass
    return known(tensor.stride(-1) == 1) and is_one_dimension(tensor.shape, tensor.stride())


def is_one_dimension(shape: Sequence[Any], strides: Sequence[Any]) -> bool:
    """Whether one stride describes all of the dimensions, for certain."""
    inner: tuple[Any, Any] | None = None
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if known(size == 1):
            continue
        if inner is not None:
            inside, step = inner
            # Strides that torch makes of sizes that it does not know are those of no 0.
            if not known(stride == step * inside) and (
                isinstance(inside, int) or not known(stride == step * _max(inside, 1))
            ):
                return False
        inner = size, stride
    return True
