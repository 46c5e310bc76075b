"""tools/verify_wheel.py: a good wheel passes; each check fails on a wheel that breaks just it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from wheelcheck.package import EXPRESSION

import verify_wheel

if TYPE_CHECKING:
    from conftest import Workshop

CLI = Path(verify_wheel.__file__)
DIST_INFO = "cutwheel-1.0.dist-info"
SBOM = f"{DIST_INFO}/sboms/cutwheel.cdx.json"
Breaker = Callable[["Workshop"], Path]

NEEDS_DRIVER = """
extern "C" int cuInit(unsigned);
int driver() { return cuInit(0); }
"""
CALLS_UNSTABLE = """
namespace c10 { int unstable(); }
int unstable() { return c10::unstable(); }
"""


def calls(name: str) -> str:
    return f'extern "C" int {name}(void*);\nint call(void* x) {{ return {name}(x); }}\n'


def host_source() -> str:
    return calls("aoti_torch_get_dim")


def verify(wheel: Path, *options: str) -> dict[str, Any]:
    """The JSON report, after a run in this process; its failed checks under "failed"."""
    out = wheel.with_suffix(".json")
    status = verify_wheel.main([str(wheel), "--json", str(out), *options])
    report: dict[str, Any] = json.loads(out.read_text())
    report["failed"] = {c["name"]: c["detail"] for c in report["checks"] if not c["ok"]}
    assert status == (1 if report["failed"] else 0)
    return report


def with_library(**changes: Any) -> Breaker:
    return lambda workshop: workshop.pack(workshop.files(workshop.library(**changes)))


def with_host(source: str) -> Breaker:
    return with_library(host=source)


def with_files(change: Callable[[dict[str, bytes]], object]) -> Breaker:
    def build(workshop: Workshop) -> Path:
        files = workshop.files()
        change(files)
        return workshop.pack(files)

    return build


def with_tag(tag: str) -> Breaker:
    return lambda workshop: workshop.pack(workshop.files(tag=tag), tag=tag)


def with_gencode(arch: str, *gencode: str) -> Breaker:
    """The kernel of one architecture compiled with other options than it should be."""

    def build(workshop: Workshop) -> Path:
        others = [a for a in ("sm80", "sm89", "sm90a") if a != arch]
        changed = workshop.kernel_object([f"gemm_{arch}_scale"], *gencode)
        library = workshop.library([*workshop.objects(*others), changed])
        return workshop.pack(workshop.files(library))

    return build


def without_sm90a_cubin(workshop: Workshop) -> Path:
    return workshop.pack(workshop.files(workshop.library(workshop.objects("sm80", "sm89"))))


def with_stray_kernel(workshop: Workshop) -> Path:
    stray = workshop.kernel_object(["stray"], "-gencode=arch=compute_80,code=sm_80")
    objects = [*workshop.objects("sm80", "sm89", "sm90a"), stray]
    return workshop.pack(workshop.files(workshop.library(objects)))


def with_grafted_library(workshop: Workshop) -> Path:
    grafted = workshop.stub("libgrafted-0a1b2c.so.1").read_bytes()
    return workshop.pack({**workshop.files(), "cutwheel.libs/libgrafted-0a1b2c.so.1": grafted})


def with_other_wheel_file(files: dict[str, bytes]) -> None:
    files[f"{DIST_INFO}/WHEEL"] = b"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: py3-none-any\n"


def with_purelib(files: dict[str, bytes]) -> None:
    wheel = f"{DIST_INFO}/WHEEL"
    files[wheel] = files[wheel].replace(b"Purelib: false", b"Purelib: true")


def with_unlisted_file(workshop: Workshop) -> Path:
    return workshop.pack({**workshop.files(), "cutwheel/extra.py": b""}, recorded=workshop.files())


def with_listed_but_absent_file(workshop: Workshop) -> Path:
    files = workshop.files()
    return workshop.pack(files, recorded={**files, "cutwheel/gone.py": b""})


def with_changed_file(workshop: Workshop) -> Path:
    files = workshop.files()
    return workshop.pack({**files, "cutwheel/__init__.py": b"import os\n"}, recorded=files)


def with_file_twice(workshop: Workshop) -> Path:
    wheel = workshop.pack()
    with zipfile.ZipFile(wheel, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("cutwheel/__init__.py", b"")
    return wheel


def with_changed_sbom(change: Callable[[dict[str, Any]], object]) -> Breaker:
    def change_file(files: dict[str, bytes]) -> None:
        document = json.loads(files[SBOM])
        change(document)
        files[SBOM] = json.dumps(document).encode()

    return with_files(change_file)


def kernel_in(document: dict[str, Any], name: str) -> dict[str, Any]:
    component: dict[str, Any]
    (component,) = (c for c in document["components"] if c["name"] == name)
    return component


def with_library_of_another_build(workshop: Workshop) -> Path:
    files = workshop.files()
    # Behind the last section, as a tool that adds a note to the file would.
    return workshop.pack({**files, "cutwheel/_C.so": files["cutwheel/_C.so"] + b"0"})


def with_metadata(old: bytes, new: bytes) -> Breaker:
    def change(files: dict[str, bytes]) -> None:
        name = f"{DIST_INFO}/METADATA"
        assert old in files[name]
        files[name] = files[name].replace(old, new)

    return with_files(change)


def without_licence(name: str) -> Breaker:
    """Gone from METADATA, too."""

    def change(files: dict[str, bytes]) -> None:
        del files[f"{DIST_INFO}/licenses/{name}"]
        metadata = f"{DIST_INFO}/METADATA"
        files[metadata] = files[metadata].replace(f"License-File: {name}\n".encode(), b"")

    return with_files(change)


SM90A = "-gencode=arch=compute_90a,code=sm_90a"
MACHINE = os.uname().machine
LEAK = 'extern "C" __attribute__((visibility("default"))) void leak() {}\n'

# what is broken: (the check that must fail, a part of its message, how to build the wheel)
BROKEN: dict[str, tuple[str, str, Breaker]] = {
    "tag of one Python": ("file tag", "cp311", with_tag(f"cp311-cp311-manylinux_2_41_{MACHINE}")),
    "tag not repaired": ("file tag", "auditwheel repair", with_tag(f"py3-none-linux_{MACHINE}")),
    "tag differs inside": ("file tag", "py3-none-any", with_files(with_other_wheel_file)),
    "purelib": ("file tag", "Root-Is-Purelib", with_files(with_purelib)),
    "tag too old": (
        "platform symbols",
        "GLIBC_",
        with_tag(f"py3-none-manylinux_2_5_{MACHINE}"),
    ),
    "needs another library": (
        "needed libraries",
        "libcuda.so.1",
        with_library(needed=["libtorch.so", "libcuda.so.1"]),
    ),
    "does not need torch": ("needed libraries", "libtorch.so", with_library(needed=[])),
    "driver function": ("cuda symbols", "cuInit", with_host(host_source() + NEEDS_DRIVER)),
    "shared cudart": (
        "cuda symbols",
        "cudaNotThere",
        with_host(host_source() + calls("cudaNotThere").replace("call(", "call2(")),
    ),
    "runpath": ("rpath", "/opt/cuda", with_library(flags=["-Wl,-rpath,/opt/cuda"])),
    "rpath": (
        "rpath",
        "/opt/cuda",
        with_library(flags=["-Wl,--disable-new-dtags,-rpath,/opt/cuda"]),
    ),
    "exported symbol": (
        "exports",
        "leak",
        with_library(host=host_source() + LEAK, version_script="{ global: leak; local: *; };"),
    ),
    "unstable torch": (
        "torch stable abi",
        "c10::unstable()",
        with_host(host_source() + CALLS_UNSTABLE),
    ),
    "newer torch": (
        "torch stable abi",
        "torch_tensor_to_pyobject",
        with_host(calls("torch_tensor_to_pyobject")),
    ),
    "torch not released yet": (
        "torch stable abi",
        "aoti_torch_of_the_future",
        with_host(calls("aoti_torch_of_the_future")),
    ),
    "no torch": ("torch stable abi", "no-torch", with_host("int nothing() { return 0; }")),
    "missing cubin": ("cubins", "gemm_sm90a_scale [sm90a]", without_sm90a_cubin),
    "stray kernel": ("unknown kernels", "stray [sm80]", with_stray_kernel),
    "cubin of a stray architecture": (
        "unknown kernels",
        "gemm_sm90a_scale [sm89]",
        with_gencode("sm90a", SM90A, "-gencode=arch=compute_89,code=sm_89"),
    ),
    "missing ptx": (
        "ptx",
        "gemm_sm80_scale [sm80]",
        with_gencode("sm80", "-gencode=arch=compute_80,code=sm_80"),
    ),
    "plain sm_90": (
        "no plain sm_90",
        "gemm_sm90a_scale",
        with_gencode("sm90a", SM90A, "-gencode=arch=compute_90,code=sm_90"),
    ),
    "ptx of sm_90a": (
        "no ptx of sm_90a",
        "gemm_sm90a_scale",
        with_gencode("sm90a", "-gencode=arch=compute_90a,code=[sm_90a,compute_90a]"),
    ),
    "no licence of CUTLASS": (
        "licences",
        "no licence of CUTLASS",
        without_licence("licenses/CUTLASS.txt"),
    ),
    "no licence of torch": (
        "licences",
        "no licence of PyTorch",
        without_licence("licenses/PyTorch.txt"),
    ),
    "no licence of CUDA": ("licences", "no licence of CUDA", without_licence("licenses/CUDA.txt")),
    "no licence of libcu++": (
        "licences",
        "no licence of libcu++",
        without_licence("licenses/CCCL.txt"),
    ),
    "licence that METADATA does not list": (
        "licences",
        "licenses/LICENSE",
        with_metadata(b"License-File: LICENSE\n", b""),
    ),
    "licence that METADATA alone lists": (
        "licences",
        "licenses/MORE",
        with_metadata(b"License-File: LICENSE\n", b"License-File: LICENSE\nLicense-File: MORE\n"),
    ),
    "licence expression of the sources alone": (
        "licences",
        "License-Expression is Apache-2.0, expected",
        with_metadata(EXPRESSION.encode(), b"Apache-2.0"),
    ),
    "no sbom": ("sbom", "cutwheel.cdx.json is missing", with_files(lambda files: files.pop(SBOM))),
    "sbom: no json": (
        "sbom",
        "is no JSON",
        with_files(lambda files: files.update({SBOM: b"{"})),
    ),
    "sbom: not CycloneDX": (
        "sbom",
        "is not CycloneDX 1.6: 'gpu-kernel' is not one of",
        with_changed_sbom(lambda d: d["components"][0].update(type="gpu-kernel")),
    ),
    "sbom: of another version": (
        "sbom",
        "it is about cutwheel 0.9, and the wheel is cutwheel 1.0",
        with_changed_sbom(lambda d: d["metadata"]["component"].update(version="0.9")),
    ),
    "sbom: without CUTLASS": (
        "sbom",
        "it has no version of CUTLASS",
        with_changed_sbom(lambda d: d["components"].pop(0)),
    ),
    "sbom: without the compiler": (
        "sbom",
        "it has no version of nvcc",
        with_changed_sbom(lambda d: d["formulation"][0]["components"].pop(0)),
    ),
    "sbom: another assembler": (
        "sbom",
        "it says ptxas 12.0.1, the cubins",
        with_changed_sbom(lambda d: d["formulation"][0]["components"][1].update(version="12.0.1")),
    ),
    "sbom: kernel not in it": (
        "sbom",
        "gemm_sm90a_scale [sm90a] is not in it",
        with_changed_sbom(lambda d: d["components"].remove(kernel_in(d, "gemm_sm90a_scale"))),
    ),
    "sbom: kernel not in the wheel": (
        "sbom",
        "gemm_sm90a_gone [sm90a] is not shipped",
        with_changed_sbom(
            lambda d: d["components"].append(
                {**kernel_in(d, "gemm_sm90a_scale"), "name": "gemm_sm90a_gone"}
            )
        ),
    ),
    "sbom: other hash of a cubin": (
        "sbom",
        "gemm_sm80_scale [sm80] is in another cubin",
        with_changed_sbom(
            lambda d: kernel_in(d, "gemm_sm80_scale")["hashes"][0].update(content="0" * 64)
        ),
    ),
    "sbom: no hash of a cubin": (
        "sbom",
        "gemm_sm80_scale [sm80] is in another cubin",
        with_changed_sbom(lambda d: kernel_in(d, "gemm_sm80_scale").pop("hashes")),
    ),
    "sbom: no PTX said": (
        "sbom",
        "gemm_sm80_scale [sm80] has PTX",
        with_changed_sbom(lambda d: kernel_in(d, "gemm_sm80_scale")["properties"].pop()),
    ),
    "sbom: library of another build": (
        "sbom",
        "cutwheel/_C.so has another hash",
        with_library_of_another_build,
    ),
    "record: other hash": ("record", "cutwheel/__init__.py has another", with_changed_file),
    "record: not listed": ("record", "cutwheel/extra.py is not listed", with_unlisted_file),
    "record: not there": ("record", "cutwheel/gone.py is listed", with_listed_but_absent_file),
    "record: file twice": ("record", "2 times in the archive", with_file_twice),
    "grafted library": ("grafted libraries", "libgrafted-0a1b2c.so.1", with_grafted_library),
}


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
    assert verify_wheel.main([str(text)]) == 2
    assert verify_wheel.main([str(tmp_path / "absent.whl")]) == 2
    assert "cannot be read as a wheel" in capsys.readouterr().err


@pytest.mark.skipif("CUTWHEEL_WHEEL" not in os.environ, reason="CUTWHEEL_WHEEL names no wheel")
def test_the_built_wheel(tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    verify_wheel.main([os.environ["CUTWHEEL_WHEEL"], "--json", str(out)])
    assert [c for c in json.loads(out.read_text())["checks"] if not c["ok"]] == []
