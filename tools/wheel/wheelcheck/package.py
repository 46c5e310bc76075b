"""Checks of the wheel as a package: tags, RECORD, licences, size."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
from collections import Counter
from email.parser import Parser
from fnmatch import fnmatch

from packaging.tags import Tag
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from wheelcheck.archive import Wheel
from wheelcheck.failure import Failure, shortlist

# Whose code is in _C.so -> what is in the text of its licence.
LICENCES = {
    "CUTLASS": ("NVIDIA CORPORATION & AFFILIATES", "Redistribution and use in source and binary"),
    "PyTorch": ("Facebook, Inc", "Redistribution and use in source and binary"),
    "CUDA": ("NVIDIA CUDA Toolkit", "libcudart_static.a, libcudadevrt.a"),
    "libcu++": ("libcu++ is under the Apache License v2.0 with LLVM Exceptions",),
}
# For code of which no SPDX identifier says the licence.
EULA = "LicenseRef-NVIDIA-CUDA-Toolkit-EULA"
EXPRESSION = f"Apache-2.0 AND BSD-3-Clause AND Apache-2.0 WITH LLVM-exception AND {EULA}"


def file_tags(wheel: Wheel) -> frozenset[Tag]:
    try:
        return parse_wheel_filename(wheel.path.name)[3]
    except InvalidWheelFilename as error:
        raise Failure(f"not a wheel's file name: {error}") from error


def file_tag(wheel: Wheel) -> str:
    tags = file_tags(wheel)
    wrong = [str(tag) for tag in tags if not fnmatch(str(tag), "py3-none-manylinux*")]
    if wrong:
        raise Failure(
            f"tagged {', '.join(sorted(wrong))}, expected py3-none-manylinux_*: "
            'build with wheel.py-api = "py3" and run auditwheel repair'
        )
    path = wheel.root / wheel.dist_info / "WHEEL"
    if not path.is_file():
        raise Failure(f"{wheel.dist_info}/WHEEL is missing: pack the wheel with `wheel pack`")
    metadata = Parser().parsestr(path.read_text("utf-8"))
    inside = set(metadata.get_all("Tag", []))
    if inside != {str(tag) for tag in tags}:
        raise Failure(
            f"WHEEL lists {', '.join(sorted(inside)) or 'no tag'}, the file name "
            f"{', '.join(sorted(map(str, tags)))}: retag with auditwheel or `wheel tags`"
        )
    if metadata.get("Root-Is-Purelib", "").lower() != "false":
        raise Failure("WHEEL says Root-Is-Purelib: true, but the wheel holds binaries")
    return ", ".join(sorted(inside))


def wheel_size(wheel: Wheel, budget_mb: float) -> str:
    size = wheel.path.stat().st_size / 1e6
    if size > budget_mb:
        raise Failure(
            f"{size:.2f} MB exceeds the budget of {budget_mb:g} MB: drop kernels "
            "(see the largest below) or compress the fatbins"
        )
    return f"{size:.2f} MB of {budget_mb:g} MB"


def licences(wheel: Wheel) -> str:
    folder = f"{wheel.dist_info}/licenses/"
    files = [name for name in wheel.files if name.startswith(folder)]
    texts = [" ".join((wheel.root / n).read_text("utf-8", "replace").split()) for n in files]
    for owner, phrases in LICENCES.items():
        if not any(all(phrase in text for phrase in phrases) for text in texts):
            raise Failure(f"no licence of {owner} under {folder}: add it to license-files")
    listed = {folder + name for name in wheel.metadata.get_all("License-File", [])}
    if unequal := listed.symmetric_difference(files):
        raise Failure(f"METADATA's License-File and {folder} differ: {shortlist(unequal)}")
    if (expression := wheel.metadata["License-Expression"]) != EXPRESSION:
        raise Failure(f"License-Expression is {expression}, expected {EXPRESSION}")
    return f"{len(files)} files, {expression}"


def sources(wheel: Wheel) -> str:
    """CUTWHEEL_PRECOMPILED takes the library of a wheel that says what it was built from."""
    name = f"{wheel.dist_info}/sources.json"
    path = wheel.root / name
    if not path.is_file():
        raise Failure(f"{name} is missing: the build writes it (cmake/LibrarySources.cmake)")
    try:
        document = json.loads(path.read_bytes())
        version, files = document["version"], document["files"]
        shaping = [file for file in files if file.startswith("cuda/")]
    except (ValueError, KeyError, TypeError) as error:
        raise Failure(f"{name} is no list of sources ({error!r})") from error
    if version != wheel.metadata["Version"]:
        raise Failure(f"{name} is about {version}, the wheel is {wheel.metadata['Version']}")
    if not shaping:
        raise Failure(f"{name} lists no source in cuda/, of {len(files)}: build from a whole tree")
    return f"{len(files)} files"


def record_digest(data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
    return "sha256=" + digest.rstrip(b"=").decode()


def record(wheel: Wheel) -> str:
    name = f"{wheel.dist_info}/RECORD"
    if name not in wheel.files:
        raise Failure(f"{name} is missing: pack the wheel with `wheel pack`")
    with (wheel.root / name).open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.reader(file) if row]
    listed = {row[0]: row[1:] for row in rows}
    problems = [f"{path} is {n} times in the archive" for path, n in repeated(wheel.files)]
    problems += [f"{path} is {n} times in RECORD" for path, n in repeated([r[0] for r in rows])]
    problems += [f"{path} is listed but not there" for path in listed.keys() - set(wheel.files)]
    for path in set(wheel.files) - {name}:
        data = (wheel.root / path).read_bytes()
        if path not in listed:
            problems.append(f"{path} is not listed")
        elif listed[path] != [record_digest(data), str(len(data))]:
            problems.append(f"{path} has another hash or size than listed")
    if problems:
        raise Failure(f"{shortlist(problems)}: repack with `wheel pack`")
    return f"{len(listed)} files"


def repeated(names: list[str]) -> list[tuple[str, int]]:
    return [(name, count) for name, count in Counter(names).items() if count > 1]


def grafted_libraries(wheel: Wheel) -> str:
    folders = {name.split("/", 1)[0] for name in wheel.files if "/" in name}
    if grafted := sorted(folder for folder in folders if folder.endswith(".libs")):
        inside = [name for name in wheel.files if name.startswith(tuple(f"{f}/" for f in grafted))]
        raise Failure(
            f"auditwheel grafted {', '.join(inside)}: exclude torch's libraries in the repair, "
            "link the rest statically"
        )
    return "none"
