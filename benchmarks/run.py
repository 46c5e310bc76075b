"""From problems to sections of a results file: one case after another, within a budget of time,
whatever happens to single ones."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from cutwheel.tuning.case import AGAIN, Case, Function, Setting, SkippedError
from cutwheel.tuning.cases import DTYPES
from cutwheel.tuning.measure import Call, Clock, GraphClock, Operands, Spread
from cutwheel.tuning.shapes import Gemm

from . import problems
from .compare import Limits, Measurement, compare, compare_on_host, describe, spread_of
from .problems import COMPILED, Options, Problem
from .report import record
from .suites import CaseTimeout, Suite, limited, time_limit

Row = dict[str, Any]
QUICK = Limits(case_seconds=0.2, max_rounds=9)
SAVE_SECONDS = 20.0  # between two states of a section that is not complete
# Measured on an H200, with what is around the timing: buffers, references, kernels looked up.
SECONDS_PER_CASE = {
    "mm": 0.25,
    "addmm": 0.17,
    "bmm": 0.1,
    "fused": 0.45,
    "scaled": 0.18,
    "grouped": 0.22,
    "conv": 0.5,
    "volumes": 0.7,
    "models": 5.0,
    "host": 0.5,
    "cold": 1.7,
}
SECONDS_PER_COMPILE = {"models": 50.0}  # the model and the fused one
SECONDS_PER_COMPILATION = 13.0  # of others
COMPILATIONS = {"scaled": 6}  # a scaling, quantisation by recipe


def suite_of(op: str) -> Suite:
    name = "gemm" if op in ("mm", "addmm", "bmm") else op
    found: Suite = importlib.import_module(f"{__package__}.suites.{name}").SUITE
    return found


def operands_of(dtype: str) -> Operands:
    """On the GPU at hand; DTYPES has what sections of another dtype are called."""
    device = torch.device("cuda", torch.cuda.current_device())
    l2_bytes = torch.cuda.get_device_properties(device).L2_cache_size
    return Operands(device, l2_bytes, DTYPES[dtype])


# ---- rows
def row(problem: Problem, case: Case | None, found: Measurement) -> Row:
    """One result, ready for JSON. Times in microseconds for one call."""
    providers: dict[str, Any] = {
        name: {"relative_error": error.relative, "worst_error": error.worst}
        for name, error in found.errors.items()
    }
    for name, seconds in found.times.items():
        providers[name]["us"] = spread_of(seconds, 1e6)
        if case and case.flops:
            providers[name]["tflops"] = case.flops / seconds.median * 1e-12
        if case:
            providers[name]["gbs"] = case.min_bytes / seconds.median * 1e-9
    ratios = []
    for pair, ratio in found.ratios.items():
        entry: dict[str, Any] = {"side": pair[0], "baseline": pair[1], **spread_of(ratio)}
        if case and pair in case.forms:
            entry["form"] = case.forms[pair]
        ratios.append(entry)
    reasons = [text for text in (case.left_out if case else "", found.reason) if text]
    return {
        **problem.fields(),
        "status": found.status,
        "reason": "; ".join(reasons),
        "kernels": dict(case.kernels) if case else {},
        "ratios": ratios,
        "flops_per_byte": case.flops / case.min_bytes if case else None,
        "sides": providers,
        "slots": case.buffers if case else 0,
        "iterations": found.iterations,
        "rounds": found.rounds,
    }


def measure(
    wanted: Sequence[Problem],
    make: Callable[[Problem], Case],
    clock: Clock,
    limits: Limits,
    budget_seconds: float | None = None,
    progress: Callable[[list[Row]], None] = lambda rows: None,
    most_seconds: float | None = None,
) -> list[Row]:
    """All in order. A problem that fails is recorded as such and does not stop the others.

    Args:
        make: may raise SkippedError
        progress: called with the rows so far after each problem
        most_seconds: that a problem may take, from making it to the last replay
    """
    end = None if budget_seconds is None else time.monotonic() + budget_seconds
    rows: list[Row] = []
    lost = ""
    for index, problem in enumerate(wanted):
        remaining = None if end is None else end - time.monotonic()
        seconds = allowance(remaining, len(wanted) - index, limits)
        if lost or seconds == 0.0:
            reason = lost or f"the budget of {budget_seconds:g} s was used up"
            rows.append(row(problem, None, Measurement("skipped", reason)))
        else:
            rows.append(_one(problem, make, clock, limits, seconds, most_seconds))
            lost = release()
        progress(rows)
    return rows


def _one(
    problem: Problem,
    make: Callable[[Problem], Case],
    clock: Clock,
    limits: Limits,
    seconds: float,
    most_seconds: float | None,
) -> Row:
    """Its buffers are free once this has returned."""
    limit = time_limit(most_seconds, "the case", CaseTimeout) if most_seconds else nullcontext()
    try:
        with limit:
            case = make(problem)
            return row(problem, case, compare(case, clock, limits, seconds))
    except SkippedError as reason:
        return row(problem, None, Measurement("skipped", str(reason)))
    except torch.OutOfMemoryError as error:  # of operands and references
        return row(problem, None, Measurement("skipped", describe(error)))
    except (RuntimeError, TypeError, ValueError, CaseTimeout) as error:
        return row(problem, None, Measurement("failed", describe(error)))


def allowance(remaining: float | None, cases_left: int, limits: Limits) -> float:
    """Seconds for timing the next case; half of its share, since setting up and checking cost too.

    `remaining` is what is left of the whole run's budget, None for no budget. 0.0 means: skip.
    """
    if remaining is None:
        return limits.case_seconds
    if remaining <= 0.0:
        return 0.0
    return min(limits.case_seconds, 0.5 * remaining / max(1, cases_left))


def release() -> str:
    """Gives the buffers of a case back; says so if the CUDA context did not survive it."""
    try:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
    except RuntimeError as error:
        return f"an earlier shape broke the CUDA context ({describe(error)})"
    return ""


def ceilings(operands: Operands, size: int = 8192) -> dict[str, float]:
    """Rates that this GPU reaches now, by a large copy (bytes read plus written) and torch.mm."""
    clock = GraphClock(operands.device)
    source = torch.randn(1 << 29, dtype=torch.bfloat16, device=operands.device)  # 1 GiB
    target = torch.empty_like(source)
    a = operands.normal(size, size)
    d = torch.empty_like(a)

    def best(call: Call) -> float:
        clock.warm_up(call, 1)
        replay = clock.record(call, 1, 4)
        return Spread.of([replay.seconds() for _ in range(7)]).median

    copy = best(lambda _: target.copy_(source))
    gemm = best(lambda _: torch.mm(a, a, out=d))
    return {
        "gbs": 2 * source.nbytes / copy * 1e-9,
        "tflops": 2 * size**3 / gemm * 1e-12,
    }


# ---- torch.compile as one more baseline
@dataclass(frozen=True)
class Compiling:
    """Which cases have torch.compile among their baselines."""

    mode: str
    groups: Sequence[str]
    at: set[Gemm] | None
    """shapes that ask for it; None: all"""
    seconds: float
    """that one compilation may take"""

    def asks(self, problem: Problem) -> bool:
        return problem.group in self.groups and (self.at is None or problem.shape in self.at)

    def record(self, wanted: Sequence[Problem], rows: Sequence[Row]) -> dict[str, Any]:
        """cases: which torch.compile could be a baseline of; asked: which it was to be one of."""
        measured = sum(
            any("compile" in name and "us" in provider for name, provider in row["sides"].items())
            for row in rows
        )
        return {
            "mode": self.mode,
            "cases": sum(row["group"] in self.groups for row in rows),
            "asked": sum(map(self.asks, wanted)),
            "measured": measured,
        }


def compiling_of(name: str, given: Options, mode: str) -> Compiling | None:
    """None for sections in which torch.compile is no baseline."""
    op, _, dtype = name.partition("_")
    if op not in COMPILED or dtype:
        return None
    table = {"mm": "gemm", "fused": "fused"}.get(op)
    at = problems.compiled_shapes(problems.load(), table) if table else None
    if given.no_compile or given.quick:
        at = set()
    return Compiling(mode, COMPILED[op], at, given.compile_seconds)


def keep_caches_in_tmpdir() -> None:
    """Moves torch.compile's caches, as the home folder of a GPU machine may be read-only."""
    folder = Path(tempfile.gettempdir())
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder / "cutwheel_inductor"))
    os.environ.setdefault("TRITON_CACHE_DIR", str(folder / "cutwheel_triton"))


def maker(
    suite: Suite, operands: Operands, compiling: Compiling | None, candidate: str
) -> Callable[[Problem], Case]:
    """candidate: "cutwheel", or "torch" to see what the benchmark calls a difference"""

    def compiled(function: Function) -> Function:
        assert suite.compiled is not None
        assert compiling is not None
        return limited(suite.compiled(function, compiling.mode), compiling.seconds)

    def passed(function: Function) -> Function:
        assert suite.passed is not None
        assert compiling is not None
        return limited(suite.passed(function), compiling.seconds)

    def make(problem: Problem) -> Case:
        setting = Setting(problem.shape, operands, problem.variant)
        if compiling and compiling.asks(problem):
            further = passed if suite.passed is not None else None
            setting = replace(setting, compiled=compiled, passed=further)
        case = suite.groups[problem.group](setting)
        return case.against_itself() if candidate == "torch" else case

    return make


# ---- how long it takes
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


def planned(sections: Sequence[str], given: Options) -> dict[str, tuple[float, int]]:
    """Seconds expected and cases of each section."""
    found = {}
    for name in sections:
        op = name.partition("_")[0]
        wanted = problems.of_section(name, given).all
        cases = len(wanted) or 30  # CPU times
        seconds = cases * SECONDS_PER_CASE[op]
        if compiling := compiling_of(name, given, ""):
            asked = sum(map(compiling.asks, wanted))
            each = SECONDS_PER_COMPILE.get(op, SECONDS_PER_COMPILATION)
            seconds += min(asked, COMPILATIONS.get(op, asked)) * each
        found[name] = (seconds, cases)
    return found


# ---- sections
@dataclass
class Run:
    """Measures sections with one environment, at one commit, into one file.

    part: what makes the run a part of its sections; empty for whole ones
    """

    given: Options
    environment: Mapping[str, Any]
    path: Path
    part: str
    left: TimeLeft
    started: float = field(default_factory=time.monotonic)

    @property
    def name(self) -> str:
        return AGAIN if self.given.candidate == "torch" else "cutwheel"

    def budget(self) -> float | None:
        if self.given.budget_seconds is None:
            return None
        remaining: float = self.given.budget_seconds - (time.monotonic() - self.started)
        return max(0.0, remaining)

    def section(self, name: str) -> dict[str, Any]:
        """Measures a section and writes it."""
        started = time.monotonic()
        made: dict[str, Any] = {"candidate": self.name, "environment": self.environment}
        if self.part:
            made["part"] = self.part
        op, _, dtype = name.partition("_")
        suite = suite_of(op)
        with suite.context(dtype):
            if suite.alone:
                # torch in our place imports nothing.
                made["results"] = suite.alone(self.given.quick) if self.name == "cutwheel" else []
            elif op == "host":
                made["results"] = self.host(suite)
            else:
                self._measure(name, suite, made, started)
        made["seconds"] = time.monotonic() - started
        record.write_section(self.path, name, made)
        return made

    def host(self, suite: Suite) -> list[Row]:
        assert suite.host is not None
        return compare_on_host(suite.host("cuda"), 15 if self.given.quick else 60, self.name)

    def fields(self, suite: Suite, dtype: str) -> dict[str, Any]:
        """A section's fields besides its results."""
        found = {"dtype": dtype or suite.dtype} | suite.fields()
        if suite.has_ceilings:
            found["ceilings"] = ceilings(operands_of(dtype or "bf16"))
        if suite.host:
            found["host"] = self.host(suite)
        return found

    def clock(self) -> Clock:
        return GraphClock(torch.device("cuda", torch.cuda.current_device()))

    def _measure(self, name: str, suite: Suite, made: dict[str, Any], started: float) -> None:
        dtype = name.partition("_")[2]
        wanted = problems.of_section(name, self.given)
        compiling = compiling_of(name, self.given, suite.mode)
        keep_caches_in_tmpdir()
        made |= self.fields(suite, dtype)
        if wanted.drawn:
            made["drawn"] = {"seed": self.given.seed, "cases": len(wanted.drawn)}
        unfinished = self.path.with_name(self.path.stem + ".unfinished")
        saved = time.monotonic()

        def progress(rows: list[Row]) -> None:
            nonlocal saved
            if len(rows) > len(wanted.listed):
                rows[-1]["drawn"] = True
            self._tell(name, wanted.all[len(rows) - 1], rows, time.monotonic() - started)
            if time.monotonic() - saved > SAVE_SECONDS:
                unfinished.unlink(missing_ok=True)
                so_far = made | {"part": "unfinished", "results": rows}
                record.write_section(unfinished, name, so_far)
                saved = time.monotonic()

        made["results"] = measure(
            wanted.all,
            maker(suite, operands_of(dtype or "bf16"), compiling, self.given.candidate),
            self.clock(),
            QUICK if self.given.quick else suite.limits,
            self.budget(),
            progress,
            self.given.case_seconds,
        )
        if compiling:
            made["compile"] = compiling.record(wanted.all, made["results"])
        unfinished.unlink(missing_ok=True)

    def _tell(self, name: str, problem: Problem, rows: Sequence[Row], seconds: float) -> None:
        last = rows[-1]
        found = [f"{entry['baseline']} {entry['median']:.3f}" for entry in last["ratios"]]
        state = ", ".join(found) or f"{last['status']}, {last['reason']}"
        left = self.left.after(name, len(rows), seconds)
        cases = self.left.planned[name][1]
        where = f"{name} {len(rows)}/{cases} {seconds:.0f} s, {left:.0f} s left of all"
        print(f"[{where}] {problem}: {state}", file=sys.stderr)
