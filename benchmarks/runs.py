"""From the command line to sections of a results file: which cases, with what, how far it is."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import conv_jobs, grouped_jobs, held_out, options, plan, record, scaled_jobs, shapes

Options = argparse.Namespace
Rows = list[dict[str, Any]]
SAVE_SECONDS = 20.0  # between two states of a section that is not complete
LAYERS_KEPT_ASIDE = ("bias_gelu", "bias_residual", "gated_silu")
PRODUCTS_KEPT_ASIDE = ("rowwise", "tensorwise", "blockwise", "int8")
COMPILATIONS = {"scaled": 6, "conv": 2}  # a scaling, quantisation by recipe; a whole model
LEFT_OUT = "compile: left out"  # begins the reason that fused.make gives


# ---- cases
@dataclass(frozen=True)
class Jobs:
    """Of one section: those of the lists, then those of shapes kept aside."""

    listed: Sequence[Any]
    aside: Sequence[Any] = ()

    @property
    def all(self) -> list[Any]:
        return [*self.listed, *self.aside]


def jobs_of(name: str, given: Options) -> Jobs:
    """Needs neither torch nor a GPU; none for `host`."""
    found: Callable[[str, Options, Mapping[str, Any]], Jobs] = {
        "mm": _dense,
        "addmm": _dense,
        "fused": _fused,
        "scaled": _scaled,
        "grouped": _grouped,
        "conv": _conv,
        "host": lambda *_: Jobs([]),
    }[name.partition("_")[0]]
    return found(name.partition("_")[0], given, shapes.load())


def _of(given: Options, name: str) -> Any:
    return getattr(given, name, None)


def _dense(op: str, given: Options, table: Mapping[str, Any]) -> Jobs:
    sizes = {"m": given.m, "nk": given.nk, "square": _of(given, "square")}
    listed = shapes.gemm_shapes(table, quick=given.quick, **sizes)
    aside = held_out.products(table, given.held_out, given.seed)
    return Jobs(*([shapes.ProductJob(op, shape) for shape in some] for some in (listed, aside)))


def _fused(_: str, given: Options, table: Mapping[str, Any]) -> Jobs:
    wanted = shapes.fused_shapes(table, quick=given.quick, m=given.m, nk=given.nk)
    groups = given.groups or options.GROUPS
    aside = held_out.products(table, given.held_out * 2 // 3, given.seed, least_m=64)
    return Jobs(
        [shapes.ProductJob(group, shape) for group in groups for shape in wanted],
        [
            shapes.ProductJob(group, shape)
            for group in LAYERS_KEPT_ASIDE
            if group in groups
            for shape in aside
        ],
    )


def _scaled(_: str, given: Options, table: Mapping[str, Any]) -> Jobs:
    products = shapes.gemm_shapes(table, quick=given.quick, m=given.m, nk=given.nk)
    chosen = given.recipes or [list(scaled_jobs.RECIPES)]
    recipes = [name for names in chosen for name in names]
    accumulation = given.accumulation or tuple(scaled_jobs.ACCUMULATION)
    aside = held_out.products(table, given.held_out, given.seed)
    of_aside = [name for name in recipes if name in PRODUCTS_KEPT_ASIDE]
    return Jobs(
        scaled_jobs.jobs(table, products, recipes, accumulation, given.limit),
        scaled_jobs.jobs(table, aside, of_aside, accumulation),
    )


def _grouped(_: str, given: Options, table: Mapping[str, Any]) -> Jobs:
    wanted = grouped_jobs.shapes(table, quick=given.quick)
    if given.cases is not None:
        wanted = [wanted[number] for number in given.cases]
    products = given.products or grouped_jobs.GROUPS
    aside = held_out.groups(table, given.held_out // 3, given.seed)
    return Jobs(
        grouped_jobs.jobs(wanted, products, given.skew or grouped_jobs.SKEWS),
        grouped_jobs.jobs(aside, products, ["skewed"]),
    )


def _conv(_: str, given: Options, table: Mapping[str, Any]) -> Jobs:
    wanted = conv_jobs.shapes(table, quick=given.quick)
    if given.convs is not None:
        wanted = [wanted[number] for number in given.convs]
    directions = given.directions or conv_jobs.GROUPS
    aside = held_out.convolutions(table, given.held_out // 2, given.seed)
    layers = [group for group in directions if group != "resnet50"]
    return Jobs(conv_jobs.jobs(wanted, directions), conv_jobs.jobs(aside, layers))


# ---- what a section is measured with
@dataclass
class Setup:
    make: Callable[[Any], Any]  # of a session.Made
    limits: plan.Limits
    fields: dict[str, Any] = field(default_factory=dict)  # of the section, beside its results
    context: AbstractContextManager[Any] = field(default_factory=nullcontext)
    clock: Any = None  # a harness.Clock; none: CUDA graphs
    compile: Callable[[Rows], dict[str, Any]] | None = None  # the record of torch.compile


def setup_of(name: str, given: Options, jobs: Jobs) -> Setup:
    """The modules that need torch are imported here."""
    op, _, dtype = name.partition("_")
    if op in ("mm", "addmm"):
        return _setup_dense(dtype or "bf16", given)
    setups = {
        "fused": _setup_fused,
        "scaled": _setup_scaled,
        "grouped": _setup_grouped,
        "conv": _setup_conv,
    }
    return setups[op](given, jobs)


def _limits(given: Options, limits: plan.Limits) -> plan.Limits:
    return plan.QUICK if given.quick else limits


def _repeats(given: Options) -> int:
    return 15 if given.quick else 60


def _setup_dense(dtype: str, given: Options) -> Setup:
    from . import gemm

    with gemm.precision(dtype):
        fields = {"dtype": dtype, "ceilings": gemm.ceilings(dtype)}
    limits = _limits(given, plan.Limits())
    return Setup(gemm.maker(dtype, given.candidate), limits, fields, gemm.precision(dtype))


def _setup_fused(given: Options, jobs: Jobs) -> Setup:
    from . import fused, gemm, sides

    at = compile_at(given)
    asked = sum(fused.asks_for_compile(job, at) for job in jobs.all)
    budget = plan.CompileBudget(given.compile_seconds, asked)

    def compile(rows: Rows) -> dict[str, Any]:
        cases = sum(row["group"] in fused.COMPILED for row in rows)
        found = compile_record(rows, sides.MODE, cases, asked)
        return found | {"seconds": budget.used, "budget_seconds": budget.seconds}

    fields = {
        "dtype": fused.DTYPE,
        "addmm_activation": sides.form_of_addmm_activation(),
        "ceilings": gemm.ceilings(fused.DTYPE),
    }
    make = fused.maker(given.candidate, at, budget)
    return Setup(make, _limits(given, fused.LIMITS), fields, compile=compile)


def compile_at(given: Options) -> set[shapes.GemmShape] | None:
    """Shapes of `fused` with torch.compile among their baselines; None: all."""
    off = given.no_compile or given.quick
    return shapes.compiled_shapes(shapes.load(), ["none"] if off else given.compile)


def compile_record(rows: Rows, mode: str, cases: int, asked: int) -> dict[str, Any]:
    """cases: which torch.compile could be a baseline of; asked: which it was to be one of."""
    measured = sum(
        any("compile" in name and "us" in side for name, side in row["sides"].items())
        for row in rows
    )
    left_out = sum(LEFT_OUT in row["reason"] for row in rows)
    return {
        "mode": mode,
        "cases": cases,
        "asked": asked,
        "measured": measured,
        "left_out": left_out,
    }


def _setup_scaled(given: Options, jobs: Jobs) -> Setup:
    from . import scaled

    is_compiled = not (given.no_compile or given.quick)

    def compile(rows: Rows) -> dict[str, Any]:
        cases = sum(row["group"] in ("int8", "quantize") for row in rows)
        return compile_record(rows, "dynamic=True", cases, cases if is_compiled else 0)

    make = scaled.maker(given.candidate, is_compiled)
    limits = _limits(given, scaled.LIMITS)
    return Setup(make, limits, {"dtype": scaled_jobs.DTYPE}, compile=compile)


def _setup_grouped(given: Options, jobs: Jobs) -> Setup:
    from . import grouped, grouped_host, host

    cpu = host.measure(_repeats(given), given.candidate, grouped_host.make_cases)
    fields = {"dtype": grouped_jobs.DTYPE, "host": cpu}
    return Setup(grouped.maker(given.candidate), _limits(given, grouped.LIMITS), fields)


def _setup_conv(given: Options, jobs: Jobs) -> Setup:
    from . import conv, conv_host, conv_sides, host

    off = given.no_compile or given.resnet_compile == "none"
    mode = None if off else given.resnet_compile

    def compile(rows: Rows) -> dict[str, Any]:
        cases = sum(row["group"] == "resnet50" for row in rows)
        return compile_record(rows, given.resnet_compile, cases, 0 if off else cases)

    with conv_sides.tuned_cudnn():
        cpu = host.measure(_repeats(given), given.candidate, conv_host.make_cases)
    fields = {"dtype": conv_jobs.DTYPE, "host": cpu}
    limits, context = _limits(given, conv.LIMITS), conv_sides.tuned_cudnn()
    return Setup(conv.maker(given.candidate, mode), limits, fields, context, compile=compile)


# ---- runs
@dataclass
class Run:
    """Of one or more sections: all with one environment, one commit and one file."""

    given: Options
    environment: Mapping[str, Any]
    path: Path
    left: plan.TimeLeft
    started: float = field(default_factory=time.monotonic)

    @classmethod
    def of(cls, given: Options) -> Run:
        environment = record.environment(given.commit, given.candidate)
        path = options.output_path(given, environment["gpu"])
        return cls(given, environment, path, plan.TimeLeft(planned(given)))

    def budget(self) -> float | None:
        if self.given.budget_seconds is None:
            return None
        remaining: float = self.given.budget_seconds - (time.monotonic() - self.started)
        return max(0.0, remaining)

    def section(self, name: str) -> dict[str, Any]:
        """Measures a section and writes it."""
        started = time.monotonic()
        made: dict[str, Any] = {
            "candidate": "torch (again)" if self.given.candidate == "torch" else "cutwheel",
            "environment": self.environment,
        }
        part = options.part_of(self.given)
        if part:
            made["part"] = part
        if name == "host":
            from . import host  # reports need no torch

            made["results"] = host.measure(_repeats(self.given), self.given.candidate)
        else:
            self._measure(name, made, started)
        made["seconds"] = time.monotonic() - started
        record.write_section(self.path, name, made)
        return made

    def _measure(self, name: str, made: dict[str, Any], started: float) -> None:
        from . import session  # reports need no torch

        jobs = jobs_of(name, self.given)
        setup = setup_of(name, self.given, jobs)
        made |= setup.fields
        if jobs.aside:
            made["held_out"] = {"seed": self.given.seed, "cases": len(jobs.aside)}
        unfinished = self.path.with_name(self.path.stem + ".unfinished")
        saved = time.monotonic()

        def progress(rows: Rows) -> None:
            nonlocal saved
            if len(rows) > len(jobs.listed):
                rows[-1]["held_out"] = True
            seconds = time.monotonic() - started
            self._tell(name, jobs.all[len(rows) - 1], rows, len(jobs.all), seconds)
            if time.monotonic() - saved > SAVE_SECONDS:
                unfinished.unlink(missing_ok=True)
                record.write_section(
                    unfinished, name, made | {"part": "unfinished", "results": rows}
                )
                saved = time.monotonic()

        with setup.context:
            made["results"] = session.measure(
                jobs.all,
                setup.make,
                setup.limits,
                clock=setup.clock,
                budget_seconds=self.budget(),
                progress=progress,
            )
        if setup.compile:
            made["compile"] = setup.compile(made["results"])
        unfinished.unlink(missing_ok=True)

    def _tell(self, name: str, job: Any, rows: Rows, cases: int, seconds: float) -> None:
        last = rows[-1]
        found = [f"{entry['baseline']} {entry['median']:.3f}" for entry in last["ratios"]]
        state = ", ".join(found) or f"{last['status']}, {last['reason']}"
        left = self.left.after(name, len(rows), seconds)
        where = f"{name} {len(rows)}/{cases} {seconds:.0f} s, {left:.0f} s left of all"
        print(f"[{where}] {job}: {state}", file=sys.stderr)


def planned(given: Options) -> dict[str, tuple[float, int]]:
    """Seconds expected and cases of each section."""
    found = {}
    for name in options.sections_of(given):
        op = name.partition("_")[0]
        jobs = jobs_of(name, given).all
        cases = len(jobs) or 30  # CPU times
        seconds = cases * plan.SECONDS_PER_CASE[op]
        if op == "fused":
            at = compile_at(given)
            asked = sum(
                job.group in LAYERS_KEPT_ASIDE and (at is None or job.shape in at) for job in jobs
            )
            seconds += min(given.compile_seconds, asked * plan.SECONDS_PER_COMPILE)
        elif not (given.no_compile or given.quick):
            seconds += COMPILATIONS.get(op, 0) * plan.SECONDS_PER_COMPILE
        found[name] = (seconds, cases)
    return found
