"""enable(): kernels of cutwheel behind torch's own ops, and report(), where their calls went.

The library registers kernels for aten's ops at the CUDA key, and deletes them again
(cuda/torch/intercept.cpp). All decisions are made there: this module says which ops and dtypes.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from contextlib import ContextDecorator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from . import _library  # noqa: F401  (registers torch.ops.cutwheel)
from .ops._common.errors import dtype_name

OPS: dict[str, tuple[str, ...]] = {"mm": ("mm", "mm.out"), "bmm": ("bmm", "bmm.out")}
"""Ops that can be taken, with aten's overloads."""

_SCALARS = "torch hands no Scalar arguments to kernels of its stable ABI"
_NO_RULE = "there is no rule yet that tells when cutwheel is faster"
STAYING: dict[str, str] = {
    "addmm": _SCALARS,
    "baddbmm": _SCALARS,
    "_scaled_mm": _NO_RULE,
    "_int_mm": _NO_RULE,
    "_grouped_mm": _NO_RULE,
    "_scaled_grouped_mm": _NO_RULE,
    "convolution": _NO_RULE,
    "convolution_backward": _NO_RULE,
}
"""Ops that cutwheel has, too, and that stay with torch whatever is enabled, with the reason."""

# torch's numbers of dtypes, which are part of its file format.
DTYPES: dict[torch.dtype, int] = {torch.float16: 5, torch.bfloat16: 15}


class _Setting(NamedTuple):
    overloads: tuple[str, ...] = ()
    dtypes: int = 0


_OFF = _Setting()
_lock = threading.Lock()
_base = _OFF
_blocks: list[tuple[object, _Setting]] = []
_applied = _OFF
_missing: tuple[str, ...] = ()


def _setting(
    function: str, ops: Iterable[str] | None, dtypes: Iterable[torch.dtype] | None
) -> _Setting:
    if isinstance(ops, str):
        raise TypeError(f'{function}: ops is a str; expected several names, such as ["{ops}"]')
    if isinstance(dtypes, torch.dtype):
        raise TypeError(f"{function}: dtypes is a dtype; expected several, such as [{dtypes}]")
    overloads: list[str] = []
    for op in OPS if ops is None else ops:
        if op in STAYING:
            raise ValueError(f'{function}: op "{op}" stays with torch: {STAYING[op]}')
        if op not in OPS:
            raise ValueError(f'{function}: op "{op}" is not known; expected {", ".join(OPS)}')
        overloads += OPS[op]
    bits = 0
    for dtype in DTYPES if dtypes is None else dtypes:
        if dtype not in DTYPES:
            expected = ", ".join(map(dtype_name, DTYPES))
            raise ValueError(f"{function}: dtype {dtype} stays with torch; expected {expected}")
        bits |= 1 << DTYPES[dtype]
    return _Setting(tuple(dict.fromkeys(overloads)), bits)


_key = "CUDA"
"""the dispatch key; tests that have no GPU take the CPU's, whose calls all go on"""


def _apply() -> None:
    """Tells the library which setting counts now; called under the lock."""
    global _applied, _missing
    wanted = _blocks[-1][1] if _blocks else _base
    text = torch.ops.cutwheel._intercept(",".join(wanted.overloads), wanted.dtypes, _key)
    _missing = tuple(json.loads(text))
    _applied = wanted


def enable(
    *, ops: Iterable[str] | None = None, dtypes: Iterable[torch.dtype] | None = None
) -> None:
    """Lets cutwheel compute torch's matrix products, where it was measured to be faster.

    From the next call on, `torch.mm` and `torch.bmm` of CUDA tensors, and all that torch makes of
    them (`nn.Linear` without a bias, `matmul`, their backward passes, autocast, code of
    torch.compile, captured graphs) run kernels of cutwheel if

    - operands are float16 or bfloat16, not empty, and kernels can read them as they lie,
    - the wheel has a kernel for this GPU,
    - and benchmarks have seen the problem, or its class (layout, batched or not, number of rows),
      faster than torch: so far on H100 and H200.

    Within `batch_invariant()` the last does not count: what is faster depends on the number of
    rows. All else runs torch's own kernels and raises torch's own errors. `report()` tells what
    went where. It is one setting of the process, and replaces an earlier one; while an `enabled()`
    block is open, that block's counts. Do not switch while another thread is in one of the ops.

    Args:
        ops: names of aten's ops, "mm" and "bmm"; None: all that can be taken
        dtypes: torch.float16, torch.bfloat16; None: both

    Raises:
        TypeError: ops or dtypes is a single one
        ValueError: an op or a dtype that stays with torch
    """
    global _base
    setting = _setting("enable", ops, dtypes)
    with _lock:
        _base = setting
        _apply()


def disable() -> None:
    """Gives torch its own kernels back. Open `enabled()` blocks keep theirs until they end."""
    global _base
    with _lock:
        _base = _OFF
        _apply()


class enabled(ContextDecorator):  # noqa: N801  (used as a function)
    """``with cutwheel.enabled():`` as `enable()`, until the block ends.

    Blocks may be nested: the one that was opened last counts, for all threads, and when it ends,
    what was before it counts again.

    Args:
        ops: as of `enable()`
        dtypes: as of `enable()`

    Raises:
        TypeError: ops or dtypes is a single one
        ValueError: an op or a dtype that stays with torch
    """

    def __init__(
        self, *, ops: Iterable[str] | None = None, dtypes: Iterable[torch.dtype] | None = None
    ) -> None:
        self._setting = _setting("enabled", ops, dtypes)
        self._tokens: list[object] = []

    def __enter__(self) -> enabled:
        token = object()
        with _lock:
            _blocks.append((token, self._setting))
            self._tokens.append(token)
            _apply()
        return self

    def __exit__(self, *exception: Any) -> None:
        with _lock:
            token = self._tokens.pop()
            _blocks[:] = [block for block in _blocks if block[0] is not token]
            _apply()


@dataclass(frozen=True)
class Calls:
    """Calls of one op with one problem, or of several problems that are no longer told apart."""

    op: str
    """aten's overload, such as "mm.out\""""
    calls: int
    taken: bool
    """by cutwheel"""
    reason: str
    """why torch computed them; "taken" if cutwheel did"""
    dtype: str = ""
    batch: int = 0
    m: int = 0
    n: int = 0
    k: int = 0
    layout: str = ""
    """of A and B: "t" contiguous along the last dimension, "n" along the one before, "?" neither"""
    device: int = -1
    """index of the GPU; -1: not looked at"""

    def __str__(self) -> str:
        where = "cutwheel" if self.taken else f"torch: {self.reason}"
        if not self.dtype:
            return f"{self.calls:>8}  {self.op:<8} (earlier problems)  {where}"
        batch = f"{self.batch}x" if self.batch > 1 else ""
        problem = f"{batch}{self.m}x{self.n}x{self.k} {self.dtype} {self.layout}"
        return f"{self.calls:>8}  {self.op:<8} {problem:<34}  {where}"


@dataclass(frozen=True)
class CallReport:
    """What `report()` tells; as text, a table."""

    calls: tuple[Calls, ...]
    """most calls first"""
    enabled: tuple[str, ...]
    """overloads of aten that are taken now"""
    staying: dict[str, str]
    """ops that stay with torch, with the reason"""

    @property
    def taken(self) -> int:
        """How many calls cutwheel computed."""
        return sum(entry.calls for entry in self.calls if entry.taken)

    @property
    def passed_on(self) -> int:
        """How many calls went on to torch."""
        return sum(entry.calls for entry in self.calls if not entry.taken)

    def __str__(self) -> str:
        now = ", ".join(self.enabled) or "none"
        lines = [f"{self.taken} calls by cutwheel, {self.passed_on} by torch. Ops taken now: {now}"]
        if self.calls:
            lines += [
                "   calls  op       problem (MxNxK)                     by",
                *map(str, self.calls),
            ]
        lines += [f"torch's: {op}: {reason}" for op, reason in self.staying.items()]
        return "\n".join(lines)


def report(*, clear: bool = False) -> CallReport:
    """Tells which calls of the ops of `enable()` cutwheel computed, and why torch the others.

    Calls are counted by problem (op, dtype, extents, layouts, GPU) while the op is enabled. After
    16384 problems the counts so far are summed by op and reason. A problem's decision is made once
    and remembered as long: `clear` forgets it, as after `load_tuning`.

    Args:
        clear: begin anew after this report
    """
    found = json.loads(torch.ops.cutwheel._intercepted())
    calls = [Calls(**entry) for entry in (*found["problems"], *found["earlier"])]
    if clear:
        torch.ops.cutwheel._clear_intercepted()
    calls.sort(key=lambda entry: (-entry.calls, str(entry)))
    with _lock:
        missing = dict.fromkeys(_missing, f"torch {torch.__version__} keeps its kernel to itself")
        now = tuple(name for name in _applied.overloads if name not in missing)
    return CallReport(tuple(calls), now, {**missing, **STAYING})
