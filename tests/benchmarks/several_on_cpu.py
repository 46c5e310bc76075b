"""benchmarks.several.worker with reference kernels on CPUs.

PYTHONPATH has the root of the repository and tests/python.
"""

from __future__ import annotations

import sys

import torch
from cpu_reference import install
from sharded_ops import OpsBelowAutograd

from benchmarks.several import worker
from cutwheel.ops._common import meta

if __name__ == "__main__":
    torch.set_num_threads(1)
    meta.check_devices = lambda op, arguments: None  # type: ignore[assignment]
    library = install(OpsBelowAutograd())
    worker.run_and_leave(["--device", "cpu", "--small", *sys.argv[1:]])
