"""Activations by name, and torch's functions for them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ...errors import ArgumentError
from . import sharding

LEAKY_RELU_SLOPE = 0.01
"""of torch.nn.functional.leaky_relu"""


def _leaky_relu(z: Tensor, slope: float = LEAKY_RELU_SLOPE) -> Tensor:
    # torch 2.10 has no rule for its own with a DTensor.
    if sharding.calls is not None and sharding.calls.is_sharded(z):
        return torch.where(z > 0, z, slope * z)
    return torch.nn.functional.leaky_relu(z, slope)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda z: torch.nn.functional.gelu(z, approximate="tanh"),
    "silu": torch.nn.functional.silu,
}
"""torch's functions for the activations whose derivative is a kernel of the wheel."""

COMPOSED: dict[str, Callable[..., Tensor]] = {
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "hardswish": torch.nn.functional.hardswish,
    "softplus": torch.nn.functional.softplus,
    "leaky_relu": _leaky_relu,
}
"""Fused only where no gradient and no residual is asked for."""

ALL_ACTIVATIONS = {**ACTIVATIONS, **COMPOSED}


def check_activation(activation: object, known: tuple[str, ...], op: str) -> None:
    """Raises ValueError for the name of an activation that `op` does not have."""
    if activation not in known:
        names = ", ".join(known)
        raise ArgumentError(f"{op}: activation is {activation!r}; expected one of {names}")
