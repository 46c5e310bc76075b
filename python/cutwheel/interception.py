"""enable(): kernels of cutwheel behind torch's own ops, and report(), where their calls went.

The library registers kernels for aten's ops at the CUDA key, and deletes them again
(cuda/torch/intercept/register.cpp). All decisions are made there: this module says which ops and
dtypes. addmm alone has its kernel here, since the library gets no Scalars.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from contextlib import ContextDecorator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import _library  # noqa: F401  (registers torch.ops.cutwheel)
from .ops._common.errors import dtype_name

OPS: dict[str, tuple[str, ...]] = {
    "mm": ("mm", "mm.out"),
    "bmm": ("bmm", "bmm.out"),
    "_scaled_mm": ("_scaled_mm", "_scaled_mm.out"),
    "_grouped_mm": ("_grouped_mm",),
    "_scaled_grouped_mm": ("_scaled_grouped_mm",),
    "convolution": ("convolution",),
    "convolution_backward": ("convolution_backward",),
}
"""Ops that are taken unless ops= says otherwise, with aten's overloads."""

BY_NAME: dict[str, tuple[str, ...]] = {"addmm": ("addmm", "addmm.out")}
"""Ops that are taken if ops= names them: their kernels are Python's."""

_SCALARS = "torch hands no Scalar arguments to kernels of its stable ABI"
_NO_TIMES = "no benchmark has times of it to tell when cutwheel is faster"
STAYING: dict[str, str] = {"baddbmm": f"{_SCALARS}, and {_NO_TIMES}", "_int_mm": _NO_TIMES}
"""Ops that cutwheel has, too, and that stay with torch whatever is enabled, with the reason."""

_COSTLY = (
    f"{_SCALARS}; the kernel in Python costs microseconds a call, and is taken if ops= names it"
)

# torch's numbers of dtypes, which are part of its file format.
DTYPES: dict[torch.dtype, int] = {
    torch.float16: 5,
    torch.bfloat16: 15,
    torch.float8_e4m3fn: 24,
}


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
        known = OPS | BY_NAME
        if op not in known:
            raise ValueError(f'{function}: op "{op}" is not known; expected {", ".join(known)}')
        overloads += known[op]
    bits = 0
    for dtype in DTYPES if dtypes is None else dtypes:
        if dtype not in DTYPES:
            expected = ", ".join(map(dtype_name, DTYPES))
            raise ValueError(f"{function}: dtype {dtype} stays with torch; expected {expected}")
        bits |= 1 << DTYPES[dtype]
    return _Setting(tuple(dict.fromkeys(overloads)), bits)


_key = "CUDA"
"""the dispatch key; tests that have no GPU take the CPU's, whose calls all go on"""


class _Addmm:
    """Python's kernel of addmm, while it lives in a registration at a key.

    The library is asked for the result; what it does not take goes to the kernel that was there.
    """

    def __init__(self, key: str) -> None:
        self._keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
        self._theirs = torch.library.get_kernel("aten::addmm", key)
        self._theirs_out = torch.library.get_kernel("aten::addmm.out", key)
        # Nothing traces here: the C++ functions inside the overloads save half a microsecond.
        take, take_out = torch.ops.cutwheel._take_addmm.default, torch.ops.cutwheel._take_addmm.out
        self._take = getattr(take, "_op", take)
        self._take_out = getattr(take_out, "_op", take_out)
        self._library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
        self._library.impl("addmm", self._addmm, key)  # type: ignore[no-untyped-call]
        self._library.impl("addmm.out", self._addmm_out, key)  # type: ignore[no-untyped-call]

    def _addmm(
        self, input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Any = 1, alpha: Any = 1
    ) -> Tensor:
        # Complex factors are of complex tensors.
        if not isinstance(beta, complex) and not isinstance(alpha, complex):
            taken: Tensor | None = self._take(input, mat1, mat2, float(beta), float(alpha))
            if taken is not None:
                return taken
        rest = {"beta": beta, "alpha": alpha}
        result: Tensor = self._theirs.call_boxed(self._keys, input, mat1, mat2, **rest)
        return result

    def _addmm_out(
        self,
        input: Tensor,
        mat1: Tensor,
        mat2: Tensor,
        *,
        beta: Any = 1,
        alpha: Any = 1,
        out: Tensor,
    ) -> Tensor:
        if (
            isinstance(beta, complex)
            or isinstance(alpha, complex)
            or not self._take_out(input, mat1, mat2, float(beta), float(alpha), out=out)
        ):
            rest = {"beta": beta, "alpha": alpha, "out": out}
            self._theirs_out.call_boxed(self._keys, input, mat1, mat2, **rest)
        return out

    def remove(self) -> None:
        """Makes torch's kernels the current ones again."""
        self._library._destroy()  # type: ignore[no-untyped-call]


_addmm: tuple[str, _Addmm] | None = None
"""and its key"""


def _apply() -> None:
    """Tells the library which setting counts now; called under the lock."""
    global _applied, _missing, _addmm
    wanted = _blocks[-1][1] if _blocks else _base
    wants_addmm = "addmm" in wanted.overloads
    if _addmm is not None and (not wants_addmm or _addmm[0] != _key):
        _addmm[1].remove()
        _addmm = None
    if wants_addmm and _addmm is None:
        # Once in a process torch warns that a kernel is overridden. The library keeps it silent,
        # so its override comes first.
        torch.ops.cutwheel._intercept("mm", wanted.dtypes, _key)
    text = torch.ops.cutwheel._intercept(",".join(wanted.overloads), wanted.dtypes, _key)
    _missing = tuple(json.loads(text))
    if wants_addmm and _addmm is None:
        try:
            _addmm = _key, _Addmm(_key)
        except (AttributeError, RuntimeError):  # no get_kernel, or no kernel at this key
            _missing += BY_NAME["addmm"]
    _applied = wanted


def enable(
    *, ops: Iterable[str] | None = None, dtypes: Iterable[torch.dtype] | None = None
) -> None:
    """Lets cutwheel compute torch's matrix products and convolutions, where it was measured faster.

    From the next call on, these ops of CUDA tensors run kernels of cutwheel: `mm`, `bmm`,
    `_scaled_mm`, `_grouped_mm`, `_scaled_grouped_mm`, `convolution`, `convolution_backward`; and so
    does all that torch makes of them (`nn.Linear` without a bias, `matmul`, `nn.Conv2d`,
    `nn.functional.grouped_mm`, backward passes, autocast, code of torch.compile, captured graphs).
    A call is taken if

    - operands are float16 or bfloat16 (float8_e4m3fn of scaled ops), not empty, and kernels can
      read them as they lie; images are channels last,
    - the wheel has a kernel for this GPU,
    - and benchmarks have seen the problem, or its class (op, layout, scales or kind of convolution,
      number of rows), faster than torch: so far on H100 and H200.

    Within `batch_invariant()` the last does not count: what is faster depends on the number of
    rows. All else runs torch's own kernels and raises torch's own errors. `report()` tells what
    went where. It is one setting of the process, and replaces an earlier one; while an `enabled()`
    block is open, that block's counts. Do not switch while another thread is in one of the ops.

    `addmm`, a linear layer with a bias, is taken if ops= names it. Its kernel is Python's, and
    costs each call microseconds: that is worth it where a CUDA graph is captured.

    Args:
        ops: names of aten's ops, those above and "addmm"; None: those above
        dtypes: torch.float16, torch.bfloat16, torch.float8_e4m3fn; None: all

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
    kind: str = ""
    """what it was compared with in the measurements, such as "_scaled_mm rowwise fast"; "" if they
    were not asked"""
    convolution: tuple[int, ...] = ()
    """N, C, H, W, Ko, R, S, stride, padding and dilation along H and W, groups; m, n and k are
    those of the GEMM that it is"""
    device: int = -1
    """index of the GPU; -1: not looked at"""

    def __str__(self) -> str:
        where = "cutwheel" if self.taken else f"torch: {self.reason}"
        start = f"{self.calls:>8}  {self.op:<20}"
        if not self.dtype:
            return f"{start} (earlier problems)  {where}"
        batch = f"{self.batch}x" if self.batch > 1 else ""
        problem = f"{batch}{self.m}x{self.n}x{self.k} {self.dtype}"
        if any(self.convolution):
            image, filters = self.convolution[:4], self.convolution[4:7]
            shapes = ("x".join(map(str, shape)) for shape in (image, filters))
            problem = f"{' * '.join(shapes)} {self.dtype}"
            if self.kind:
                problem += f" {self.kind.split()[1]}"
        elif "scaled" in self.kind:
            problem += f" {self.kind.partition(' ')[2]}"
        else:
            problem += f" {self.layout}"
        return f"{start} {problem:<40}  {where}"


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
                "   calls  op                   problem (MxNxK)" + " " * 27 + "by",
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
    calls = [
        Calls(**entry | {"convolution": tuple(entry.get("convolution", ()))})
        for entry in (*found["problems"], *found["earlier"])
    ]
    if clear:
        torch.ops.cutwheel._clear_intercepted()
    calls.sort(key=lambda entry: (-entry.calls, str(entry)))
    with _lock:
        missing = dict.fromkeys(_missing, f"torch {torch.__version__} keeps its kernel to itself")
        now = tuple(name for name in _applied.overloads if name not in missing)
        by_name = {op: _COSTLY for op, names in BY_NAME.items() if names[0] not in now}
    return CallReport(tuple(calls), now, {**missing, **by_name, **STAYING})
