"""The tuner without a GPU: cases on the CPU, a search by a synthetic clock, journals, reports."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

cutwheel = pytest.importorskip("cutwheel", reason="needs the built package (make test builds it)")

from selection import H200, explain  # noqa: E402

from cutwheel.tuning import cases, check, command, jobs, journal, report, search  # noqa: E402
from cutwheel.tuning.cases import Case, Maker  # noqa: E402
from cutwheel.tuning.cases_more import make_case  # noqa: E402
from cutwheel.tuning.clock import calls_for  # noqa: E402
from cutwheel.tuning.journal import Candidate, Journal, JournalError, Record, Setup  # noqa: E402
from cutwheel.tuning.table import Gpu, Request, parse  # noqa: E402

if TYPE_CHECKING:
    from cpu_reference import CpuOps

GPU = Gpu("described", (9, 0), H200.sms, H200.bandwidth, H200.clock, 50 << 20)
SETUP = Setup(GPU, "0.1.0", "digest")
Plan = tuple[str, str, int, int]


# ---- jobs

DOCUMENT = {
    "gemm": {
        "m": [1, 64],
        "nk": [[32, 16], [8, 8]],
        "square": [128],
        "quick": {"m": [1], "nk": []},
    },
    "grouped": {"cases": [[2, 64, 32, 16]]},
    "conv": {"cases": [[1, 8, 6, 6, 16, 3, 3, 1, 0, 1]]},
}


def test_shapes_of_a_file() -> None:
    assert jobs.shapes_of(DOCUMENT, "mm") == [
        *((m, 32, 16) for m in (1, 64)),
        *((m, 8, 8) for m in (1, 64)),
        (128, 128, 128),
    ]
    assert jobs.shapes_of(DOCUMENT, "grouped_mm") == [(2, 64, 32, 16)]
    assert jobs.shapes_of(DOCUMENT, "conv2d") == [(1, 8, 6, 6, 16, 3, 3, 1, 0, 1)]
    assert jobs.shapes_of(DOCUMENT, "mm", quick=True) == []


def test_the_shapes_of_the_benchmarks_are_read() -> None:
    path = Path(__file__).parents[2] / "benchmarks" / "shapes.toml"
    document = jobs.read_toml(path)
    assert (4096, 28672, 4096) in jobs.shapes_of(document, "scaled_mm")
    assert len(jobs.shapes_of(document, "conv2d")) == 19


def test_families_take_what_is_left_out_from_the_options() -> None:
    names = [str(f) for f in jobs.families(["mm", "linear::gelu", "mm:f16"], ["tf32"], [])]
    assert names == ["mm:tf32:plain", "linear:tf32:gelu", "mm:f16:plain"]
    assert [str(f) for f in jobs.families(["gemm"], [], ["bias_gelu"])] == ["gemm:bf16:bias_gelu"]
    assert str(jobs.families(["scaled_mm:fp8:rowwise+fast"], [], [])[0]).endswith("rowwise+fast")


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["mmm"], "expected one of mm, addmm"),
        (["mm:fp8"], "dtype fp8: expected bf16"),
        (["conv2d:bf16:up"], "variant up: expected fprop"),
        (["gemm"], "which epilogue"),
    ],
)
def test_a_family_that_means_nothing_is_refused(texts: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        jobs.families(texts, [], [])


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ("1x2", "fits none"),
        ("1x2xthree", "expected MxNxK"),
        ("0x2x3", "at least 1"),
        ("1x8x6x6x16x3x3x0x0x1", "at least 1"),
    ],
)
def test_a_shape_that_means_nothing_is_refused(shape: str, message: str) -> None:
    wanted = jobs.families(["mm", "conv2d"], [], [])
    with pytest.raises(ValueError, match=message):
        jobs.jobs_of(wanted, ["1x2x3", "1x8x6x6x16x3x3x1x0x1", shape], None)


def test_a_family_without_shapes_is_refused() -> None:
    with pytest.raises(ValueError, match=r"conv2d:bf16:fprop has no shapes: give --shape NxCxH"):
        jobs.jobs_of(jobs.families(["conv2d"], [], []), [], None)
    with pytest.raises(ValueError, match=r"\[gemm\] has no lists"):
        jobs.shapes_of({"gemm": {"m": 3, "nk": [[1, 2]]}}, "mm")


# ---- cases: what is called computes what the reference says

FAMILIES = [
    *("mm", "mm:f16", "addmm:bf16:row", "addmm:bf16:matrix", "linear:bf16:bias"),
    *(f"linear::{activation}" for activation in jobs.OPS["linear"].variants[1:]),
    *("gemm::linear_combination", "gemm::bias_leaky_relu"),
    *(f"scaled_mm:fp8:{variant}" for variant in jobs.OPS["scaled_mm"].variants),
    *(f"scaled_mm:int8:{variant}" for variant in ("rowwise", "tensorwise")),
    *(f"grouped_mm:bf16:{variant}" for variant in jobs.OPS["grouped_mm"].variants),
    *(f"scaled_grouped_mm:fp8:{variant}" for variant in jobs.OPS["scaled_grouped_mm"].variants),
    *(f"conv2d:bf16:{variant}" for variant in jobs.OPS["conv2d"].variants),
]
SHAPES = {
    jobs.GEMM: "24x256x384",
    jobs.GROUPED: "3x50x128x256",
    jobs.CONV: "2x16x9x8x24x3x2x2x1x1",
}


def made(text: str) -> Case:
    (family,) = jobs.families([text], [], [])
    shape = SHAPES[jobs.OPS[family.op].table]
    (job,) = jobs.jobs_of([family], [shape], None)
    return make_case(Maker(job, torch.device("cpu"), 1 << 12))


@pytest.mark.parametrize("text", FAMILIES)
def test_the_reference_of_a_case_is_what_its_call_computes(cpu_ops: CpuOps, text: str) -> None:
    case = made(text)
    assert case.slots >= 1
    expected = case.reference()
    result = case.call(0)
    error = check.Error.of(case.part(result), expected)
    assert check.is_right(error, check.tolerance(None, result.dtype)), error
    if case.slots > 1:
        assert not torch.equal(result, case.call(case.slots - 1)), (
            "slots have operands of their own"
        )


@pytest.mark.parametrize("name", [e.name for e in cutwheel.epilogues() if e.has_accum])
def test_references_of_epilogues_are_those_of_the_kernels_tests(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both read the manifest's expressions, with evaluators of their own."""
    path = Path(__file__).parents[1] / "ops" / "epilogue_reference.py"
    spec = importlib.util.spec_from_file_location("epilogue_reference_of_ops", path)
    assert spec is not None
    assert spec.loader is not None
    reference = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, reference)
    spec.loader.exec_module(reference)
    manifest = Path(cutwheel.__file__).with_name("manifest.json")
    declared = json.loads(manifest.read_text("utf-8"))["epilogues"][name]
    epilogue = reference.Epilogue.of(name, declared)

    def gemm(a: torch.Tensor, b: torch.Tensor, _: str, **operands: Any) -> torch.Tensor:
        values = {
            key: reference.placed(epilogue.tensors[key], value.double())
            if isinstance(value, torch.Tensor)
            else value
            for key, value in operands.items()
        }
        d = reference.evaluate(epilogue, {**values, "accum": a.double() @ b.double()})[0]
        return d.to(a.dtype)

    monkeypatch.setattr(cases, "gemm", gemm)
    case = made(f"gemm::{name}")
    result = case.call(0)
    error = check.Error.of(result, case.reference())
    assert check.is_right(error, check.tolerance(None, result.dtype)), error


def test_operands_rotate_until_they_exceed_l2_and_large_ones_do_not() -> None:
    (job,) = jobs.jobs_of(jobs.families(["mm"], [], []), ["64x64x64"], None)
    make = Maker(job, torch.device("cpu"), 50 << 20)
    assert make.slots(30 << 20) * (30 << 20) > 2 * (50 << 20)
    assert make.slots(1 << 30) == 1
    assert 2 <= make.slots(1) <= 128


# ---- checks


def test_a_result_may_err_twice_as_much_as_torchs_plus_a_floor() -> None:
    expected = torch.randn(64, 64)
    small, large = (check.Error.of(expected * (1 + e), expected) for e in (0.003, 0.05))
    allowed = check.tolerance(check.Error(0.002, 0.01), torch.bfloat16)
    assert allowed == pytest.approx(2 * 0.002 + 2**-8)
    assert check.is_right(small, allowed)
    assert not check.is_right(large, allowed)


@pytest.mark.parametrize("value", [float("nan"), 1000.0])
def test_a_single_wrong_element_is_seen(value: float) -> None:
    expected = torch.randn(512, 512)
    result = expected.clone()
    result[3, 5] = value
    assert not check.is_right(check.Error.of(result, expected), 0.01)


def test_a_single_wrong_element_does_not_hide_in_the_norm() -> None:
    expected = torch.randn(2048, 2048)
    result = expected.clone()
    result[3, 5] += 2.0
    error = check.Error.of(result, expected)
    assert error.relative < 0.01
    assert not check.is_right(error, 0.01)


def test_calls_of_a_graph_are_whole_rotations() -> None:
    assert calls_for(10.0, 4) == 48
    assert calls_for(1e6, 7) == 7
    assert calls_for(0.1, 3) % 3 == 0
    assert calls_for(0.1, 3) <= 130


# ---- search


class Replay:
    def __init__(self, machine: Machine, results: list[torch.Tensor]) -> None:
        self.calls, self.results = 1, results
        self._machine, self._plan = machine, machine.forced
        machine.recorded.append(machine.forced)

    def run(self) -> None:
        for result in self.results:
            result.copy_(self._machine.result_of(self._plan))

    def seconds(self) -> float:
        self._machine.replays[self._plan] = self._machine.replays.get(self._plan, 0) + 1
        return self._machine.us(self._plan) * 1e-6


class Machine:
    """A GPU that takes the time it is told to; it is its own clock and forces plans for real."""

    def __init__(self, us: Callable[[Plan], float], m: int, n: int, k: int) -> None:
        self.us = us
        self.forced: Plan = ("", "", 0, 0)
        self.recorded: list[Plan] = []
        self.replays: dict[Plan, int] = {}
        self.expected = torch.randn(16, 16)
        self.wrong: set[str] = set()
        self.refused: set[str] = set()
        self._forcing = search.TableForcing(GPU)
        self.extents = m, n, k

    def force(self, request: Request, candidate: Candidate) -> None:
        self.forced = candidate.plan
        self._forcing.force(request, candidate)

    def release(self) -> None:
        self._forcing.release()

    def record(self, call: Callable[[int], torch.Tensor], slots: int, calls: int) -> Replay:
        if self.forced[0] in self.refused:
            raise NotImplementedError("mm: no kernel takes it")
        return Replay(self, [torch.empty(16, 16), torch.empty(16, 16)])

    def result_of(self, plan: Plan) -> torch.Tensor:
        return self.expected + 1.0 if plan[0] in self.wrong else self.expected

    def case(self) -> Case:
        return Case(
            2,
            lambda i: self.expected,
            lambda: explain(H200, *self.extents),
            lambda: self.expected,
            lambda: self.expected,
        )

    def tune(self, **effort: Any) -> Record:
        return search.tune(
            "mm:bf16:plain 1x1x1",
            "mm:bf16:plain",
            self.case,
            lambda: self,
            self,
            search.Effort(**effort),
            H200.sms,
        )


needs_all = pytest.mark.skipif(
    bool(os.environ.get("CUTWHEEL_NARROW")),
    reason="the built package holds a selection of the declared kernels",
)


@pytest.fixture(autouse=True)
def _released(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(search.VARIABLE, raising=False)
    yield
    cutwheel.clear_tuning()


def uneven(plan: Plan) -> float:
    """The second row of the ranking, in an unlikely order of tiles, is fastest."""
    row, raster, swizzle, _ = plan
    us = 100.0 if row == explain_rows()[1] else 110.0 if row == explain_rows()[0] else 180.0
    return us - (5.0 if (raster, swizzle) == ("along_m", 8) else 0.0)


def explain_rows() -> list[str]:
    return ROWS


ROWS: list[str] = []


@pytest.fixture
def machine() -> Machine:
    ROWS[:] = [plan["row"] for plan in explain(H200, 4096, 4096, 4096)["plans"]]
    return Machine(uneven, 4096, 4096, 4096)


@needs_all
def test_the_fastest_plan_is_found_and_well_measured(machine: Machine) -> None:
    record = machine.tune()
    assert not record.error
    best = record.timed[0]
    assert best.plan == (ROWS[1], "along_m", 8, 1)
    assert (best.us, best.status) == (pytest.approx(95), "ok")
    assert machine.replays[best.plan] == 2 + search.Effort().rounds
    assert record.dispatch is not None
    assert record.dispatch[0] == ROWS[0]
    assert report.reached(record) == pytest.approx(95 / 110)


@needs_all
def test_slow_plans_are_dropped_after_the_first_replays(machine: Machine) -> None:
    record = machine.tune()
    slow = [c for c in record.candidates if c.row not in ROWS[:2]]
    assert slow
    assert all(c.status == "slow" for c in slow)
    assert all(machine.replays[c.plan] == 2 for c in slow)


@needs_all
def test_what_is_predicted_to_be_far_slower_is_not_tried_unless_asked(machine: Machine) -> None:
    few = machine.tune(predicted=1.2)
    all_of_them = machine.tune(predicted=None)
    assert few.skipped > 0
    assert all_of_them.skipped == 0
    assert {c.row for c in all_of_them.candidates} == set(ROWS)
    limit = 1.2 * min(c.predicted_us for c in few.candidates)
    assert all(c.predicted_us <= limit for c in few.candidates)


@needs_all
def test_wrong_results_are_recorded_and_never_chosen(machine: Machine) -> None:
    machine.wrong = {ROWS[1]}
    record = machine.tune()
    wrong = [c for c in record.candidates if c.status == "wrong"]
    assert {c.row for c in wrong} == {ROWS[1]}
    assert all("relative error" in c.note and c.us is None for c in wrong)
    assert record.timed[0].row == ROWS[0]
    assert all(plan.row != ROWS[1] for plan in journal.best_plans(record.timed))


@needs_all
def test_what_does_not_run_is_refused_and_the_rest_goes_on(machine: Machine) -> None:
    machine.refused = {ROWS[0]}
    record = machine.tune()
    assert {c.row for c in record.candidates if c.status == "refused"} == {ROWS[0]}
    assert record.timed[0].row == ROWS[1]
    assert report.reached(record) is None


@needs_all
def test_splits_are_tried_and_forced(machine: Machine) -> None:
    small = Machine(lambda plan: 10.0 / plan[3], 64, 2112, 7168)
    record = small.tune(predicted=None)
    assert {c.splits for c in record.candidates} >= {1, 2, 4, 8}
    assert record.timed[0].splits == 8
    assert all(c.status != "refused" for c in record.candidates)


@needs_all
def test_the_library_is_left_as_it_was(machine: Machine) -> None:
    before = explain(H200, 4096, 4096, 4096)
    machine.tune()
    assert explain(H200, 4096, 4096, 4096) == before
    assert search.VARIABLE not in os.environ


@needs_all
def test_a_plan_that_is_not_taken_is_not_timed(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    forcing = search.TableForcing(replace(GPU, sm_count=7))  # a table that no GPU here reads
    monkeypatch.setattr(machine, "_forcing", forcing)
    record = machine.tune()
    # The environment alone forces a kernel with the parameters that it has anyway, and no others.
    ranked = {
        (p["row"], p["raster"], p["swizzle"]) for p in explain(H200, *machine.extents)["plans"]
    }
    others = [c for c in record.candidates if c.plan[:3] not in ranked]
    assert others
    assert all(c.status == "refused" and "would run" in c.note for c in others)


def test_a_job_that_cannot_be_made_says_why() -> None:
    def fails() -> Case:
        raise ValueError("the filter is larger than the padded image")

    machine = Machine(lambda plan: 1.0, 64, 64, 64)
    record = search.tune("x", "x", fails, lambda: machine, machine, search.Effort(), H200.sms)
    assert "larger than the padded image" in record.error


# ---- journals


def a_record(name: str, *candidates: Candidate, **change: Any) -> Record:
    request = Request("gemm", "bf16", "bf16", "tn", len(name), 64, 64, "bf16")
    base = Record(name, "mm:bf16:plain", request, "cost model", ("a", "along_m", 1, 1), candidates)
    return replace(base, **change)


def a_plan(row: str, us: float | None, **change: Any) -> Candidate:
    return replace(Candidate(row, "along_m", 1, 1, 10.0, us), **change)


def test_a_journal_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "j.jsonl"
    book = journal.open_journal(path, SETUP)
    records = [
        a_record("one", a_plan("a", 3.0), a_plan("b", None, status="wrong", note="why")),
        a_record(
            "two", error="no kernel", dispatch=None, request=replace(a_record("t").request, m=9)
        ),
    ]
    for record in records:
        book.add(record)
    again = journal.open_journal(path, SETUP)
    assert again.records == records
    assert again.setup == SETUP
    assert again.done == {"one", "two"}


def test_a_line_that_was_cut_off_is_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    book = journal.open_journal(path, SETUP)
    book.add(a_record("one", a_plan("a", 3.0)))
    with path.open("a") as stream:
        stream.write(a_record("two").line()[:40])
    again = journal.open_journal(path, SETUP)
    assert again.done == {"one"}
    again.add(a_record("two"))
    assert journal.read(path).done == {"one", "two"}


@pytest.mark.parametrize(
    ("setup", "what"),
    [
        (replace(SETUP, gpu=replace(GPU, sm_count=114)), "gpu"),
        (replace(SETUP, kernels="other"), "kernels"),
        (replace(SETUP, cutwheel="0.2.0"), "cutwheel"),
    ],
)
def test_a_journal_of_something_else_is_not_continued(
    tmp_path: Path, setup: Setup, what: str
) -> None:
    path = tmp_path / "j.jsonl"
    journal.open_journal(path, SETUP).add(a_record("one"))
    with pytest.raises(JournalError, match=f"has another {what}"):
        journal.open_journal(path, setup)
    assert not journal.open_journal(path, setup, restart=True).records


@pytest.mark.parametrize("text", ["{}\n", "no\nlines\n", '{"journal": 9}\n', "[]\n"])
def test_a_file_that_is_no_journal_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "j.jsonl"
    path.write_text(text)
    with pytest.raises(JournalError):
        journal.open_journal(path, SETUP)
    assert path.read_text() == text


def test_a_table_keeps_what_is_nearly_as_fast_as_the_best() -> None:
    timed = [
        a_plan("a", 10.0),
        a_plan("a", 10.1, swizzle=2),
        a_plan("a", 10.2, splits=2),
        a_plan("b", 11.4),
        a_plan("quick", 11.0, status="slow"),
        a_plan("c", 11.6),
    ]
    plans = journal.best_plans(timed)
    assert [(plan.row, plan.swizzle, plan.splits) for plan in plans] == [
        ("a", 1, 1),
        ("a", 1, 2),
        ("b", 1, 1),
    ]


def test_a_table_that_is_written_is_read(tmp_path: Path) -> None:
    book = Journal(
        SETUP, [a_record("one", a_plan("a", 3.21049)), a_record("three", a_plan("b", 2))]
    )
    command.write_table(book, tmp_path / "deep" / "t.json")
    (path,) = (tmp_path / "deep").iterdir()
    text = path.read_text()
    table = parse(json.loads(text), "t.json")
    assert table == replace(
        book.table("t.json"),
        entries=tuple(
            replace(e, plans=tuple(replace(p, us=round(p.us, 3)) for p in e.plans))
            for e in book.table("t.json").entries
        ),
    )
    assert sum('"request"' in line for line in text.splitlines()) == 2, "a line for each entry"


# ---- the loop


def a_job(m: int) -> jobs.Job:
    return jobs.Job(jobs.Family("mm", "bf16", "plain"), (m, 64, 64))


def test_what_the_journal_has_is_not_measured_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "j.jsonl"
    wanted = [a_job(m) for m in (1, 2, 3, 4)]
    asked: list[jobs.Job] = []

    def one(job: jobs.Job) -> Record:
        asked.append(job)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return a_record(str(job), a_plan("a", 3.0))

    with pytest.raises(KeyboardInterrupt):
        command.loop(journal.open_journal(path, SETUP), wanted, one, None)
    assert command.loop(journal.open_journal(path, SETUP), wanted, one, None) == 0
    assert [job.shape[0] for job in asked] == [1, 2, 3, 3, 4]
    out = capsys.readouterr().out
    assert "2 of 4 jobs are in" in out
    assert "[2/2, 0:00 left]" in out


def test_time_that_is_up_begins_no_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    times = iter(range(0, 1000, 10))
    book = journal.open_journal(tmp_path / "j.jsonl", SETUP)
    wanted = [a_job(m) for m in range(1, 9)]
    command.loop(
        book, wanted, lambda job: a_record(str(job)), 35.0, clock=lambda: float(next(times))
    )
    assert len(book.done) == 2
    assert "6 jobs are left" in capsys.readouterr().out


def test_a_lost_gpu_ends_the_run_and_the_next_goes_on_behind(tmp_path: Path) -> None:
    book = journal.open_journal(tmp_path / "j.jsonl", SETUP)
    wanted = [a_job(1), a_job(2)]

    def one(job: jobs.Job) -> Record:
        return a_record(str(job), error="AcceleratorError: illegal memory access")

    assert command.loop(book, wanted, one, None, healthy=lambda: False) == 3
    assert book.done == {str(wanted[0])}


def test_without_a_gpu_the_command_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    assert command.run(parser.parse_args(["--shape", "1x2x3"])) == 2
    assert "no CUDA device" in capsys.readouterr().err


def test_jobs_are_listed_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    from cutwheel.__main__ import main

    assert main(["tune", "--op", "mm", "--dtype", "f16", "--shape", "1x2x3", "--list"]) == 0
    assert capsys.readouterr().out == "mm:f16:plain 1x2x3\n"


# ---- reports


def test_a_report_says_what_dispatch_reaches_and_what_kernels_are_worth(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    book = journal.open_journal(path, SETUP)
    liked = {"predicted_us": 1.0}
    book.add(a_record("j 1", a_plan("a", 10.0, **liked), a_plan("b", 12.0), a_plan("c", 20.0)))
    book.add(a_record("j 2", a_plan("a", 10.0, **liked), a_plan("b", 8.0), a_plan("c", 9.0)))
    book.add(a_record("j 3", a_plan("d", None, status="wrong", note="far off")))
    (family,) = report.families(book.records)
    assert family.geomean == pytest.approx((1.0 * 0.8) ** 0.5)
    assert (family.worst, family.worst_job) == (0.8, "j 2")
    assert family.by_model == pytest.approx(family.geomean)
    assert family.unmeasured == 1
    kernels = {kernel.row: kernel for kernel in report.kernels(book.records)}
    assert kernels["a"].loss == pytest.approx((12 / 10) ** 0.5)
    assert kernels["b"].loss == pytest.approx((9 / 8) ** 0.5)
    assert (kernels["c"].loss, kernels["c"].wins, kernels["c"].measured) == (1.0, 0, 2)
    assert kernels["d"].wrong == 1
    text = report.text_of(book)
    assert "never the fastest:\n\n- c (2 jobs)" in text
    assert "- d: 1 wrong, 0 refused\n  j 3: wrong, far off" in text


def test_a_report_is_printed_by_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from cutwheel.__main__ import main

    path = tmp_path / "j.jsonl"
    journal.open_journal(path, SETUP).add(a_record("j 1", a_plan("a", 10.0)))
    assert main(["tune", "--report", str(path)]) == 0
    assert "| mm:bf16:plain | 1 | 100.0 % | 100.0 % |" in capsys.readouterr().out
    assert main(["tune", "--report", str(tmp_path / "none.jsonl")]) == 2
