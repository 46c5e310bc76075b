"""A process of the benchmark, one for each GPU: `python -m benchmarks.several.worker`.

The first one writes a line of JSON for each event into the journal: what it was measured with, a
problem that begins, and the rows of one that has ended.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import sys
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

import torch

from cutwheel.tuning.case import SkippedError

from ..compare import Measurement, describe
from ..report import record
from ..run import release, row
from . import faults, problems
from .team import Team
from .timing import Limits

TIMEOUT_SECONDS = 60.0  # of collectives; the launcher ends processes that hang before that


def environment(team: Team, commit: str | None) -> dict[str, Any]:
    """The environment of the rows; needs all processes."""
    if not team.is_on_gpu:
        build = json.loads(torch.ops.cutwheel._build_info())
        found: dict[str, Any] = {"gpu": "CPU", "driver": None, "cuda": None, "cutwheel": build}
        found |= {"torch": torch.__version__, "python": platform.python_version()}
        found |= {"commit": record.git_commit(commit), "date": None}
        return found | {"gpus": team.size}
    from cutwheel.distributed._overlap import has_symmetric_memory

    found = record.environment(commit, "cutwheel")
    nccl: Any = torch.cuda.nccl.version()
    shares = has_symmetric_memory(torch.empty(1, device=team.device), team.group)
    found |= {"gpus": team.size, "nccl": ".".join(map(str, nccl)), "symmetric_memory": shares}
    return found


class Journal:
    def __init__(self, path: Path, team: Team) -> None:
        self.path, self.team = path, team

    def write(self, **event: Any) -> None:
        if self.team.rank == 0:
            with self.path.open("a") as file:
                file.write(json.dumps(record.plain(event)) + "\n")


def measure(team: Team, names: list[str], journal: Journal, limits: Limits) -> None:
    every = problems.tasks(list(problems.SECTIONS))
    for name in names:
        journal.write(begins=name)
        started, task = time.monotonic(), every[name]
        try:
            rows = task.rows(team, limits)
        except SkippedError as reason:
            rows = [row(task.problem, None, Measurement("skipped", str(reason)))]
        except (ImportError, RuntimeError, TypeError, ValueError, AttributeError) as error:
            traceback.print_exc()
            rows = [row(task.problem, None, Measurement("failed", describe(error)))]
        gc.collect()
        lost = release()
        if lost:
            raise SystemExit(lost)
        journal.write(ended=name, rows=rows, seconds=time.monotonic() - started)


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m benchmarks.several.worker")
    top.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    top.add_argument("--small", action="store_true", help="problems of a few elements")
    top.add_argument("--commit")
    top.add_argument("--journal", type=Path, help="where the first process writes")
    top.add_argument("--fault", choices=faults.FAULTS, help="this in place of problems")
    top.add_argument("names", nargs="*", help="of problems")
    return top


def main(arguments: list[str] | None = None) -> int:
    given = parser().parse_args(arguments)
    team = Team.join(given.device, TIMEOUT_SECONDS, given.small)
    if given.fault:
        return faults.run(team, given.fault)
    journal = Journal(given.journal, team)
    journal.write(environment=environment(team, given.commit))
    limits = Limits(rounds=3, max_calls=3) if given.small else Limits()
    measure(team, given.names, journal, limits)
    team.leave()
    return 0


def run_and_leave(arguments: list[str] | None = None) -> NoReturn:
    """main, as a process.

    It does not wait for the others, of which one may have failed, and does not finalize Python:
    threads of gloo that wait for the interpreter's lock then would abort the process.
    """
    status = main(arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    run_and_leave()
