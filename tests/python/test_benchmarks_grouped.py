"""The grouped benchmarks' own logic, on the CPU with synthetic timings: no GPU is needed."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmark_clock import SyntheticClock
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks import __main__ as cli
from benchmarks import (
    grouped,
    grouped_host,
    grouped_jobs,
    grouped_report,
    grouped_sides,
    harness,
    host,
    plan,
    record,
    report,
    session,
    shapes,
)

SHAPE = grouped_jobs.GroupedShape(9, 200, 64, 48)
Tensor = torch.Tensor


def spans_of(offs: Tensor) -> list[tuple[int, int]]:
    ends = offs.tolist()
    return list(zip((0, *ends[:-1]), ends, strict=True))


def scaled_loop(
    a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, offs: Tensor, fast: bool
) -> Tensor:
    parts = [
        a[first:last].float() @ b[g].float() * scale_a[first:last, None] * scale_b[g]
        for g, (first, last) in enumerate(spans_of(offs))
    ]
    return torch.cat(parts).bfloat16()


def gated_packed(x: Tensor, weight: Tensor, offs: Tensor) -> Tensor:
    z = grouped_sides.torch_grouped_mm(x.float(), weight.float().mT, offs)
    return (functional.silu(z[:, 0::2]) * z[:, 1::2]).bfloat16()


def our_library(**changed: Any) -> grouped_sides.Library:
    made = grouped_sides.Library(
        "ours",
        grouped_sides.torch_grouped_mm,
        scaled_loop,
        gated_packed,
        lambda *_, **__: "a_kernel",
    )
    return dataclasses.replace(made, **changed)


def job(group: str, skew: str = "skewed", **changed: Any) -> grouped_jobs.Job:
    return grouped_jobs.Job(group, skew, SHAPE)._replace(**changed)


def setting(of: grouped_jobs.Job, **changed: Any) -> grouped.Setting:
    made = grouped.Setting(of, torch.device("cpu"), 100_000, our_library())
    return dataclasses.replace(made, **changed)


@pytest.fixture(autouse=True)
def torchs_fp8(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU has no such product: it is made up."""

    def call(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, **options: Any) -> Tensor:
        assert options["out_dtype"] == torch.bfloat16
        fast = options["use_fast_accum"]
        return scaled_loop(a, b, scale_a, scale_b, options["offs"], fast)

    monkeypatch.setattr(torch, "_scaled_grouped_mm", call)


def measured(of: grouped_jobs.Job, *each: float, **changed: Any) -> dict[str, Any]:
    made = grouped.GROUPS[of.group](setting(of, **changed))
    clock = SyntheticClock(*each or (2e-3,))
    found = harness.compare(made.case, clock, plan.Limits(), 0.1)
    return grouped.row(of, made.case.slots, made, found)


# --- groups


@pytest.mark.parametrize("skew", grouped_jobs.SKEWS)
@pytest.mark.parametrize("group", grouped.GROUPS)
def test_every_group_runs_and_is_right(group: str, skew: str) -> None:
    row = measured(job(group, skew), 3e-3, 2e-3)
    assert (row["status"], row["reason"]) == ("ok", "")
    assert all(side["relative_error"] < 0.01 for side in row["sides"].values())
    (ratio,) = row["ratios"]
    assert (ratio["side"], ratio["median"]) == ("ours", pytest.approx(1.5))
    assert row["kernels"] == {"ours": "a_kernel"}
    assert row["sides"]["ours"]["tflops"] == pytest.approx(SHAPE.flops / 2e-3 * 1e-12)
    assert row["slots"] >= 2
    json.dumps(record.finite(row), allow_nan=False)


def neighbours_weight(a: Tensor, b: Tensor, offs: Tensor) -> Tensor:
    return grouped_sides.torch_grouped_mm(a, b.roll(1, 0) if b.dim() == 3 else b.roll(1, 1), offs)


def one_row_too_many(a: Tensor, b: Tensor, offs: Tensor) -> Tensor:
    moved = (offs + 1).clamp(max=int(offs[-1]))
    return grouped_sides.torch_grouped_mm(a, b, moved)


@pytest.mark.parametrize("wrong", [neighbours_weight, one_row_too_many])
@pytest.mark.parametrize("group", ["forward", "dgrad", "wgrad"])
def test_wrong_results_are_failures(group: str, wrong: Any) -> None:
    row = measured(job(group), library=our_library(grouped_mm=wrong))
    assert row["status"] == "failed"
    assert "wrong result" in row["reason"]
    assert row["ratios"] == []


@pytest.mark.parametrize("group", ["fp8", "gated"])
def test_wrong_results_of_the_others_are_failures(group: str) -> None:
    def unscaled(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, *rest: Any) -> Tensor:
        return scaled_loop(a, b, scale_a, torch.ones_like(scale_b), *rest)

    wrong = our_library(scaled=unscaled, gated=grouped_sides.eager_gated)  # of a packed weight
    assert measured(job(group), library=wrong)["status"] == "failed"


def test_empty_groups_of_wgrad(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch need not fill them, we have to."""
    own = torch._grouped_mm

    def leave_empty(a: Tensor, b: Tensor, offs: Tensor) -> Tensor:
        result = own(a, b, offs=offs)
        for g, (first, last) in enumerate(spans_of(offs)):
            if first == last:
                result[g] = float("nan")
        return result

    monkeypatch.setattr(grouped, "torch_grouped_mm", leave_empty)
    assert measured(job("wgrad"))["status"] == "ok"
    assert measured(job("wgrad"), library=our_library(grouped_mm=leave_empty))["status"] == "failed"


def test_of_large_results_some_groups_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = 4 * SHAPE.n * SHAPE.k
    monkeypatch.setattr(grouped, "CHECKED_BYTES", 3 * matrix)
    made = grouped.wgrad(setting(job("wgrad")))
    references = [side.reference(0) for side in made.case.sides if side.reference]
    assert [len(found) for found in references] == [3, 3]
    assert measured(job("wgrad"))["status"] == "ok"


def test_torch_against_itself() -> None:
    again = grouped_sides.library("torch")
    for group in grouped.GROUPS:
        assert measured(job(group), library=again)["status"] == "ok", group


def test_packed_weights() -> None:
    weight = torch.randn(3, 8, 5)
    found = grouped_sides.packed(weight)
    assert torch.equal(found[:, 0::2], weight[:, :4])
    assert torch.equal(found[:, 1::2], weight[:, 4:])


# --- memory


def test_buffers() -> None:
    of = setting(job("forward"), l2_bytes=60 << 20)
    assert of.slots(10 << 20, 1 << 20) == 14
    assert of.slots(15 << 30, 1 << 20) == 2
    assert of.slots(40 << 30, 1 << 20) == 1  # which L2 holds nothing of
    assert of.slots(1 << 30, 14 << 30) == 1
    with pytest.raises(grouped.SkippedError, match="GB"):
        of.slots(70 << 30, 0)


def test_every_case_of_the_list_is_measured() -> None:
    for shape in grouped_jobs.shapes(shapes.load()):
        of = setting(job("forward", shape=shape), l2_bytes=60 << 20)
        weights, x, d = (
            2 * a * b
            for a, b in (
                (shape.groups * shape.n, shape.k),
                (shape.m, shape.k),
                (shape.m, shape.n),
            )
        )
        assert of.slots(weights + x, d) >= 2
        of.slots(2 * weights + x, d + d // 2)  # gated
        of.slots(x + d, weights)  # wgrad


# --- jobs


def test_sizes() -> None:
    for shape in (*grouped_jobs.shapes(shapes.load()), SHAPE, SHAPE._replace(groups=1)):
        for skew in grouped_jobs.SKEWS:
            found = grouped_jobs.sizes(shape, skew)
            assert (len(found), sum(found)) == (shape.groups, shape.m)
            assert grouped_jobs.ends(found)[-1] == shape.m
            assert min(found) >= 0
        if shape.groups > 1:
            assert 0 in found
            assert max(found) >= 2 * shape.m / shape.groups or shape.groups < 5
            assert found == grouped_jobs.sizes(shape, "skewed")
        if shape.m % shape.groups == 0:
            assert len(set(grouped_jobs.sizes(shape, "uniform"))) == 1


def test_jobs() -> None:
    wanted = grouped_jobs.shapes(shapes.load())
    everything = grouped_jobs.jobs(wanted)
    assert len(everything) == len(wanted) * len(grouped_jobs.GROUPS) * 2
    assert set(grouped_jobs.GROUPS) == set(grouped.GROUPS)
    few = grouped_jobs.jobs(wanted[:3], ["wgrad"], ["skewed"])
    assert {(of.group, of.skew) for of in few} == {("wgrad", "skewed")}
    assert str(few[0]) == "wgrad skewed 8 groups, 512 x 28672 x 4096"
    assert len(grouped_jobs.shapes(shapes.load(), quick=True)) < len(wanted)
    assert grouped_jobs.name_of(grouped_jobs.GROUPS) == "grouped"
    assert grouped_jobs.name_of(["wgrad", "forward"], ["skewed"]) == "grouped_forward_wgrad_skewed"
    with pytest.raises(ValueError, match="at least 1"):
        grouped_jobs.shapes({"grouped": {"cases": [[8, 0, 16, 16]]}})


# --- reports


def times(median: float) -> dict[str, float]:
    return {"median": median, "p20": median * 0.99, "p80": median * 1.01}


def made_up(group: str, skew: str, torch_us: float, ours_us: float, m: int = 200) -> dict[str, Any]:
    of = job(group, skew, shape=SHAPE._replace(m=m))
    row = grouped.unmeasured(of, "ok", "")
    sides = {
        name: {"relative_error": 2e-3, "us": times(us), "tflops": 500.0, "gbs": 900.0}
        for name, us in (("torch", torch_us), ("ours", ours_us))
    }
    ratios = [{"side": "ours", "baseline": "torch", **times(torch_us / ours_us)}]
    return row | {"sides": sides, "ratios": ratios, "kernels": {"ours": f"kernel_{m}"}}


def rows() -> list[dict[str, Any]]:
    return [
        made_up("forward", "uniform", 30.0, 20.0),
        made_up("forward", "skewed", 18.0, 20.0, 400),
        made_up("wgrad", "skewed", 40.0, 20.0),
        grouped.unmeasured(job("fp8"), "failed", "ours: wrong result"),
        grouped.unmeasured(job("gated"), "skipped", "takes 90 GB"),
    ]


ENVIRONMENT = {"gpu": "NVIDIA H200", "torch": "2.11", "cuda": "13.0", "driver": "1", "date": "-"}


def result(rows: list[dict[str, Any]]) -> dict[str, Any]:
    cpu = {"case": "grouped_mm", "status": "ok", "reason": "", "ratio": 1.25}
    return {
        "schema": record.SCHEMA,
        "benchmark": "grouped",
        "candidate": "ours",
        "dtype": grouped_jobs.DTYPE,
        "environment": ENVIRONMENT,
        "host": [cpu | {"us": {"torch": times(5.0), "ours": times(4.0)}}],
        "results": rows,
    }


def test_summary() -> None:
    summary = grouped_report.summarize(rows())
    assert (summary["cases"], summary["ok"], summary["failed"], summary["skipped"]) == (5, 3, 1, 1)
    forward, wgrad = summary["lines"]
    assert forward["geomean"] == pytest.approx((1.5 * 0.9) ** 0.5)
    assert (forward["uniform"], forward["skewed"]) == (pytest.approx(1.5), pytest.approx(0.9))
    assert (forward["goal"], forward["worst_goal"], forward["below"]) == (1.10, 0.95, 1)
    assert forward["worst_case"] == "9 groups, 400 x 64 x 48, skewed"
    assert forward["worst_kernel"] == "kernel_400"
    assert forward["per_m"] == pytest.approx({"200": 1.5, "400": 0.9})
    assert (wgrad["goal"], wgrad["uniform"], wgrad["below"]) == (1.15, None, 0)
    json.dumps(summary, allow_nan=False)


def test_tables() -> None:
    text = report.markdown(result(rows()))
    assert "forward: ours to torch | 2 | **1.162 (1.10)** | 1.500 | 0.900" in text
    assert "0.900 (0.95) at 9 groups, 400 x 64 x 48, skewed | 1 |" in text
    assert "| 18.0 | 20.0 | 500 | 900 | 2.0e-03 | kernel_400 |" in text
    assert "| grouped_mm | 5.00 | 4.00 | 3.96-4.04 | 1.25 |" in text
    assert "FAILED fp8 9 groups, 200 x 64 x 48, skewed: ours: wrong result" in text
    assert "SKIPPED 1" in text
    assert "3 ok, 1 failed, 1 skipped" in text


def test_a_report_without_measurements() -> None:
    assert "0 ok, 0 failed, 1 skipped" in report.markdown(result(rows()[-1:]))


def test_report_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "r.json"
    path.write_text(json.dumps(record.finite(result(rows()))))
    assert cli.main(["report", str(path)]) == 1
    assert "FAILED" in capsys.readouterr().out
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


# --- CPU time


def test_cpu_time_compares_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouped_host, "library", lambda _: our_library())
    cases = grouped_host.make_cases("ours", "cpu")
    assert len({case.name for case in cases}) == len(cases)
    for case in cases:
        assert host.disagreement(case) < 0.02, case.name


# --- the command


def test_a_whole_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command itself, with everything of CUDA made up."""

    def measure(jobs: Any, limits: Any, **options: Any) -> Any:
        def one(job: Any, seconds: float) -> Any:
            return measured(job)

        return session.run(jobs, one, grouped.unmeasured, limits, None, options["progress"])

    cpu = result([])["host"]
    monkeypatch.setattr(grouped, "measure", measure)
    monkeypatch.setattr(host, "measure", lambda *_: cpu)
    made = {"schema": record.SCHEMA, "candidate": "ours", "environment": ENVIRONMENT}
    monkeypatch.setattr(cli, "header", lambda options, name: made | {"benchmark": name})
    monkeypatch.setattr(grouped_jobs, "shapes", lambda *_, **__: [SHAPE, SHAPE._replace(n=32)])
    arguments = ["grouped", "--products", "forward", "gated", "--cases", "1", "--out"]
    assert cli.main([*arguments, str(tmp_path)]) == 0
    path = tmp_path / "grouped_forward_gated_h200.json"
    assert [row["status"] for row in record.read(path)["results"]] == ["ok"] * 4
    assert record.read(path)["host"] == cpu
    assert "4 ok" in capsys.readouterr().out
    cpu[0] |= {"status": "failed", "ratio": None}
    assert cli.main([*arguments, str(tmp_path)]) == 1
