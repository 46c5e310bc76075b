"""One case after another, within a budget of time, whatever happens to single ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from . import harness, plan

Job = TypeVar("Job")
Row = dict[str, Any]


def run(
    jobs: Sequence[Job],
    one: Callable[[Job, float], Row],
    unmeasured: Callable[[Job, str, str], Row],
    limits: plan.Limits,
    budget_seconds: float | None = None,
    progress: Callable[[list[Row]], None] = lambda rows: None,
) -> list[Row]:
    """All jobs in order. One that fails is recorded as such and does not stop the others.

    Args:
        one: measures a job in about so many seconds; its buffers are free once it has returned
        unmeasured: the row of a job, with its status and the reason
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
