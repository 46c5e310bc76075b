"""The tuner's search, by a synthetic clock; plans are forced for real."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

cutwheel = pytest.importorskip("cutwheel", reason="needs the built package (make test builds it)")

from selection import H200, explain  # noqa: E402

from cutwheel.tuning import journal, report, search  # noqa: E402
from cutwheel.tuning.case import Case, Provider  # noqa: E402
from cutwheel.tuning.journal import Candidate, Record  # noqa: E402
from cutwheel.tuning.measure import Error  # noqa: E402
from cutwheel.tuning.table import Gpu, Request  # noqa: E402

GPU = Gpu("described", (9, 0), H200.sms, H200.bandwidth, H200.clock, 50 << 20)
Plan = tuple[str, str, int, int]


# ---- search


class Replay:
    def __init__(self, machine: Machine, results: list[torch.Tensor]) -> None:
        self.calls, self.results = 1, dict(enumerate(results))
        self._machine, self._plan = machine, machine.forced
        machine.recorded.append(machine.forced)

    def run(self) -> None:
        for result in self.results.values():
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
        self.warm: list[Plan] = []
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

    def warm_up(self, call: Callable[[int], torch.Tensor], buffers: int) -> None:
        self.warm.append(self.forced)

    def record(self, call: Callable[[int], torch.Tensor], buffers: int, calls: int) -> Replay:
        assert self.warm[-1] == self.forced, "modules must not be loaded while calls are captured"
        if self.forced[0] in self.refused:
            raise NotImplementedError("mm: no kernel takes it")
        return Replay(self, [torch.empty(16, 16), torch.empty(16, 16)])

    def result_of(self, plan: Plan) -> torch.Tensor:
        return self.expected + 1.0 if plan[0] in self.wrong else self.expected

    def case(self) -> Case:
        providers = [Provider(name, lambda i: self.expected) for name in ("torch", "cutwheel")]
        return Case(
            providers,
            2,
            lambda i: self.expected,
            Error(0.0, 0.0),
            explain=lambda: explain(H200, *self.extents),
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
    assert len({(c.row, c.splits) for c in slow}) == len(slow), "and no variants are tried of them"


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
    assert record.timed[0].splits == max(c.splits for c in record.candidates) > 8
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


def test_a_job_that_cannot_be_made_for_want_of_memory_is_not_done() -> None:
    def fails() -> Case:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nMore.")

    machine = Machine(lambda plan: 1.0, 64, 64, 64)
    record = search.tune("x", "x", fails, lambda: machine, machine, search.Effort(), H200.sms)
    assert record.error == "OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB."
    assert not record.is_done


@needs_all
@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("no room"), RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED")],
)
@pytest.mark.parametrize("where", ["kernel", "baseline"])
def test_a_job_that_runs_out_of_memory_halfway_is_not_done(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, error: Exception, where: str
) -> None:
    def fails(*arguments: Any) -> Any:
        raise error

    case = machine.case()
    if where == "kernel":
        monkeypatch.setattr(machine, "record", fails)
    else:
        case = replace(case, providers=[Provider("torch", fails), case.providers[-1]])
    monkeypatch.setattr(machine, "case", lambda: case)
    record = machine.tune()
    assert str(error) in record.error
    assert not record.is_done
    assert not record.candidates


@needs_all
def test_a_baseline_that_torch_does_not_have_is_done_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(buffer: int) -> torch.Tensor:
        raise RuntimeError("no such op")

    machine = Machine(lambda plan: 100.0, 4096, 4096, 4096)
    case = machine.case()
    case = replace(case, providers=[Provider("torch", fails), case.providers[-1]])
    monkeypatch.setattr(machine, "case", lambda: case)
    record = machine.tune()
    assert not record.error
    assert record.timed


@needs_all
def test_a_baseline_that_writes_the_same_memory_does_not_hide_a_wrong_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As torch's and cutwheel's mm do, with out=."""
    machine = Machine(lambda plan: 100.0, 4096, 4096, 4096)
    case = machine.case()
    out = [torch.empty(16, 16), torch.empty(16, 16)]
    theirs = Provider("torch", lambda i: out[i].copy_(machine.expected))
    case = replace(case, providers=[theirs, case.providers[-1]])
    monkeypatch.setattr(machine, "record", lambda *_: Replay(machine, out))
    machine.wrong = {plan["row"] for plan in case.explain()["plans"]}
    monkeypatch.setattr(machine, "case", lambda: case)
    record = machine.tune()
    assert not record.timed
    assert {candidate.status for candidate in record.candidates} == {"wrong"}
