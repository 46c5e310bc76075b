"""Do the wheels of all platforms hold the cubins that were tested on a GPU?

    python3 tools/release/cubins.py FOLDER

GPU tests run the x86-64 wheel alone. The SBOM of each wheel has the SHA-256 of the cubin of every
kernel, which tools/wheel/verify.py has compared with the library beside it. A wheel of another
platform passes if its SBOM lists the same kernels with the same hashes. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

from releasing import ReleaseError

TESTED = "x86_64"
SBOM = ".dist-info/sboms/cutwheel.cdx.json"
ARCH = "cutwheel:arch"
SHOWN = 3  # differences that a message names

Cubins = dict[tuple[str, str], str]  # (kernel, architecture) -> SHA-256


def read(wheel: Path) -> Cubins:
    """What the SBOM of a wheel says of its kernels."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            [name] = (name for name in archive.namelist() if name.endswith(SBOM))
            components = json.loads(archive.read(name))["components"]
        found: Cubins = {}
        for part in components:
            properties = {each["name"]: each["value"] for each in part.get("properties", [])}
            if ARCH in properties:
                [sha256] = (each["content"] for each in part["hashes"] if each["alg"] == "SHA-256")
                found[part["name"], properties[ARCH]] = sha256
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise ReleaseError(f"{wheel.name} has no SBOM that lists cubins ({error!r})") from error
    if not found:
        raise ReleaseError(f"{wheel.name}: its SBOM lists no kernel")
    return found


def compare(tested: Path, other: Path) -> int:
    """How many cubins the two have in common: all of them."""
    ours, theirs = read(tested), read(other)
    problems = [
        f"{name} [{arch}] is not in it" for name, arch in sorted(ours.keys() - theirs.keys())
    ]
    problems += [
        f"{name} [{arch}] is in it alone" for name, arch in sorted(theirs.keys() - ours.keys())
    ]
    problems += [
        f"{name} [{arch}] is another cubin"
        for name, arch in sorted(ours.keys() & theirs.keys())
        if ours[name, arch] != theirs[name, arch]
    ]
    if problems:
        more = [f"and {len(problems) - SHOWN} more"] if len(problems) > SHOWN else []
        lines = [
            f"{other.name} holds other code for the GPU than {tested.name}, which GPUs have run:",
            *problems[:SHOWN],
            *more,
            "Build both with one compiler, at one path; or test this wheel on a GPU of its own",
        ]
        raise ReleaseError("\n  ".join(lines))
    return len(ours)


def check(folder: Path) -> None:
    wheels = sorted(folder.glob("*.whl"))
    tested = [wheel for wheel in wheels if wheel.stem.endswith(TESTED)]
    if len(tested) != 1:
        raise ReleaseError(f"{folder} has {len(tested)} wheels for {TESTED}, expected one")
    others = [wheel for wheel in wheels if wheel not in tested]
    for other in others:
        count = compare(tested[0], other)
        print(f"{other.name}: {count} cubins, all those of {tested[0].name}")
    if not others:
        print(f"{folder}: no wheel but that for {TESTED}")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="with the wheels of a release")
    options = parser.parse_args(argv)
    try:
        check(options.folder)
    except ReleaseError as error:
        print(f"cubins: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
