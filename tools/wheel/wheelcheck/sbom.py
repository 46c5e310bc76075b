"""Check of the SBOM: its schema, and that it says what the wheel holds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from sbom import ARCH, LIBRARY, PTX

from wheelcheck.archive import Wheel
from wheelcheck.failure import Failure, shortlist
from wheelcheck.fatbin import KernelId

FILE = "sboms/cutwheel.cdx.json"
PARTS = ("CUTLASS", "libcudart_static.a")
TOOLS = ("nvcc", "ptxas")


@dataclass(frozen=True)
class Sbom:
    """The compared part of a document that obeys the schema."""

    about: tuple[str, str]  # name and version of what it describes
    versions: dict[str, str]  # of the parts and the tools
    hashes: dict[str, str]  # of files that are no kernels
    kernels: dict[KernelId, tuple[str, bool]]  # -> hash of its cubin, whether there is PTX


def hash_of(component: dict[str, Any]) -> str:
    hashes = {entry["alg"]: entry["content"] for entry in component.get("hashes", [])}
    return str(hashes.get("SHA-256", "none"))


def parse(document: dict[str, Any]) -> Sbom:
    about = document.get("metadata", {}).get("component", {})
    sbom = Sbom((about.get("name", ""), about.get("version", "")), {}, {}, {})
    for item in document.get("components", []):
        properties = {entry["name"]: entry["value"] for entry in item.get("properties", [])}
        if ARCH in properties:
            kernel = KernelId(properties[ARCH], item["name"])
            sbom.kernels[kernel] = (hash_of(item), PTX in properties)
        elif item["type"] == "file":
            sbom.hashes[item["name"]] = hash_of(item)
        else:
            sbom.versions[item["name"]] = item.get("version", "")
    for formula in document.get("formulation", []):
        for tool in formula.get("components", []):
            sbom.versions[tool["name"]] = tool.get("version", "")
    return sbom


def read(wheel: Wheel) -> Sbom:
    name = f"{wheel.dist_info}/{FILE}"
    path = wheel.root / name
    if not path.is_file():
        raise Failure(f"{name} is missing: the build writes it (cmake/Sbom.cmake)")
    text = path.read_text("utf-8", "replace")
    try:
        error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    except ValueError as fault:
        raise Failure(f"{name} is no JSON: {fault}") from fault
    if error is not None:
        raise Failure(f"{name} is not CycloneDX 1.6: {str(error.data).splitlines()[0]}")
    return parse(json.loads(text))


def wrong_versions(wheel: Wheel, sbom: Sbom) -> Iterator[str]:
    version = wheel.metadata["Version"]
    if sbom.about != ("cutwheel", version):
        yield f"it is about {' '.join(sbom.about)}, and the wheel is cutwheel {version}"
    for name in (*PARTS, *TOOLS):
        if not sbom.versions.get(name):
            yield f"it has no version of {name}"
    # The cubins name their assembler, so this compares with the code that is there.
    seen = wheel.device_code.ptxas
    if seen and seen != {sbom.versions.get("ptxas")}:
        yield f"it says ptxas {sbom.versions.get('ptxas')}, the cubins {', '.join(sorted(seen))}"


def wrong_kernels(wheel: Wheel, sbom: Sbom) -> Iterator[str]:
    yield from (f"{kernel} is not in it" for kernel in wheel.manifest.keys() - sbom.kernels.keys())
    yield from (
        f"{kernel} is not shipped" for kernel in sbom.kernels.keys() - wheel.manifest.keys()
    )
    for kernel, (digest, has_ptx) in sbom.kernels.items():
        if has_ptx != wheel.manifest.get(kernel, has_ptx):
            yield f"{kernel} has {'no ' if has_ptx else ''}PTX"
        # A kernel without a cubin is what the check of the cubins is about.
        if digest != wheel.device_code.sha256.get(kernel, digest):
            yield f"{kernel} is in another cubin"


def sbom(wheel: Wheel) -> str:
    found = read(wheel)
    problems = [*wrong_versions(wheel, found), *wrong_kernels(wheel, found)]
    library = wheel.root / LIBRARY
    if not library.is_file():
        raise Failure(f"{LIBRARY}, which it describes, is missing")
    if found.hashes.get(LIBRARY) != hashlib.sha256(library.read_bytes()).hexdigest():
        problems.append(f"{LIBRARY} has another hash: it was changed after the build")
    if problems:
        raise Failure(f"{FILE} does not describe this wheel: {shortlist(problems)}")
    cubins = len({digest for digest, _ in found.kernels.values()})
    names = ", ".join(f"{name} {found.versions[name]}" for name in ("CUTLASS", *TOOLS))
    return f"CycloneDX 1.6: {len(found.kernels)} kernels in {cubins} cubins, {names}"
