"""The grouped benchmarks' own logic, on the CPU with synthetic timings: no GPU is needed."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
import torch
from synthetic_clock import SyntheticClock
from torch.nn import functional

from benchmarks import (
    grouped,
    grouped_host,
    grouped_jobs,
    grouped_sides,
    harness,
    host,
    plan,
    record,
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
    return session.row(of, made, found)


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
    json.dumps(record.plain(row), allow_nan=False)


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
    with pytest.raises(ValueError, match="at least 1"):
        grouped_jobs.shapes({"grouped": {"cases": [[8, 0, 16, 16]]}})


# --- CPU time


def test_cpu_time_compares_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouped_host, "library", lambda _: our_library())
    cases = grouped_host.make_cases("ours", "cpu")
    assert len({case.name for case in cases}) == len(cases)
    for case in cases:
        assert host.disagreement(case) < 0.02, case.name
