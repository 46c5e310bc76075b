"""Wheels that each break one thing, for test_verify_wheel.py."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from wheelcheck.package import EXPRESSION

if TYPE_CHECKING:
    from conftest import Workshop

DIST_INFO = "cutwheel-1.0.dist-info"
SBOM = f"{DIST_INFO}/sboms/cutwheel.cdx.json"
SOURCES = f"{DIST_INFO}/sources.json"
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
    """Its cubin of the architecture that it is named after."""
    component: dict[str, Any]
    (component,) = (
        c
        for c in document["components"]
        if c["name"] == name and c["properties"][0]["value"] in name.split("_")
    )
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


def with_sources(data: bytes | None) -> Breaker:
    def change(files: dict[str, bytes]) -> None:
        del files[SOURCES]
        if data is not None:
            files[SOURCES] = data

    return with_files(change)


def listed(version: str, file: str) -> bytes:
    return json.dumps({"schema": 1, "version": version, "files": {file: "0" * 64}}).encode()


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
    "ptx that is not assembled for a newer GPU": (
        "cubins",
        "1 of 4 cubins are missing: gemm_sm80_scale [sm86]",
        with_gencode("sm80", "-gencode=arch=compute_80,code=[sm_80,compute_80]"),
    ),
    "stray kernel": ("unknown kernels", "stray [sm80]", with_stray_kernel),
    "cubin of a stray architecture": (
        "unknown kernels",
        "gemm_sm90a_scale [sm89]",
        with_gencode("sm90a", SM90A, "-gencode=arch=compute_89,code=sm_89"),
    ),
    "missing ptx": (
        "ptx",
        "gemm_sm80_scale [sm80]",
        with_gencode("sm80", "-gencode=arch=compute_80,code=[sm_80,sm_86]"),
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
    "driver that is older than the kernels need": (
        "driver",
        "but its kernels need driver",
        with_library(driver="driver 470.42.01 or newer (CUDA 11.4)"),
    ),
    "no driver is told": ("driver", "says nothing", with_library(driver="")),
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
    "sources: missing": ("sources", "sources.json is missing", with_sources(None)),
    "sources: no list": ("sources", "is no list of sources", with_sources(b"[]")),
    "sources: of another version": (
        "sources",
        "is about 0.9, the wheel is 1.0",
        with_sources(listed("0.9", "cuda/core/types.h")),
    ),
    "sources: nothing of the library": (
        "sources",
        "lists no source in cuda/",
        with_sources(listed("1.0", "cmake/precompiled.py")),
    ),
    "record: other hash": ("record", "cutwheel/__init__.py has another", with_changed_file),
    "record: not listed": ("record", "cutwheel/extra.py is not listed", with_unlisted_file),
    "record: not there": ("record", "cutwheel/gone.py is listed", with_listed_but_absent_file),
    "record: file twice": ("record", "2 times in the archive", with_file_twice),
    "grafted library": ("grafted libraries", "libgrafted-0a1b2c.so.1", with_grafted_library),
}
