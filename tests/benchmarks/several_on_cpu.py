"""benchmarks.several.worker with reference kernels, for CPUs; what is to go wrong is in WRONG."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent / "python")]

import torch
from cpu_reference import CpuOps, install

from benchmarks.several import worker


class WrongOps(CpuOps):
    """A wrong result, and a process that does not end, once the first problem has begun."""

    def mm(self, *given: Any) -> torch.Tensor:
        if os.environ["WRONG"] == "hang" and os.environ["RANK"] == "1":
            time.sleep(600)
        if os.environ["WRONG"] == "exit" and os.environ["RANK"] == "1":
            os._exit(7)
        return super().mm(*given) * 1.1


if __name__ == "__main__":
    torch.set_num_threads(1)
    library = install(WrongOps() if os.environ.get("WRONG") else CpuOps())
    sys.exit(worker.main(["--device", "cpu", "--small", *sys.argv[1:]]))
