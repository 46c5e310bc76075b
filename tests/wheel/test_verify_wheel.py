"""tools/wheel/verify.py: a good wheel passes; each check fails on a wheel that breaks just it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import verify as tool
from broken_wheels import BROKEN, without_sm90a_cubin

if TYPE_CHECKING:
    from conftest import Workshop

CLI = Path(tool.__file__)


def verify(wheel: Path, *options: str) -> dict[str, Any]:
    """The JSON report, after a run in this process; its failed checks under "failed"."""
    out = wheel.with_suffix(".json")
    status = tool.main([str(wheel), "--json", str(out), *options])
    report: dict[str, Any] = json.loads(out.read_text())
    report["failed"] = {c["name"]: c["detail"] for c in report["checks"] if not c["ok"]}
    assert status == (1 if report["failed"] else 0)
    return report


@pytest.mark.parametrize("case", BROKEN)
def test_broken_wheel_fails_exactly_one_check(workshop: Workshop, case: str) -> None:
    check, message, build = BROKEN[case]
    report = verify(build(workshop))
    assert list(report["failed"]) == [check], report["failed"]
    assert message in report["failed"][check]


def test_every_check_is_broken_somewhere(workshop: Workshop) -> None:
    names = {check["name"] for check in verify(workshop.pack())["checks"]}
    assert names == {check for check, _, _ in BROKEN.values()} | {"kernel size", "wheel size"}


def test_good_wheel_passes_on_the_command_line(workshop: Workshop) -> None:
    command = [sys.executable, str(CLI), str(workshop.pack())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "All checks passed" in done.stdout
    assert "FAIL" not in done.stdout
    assert "gemm_sm90a_scale [sm90a]" in done.stdout


def test_broken_wheel_fails_on_the_command_line(workshop: Workshop) -> None:
    command = [sys.executable, str(CLI), str(without_sm90a_cubin(workshop))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "1 of 18 checks failed" in done.stdout


def test_kernel_budget(workshop: Workshop) -> None:
    wheel = workshop.pack()
    report = verify(wheel, "--kernel-budget-kb", "0.5")
    assert list(report["failed"]) == ["kernel size"]
    assert "3 kernels exceed" in report["failed"]["kernel size"]
    sizes = {kernel["name"]: kernel["bytes"] for kernel in report["kernels"]}
    assert sizes.keys() == {"gemm_sm80_scale", "gemm_sm89_scale", "gemm_sm90a_scale"}
    assert all(500 < size < 10_000 for size in sizes.values())


def test_wheel_budget(workshop: Workshop) -> None:
    report = verify(workshop.pack(), "--budget-mb", "0.01")
    assert list(report["failed"]) == ["wheel size"]


def test_ten_largest_kernels_are_printed(
    workshop: Workshop, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"extra_{index}" for index in range(9)]
    extra = workshop.kernel_object(names, "-gencode=arch=compute_80,code=sm_80")
    objects = [*workshop.objects("sm80", "sm89", "sm90a"), extra]
    report = verify(workshop.pack(workshop.files(workshop.library(objects))))
    printed = capsys.readouterr().out.split("Largest kernels")[1].splitlines()
    assert "10 of 12" in printed[0]
    sizes = [float(line.split()[0]) for line in printed if line.endswith("]")]
    assert len(sizes) == 10
    assert sizes == sorted(sizes, reverse=True)
    assert len(report["kernels"]) == 12


@pytest.mark.parametrize("content", [None, b"{", b'{"kernels": [{"name": "k"}]}', b"{}"])
def test_manifest_that_is_missing_or_damaged(workshop: Workshop, content: bytes | None) -> None:
    files = workshop.files()
    del files["cutwheel/manifest.json"]
    if content is not None:
        files["cutwheel/manifest.json"] = content
    failed = verify(workshop.pack(files))["failed"]
    assert list(failed) == ["cubins", "unknown kernels", "ptx", "sbom"]
    assert all("cutwheel/manifest.json" in detail for detail in failed.values())


def test_wheel_without_a_library(workshop: Workshop) -> None:
    files = workshop.files()
    del files["cutwheel/_C.so"]
    failed = verify(workshop.pack(files))["failed"]
    assert {"platform symbols", "needed libraries", "torch stable abi", "cubins"} <= failed.keys()


def test_wheel_without_record(workshop: Workshop) -> None:
    files = workshop.files()
    wheel = workshop.pack(files)
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    failed = verify(wheel)["failed"]
    assert list(failed) == ["platform symbols", "record"]  # auditwheel reads RECORD, too
    assert "RECORD is missing" in failed["record"]


def test_library_that_is_damaged(workshop: Workshop) -> None:
    files = workshop.files()
    files["cutwheel/_C.so"] = files["cutwheel/_C.so"][:20_000]
    failed = verify(workshop.pack(files))["failed"]
    assert {"needed libraries", "cubins", "torch stable abi"} <= failed.keys()


def test_not_a_wheel(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "cutwheel-1.0-py3-none-any.whl"
    text.write_text("no zip file")
    assert tool.main([str(text)]) == 2
    assert tool.main([str(tmp_path / "absent.whl")]) == 2
    assert "cannot be read as a wheel" in capsys.readouterr().err


@pytest.mark.skipif("CUTWHEEL_WHEEL" not in os.environ, reason="CUTWHEEL_WHEEL names no wheel")
def test_the_built_wheel(tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    tool.main([os.environ["CUTWHEEL_WHEEL"], "--json", str(out)])
    assert [c for c in json.loads(out.read_text())["checks"] if not c["ok"]] == []
