"""benchmarks.several.worker with reference kernels, for CPUs; WRONG says what is to go wrong.

PYTHONPATH has the root of the repository and tests/python.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import torch
from cpu_reference import CpuOps, install

from benchmarks.several import worker


class WrongOps(CpuOps):
    """A wrong result, or a process that hangs or ends in the first product."""

    def mm(self, *given: Any, **keywords: Any) -> torch.Tensor:
        if os.environ["RANK"] == "1" and os.environ["WRONG"] == "hang":
            time.sleep(600)
        if os.environ["RANK"] == "1" and os.environ["WRONG"] == "exit":
            os._exit(7)
        return super().mm(*given, **keywords) * 1.1


if __name__ == "__main__":
    torch.set_num_threads(1)
    library = install(WrongOps() if os.environ.get("WRONG") else CpuOps())
    sys.exit(worker.main(["--device", "cpu", "--small", *sys.argv[1:]]))
