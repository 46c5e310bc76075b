"""How often to run what: pure arithmetic, so that it can be tested without a GPU."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """How long the harness may measure one case."""

    replay_seconds: float = 2e-3  # long against the few microseconds that starting a graph costs
    case_seconds: float = 0.8  # timed replays of both sides together
    min_rounds: int = 5
    max_rounds: int = 25
    max_iterations: int = 2000


QUICK = Limits(case_seconds=0.2, max_rounds=9)


def rotation(bytes_per_slot: int, l2_bytes: int, most: int = 1024) -> int:
    """Buffer sets to rotate through, so that none is still in L2 when its turn comes again.

    Between two uses of a slot the others are read; together they exceed twice the L2 size.
    """
    if bytes_per_slot <= 0:
        raise ValueError(f"bytes_per_slot is {bytes_per_slot}; expected a positive number")
    others = math.floor(2 * l2_bytes / bytes_per_slot) + 1
    return max(2, min(1 + others, most))


def iterations(call_seconds: float, slots: int, limits: Limits) -> int:
    """Calls in one graph: whole rotations that take about `replay_seconds`, at least one rotation.

    Whole rotations, because the next replay begins at slot 0 again.
    """
    if not call_seconds > 0.0:
        raise ValueError(f"call_seconds is {call_seconds}; expected a positive number")
    wanted = min(math.ceil(limits.replay_seconds / call_seconds), limits.max_iterations)
    return slots * max(1, round(wanted / slots))


def rounds(round_seconds: float, seconds: float, limits: Limits) -> int:
    """Rounds (one replay of each side) that fit into `seconds`, within the limits."""
    fitting = math.floor(seconds / round_seconds) if round_seconds > 0.0 else limits.max_rounds
    return max(limits.min_rounds, min(fitting, limits.max_rounds))


def allowance(remaining: float | None, cases_left: int, limits: Limits) -> float:
    """Seconds for timing the next case; half of its share, since setting up and checking cost too.

    `remaining` is what is left of the whole run's budget, None for no budget. 0.0 means: skip.
    """
    if remaining is None:
        return limits.case_seconds
    if remaining <= 0.0:
        return 0.0
    return min(limits.case_seconds, 0.5 * remaining / max(1, cases_left))


class CompileBudget:
    """Spreads the seconds there are for torch.compile evenly over the cases that ask for it.

    One may compile unless what was used so far is more than the share of the cases before it. So
    what is left out is not all at the end.
    """

    def __init__(self, seconds: float, asked: int) -> None:
        self.seconds = seconds
        self.asked = asked
        self.used = 0.0
        self.before = 0

    def allows(self) -> bool:
        share = self.seconds * self.before / max(1, self.asked)
        self.before += 1
        return self.seconds > 0.0 and self.used <= share

    def add(self, seconds: float) -> None:
        self.used += seconds


# Measured on an H200, with what is around the timing: buffers, references, kernels looked up.
SECONDS_PER_CASE = {
    "mm": 0.25,
    "addmm": 0.17,
    "fused": 0.45,
    "scaled": 0.18,
    "grouped": 0.22,
    "conv": 0.5,
    "host": 0.5,
}
SECONDS_PER_COMPILE = 13.0


class TimeLeft:
    """How long the sections that are planned will still take, from the pace so far.

    Args:
        planned: seconds and cases expected of each section, in their order
    """

    TRUST = 10  # the first guess counts as much as so many cases

    def __init__(self, planned: Mapping[str, tuple[float, int]]) -> None:
        self.planned = dict(planned)

    def after(self, section: str, done: int, seconds: float) -> float:
        """Seconds left when `done` cases of a section took so many seconds."""
        names = list(self.planned)
        expected, cases = self.planned[section]
        guess = expected / max(1, cases)
        pace = (seconds + self.TRUST * guess) / (done + self.TRUST)
        later = names[names.index(section) + 1 :]
        return pace * (cases - done) + sum(self.planned[name][0] for name in later)
