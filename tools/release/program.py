#!/usr/bin/env python3
"""Exports the program of examples/downstream for this version: later versions have to run it.

    PYTHONPATH=examples/downstream/src python tools/release/program.py

writes examples/downstream/programs/VERSION.pt2, which belongs to the commit that is tagged. Files
of other versions are not touched. Needs the built wheel and torch; exit status: 0 written, 1 not.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

import tomllib
from releasing import ROOT

FOLDER = ROOT / "examples" / "downstream" / "programs"


def main() -> int:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    if (installed := version("cutwheel")) != project["version"]:
        wanted = f"install the wheel of {project['version']}, which pyproject.toml names"
        print(f"program: cutwheel {installed} is installed: {wanted}", file=sys.stderr)
        return 1
    from downstream import save

    path: Path = FOLDER / f"{installed}.pt2"
    save(path)
    print(f"{path}: {path.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
