"""Finds the CUDA compiler for a build: one rule for CMake, the build backend and the Makefile.

Order: ``CUDACXX`` if it is set; the nvcc in ``CUDA_HOME`` if that is set; ``nvcc`` on PATH;
``/usr/local/cuda``; the pinned toolchain of ``requirements/cuda.txt`` in the running Python's
environment. ``CUTWHEEL_CUDA=pypi`` admits only the last. Standard library only: it runs before
anything is installed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

MINIMUM = (12, 4)  # the oldest release that the library was built with and run
PINS = Path(__file__).resolve().parents[1] / "requirements" / "cuda.txt"


class ToolchainError(Exception):
    """No usable CUDA compiler; the text says what was looked at and what to do."""


@dataclass(frozen=True)
class Nvcc:
    path: Path
    version: tuple[int, int]


def _text(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def inspect(path: Path) -> Nvcc:
    """Asks the compiler at ``path`` for its release; raises ToolchainError if it is not usable."""
    try:
        result = subprocess.run([path, "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise ToolchainError(f"{path}: does not run ({error})") from error
    found = re.search(r"release (\d+)\.(\d+)", result.stdout)
    if not found:
        raise ToolchainError(f"{path}: `--version` names no CUDA release; is it nvcc?")
    nvcc = Nvcc(path, (int(found[1]), int(found[2])))
    if nvcc.version < MINIMUM:
        raise ToolchainError(
            f"{path}: nvcc {_text(nvcc.version)} is too old, {_text(MINIMUM)} or newer is needed"
        )
    return nvcc


def pypi_root() -> Path | None:
    """The CUDA tree of the PyPI toolchain in the running Python's environment."""
    for entry in sys.path:  # nvidia/ is a namespace package: there is nothing to import
        root = Path(entry or ".") / "nvidia" / "cu13"
        if (root / "bin" / "nvcc").is_file():
            return root
    return None


def complete_pypi(root: Path) -> None:
    """Makes the two links CMake's CUDA detection needs.

    They have to be inside the tree: nvcc resolves its real path, so an overlay of links
    elsewhere fails.
    """
    links = {"lib64": "lib", "lib/libcudart.so": "libcudart.so.13"}
    for name, target in links.items():
        link = root / name
        if not link.exists():
            link.unlink(missing_ok=True)
            link.symlink_to(target)


def place_pypi(root: Path, folder: Path) -> Path:
    """The same tree at ``folder``, which does not depend on where pip put it; returns its nvcc.

    An isolated build has another environment each time, and paths of headers end up in what a
    compiler cache compares. Hard links, since nvcc resolves symbolic ones; copies where
    ``folder`` is on another file system.
    """

    def link(source: str, target: str) -> None:
        try:
            os.link(source, target)
        except OSError:
            shutil.copy2(source, target)

    nvcc = folder / "bin" / "nvcc"
    if not (nvcc.exists() and nvcc.samefile(root / "bin" / "nvcc")):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(root, folder, symlinks=True, copy_function=link)
    return nvcc


def system_candidates() -> list[Path]:
    candidates = [shutil.which("nvcc"), "/usr/local/cuda/bin/nvcc"]
    return [Path(path) for path in candidates if path and Path(path).exists()]


def _in_cuda_home(home: Path) -> Nvcc:
    nvcc = home / "bin" / "nvcc"
    instead = "Set CUDA_HOME to a CUDA toolkit, CUDACXX to an nvcc, or unset both"
    if not nvcc.is_file():
        raise ToolchainError(f"CUDA_HOME={home}: there is no nvcc in {nvcc.parent}. {instead}")
    try:
        return inspect(nvcc)
    except ToolchainError as error:
        raise ToolchainError(f"CUDA_HOME={home}: {error}. {instead}") from error


def find_system_nvcc() -> Nvcc | None:
    """The nvcc of the machine.

    A CUDACXX or CUDA_HOME that is not usable is an error; others are passed over.
    """
    if os.environ.get("CUTWHEEL_CUDA", "auto") == "pypi":
        return None
    if chosen := os.environ.get("CUDACXX"):
        program = shutil.which(chosen)
        if program is None:
            raise ToolchainError(f"CUDACXX={chosen}: there is no such program")
        return inspect(Path(program))
    if home := os.environ.get("CUDA_HOME"):
        return _in_cuda_home(Path(home))
    for path in system_candidates():
        try:
            return inspect(path)
        except ToolchainError:
            continue
    return None


def find_nvcc(place: Path | None = None) -> Nvcc:
    """The compiler of this build; that of PyPI at ``place``, if one is given."""
    mode = os.environ.get("CUTWHEEL_CUDA", "auto")
    if mode not in ("auto", "pypi"):
        raise ToolchainError(f"CUTWHEEL_CUDA={mode}: expected 'auto' or 'pypi'")
    if nvcc := find_system_nvcc():
        return nvcc
    if root := pypi_root():
        complete_pypi(root)
        return inspect(place_pypi(root, place) if place else root / "bin" / "nvcc")
    rejected = []
    for path in system_candidates() if mode == "auto" else []:
        try:
            inspect(path)
        except ToolchainError as error:
            rejected.append(f"\n  {error}")
    raise ToolchainError(
        f"no CUDA compiler >= {_text(MINIMUM)} was found." + "".join(rejected) + "\n"
        "  Set CUDACXX to an nvcc or CUDA_HOME to a toolkit, or install the pinned one from PyPI:\n"
        f"  {sys.executable} -m pip install -r {PINS}"
    )


def pins(file: Path = PINS) -> list[str]:
    """The requirements in a pin file, without its comments."""
    lines = (line.split("#")[0].strip() for line in file.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line]


def requirements() -> list[str]:
    """Requirements to install from PyPI for a compiler: none, or the pinned toolchain."""
    return [] if find_system_nvcc() else pins()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["nvcc", "requirements"])
    parser.add_argument("--place", type=Path, help="where to have the tree of a PyPI toolchain")
    arguments = parser.parse_args()
    try:
        if arguments.what == "nvcc":
            print(find_nvcc(arguments.place).path.absolute())
        else:
            print(*requirements())
    except ToolchainError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
