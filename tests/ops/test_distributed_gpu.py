"""The examples of several GPUs, and functions that overlap, on two GPUs of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

HERE = Path(__file__).parent
PROGRAMS = (
    HERE.parents[1] / "examples" / "tensor_parallel.py",
    HERE.parents[1] / "examples" / "expert_parallel.py",
    HERE / "overlap_on_gpus.py",
)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_program(cutwheel: ModuleType, program: Path) -> None:
    folder = Path(str(cutwheel.__file__)).parents[1]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    subprocess.run(
        [*command, "--nproc-per-node", "2", str(program)],
        check=True,
        env={**os.environ, "PYTHONPATH": str(folder)},
        timeout=300,
    )
