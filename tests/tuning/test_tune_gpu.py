"""Tuned dispatch on a GPU: plans are forced and run, the tuner measures, its table decides."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.gpu

FAMILIES = [
    *("mm", "mm:tf32", "addmm", "linear::gelu", "gemm::gated_silu", "gemm::bias_gelu_aux"),
    *("scaled_mm:fp8:rowwise", "scaled_mm:fp8:rowwise+fast", "scaled_mm:fp8:blockwise"),
    *("scaled_mm:int8:rowwise", "grouped_mm::rows", "grouped_mm::columns", "grouped_mm::k"),
    *("scaled_grouped_mm", "conv2d::fprop", "conv2d::dgrad", "conv2d::wgrad"),
]
SHAPES = ["136x1024x2048", "4x512x256x384", "4x64x14x14x128x3x3x1x1x1"]


@pytest.fixture(autouse=True)
def _cleared(cutwheel: ModuleType) -> Iterator[None]:
    yield
    cutwheel.clear_tuning()


@pytest.fixture
def cuda(device: str) -> str:
    if torch.device(device).type != "cuda":
        pytest.skip("needs CUDA graphs")
    return device


def run(folder: Path, *arguments: str) -> int:
    from cutwheel.tuning import cli

    parser = argparse.ArgumentParser()
    cli.add_arguments(parser)
    given = ["--journal", str(folder / "j.jsonl"), *arguments]
    return cli.run(parser.parse_args(given))


def served(family: str) -> bool:
    return ("fp8" not in family and "scaled_grouped" not in family) or (
        torch.cuda.get_device_capability() >= (8, 9)
    )


@pytest.mark.slow
def test_every_family_is_tuned_with_right_results_and_its_table_is_used(
    cutwheel: ModuleType, cuda: str, tmp_path: Path
) -> None:
    from cutwheel.tuning import journal

    asked = [part for family in FAMILIES if served(family) for part in ("--op", family)]
    asked += [part for shape in SHAPES for part in ("--shape", shape)]
    assert run(tmp_path, *asked) == 0
    records = journal.read(tmp_path / "j.jsonl").records
    assert [record.error for record in records if record.error] == []
    for record in records:
        assert record.timed, record.job
        assert [c for c in record.candidates if c.status == "wrong"] == [], record.job
        assert record.timed[0].us is not None
        assert 0.5 < record.timed[0].us < 1000
    table = json.loads((tmp_path / "j.json").read_text())
    # Groups of rows and a weight with columns of its own for each are one request.
    assert len(table["entries"]) == len({record.request for record in records})
    # Requests with a record are not measured again.
    before = (tmp_path / "j.jsonl").read_bytes()
    assert run(tmp_path, *asked) == 0
    assert (tmp_path / "j.jsonl").read_bytes() == before
    cutwheel.load_tuning(table)
    x = torch.randn(136, 2048, device=cuda, dtype=torch.bfloat16)
    w = torch.randn(1024, 2048, device=cuda, dtype=torch.bfloat16)
    explained = cutwheel.explain("mm", x, w.t())
    mm = next(record for record in records if record.family == "mm:bf16:plain")
    assert explained.parameters["choice"] == "tuned (exact)"
    assert explained.row == mm.timed[0].row
    near = cutwheel.explain("mm", x[:130], w.t())
    assert near.parameters["choice"] == "tuned (near 136x1024x2048)"


def forced(request: dict[str, Any], plan: dict[str, Any], gpu: dict[str, Any]) -> dict[str, Any]:
    values = [0, plan["raster"], plan["swizzle"], plan["splits"], 1e-3]
    facts = {key: gpu[key] for key in ("name", "cc", "sm_count", "memory_gb_per_s")}
    entries = [{"request": request, "plans": [values]}]
    return {"schema": 1, "gpu": facts, "kernels": [plan["row"]], "entries": entries}


@pytest.mark.parametrize("extents", [(136, 1024, 2048), (64, 520, 8192)], ids=str)
def test_every_plan_of_a_request_runs_when_a_table_says_so(
    cutwheel: ModuleType, cuda: str, extents: tuple[int, int, int]
) -> None:
    m, n, k = extents
    x = torch.randn(m, k, device=cuda, dtype=torch.bfloat16)
    w = torch.randn(n, k, device=cuda, dtype=torch.bfloat16)
    expected = x.double() @ w.double().t()
    gpu = json.loads(torch.ops.cutwheel._device_info(torch.cuda.current_device()))

    def answer() -> dict[str, Any]:
        text = torch.ops.cutwheel._explain("mm", [x, w.t()])
        found: dict[str, Any] = json.loads(text)
        return found

    before = answer()
    for plan in before["plans"]:
        for raster, swizzle in (("along_m", 1), ("along_n", 4)):
            wanted = plan | {"raster": raster, "swizzle": swizzle}
            cutwheel.load_tuning(forced(before["tuning_request"], wanted, gpu))
            after = answer()
            assert after["choice"] == "tuned (exact)"
            first = after["plans"][0]
            for key in ("row", "raster", "swizzle", "splits"):
                assert first[key] == wanted[key]
            result = cutwheel.mm(x, w.t()).double()
            assert (result - expected).norm() < 4e-3 * expected.norm(), wanted


@pytest.mark.no_dispatch_mode
def test_a_table_counts_for_calls_that_were_made_before_it(cutwheel: ModuleType, cuda: str) -> None:
    """The choice that a thread remembers is forgotten when a table is loaded, and when it goes."""
    x = torch.randn(256, 4096, device=cuda, dtype=torch.bfloat16)
    w = torch.randn(512, 4096, device=cuda, dtype=torch.bfloat16)
    cutwheel.mm(x, w.t())
    before = json.loads(torch.ops.cutwheel._explain("mm", [x, w.t()]))
    gpu = json.loads(torch.ops.cutwheel._device_info(torch.cuda.current_device()))
    names = []
    for table in (None, forced(before["tuning_request"], before["plans"][1], gpu), None):
        if table is None:
            cutwheel.clear_tuning()
        else:
            cutwheel.load_tuning(table)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            cutwheel.mm(x, w.t())
            torch.cuda.synchronize()
        names.append(sorted(event.name for event in profile.events() if "_sm" in event.name))
    assert names[0] == names[2]
    assert names[0], "the profiler saw a kernel"
    if before["plans"][0]["row"] != before["plans"][1]["row"]:
        assert names[0] != names[1]


def test_a_job_that_ran_out_of_memory_is_measured_when_there_is_some(
    cutwheel: ModuleType, cuda: str, tmp_path: Path
) -> None:
    from cutwheel.tuning import journal

    asked = ("--op", "mm", "--shape", "4096x4096x4096")
    torch.cuda.empty_cache()
    few = (64 << 20) / torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(few, 0)
    try:
        assert run(tmp_path, *asked) == 1
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, 0)
    (failed,) = journal.read(tmp_path / "j.jsonl").records
    assert failed.error.startswith("OutOfMemoryError: ")
    assert run(tmp_path, *asked) == 0
    (_, done) = journal.read(tmp_path / "j.jsonl").records
    assert not done.error
    assert done.timed
    assert len(json.loads((tmp_path / "j.json").read_text())["entries"]) == 1


def test_a_gpu_that_is_not_there_is_refused(
    cutwheel: ModuleType, cuda: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    count = torch.cuda.device_count()
    assert run(tmp_path, "--device", str(count), "--shape", "128x128x128") == 2
    assert f"--device {count}: expected 0 to {count - 1}" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_table_does_not_take_the_place_of_its_journal(
    cutwheel: ModuleType, cuda: str, tmp_path: Path
) -> None:
    asked = ("--shape", "128x128x128", "--table", str(tmp_path / "j.jsonl"))
    assert run(tmp_path, *asked) == 2
    assert not list(tmp_path.iterdir())
