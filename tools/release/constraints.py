#!/usr/bin/env python3
"""Pins a release and everything that it needs, with hashes.

    python tools/release/constraints.py WHEEL... --to FOLDER

writes FOLDER/cutwheel-VERSION-constraints.txt for `pip install --require-hashes -r`: cutwheel as it
was built here, torch as requirements/torch.txt pins it, and their dependencies for every Python
from 3.10 that this torch has. uv resolves them as of SOURCE_DATE_EPOCH, so that a job which runs
again gets the same file. Exit status: 0 written, 1 not.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path

from releasing import ROOT, ReleaseError, digests

OLDEST_PYTHON = "3.10"


def pin_of_torch(root: Path = ROOT) -> str:
    text = (root / "requirements" / "torch.txt").read_text(encoding="utf-8")
    [pin] = re.findall(r"^torch==\S+$", text, re.MULTILINE)
    return str(pin)


def hashes_of(text: str, project: str) -> set[str]:
    """Hashes that a requirements file has for one project."""
    entry = re.search(rf"^{project}==.*?(?=^\S|\Z)", text, re.MULTILINE | re.DOTALL)
    return set(re.findall(r"--hash=sha256:([0-9a-f]{64})", entry[0])) if entry else set()


def check(text: str, wheels: Mapping[str, str]) -> None:
    if hashes_of(text, "cutwheel") != set(wheels.values()):
        raise ReleaseError(
            "the constraints have other hashes of cutwheel than the files: is an index with a "
            "cutwheel of this version configured?"
        )
    for line in re.findall(r"^[\w.-]+==\S+", text, re.MULTILINE):
        project = line.partition("==")[0]
        if not hashes_of(text, project):
            raise ReleaseError(f"the constraints have no hash of {project}")


def resolve(version: str, folder: Path, when: datetime) -> str:
    options = ["--universal", f"--python-version={OLDEST_PYTHON}", "--generate-hashes", "--quiet"]
    options += [
        "--no-header",
        "--no-annotate",
        "--no-config",
        "--default-index=https://pypi.org/simple",
    ]
    options += [f"--find-links={folder}", f"--exclude-newer={when.isoformat()}"]
    # What was built a moment ago is newer.
    options.append("--exclude-newer-package=cutwheel=false")
    wanted = f"cutwheel=={version}\n{pin_of_torch()}\n"
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("UV_", "PIP_"))
    }
    done = subprocess.run(
        ["uv", "pip", "compile", "-", *options],
        input=wanted,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise ReleaseError(f"uv pip compile: {done.stderr.strip()}")
    return done.stdout


def write(wheels: Sequence[Path], to: Path, when: datetime) -> Path:
    versions = {path.name.split("-")[1] for path in wheels}
    folders = {path.resolve().parent for path in wheels}
    if len(versions) != 1 or len(folders) != 1:
        raise ReleaseError("the wheels have to be of one version, and in one folder")
    [version], [folder] = versions, folders
    lines = [
        line.rstrip()
        for line in resolve(version, folder, when).splitlines()
        if not line.startswith("--find-links")
    ]
    text = f"# pip install --require-hashes -r this-file    (cutwheel {version})\n"
    text += "\n".join(lines).strip() + "\n"
    check(text, digests(wheels))
    to.mkdir(parents=True, exist_ok=True)
    path = to / f"cutwheel-{version}-constraints.txt"
    path.write_text(text, encoding="utf-8")
    return path


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheels", metavar="WHEEL", type=Path, nargs="+")
    parser.add_argument("--to", metavar="FOLDER", type=Path, required=True)
    options = parser.parse_args(argv)
    try:
        epoch = os.environ.get("SOURCE_DATE_EPOCH")
        if not epoch:
            raise ReleaseError("SOURCE_DATE_EPOCH is not set: `make constraints` sets it")
        when = datetime.fromtimestamp(int(epoch), timezone.utc)
        print(write(options.wheels, options.to, when))
    except (ReleaseError, OSError, ValueError) as error:
        print(f"constraints: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
