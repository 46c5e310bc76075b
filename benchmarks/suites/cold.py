"""Cold start: `import cutwheel` and the first call of an op, beside torch's first call."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..compare import Limits
from ..first_call import OPERANDS, PROVIDERS
from . import Suite

SCRIPT = Path(__file__).parents[1] / "first_call.py"
# Not by its path: the folder of a script, here with all modules of the benchmarks, would come first
# on sys.path.
START = (
    "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
)
SECONDS = 40.0  # for all rounds; a round takes 10
QUICK_SECONDS = 10.0
MIB = 1 << 20

Answer = Mapping[str, Any]
Ask = Callable[[str, str], Answer]
"""(provider, operation): what first_call.py answers"""


def rounds(ask: Ask, seconds: float, now: Callable[[], float] = time.monotonic) -> list[Answer]:
    """Answers, with what was asked; all providers alternate, and there is at least one round.

    The first round, which brings files into memory, is left out.
    """
    started = now()
    found: list[Answer] = []
    is_warm = False
    while True:
        began = now()
        answers = [
            {"provider": provider, "operation": operation, **ask(provider, operation)}
            for operation in OPERANDS
            for provider in PROVIDERS
        ]
        if is_warm:
            found += answers
        is_warm = True
        ended = now()
        if found and ended - started + (ended - began) > seconds:
            return found


def row(operation: str, answers: Sequence[Answer]) -> dict[str, Any]:
    """Medians; ratio = torch's first call / ours with the import.

    mib: device memory in use after the first call, beyond what torch's context takes
    """
    made: dict[str, Any] = {"case": operation, "status": "ok", "reason": "", "ratio": None}
    mine = [answer for answer in answers if answer["operation"] == operation]
    if errors := [each for each in mine if "error" in each]:
        reason = f"{errors[0]['provider']}: {errors[0]['error']}"
        return made | {"status": "failed", "reason": reason}

    def median(provider: str, key: str) -> float:
        return statistics.median(each[key] for each in mine if each["provider"] == provider)

    phases = ("import", "context", "first", "again")
    made["ms"] = {name: {key: 1e3 * median(name, key) for key in phases} for name in PROVIDERS}
    context = median("torch", "used_before")
    made["mib"] = {name: (median(name, "used_after") - context) / MIB for name in PROVIDERS}
    made["rounds"] = len(mine) // len(PROVIDERS)
    ours = made["ms"]["cutwheel"]
    made["ratio"] = made["ms"]["torch"]["first"] / (ours["import"] + ours["first"])
    return made


def measure(quick: bool, device: str = "cuda") -> list[dict[str, Any]]:
    """A row for each operation."""
    command = [sys.executable, "-c", START, str(SCRIPT), device]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def ask(provider: str, operation: str) -> Answer:
            request = {"provider": provider, "operation": operation}
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            text = process.stdout.readline()
            if not text:
                raise BrokenPipeError
            found: Answer = json.loads(text)
            return found

        try:
            answers = rounds(ask, QUICK_SECONDS if quick else SECONDS)
        except BrokenPipeError:
            process.kill()
            reason = f"{SCRIPT.name} has ended; its message is above"
            answers = [
                {"provider": "torch", "operation": operation, "error": reason}
                for operation in OPERANDS
            ]
        with suppress(BrokenPipeError):
            process.stdin.close()
    return [row(operation, answers) for operation in OPERANDS]


SUITE = Suite({}, Limits(), "", alone=measure)
