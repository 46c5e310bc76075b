"""The problems by section, how each is measured, and small ones for tests."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cutwheel.tuning.case import Case
from cutwheel.tuning.shapes import Gemm

from ..problems import Problem
from ..run import row
from . import blocks, experts, overlap, sms
from .blocks import Block
from .experts import Experts
from .sms import Sizes
from .team import Team
from .timing import Limits, Timer, compare

Row = dict[str, Any]
LAUNCHED = "_launched"
"""behind the name of a group whose calls start as the host launches them"""


@dataclass(frozen=True)
class Task:
    problem: Problem
    small: Any
    """the shape in tests"""
    measure: Callable[[Team, Problem, Limits], list[Row]]

    def rows(self, team: Team, limits: Limits) -> list[Row]:
        problem = self.problem
        if team.is_small:
            problem = problem._replace(shape=self.small)
        return self.measure(team, problem, limits)


def _timed(
    make: Callable[[Team, Any], Case],
    clocks: tuple[bool, ...],
    team: Team,
    problem: Problem,
    limits: Limits,
) -> list[Row]:
    """clocks: whether calls are queued before they are timed"""
    case = make(team, problem.shape)
    suffixes = {True: "", False: LAUNCHED if len(clocks) > 1 else ""}
    timers = {suffixes[queued]: Timer(team, queued) for queued in clocks}
    found = compare(team, case, limits, timers)
    return [
        row(problem._replace(group=problem.group + suffix), case, measurement)
        for suffix, measurement in zip(timers, found, strict=True)
    ]


def _all_reduce(team: Team, problem: Problem, limits: Limits) -> list[Row]:
    return [row(problem, *sms.measure(team, problem.shape, limits))]


def _task(
    group: str, shape: Any, small: Any, make: Callable[[Team, Any], Case], *clocks: bool
) -> Task:
    return Task(Problem(group, shape), small, functools.partial(_timed, make, clocks))


QUEUED, HOST = True, False
LLAMA, SMALL_LLAMA = Block(4096, 4096, 14336, 32, 8), Block(16, 64, 128, 8, 4)
MIXTRAL, QWEN = Experts(4096, 8, 2, 4096, 14336), Experts(4096, 128, 8, 2048, 768)
SMALL_EXPERTS = Experts(24, 4, 2, 32, 16)
LARGE = Gemm(8192, 28672, 8192), Gemm(8192, 8192, 28672)
MEDIUM = Gemm(4096, 14336, 4096), Gemm(4096, 4096, 14336)
SMALL = Gemm(16, 32, 24)
SUMS = 1 << 27  # 256 MiB


def _gradients(make: Callable[..., Case]) -> Callable[[Team, Any], Case]:
    return functools.partial(make, is_training=True)


def _forward(make: Callable[..., Case]) -> Callable[[Team, Any], Case]:
    return functools.partial(make, is_training=False)


SECTIONS: Mapping[str, list[Task]] = {
    "tensor_parallel": [
        _task("block", LLAMA, SMALL_LLAMA, _forward(blocks.case), QUEUED, HOST),
        _task("block_training", LLAMA, SMALL_LLAMA, _gradients(blocks.case), QUEUED, HOST),
    ],
    "overlap": [
        *(_task("all_gather", pair[0], SMALL, overlap.gather, QUEUED) for pair in (LARGE, MEDIUM)),
        *(
            _task("all_gather_gated", pair[0], SMALL, overlap.gather_gated, QUEUED)
            for pair in (LARGE, MEDIUM)
        ),
        *(
            _task("reduce_scatter", pair[1], SMALL, overlap.scatter, QUEUED)
            for pair in (LARGE, MEDIUM)
        ),
        _task("uneven", Gemm(300, 2048, 1024), SMALL, overlap.uneven, HOST),
    ],
    "sms": [
        Task(Problem("all_reduce", Sizes(SUMS, 8192, 0)), Sizes(64, 16, 0), _all_reduce),
        Task(Problem("all_reduce", Sizes(SUMS, 8192, 16)), Sizes(64, 16, 0), _all_reduce),
    ],
    "expert_parallel": [
        _task("experts", MIXTRAL, SMALL_EXPERTS, _forward(experts.case), HOST),
        _task("experts_training", MIXTRAL, SMALL_EXPERTS, _gradients(experts.case), HOST),
        _task("experts", QWEN, SMALL_EXPERTS, _forward(experts.case), HOST),
        _task("experts_training", QWEN, SMALL_EXPERTS, _gradients(experts.case), HOST),
    ],
}


def tasks(sections: tuple[str, ...] | list[str]) -> dict[str, Task]:
    """By name, in their order."""
    return {
        f"{section}: {task.problem}": task for section in sections for task in SECTIONS[section]
    }
