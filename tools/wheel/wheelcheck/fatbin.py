"""Kernels inside a shared library, read from its fatbins by cuobjdump."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import struct
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from driver_floor import compression_of
from elftools.elf.elffile import ELFFile

# cuobjdump names what it extracts "<library>.<number>.<architecture>.<kind>".
EXTRACTED = re.compile(r"\.(sm_\d+[a-z]?)\.(cubin|ptx)$")
PTX_ENTRY = re.compile(rb"^\s*(?:\.\w+\s+)*\.entry\s+([\w$]+)", re.MULTILINE)
# Fatbins lie one behind the other in a section of their own, at its alignment (8 on x86-64, 256 on
# aarch64): a header, then entries, each of which is a header and a cubin or PTX.
FATBINS = ".nv_fatbin"
FATBIN_MAGIC = 0xBA55ED50
FATBIN = struct.Struct("<IHHQ")  # magic, version, bytes of the header, bytes of all entries
ENTRY = struct.Struct("<HHIQ24xQ")  # kind, version, bytes of the header, bytes of the rest, flags
NO_DEVICE_CODE = "does not contain device code"
# The note that ptxas leaves in a cubin: its name, "Cuda compilation tools, release 13.0, V13.0.88".
TOOL_NOTE = ".note.nv.tkinfo"
PTXAS_VERSION = re.compile(rb"\0ptxas\0[^\0]*\bV(\d+(?:\.\d+)+)\0")


class KernelId(NamedTuple):
    arch: str  # "sm90a"
    name: str

    def __str__(self) -> str:
        return f"{self.name} [{self.arch}]"


def read_manifest(path: Path) -> dict[KernelId, bool]:
    """The cubins of kernelgen's manifest.json -> whether PTX of that architecture is shipped, too.

    A kernel has one of its own architecture, and one of each newer GPU its PTX is assembled for.

    Raises:
        KeyError, TypeError, ValueError: it is no manifest
    """
    found = {}
    for row in json.loads(path.read_bytes())["kernels"]:
        found[KernelId(row["arch"], row["name"])] = bool(row["ptx"])
        found |= {KernelId(arch, row["name"]): False for arch in row["assembled"]}
    return found


@dataclass
class DeviceCode:
    cubins: Counter[KernelId] = field(default_factory=Counter)  # -> bytes, uncompressed
    # -> SHA-256 of the cubin that holds the kernel: the file that `cuobjdump -xelf all` writes.
    sha256: dict[KernelId, str] = field(default_factory=dict)
    ptx: set[KernelId] = field(default_factory=set)
    ptxas: set[str] = field(default_factory=set)  # versions, where the cubins tell
    abis: set[int] = field(default_factory=set)  # of the cubins: e_ident[EI_ABIVERSION]
    compressions: set[str] = field(default_factory=set)  # of the fatbins' entries

    def __iadd__(self, other: DeviceCode) -> DeviceCode:
        if twice := self.sha256.keys() & other.sha256.keys():
            raise RuntimeError(f"{min(twice)} is in more than one cubin")
        self.cubins.update(other.cubins)
        self.sha256 |= other.sha256
        self.ptx |= other.ptx
        self.ptxas |= other.ptxas
        self.abis |= other.abis
        self.compressions |= other.compressions
        return self


def cuobjdump_candidates() -> Iterator[Path]:
    """The pinned PyPI wheel's first: a system cuobjdump may be older than the compiler."""
    try:
        files = metadata.files("nvidia-cuda-cuobjdump") or []
    except metadata.PackageNotFoundError:
        files = []
    yield from (Path(str(file.locate())) for file in files if file.name == "cuobjdump")
    homes = (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda")
    yield from (Path(home, "bin", "cuobjdump") for home in homes if home)
    if on_path := shutil.which("cuobjdump"):
        yield Path(on_path)


def find_cuobjdump() -> Path:
    for path in cuobjdump_candidates():
        if os.access(path, os.X_OK):
            return path
    raise FileNotFoundError("cuobjdump not found: pip install nvidia-cuda-cuobjdump")


def extract(library: Path, folder: Path, option: str) -> None:
    command = [str(find_cuobjdump()), option, "all", str(library)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0 and NO_DEVICE_CODE not in done.stdout + done.stderr:
        message = (done.stderr or done.stdout).strip()
        raise RuntimeError(f"cuobjdump {option} cannot read {library.name}: {message}")


def read_cubin(cubin: Path, arch: str) -> DeviceCode:
    """A kernel's bytes are those of its own sections (.text.K, .nv.constant0.K, .nv.info.K)."""
    sizes: Counter[str] = Counter()
    kernels: set[str] = set()
    ptxas: set[str] = set()
    with cubin.open("rb") as file:
        elf = ELFFile(file)
        abi = elf["e_ident"]["EI_ABIVERSION"]
        for section in elf.iter_sections():
            prefix, _, owner = section.name.rpartition(".")
            if section["sh_type"] != "SHT_NOBITS":
                sizes[owner] += section["sh_size"]
            # A parameter bank tells a kernel from a device function, which has .text only.
            if prefix == ".nv.constant0":
                kernels.add(owner)
            if section.name == TOOL_NOTE:
                ptxas |= {found.decode() for found in PTXAS_VERSION.findall(section.data())}
    digest = hashlib.sha256(cubin.read_bytes()).hexdigest()
    ids = [KernelId(arch, kernel) for kernel in kernels]
    sized = Counter({kernel: sizes[kernel.name] for kernel in ids})
    return DeviceCode(sized, dict.fromkeys(ids, digest), ptxas=ptxas, abis={abi})


def read_compressions(library: Path) -> set[str]:
    """How the entries of all fatbins are compressed, from their flags.

    Raises:
        RuntimeError: bytes that are no fatbin
    """
    with library.open("rb") as file:
        section = ELFFile(file).get_section_by_name(FATBINS)
        data, alignment = (section.data(), section["sh_addralign"]) if section else (b"", 1)
    found = set()
    place = 0
    while place < len(data):
        magic, _, header, size = FATBIN.unpack_from(data, place)
        if magic != FATBIN_MAGIC:
            raise RuntimeError(f"{library.name}: no fatbin at byte {place} of {FATBINS}")
        place, end = place + header, place + header + size
        while place < end:
            _, _, header, size, flags = ENTRY.unpack_from(data, place)
            found.add(compression_of(flags))
            place += header + size
        place = end + -end % alignment
    return found


def read_device_code(library: Path, folder: Path) -> DeviceCode:
    extract(library, folder, "-xelf")
    extract(library, folder, "-xptx")
    code = DeviceCode(compressions=read_compressions(library))
    for path in sorted(folder.iterdir()):
        match = EXTRACTED.search(path.name)
        if match is None:
            raise RuntimeError(f"cuobjdump wrote {path.name}, whose architecture is unknown")
        arch = match[1].replace("_", "")
        if match[2] == "cubin":
            code += read_cubin(path, arch)
        else:
            entries = PTX_ENTRY.findall(path.read_bytes())
            code.ptx |= {KernelId(arch, entry.decode()) for entry in entries}
    return code
