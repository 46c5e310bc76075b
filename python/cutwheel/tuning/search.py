"""Measures the plans of one job: quickly all that are promising, well those that are fast."""

from __future__ import annotations

import functools
import gc
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from ..inspect.explain import Kernel, kernels
from . import lines_of
from .case import Case
from .journal import Candidate, Record, is_out_of_memory
from .measure import (
    Clock,
    Error,
    Replay,
    Results,
    deviation,
    in_turns,
    iterations,
    run_poisoned,
    tensors_of,
    tolerance,
)
from .table import Entry, Gpu, Plan, Request, Table

SWIZZLES = (1, 2, 4, 8)
VARIABLE = "CUTWHEEL_KERNEL"
_REPLAY_US, _MOST_CALLS = 500.0, 128  # of a graph
_OWN_ORDER = (
    *("sm90_direct_conv", "sm90_strided_dgrad", "sm90_space_to_depth"),
    "sm90_few_channels",
)
"""families whose tiles have one order"""


@dataclass(frozen=True)
class Effort:
    predicted: float | None = 2.5
    """plans predicted to take so many times as long as the best one are not measured; None: all"""
    quick: float = 1.3
    """dropped after the first replays: what takes so many times as long as the best so far"""
    varied: int = 3
    """of so many of the fastest plans, other raster orders and swizzles are measured"""
    close: float = 1.15
    """measured well: what takes up to so many times as long as the best"""
    rounds: int = 7


class Forcing(Protocol):
    """Makes the library take one plan, and says what it would take now."""

    def force(self, request: Request, candidate: Candidate) -> None: ...

    def release(self) -> None: ...


class TableForcing:
    """By a table of the one plan, and CUTWHEEL_KERNEL, so that nothing else steps in."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._before = os.environ.get(VARIABLE)

    def force(self, request: Request, candidate: Candidate) -> None:
        if os.environ.get(VARIABLE) != candidate.row:
            os.environ[VARIABLE] = candidate.row
            torch.ops.cutwheel._reload_env()
        # Faster than anything: convolutions compare plans of two ways to compute them.
        plan = Plan(*candidate.plan, us=1e-3)
        table = Table("forced", self._gpu, (Entry(request, (plan,)),))
        torch.ops.cutwheel._load_tuning(lines_of(table))

    def release(self) -> None:
        torch.ops.cutwheel._clear_tuning()
        if self._before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = self._before
        torch.ops.cutwheel._reload_env()


class NotTakenError(RuntimeError):
    """The library does not take the plan that it was told to take."""


@dataclass
class _Run:
    candidate: Candidate
    replay: Replay
    us: float


class Search:
    def __init__(
        self, case: Case, clock: Clock, forcing: Forcing, answer: Mapping[str, Any], effort: Effort
    ) -> None:
        self._case, self._clock, self._forcing, self._effort = case, clock, forcing, effort
        *self._baselines, self._ours = case.providers
        self._request = Request(**answer["tuning_request"])
        self._plans = [_candidate(plan) for plan in answer["plans"]]
        self._found: dict[tuple[str, str, int, int], Candidate] = {}
        self._runs: dict[tuple[str, str, int, int], _Run] = {}
        self._taken: set[tuple[str, int, bool]] = set()
        self._best = float("inf")
        self._expected: Results = None
        self._allowed = Error(0.0, 0.0)

    def run(self, sm_count: int) -> list[Candidate]:
        """All that were measured; the plan of the library's own dispatch is always among them."""
        dispatch, *others = self._plans
        promising, _ = self.promising()
        self._try(dispatch)
        for candidate in others:
            if candidate in promising:
                self._try(candidate)
        for candidate in self._varied(sm_count):
            self._try(candidate)
        self._measure_well(dispatch)
        return list(self._found.values())

    def promising(self) -> tuple[list[Candidate], int]:
        """Those worth measuring by their predictions, and how many are not."""
        limit = self._effort.predicted
        fastest = min(plan.predicted_us for plan in self._plans)
        kept = [p for p in self._plans if limit is None or p.predicted_us <= limit * fastest]
        return kept, len(self._plans) - len(kept)

    def _varied(self, sm_count: int) -> Iterator[Candidate]:
        ranked = sorted(self._runs.values(), key=lambda run: run.us)
        for run in ranked[: self._effort.varied]:
            if not _has_order(run.candidate, self._request, sm_count):
                continue
            for raster in ("along_m", "along_n"):
                for swizzle in SWIZZLES:
                    other = replace(run.candidate, raster=raster, swizzle=swizzle, us=None)
                    if other.plan not in self._found:
                        yield other

    def _try(self, candidate: Candidate) -> None:
        self._found[candidate.plan] = candidate
        try:
            self._forcing.force(self._request, candidate)
            # Once of a kernel as it is ranked, and once of its variants: asking takes milliseconds.
            kind = candidate.row, candidate.splits, candidate in self._plans
            if kind not in self._taken:
                self._check_taken(candidate)
                self._taken.add(kind)
            buffers, us = self._case.buffers, max(candidate.predicted_us, 0.5)
            calls = iterations(us, buffers, _REPLAY_US, _MOST_CALLS)
            # Modules are loaded at their first launch, which must not happen in a capture.
            self._clock.warm_up(self._ours.call, 1)
            replay = self._clock.record(self._ours.call, buffers, calls)
            wrong = self._what_is_wrong(replay)
        except (NotImplementedError, RuntimeError, ValueError) as error:
            if is_out_of_memory(_text(error)):
                raise
            self._set(candidate, None, "refused", _text(error)[:240])
            return
        if wrong:
            self._set(candidate, None, "wrong", wrong)
            return
        us = min(replay.seconds(), replay.seconds()) * 1e6
        self._best = min(self._best, us)
        if us > self._effort.quick * self._best:
            self._set(candidate, us, "slow")
            return
        self._set(candidate, us, "slow")  # until it is measured well
        self._runs[candidate.plan] = _Run(self._found[candidate.plan], replay, us)

    def _check_taken(self, candidate: Candidate) -> None:
        answer = self._case.explain()
        first = _candidate(answer["plans"][0]) if answer["plans"] else None
        if first is None or first.plan != candidate.plan:
            taken = first.plan if first else "none"
            raise NotTakenError(f"another plan would run: {taken}")
        if Request(**answer["tuning_request"]) != self._request:
            raise NotTakenError("the call becomes another request with this kernel")

    def _what_is_wrong(self, replay: Replay) -> str:
        """Empty: nothing. Runs the very graph that is timed, on results that were poisoned."""
        if self._expected is None:
            # Before the graph runs: providers with out= write to the same memory.
            self._expected = (self._ours.reference or self._case.reference)(0)
            dtype = tensors_of(replay.results[0])[0].dtype
            self._allowed = tolerance(self._baseline_error(), dtype)
        run_poisoned(replay)
        first, last = replay.results[0], replay.results[self._case.buffers - 1]
        replay.results = {}  # their memory is for the next graphs
        error = deviation(first, self._expected)
        if not error.within(self._allowed):
            return (
                f"relative error {error.relative:.1e}, worst element {error.worst:.1e};"
                f" right are {self._allowed.relative:.1e} and {self._allowed.worst:.1e}"
            )
        for tensor in tensors_of(last):
            if tensor.is_floating_point() and not torch.isfinite(tensor).all().item():
                return "not finite in the last set of operands"
        return ""

    def _baseline_error(self) -> Error | None:
        """That of torch's own op, where it has one: it says how large errors may be."""
        if not self._baselines:
            return None
        provider = self._baselines[0]
        expected = provider.reference(0) if provider.reference else self._expected
        try:
            return deviation(provider.call(0), expected)
        except (NotImplementedError, RuntimeError, TypeError, ValueError) as error:
            if is_out_of_memory(_text(error)):
                raise
            return None  # torch has no such op here

    def _measure_well(self, dispatch: Candidate) -> None:
        limit = self._effort.close * self._best
        close = {
            run.candidate: run.replay
            for run in self._runs.values()
            if run.us <= limit or run.candidate.plan == dispatch.plan
        }
        for candidate, seconds in in_turns(close, self._effort.rounds).items():
            self._set(candidate, statistics.median(seconds) * 1e6, "ok")

    def _set(self, candidate: Candidate, us: float | None, status: str, note: str = "") -> None:
        self._found[candidate.plan] = replace(candidate, us=us, status=status, note=note)


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:300]}"


def _candidate(plan: Mapping[str, Any]) -> Candidate:
    return Candidate(
        plan["row"], plan["raster"], plan["swizzle"], plan["splits"], plan["predicted_us"]
    )


def _has_order(candidate: Candidate, request: Request, sm_count: int) -> bool:
    """Whether the order of tiles matters: not to those that run all at once."""
    kernel = _kernels()[candidate.row]
    if not kernel.family.startswith("sm90") or kernel.family in _OWN_ORDER:
        return False
    m, n, _ = kernel.tile
    m, n = (n, m) if kernel.swap_ab else (m, n)
    tiles = -(-request.m // m) * -(-request.n // n) * request.batch * candidate.splits
    return tiles > sm_count


@functools.cache
def _kernels() -> dict[str, Kernel]:
    return {kernel.name: kernel for kernel in kernels()}


@contextmanager
def _without_collection() -> Iterator[None]:
    """Garbage collection between a capture's calls would take longer than they do."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def tune(
    job: str,
    family: str,
    make: Callable[[], Case],
    clock: Callable[[], Clock],
    forcing: Forcing,
    effort: Effort,
    sm_count: int,
) -> Record:
    """Measures one job. A job that cannot be measured becomes a record that says why."""
    start = time.monotonic()
    request = Request(op="gemm", a="bf16", b="bf16", d="bf16", layouts="tn", m=1, n=1, k=1)
    try:
        forcing.release()
        case = make()
        answer = case.explain()
        request = Request(**answer["tuning_request"])
        if not answer["plans"]:
            raise NotImplementedError(
                f"no kernel serves it: {answer.get('route') or 'see explain'}"
            )
        search = Search(case, clock(), forcing, answer, effort)
        with _without_collection():
            candidates = search.run(sm_count)
        return Record(
            job=job,
            family=family,
            request=request,
            choice=answer["choice"],
            dispatch=_candidate(answer["plans"][0]).plan,
            candidates=tuple(candidates),
            skipped=search.promising()[1],
            seconds=round(time.monotonic() - start, 3),
        )
    except (NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        # A device whose context is lost raises it again at the next call, so nothing is hidden.
        seconds = round(time.monotonic() - start, 3)
        return Record(job, family, request, "", None, (), 0, seconds, _text(error))
    finally:
        forcing.release()
