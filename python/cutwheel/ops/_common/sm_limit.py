"""How many SMs kernels may take: room for communication that runs beside them."""

from __future__ import annotations

import ctypes
import os
import threading
from contextlib import ContextDecorator
from pathlib import Path
from typing import Any

import torch

from ... import _library  # noqa: F401  (registers torch.ops.cutwheel)

VARIABLE = "CUTWHEEL_SM_LIMIT"

_ops = torch.ops.cutwheel
_lock = threading.Lock()
_set: int | None = None
_open: list[int] = []
"""the limits of the blocks that are open, in all threads"""


def _check(op: str, sms: Any) -> int:
    if isinstance(sms, bool) or not isinstance(sms, int):
        raise TypeError(f"{op}: sms is of type {type(sms).__name__}; expected an int")
    if sms < 1:
        raise ValueError(f"{op}: sms is {sms}; expected at least 1, the number of SMs to use")
    return sms


def _apply() -> None:
    """Tells the library; called under the lock."""
    _ops._set_sm_limit(_current() or 0)


def _current() -> int | None:
    limits = _open if _set is None else [*_open, _set]
    return min(limits, default=None)


def set_sm_limit(sms: int | None) -> None:
    """Sets how many SMs kernels may take, from the next call on, as `with sm_limit(sms):` does.

    It is one setting of the process: of all threads and devices. While a `with sm_limit(n)` is open
    anywhere, the lowest number holds.

    Args:
        sms: the number of SMs, at least 1; None: no limit

    Raises:
        TypeError: neither an int nor None
        ValueError: less than 1
    """
    global _set
    checked = None if sms is None else _check("set_sm_limit", sms)
    with _lock:
        _set = checked
        _apply()


def get_sm_limit() -> int | None:
    """The limit of sm_limit() or set_sm_limit() that holds, or None."""
    with _lock:
        return _current()


class sm_limit(ContextDecorator):  # noqa: N801  (used as a function)
    """``with cutwheel.sm_limit(n):`` persistent kernels take at most n SMs.

    What runs beside them, such as a collective of NCCL, has the others. The cost model counts n
    SMs, and kernels whose grids cannot be limited are chosen only where no persistent one serves a
    call; docs/distributed.md lists them. A cluster is launched whole, even if it has more than n
    SMs.

    The library reads the limit when an op runs, for all threads of the process; of several open
    blocks the lowest limit holds. So compiled code follows it without being traced again, and a
    backward pass that runs in the block is covered. A CUDA graph replays the grids that it
    captured. Enter the block outside of code that torch.compile traces.

    Args:
        sms: the number of SMs, at least 1. More than the GPU has: no limit

    Raises:
        TypeError: not an int
        ValueError: less than 1
    """

    def __init__(self, sms: int) -> None:
        self.sms = _check("sm_limit", sms)

    def __enter__(self) -> sm_limit:
        with _lock:
            _open.append(self.sms)
            _apply()
        return self

    def __exit__(self, *exception: Any) -> None:
        with _lock:
            _open.remove(self.sms)
            _apply()


def follow_torch() -> bool:
    """Lets the library read the SMs that torch's own GEMMs leave to others.

    They are set by torch._C._set_sm_carveout_experimental. The stable ABI has no function for them,
    and ops run without Python in compiled code, so the library calls torch's exported one. Its
    return type is not part of its name, but of that of the function that sets the value.

    Returns:
        whether this torch has both, and they tell what torch's Python function tells
    """
    getter = getattr(torch._C, "_get_sm_carveout_experimental", None)
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    if getter is None:
        return False
    try:
        loaded = ctypes.CDLL(str(library), mode=os.RTLD_NOW | os.RTLD_NOLOAD)
        context_of = loaded._ZN2at13globalContextEv
        read = loaded._ZNK2at7Context24_SMCarveout_EXPERIMENTALEv
        _ = loaded._ZN2at7Context27_setSMCarveout_EXPERIMENTALESt8optionalIiE
    except (AttributeError, OSError):
        return False
    context_of.argtypes, context_of.restype = [], ctypes.c_void_p
    # A std::optional<int> in a register: the value, and behind it a byte that says if there is one.
    read.argtypes, read.restype = [ctypes.c_void_p], ctypes.c_uint64
    context = context_of()
    bits = int(read(context))
    if (bits & 0xFFFFFFFF if bits >> 32 & 0xFF else None) != getter():
        return False
    _ops._set_sm_carveout_source(context, ctypes.cast(read, ctypes.c_void_p).value)
    return True


def load_environment() -> None:
    """Sets the limit of CUTWHEEL_SM_LIMIT."""
    value = os.environ.get(VARIABLE, "")
    if not value:
        return
    if not (value.isascii() and value.isdigit() and int(value) > 0):
        raise ValueError(
            f'{VARIABLE} is "{value}"; expected a number of SMs, at least 1, or leave it unset'
        )
    set_sm_limit(int(value))
