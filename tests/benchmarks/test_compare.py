"""Providers are checked, then timed in turns; with a synthetic clock, so no GPU is needed."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
import torch
from synthetic_clock import SyntheticClock

pytest.importorskip("cutwheel", reason="needs the built package (make test builds it)")

from benchmarks import compare, run
from benchmarks.compare import HostCase, Limits, Measurement
from benchmarks.problems import Problem
from benchmarks.report import record
from cutwheel.tuning.case import Case, Provider
from cutwheel.tuning.measure import Error, matmul
from cutwheel.tuning.shapes import Gemm

ALLOWED = Error(1e-5, 1e-4)


def compared(case: Case, *each: float) -> Measurement:
    return compare.compare(case, SyntheticClock(*each), Limits(), 0.2)


def simple_case(**calls: Any) -> Case:
    x = [torch.randn(6, 8) for _ in range(3)]
    providers = [Provider(name, lambda i, call=call: call(x[i])) for name, call in calls.items()]
    return Case(providers, 3, lambda i: 2 * x[i], ALLOWED)


def mm_case(mm: Any = torch.mm) -> Case:
    """With out="""
    x, w = [torch.randn(6, 16) for _ in range(3)], [torch.randn(16, 5) for _ in range(3)]
    out = [torch.empty(6, 5) for _ in range(3)]

    def ours(i: int) -> Any:
        mm(x[i], w[i], out=out[i])
        return out[i]

    providers = [
        Provider("torch", lambda i: torch.mm(x[i], w[i], out=out[i])),
        Provider("ours", ours),
    ]
    return Case(providers, 3, lambda i: matmul(x[i], w[i]), ALLOWED, 960.0, 1000.0)


def refuse(*_: Any, **__: Any) -> Any:
    raise ValueError("mat2 has dtype int64\npages of advice")


# --- the check


def test_right_results_are_timed() -> None:
    clock = SyntheticClock(30e-6, 20e-6)
    found = compare.compare(mm_case(), clock, Limits(), 0.2)
    assert found.status == "ok"
    assert found.times["torch"].median == pytest.approx(30e-6)
    assert found.ratios["ours", "torch"].median == pytest.approx(1.5)
    assert found.iterations == 99  # 2 ms / 20 us, in whole rotations of 3 buffers
    assert [replay.timed for replay in clock.replays[2:]] == [found.rounds] * 2
    assert found.errors["ours"].relative < 1e-6


def leave_last_row(x: Any, w: Any, out: Any) -> None:
    out[:-1] = x[:-1] @ w


def one_wrong_element(x: Any, w: Any, out: Any) -> None:
    out.copy_(x @ w)
    out[2, 3] += 1.0


def slightly_wrong(x: Any, w: Any, out: Any) -> None:
    out.copy_(x @ w * 1.001)


@pytest.mark.parametrize("wrong", [leave_last_row, one_wrong_element, slightly_wrong])
def test_wrong_results_are_failures_without_a_time(wrong: Any) -> None:
    clock = SyntheticClock(30e-6, 20e-6)
    found = compare.compare(mm_case(wrong), clock, Limits(), 0.2)
    assert found.status == "failed"
    assert found.reason.startswith("ours: wrong result")
    assert not found.times
    assert not found.ratios
    assert all(replay.timed <= 1 for replay in clock.replays)  # the pilots


def test_an_error_of_one_side_is_a_failure_naming_it() -> None:
    assert compared(mm_case(refuse), 1e-5).reason == "ours: ValueError: mat2 has dtype int64"


def test_what_is_not_written_again_is_found() -> None:
    """Results that replays leave as they were are poisoned."""
    case = simple_case(a=lambda x: 2 * x, ours=lambda x: 2 * x)
    clock = SyntheticClock(1e-5)
    record_call = clock.record

    def stale(call: Any, buffers: int, calls: int) -> Any:
        replay = record_call(call, buffers, calls)
        replay.run = lambda: None  # type: ignore[method-assign]
        return replay

    clock.record = stale  # type: ignore[method-assign]
    assert compare.compare(case, clock, Limits(), 0.2).status == "failed"


def test_tuples_are_checked_whole() -> None:
    case = simple_case(a=lambda x: (2 * x, x + 0), ours=lambda x: (2 * x, 1.5 * x))
    case = dataclasses.replace(case, reference=lambda i: case.providers[0].call(i))
    assert compared(case, 1e-5).reason.startswith("ours: wrong result")


# --- several baselines


def test_the_last_side_is_compared_with_each_other() -> None:
    case = simple_case(a=lambda x: 2 * x, b=lambda x: x + x, ours=lambda x: x * 2)
    found = compared(case, 30e-6, 10e-6, 20e-6)
    assert found.status == "ok"
    assert {pair: ratio.median for pair, ratio in found.ratios.items()} == pytest.approx(
        {("ours", "a"): 1.5, ("ours", "b"): 0.5}
    )


@pytest.mark.parametrize("bad", [refuse, lambda x: 2.1 * x])
def test_a_baseline_that_fails_is_left_out(bad: Any) -> None:
    right = simple_case(a=lambda x: 2 * x, b=bad, ours=lambda x: 2 * x)
    found = compared(right, 30e-6, 10e-6, 20e-6)
    assert found.status == "ok"
    assert list(found.ratios) == [("ours", "a")]
    assert found.reason.startswith("b: ")
    assert "advice" not in found.reason


def test_without_a_baseline_or_a_candidate_the_case_fails() -> None:
    lonely = simple_case(a=refuse, ours=lambda x: 2 * x)
    assert (compared(lonely, 1e-5).status, compared(lonely, 1e-5).ratios) == ("failed", {})
    wrong = compared(simple_case(a=lambda x: 2 * x, ours=lambda x: 3 * x), 1e-5)
    assert wrong.status == "failed"
    assert wrong.reason.startswith("ours: wrong result")


def test_a_case_that_stands_alone_is_measured_without_a_baseline() -> None:
    case = simple_case(a=refuse, ours=lambda x: 2 * x)
    found = compared(dataclasses.replace(case, stands_alone=True), 1e-5)
    assert (found.status, found.ratios) == ("ok", {})
    assert found.times["ours"].median == pytest.approx(1e-5)
    wrong = dataclasses.replace(simple_case(a=refuse, ours=lambda x: 3 * x), stands_alone=True)
    assert compared(wrong, 1e-5).status == "failed"


# --- rows


def test_rows_are_valid_json_whatever_the_outcome() -> None:
    problem = Problem("mm", Gemm(6, 5, 16))
    for wrong, status in ((torch.mm, "ok"), (leave_last_row, "failed")):
        case = dataclasses.replace(mm_case(wrong), kernels={"ours": "k"})
        found = run.row(problem, case, compared(case, 1e-5))
        json.dumps(record.plain(found), allow_nan=False)
        assert (found["group"], found["m"], found["status"]) == ("mm", 6, status)
        assert len(found["ratios"]) == (status == "ok")
        assert (found["slots"], found["kernels"]) == (3, {"ours": "k"})
    row = run.row(problem, None, Measurement("skipped", "why"))
    assert (row["status"], row["reason"], row["ratios"]) == ("skipped", "why", [])


# --- how often


def test_rounds_stay_within_limits() -> None:
    limits = Limits(min_rounds=5, max_rounds=25)
    assert limits.rounds(4e-3, 0.8) == 25
    assert limits.rounds(0.08, 0.8) == 10
    assert limits.rounds(1.0, 0.8) == 5


# --- CPU time


def test_host_timing_excludes_the_wait_and_alternates() -> None:
    now = 0.0
    order: list[str] = []

    def advance(name: str, seconds: float) -> None:
        nonlocal now
        now += seconds
        if name and order[-1:] != [name]:
            order.append(name)

    case = HostCase("x", lambda: advance("a", 4e-6), lambda: advance("b", 2e-6))
    a, b = compare.time_pair(case, 3, lambda: advance("", 1.0), lambda: now)
    assert a.median == pytest.approx(4e-6, rel=1e-3)
    assert b.median == pytest.approx(2e-6, rel=1e-3)
    assert order == ["a", "b"] * 4  # once to warm up


def test_cpu_times_are_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    x = torch.randn(4, 4)
    cases = [HostCase("same", lambda: x + x, lambda: 2 * x), HostCase("no", lambda: x, refuse)]
    cases.append(HostCase("other", lambda: x, lambda: 2 * x))
    same, no, other = compare.compare_on_host(cases, 3, "cutwheel")
    assert (same["status"], list(same["us"])) == ("ok", ["torch", "cutwheel"])
    assert (no["status"], no["reason"]) == ("failed", "ValueError: mat2 has dtype int64")
    assert "results differ from torch's" in other["reason"]
    again = compare.compare_on_host(cases, 3, compare.AGAIN)
    assert [row["status"] for row in again] == ["ok"] * 3
    assert list(again[2]["us"]) == ["torch", compare.AGAIN]
