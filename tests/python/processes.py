"""Processes of a test of torch.distributed on the CPU."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any


def run_in_processes(work: Callable[..., None], count: int, *arguments: Any) -> None:
    """`work(rank, *arguments)` in each of `count` processes; what one raises, this raises.

    They are copies of one that has imported torch, and leave without finalizing Python: threads of
    gloo that wait for the interpreter's lock then would abort the process, after all its work.
    """
    import torch.multiprocessing

    multiprocessing.set_forkserver_preload(["torch.distributed.tensor.parallel"])
    torch.multiprocessing.start_processes(
        work, arguments, nprocs=count, daemon=True, start_method="forkserver"
    )
