"""What the tuner measures: jobs, and cases on the CPU, whose references are checked."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

cutwheel = pytest.importorskip("cutwheel", reason="needs the built package (make test builds it)")


from cutwheel.tuning import cases, jobs  # noqa: E402
from cutwheel.tuning.cases import Case, Maker, make_case  # noqa: E402
from cutwheel.tuning.measure import Error, tolerance  # noqa: E402

if TYPE_CHECKING:
    from cpu_reference import CpuOps


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
    error = Error.of(case.part(result), expected)
    assert error.within(tolerance(None, result.dtype)), error
    if case.slots > 1:
        assert not torch.equal(result, case.call(case.slots - 1)), (
            "slots have operands of their own"
        )


@pytest.mark.parametrize("activation", jobs.OPS["gated_linear"].variants)
def test_a_gated_job_has_the_columns_of_the_result(
    activation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[tuple[torch.Size, str]] = []

    def gemm(a: torch.Tensor, b: torch.Tensor, name: str, **_: Any) -> torch.Tensor:
        called.append((b.shape, name))
        return a

    monkeypatch.setattr(cases, "gemm", gemm)
    case = made(f"gated_linear::{activation}")
    case.call(0)
    assert called == [((384, 512), f"gated_{activation}")]
    assert case.reference().shape == (24, 256)


@pytest.mark.skipif(
    bool(os.environ.get("CUTWHEEL_NARROW")),
    reason="without their kernels, epilogues of other ops are listed, too",
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
    error = Error.of(result, case.reference())
    assert error.within(tolerance(None, result.dtype)), error


def test_operands_rotate_until_they_exceed_l2_and_large_ones_do_not() -> None:
    (job,) = jobs.jobs_of(jobs.families(["mm"], [], []), ["64x64x64"], None)
    make = Maker(job, torch.device("cpu"), 50 << 20)
    assert make.slots(30 << 20) * (30 << 20) > 2 * (50 << 20)
    assert make.slots(1 << 30) == 1
    assert 2 <= make.slots(1) <= 128
