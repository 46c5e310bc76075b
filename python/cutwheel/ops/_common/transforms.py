"""Derivatives and batches of a call from outside of reverse-mode autograd.

torch.func's transforms (grad, vjp, jvp, jacrev, jacfwd, linearize, vmap) hand the ops tensors that
wrap others, and forward-mode AD hands them tensors that carry a tangent. torch calls the kernel of
an operator that has no rule for them on what lies below, and takes its result for a constant: a
derivative of zero, without a word. So the functions ask here first. Most of them are then computed
by torch's own functions (_by_torch), which have every rule; the others refuse.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .call import is_tracing

_functorch: Any = torch._C._functorch
_in_transform: Callable[[], bool] = getattr(
    torch._C,
    "_are_functorch_transforms_active",
    lambda: _functorch.peek_interpreter_stack() is not None,
)


def is_transformed() -> bool:
    """Whether a transform of torch.func is active, or forward-mode AD (jvp is both)."""
    if is_tracing():
        # Where nothing is active, reading the level makes torch.compile guard on it: what it traced
        # outside is traced again inside. A transform entered in the traced code changes the level,
        # on which there can be no guard then.
        return _is_transformed_here() or forward_ad._current_level >= 0
    return _in_transform() or forward_ad._current_level >= 0


def _is_transformed_here() -> bool:
    return _in_transform() or forward_ad._current_level >= 0


# torch.compile asks it where it traces the call.
_is_transformed_here._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _is_differentiated(tensor: Tensor) -> bool:
    """Whether a transform or forward-mode AD may ask for a derivative with respect to the tensor;
    called only where is_transformed() says so."""
    is_forward = forward_ad._current_level >= 0
    if not _in_transform():
        return _has_tangent(tensor)
    if not is_forward and not torch.is_grad_enabled():
        return False
    # A tensor that vmap or a transform has wrapped does not tell what is asked of the one below.
    innermost = _functorch.peek_interpreter_stack().level()
    while not tensor.requires_grad:
        if not _functorch.is_functorch_wrapped_tensor(tensor):
            with _outside_of_transforms():
                return is_forward and _has_tangent(tensor)
        is_tracked = _functorch.is_gradtrackingtensor(tensor)
        if is_tracked and _functorch.maybe_get_level(tensor) == innermost:
            if is_forward and _has_tangent(tensor):
                return True
        elif is_tracked or is_forward:
            return True  # only inside of its own transform a tensor tells whether it has a tangent
        tensor = _functorch.get_unwrapped(tensor)
    return True


def _has_tangent(tensor: Tensor) -> bool:
    return forward_ad.unpack_dual(tensor).tangent is not None  # type: ignore[no-untyped-call]


def _outside_of_transforms() -> AbstractContextManager[Any]:
    from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

    return temporarily_clear_interpreter_stack()


REVERSE = "use reverse mode (backward() or torch.autograd.grad) outside of torch.func's transforms"
NO_DERIVATIVE = "it has no derivative: call it outside of them, or give it detached tensors"


def refuse_grad(
    op: str, instead: str, names: tuple[str, ...], tensors: tuple[Any, ...]
) -> NoReturn:
    """Raises RuntimeError for the first tensor that requires grad, as `op` has no derivative."""
    found = zip(names, tensors, strict=True)
    name = next(name for name, tensor in found if tensor is not None and tensor.requires_grad)
    raise RuntimeError(
        f"{op}: {name} requires grad, and the derivative of {op} is not implemented: call it under "
        f"torch.no_grad(), or use {instead}"
    )


def refuse(op: str, instead: str, **tensors: Tensor | None) -> None:
    """Raises NotImplementedError if a tensor is being differentiated: of functions that torch
    cannot stand in for. Called only where is_transformed() says so.

    Args:
        op: name of the function that was called
        instead: what to do
        tensors: its floating-point tensors by name
    """
    for name, tensor in tensors.items():
        # Tensors that torch.compile traces cannot be unwrapped.
        if isinstance(tensor, Tensor) and (is_tracing() or _is_differentiated(tensor)):
            raise NotImplementedError(
                f"{op}: {name} is differentiated by torch.func or by forward-mode AD (grad, jvp, "
                f"jacfwd, torch.autograd.forward_ad), for which {op} has no rule: {instead}"
            )
