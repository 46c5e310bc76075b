#!/usr/bin/env python3
"""The steps of a release that no other tool has. Every one of them can be run again.

    python3 tools/release/tag.py check TAG            version, changelog, citation, lock, program?
    python3 tools/release/tag.py pypi TAG FILE...     does PyPI serve these very files?
    python3 tools/release/tag.py fetch TAG FOLDER     what PyPI serves for this tag, into FOLDER
    python3 tools/release/tag.py github TAG FILE...   the GitHub release with these files

Exit status: 0 done, 1 refused or not as it should be. Standard library only; `github` needs gh.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomllib
from releasing import ROOT, ReleaseError, compare, digests, gh

VERSION = re.compile(r"\d+\.\d+\.\d+(rc\d+)?")  # docs/releasing.md has the reasons
PROGRAMS = "examples/downstream/programs"
PYPI = "https://pypi.org/pypi"
ATTEMPTS, PAUSE = 5, 30.0  # PyPI's JSON can lag behind an upload for a minute or two


def notes(version: str, root: Path) -> str:
    """The section of the changelog for `version`."""
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    heading = rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d\n"
    found = re.search(rf"{heading}(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    if not found or not found[1].strip():
        raise ReleaseError(
            f"CHANGELOG.md has no entries under `## [{version}] - YYYY-MM-DD`: "
            'rename "Unreleased", and begin a new one'
        )
    return found[1].strip() + "\n"


def check(tag: str, root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    version = project["project"]["version"]
    if tag != f"v{version}":
        raise ReleaseError(f"the tag is {tag}, pyproject.toml has {version}: expected v{version}")
    if not VERSION.fullmatch(version):
        raise ReleaseError(f"{version} is no version of a release: expected 1.2.3 or 1.2.3rc1")
    notes(version, root)
    citation = (root / "CITATION.cff").read_text(encoding="utf-8")
    if f"version: {version}" not in citation.splitlines():
        raise ReleaseError(f"CITATION.cff is of another version: expected `version: {version}`")
    lock = json.loads((root / "tests" / "schemas.lock").read_text(encoding="utf-8"))
    if lock["version"] != version or lock["released"] is not True:
        raise ReleaseError(
            f"tests/schemas.lock is not that of a release {version}: "
            "run `python tools/compat/schema_lock.py --release` and commit it before the tag"
        )
    if not (root / PROGRAMS / f"{version}.pt2").is_file():
        raise ReleaseError(
            f"{PROGRAMS}/{version}.pt2 is missing, the program that later versions have to run: "
            "`make program`, and commit it before the tag"
        )
    print(f"{tag}: version, changelog, citation, lock and program agree")


def served(address: str) -> str:
    """SHA-256 of what is read from this address."""
    with urllib.request.urlopen(address, timeout=300) as answer:
        return hashlib.file_digest(answer, "sha256").hexdigest()


def published(version: str, pypi: str) -> dict[str, dict[str, Any]]:
    """Files that PyPI has for `version`, by name."""
    try:
        with urllib.request.urlopen(f"{pypi}/cutwheel/{version}/json", timeout=60) as answer:
            found = json.load(answer)
    except urllib.error.URLError:
        return {}
    return {file["filename"]: file for file in found["urls"]}


def compare_pypi(tag: str, files: Sequence[Path], pypi: str, pause: float) -> None:
    expected = digests(files)
    for attempt in range(ATTEMPTS):
        found = published(tag.removeprefix("v"), pypi)
        if expected.keys() <= found.keys():
            break
        if attempt < ATTEMPTS - 1:
            time.sleep(pause)
    said = {name: file["digests"]["sha256"] for name, file in found.items()}
    compare(f"PyPI, {tag}", expected, said)
    read = {name: served(file["url"]) for name, file in found.items()}
    compare(f"what PyPI serves for {tag}", expected, read)


def fetch(tag: str, folder: Path, pypi: str) -> None:
    files = published(tag.removeprefix("v"), pypi)
    if not files:
        raise ReleaseError(f"PyPI has nothing of {tag}")
    folder.mkdir(parents=True, exist_ok=True)
    for name, file in files.items():
        with urllib.request.urlopen(file["url"], timeout=300) as answer:
            (folder / Path(name).name).write_bytes(answer.read())
    said = {name: file["digests"]["sha256"] for name, file in files.items()}
    compare(str(folder), said, digests(folder / Path(name).name for name in files))


def view(tag: str) -> dict[str, Any] | None:
    """The release of `tag`. Drafts are listed, too, but only `list` tells absent from broken."""
    listed = json.loads(gh("release", "list", "--limit", "1000", "--json", "tagName"))
    if tag not in [release["tagName"] for release in listed]:
        return None
    found: dict[str, Any] = json.loads(gh("release", "view", tag, "--json", "isDraft,assets"))
    return found


def publish_github(tag: str, files: Sequence[Path], root: Path) -> None:
    """Fills a draft and publishes it last: what people see is whole, and never changes."""
    release = view(tag)
    if release is None:
        text = notes(tag.removeprefix("v"), root)
        gh("release", "create", tag, "--draft", "--verify-tag", "--title", tag, "--notes", text)
    if release is None or release["isDraft"]:
        gh("release", "upload", tag, "--clobber", *map(str, files))
    release = view(tag)
    assets = release["assets"] if release else []
    found = {asset["name"]: asset["digest"].removeprefix("sha256:") for asset in assets}
    compare(f"GitHub release {tag}", digests(files), found)
    if release and release["isDraft"]:
        gh("release", "edit", tag, "--draft=false")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("step", choices=["check", "pypi", "fetch", "github"])
    parser.add_argument("tag", metavar="TAG")
    parser.add_argument("files", metavar="FILE", type=Path, nargs="*")
    parser.add_argument("--root", type=Path, default=ROOT, help="for tests")
    parser.add_argument("--pypi", default=PYPI, help="for tests")
    parser.add_argument("--pause", type=float, default=PAUSE, help="seconds between attempts")
    options = parser.parse_args(argv)
    if (options.step == "check") == bool(options.files):
        parser.error("`check` takes no files, the other steps need some")
    if options.step == "fetch" and len(options.files) != 1:
        parser.error("`fetch` takes one folder")
    try:
        if options.step == "check":
            check(options.tag, options.root)
        elif options.step == "fetch":
            fetch(options.tag, options.files[0], options.pypi)
        elif options.step == "pypi":
            compare_pypi(options.tag, options.files, options.pypi, options.pause)
        else:
            publish_github(options.tag, options.files, options.root)
    except (ReleaseError, OSError) as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
