"""What the functions of all ops share on their way into the library.

The host side of a call is a few microseconds, so everything is looked up once, arguments are
positional, and is_tracing() (a constant in both worlds) selects the overload, which torch.compile
knows, or the C++ function inside it, which is cheaper.
"""

from __future__ import annotations

from typing import Any

import torch

is_tracing = torch.compiler.is_dynamo_compiling


def direct(overload: Any) -> Any:
    """The C++ function inside an overload."""
    return getattr(overload, "_op", overload)


def distinct(*tensors: Any) -> list[Any]:
    """The tensors, views in place of repeated ones: torch.compile refuses an autograd.Function
    that is given one tensor twice, as in mm(x, x)."""
    seen: list[Any] = []
    for tensor in tensors:
        repeated = tensor is not None and any(tensor is other for other in seen)
        seen.append(tensor.view_as(tensor) if repeated else tensor)
    return seen


def bump(out: torch.Tensor) -> None:
    """Tells autograd that `out` has changed: the kernel writes past torch's own bookkeeping."""
    if not is_tracing():
        torch.autograd.graph.increment_version(out)
