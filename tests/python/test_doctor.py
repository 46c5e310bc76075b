"""The doctor: one sentence and a remedy for every problem, and never an exception."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ARCHS = ("sm80", "sm89", "sm90a")


@pytest.fixture
def doctor(cutwheel: ModuleType) -> Any:
    from cutwheel.inspect import doctor

    return doctor


def good(doctor: Any, **changes: Any) -> Any:
    """A machine on which everything works, but for `changes`."""
    facts = doctor.Facts(
        python="3.12.1",
        platform="Linux",
        cutwheel="0.1.0",
        cutlass="4.2.0",
        nvcc="13.0.88",
        cuda="13.0",
        archs=ARCHS,
        torch="2.11.0+cu130",
        torch_cuda="13.0",
        cuda_available=True,
        driver="580.65.06",
        driver_cuda=13000,
        required_cuda=12040,
        required_driver="driver 550.54.14 or newer (CUDA 12.4)",
        driver_ok=True,
        gpus=(doctor.Gpu(0, "NVIDIA H200", (9, 0), ("sm90a", "sm80 (PTX)")),),
    )
    return dataclasses.replace(facts, **changes)


def test_nothing_is_wrong(doctor: Any) -> None:
    facts = good(doctor)
    assert doctor.diagnose(facts) == []
    text = doctor.report(facts, [])
    for part in ("0.1.0", "4.2.0", "13.0.88", "2.11.0+cu130", "580.65.06", "NVIDIA H200", "sm90a"):
        assert part in text
    assert text.endswith("cutwheel's ops can run here.")


SCALED = (
    "gemm_sm80_bf16_bf16_f32_bf16_x",
    "scaled_mm_sm80_s8_s8_s32_bf16_x",
    "scaled_mm_sm80_bf16_bf16_f32_e4m3_quantize_rowwise",
    "scaled_mm_sm89_e4m3_e4m3_f32_bf16_x",
    "scaled_mm_sm90a_e5m2_e4m3_f32_bf16_x",
)


@pytest.mark.parametrize(
    ("archs", "formats"),
    [
        (("sm80",), "served by sm80; scaled_mm: int8"),
        (("sm89 (PTX)",), "served by sm89 (PTX); scaled_mm: fp8"),
        (("sm90a", "sm89 (PTX)", "sm80 (PTX)"), "scaled_mm: fp8, int8"),
        ((), "not served"),
    ],
)
def test_formats_of_scaled_products(doctor: Any, archs: tuple[str, ...], formats: str) -> None:
    gpu = doctor.Gpu(0, "A GPU", (9, 0), archs)
    assert f"{formats}\n" in doctor.report(good(doctor, kernels=SCALED, gpus=(gpu,)), [])
    assert "scaled_mm" not in doctor.report(good(doctor, kernels=SCALED[:1]), [])


PROBLEMS: dict[str, tuple[dict[str, Any], str, str, bool]] = {
    # changes, in the sentence, in the remedy, fatal
    "no_torch": (
        {"torch": None, "torch_error": "ModuleNotFoundError: torch"},
        "PyTorch",
        "torch 2.10",
        True,
    ),
    "old_torch": ({"torch": "2.9.1+cu128"}, "2.9.1", "Upgrade torch", True),
    "old_torch_of_one_digit": ({"torch": "2.1"}, "2.1", "Upgrade torch", True),
    "cpu_torch": (
        {"torch": "2.11.0+cpu", "torch_cuda": None, "gpus": ()},
        "CPU-only",
        "CUDA build",
        True,
    ),
    "no_library": ({"library_error": "ImportError: x"}, "does not load", "Reinstall", True),
    "no_driver": (
        {"driver_ok": False, "driver_cuda": 0, "driver": None, "gpus": ()},
        "libcuda.so.1",
        "Install NVIDIA driver 550.54.14 or newer (CUDA 12.4)",
        True,
    ),
    "old_driver": (
        {"driver_ok": False, "driver_cuda": 12020, "driver": "535.54.03", "gpus": ()},
        "535.54.03 supports CUDA 12.2, and this wheel needs CUDA 12.4",
        "Update to driver 550.54.14 or newer",
        True,
    ),
    "broken_driver": (
        {"driver_ok": False, "driver_message": "no entry point"},
        "no entry point",
        "Reinstall",
        True,
    ),
    "no_gpu": ({"gpus": ()}, "no CUDA device", "nvidia-smi", True),
    "hidden_gpu": (
        {"gpus": (), "environment": {"CUDA_VISIBLE_DEVICES": ""}},
        "CUDA_VISIBLE_DEVICES is ''",
        "Unset",
        True,
    ),
    "arch_unknown": ({"environment": {"CUTWHEEL_ARCH": "sm75"}}, "sm75", "Unset", True),
    "arch_not_served": ({"environment": {"CUTWHEEL_ARCH": "sm89"}}, "no kernel", "Unset", True),
    "arch_set": ({"environment": {"CUTWHEEL_ARCH": "sm80"}}, "restricts", "Unset", False),
    "kernel_set": (
        {"environment": {"CUTWHEEL_KERNEL": "gemm_x"}, "kernels": ("gemm_x",)},
        "forces",
        "Unset",
        False,
    ),
    "kernel_unknown": ({"environment": {"CUTWHEEL_KERNEL": "gemm_x"}}, "no kernel", "Unset", True),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_problem(doctor: Any, name: str) -> None:
    changes, what, remedy, fatal = PROBLEMS[name]
    facts = good(doctor, **changes)
    problems = doctor.diagnose(facts)
    assert len(problems) == 1, problems
    assert what in problems[0].what
    assert remedy in problems[0].remedy
    assert problems[0].fatal is fatal
    assert problems[0].what.endswith(".")
    text = doctor.report(facts, problems)
    assert problems[0].what in text
    assert text.endswith("cannot run here." if fatal else "can run here.")


GPUS = {
    "too_old": ({"capability": (7, 5), "name": "Tesla T4"}, "Tesla T4", "8.0 (Ampere)"),
    "not_in_wheel": ({"capability": (8, 6)}, "none of this wheel's", "wheel"),
    "silent": ({"error": "RuntimeError: lost"}, "lost", "nvidia-smi"),
}


@pytest.mark.parametrize("name", GPUS)
def test_gpu_problem_is_fatal_only_without_another_gpu(doctor: Any, name: str) -> None:
    fields, what, remedy = GPUS[name]
    gpu = doctor.Gpu(index=1, **fields)  # type: ignore[arg-type]
    facts = good(doctor, gpus=(gpu,))
    (problem,) = doctor.diagnose(facts)
    assert what in problem.what
    assert remedy in problem.remedy
    assert problem.fatal
    (problem,) = doctor.diagnose(good(doctor, gpus=(*good(doctor).gpus, gpu)))
    assert not problem.fatal


def test_ptx_needs_a_driver_as_new_as_the_compiler(doctor: Any) -> None:
    gpu = doctor.Gpu(1, "RTX 5090", (12, 0), ("sm89 (PTX)", "sm80 (PTX)"))
    newer = {"cuda": "13.2", "gpus": (gpu,)}
    (problem,) = doctor.diagnose(good(doctor, **newer))
    assert "cuda:1 (RTX 5090) runs this wheel's PTX, which is of CUDA 13.2" in problem.what
    assert "the driver supports CUDA 13.0" in problem.what
    assert problem.remedy == "Update to a driver for CUDA 13.2 or newer."
    assert problem.fatal
    assert doctor.diagnose(good(doctor, driver_cuda=13020, **newer)) == []
    assert doctor.diagnose(good(doctor, gpus=(gpu,))) == []
    # The H200 has machine code, so its PTX does not matter.
    beside = good(doctor, cuda="13.2", gpus=(*good(doctor).gpus, gpu))
    assert [problem.fatal for problem in doctor.diagnose(beside)] == [False]


@pytest.mark.parametrize(
    ("capability", "is_told"), [((12, 0), True), ((12, 1), True), ((10, 3), False), ((9, 0), False)]
)
def test_gemms_that_are_assembled_for_a_newer_gpu_are_told(
    doctor: Any, capability: tuple[int, int], is_told: bool
) -> None:
    gpu = doctor.Gpu(0, "A GPU", capability, ("sm80 (PTX)",))
    facts = good(doctor, gpus=(gpu,), assembled=("sm120",))
    told = "16-bit GEMMs assembled for it, not run by the authors"
    assert (told in doctor.report(facts, [])) == is_told


@pytest.mark.parametrize(
    "broken", ["_driver_release", "_probe_torch", "_probe_library", "_probe_gpus"]
)
def test_a_probe_that_fails_does_not_end_the_report(
    doctor: Any, broken: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise OSError("broken probe")

    monkeypatch.setattr(doctor, broken, fail)
    assert doctor.run() in (0, 1)
    assert "cutwheel's ops can" in capsys.readouterr().out


def test_even_its_own_error_is_reported(
    doctor: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "diagnose", lambda facts: 1 / 0)
    assert doctor.run() == 1
    assert "ZeroDivisionError" in capsys.readouterr().err


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_has_read_enough_is_no_error(cutwheel: ModuleType, unbuffered: str) -> None:
    assert cutwheel.__file__ is not None
    reader, writer = os.pipe()
    os.close(reader)
    path = str(Path(cutwheel.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-m", "cutwheel", "doctor"],
        env={**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": unbuffered},
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writer)
    assert done.returncode in (0, 1)
    assert "Error" not in done.stderr
    assert "ignored" not in done.stderr


def test_exit_status_and_json(
    doctor: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from cutwheel import __main__ as cli

    monkeypatch.setattr(doctor, "collect", lambda: good(doctor))
    assert cli.main(["doctor", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["usable"] is True
    assert data["gpus"][0]["archs"] == ["sm90a", "sm80 (PTX)"]
    monkeypatch.setattr(doctor, "collect", lambda: good(doctor, gpus=()))
    assert cli.main(["doctor", "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["problems"][0]["fatal"] is True


def test_runs_as_a_module_where_the_library_is_missing(
    cutwheel: ModuleType, tmp_path: Path
) -> None:
    import shutil

    assert cutwheel.__file__ is not None
    ignore = shutil.ignore_patterns("_C.so", "__pycache__")
    shutil.copytree(Path(cutwheel.__file__).parent, tmp_path / "cutwheel", ignore=ignore)
    done = subprocess.run(
        [sys.executable, "-m", "cutwheel", "doctor"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "does not load" in done.stdout
    assert "Traceback" not in done.stderr
