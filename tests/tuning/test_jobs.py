"""Jobs of the tuner, and cases on the CPU, whose references are checked."""

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


from cutwheel.tuning import jobs, shapes  # noqa: E402
from cutwheel.tuning.case import Case, Setting  # noqa: E402
from cutwheel.tuning.cases import make_case  # noqa: E402
from cutwheel.tuning.measure import Operands, deviation, tensors_of, tolerance  # noqa: E402
from cutwheel.tuning.shapes import Conv, Gemm, Grouped, listed  # noqa: E402

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
    assert listed(DOCUMENT, Gemm) == [
        *((m, 32, 16) for m in (1, 64)),
        *((m, 8, 8) for m in (1, 64)),
        (128, 128, 128),
    ]
    assert listed(DOCUMENT, Grouped) == [(2, 64, 32, 16)]
    assert listed(DOCUMENT, Conv) == [(1, 8, 6, 6, 16, 3, 3, 1, 0, 1, 1)]
    assert listed(DOCUMENT, Gemm, quick=True) == []
    assert listed({}, Conv) == []


def test_the_shapes_of_the_benchmarks_are_read() -> None:
    path = Path(__file__).parents[2] / "benchmarks" / "shapes.toml"
    document = shapes.read_toml(path)
    assert (4096, 28672, 4096) in listed(document, Gemm)
    assert len(listed(document, Conv)) == 19


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
        ("1x8x6x6x16x9x3x1x1x1", "the filter is larger than the padded image"),
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
        listed({"gemm": {"m": 3, "nk": [[1, 2]]}}, Gemm)
    with pytest.raises(ValueError, match=r"\[conv\] has the shape \[1, 2\]: expected NxCxH"):
        listed({"conv": {"cases": [[1, 2]]}}, Conv)


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
    Gemm: "24x256x384",
    Grouped: "3x50x128x256",
    Conv: "2x16x9x8x24x3x2x2x1x1",
}


def made(text: str) -> Case:
    (family,) = jobs.families([text], [], [])
    shape = SHAPES[jobs.OPS[family.op].shape]
    (job,) = jobs.jobs_of([family], [shape], None)
    return make_case(job, torch.device("cpu"), 1 << 12)


def called(case: Case, buffer: int = 0) -> torch.Tensor:
    return tensors_of(case.providers[-1].call(buffer))[0]


@pytest.fixture
def out_on_the_cpu(cpu_ops: CpuOps, monkeypatch: pytest.MonkeyPatch) -> None:
    """mm writes with out=, which the ops of a CPU do not."""
    for op in ("mm", "addmm"):
        own = getattr(cutwheel, op)

        def with_out(*operands: Any, out: torch.Tensor, own: Any = own) -> torch.Tensor:
            return out.copy_(own(*operands))

        monkeypatch.setattr(cutwheel, op, with_out)
    monkeypatch.setattr(torch.backends.cuda, "preferred_blas_library", lambda name=None: "cublas")


@pytest.mark.parametrize("text", FAMILIES)
@pytest.mark.usefixtures("out_on_the_cpu")
def test_the_reference_of_a_case_is_what_its_call_computes(text: str) -> None:
    case = made(text)
    assert case.buffers >= 1
    ours = case.providers[-1]
    result = ours.call(0)
    error = deviation(result, (ours.reference or case.reference)(0))
    assert error.within(tolerance(None, tensors_of(result)[0].dtype)), error
    if case.buffers > 1:
        first = called(case).clone()
        assert not torch.equal(first, called(case, case.buffers - 1)), (
            "buffers have operands of their own"
        )


@pytest.mark.parametrize("activation", jobs.OPS["gated_linear"].variants)
def test_a_gated_job_has_the_columns_of_the_result(
    activation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[torch.Size, str]] = []

    def gemm(a: torch.Tensor, b: torch.Tensor, name: str, **_: Any) -> torch.Tensor:
        seen.append((b.shape, name))
        return a

    monkeypatch.setattr(cutwheel, "gemm", gemm)
    case = made(f"gated_linear::{activation}")
    called(case)
    assert seen == [((384, 512), f"gated_{activation}")]
    assert case.reference(0).shape == (24, 256)


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

    monkeypatch.setattr(cutwheel, "gemm", gemm)
    case = made(f"gemm::{name}")
    error = deviation(called(case), case.reference(0))
    assert error.within(tolerance(None, called(case).dtype)), error


def test_operands_rotate_until_they_exceed_l2_and_large_ones_do_not() -> None:
    operands = Operands(torch.device("cpu"), 50 << 20)
    setting = Setting(Gemm(64, 64, 64), operands, is_frugal=True)
    assert setting.buffers(30 << 20) * (30 << 20) > 2 * (50 << 20)
    assert setting.buffers(1 << 30) == 1
    assert 2 <= setting.buffers(1) <= 128
