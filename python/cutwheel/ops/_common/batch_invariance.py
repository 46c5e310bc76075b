"""The mode in which a row of a result is the same bits, whatever rows are computed with it."""

from __future__ import annotations

import os
import threading
from contextlib import ContextDecorator
from typing import Any

import torch

from ... import _library  # noqa: F401  (registers torch.ops.cutwheel)

VARIABLE = "CUTWHEEL_BATCH_INVARIANT"
_VALUES = {"": False, "0": False, "1": True}

_ops = torch.ops.cutwheel
_lock = threading.Lock()
_is_set = False
_blocks = 0
"""that are open, in all threads"""

enabled = False
"""Whether the mode is on. torch.compile guards on it where a trace reads it."""


def _apply() -> None:
    """Tells the library; called under the lock."""
    global enabled
    enabled = _is_set or _blocks > 0
    _ops._set_batch_invariant(enabled)


def set_batch_invariant(enabled: bool) -> None:
    """Switches the mode of batch_invariant() on or off, from the next call on.

    It is one setting of the process: of all threads, those in which torch runs backward passes
    among them. While a `with batch_invariant()` is open anywhere, the mode is on whatever is set.

    Args:
        enabled: whether a row is to be the same bits in every batch

    Raises:
        TypeError: not a bool
    """
    global _is_set
    if not isinstance(enabled, bool):
        kind = type(enabled).__name__
        raise TypeError(f"set_batch_invariant: enabled is of type {kind}; expected a bool")
    with _lock:
        _is_set = enabled
        _apply()


def is_batch_invariant() -> bool:
    """Whether the mode of batch_invariant() is on."""
    return enabled


class batch_invariant(ContextDecorator):  # noqa: N801  (used as a function)
    """``with cutwheel.batch_invariant():`` a row of a result is the same bits in every batch.

    For a given weight, dtypes, layouts and epilogue, the bits of row i depend on the row alone: not
    on the number of rows, on the row's place among them, on the others, on alignment or pitch. It
    holds for results and for gradients with respect to inputs; those of weights are sums over the
    batch. Kernels are chosen among those that add up in one order (`cutwheel.kernels()`:
    summation), whatever their tile.

    The library reads the mode when an op runs, for all threads of the process: it is on as long as
    such a block is open in any of them. So compiled code follows it without being traced again, and
    a backward pass that runs in the block is covered. A CUDA graph replays the kernels that it
    captured. Enter the block outside of code that torch.compile traces.

    A call that torch would compute, whose kernels depend on the batch, raises NotImplementedError.
    docs/determinism.md has what is promised of each op.
    """

    def __enter__(self) -> batch_invariant:
        global _blocks
        with _lock:
            _blocks += 1
            _apply()
        return self

    def __exit__(self, *exception: Any) -> None:
        global _blocks
        with _lock:
            _blocks -= 1
            _apply()


def refuse_torch(op: str, because: str) -> None:
    """Raises NotImplementedError where torch would compute a call in the mode."""
    if enabled:
        raise NotImplementedError(
            f"{op}: batch_invariant() is on, and torch would compute this call, by kernels that it "
            f"chooses by the size of the batch: {because}. Change that, or make the call outside "
            "of the mode"
        )


def load_environment() -> None:
    """Switches the mode on if CUTWHEEL_BATCH_INVARIANT is 1."""
    value = os.environ.get(VARIABLE, "")
    if value not in _VALUES:
        raise ValueError(f'{VARIABLE} is "{value}"; expected 1 or 0, or leave it unset')
    if _VALUES[value]:
        set_batch_invariant(True)
