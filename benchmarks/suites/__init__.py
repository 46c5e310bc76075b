"""The families that are measured, a file each: the groups of a section and how they are made.

cutwheel.tuning.cases defines what is compared: torch's calls, cutwheel's, and the reference of
both. Problems that the tuner lacks are defined here. problems.py lists and draws shapes, calls are
timed and checked in compare.py, and run.py collects the results.
"""

from __future__ import annotations

import functools
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

import cutwheel
from cutwheel.tuning.case import Case, Function, Setting

from ..compare import HostCase, Limits, describe


@dataclass(frozen=True)
class Suite:
    groups: Mapping[str, Callable[[Setting], Case]]
    limits: Limits
    dtype: str
    """as the section names it"""
    host: Callable[[str], Sequence[HostCase]] | None = None
    """(device): calls whose CPU time stands in the same section"""
    alone: Callable[[bool], list[dict[str, Any]]] | None = None
    """(quick): the rows of a section that has no problems and is measured in other processes"""
    has_ceilings: bool = False
    """the section has what a copy and a large torch.mm reach"""
    fields: Callable[[], dict[str, Any]] = dict
    """what else the section says"""
    context: Callable[[str], AbstractContextManager[Any]] = lambda dtype: nullcontext()
    """settings of torch, for all providers of a section of this dtype"""
    compiled: Callable[[Function, str], Function] | None = None
    """(function, mode): torch.compile, where it is one more baseline"""
    passed: Callable[[Function], Function] | None = None
    """torch.compile with the pass of cutwheel.inductor_options()"""
    mode: str = ""
    """of torch.compile"""


def kernel(op: str, *operands: Any, **keywords: Any) -> str | None:
    """Which kernel runs; None if that cannot be said: the case itself will tell what is wrong."""
    try:
        return cutwheel.explain(op, *operands, **keywords).row
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError):
        return None


# ---- torch.compile
def compiled(function: Function, **options: Any) -> Function:
    """All errors of the compiler are RuntimeErrors: the provider is then left out."""
    torch._dynamo.reset()  # else it gives up after a few shapes
    made = torch.compile(function, **options)

    def call(*operands: torch.Tensor) -> Any:
        try:
            return made(*operands)
        except Exception as error:
            raise RuntimeError(describe(error)) from error

    return call


class CaseTimeout(BaseException):
    """A case took too long. No Exception: nothing on the way is to take it for an error of its own,
    as the wrappers of compiled functions do."""


@contextmanager
def time_limit(
    seconds: float, what: str, error: type[BaseException] = TimeoutError
) -> Iterator[None]:
    """Raises `error` once `what` takes longer; one limit may lie within another.

    By a signal, which interrupts Python between its instructions: of the main thread alone, and no
    kernel that does not come to its end.
    """

    def interrupt(number: int, frame: object) -> None:
        raise error(f"{what} took more than {seconds:g} s")

    before, start = signal.signal(signal.SIGALRM, interrupt), time.monotonic()
    outer, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    if 0 < outer < seconds:
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, outer)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        left = outer - (time.monotonic() - start)
        if left > 0:  # else there is none, or it is what ends this
            signal.setitimer(signal.ITIMER_REAL, left)


def limited(function: Function, seconds: float) -> Function:
    """A first call that takes longer, as it compiles, raises RuntimeError."""
    is_first = True

    def call(*operands: Any) -> Any:
        nonlocal is_first
        if not is_first:
            return function(*operands)
        is_first = False
        try:
            with time_limit(seconds, "torch.compile"):
                return function(*operands)
        except TimeoutError as error:
            raise RuntimeError(describe(error)) from error

    return call


@functools.cache
def compiled_for_any_shape(function: Function) -> Function:
    """Once for shapes that differ, never falling back to eager.

    One that has failed fails again at once: a compiler that is missing takes its time to say so.
    """
    call = compiled(function, dynamic=True, fullgraph=True)
    failures: list[RuntimeError] = []

    def once(*operands: torch.Tensor) -> Any:
        if failures:
            raise failures[0]
        try:
            return call(*operands)
        except RuntimeError as error:
            failures.append(error)
            raise

    return once
