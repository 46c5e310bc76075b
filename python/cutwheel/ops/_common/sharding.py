"""The way from the functions to their rules for DTensor operands, which are loaded with DTensor.

A strategy (cutwheel.ops._sharding) chooses how an op's operands are laid out, and no more. Calls
that need more than that ask here: `calls` is the module that serves them once
torch.distributed.tensor has been imported, and None before, when there are no such operands.
"""

from __future__ import annotations

from typing import Any

calls: Any = None


def reraise_if_sharded(*tensors: Any) -> None:
    """Raises the exception that is being handled if a tensor is a DTensor: a device that goes
    another way than the others would wait for them for ever."""
    if calls is not None and calls.is_sharded(*tensors):
        raise
