"""Small wheels for the tests: one good, and whatever a test breaks in a copy of it."""

from __future__ import annotations

import base64
import csv
import dataclasses
import hashlib
import io
import itertools
import json
import platform
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import driver_floor
import pytest
import sbom
from wheelcheck.fatbin import DeviceCode, KernelId, read_device_code
from wheelcheck.package import EXPRESSION

import cuda_toolchain

sys.path.insert(0, str(Path(__file__).parent))  # for broken_wheels
ROOT = Path(__file__).resolve().parents[2]
NAME = "cutwheel-1.0"
DIST_INFO = f"{NAME}.dist-info"
# Newer than any build machine's glibc, so that the good wheel's tag always holds.
GOOD_TAG = f"py3-none-manylinux_2_41_{platform.machine()}"

# PTX of sm80 is assembled for another GPU; every nvcc knows this one.
ASSEMBLED = {"sm80": ["sm86"]}
PTX_TOO = {"sm80": "-gencode=arch=compute_80,code=[sm_80,sm_86,compute_80]"}
PTX_TOO |= {"sm89": "-gencode=arch=compute_89,code=[sm_89,compute_89]"}
GENCODE = {**PTX_TOO, "sm90a": "-gencode=arch=compute_90a,code=sm_90a"}

KERNEL = 'extern "C" __global__ void {name}(float* x) {{ x[threadIdx.x] *= 2.0f; }}\n'
# A call into torch's C shim that torch 2.10 has.
HOST = """
extern "C" int aoti_torch_get_dim(void*, long*);
int torch_call(void* tensor, long* dim) { return aoti_torch_get_dim(tensor, dim); }
"""
NO_EXPORTS = "{ local: *; };"
LICENCES = ["LICENSE", *sorted(f"licenses/{path.name}" for path in (ROOT / "licenses").iterdir())]
SBOM = f"{DIST_INFO}/sboms/cutwheel.cdx.json"


def kernel_name(arch: str) -> str:
    return f"gemm_{arch}_scale"


def manifest(archs: Sequence[str]) -> bytes:
    rows = [
        {"name": kernel_name(a), "arch": a, "ptx": a in PTX_TOO, "assembled": ASSEMBLED.get(a, [])}
        for a in archs
    ]
    return json.dumps({"schema": 1, "kernels": rows}).encode()


def sources() -> bytes:
    files = {"cuda/core/types.h": "0" * 64}
    return json.dumps({"schema": 1, "version": "1.0", "files": files}).encode()


def metadata() -> bytes:
    lines = ["Metadata-Version: 2.4", "Name: cutwheel", "Version: 1.0"]
    lines += [f"License-Expression: {EXPRESSION}", *(f"License-File: {name}" for name in LICENCES)]
    return "\n".join(lines).encode() + b"\n"


def record(files: Mapping[str, bytes]) -> bytes:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.writerow([name, f"sha256={digest}", len(data)])
    rows.writerow([f"{DIST_INFO}/RECORD", "", ""])
    return text.getvalue().encode()


@dataclass
class Workshop:
    """Compiles, links and packs. Objects and libraries are made once per distinct input."""

    nvcc: Path
    folder: Path
    made: dict[tuple[object, ...], Path] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def _once(self, key: tuple[object, ...], suffix: str, make: Callable[[Path], None]) -> Path:
        if key not in self.made:
            path = self.folder / f"made{next(self.numbers)}{suffix}"
            make(path)
            self.made[key] = path
        return self.made[key]

    def _run(self, *command: object) -> None:
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"

    @cached_property
    def library_folders(self) -> list[str]:
        """nvcc's own -L options; its path does not tell, it may be a wrapper script."""
        command = [str(self.nvcc), "--dryrun", str(self.objects("sm80")[0])]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found = re.search(r"^#\$ LIBRARIES=(.*)$", done.stderr, re.MULTILINE)
        assert found, done.stderr
        return shlex.split(found[1])

    @cached_property
    def release(self) -> str:
        return "{}.{}".format(*cuda_toolchain.inspect(self.nvcc).version)

    @property
    def compression(self) -> str:
        """As cmake/CudaToolchain.cmake chooses it, which asks the compiler."""
        return "zstd" if cuda_toolchain.inspect(self.nvcc).version >= (12, 8) else "lz4"

    def told_driver(self) -> str:
        """What the library tells users who have no driver or one that is too old."""
        return str(driver_floor.of_build(self.release, self.compression))

    def kernel_object(self, names: Sequence[str], *gencode: str) -> Path:
        def compile_kernel(path: Path) -> None:
            source = path.with_suffix(".cu")
            source.write_text("".join(KERNEL.format(name=name) for name in names))
            mode = ["--compress-mode=size"] if self.compression == "zstd" else []
            options = ["-Xfatbin=-compress-all", *mode, "-Xcompiler=-fPIC"]
            self._run(self.nvcc, *options, *gencode, "-c", source, "-o", path)

        return self._once((*names, gencode), ".o", compile_kernel)

    def objects(self, *archs: str) -> list[Path]:
        return [self.kernel_object([kernel_name(arch)], GENCODE[arch]) for arch in archs]

    def stub(self, soname: str) -> Path:
        """An empty shared library, for its name in DT_NEEDED."""

        def link(path: Path) -> None:
            options = ["-shared", "-nostdlib", f"-Wl,-soname,{soname}"]
            self._run("c++", *options, "-x", "c++", "/dev/null", "-o", path)

        return self._once(("stub", soname), ".so", link)

    def library(
        self,
        objects: Sequence[Path] | None = None,
        host: str = HOST,
        version_script: str = NO_EXPORTS,
        needed: Sequence[str] = ("libtorch.so",),
        flags: Sequence[str] = (),
        driver: str | None = None,
    ) -> bytes:
        linked = tuple(self.objects(*GENCODE) if objects is None else objects)

        def link(path: Path) -> None:
            source, script = path.with_suffix(".cpp"), path.with_suffix(".map")
            told = self.told_driver() if driver is None else driver
            source.write_text(f'{host}char const* told_driver() {{ return "{told}"; }}\n')
            script.write_text(version_script)
            stubs = ["-Wl,--no-as-needed", *map(self.stub, needed), "-Wl,--as-needed"]
            cudart = [*self.library_folders, "-lcudart_static", "-lpthread", "-ldl", "-lrt"]
            options = ["-shared", "-fPIC", "-s", f"-Wl,--version-script={script}", *flags]
            self._run("c++", *options, source, *linked, *stubs, *cudart, "-o", path)

        key = (linked, host, version_script, tuple(needed), tuple(flags), driver)
        return self._once(key, ".so", link).read_bytes()

    def device_code(self, library: bytes) -> DeviceCode:
        folder = self.folder / f"device_code{next(self.numbers)}"
        folder.mkdir()
        path = folder.with_suffix(".so")
        path.write_bytes(library)
        return read_device_code(path, folder)

    @cached_property
    def sbom_inputs(self) -> sbom.Inputs:
        """Versions that nothing compares with, but for that of ptxas; headers that are there."""
        (ptxas,) = self.device_code(self.library()).ptxas or {f"{self.release}.0"}
        assert ptxas.startswith(f"{self.release}.")
        header = self.folder / "include" / "cuda" / "std" / "__cccl" / "version.h"
        header.parent.mkdir(parents=True)
        header.write_text("#define CCCL_VERSION 3001002\n")
        archive = self.folder / "libcudart_static.a"
        archive.write_bytes(b"!<arch>\n")
        return sbom.Inputs(
            version="1.0",
            cutlass="4.2.0",
            cutlass_include=self.folder,
            torch="2.13.0",
            cuda="13.0",
            cuda_includes=[self.folder / "include"],
            cudart=archive,
            nvcc=ptxas,
            ptxas=ptxas,
            cuda_bin=self.folder,
            cxx="GNU 12.2.0",
        )

    def sbom(self, library: bytes, **changes: Any) -> bytes:
        """The SBOM that the build writes. A kernel that `library` lacks is as in the good one."""
        code = self.device_code(self.library())
        code.sha256 |= self.device_code(library).sha256
        kernels = {KernelId(arch, kernel_name(arch)): arch in PTX_TOO for arch in GENCODE}
        for arch, newer in ASSEMBLED.items():
            kernels |= {KernelId(each, kernel_name(arch)): False for each in newer}
        digest = hashlib.sha256(library).hexdigest()
        inputs = dataclasses.replace(self.sbom_inputs, **changes)
        return sbom.document(inputs, digest, kernels, code).encode()

    def files(self, library: bytes | None = None, tag: str = GOOD_TAG) -> dict[str, bytes]:
        """The files of a good wheel, without RECORD."""
        library = self.library() if library is None else library
        licences = {f"{DIST_INFO}/licenses/{n}": (ROOT / n).read_bytes() for n in LICENCES}
        head = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\n"
        return {
            "cutwheel/__init__.py": b"",
            "cutwheel/_C.so": library,
            "cutwheel/manifest.json": manifest(list(GENCODE)),
            f"{DIST_INFO}/METADATA": metadata(),
            f"{DIST_INFO}/WHEEL": f"{head}Tag: {tag}\n".encode(),
            **licences,
            SBOM: self.sbom(library),
            f"{DIST_INFO}/sources.json": sources(),
        }

    def pack(
        self,
        files: Mapping[str, bytes] | None = None,
        tag: str = GOOD_TAG,
        recorded: Mapping[str, bytes] | None = None,
    ) -> Path:
        """Writes a wheel; RECORD describes `recorded` where that is given, else `files`."""
        files = self.files(tag=tag) if files is None else files
        folder = self.folder / f"wheel{next(self.numbers)}"
        folder.mkdir()
        path = folder / f"{NAME}-{tag}.whl"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in files.items():
                archive.writestr(name, data)
            archive.writestr(f"{DIST_INFO}/RECORD", record(recorded or files))
        return path


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    if shutil.which("c++") is None:
        pytest.skip("the test wheels need a C++ compiler (c++)")
    try:
        nvcc = cuda_toolchain.find_nvcc()
    except cuda_toolchain.ToolchainError as error:
        pytest.skip(f"the test wheels need nvcc: {error}")
    return Workshop(nvcc.path, tmp_path_factory.mktemp("wheels"))
