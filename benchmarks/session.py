"""One case after another, within a budget of time, whatever happens to single ones; and the rows
that come of it, which are alike for all sections."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import torch

from . import harness, plan
from .stats import Spread


class SkippedError(Exception):
    """A case that is not to be measured, and why."""


class Described(Protocol):
    def fields(self) -> dict[str, Any]:
        """What identifies the job in its row: group, extents, what else varies."""
        ...


Job = TypeVar("Job", bound=Described)
Row = dict[str, Any]


@dataclass(frozen=True)
class Made:
    """A case of one job, ready to be measured.

    min_bytes: the fewest through device memory: each input read once, the output written once.
    """

    case: harness.Case
    flops: float  # of a call; 0 where it does not multiply
    min_bytes: float
    kernels: Mapping[str, str | None] = field(default_factory=dict)  # by side
    refused: str = ""  # baselines that are not there, and why
    # What a pair's baseline computes where it is not quite what our side does.
    forms: Mapping[harness.Pair, str] = field(default_factory=dict)


def spread(value: Spread) -> dict[str, float]:
    return {"median": value.median, "p20": value.p20, "p80": value.p80}


def row(job: Described, made: Made | None, found: harness.Measurement) -> Row:
    """One result, ready for JSON. Times in microseconds for one call."""
    sides: dict[str, Any] = {
        name: {"relative_error": error.relative, "worst_error": error.worst}
        for name, error in found.errors.items()
    }
    for name, seconds in found.times.items():
        sides[name]["us"] = spread(seconds.scaled(1e6))
        if made and made.flops:
            sides[name]["tflops"] = made.flops / seconds.median * 1e-12
        if made:
            sides[name]["gbs"] = made.min_bytes / seconds.median * 1e-9
    ratios = []
    for pair, ratio in found.ratios.items():
        entry: dict[str, Any] = {"side": pair[0], "baseline": pair[1], **spread(ratio)}
        if made and pair in made.forms:
            entry["form"] = made.forms[pair]
        ratios.append(entry)
    reasons = [text for text in (made.refused if made else "", found.reason) if text]
    return {
        **job.fields(),
        "status": found.status,
        "reason": "; ".join(reasons),
        "kernels": dict(made.kernels) if made else {},
        "ratios": ratios,
        "flops_per_byte": made.flops / made.min_bytes if made else None,
        "sides": sides,
        "slots": made.case.slots if made else 0,
        "iterations": found.iterations,
        "rounds": found.rounds,
    }


def unmeasured(job: Described, status: str, reason: str) -> Row:
    return row(job, None, harness.Measurement(status, reason))


def kernel_of(find: Callable[..., str | None], *operands: Any, **keywords: Any) -> str | None:
    """What `find` says; None if it cannot: the case itself will say what is wrong."""
    try:
        return find(*operands, **keywords)
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError):
        return None


def gpu() -> tuple[torch.device, int]:
    """The device, and the bytes of its L2."""
    device = torch.device("cuda", torch.cuda.current_device())
    return device, torch.cuda.get_device_properties(device).L2_cache_size


def measure(
    jobs: Sequence[Job],
    make: Callable[[Job], Made],
    limits: plan.Limits,
    *,
    clock: harness.Clock | None = None,
    budget_seconds: float | None = None,
    progress: Callable[[list[Row]], None] = lambda rows: None,
) -> list[Row]:
    """A row for each job, see run. `make` may raise SkippedError."""
    used = clock or harness.GraphClock(gpu()[0])

    def one(job: Job, seconds: float) -> Row:
        try:
            made = make(job)
        except SkippedError as reason:
            return unmeasured(job, "skipped", str(reason))
        return row(job, made, harness.compare(made.case, used, limits, seconds))

    return run(jobs, one, limits, budget_seconds, progress)


def run(
    jobs: Sequence[Job],
    one: Callable[[Job, float], Row],
    limits: plan.Limits,
    budget_seconds: float | None = None,
    progress: Callable[[list[Row]], None] = lambda rows: None,
) -> list[Row]:
    """All jobs in order. One that fails is recorded as such and does not stop the others.

    Args:
        one: measures a job in about so many seconds; its buffers are free once it has returned
        progress: called with the rows so far after each job
    """
    end = None if budget_seconds is None else time.monotonic() + budget_seconds
    rows: list[Row] = []
    lost = ""
    for index, job in enumerate(jobs):
        remaining = None if end is None else end - time.monotonic()
        seconds = plan.allowance(remaining, len(jobs) - index, limits)
        if lost or seconds == 0.0:
            reason = lost or f"the budget of {budget_seconds:g} s was used up"
            rows.append(unmeasured(job, "skipped", reason))
        else:
            try:
                rows.append(one(job, seconds))
            except (RuntimeError, TypeError, ValueError) as error:
                rows.append(unmeasured(job, "failed", harness.describe(error)))
            lost = release()
        progress(rows)
    return rows


def release() -> str:
    """Give the buffers of a job back; says so if the CUDA context did not survive it."""
    try:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
    except RuntimeError as error:
        return f"an earlier shape broke the CUDA context ({harness.describe(error)})"
    return ""
