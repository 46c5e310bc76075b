"""A process that raises inside an op: the others have to end by the error of what they wait in.

Each fault is a launch of its own (launch.py). The first process raises and ends; the others call
the op as they should, and wait for its result.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import cutwheel

from .team import Team

TIMEOUT_SECONDS = 8.0  # of the group: NCCL gives up after it
GRACE_SECONDS = 45.0  # until all processes are gone; a hang takes longer
RAISED, PASSED = 3, 0  # exit statuses: of the process that raises, and of one that did not wait

Tensor = torch.Tensor


def _matrix(team: Team, rows: int, columns: int) -> Tensor:
    return torch.ones(rows, columns, device=team.device, dtype=torch.bfloat16)


def overlap(team: Team) -> Any:
    """The first process has features that do not fit."""
    from cutwheel.distributed import all_gather_linear

    weight = _matrix(team, 64, 64)

    def call(is_wrong: bool) -> Any:
        x = _matrix(team, 128, 32 if is_wrong else 64)
        return all_gather_linear(x, weight, group=team.group).sum().item()

    return call


def exchange(team: Team) -> Any:
    """The first process has expert numbers of a wrong dtype."""
    layer = cutwheel.nn.GroupedExperts(
        2 * team.size, 64, 64, process_group=team.group, device=team.device, dtype=torch.bfloat16
    )

    def call(is_wrong: bool) -> Any:
        x, factors = _matrix(team, 32, 64), _matrix(team, 32, 2)
        ids = torch.arange(64, device=team.device).view(32, 2) % (2 * team.size)
        return layer(x, ids.float() if is_wrong else ids, factors).sum().item()

    return call


def plan(team: Team) -> Any:
    """The first process has features that do not fit, in front of a reduction."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import parallelize_module

    from cutwheel.distributed import GatedMLPParallel

    layer = cutwheel.nn.GatedMLP(64, 64 * team.size, device=team.device, dtype=torch.bfloat16)
    mesh = init_device_mesh(team.device.type, (team.size,))
    layer = parallelize_module(layer.pack_parameters(), mesh, GatedMLPParallel())

    def call(is_wrong: bool) -> Any:
        return layer(_matrix(team, 128, 32 if is_wrong else 64)).sum().item()

    return call


FAULTS: Mapping[str, Callable[[Team], Any]] = {
    "all_gather_linear": overlap,
    "GroupedExperts": exchange,
    "GatedMLPParallel": plan,
}


def run(team: Team, name: str) -> int:
    """The exit status, where it comes to one."""
    call = FAULTS[name](team)
    call(False)  # all is well, and communicators are there
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=TIMEOUT_SECONDS), team.group)
    team.barrier()
    print("ready", file=sys.stderr, flush=True)
    if team.rank == 0:
        try:
            call(True)
        except (RuntimeError, TypeError, ValueError) as error:
            print(f"raised {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            return RAISED
        print("did not raise", file=sys.stderr, flush=True)
        return PASSED
    try:
        call(False)
    except Exception as error:
        print(f"ended by {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        raise
    print("did not wait", file=sys.stderr, flush=True)
    return PASSED
