"""What the tools of a release share: hashes of files, and gh."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parents[2]


class ReleaseError(Exception):
    """The release cannot go on; the text says why and what to do."""


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digests(files: Iterable[Path]) -> dict[str, str]:
    """Hashes by file name; two files of one name are refused."""
    found: dict[str, str] = {}
    for path in files:
        if not path.is_file():
            raise ReleaseError(f"{path} is not there")
        if path.name in found:
            raise ReleaseError(f"two files are called {path.name}")
        found[path.name] = digest(path)
    return found


def compare(where: str, expected: Mapping[str, str], found: Mapping[str, str]) -> None:
    problems = [f"{name} is not there" for name in expected if name not in found]
    problems += [f"{name} is no file of this release" for name in found.keys() - expected.keys()]
    for name in expected.keys() & found.keys():
        if expected[name] != found[name]:
            problems.append(f"{name} is another file: sha256 {found[name]}, here {expected[name]}")
    if problems:
        raise ReleaseError("\n  ".join([f"{where} differs from the files of this run:", *problems]))
    print(f"{where}: {len(expected)} files, all with the same hash")


def gh(*arguments: str, folder: Path | None = None) -> str:
    done = subprocess.run(
        ["gh", *arguments], capture_output=True, text=True, check=False, cwd=folder
    )
    if done.returncode != 0:
        raise ReleaseError(f"gh {' '.join(arguments[:2])}: {done.stderr.strip()}")
    return done.stdout


def git(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def commit_of(tag: str, root: Path) -> str:
    found = git(root, "rev-parse", "--verify", "--quiet", f"refs/tags/{tag}^{{commit}}")
    if found.returncode != 0:
        raise ReleaseError(f"there is no tag {tag} in {root}: git fetch --tags")
    return found.stdout.strip()


def repository(root: Path = ROOT) -> str:
    """owner/name, as pyproject.toml has it."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = re.fullmatch(r"https://github\.com/([\w.-]+/[\w.-]+)", project["urls"]["Source"])
    if not found:
        raise ReleaseError("pyproject.toml: project.urls.Source is no repository of GitHub")
    return found[1]


def write_output(name: str, value: str) -> None:
    """An output of this step for later ones. Outside of GitHub Actions it is printed."""
    if "\n" in value:
        raise ReleaseError(f"the output {name} has more than one line")
    line = f"{name}={value}\n"
    if path := os.environ.get("GITHUB_OUTPUT"):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(line)
    print(line, end="")
