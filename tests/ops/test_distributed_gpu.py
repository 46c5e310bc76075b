"""The example of tensor and expert parallelism, on the GPUs of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

EXAMPLE = Path(__file__).parents[2] / "examples" / "tensor_parallel.py"


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_example(cutwheel: ModuleType) -> None:
    folder = Path(str(cutwheel.__file__)).parents[1]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    subprocess.run(
        [*command, "--nproc-per-node", "2", str(EXAMPLE)],
        check=True,
        env={**os.environ, "PYTHONPATH": str(folder)},
        timeout=300,
    )
