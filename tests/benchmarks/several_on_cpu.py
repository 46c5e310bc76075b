"""benchmarks.several.worker with reference kernels on CPUs.

PYTHONPATH has the root of the repository and tests/python.
"""

from __future__ import annotations

import sys

import torch
from cpu_reference import CpuOps, install

from benchmarks.several import worker

if __name__ == "__main__":
    torch.set_num_threads(1)
    library = install(CpuOps())
    sys.exit(worker.main(["--device", "cpu", "--small", *sys.argv[1:]]))
