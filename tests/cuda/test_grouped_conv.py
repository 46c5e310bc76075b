"""How grouped convolutions are divided: whatever is served has a plan that fits into the shared
memory of every GPU, and every tap finds its pixel."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("grouped_conv_plan.cpp")


def test_plans(repository: Path, tmp_path: Path) -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++")
    program = tmp_path / "plan"
    flags = ["-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{repository / 'cuda'}"]
    subprocess.run([compiler, *flags, str(PROGRAM), "-o", str(program)], check=True)
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
