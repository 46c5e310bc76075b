"""The gathering kernels of depthwise convolutions, run on the host: a thread of the host for each
thread of a threadblock, barriers between them, and convolutions by their definition."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("depthwise_gather.cpp")


def test_gathered_sums(repository: Path, tmp_path: Path) -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++")
    program = tmp_path / "gather"
    flags = ["-std=c++20", "-O1", "-pthread", "-Wno-unknown-pragmas", f"-I{repository / 'cuda'}"]
    subprocess.run([compiler, *flags, str(PROGRAM), "-o", str(program)], check=True)
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
