"""Starts the processes of the benchmark, ends those that hang, and writes what they have measured.

A problem that does not end, or that takes the processes with it, is recorded as failed; the others
go on in new processes.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ..compare import Measurement
from ..report import record, several_gpus, tables
from ..run import row
from . import SECTIONS, STALL_SECONDS, faults, problems

PAUSE = 0.1  # between two looks at the processes
LOG_CHARACTERS = 4000
GRACE_SECONDS = 10.0  # for the others when one has died
FAULT_SECONDS = faults.TIMEOUT_SECONDS + faults.GRACE_SECONDS  # what takes longer hangs
# NVLink multicast is not needed here, and is not there on every machine. All processes are on this
# one, so gloo needs no network.
ENVIRONMENT = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    # Behind a timeout torch waits four times this long for its dump, 60 s by default, before it
    # ends the process.
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "1000",
}
WORKER = (sys.executable, "-m", f"{__package__}.worker")


class Processes:
    """One for each GPU, with a store of their own, as torchrun starts them."""

    def __init__(self, command: Sequence[str], size: int, folder: Path) -> None:
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.logs = [folder / f"{rank}.log" for rank in range(size)]
        self.ended: dict[int, float] = {}
        """when each was seen to have ended"""
        self._all = []
        for rank, log in enumerate(self.logs):
            own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size}
            own |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": self._store.port}
            # The store is here, so the first process does not open one.
            own["TORCHELASTIC_USE_AGENT_STORE"] = True
            environment = ENVIRONMENT | dict(os.environ) | {k: str(v) for k, v in own.items()}
            with log.open("wb") as file:
                process = subprocess.Popen(
                    command,
                    env=environment,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            self._all.append(process)

    def statuses(self) -> list[int | None]:
        """Exit statuses; None for those that run."""
        found = [process.poll() for process in self._all]
        for rank, status in enumerate(found):
            if status is not None:
                self.ended.setdefault(rank, time.monotonic())
        return found

    def kill(self) -> None:
        for process in self._all:
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        for process in self._all:
            process.wait()

    def text(self, rank: int) -> str:
        return self.logs[rank].read_text(errors="replace")

    def show(self, name: str = "") -> None:
        """The ends of all logs, on standard error."""
        for rank, process in enumerate(self._all):
            text = self.text(rank)[-LOG_CHARACTERS:]
            print(f"{name} process {rank}, {process.poll()}:\n{text}", file=sys.stderr, flush=True)

    def last_words(self) -> str:
        """The last line of each that failed."""
        found = []
        for rank, process in enumerate(self._all):
            lines = [line for line in self.text(rank).splitlines() if line.strip()]
            if process.poll() not in (None, 0):
                last = lines[-1].strip()[:300] if lines else "nothing"
                found.append(f"process {rank} ended with {process.poll()}: {last}")
        return "; ".join(found)


@dataclass
class Launch:
    command: Sequence[str]
    """of a process, without what it is to measure"""
    size: int
    deadline: float
    stall_seconds: float = STALL_SECONDS
    environment: dict[str, Any] = field(default_factory=dict)
    found: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """rows of problems"""

    def measure(self, names: Sequence[str], progress: Any) -> None:
        """All that fits into the time; progress() is called behind each problem."""
        rest = list(names)
        if not rest:  # faults alone; their processes do not say what they run on
            self._attempt(rest, progress)
        while rest and time.monotonic() < self.deadline:
            before, has_begun = len(rest), bool(self.environment)
            reason = self._attempt(rest, progress)
            rest = [name for name in rest if name not in self.found]
            if reason and not (has_begun or self.environment):
                for name in rest:  # nor would other problems begin
                    self._fail(name, reason)
                return
            if rest and reason:
                self._fail(rest.pop(0), reason)
                progress()
            elif len(rest) == before:
                break
        for name in rest:
            self._fail(name, "the time was used up", "skipped")

    def _fail(self, name: str, reason: str, status: str = "failed") -> None:
        print(f"[{name}] {status}: {reason}", file=sys.stderr, flush=True)
        problem = problems.tasks(list(problems.SECTIONS))[name].problem
        self.found[name] = [row(problem, None, Measurement(status, reason))]

    def _attempt(self, names: Sequence[str], progress: Any) -> str:
        """Why the processes ended before all was measured; empty: all was, or the time is up."""
        with tempfile.TemporaryDirectory() as folder:
            journal = Path(folder) / "journal"
            journal.touch()
            command = [*self.command, "--journal", str(journal), *names]
            processes = Processes(command, self.size, Path(folder))
            try:
                return self._watch(processes, journal, progress)
            finally:
                processes.kill()
                processes.show()

    def _watch(self, processes: Processes, journal: Path, progress: Any) -> str:
        seen, moved, died = 0, time.monotonic(), None
        while True:
            statuses = processes.statuses()
            lines = journal.read_text().splitlines(keepends=True)
            complete = [line for line in lines if line.endswith("\n")]
            for line in complete[seen:]:
                moved = time.monotonic()
                self._take(json.loads(line), progress)
            seen = len(complete)
            now = time.monotonic()
            if None not in statuses:
                return "" if not any(statuses) else processes.last_words()
            if any(statuses):
                died = died or now
                if now - died > GRACE_SECONDS:
                    return processes.last_words()
            if now > self.deadline:
                return ""
            if now - moved > self.stall_seconds:
                return f"did not end within {self.stall_seconds:g} s"
            time.sleep(PAUSE)

    def _take(self, event: Mapping[str, Any], progress: Any) -> None:
        if "environment" in event:
            self.environment = self.environment or dict(event["environment"])
        elif "ended" in event:
            self.found[event["ended"]] = event["rows"]
            print(f"[{event['ended']}] {event['seconds']:.1f} s", file=sys.stderr, flush=True)
            progress()

    # ---- faults
    def faults(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """Whether all processes ended by an error when the first one raised, and how soon. All at
        the same time: they wait more than they compute."""
        with tempfile.TemporaryDirectory() as folder:
            every: dict[str, Processes] = {}
            try:
                for number, name in enumerate(names):
                    own = Path(folder) / str(number)
                    own.mkdir()
                    every[name] = Processes([*self.command, "--fault", name], self.size, own)
                self._wait(list(every.values()))
                return [self._outcome(name, processes) for name, processes in every.items()]
            finally:
                for processes in every.values():
                    processes.kill()

    def _wait(self, every: Sequence[Processes]) -> None:
        """Until all have ended, or those that have not hang."""
        started = time.monotonic()
        while any(None in processes.statuses() for processes in every):
            raised = [processes.ended.get(0) for processes in every]
            last = max([started, *(at for at in raised if at is not None)])
            if time.monotonic() - last > FAULT_SECONDS or time.monotonic() > self.deadline:
                break
            time.sleep(PAUSE)

    @staticmethod
    def _is_early(processes: Processes) -> bool:
        """Whether the others may still end by themselves."""
        return time.monotonic() - processes.ended[0] < FAULT_SECONDS

    def _outcome(self, name: str, processes: Processes) -> dict[str, Any]:
        made: dict[str, Any] = {"group": "fault", "case": name, "m": 0, "n": 0, "k": 0}
        made |= {"ratios": [], "sides": {}, "kernels": {}, "flops_per_byte": None}
        statuses = processes.statuses()
        processes.show(name)
        texts = [processes.text(rank) for rank in range(self.size)]
        endings = [_ending(text) for text in texts]
        found: dict[str, Any] = {"status": "failed", "reason": "", "statuses": statuses}
        if not all("ready" in text for text in texts):
            found["reason"] = f"did not begin: {processes.last_words() or 'no time was left'}"
        elif statuses[0] != faults.RAISED:
            found["reason"] = f"process 0 did not raise: {endings[0]}"
        elif None in statuses:
            hung = [rank for rank, status in enumerate(statuses) if status is None]
            found["reason"] = f"processes {hung} hang"
            if self._is_early(processes):
                found |= {"status": "skipped", "reason": "the time was used up"}
        elif 0 in statuses:
            found["reason"] = "a process did not wait"
        else:
            seconds = max(processes.ended.values()) - processes.ended[0]
            found |= {"status": "ok", "seconds": seconds}
            found |= {"raised": endings[0], "ended": endings[1]}
        return made | found


WORDS = ("ended by", "raised", "Watchdog caught", "SymmetricMemory", "Error", "error")


def _ending(text: str) -> str:
    """The line of a log that says why its process ended."""
    lines = text.partition("ready\n")[2].splitlines()
    for word in WORDS:
        for line in lines:
            if word in line:
                return line.strip()[:300]
    return lines[-1].strip()[:300] if lines else ""


# ---- the command
def main(given: argparse.Namespace) -> int:
    size = given.gpus or torch.cuda.device_count()
    if size < 2:
        print(f"needs two GPUs or more, and finds {size}", file=sys.stderr)
        return 2
    # As the end of this process by Ctrl-C, that by `timeout` ends the others.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    command = [*WORKER, *(["--commit", given.commit] if given.commit else [])]
    wanted = given.sections or SECTIONS
    return measure(command, size, wanted, given)


def measure(
    command: Sequence[str], size: int, wanted: Sequence[str], given: argparse.Namespace
) -> int:
    """command: of a process"""
    deadline = time.monotonic() + given.budget_seconds
    launch = Launch(command, size, deadline, given.stall_seconds)
    chosen = [section for section in problems.SECTIONS if section in wanted]
    by_section = {
        section: [name for name in problems.tasks([section]) if given.only in name]
        for section in chosen
    }
    of_faults: list[dict[str, Any]] = []
    sections: dict[str, Any] = {}

    def write() -> None:
        """The record so far."""
        if not launch.environment:
            return
        made = {"candidate": "cutwheel", "environment": launch.environment, "dtype": "bf16"}
        for section, names in by_section.items():
            rows = [one for name in names for one in launch.found.get(name, [])]
            if rows:
                sections[section] = made | {"results": rows}
        if of_faults:
            sections["faults"] = made | {"results": of_faults}
        for section, content in sections.items():
            record.write_section(path(launch.environment, size, given.out), section, content)

    launch.measure([name for names in by_section.values() for name in names], write)
    if "faults" in wanted:
        of_faults += launch.faults(list(faults.FAULTS))
    if not launch.environment:
        print("no process got so far as to say what it runs on", file=sys.stderr)
        for one in (*(r for rows in launch.found.values() for r in rows), *of_faults):
            print(f"{one.get('case') or one['group']}: {one['reason']}", file=sys.stderr)
        return 1
    write()
    print(f"\n{tables.origin(sections[next(iter(sections))])}\n\n{several_gpus.summary(sections)}")
    print(f"\nwrote {path(launch.environment, size, given.out)}")
    every = [one for section in sections.values() for one in section["results"]]
    return 0 if all(one["status"] == "ok" for one in every) else 1


def path(environment: Mapping[str, Any], size: int, out: Path | None) -> Path:
    if out is not None and out.suffix == ".json":
        return out
    default = Path(__file__).parents[2] / "build" / "benchmarks"
    return (out or default) / f"{record.device_slug(environment['gpu'])}_x{size}.json"
