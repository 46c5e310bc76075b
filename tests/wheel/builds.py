"""Configures builds, for the tests of the build."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# CUDACXX and CUDA_HOME are inherited: they say where the compiler is.
# `make test WHEEL=…` hands its arguments to every process below it, by MAKEFLAGS and by name.
NOT_INHERITED = (
    *("MAX_JOBS", "TORCH_CUDA_ARCH_LIST"),
    *("CUTWHEEL_PRECOMPILED", "CUTWHEEL_SHARD", "CUTWHEEL_SHARDS"),
    *("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "WHEEL", "KERNELS", "ARCHS"),
)


def environment(**changes: str) -> dict[str, str]:
    """This process's environment with the tools of its own virtual environment first on PATH."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    kept = {key: value for key, value in os.environ.items() if key not in NOT_INHERITED}
    return {**kept, "PATH": path, "CMAKE_GENERATOR": "Ninja", **changes}


def run(*command: str | Path, **changes: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command],
        env=environment(**changes),
        cwd=ROOT,
        capture_output=True,
        text=True,
    )


def checked(*command: str | Path, **changes: str) -> str:
    result = run(*command, **changes)
    output = result.stdout + result.stderr
    assert result.returncode == 0, output
    return output


def configure_command(
    build: Path, *definitions: str, source: Path = ROOT, python: str = sys.executable
) -> list[str]:
    return ["cmake", f"-S{source}", f"-B{build}", f"-DPython_EXECUTABLE={python}", *definitions]


def failure(build: Path, *definitions: str, source: Path = ROOT, **changes: str) -> str:
    """The output of a configure that stops, with CMake's line breaks taken out."""
    result = run(*configure_command(build, *definitions, source=source), **changes)
    assert result.returncode != 0, result.stdout
    return " ".join((result.stdout + result.stderr).split())


def cached(build: Path, variable: str) -> str:
    lines = (build / "CMakeCache.txt").read_text().splitlines()
    return next(line.split("=", 1)[1] for line in lines if line.startswith(f"{variable}:"))


def fake_nvcc(folder: Path, release: str) -> Path:
    nvcc = folder / "nvcc"
    nvcc.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {release}, V{release}.1'\n")
    nvcc.chmod(0o755)
    return nvcc
