"""Command line: python -m cutwheel tune."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import jobs, journal, report
from .jobs import Job
from .journal import Journal, JournalError, Record, Setup
from .shapes import read_toml
from .table import Gpu, dump

if TYPE_CHECKING:
    from .search import Effort

DESCRIPTION = """\
Measures which kernel is fastest for given shapes on this GPU, and writes a table of what it found.
With CUTWHEEL_TUNING=TABLE, or cutwheel.load_tuning("TABLE"), cutwheel chooses kernels by it.

  python -m cutwheel tune --op mm --shape 128x4096x4096 --dtype bf16
  python -m cutwheel tune --op linear::gelu --op scaled_mm:fp8:rowwise --shapes shapes.toml
  python -m cutwheel tune --report tuning.jsonl

Every job that is done is a line of the journal. The same command, after Ctrl-C too, goes on there.
"""
_FINISHED, _OUT_OF_MEMORY, _WRONG_USE, _DEVICE_LOST, _INTERRUPTED = 0, 1, 2, 3, 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    ops = ", ".join(jobs.OPS)
    what = parser.add_argument_group("what is measured")
    what.add_argument(
        "--op",
        action="append",
        metavar="OP[:DTYPE[:VARIANT]]",
        default=None,
        help=f"{ops}; again for several (default: mm)",
    )
    what.add_argument("--dtype", action="append", default=[], help="of the ops without :DTYPE")
    what.add_argument(
        "--epilogue",
        "--variant",
        action="append",
        default=[],
        help="of the ops without :VARIANT: an epilogue, a recipe, a grouping or a direction",
    )
    what.add_argument(
        "--shape",
        action="extend",
        nargs="+",
        default=[],
        help="MxNxK; groups x rows x N x K; or N,C,H,W,K,R,S,stride,padding,dilation with x",
    )
    what.add_argument("--shapes", type=Path, metavar="TOML", help="as benchmarks/shapes.toml")
    what.add_argument("--quick", action="store_true", help="the tables .quick of the TOML")
    how = parser.add_argument_group("how")
    how.add_argument("--journal", type=Path, default=Path("tuning.jsonl"))
    how.add_argument("--table", type=Path, help="the result (default: as the journal, .json)")
    how.add_argument("--restart", action="store_true", help="forget what the journal has")
    how.add_argument(
        "--exhaustive", action="store_true", help="all plans, whatever is predicted of them"
    )
    how.add_argument(
        "--rounds",
        type=_rounds,
        metavar="N",
        help="replays of each fast plan, in turns (default: 7; 60 let clocks fall as under load)",
    )
    how.add_argument("--seconds", type=float, help="begin no job after so many seconds")
    how.add_argument("--device", type=int, default=0, help="number of the GPU")
    how.add_argument("--list", action="store_true", help="name the jobs and measure none")
    parser.add_argument(
        "--report", type=Path, metavar="JOURNAL", help="print what a journal says, and end"
    )


def _rounds(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no number of replays, which is 1 or more")
    return int(text)


def run(options: argparse.Namespace) -> int:
    """Exit status: 0 all is measured, or time was up; 1 out of memory in some jobs; 2 wrong use;
    3 lost GPU; 130 interrupted."""
    try:
        if options.report is not None:
            print(report.text_of(journal.read(options.report)), end="")
            return _FINISHED
        wanted = _jobs(options)
        if options.list:
            print("\n".join(map(str, wanted)))
            return _FINISHED
        return _measure(options, wanted)
    except (JournalError, OSError, ValueError) as error:
        print(f"tune: {error}", file=sys.stderr)
        return _WRONG_USE


def _jobs(options: argparse.Namespace) -> list[Job]:
    document = read_toml(options.shapes) if options.shapes else None
    families = jobs.families(options.op or ["mm"], options.dtype, options.epilogue)
    return jobs.jobs_of(families, options.shape, document, quick=options.quick)


def setup_of(device: int) -> Setup:
    """The GPU and the versions that measurements depend on."""
    import torch

    from .. import _library

    info = json.loads(torch.ops.cutwheel._device_info(device))
    rows = sorted(row["name"] for row in json.loads(torch.ops.cutwheel._kernels()))
    gpu = Gpu(
        info["name"],
        tuple(info["cc"]),
        info["sm_count"],
        info["memory_gb_per_s"],
        info["sm_clock_ghz"],
        info["l2_bytes"],
    )
    digest = hashlib.sha256("\n".join(rows).encode()).hexdigest()[:16]
    return Setup(gpu, _library.VERSION, digest, _driver(), str(torch.__version__))


def _driver() -> str:
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        return platform.system()
    found = re.search(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b", text)
    return found[1] if found else ""


def _measure(options: argparse.Namespace, wanted: Sequence[Job]) -> int:
    import torch

    if not torch.cuda.is_available():
        raise ValueError("no CUDA device: python -m cutwheel doctor says what is missing")
    if not 0 <= options.device < torch.cuda.device_count():
        last = torch.cuda.device_count() - 1
        raise ValueError(
            f"--device {options.device}: expected 0 to {last}, the GPUs that CUDA sees"
        )
    table = _table_path(options)
    device = torch.device("cuda", options.device)
    torch.cuda.set_device(device)
    book = journal.open_journal(options.journal, setup_of(options.device), restart=options.restart)
    one = _measurer(options, book.setup.gpu, device)
    status = _FINISHED
    try:
        status = loop(book, wanted, one, options.seconds, _healthy)
    except KeyboardInterrupt:
        print("\ninterrupted: the same command goes on where it stopped", file=sys.stderr)
        status = _INTERRUPTED
    write_table(book, table)
    return status


def _table_path(options: argparse.Namespace) -> Path:
    """Where the table goes. Raises JournalError where a journal is, or is to be."""
    own: Path = options.journal
    path: Path = options.table or own.with_suffix(".json")
    if path.resolve() == own.resolve() or (path.exists() and own.exists() and path.samefile(own)):
        raise JournalError(
            f"{own} would be both the journal and the table: give a --journal that does not end in"
            " .json, or another --table"
        )
    if journal.is_journal(path):
        raise JournalError(
            f"{path} is a journal, which a table would overwrite: give another --table"
        )
    return path


def _effort(options: argparse.Namespace) -> Effort:
    from .search import Effort

    effort = Effort()
    if options.exhaustive:
        effort = replace(effort, predicted=None)
    if options.rounds is not None:
        effort = replace(effort, rounds=options.rounds)
    return effort


def _measurer(options: argparse.Namespace, gpu: Gpu, device: Any) -> Callable[[Job], Record]:
    import torch

    from . import search
    from .cases import make_case
    from .measure import GraphClock

    effort = _effort(options)
    forcing = search.TableForcing(gpu)

    def one(job: Job) -> Record:
        torch.manual_seed(20)
        # float32 operands are multiplied as TF32 only where torch may do so.
        precision = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if job.family.dtype == "tf32" else "highest")
        try:
            with torch.no_grad():
                return search.tune(
                    str(job),
                    str(job.family),
                    lambda: make_case(job, device, gpu.l2_bytes),
                    lambda: GraphClock(device, shares_memory=True),
                    forcing,
                    effort,
                    gpu.sm_count,
                )
        finally:
            torch.set_float32_matmul_precision(precision)
            torch.cuda.empty_cache()

    return one


def _healthy() -> bool:
    """Whether the GPU still answers: after an illegal access it does not, in this process."""
    import torch

    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


def loop(
    book: Journal,
    wanted: Sequence[Job],
    one: Callable[[Job], Record],
    seconds: float | None,
    healthy: Callable[[], bool] = lambda: True,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Measures what the journal does not have yet. Returns the exit status."""
    left = [job for job in wanted if str(job) not in book.done]
    if len(left) < len(wanted):
        print(f"{len(wanted) - len(left)} of {len(wanted)} jobs are in {book.path}")
    start = clock()
    without_memory = 0
    for index, job in enumerate(left):
        elapsed = clock() - start
        if seconds is not None and elapsed > seconds:
            print(f"time is up: {len(left) - index} jobs are left; the same command goes on")
            return _FINISHED
        record = one(job)
        book.add(record)
        elapsed = clock() - start
        print(_progress(record, index + 1, len(left), elapsed), flush=True)
        if (record.error or any(c.status == "refused" for c in record.candidates)) and (
            not healthy()
        ):
            print(f"the GPU was lost in {job}: the same command goes on behind it", file=sys.stderr)
            return _DEVICE_LOST
        without_memory += not record.is_done
    if without_memory:
        count = f"{without_memory} job{'s' if without_memory > 1 else ''}"
        print(f"out of memory in {count}: the same command tries again")
        return _OUT_OF_MEMORY
    return _FINISHED


def _progress(record: Record, done: int, count: int, elapsed: float) -> str:
    rest = elapsed / done * (count - done)
    head = f"[{done}/{count}, {_clock_text(rest)} left] {record.job}"
    if record.error:
        return f"{head}: {record.error}"
    timed = record.timed
    wrong = sum(c.status == "wrong" for c in record.candidates)
    warning = f", {wrong} with WRONG results" if wrong else ""
    if not timed:
        return f"{head}: nothing could be timed{warning}"
    share = report.reached(record)
    gain = f", dispatch reaches {100 * share:.1f} %" if share is not None else ""
    return (
        f"{head}: {timed[0].us:.2f} us{gain}; {len(record.candidates)} plans"
        f" in {record.seconds:.1f} s{warning}\n    {timed[0].row} {timed[0].raster}"
        f" {timed[0].swizzle} splits {timed[0].splits}"
    )


def _clock_text(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"


def write_table(book: Journal, path: Path) -> None:
    """Replaces the file at once: who loads it meanwhile reads the old one or the new one."""
    table = book.table(path.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.write_text(dump(table), encoding="utf-8")
    temporary.replace(path)
    print(f"{path}: {len(table.entries)} entries")
