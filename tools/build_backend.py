"""PEP 517 backend: scikit-build-core, plus the build requirements that depend on the machine.

The pins are those of ``requirements/``, which the Makefile installs for a build without isolation.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scikit_build_core import build as _backend
from scikit_build_core.build import (  # noqa: F401  (hooks that are passed on as they are)
    build_sdist,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

import cuda_toolchain  # from cmake/, which pyproject.toml puts on the backend path

REQUIREMENTS = Path(__file__).resolve().parents[1] / "requirements"
# CMake variables that name a tree, and the pins that are not needed then: torch is large, and only
# its headers are used.
TREES = {"TORCH_INCLUDE": "torch.txt", "CUTLASS_DIR": "cutlass.txt"}
PRECOMPILED = "CUTWHEEL_PRECOMPILED"
MACHINES = ("x86_64", "aarch64")
# Requirements in build.txt with which tools/wheel/sbom.py reads cubins.
SBOM_TOOLS = ("nvidia-cuda-cuobjdump==", "pyelftools==")


@contextmanager
def _progress() -> Iterator[None]:
    """What CMake and Ninja print goes through tools/progress.py, which adds the time left."""
    sys.stdout.flush()
    stdout = os.dup(1)
    program = [sys.executable, str(Path(__file__).with_name("progress.py"))]
    with subprocess.Popen(program, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        os.dup2(process.stdin.fileno(), 1)
        try:
            yield
        finally:
            sys.stdout.flush()
            os.dup2(stdout, 1)  # with it, the last writing end of the pipe but Popen's is closed
            os.close(stdout)


def _is_defined(variable: str, settings: dict[str, Any]) -> bool:
    if f"cmake.define.{variable}" in settings:
        return True
    from_environment = (os.environ.get(name, "") for name in ("CMAKE_ARGS", "SKBUILD_CMAKE_DEFINE"))
    return any(f"{variable}=" in text for text in from_environment)


def _check_platform() -> None:
    """Before gigabytes are downloaded for a build that cannot succeed."""
    machine = platform.machine()
    if sys.platform != "linux":
        raise SystemExit(
            f"cutwheel: {sys.platform} is not supported: the kernels are built for Linux alone. "
            "On Windows, install it in WSL 2"
        )
    if machine not in MACHINES or sys.maxsize <= 2**32:
        raise SystemExit(
            f"cutwheel: {machine} with {sys.maxsize.bit_length() + 1}-bit Python is not "
            f"supported: expected one of {', '.join(MACHINES)}, with 64 bits"
        )
    if platform.libc_ver()[0] != "glibc":
        raise SystemExit(
            "cutwheel: this Python is not built for glibc (Alpine is not): torch has no wheels "
            "for it. Use an image of Debian, Ubuntu or Rocky Linux"
        )


def _requirements(settings: dict[str, Any] | None) -> list[str]:
    _check_platform()
    if sys.version_info < (3, 11):
        raise SystemExit("cutwheel: building needs Python 3.11 or newer (the wheel runs on 3.10)")
    # Then nothing is compiled (cmake/Precompiled.cmake).
    if os.environ.get(PRECOMPILED) or _is_defined(PRECOMPILED, settings or {}):
        return []
    try:
        wanted = cuda_toolchain.requirements()
    except cuda_toolchain.ToolchainError as error:
        raise SystemExit(str(error)) from error
    for variable, pin_file in TREES.items():
        if not _is_defined(variable, settings or {}):
            wanted += cuda_toolchain.pins(REQUIREMENTS / pin_file)
    pins = cuda_toolchain.pins(REQUIREMENTS / "build.txt")
    return [*wanted, *(pin for pin in pins if pin.startswith(SBOM_TOOLS))]


def get_requires_for_build_wheel(config_settings: dict[str, Any] | None = None) -> list[str]:
    return [
        *_backend.get_requires_for_build_wheel(config_settings),
        *_requirements(config_settings),
    ]


def get_requires_for_build_editable(config_settings: dict[str, Any] | None = None) -> list[str]:
    return [
        *_backend.get_requires_for_build_editable(config_settings),
        *_requirements(config_settings),
    ]


def build_wheel(
    wheel_directory: str,
    config_settings: dict[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    with _progress():
        return _backend.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(
    wheel_directory: str,
    config_settings: dict[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    with _progress():
        return _backend.build_editable(wheel_directory, config_settings, metadata_directory)
