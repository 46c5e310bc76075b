"""Providers of one operation, checked against a reference and then timed side by side.

Replays of all providers alternate, so that clocks and temperature move them alike.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from cutwheel.tuning.case import AGAIN, Case, Pair, Provider, Reference
from cutwheel.tuning.measure import (
    Clock,
    Error,
    Replay,
    Results,
    Spread,
    deviation,
    in_turns,
    iterations,
    run_poisoned,
    tensors_of,
)


# ---- GPU time
@dataclass(frozen=True)
class Limits:
    """How long one case may be measured."""

    replay_seconds: float = 2e-3  # long against the few microseconds that starting a graph costs
    case_seconds: float = 0.8  # timed replays of all providers together
    min_rounds: int = 5
    max_rounds: int = 25
    max_iterations: int = 2000

    def rounds(self, of_round: float, seconds: float) -> int:
        """Rounds (one replay of each provider) that fit into `seconds`, within the limits."""
        fitting = math.floor(seconds / of_round) if of_round > 0.0 else self.max_rounds
        return max(self.min_rounds, min(fitting, self.max_rounds))


@dataclass(frozen=True)
class Measurement:
    """Outcome for one case; times exist only where all results were right."""

    status: str  # "ok" or "failed"
    reason: str  # of a failure; if ok, which baselines could not be measured, and why
    errors: dict[str, Error] = field(default_factory=dict)
    times: dict[str, Spread] = field(default_factory=dict)  # seconds for one call
    ratios: dict[Pair, Spread] = field(default_factory=dict)
    iterations: int = 0
    rounds: int = 0


def describe(error: BaseException) -> str:
    """The first line: torch appends pages of advice to some of its errors."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0] if text else 'no message'}"


def compare(case: Case, clock: Clock, limits: Limits, seconds: float) -> Measurement:
    """Checks all providers on the very graphs that are timed, then times them in turns.

    A baseline that cannot be measured is left out; the case fails if another provider cannot
    be, or if no baseline is left.
    """
    failures: dict[str, str] = {}
    pilots: dict[str, float] = {}
    for provider in case.providers:
        try:
            pilots[provider.name] = _pilot(provider, case.buffers, clock)
        except (RuntimeError, TypeError, ValueError) as failure:
            failures[provider.name] = describe(failure)
    pairs = [pair for pair in case.all_pairs() if pair[1] in pilots or not case.stands_alone]
    if _has_failed(case, pairs, failures):
        return Measurement("failed", texts_of(failures))

    count = iterations(
        min(pilots.values()), case.buffers, limits.replay_seconds, limits.max_iterations
    )
    replays = {
        provider.name: clock.record(provider.call, case.buffers, count)
        for provider in case.providers
        if provider.name in pilots
    }
    errors = _check(case, replays)
    for name, error in errors.items():
        if not error.within(case.allowed):
            failures[name] = (
                f"wrong result, relative error {error.relative:.1e}, worst element"
                f" {error.worst:.1e}; tolerance"
                f" {case.allowed.relative:.0e} and {case.allowed.worst:.0e}"
            )
            del replays[name]
    if _has_failed(case, pairs, failures):
        return Measurement("failed", texts_of(failures), errors)

    rounds = limits.rounds(count * sum(pilots[name] for name in replays), seconds)
    samples = in_turns(replays, rounds)
    times = {name: Spread.of(values) for name, values in samples.items()}
    ratios = {
        (name, baseline): ratio_of(samples[baseline], samples[name])
        for name, baseline in pairs
        if baseline in samples
    }
    return Measurement("ok", texts_of(failures), errors, times, ratios, count, rounds)


def _pilot(provider: Provider, buffers: int, clock: Clock) -> float:
    """Seconds for one call, roughly. A function of its own: it frees the graph and its results."""
    clock.warm_up(provider.call, buffers)
    pilot = clock.record(provider.call, buffers, buffers)
    pilot.run()
    return pilot.seconds()


def _has_failed(case: Case, pairs: Sequence[Pair], failures: Mapping[str, str]) -> bool:
    """pairs: without those whose baseline may be missing"""
    baselines = {baseline for _, baseline in case.all_pairs()}
    ours = [provider.name for provider in case.providers if provider.name not in baselines]
    ours += [name for name, _ in pairs]
    is_alone = bool(pairs) and all(baseline in failures for _, baseline in pairs)
    return is_alone or any(name in failures for name in ours)


def texts_of(failures: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {text}" for name, text in failures.items())


def ratio_of(baseline: Sequence[float], other: Sequence[float]) -> Spread:
    """Median over median; the spread is that of single rounds, whose replays share their clocks."""
    each = Spread.of([b / o for b, o in zip(baseline, other, strict=True)])
    overall = Spread.of(baseline).median / Spread.of(other).median
    return Spread(overall, min(each.p20, overall), max(each.p80, overall))


def _check(case: Case, replays: Mapping[str, Replay]) -> dict[str, Error]:
    """Compares the first and the last buffer, each fully."""
    checked = sorted({0, case.buffers - 1})
    errors = {}
    known: tuple[Reference | None, list[Results]] = (None, [])
    for provider in case.providers:
        if provider.name not in replays:
            continue
        replay = replays[provider.name]
        reference = provider.reference or case.reference
        if known[0] is not reference:  # providers that share one follow each other; none is kept
            known = (None, [])
            known = (reference, [reference(buffer) for buffer in checked])
        run_poisoned(replay)
        found = [
            deviation(replay.results[buffer], wanted)
            for buffer, wanted in zip(checked, known[1], strict=True)
        ]
        errors[provider.name] = Error.largest(found)
    return errors


# ---- CPU time
CALLS = 40  # between two synchronizations; launches of backward passes included, far below 1024
HOST_TOLERANCE = 2e-2  # two results in bfloat16

Run = Callable[[], Any]


@dataclass(frozen=True)
class HostCase:
    """Operands so small that the GPU is not waited for."""

    name: str
    baseline: Run  # torch
    ours: Run  # the same result


def disagreement(case: HostCase) -> float:
    """The largest relative error of our results against the baseline's."""
    expected, found = (
        tuple(t.detach().clone() for t in tensors_of(run())) for run in (case.baseline, case.ours)
    )
    return deviation(found, expected).relative


def time_calls(
    run: Run,
    calls: int,
    synchronize: Callable[[], None],
    now: Callable[[], float] = time.perf_counter,
) -> float:
    """Seconds for one call; the queue is empty at the start, and waiting for it is not counted."""
    synchronize()
    start = now()
    for _ in range(calls):
        run()
    return (now() - start) / calls


def time_pair(
    case: HostCase,
    repeats: int,
    synchronize: Callable[[], None],
    now: Callable[[], float] = time.perf_counter,
) -> tuple[Spread, Spread]:
    """Alternating repeats of both providers, garbage collection off as timeit does it."""
    for run in (case.baseline, case.ours):
        time_calls(run, CALLS, synchronize, now)  # warm up
    baseline, ours = [], []
    collecting = gc.isenabled()
    gc.disable()
    try:
        for _ in range(repeats):
            baseline.append(time_calls(case.baseline, CALLS, synchronize, now))
            ours.append(time_calls(case.ours, CALLS, synchronize, now))
    finally:
        if collecting:
            gc.enable()
    return Spread.of(baseline), Spread.of(ours)


def compare_on_host(cases: Sequence[HostCase], repeats: int, name: str) -> list[dict[str, Any]]:
    """A row for each case: microseconds for one call, ratio = torch's time / ours.

    Args:
        name: of our provider; AGAIN measures torch in its place
    """
    rows = []
    for case in cases:
        row: dict[str, Any] = {"case": case.name, "status": "ok", "reason": "", "ratio": None}
        case = replace(case, ours=case.baseline) if name == AGAIN else case
        try:
            error = disagreement(case)
            if not error <= HOST_TOLERANCE:
                raise ValueError(f"results differ from torch's, relative error {error:.1e}")
            baseline, ours = time_pair(case, repeats, torch.cuda.synchronize)
            row["ratio"] = baseline.median / ours.median
            row["us"] = {"torch": spread_of(baseline, 1e6), name: spread_of(ours, 1e6)}
        except (RuntimeError, TypeError, ValueError) as failure:
            row |= {"status": "failed", "reason": describe(failure)}
        rows.append(row)
    return rows


def spread_of(value: Spread, factor: float = 1.0) -> dict[str, float]:
    """For JSON"""
    scaled = value.scaled(factor)
    return {"median": scaled.median, "p20": scaled.p20, "p80": scaled.p80}
