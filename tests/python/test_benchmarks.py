"""The benchmark harness's own logic, with synthetic timings: no GPU is needed."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchmark_clock import SyntheticClock

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks import __main__ as cli
from benchmarks import plan, record, report, shapes, stats

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


def test_result_file_round_trip(tmp_path):
    path = tmp_path / "new" / "r.json"
    record.write(path, record.finite({"schema": record.SCHEMA, "x": [math.nan, 1.0, math.inf]}))
    assert record.read(path)["x"] == [None, 1.0, None]
    assert list(path.parent.iterdir()) == [path]
    path.write_text('{"schema": 99}')
    with pytest.raises(ValueError, match="schema is 99"):
        record.read(path)


def test_commit_comes_from_argument_then_environment(monkeypatch):
    monkeypatch.setenv("CUTWHEEL_COMMIT", "fromenv")
    assert record.git_commit("given") == "given"
    assert record.git_commit(None) == "fromenv"
    assert record.run_text("a-command-that-is-not-there") is None


def test_output_names():
    assert record.device_slug("NVIDIA H200") == "h200"
    assert record.device_slug("NVIDIA A100-SXM4-80GB") == "a100_sxm4_80gb"
    assert cli.output_path(Path("d"), "gemm_bf16", "NVIDIA H200") == Path("d/gemm_bf16_h200.json")
    assert cli.output_path(Path("d/x.json"), "gemm_bf16", "NVIDIA H200") == Path("d/x.json")


# --- reports


def gemm_row(m: int, n: int, k: int, torch_us: float, ours_us: float) -> dict[str, Any]:
    def side(us: float) -> dict[str, Any]:
        return {
            "relative_error": 2e-3,
            "worst_error": 1e-2,
            "us": {"median": us, "p20": us * 0.99, "p80": us * 1.01},
            "tflops": 2 * m * n * k / us * 1e-6,
            "gbs": 2 * (m * k + n * k + m * n) / us * 1e-3,
        }

    ratio = torch_us / ours_us
    return {
        "m": m,
        "n": n,
        "k": k,
        "status": "ok",
        "reason": "",
        "kernel": f"kernel_{m}",
        "ratio": {"median": ratio, "p20": ratio * 0.98, "p80": ratio * 1.02},
        "flops_per_byte": m * n * k / (m * k + n * k + m * n),
        "sides": {"torch": side(torch_us), "cutwheel": side(ours_us)},
        "slots": 5,
        "iterations": 100,
        "rounds": 25,
    }


ENVIRONMENT = {
    "gpu": "NVIDIA H200",
    "torch": "2.11.0",
    "cuda": "13.0",
    "driver": "580.1",
    "cutwheel": {"version": "0.1.0"},
    "commit": "0123456789abcdef",
    "date": "2026-01-01T00:00:00+00:00",
}


def result_of(benchmark: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "schema": record.SCHEMA,
        "benchmark": benchmark,
        "candidate": "cutwheel",
        "dtype": "bf16",
        "environment": ENVIRONMENT,
        "ceilings": {"gbs": 4300.0, "tflops": 790.0},
        "results": rows,
    }


def gemm_result() -> dict[str, Any]:
    rows = [
        gemm_row(m, n, k, 10.0 + m / 50, (10.0 + m / 50) / (0.7 + 0.1 * i))
        for n, k in [(4096, 4096), (2112, 7168), (7168, 2048), (6144, 4096), (10240, 8192)]
        for i, m in enumerate([1, 64, 512, 4096])
    ]
    rows.append(gemm_row(1024, 1024, 1024, 10.0, 10.0))
    bad = gemm_row(3, 5, 7, 1.0, 1.0)
    bad |= {"status": "failed", "reason": "cutwheel: wrong result", "ratio": None, "sides": {}}
    late = dict(bad) | {"status": "skipped", "reason": "the budget of 1 s was used up"}
    return result_of("gemm", [*rows, bad, late])


def host_result() -> dict[str, Any]:
    us = {"median": 4.0, "p20": 3.9, "p80": 4.2}
    ok = {"case": "mm", "status": "ok", "reason": "", "ratio": 1.0}
    bad = {"case": "bmm", "status": "failed", "reason": "TypeError: no", "ratio": None}
    return result_of("host", [ok | {"us": {"torch": us, "cutwheel": us}}, bad])


def test_summary_counts_everything_and_averages_only_what_was_measured():
    summary = report.summarize(gemm_result()["results"])
    assert (summary["shapes"], summary["ok"]) == (23, 21)
    assert (summary["failed"], summary["skipped"]) == (1, 1)
    assert summary["worst"] == pytest.approx(0.7)
    assert summary["per_m"]["64"]["geomean"] == pytest.approx(0.8)
    assert summary["per_m"]["64"]["shapes"] == 5
    assert report.summarize([])["geomean"] is None


def test_gemm_tables_name_failures_and_the_worst():
    text = report.markdown(gemm_result())
    assert "FAILED 3 x 5 x 7: cutwheel: wrong result" in text
    assert "SKIPPED 1" in text
    assert "kernel_1 |" in text
    assert "commit 0123456789ab," in text
    assert text.splitlines()[-1].startswith("**Geomean")
    widths = {line.count("|") for line in text.splitlines() if line.startswith("| ratio to torch")}
    assert widths == {len({1, 64, 512, 1024, 4096}) + 2}


def test_a_run_without_measurements_still_reports():
    result = gemm_result()
    result["results"] = result["results"][-2:]
    assert "Nothing measured" in report.markdown(result)


def test_host_table():
    text = report.markdown(host_result())
    assert "| mm | 4.00 | 4.00 | 3.90-4.20 | 1.00 |" in text
    assert "FAILED bmm" in text


@pytest.mark.parametrize("make", [gemm_result, host_result])
def test_report_command_draws_and_fails_on_failures(make, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    path = tmp_path / "r.json"
    path.write_text(json.dumps(make()))
    assert cli.main(["report", str(path)]) == 1
    assert "FAILED" in capsys.readouterr().out
    pictures = sorted(tmp_path.glob("*.png"))
    assert len(pictures) == (2 if make is gemm_result else 1)
    assert all(picture.read_bytes().startswith(b"\x89PNG") for picture in pictures)


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
    from benchmarks import gemm

    shape = shapes.GemmShape(6, 5, 16)
    for found in (
        compare(mm_case(), SyntheticClock(1e-5)),
        compare(mm_case(leave_last_row), SyntheticClock(1e-5)),
    ):
        row = gemm.row(shape, "bf16", 3, None, found)
        json.dumps(record.finite(row), allow_nan=False)
    assert gemm.unmeasured(shape, "bf16", "skipped", "why")["ratio"] is None


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
