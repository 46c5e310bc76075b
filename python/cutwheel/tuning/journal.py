"""Measurements as JSON lines: a line for each job, written when the job is done.

The first line says on what: a journal of another GPU, or of a wheel with other kernels, is not
continued. A last line that is cut off, where a run was killed, counts for nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .table import KEPT_WITHIN, Entry, Gpu, Plan, Request, Table

SCHEMA = 1
MOST_PLANS = 8  # of an entry of a table


class JournalError(ValueError):
    """A file that is no journal, or one that cannot be continued here."""


@dataclass(frozen=True)
class Setup:
    """The GPU and the versions that times depend on."""

    gpu: Gpu
    cutwheel: str
    kernels: str
    """a digest of their names"""
    driver: str = ""
    torch: str = ""

    def document(self) -> dict[str, Any]:
        return {"journal": SCHEMA, **asdict(self)}

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Setup:
        gpu = dict(document["gpu"])
        gpu["cc"] = tuple(gpu["cc"])
        rest = {key: document[key] for key in ("cutwheel", "kernels", "driver", "torch")}
        return cls(Gpu(**gpu), **rest)


# As torch's allocator, the CUDA runtime, cuBLAS and cuDNN word it.
_OUT_OF_MEMORY = re.compile(r"OutOfMemoryError|out of memory|_STATUS_ALLOC_FAILED", re.IGNORECASE)


def is_out_of_memory(error: str) -> bool:
    """Whether this is the text of an error that says so."""
    return _OUT_OF_MEMORY.search(error) is not None


@dataclass(frozen=True)
class Candidate:
    row: str
    raster: str
    swizzle: int
    splits: int
    predicted_us: float
    us: float | None = None
    """median of one call; of one that was dropped early, the quick measurement"""
    status: str = "ok"
    """ok, slow (dropped early), wrong (its result) or refused (it did not run)"""
    note: str = ""

    @property
    def plan(self) -> tuple[str, str, int, int]:
        return self.row, self.raster, self.swizzle, self.splits


@dataclass(frozen=True)
class Record:
    """A job that was tried; see is_done."""

    job: str
    family: str
    request: Request
    choice: str
    """what the dispatch of this wheel rests on: see cutwheel.explain"""
    dispatch: tuple[str, str, int, int] | None
    """its plan: row, raster, swizzle, splits"""
    candidates: tuple[Candidate, ...]
    skipped: int = 0
    """plans that were not measured, because far slower times are predicted"""
    seconds: float = 0.0
    error: str = ""
    """why the job could not be measured"""

    @property
    def is_done(self) -> bool:
        """Not if memory ran out: another time, more of it may be free."""
        return not is_out_of_memory(self.error)

    @property
    def timed(self) -> list[Candidate]:
        """Right and timed, fastest first."""
        good = [c for c in self.candidates if c.status in ("ok", "slow") and c.us]
        return sorted(good, key=lambda c: c.us or 0.0)

    def line(self) -> str:
        document = asdict(self)
        document["candidates"] = [list(asdict(c).values()) for c in self.candidates]
        return json.dumps(document) + "\n"

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Record:
        rest = dict(document)
        request = Request(**rest.pop("request"))
        candidates = tuple(Candidate(*values) for values in rest.pop("candidates"))
        dispatch = rest.pop("dispatch")
        return cls(
            request=request,
            candidates=candidates,
            dispatch=tuple(dispatch) if dispatch else None,
            **rest,
        )


@dataclass
class Journal:
    setup: Setup
    records: list[Record] = field(default_factory=list)
    path: Path | None = None

    @property
    def done(self) -> set[str]:
        return {record.job for record in self.records if record.is_done}

    @property
    def latest(self) -> list[Record]:
        """One of each job: a job that was not done is tried again."""
        return list({record.job: record for record in self.records}.values())

    def add(self, record: Record) -> None:
        self.records.append(record)
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as stream:
                stream.write(record.line())

    def table(self, name: str) -> Table:
        """The fastest plans of each request; the last job counts where two have the same one."""
        entries = {}
        for record in self.records:
            if plans := best_plans(record.timed):
                entries[record.request] = Entry(record.request, plans)
        setup = self.setup
        return Table(name, setup.gpu, tuple(entries.values()), setup.cutwheel, setup.driver)


def best_plans(timed: Iterable[Candidate]) -> tuple[Plan, ...]:
    """The fastest plan of each kernel and number of splits, if it is close to the best of all."""
    kept: dict[tuple[str, int], Plan] = {}
    limit = 0.0
    for c in timed:
        assert c.us is not None
        limit = limit or KEPT_WITHIN * c.us
        # Plans that were dropped early were not measured well enough to be listed.
        if c.status == "ok" and c.us <= limit and (c.row, c.splits) not in kept:
            kept[c.row, c.splits] = Plan(c.row, c.raster, c.swizzle, c.splits, c.us)
    return tuple(kept.values())[:MOST_PLANS]


def read(path: Path) -> Journal:
    """Raises JournalError for a file that is none, OSError for one that cannot be read."""
    documents: list[Any] = []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    for number, line in enumerate(lines):
        try:
            documents.append(json.loads(line))
        except (ValueError, RecursionError):
            if number + 1 < len(lines) or line.endswith("\n"):
                raise JournalError(f"{path}, line {number + 1}, is no JSON") from None
    if not documents or not isinstance(documents[0], dict) or "journal" not in documents[0]:
        raise JournalError(f"{path} is no journal: its first line does not say so")
    if documents[0]["journal"] != SCHEMA:
        raise JournalError(
            f"{path} has schema {documents[0]['journal']}; this cutwheel reads {SCHEMA}"
        )
    try:
        setup = Setup.of(documents[0])
        return Journal(setup, [Record.of(document) for document in documents[1:]], path)
    except (KeyError, TypeError) as error:
        raise JournalError(f"{path} is no journal of this cutwheel: {error}") from None


def is_journal(path: Path) -> bool:
    """Whether the file begins as a journal does, of whatever schema. False if there is none."""
    try:
        with path.open(encoding="utf-8") as stream:
            first = json.loads(stream.readline())
    except (FileNotFoundError, ValueError, RecursionError):
        return False
    return isinstance(first, dict) and "journal" in first


def open_journal(path: Path, setup: Setup, *, restart: bool = False) -> Journal:
    """The journal to go on with: that of the file, or a new one.

    Raises:
        JournalError: it is of another GPU, wheel or set of kernels
    """
    if restart or not path.exists() or path.stat().st_size == 0:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(setup.document()) + "\n", encoding="utf-8")
        return Journal(setup, [], path)
    journal = read(path)
    for what in ("gpu", "cutwheel", "kernels"):
        ours, theirs = getattr(setup, what), getattr(journal.setup, what)
        if ours != theirs:
            raise JournalError(
                f"{path} has another {what}: {theirs}, here {ours}. Give another --journal, or"
                " --restart to begin anew"
            )
    # Without the rest of a line that was cut off.
    text = path.read_text(encoding="utf-8")
    if not text.endswith("\n"):
        path.write_text(text[: text.rfind("\n") + 1], encoding="utf-8")
    return journal
