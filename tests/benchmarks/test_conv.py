"""The convolution benchmarks' own logic, on the CPU with synthetic timings: no GPU is needed."""

from __future__ import annotations

import copy
import dataclasses
import json
from typing import Any

import pytest
import torch
from synthetic_clock import SyntheticClock

from benchmarks import (
    conv,
    conv_host,
    conv_jobs,
    conv_resnet,
    conv_sides,
    harness,
    host,
    plan,
    record,
    session,
    shapes,
)

SHAPE = conv_jobs.ConvShape(2, 8, 7, 6, 16, 3, 3, 2, 1, 1)
DILATED = conv_jobs.ConvShape(1, 5, 9, 8, 4, 3, 2, 1, 2, 2)
IMAGES = conv_jobs.RESNET._replace(n=2, h=32, w=32)
PRODUCTS = ("fprop", "dgrad", "wgrad", "fused")
Tensor = torch.Tensor


def our_library(**changed: Any) -> conv_sides.Library:
    made = conv_sides.Library(
        "ours",
        conv_sides.torch_fprop,
        conv_sides.torch_dgrad,
        conv_sides.torch_wgrad,
        conv_sides.eager_fused,
        copy.deepcopy,
        lambda *_: "a_kernel",
    )
    return dataclasses.replace(made, **changed)


@pytest.fixture(autouse=True)
def cudnns_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU has no such function: it is made up."""

    def call(x: Tensor, w: Tensor, z: Tensor, alpha: float, b: Tensor, *where: Any) -> Tensor:
        *geometry, groups = where
        assert (alpha, groups) == (1.0, 1)
        return torch.relu(torch.nn.functional.conv2d(x, w, b, *geometry) + z)

    monkeypatch.setattr(torch, "cudnn_convolution_add_relu", call)
    monkeypatch.setattr(conv_resnet, "WIDTH", 8)


def job(group: str, shape: conv_jobs.ConvShape = SHAPE) -> conv_jobs.Job:
    return conv_jobs.Job(group, IMAGES if group == "resnet50" else shape)


def measured(of: conv_jobs.Job, *each: float, **changed: Any) -> dict[str, Any]:
    made = {"library": our_library(), "compile_mode": None} | changed
    setting = conv.Setting(of, torch.device("cpu"), 50_000, **made)
    case = conv.GROUPS[of.group](setting)
    found = harness.compare(case.case, SyntheticClock(*each or (2e-3,)), plan.Limits(), 0.1)
    return session.row(of, case, found)


# --- groups


@pytest.mark.parametrize("shape", [SHAPE, DILATED], ids=["strided", "dilated"])
@pytest.mark.parametrize("group", PRODUCTS)
def test_every_group_runs_and_is_right(group: str, shape: conv_jobs.ConvShape) -> None:
    each = (4e-3, 3e-3, 2e-3) if group == "fused" else (3e-3, 2e-3)
    row = measured(job(group, shape), *each)
    assert (row["status"], row["reason"]) == ("ok", "")
    assert all(side["relative_error"] < 0.01 for side in row["sides"].values())
    ratios = {ratio["baseline"]: ratio["median"] for ratio in row["ratios"]}
    if group == "fused":
        assert ratios == pytest.approx({"eager": 2.0, "cudnn_convolution_add_relu": 1.5})
    else:
        assert ratios == pytest.approx({"torch": 1.5})
    assert row["kernels"] == {"ours": "a_kernel"}
    assert row["sides"]["ours"]["tflops"] == pytest.approx(shape.flops / 2e-3 * 1e-12)
    assert row["slots"] >= 2
    assert row["m"] == shape.n * shape.p * shape.q
    json.dumps(record.plain(row), allow_nan=False)


def test_inputs_are_channels_last() -> None:
    strides: list[tuple[int, ...]] = []

    def seen(*given: Any) -> Tensor:
        strides.extend(tensor.stride() for tensor in given[:2])
        return conv_sides.torch_fprop(*given)

    measured(job("fprop"), library=our_library(fprop=seen))
    assert set(strides) == {(8 * 7 * 6, 1, 8 * 6, 8), (72, 1, 24, 8)}


def permuted(*given: Any) -> Tensor:
    """What was written channels last and is read as if it were not."""
    result = conv_sides.torch_fprop(*given)
    return result.permute(0, 2, 3, 1).contiguous().view(result.shape)


def of_neighbours(*given: Any) -> Tensor:
    return conv_sides.torch_dgrad(*given).roll(1, -1)


def without_an_image(dy: Tensor, x: Tensor, *rest: Any) -> Tensor:
    return conv_sides.torch_wgrad(dy[1:], x[1:], *rest)


def other_order(x: Tensor, w: Tensor, b: Tensor, r: Tensor, shape: Any) -> Tensor:
    """relu(conv + bias) + residual"""
    z = torch.nn.functional.conv2d(x, w, b, shape.stride, shape.padding, shape.dilation)
    return torch.relu(z) + r


@pytest.mark.parametrize(
    "wrong",
    [
        {"fprop": permuted},
        {"dgrad": of_neighbours},
        {"wgrad": without_an_image},
        {"fused": other_order},
    ],
    ids=PRODUCTS,
)
def test_wrong_results_are_failures(wrong: dict[str, Any]) -> None:
    row = measured(job(next(iter(wrong))), library=our_library(**wrong))
    assert row["status"] == "failed"
    assert "wrong result" in row["reason"]
    assert row["ratios"] == []


def test_a_baseline_that_fails_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Tensor:
        raise RuntimeError("FIND was unable to find an engine")

    monkeypatch.setattr(conv, "cudnn_fused", refuse)
    row = measured(job("fused"), 3e-3, 2e-3)
    assert row["status"] == "ok"
    assert [ratio["baseline"] for ratio in row["ratios"]] == ["eager"]
    assert "unable to find" in row["reason"]


def test_torch_against_itself() -> None:
    again = conv_sides.library("torch")
    for group in conv_jobs.GROUPS:
        assert measured(job(group), library=again)["status"] == "ok", group


def test_cudnn_is_tuned() -> None:
    before = torch.backends.cudnn.benchmark
    with conv_sides.tuned_cudnn():
        assert torch.backends.cudnn.benchmark
    assert torch.backends.cudnn.benchmark == before


def test_what_the_library_is_given() -> None:
    shape = DILATED._replace(stride=2)
    assert conv_sides.geometry(shape) == [2, 2, 2, 2, 2, 2, 2, 2]
    x, w = torch.randn(shape.input), torch.randn(shape.filter)
    assert conv_sides.torch_fprop(x, w, shape).shape == shape.output
    assert shape.elements == x.numel() + w.numel() + torch.Size(shape.output).numel()


# --- ResNet-50


def test_resnet() -> None:
    row = measured(job("resnet50"), 6e-3, 4e-3)
    assert (row["status"], row["reason"]) == ("ok", "")
    assert [ratio["baseline"] for ratio in row["ratios"]] == ["eager"]
    assert row["ratios"][0]["median"] == pytest.approx(1.5)
    assert conv_resnet.operations(IMAGES._replace(n=4)) == 2 * conv_resnet.operations(IMAGES)


def test_a_resnet_of_other_weights_is_a_failure() -> None:
    def other(model: torch.nn.Module) -> torch.nn.Module:
        made = copy.deepcopy(model)
        torch.nn.init.normal_(made.layer1[0].conv1.weight)
        return made

    assert measured(job("resnet50"), library=our_library(fuse=other))["status"] == "failed"


def test_a_resnet_that_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled(model: torch.nn.Module, mode: str) -> Any:
        def call(x: Tensor) -> Tensor:
            raise KeyError("no compiler")

        return call

    monkeypatch.setattr(torch, "compile", compiled)
    row = measured(job("resnet50"), compile_mode="default")
    assert row["status"] == "ok"
    assert "no compiler" in row["reason"]


# --- jobs


def test_jobs() -> None:
    wanted = conv_jobs.shapes(shapes.load())
    assert len(wanted) == 19
    everything = conv_jobs.jobs(wanted)
    assert len(everything) == 4 * len(wanted) + 1
    assert set(conv_jobs.GROUPS) == set(conv.GROUPS)
    assert str(everything[0]) == "fprop 64 x 3 x 224 x 224, 64 of 7 x 7, stride 2"
    assert str(everything[-1]) == "resnet50 64 x 3 x 224 x 224"
    assert str(conv_jobs.Job("wgrad", DILATED)).endswith("stride 1, dilation 2")
    assert conv_jobs.jobs(wanted[:1], ["wgrad"]) == [conv_jobs.Job("wgrad", wanted[0])]
    assert len(conv_jobs.shapes(shapes.load(), quick=True)) == 3
    assert (wanted[0].p, wanted[0].q) == (112, 112)
    for wrong in ([2, 8, 0, 6, 16, 3, 3, 2, 1, 1], [2, 8, 2, 6, 16, 5, 3, 1, 1, 1]):
        with pytest.raises(ValueError, match="expected sizes of at least 1, and a result"):
            conv_jobs.shapes({"conv": {"cases": [wrong]}})


# --- CPU time


def test_cpu_time_compares_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conv_host, "library", lambda _: our_library())
    cases = conv_host.make_cases("ours", "cpu")
    assert len({case.name for case in cases}) == len(cases)
    for case in cases:
        assert host.disagreement(case) < 0.02, case.name
