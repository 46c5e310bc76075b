"""The library of a published wheel in place of a build, for work on the Python side alone.

    python cmake/precompiled.py files --source-dir .
    python cmake/precompiled.py record --source-dir . --version 0.1.0 --output sources.json
    python cmake/precompiled.py take --wheel cutwheel-....whl --source-dir . --version 0.1.0 \\
        --manifest build/generated/manifest.json --output-dir build/precompiled

``record`` writes the SHA-256 of every source that shaped the library; the wheel carries it.
``take`` unpacks the library of a wheel if it was built from the sources that lie here, and for the
same kernels. Standard library only.
"""

from __future__ import annotations

import argparse
import base64
import csv
import hashlib
import io
import json
import platform
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

SCHEMA = 1
RECORD = "sources.json"  # in the wheel's dist-info
SBOM = "cutwheel.cdx.json"
# Whatever of it changes, the library may be another. pyproject.toml counts by its version alone.
# table.py and driver_floor.py run in the configure; the other two pin the headers.
SHAPING = (
    "CMakeLists.txt",
    "cmake",
    "cuda",
    "python/cutwheel/tuning/table.py",
    "requirements/cutlass.txt",
    "requirements/torch.txt",
    "tools/wheel/driver_floor.py",
)
INSTEAD = "Or unset CUTWHEEL_PRECOMPILED, and the library is compiled"


class RefusedError(Exception):
    """A wheel whose library is not the one of these sources; the text says what to do."""


def files(root: Path) -> list[str]:
    """The sources that shape the library, as paths relative to `root`."""
    found: list[str] = []
    for name in SHAPING:
        path = root / name
        inside = path.rglob("*") if path.is_dir() else iter([path])
        for file in inside:
            relative = file.relative_to(root)
            if file.is_file() and not _is_left_over(relative):
                found.append(relative.as_posix())
    return sorted(found)


def _is_left_over(path: Path) -> bool:
    """Of an interpreter or an editor."""
    hidden = any(part.startswith(".") or part == "__pycache__" for part in path.parts)
    return hidden or path.name.endswith(("~", ".pyc", ".orig", ".rej"))


def hashes(root: Path) -> dict[str, str]:
    return {name: _sha256((root / name).read_bytes()) for name in files(root)}


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def record(root: Path, version: str) -> str:
    """The text of sources.json."""
    document = {"schema": SCHEMA, "version": version, "files": hashes(root)}
    return json.dumps(document, indent=1) + "\n"


@dataclass(frozen=True)
class Sources:
    version: str
    files: Mapping[str, str]


def parse(data: bytes) -> Sources:
    """Raises ValueError if `data` is no record."""
    document = json.loads(data)
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise ValueError(f"it has no schema {SCHEMA}")
    version, listed = document.get("version"), document.get("files")
    if not isinstance(version, str) or not isinstance(listed, dict) or not listed:
        raise ValueError('it lacks "version" or "files"')
    return Sources(version, listed)


def shortlist(items: Iterable[str], limit: int = 10) -> str:
    names = list(items)
    more = f", and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def differences(there: Sources, here: Sources) -> Iterator[str]:
    """What keeps a library that was built from `there` from being that of `here`."""
    if there.version != here.version:
        yield f"the version is {there.version} in the wheel, {here.version} in pyproject.toml"
    both = there.files.keys() & here.files.keys()
    groups = {
        "changed here": {name for name in both if there.files[name] != here.files[name]},
        "only here": here.files.keys() - both,
        "only in the wheel": there.files.keys() - both,
    }
    for words, names in groups.items():
        if names:
            yield f"{words}: {shortlist(sorted(names))}"


class _Wheel:
    """A wheel whose members are compared with its RECORD as they are read."""

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        names = archive.namelist()
        found = {n.split("/", 1)[0] for n in names if n.split("/", 1)[0].endswith(".dist-info")}
        if len(found) != 1:
            raise RefusedError(f"it has {len(found)} folders *.dist-info, so {path} is no wheel")
        [self.dist_info] = found
        text = self._member(f"{self.dist_info}/RECORD").decode()
        self._listed = {row[0]: row[1] for row in csv.reader(io.StringIO(text)) if len(row) > 1}

    def _member(self, name: str) -> bytes:
        try:
            return self._archive.read(name)
        except KeyError:
            if name.endswith(f"/{RECORD}"):
                raise RefusedError(
                    f"it has no {name}, so it does not say what it was built from."
                    f" Take a wheel of 0.1.0 or newer. {INSTEAD}"
                ) from None
            raise RefusedError(f"it has no {name}. Take a published wheel. {INSTEAD}") from None
        except (zipfile.BadZipFile, OSError, EOFError) as error:
            raise RefusedError(f"{name} is damaged ({error}). Fetch the wheel again") from error

    def read(self, name: str) -> bytes:
        data = self._member(name)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        if (listed := self._listed.get(name)) != f"sha256={digest}":
            raise RefusedError(
                f"{name} has sha256={digest}, and RECORD says {listed or 'nothing of it'}: the"
                " wheel was changed after it was built. Fetch it again"
            )
        return data

    def check_platform(self) -> None:
        text = self.read(f"{self.dist_info}/WHEEL").decode()
        tags = [line.split(":", 1)[1].strip() for line in text.splitlines() if line[:4] == "Tag:"]
        machine = platform.machine()
        if not any(tag.endswith(f"_{machine}") for tag in tags):
            raise RefusedError(
                f"it is tagged {shortlist(tags) or 'nothing'}, and this machine is {machine}."
                f" Take the wheel of this platform. {INSTEAD}"
            )


def compare_kernels(there: bytes, here: bytes) -> None:
    """Raises RefusedError if the manifest of a wheel is not that of this configure."""
    if there == here:
        return
    names = [{row["name"] for row in json.loads(data)["kernels"]} for data in (there, here)]
    missing, further = names[1] - names[0], names[0] - names[1]
    found = [
        f"{words} {shortlist(sorted(kernels), 3)}"
        for words, kernels in (("it lacks", missing), ("it also has", further))
        if kernels
    ]
    raise RefusedError(
        f"its manifest.json is not the one of this selection of kernels ({len(names[0])} in the"
        f" wheel, {len(names[1])} selected): {'; '.join(found) or 'facts of kernels differ'}. Set"
        " CUTWHEEL_KERNELS and CUTWHEEL_ARCHS (or TORCH_CUDA_ARCH_LIST) as for the wheel, or to"
        f" nothing for a published one. {INSTEAD}"
    )


def take(path: Path, sha256: str, root: Path, version: str, manifest: Path) -> dict[str, bytes]:
    """The files of the wheel that stand for a build.

    Raises:
        RefusedError: the file is not the one of `sha256` (empty: any), no wheel, of other sources,
            kernels or another platform
    """
    try:
        whole = path.read_bytes()
    except OSError as error:
        raise RefusedError(f"it cannot be read ({error.strerror}). Give an absolute path") from None
    if sha256 and (found := _sha256(whole)) != sha256.lower():
        raise RefusedError(f"its SHA-256 is {found}, not that behind #sha256=. Fetch it again")
    try:
        archive = zipfile.ZipFile(io.BytesIO(whole))
    except zipfile.BadZipFile as error:
        raise RefusedError(f"it is no wheel ({error})") from error
    with archive:
        wheel = _Wheel(path, archive)
        wheel.check_platform()
        recorded = wheel.read(f"{wheel.dist_info}/{RECORD}")
        try:
            there = parse(recorded)
        except ValueError as error:
            raise RefusedError(f"its {RECORD} cannot be understood: {error}") from error
        if different := list(differences(there, Sources(version, hashes(root)))):
            raise RefusedError(
                "its library was built from other sources.\n  "
                + "\n  ".join(different)
                + f"\nTake a wheel of these sources, or check out those of the wheel: `git diff"
                f" v{there.version} -- cmake cuda` has the lines that differ. {INSTEAD}"
            )
        kernels = wheel.read("cutwheel/manifest.json")
        compare_kernels(kernels, manifest.read_bytes())
        return {
            "_C.so": wheel.read("cutwheel/_C.so"),
            "manifest.json": kernels,
            RECORD: recorded,
            SBOM: wheel.read(f"{wheel.dist_info}/sboms/{SBOM}"),
        }


def write(contents: Mapping[str, bytes], folder: Path) -> None:
    """Leaves alone what is there already; a file is complete or not there."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in contents.items():
        path = folder / name
        if not path.is_file() or path.read_bytes() != data:
            temporary = path.with_name(f"{name}.tmp")
            temporary.write_bytes(data)
            temporary.replace(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["files", "record", "take"])
    parser.add_argument("--source-dir", type=Path, required=True, help="root of the repository")
    parser.add_argument("--version", help="of the package")
    parser.add_argument("--output", type=Path, help="record: the file to write")
    parser.add_argument("--wheel", type=Path)
    parser.add_argument("--sha256", default="", help="of the wheel")
    parser.add_argument("--manifest", type=Path, help="what kernelgen wrote for this selection")
    parser.add_argument("--output-dir", type=Path, help="take: where the files go")
    options = parser.parse_args()
    if options.what == "files":
        print(";".join(files(options.source_dir)))
    elif options.what == "record":
        options.output.write_text(record(options.source_dir, options.version), encoding="utf-8")
    else:
        given = (options.wheel, options.sha256, options.source_dir, options.version)
        try:
            write(take(*given, options.manifest), options.output_dir)
        except RefusedError as refused:
            print(refused, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
