"""The scaled benchmarks' own logic, on the CPU with synthetic timings: no GPU is needed."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
from typing import Any

import pytest
import torch
from synthetic_clock import SyntheticClock

from benchmarks import (
    harness,
    options,
    plan,
    record,
    report,
    scaled,
    scaled_jobs,
    scaled_sides,
    session,
    shapes,
)

SHAPE = shapes.GemmShape(48, 160, 512)
BOTH = ("tensorwise", "rowwise")
RECIPES = {"fp8": BOTH, "fp8_fast": BOTH, "blockwise": ("blockwise",), "int8": ("int8",)}
Tensor = torch.Tensor


def dequantised(
    x: Tensor, w: Tensor, scale_x: Tensor, scale_w: Tensor, fast: bool = False
) -> Tensor:
    """Any recipe, told from the shapes; x [M, K], w [N, K]"""
    scale_w = scale_w.t() if scale_w.dim() == 2 else scale_w
    wide = []
    for values, scale in ((x, scale_x), (w, scale_w)):
        if scale.dim() == 2 and scale.shape[1] == scaled_sides.blocks(values.shape[1]) > 1:
            wide.append(scaled.by_block(values, scale).float())
        else:
            wide.append(values.float() * scale)
    return (wide[0] @ wide[1].t()).bfloat16()


def our_library(**changed: Any) -> scaled_sides.Library:
    made = scaled_sides.Library(
        "ours", dequantised, dequantised, scaled_sides.eager_quantize, lambda *_: "a_kernel"
    )
    return dataclasses.replace(made, **changed)


def job(group: str, **changed: Any) -> scaled_jobs.Job:
    made = scaled_jobs.Job(group, SHAPE, RECIPES.get(group, ("rowwise",)))
    if group == "quantize":
        made = made._replace(shape=shapes.GemmShape(256, 0, 512))
    return made._replace(**changed)


def setting(of: scaled_jobs.Job, **changed: Any) -> scaled.Setting:
    made = scaled.Setting(of, torch.device("cpu"), 200_000, our_library())
    return dataclasses.replace(made, **changed)


@pytest.fixture(autouse=True)
def torchs_blockwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU has no such product: it is made up, and the others are torch's own."""
    own = torch._scaled_mm

    def call(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, **options: Any) -> Tensor:
        if scale_a.dim() == 2 and scale_a.shape[1] > 1:
            assert scale_a.stride() == (1, a.shape[0])
            kind = scale_b.shape[1] == b.shape[1]
            assert scale_b.stride() == ((b.shape[1], 1) if kind else (1, scale_b.shape[0]))
            return dequantised(a, b.t(), scale_a, scale_b)
        return own(a, b, scale_a, scale_b, **options)

    monkeypatch.setattr(torch, "_scaled_mm", call)


def measured(of: scaled_jobs.Job, *each: float, **changed: Any) -> dict[str, Any]:
    made = scaled.GROUPS[of.group](setting(of, **changed))
    clock = SyntheticClock(*each or (2e-3,))
    found = harness.compare(made.case, clock, plan.Limits(), 0.1)
    return session.row(of, made, found)


# --- groups


@pytest.mark.parametrize("group", scaled.GROUPS)
def test_every_group_runs_and_is_right(group: str) -> None:
    row = measured(job(group))
    assert (row["status"], row["reason"]) == ("ok", "")
    assert all(side["relative_error"] < 0.01 for side in row["sides"].values())
    assert row["ratios"]
    assert row["slots"] >= 2
    json.dumps(record.plain(row), allow_nan=False)


@pytest.mark.parametrize("name", scaled.QUANTIZE)
def test_every_quantisation(name: str) -> None:
    row = measured(job("quantize", recipes=(name,)))
    assert (row["status"], row["recipe"]) == ("ok", name)
    assert row["sides"]["ours"]["gbs"] > 0


def test_what_is_compared() -> None:
    pairs = {
        group: {(ratio["side"], ratio["baseline"]) for ratio in measured(job(group))["ratios"]}
        for group in scaled.GROUPS
    }
    modes = ("torch tensorwise", "torch rowwise")
    wanted = {(f"ours {recipe}", mode) for recipe in BOTH for mode in modes}
    assert pairs["fp8"] == pairs["fp8_fast"] == wanted
    assert pairs["blockwise"] == {
        (f"ours 1x128 x {kind}", f"torch 1x128 x {kind}") for kind in ("128x128", "1x128")
    }
    assert pairs["int8"] == {("ours", "_int_mm + scaling")}
    assert pairs["quantize"] == {("ours", "eager")}


def test_the_faster_mode_counts() -> None:
    # Sides: torch tensorwise, torch rowwise, ours tensorwise, ours rowwise.
    row = measured(job("fp8"), 3e-3, 2e-3, 1e-3, 4e-3)
    found = {(ratio["side"], ratio["baseline"]): ratio for ratio in row["ratios"]}
    best = {ratio["side"]: ratio for ratio in report.best_of(row)}
    assert best["ours tensorwise"]["median"] == pytest.approx(2.0)
    assert best["ours tensorwise"]["mode"] == "torch rowwise"
    assert best["ours rowwise"]["median"] == pytest.approx(0.5)
    assert found["ours tensorwise", "torch tensorwise"]["median"] == pytest.approx(3.0)
    assert row["kernels"] == {"ours tensorwise": "a_kernel", "ours rowwise": "a_kernel"}


def test_one_recipe_alone_meets_both_modes() -> None:
    row = measured(job("fp8", recipes=("rowwise",)))
    assert {ratio["side"] for ratio in row["ratios"]} == {"ours rowwise"}
    assert len(row["ratios"]) == 2


def refuse(*_: Any, **__: Any) -> Any:
    raise ValueError("no such layout\nand advice")


def test_torch_may_refuse_one_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    own = scaled.torch_scaled_mm

    def only_tensors(x: Tensor, w: Tensor, scale_x: Tensor, *rest: Any) -> Tensor:
        return own(x, w, scale_x, *rest) if scale_x.dim() == 1 else refuse()

    monkeypatch.setattr(scaled, "torch_scaled_mm", only_tensors)
    row = measured(job("fp8"))
    assert row["status"] == "ok"
    assert row["reason"] == "torch rowwise: ValueError: no such layout"
    modes = {ratio["baseline"] for ratio in row["ratios"]}
    assert modes == {"torch tensorwise"}


@pytest.mark.parametrize("group", ["fp8", "blockwise"])
def test_torch_may_refuse_all(group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaled, "torch_scaled_mm", refuse)
    row = measured(job(group))
    assert (row["status"], row["ratios"]) == ("ok", [])
    assert "no such layout" in row["reason"]
    assert "us" in next(side for name, side in row["sides"].items() if name.startswith("ours"))
    wrong = our_library(scaled_mm=lambda *operands: dequantised(*operands) * 1.1)
    row = measured(job(group), library=wrong)
    assert row["status"] == "failed"
    assert "wrong result" in row["reason"]


def test_scales_that_torch_would_misread_are_left_out() -> None:
    row = measured(job("blockwise", shape=shapes.GemmShape(48, 160, 384)))
    assert row["reason"].startswith("torch 1x128 x 128x128: K / 128 is 3")
    assert [ratio["side"] for ratio in row["ratios"]] == ["ours 1x128 x 1x128"]


def without_scales(
    x: Tensor, w: Tensor, scale_x: Tensor, scale_w: Tensor, fast: bool = False
) -> Tensor:
    return dequantised(x, w, scale_x, torch.ones_like(scale_w))


@pytest.mark.parametrize("group", ["fp8", "fp8_fast", "blockwise", "int8"])
def test_a_product_with_other_scales_is_a_failure(group: str) -> None:
    wrong = our_library(scaled_mm=without_scales, int8_mm=without_scales)
    row = measured(job(group), library=wrong)
    assert row["status"] == "failed"
    assert "wrong result" in row["reason"]
    assert row["ratios"] == []


def test_a_wrong_side_among_others_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one whose baseline torch does not have."""

    def one_kind(
        x: Tensor, w: Tensor, scale_x: Tensor, scale_w: Tensor, fast: bool = False
    ) -> Tensor:
        result = dequantised(x, w, scale_x, scale_w)
        return result * 1.1 if scale_w.shape[1] < w.shape[0] else result

    shape = shapes.GemmShape(48, 160, 384)
    row = measured(job("blockwise", shape=shape), library=our_library(scaled_mm=one_kind))
    assert row["status"] == "failed"


@pytest.mark.parametrize("spoil", [lambda v, s: (v, s * 1.1), lambda v, s: (v.roll(1, 0), s)])
def test_wrong_quantisation_is_a_failure(spoil: Any) -> None:
    def quantize(x: Tensor, recipe: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        values, scales = scaled_sides.eager_quantize(x, recipe, dtype)
        if dtype != torch.int8:
            return spoil(values.float(), scales)[0].to(dtype), spoil(values.float(), scales)[1]
        return spoil(values, scales)

    for name in ("rowwise", "rowwise_int8"):
        row = measured(job("quantize", recipes=(name,)), library=our_library(quantize=quantize))
        assert row["status"] == "failed"


@pytest.mark.parametrize("m", [1, 16, 48])
def test_int_mm_gets_the_rows_it_wants(m: int, monkeypatch: pytest.MonkeyPatch) -> None:
    own = torch._int_mm
    rows = []

    def int_mm(a: Tensor, b: Tensor) -> Tensor:
        rows.append(a.shape[0])
        return own(a, b)

    monkeypatch.setattr(torch, "_int_mm", int_mm)
    row = measured(job("int8", shape=shapes.GemmShape(m, 160, 512)))
    assert row["status"] == "ok"
    assert set(rows) == {max(m, 32)}


def test_compiled_baselines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaled, "compiled_scaling", lambda: scaled_sides.scaling)
    eager = scaled_sides.eager_quantize
    monkeypatch.setattr(
        scaled,
        "compiled_quantize",
        lambda recipe, dtype: functools.partial(eager, recipe=recipe, dtype=dtype),
    )
    for group, name in (("int8", "_int_mm + compiled scaling"), ("quantize", "compile")):
        row = measured(job(group), compile=True)
        assert name in {ratio["baseline"] for ratio in row["ratios"]}
    monkeypatch.setattr(scaled, "compiled_scaling", lambda: refuse)
    row = measured(job("int8"), compile=True)
    assert row["status"] == "ok"
    assert row["reason"].startswith("_int_mm + compiled scaling: ValueError")


def test_torch_against_itself() -> None:
    again = scaled_sides.library("torch")
    for group in scaled.GROUPS:
        assert measured(job(group), library=again)["status"] == "ok", group


def test_what_takes_too_much_memory_is_skipped() -> None:
    big = job("fp8", shape=shapes.GemmShape(65536, 57344, 8192))
    with pytest.raises(scaled.SkippedError, match="GB"):
        scaled.fp8(setting(big), fast=False)
    # Every shape of the list is measured.
    for shape in shapes.gemm_shapes(shapes.load()):
        setting(job("fp8", shape=shape), l2_bytes=60 << 20).slots()


def test_references_are_exact() -> None:
    of = setting(job("fp8"))
    x, w = of.values(48, scaled.E4M3), of.values(160, scaled.E4M3)
    exact = x.float().double() @ w.float().double().t()
    torch.testing.assert_close(scaled.product(x, w).double(), exact, rtol=1e-5, atol=1e-2)
    scales = of.scales(48, 4)
    found = scaled.by_block(x, scales).double()
    wide = x.float().double().view(48, 4, 128) * scales.double()[:, :, None]
    assert torch.equal(found.view(48, 4, 128), wide)


# --- jobs and options


def test_jobs() -> None:
    table = shapes.load()
    products = shapes.gemm_shapes(table)
    everything = scaled_jobs.jobs(table, products, scaled_jobs.RECIPES)
    groups = [job.group for job in everything]
    assert {group: groups.count(group) for group in ("fp8", "fp8_fast", "blockwise", "int8")} == {
        group: len(products) for group in ("fp8", "fp8_fast", "blockwise", "int8")
    }
    assert {job.recipes[0] for job in everything if job.group == "quantize"} == set(scaled.QUANTIZE)
    assert set(groups) == set(scaled.GROUPS)
    assert all(
        job.shape.m % 128 == 0 for job in everything if job.recipes == ("blockwise_128x128",)
    )
    assert all(job.shape.k % 128 == 0 for job in everything)
    few = scaled_jobs.jobs(table, products, ["rowwise"], ["fast"], limit=7)
    assert [job.group for job in few] == ["fp8_fast"] * 7
    assert {job.recipes for job in few} == {("rowwise",)}
    assert len({job.shape.m for job in few}) > 2
    assert str(few[0]).startswith("fp8_fast rowwise ")


def test_options() -> None:
    parse = options.parser().parse_args
    given = parse(["scaled"])
    assert (given.recipes, given.accumulation, given.limit) == (None, None, None)
    given = parse(["scaled", "--recipes", "rowwise,int8", "blockwise"])
    assert given.recipes == [["rowwise", "int8"], ["blockwise"]]
    with pytest.raises(argparse.ArgumentTypeError, match="mxfp8"):
        options.recipes_argument("rowwise,mxfp8")
    assert set(scaled_jobs.QUANTIZE) == set(scaled.QUANTIZE)
    assert set(scaled.GROUPS) == {
        *scaled_jobs.ACCUMULATION.values(),
        "blockwise",
        "int8",
        "quantize",
    }
