"""Loads `_C.so`, the op library: importing this module registers torch.ops.cutwheel.

The library uses no Python C API, so one file serves every Python.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

try:
    import torch  # first: the library needs libtorch.so in the process and has no RPATH
except ImportError as error:
    raise ImportError("cutwheel needs PyTorch 2.10 or newer: install torch") from error


def _path() -> Path:
    """In an editable installation the library is not beside this file, but in site-packages."""
    folders = [Path(__file__).parent, *map(Path, sys.modules["cutwheel"].__path__)]
    paths = [folder / "_C.so" for folder in folders]
    return next((path for path in paths if path.is_file()), paths[0])


PATH = _path()
MINIMUM_TORCH = (2, 10)


def release_of(version: str) -> tuple[int, int]:
    """(major, minor) of a version such as "2.11.0a0+git12"; (0, 0) where it cannot be read."""
    parts = version.split("+")[0].split(".")
    try:
        return int(parts[0]), int(parts[1])
    except (IndexError, ValueError):
        return 0, 0


def _load() -> str:
    if release_of(torch.__version__) < MINIMUM_TORCH:
        raise ImportError(
            f"cutwheel needs PyTorch 2.10 or newer, and torch {torch.__version__} is installed: "
            "upgrade torch"
        )
    try:
        torch.ops.load_library(str(PATH))  # type: ignore[no-untyped-call]
    except OSError as error:
        if not PATH.is_file():
            raise ImportError(
                f"cutwheel's op library is missing ({PATH}): install the wheel, or build it with "
                "`make wheel`"
            ) from None
        raise ImportError(f"cutwheel could not load its op library {PATH}: {error}") from error
    version: str = json.loads(torch.ops.cutwheel._build_info())["version"]
    return version


VERSION = _load()
