"""The benchmark harness's own logic, with synthetic timings: no GPU is needed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from synthetic_clock import SyntheticClock

from benchmarks import plan, record, shapes, stats

MIB = 1 << 20


def test_quantiles_interpolate():
    assert stats.median([3.0, 1.0, 2.0, 100.0]) == 2.5
    assert stats.quantile([0.0, 10.0], 0.2) == pytest.approx(2.0)
    spread = stats.Spread.of([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    assert (spread.median, spread.p20, spread.p80) == (3.5, 2.0, 5.0)
    assert spread.relative == pytest.approx(3 / 3.5)


def test_geomean_of_reciprocals_is_one():
    assert stats.geomean([2.0, 0.5]) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="no values"):
        stats.geomean([])


@pytest.mark.parametrize("slot", [100, 3 * MIB, 33 * MIB, 60 * MIB, 120 * MIB, 1000 * MIB])
def test_rotation_exceeds_twice_the_l2_between_two_uses(slot):
    slots = plan.rotation(slot, 60 * MIB)
    assert slots >= 2
    assert slots == 1024 or (slots - 1) * slot > 120 * MIB
    assert slots == 2 or slots == 1024 or (slots - 2) * slot <= 120 * MIB


@pytest.mark.parametrize("seconds", [1e-6, 4e-6, 50e-6, 1e-3, 10e-3])
@pytest.mark.parametrize("slots", [2, 5, 31, 1024])
def test_iterations_are_whole_rotations_near_the_target(seconds, slots):
    limits = plan.Limits()
    count = plan.iterations(seconds, slots, limits)
    assert count % slots == 0
    assert count >= slots
    wanted = min(limits.replay_seconds / seconds, limits.max_iterations)
    assert count == slots or abs(count - wanted) <= slots / 2 + 1


def test_rounds_stay_within_limits():
    limits = plan.Limits(min_rounds=5, max_rounds=25)
    assert plan.rounds(4e-3, 0.8, limits) == 25
    assert plan.rounds(0.08, 0.8, limits) == 10
    assert plan.rounds(1.0, 0.8, limits) == 5


def test_allowance_shares_the_budget():
    limits = plan.Limits(case_seconds=0.8)
    assert plan.allowance(None, 100, limits) == 0.8
    assert plan.allowance(10.0, 100, limits) == pytest.approx(0.05)
    assert plan.allowance(1000.0, 1, limits) == 0.8
    assert plan.allowance(-1.0, 3, limits) == 0.0


def test_shapes_cover_the_whole_list_once():
    table = shapes.load()
    everything = shapes.gemm_shapes(table)
    assert len(everything) == len(set(everything)) == 13 * 9 + 4 - 2  # two squares are in both
    assert shapes.gemm_shapes(table, m=[7], nk=[(8, 16)]) == [shapes.GemmShape(7, 8, 16)]
    assert shapes.gemm_shapes(table, square=[32]) == [shapes.GemmShape(32, 32, 32)]
    assert {s.m for s in shapes.gemm_shapes(table, m=[3])} == {3}
    assert len(shapes.gemm_shapes(table, quick=True)) == 17
    with pytest.raises(ValueError, match="at least 1"):
        shapes.gemm_shapes(table, m=[0])


def test_shape_arithmetic():
    shape = shapes.GemmShape(2, 3, 5)
    assert shape.flops == 60
    assert shape.min_bytes(2) == 2 * (10 + 15 + 6)
    assert shapes.parse_nk("4096x14336") == (4096, 14336)
    with pytest.raises(ValueError, match="4096x14336"):
        shapes.parse_nk("4096")


def test_the_compile_budget_is_spread_over_the_cases():
    budget = plan.CompileBudget(100.0, 10)
    compiled = []
    for case in range(10):
        if budget.allows():
            compiled.append(case)
            budget.add(30.0)
    assert compiled == [0, 3, 6, 9]
    assert not plan.CompileBudget(0.0, 3).allows()
    plenty = plan.CompileBudget(1000.0, 3)
    assert [plenty.allows() for _ in range(3)] == [True] * 3


def test_time_left_follows_the_pace():
    left = plan.TimeLeft({"a": (100.0, 100), "b": (50.0, 5)})
    assert left.after("a", 0, 0.0) == pytest.approx(150.0)
    assert left.after("a", 50, 50.0) == pytest.approx(100.0)
    assert left.after("a", 90, 180.0) == pytest.approx(1.9 * 10 + 50.0)
    assert left.after("b", 5, 70.0) == 0.0


# --- the harness, on CPU tensors and a synthetic clock


def mm_case(other: Callable[..., Any] | None = None, slots: int = 3):
    torch = pytest.importorskip("torch")
    from benchmarks import gemm, harness

    x = [torch.randn(6, 16) for _ in range(slots)]
    w = [torch.randn(16, 5) for _ in range(slots)]
    out = [torch.empty(6, 5) for _ in range(slots)]
    mm = other or torch.mm

    def ours(i: int) -> Any:
        mm(x[i], w[i], out=out[i])
        return out[i]

    sides = (
        harness.Side("torch", lambda i: torch.mm(x[i], w[i], out=out[i])),
        harness.Side("ours", ours),
    )
    return harness.Case(sides, slots, lambda i: gemm.reference(x[i], w[i]), 1e-5)


def compare(case: Any, clock: Any):
    from benchmarks import harness

    return harness.compare(case, clock, plan.Limits(), 0.2)


def test_right_results_are_timed():
    clock = SyntheticClock(30e-6, 20e-6)
    found = compare(mm_case(), clock)
    assert found.status == "ok"
    assert found.times["torch"].median == pytest.approx(30e-6)
    assert found.ratio.median == pytest.approx(1.5)
    assert found.iterations == 99  # 2 ms / 20 us, in whole rotations of 3 slots
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
def test_wrong_results_are_failures_without_a_time(wrong):
    clock = SyntheticClock(30e-6, 20e-6)
    found = compare(mm_case(wrong), clock)
    assert found.status == "failed"
    assert found.reason.startswith("ours: wrong result")
    assert not found.times
    assert found.ratio is None
    assert all(replay.timed <= 1 for replay in clock.replays)  # the pilots


def test_an_error_of_one_side_is_a_failure_naming_it():
    def refuse(x: Any, w: Any, out: Any) -> None:
        raise ValueError("mat2 has dtype int64\npages of advice")

    found = compare(mm_case(refuse), SyntheticClock(1e-5))
    assert found.reason == "ours: ValueError: mat2 has dtype int64"


def test_a_small_error_is_weighed_against_the_reference():
    torch = pytest.importorskip("torch")
    from benchmarks import harness

    expected = torch.randn(50, 40) * 1e4
    error = harness.measure_error(expected * 1.01, expected)
    assert error.relative == pytest.approx(0.01, rel=1e-3)
    with pytest.raises(ValueError, match="all zeros"):
        harness.measure_error(expected, torch.zeros_like(expected))


def test_rows_are_valid_json_whatever_the_outcome():
    pytest.importorskip("torch")
    from benchmarks import session

    job = shapes.ProductJob("mm", shapes.GemmShape(6, 5, 16))
    for wrong, status in ((None, "ok"), (leave_last_row, "failed")):
        made = session.Made(mm_case(wrong), job.shape.flops, job.shape.min_bytes(4), {"ours": "k"})
        found = session.row(job, made, compare(made.case, SyntheticClock(1e-5)))
        json.dumps(record.plain(found), allow_nan=False)
        assert (found["group"], found["m"], found["status"]) == ("mm", 6, status)
        assert len(found["ratios"]) == (status == "ok")
        assert found["slots"] == 3
    row = session.unmeasured(job, "skipped", "why")
    assert (row["status"], row["reason"], row["ratios"]) == ("skipped", "why", [])


@pytest.mark.parametrize(("op", "baselines"), [("mm", 2), ("addmm", 1)])
def test_products(op, baselines, monkeypatch):
    torch = pytest.importorskip("torch")
    from benchmarks import gemm, session

    libraries = []
    monkeypatch.setattr(torch.backends.cuda, "preferred_blas_library", libraries_of(libraries))
    job = shapes.ProductJob(op, shapes.GemmShape(6, 8, 16))
    made = gemm.make(job, "tf32", torch.device("cpu"), 1000, "torch")
    row = session.row(job, made, compare(made.case, SyntheticClock(3e-5, 2e-5, 1e-5)))
    assert (row["status"], row["reason"]) == ("ok", "")
    names = ["torch", gemm.CUBLASLT][:baselines]
    assert [ratio["baseline"] for ratio in row["ratios"]] == names
    assert {ratio["side"] for ratio in row["ratios"]} == {"torch (again)"}
    # Set for that side alone, and set back.
    assert libraries == ["cublaslt", "as before"] * (len(libraries) // 2)
    assert bool(libraries) == (op == "mm")


def libraries_of(seen: list[str]) -> Callable[..., str]:
    def preferred(name: str | None = None) -> str:
        if name is not None:
            seen.append(name)
        return "as before"

    return preferred


def test_a_baseline_without_cublaslt_is_left_out(monkeypatch):
    torch = pytest.importorskip("torch")
    from benchmarks import gemm, session

    def refuse(name: str | None = None) -> str:
        if name == "cublaslt":
            raise RuntimeError("not compiled with cuBLASLt")
        return "cublas"

    monkeypatch.setattr(torch.backends.cuda, "preferred_blas_library", refuse)
    job = shapes.ProductJob("mm", shapes.GemmShape(6, 8, 16))
    made = gemm.make(job, "tf32", torch.device("cpu"), 1000, "torch")
    row = session.row(job, made, compare(made.case, SyntheticClock(2e-5, 1e-5)))
    assert row["status"] == "ok"
    assert row["reason"] == f"{gemm.CUBLASLT}: RuntimeError: not compiled with cuBLASLt"


def test_host_timing_excludes_the_wait_and_alternates():
    pytest.importorskip("torch")
    from benchmarks import host

    now = 0.0
    order = []

    def advance(name: str, seconds: float) -> None:
        nonlocal now
        now += seconds
        if name and order[-1:] != [name]:
            order.append(name)

    case = host.HostCase("x", lambda: advance("a", 4e-6), lambda: advance("b", 2e-6))
    a, b = host.time_pair(case, 3, lambda: advance("", 1.0), lambda: now)
    assert a.median == pytest.approx(4e-6, rel=1e-3)
    assert b.median == pytest.approx(2e-6, rel=1e-3)
    assert order == ["a", "b"] * 4  # once to warm up
