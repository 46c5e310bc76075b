"""Time of calls in which all GPUs of a team take part, and the check of their results.

A sample begins when all GPUs have met, and is the time of the slowest of them.
"""

from __future__ import annotations

import math
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from cutwheel.tuning.case import Case, Provider
from cutwheel.tuning.measure import Call, Error, Results, Spread, deviation, poison, tensors_of

from ..compare import Measurement, describe, ratio_of, texts_of
from .team import Team

CLOCK_HZ = 2.0e9  # of SMs, above that of any GPU: torch.cuda._sleep counts cycles
MOST_LEAD_SECONDS = 0.4


@dataclass(frozen=True)
class Limits:
    sample_seconds: float = 8e-3
    rounds: int = 9
    max_calls: int = 50


class Timer:
    """
    Args:
        is_queued: all calls of a sample are queued before the first one starts, behind a kernel
            that does nothing, so that launching them costs nothing; else they start as soon as the
            host has launched them. On a CPU nothing is queued.
    """

    def __init__(self, team: Team, is_queued: bool) -> None:
        self.team = team
        self.lead_seconds = 2e-3 if is_queued and team.is_on_gpu else 0.0
        self._met = torch.zeros(1, device=team.device)
        if team.is_on_gpu:
            self._start = torch.cuda.Event(enable_timing=True)
            self._stop = torch.cuda.Event(enable_timing=True)

    def seconds(self, call: Call, calls: int) -> float:
        """Seconds of a call, on the slowest GPU.

        Raises:
            RuntimeError: the host cannot queue the calls, as one of them waits for the GPU
        """
        if not self.team.is_on_gpu:
            self.team.barrier()
            start = time.perf_counter()
            for index in range(calls):
                call(index)
            return max(self.team.gather((time.perf_counter() - start) / calls))
        while True:
            own, is_ahead = self._sample(call, calls)
            all_found = self.team.gather((own, is_ahead))
            if not self.lead_seconds or all(ahead for _, ahead in all_found):
                return max(seconds for seconds, _ in all_found)
            self.lead_seconds *= 3.0
            if self.lead_seconds > MOST_LEAD_SECONDS:
                raise RuntimeError("the calls cannot be queued ahead of the GPU")

    def _sample(self, call: Call, calls: int) -> tuple[float, bool]:
        """Seconds of a call here, and whether all had been queued before the first one started."""
        self.team.barrier()
        if self.lead_seconds:
            torch.cuda._sleep(int(self.lead_seconds * CLOCK_HZ))
        dist.all_reduce(self._met, group=self.team.group)  # the GPUs meet
        self._start.record()
        for index in range(calls):
            call(index)
        self._stop.record()
        is_ahead = not self._start.query()
        self._stop.synchronize()
        return self._start.elapsed_time(self._stop) * 1e-3 / calls, is_ahead


def in_all(team: Team, action: Callable[[], Any]) -> str:
    """Does it in all processes; the first failure of any, as text, in all of them."""
    try:
        action()
        team.synchronize()
        found = ""
    except (ImportError, RuntimeError, TypeError, ValueError, AttributeError) as failure:
        found = describe(failure)
        traceback.print_tb(failure.__traceback__)  # into the log of the process
        print(found, file=sys.stderr, flush=True)
    return next(filter(None, team.gather(found)), "")


def _spoil(results: Results) -> None:
    for tensor in tensors_of(results):
        poison(tensor.detach())


def checked(team: Team, case: Case, provider: Provider) -> Error:
    """The largest error of all processes. What a call does not write stands out: a first result is
    overwritten, and its memory is likely that of the second one."""
    _spoil(provider.call(0))
    result = provider.call(0)
    return team.largest(deviation(result, case.reference(0)))


def compare(team: Team, case: Case, limits: Limits, timers: dict[str, Timer]) -> list[Measurement]:
    """Checks all providers of a case, then times them in turns; a measurement for each timer.

    A provider that fails in one process has failed in all, as long as none of them hangs in a
    collective; then the launcher ends them.
    """
    failures: dict[str, str] = {}
    for provider in case.providers:
        if text := in_all(team, lambda p=provider: [p.call(0) for _ in range(2)]):
            failures[provider.name] = text
    errors = {}
    for provider in case.providers:
        if provider.name in failures:
            continue
        errors[provider.name] = error = checked(team, case, provider)
        if not error.within(case.allowed):
            failures[provider.name] = (
                f"wrong result, relative error {error.relative:.1e}, worst element"
                f" {error.worst:.1e}; tolerance {case.allowed.relative:.0e} and"
                f" {case.allowed.worst:.0e}"
            )
    return [_timed(team, case, limits, timer, failures, errors) for timer in timers.values()]


def _timed(
    team: Team,
    case: Case,
    limits: Limits,
    timer: Timer,
    failures: dict[str, str],
    errors: dict[str, Error],
) -> Measurement:
    baselines = {baseline for _, baseline in case.all_pairs()}
    rest = [provider for provider in case.providers if provider.name not in failures]
    reason = texts_of(failures)
    if not rest or (baselines and baselines <= failures.keys()):
        return Measurement("failed", reason, errors)
    calls = {}
    for provider in rest:
        pilot = max(timer.seconds(provider.call, 2), 1e-7)
        wanted = math.ceil(limits.sample_seconds / pilot)
        calls[provider.name] = max(2, min(wanted, limits.max_calls))
    samples: dict[str, list[float]] = {provider.name: [] for provider in rest}
    for _ in range(limits.rounds):
        for provider in rest:
            samples[provider.name].append(timer.seconds(provider.call, calls[provider.name]))
    times = {name: Spread.of(values) for name, values in samples.items()}
    ratios = {
        pair: ratio_of(samples[pair[1]], samples[pair[0]])
        for pair in case.all_pairs()
        if pair[0] in samples and pair[1] in samples
    }
    is_good = failures.keys() <= baselines
    status, most = "ok" if is_good else "failed", max(calls.values())
    return Measurement(status, reason, errors, times, ratios, most, limits.rounds)
