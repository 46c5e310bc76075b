"""What `make quick` chooses to build."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import quick

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("capabilities", "archs"),
    [
        (["9.0"], "90a"),
        (["8.0"], "80"),
        (["8.6", "8.9"], "80;89"),
        (["10.0"], "80"),
        (["9.0", "12.0"], "80;90a"),
        ([], "90a"),
    ],
)
def test_architectures_are_those_of_the_gpus(capabilities: list[str], archs: str) -> None:
    found, words = quick.archs_for(capabilities)
    assert found == archs
    assert f"kernels for {archs}" in words
    assert ("no GPU" in words) is not capabilities


def test_a_gpu_that_is_too_old_is_refused() -> None:
    with pytest.raises(SystemExit, match=r"capability 7.5 is older than 8.0.* ARCHS=80 builds"):
        quick.archs_for(["7.5"])


@pytest.mark.parametrize(
    ("output", "found"),
    [("9.0\\n8.9\\n9.0\\n", ["8.9", "9.0"]), ("12.0\\n9.0\\n", ["9.0", "12.0"]), ("[N/A]\\n", [])],
)
def test_nvidia_smi_is_asked(tmp_path: Path, monkeypatch, output: str, found: list[str]) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\nprintf '{output}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert quick.capabilities() == found


def test_no_nvidia_smi_is_no_gpu(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert quick.capabilities() == []


@pytest.mark.parametrize(
    ("settings", "archs", "kernels"),
    [
        ([], "''", "@core"),
        (["ARCHS=80;89"], "'80;89'", "@core"),
        (["KERNELS=*_thin"], "''", "*_thin"),
    ],
)
def test_make_hands_on_what_is_asked_for(settings: list[str], archs: str, kernels: str) -> None:
    dropped = ("MAKEFLAGS", "MAKEOVERRIDES", "ARCHS", "KERNELS", "TORCH_CUDA_ARCH_LIST", "WHEEL")
    environment = {key: value for key, value in os.environ.items() if key not in dropped}
    command = ["make", "-n", "quick", *settings]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert f"tools/quick.py archs {archs})" in done.stdout
    assert f"CUTWHEEL_KERNELS={kernels}'" in done.stdout
