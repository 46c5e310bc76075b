"""tools/wheel/verify.py: a good wheel passes; each check fails on a wheel that breaks just it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import driver_floor
import pytest
import verify as tool
from broken_wheels import BROKEN, without_sm90a_cubin
from wheelcheck import kernels
from wheelcheck.fatbin import FATBIN_MAGIC, read_compressions

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


@pytest.mark.parametrize(
    ("options", "compression"),
    [(["-Xfatbin=-compress-all"], None), (["--no-compress"], "none")],
)
def test_compression_is_read_from_the_fatbins(
    workshop: Workshop, options: list[str], compression: str | None
) -> None:
    """None: what the compiler takes where no mode is given, which is one of the two."""
    made = workshop.kernel_object(["squeezed"], *options, "-gencode=arch=compute_80,code=sm_80")
    found = read_compressions(made)
    assert found == {compression} if compression else found <= {"lz4", "zstd"}
    assert read_compressions(workshop.objects("sm80")[0]) == {workshop.compression}


def test_fatbins_lie_at_the_alignment_of_their_section(workshop: Workshop, tmp_path: Path) -> None:
    """As on aarch64, where it is 256."""
    aligned = []
    for made in workshop.objects("sm80", "sm89"):
        aligned.append(tmp_path / made.name)
        align = ["objcopy", "--set-section-alignment", ".nv_fatbin=256"]
        subprocess.run([*align, made, aligned[-1]], check=True)
    linked = tmp_path / "linked.o"
    subprocess.run(["ld", "-r", *aligned, "-o", linked], check=True)
    assert read_compressions(linked) == {workshop.compression}


def test_bytes_that_are_no_fatbin_are_refused(workshop: Workshop, tmp_path: Path) -> None:
    made = workshop.objects("sm80")[0].read_bytes()
    magic = FATBIN_MAGIC.to_bytes(4, "little")
    place = made.index(magic)
    damaged = tmp_path / "damaged.o"
    damaged.write_bytes(made[:place] + b"0" + made[place + 1 :])
    with pytest.raises(RuntimeError, match="no fatbin at byte 0"):
        read_compressions(damaged)


@pytest.mark.parametrize(
    ("cuda", "compression", "driver"),
    [
        ("12.4", "lz4", "driver 525.60.13 or newer (CUDA 12.0)"),
        ("12.8", "lz4", "driver 525.60.13 or newer (CUDA 12.0)"),
        ("12.8", "zstd", "driver 550.54.14 or newer (CUDA 12.4)"),
        ("13.0", "lz4", "driver 580.65.06 or newer (CUDA 13.0)"),
        ("13.2", "zstd", "driver 580.65.06 or newer (CUDA 13.0)"),
    ],
)
def test_the_driver_follows_the_compiler(cuda: str, compression: str, driver: str) -> None:
    floor = driver_floor.of_build(cuda, compression)
    assert str(floor) == driver
    assert kernels.DRIVER.fullmatch(driver.encode())
    abi = {"12": 7, "13": 8}[cuda.partition(".")[0]]
    assert driver_floor.of_code({abi}, {compression}) == floor, "and the code says the same"


def test_flags_of_a_fatbin_say_how_it_is_compressed() -> None:
    # As nvcc 13.0 and 12.4 write them, and without compression.
    named = {0x8011: "zstd", 0x102011: "lz4", 0x11: "none"}
    assert {flags: driver_floor.compression_of(flags) for flags in named} == named


def test_cubins_of_an_unknown_abi_ask_for_their_driver(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_floor, "CUBIN_ABI", {})
    report = verify(workshop.pack())
    assert "CUBIN_ABI in tools/wheel/driver_floor.py" in report["failed"]["driver"]


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
    assert "1 of 20 checks failed" in done.stdout


def test_kernel_budget(workshop: Workshop) -> None:
    wheel = workshop.pack()
    report = verify(wheel, "--kernel-budget-kb", "0.5")
    assert list(report["failed"]) == ["kernel size"]
    assert "4 kernels exceed" in report["failed"]["kernel size"]
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
    assert "10 of 13" in printed[0]
    sizes = [float(line.split()[0]) for line in printed if line.endswith("]")]
    assert len(sizes) == 10
    assert sizes == sorted(sizes, reverse=True)
    assert len(report["kernels"]) == 13


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
