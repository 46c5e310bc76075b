#!/usr/bin/env python3
"""Write the SBOM that the wheel carries (PEP 770): CycloneDX 1.6, JSON.

The build runs this after linking (cmake/Sbom.cmake). The same inputs give the same bytes: the
serial number follows from the content, and the time is SOURCE_DATE_EPOCH or left out.
`components` is what is in the wheel; `formulation` has the tools that made it.
"""

from __future__ import annotations

import argparse
import filecmp
import hashlib
import json
import re
import sys
import tempfile
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

from wheelcheck.fatbin import DeviceCode, KernelId, read_device_code, read_manifest

LIBRARY = "cutwheel/_C.so"
# The header that has CCCL's version, since CUDA 12.5 and before.
CCCL_VERSION = ("cuda/std/__cccl/version.h", "cuda/std/detail/libcxx/include/__cccl/version.h")
# Properties of a kernel's component: the GPU architecture its cubin is for, and that of its PTX.
ARCH, PTX = "cutwheel:arch", "cutwheel:ptx"
APACHE = {"license": {"id": "Apache-2.0"}}
BSD = {"license": {"id": "BSD-3-Clause"}}
CUDA_EULA = {
    "license": {"name": "NVIDIA CUDA Toolkit EULA", "url": "https://docs.nvidia.com/cuda/eula/"}
}
LIBCUXX = {"expression": "Apache-2.0 WITH LLVM-exception"}
GCC_RUNTIME = {"expression": "GPL-3.0-or-later WITH GCC-exception-3.1"}

Component = dict[str, Any]


@dataclass(frozen=True)
class Inputs:
    """Facts of the build. Versions are texts; trees are where headers and tools were found."""

    version: str  # of cutwheel
    cutlass: str
    cutlass_include: Path
    torch: str  # of the headers
    cuda: str  # "13.0"
    cuda_includes: Sequence[Path]
    cudart: Path  # libcudart_static.a
    nvcc: str
    ptxas: str
    cuda_bin: Path
    cxx: str  # "GNU 12.2.0": CMake's name of the host compiler, and its version
    epoch: int | None = None  # SOURCE_DATE_EPOCH


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def component(kind: str, name: str, version: str | None = None, **fields: object) -> Component:
    """A component; fields that are None are left out, and `sha256` becomes its hashes."""
    digest = fields.pop("sha256", None)
    given = {"type": kind, "name": name, "version": version, **fields}
    if digest:
        given["hashes"] = [{"alg": "SHA-256", "content": digest}]
    return {key: value for key, value in given.items() if value is not None}


def pypi_version(distribution: str, file: Path) -> str | None:
    """The version of the installed distribution if `file` is one of its files, or a copy."""
    try:
        found = metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return None
    # By content: a build has the headers behind a link and the compiler's tree in its own folder.
    installed = (Path(str(x.locate())) for x in found.files or () if x.name == file.name)
    is_there = file.exists() and any(
        x.exists() and filecmp.cmp(x, file, shallow=False) for x in installed
    )
    return found.version if is_there else None


def from_pypi(distribution: str, file: Path, version: str) -> dict[str, str]:
    """Version and purl of what is installed from PyPI; else the version that is known otherwise."""
    if installed := pypi_version(distribution, file):
        return {"version": installed, "purl": f"pkg:pypi/{distribution}@{installed}"}
    return {"version": version}


def cutlass(inputs: Inputs) -> Component:
    origin = from_pypi(
        "nvidia-cutlass", inputs.cutlass_include / "cutlass" / "version.h", inputs.cutlass
    )
    origin.setdefault("purl", f"pkg:github/nvidia/cutlass@v{inputs.cutlass}")
    what = "CUTLASS and CuTe headers, compiled into the kernels"
    return component("library", "CUTLASS", **origin, licenses=[BSD], description=what)


def cudart(inputs: Inputs) -> Component:
    version = inputs.cuda
    for folder in inputs.cudart.resolve().parents:  # a toolkit lists its parts at its root
        if (file := folder / "version.json").is_file():
            version = json.loads(file.read_bytes()).get("cuda_cudart", {}).get("version", version)
            break
    origin = from_pypi("nvidia-cuda-runtime", inputs.cudart, version)
    what = "CUDA runtime, linked statically; CUDA headers and libdevice, compiled into the kernels"
    fields: dict[str, Any] = {
        "licenses": [CUDA_EULA],
        "description": what,
        "sha256": sha256(inputs.cudart),
    }
    return component("library", inputs.cudart.name, **origin, **fields)


def libcuxx(inputs: Inputs) -> Component:
    for header in (include / name for include in inputs.cuda_includes for name in CCCL_VERSION):
        if header.is_file():
            break
    else:
        looked = ", ".join(map(str, inputs.cuda_includes))
        raise SystemExit(f"sbom: no {' and no '.join(CCCL_VERSION)} in {looked}")
    number = re.search(r"#\s*define CCCL_VERSION (\d+)", header.read_text("utf-8"))
    if number is None:
        raise SystemExit(f"sbom: {header} has no CCCL_VERSION")
    major, rest = divmod(int(number[1]), 1_000_000)
    minor, patch = divmod(rest, 1000)
    what = "of CCCL: headers, compiled into the kernels"
    version = f"{major}.{minor}.{patch}"
    purl = f"pkg:github/nvidia/cccl@v{version}"
    return component("library", "libcu++", version, purl=purl, licenses=[LIBCUXX], description=what)


def compiled_in(inputs: Inputs) -> list[Component]:
    """Code of others in the wheel."""
    compiler, _, version = inputs.cxx.partition(" ")
    what = f"headers of torch, compiled into {LIBRARY}"
    # No purl: a scanner would report faults of the torch that was there at build time.
    torch = component(
        "library", "LibTorch Stable ABI", inputs.torch, licenses=[BSD], description=what
    )
    what = f"inline code of its headers, compiled into {LIBRARY}; the library itself is not"
    number = version if compiler == "GNU" else None
    libstdcxx = component("library", "libstdc++", number, licenses=[GCC_RUNTIME], description=what)
    found = [cutlass(inputs), cudart(inputs), libcuxx(inputs), torch, libstdcxx]
    return [{"bom-ref": item["name"], **item} for item in found]


def build_tools(inputs: Inputs) -> list[Component]:
    compiler, _, version = inputs.cxx.partition(" ")
    # One PyPI package holds both.
    numbers = {"nvcc": inputs.nvcc, "ptxas": inputs.ptxas}
    package = "nvidia-cuda-nvcc"
    tools = [
        component("application", name, **from_pypi(package, inputs.cuda_bin / name, number))
        for name, number in numbers.items()
    ]
    compiler = {"GNU": "g++", "Clang": "clang++"}.get(compiler, compiler)
    return [*tools, component("application", compiler, version, description="host compiler")]


def kernel_component(kernel: KernelId, has_ptx: bool, digest: str) -> Component:
    # "file", not "library": what is hashed is the cubin, and no scanner should look for its name.
    properties = [{"name": ARCH, "value": kernel.arch}]
    if has_ptx:
        properties.append({"name": PTX, "value": kernel.arch.replace("sm", "compute_")})
    return component("file", kernel.name, sha256=digest, properties=properties)


def document(
    inputs: Inputs, library_sha256: str, manifest: Mapping[KernelId, bool], code: DeviceCode
) -> str:
    """The SBOM's text. `manifest`: cubin -> whether PTX of its architecture is shipped, too."""
    parts = compiled_in(inputs)
    purl = f"pkg:pypi/cutwheel@{inputs.version}"
    library = component("file", LIBRARY, sha256=library_sha256)
    kernels = [kernel_component(k, ptx, code.sha256[k]) for k, ptx in sorted(manifest.items())]
    about: dict[str, Any] = {
        "lifecycles": [{"phase": "build"}],
        "tools": {"components": [component("application", "sbom.py", inputs.version)]},
        "component": {
            "bom-ref": "cutwheel",
            **component("library", "cutwheel", inputs.version, purl=purl, licenses=[APACHE]),
        },
    }
    if inputs.epoch is not None:
        about["timestamp"] = datetime.fromtimestamp(inputs.epoch, timezone.utc).isoformat()
    content = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": about,
        "components": [*parts, library, *kernels],
        "dependencies": [
            {"ref": "cutwheel", "dependsOn": [part["bom-ref"] for part in parts]},
            *({"ref": part["bom-ref"]} for part in parts),
        ],
        "formulation": [{"bom-ref": "build", "components": build_tools(inputs)}],
    }
    serial = uuid.uuid5(uuid.NAMESPACE_URL, compact(content))
    return compact({"serialNumber": f"urn:uuid:{serial}", **content}) + "\n"


def compact(content: object) -> str:
    return json.dumps(content, separators=(",", ":"))


def without_cubin(manifest: Iterable[KernelId], code: DeviceCode) -> str | None:
    missing = sorted(set(manifest) - code.sha256.keys())
    return f"sbom: no cubin for {len(missing)} kernels, {missing[0]} first" if missing else None


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("--library", type=Path, required=True, help="_C.so, linked")
    parser.add_argument("--manifest", type=Path, required=True, help="kernelgen's manifest.json")
    parser.add_argument("--output", type=Path, required=True)
    for name in ("version", "cutlass", "torch", "cuda", "nvcc", "ptxas", "cxx"):
        parser.add_argument(f"--{name}", required=True, metavar="VERSION")
    for name in ("cutlass-include", "cudart", "cuda-bin"):
        parser.add_argument(f"--{name}", type=Path, required=True, metavar="PATH")
    parser.add_argument("--cuda-includes", type=Path, nargs="+", required=True, metavar="PATH")
    parser.add_argument("--epoch", type=int, help="SOURCE_DATE_EPOCH")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    options = vars(parse_arguments(argv))
    library, output = options.pop("library"), options.pop("output")
    manifest = read_manifest(options.pop("manifest"))
    with tempfile.TemporaryDirectory(prefix="sbom_") as folder:
        code = read_device_code(library.resolve(), Path(folder))
    if fault := without_cubin(manifest, code):
        print(fault, file=sys.stderr)
        return 1
    output.write_text(document(Inputs(**options), sha256(library), manifest, code), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
