"""Common parts of the scripts for compute-sanitizer: the kernels, their order, and the report.

torch's allocator is told to keep no memory, so that what lies beyond a tensor belongs to nobody.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

os.environ.setdefault("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")
if os.environ.get("CUTWHEEL_PACKAGE_DIR"):
    sys.path.insert(0, os.environ["CUTWHEEL_PACKAGE_DIR"])

import torch

WRONG = 0.02  # relative error of a result; a right one of 16 bits has less than a quarter of it
Row = dict[str, Any]
Work = Callable[[Any, Row, str], None]  # of cutwheel, a kernel and a device


def runs_here(row: Row) -> bool:
    capability = torch.cuda.get_device_capability()
    return {
        "sm80": capability >= (8, 0),
        "sm89": capability >= (8, 9),
        "sm90a": capability == (9, 0),
    }[row["arch"]]


def ordered(found: Iterable[Row], kinds: Sequence[Sequence[str]]) -> list[Row]:
    """One for each kind, by what it is told by: the first and coarsest of `kinds` comes first."""
    chosen: list[Row] = []
    for keys in kinds:
        seen = {str([row.get(key) for key in keys]) for row in chosen}
        for row in found:
            kind = str([row.get(key) for key in keys])
            if kind not in seen and row not in chosen:
                seen.add(kind)
                chosen.append(row)
    return chosen


def by_name(row: Row) -> dict[str, str]:
    """Settings with which a call takes this kernel."""
    return {"CUTWHEEL_KERNEL": row["name"]}


class _Guard:
    """Runs work and says what is wrong with it."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.wrong = 0

    def __call__(self, name: str, work: Callable[..., None], *arguments: Any) -> None:
        try:
            work(*arguments, self.device)
            if self.device == "cuda":
                torch.cuda.synchronize()
        except (AssertionError, RuntimeError, TypeError, ValueError) as error:
            self.wrong += 1
            print(f"FAILED {name}: {error}", flush=True)


def main(
    description: str | None,
    found: list[Row],
    kinds: Sequence[Sequence[str]],
    work: Work,
    dispatched: Callable[[Any, str], None],
    *,
    seconds: float,
    settings: Callable[[Row], dict[str, str]] = by_name,
) -> int:
    """Runs `dispatched`, then `work` for one kernel of each kind; 1 if anything was wrong.

    The last of `kinds` is for --every. `settings`: environment variables for a kernel.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--every", action="store_true", help="every kernel, not one of each kind")
    parser.add_argument("--seconds", type=float, default=seconds, help="start no kernel after this")
    parser.add_argument("--list", action="store_true", help="name the kernels and run none")
    parser.add_argument("--device", default="cuda", help=argparse.SUPPRESS)
    options = parser.parse_args()
    kinds = kinds if options.every else kinds[:-1]
    if options.list:
        print("\n".join(row["name"] for row in ordered(found, kinds)))
        return 0
    import cutwheel

    torch.manual_seed(20)
    torch.set_float32_matmul_precision("high")
    end = time.monotonic() + options.seconds
    guarded = _Guard(options.device)
    guarded("dispatched", dispatched, cutwheel)
    here = [row for row in found if options.device != "cuda" or runs_here(row)]
    wanted = ordered(here, kinds)
    done = 0
    for row in wanted:
        if time.monotonic() > end:
            break
        os.environ.update(settings(row))
        torch.ops.cutwheel._reload_env()
        guarded(row["name"], work, cutwheel, row)
        done += 1
    late = [row["name"] for row in wanted[done:]]
    print(f"{done} of {len(wanted)} kernels ran, {guarded.wrong} failed; {len(here)} can run here")
    if late:
        print(f"no time was left for {len(late)}, such as {late[0]}: raise --seconds")
    return 1 if guarded.wrong or not done else 0
