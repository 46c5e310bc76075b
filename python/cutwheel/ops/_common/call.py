"""The way from a public function into the library, for all ops.

The host side of a call is a few microseconds, so everything is looked up once, arguments are
positional, and is_tracing() (a constant in both worlds) selects the overload, which torch.compile
knows, or the C++ function inside it, which is cheaper.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ... import _library  # noqa: F401  (registers torch.ops.cutwheel)

Op = Callable[..., Tensor]
is_tracing = torch.compiler.is_dynamo_compiling


def overloads(op: str) -> tuple[Op, Op]:
    """The overload of an op of the library, for torch.compile, and the C++ function inside it."""
    overload: Op = getattr(torch.ops.cutwheel, op).default
    return overload, getattr(overload, "_op", overload)


def fast_apply(function: type[torch.autograd.Function], tensors: int) -> Any:
    """function.apply for calls that nothing traces, at half the cost.

    Up to torch 2.13 apply is Python around torch's C++, which looks at every argument; from 2.14 on
    it is that C++, and returned as it is. Traced calls go to function.apply, which torch.compile
    knows.

    Args:
        function: without setup_context
        tensors: how many of the arguments, the first ones, are tensors, or None from the third on
    """
    whole: Any = function.apply
    in_transform = getattr(torch._C, "_are_functorch_transforms_active", None)
    # Unwraps a tensor that has left its transform (torch.func.grad and the like).
    unwrap = getattr(getattr(torch._C, "_functorch", None), "unwrap_if_dead", None)
    is_python = isinstance(vars(torch.autograd.Function).get("apply"), classmethod)
    if not is_python or in_transform is None or unwrap is None:
        return whole
    quick: Any = super(torch.autograd.Function, function).apply  # type: ignore[misc]

    def apply_to_two(a: Any, b: Any, *rest: Any) -> Any:
        if is_tracing() or in_transform():
            return whole(a, b, *rest)
        try:
            first, second = unwrap(a), unwrap(b)
        except TypeError:  # no tensor: the op says so
            return whole(a, b, *rest)
        return quick(first, second, *rest)

    def apply_to_four(a: Any, b: Any, c: Any, d: Any, *rest: Any) -> Any:
        if is_tracing() or in_transform():
            return whole(a, b, c, d, *rest)
        try:
            first, second = unwrap(a), unwrap(b)
            third, fourth = c if c is None else unwrap(c), d if d is None else unwrap(d)
        except TypeError:
            return whole(a, b, c, d, *rest)
        return quick(first, second, third, fourth, *rest)

    def apply(*given: Any) -> Any:
        if is_tracing() or in_transform():
            return whole(*given)
        try:
            first = [x if x is None else unwrap(x) for x in given[:tensors]]
        except TypeError:
            return whole(*given)
        return quick(*first, *given[tensors:])

    return {2: apply_to_two, 4: apply_to_four}.get(tensors, apply)


def distinct(*tensors: Any) -> list[Any]:
    """The tensors, views in place of repeated ones: torch.compile refuses an autograd.Function
    that is given one tensor twice, as in mm(x, x)."""
    seen: list[Any] = []
    for tensor in tensors:
        repeated = tensor is not None and any(tensor is other for other in seen)
        seen.append(tensor.view_as(tensor) if repeated else tensor)
    return seen


def increment_version(out: Tensor) -> None:
    """Tells autograd that `out` has changed: the kernel writes past torch's own bookkeeping."""
    if not is_tracing():
        torch.autograd.graph.increment_version(out)
