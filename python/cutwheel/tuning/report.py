"""A journal's report: how much of the best the dispatch reaches, and what each kernel is worth."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .journal import Journal, Record

_TIE = 1.005  # times within half a percent of each other are the same
_SHOWN = 12


def geomean(values: Iterable[float]) -> float:
    known = list(values)
    return statistics.geometric_mean(known) if known else math.nan


@dataclass(frozen=True)
class FamilyReport:
    family: str
    jobs: int
    geomean: float
    """best time over that of the dispatch: 1 is the best there is"""
    worst: float
    worst_job: str
    by_model: float
    """the same for what the cost model likes best among what was measured"""
    unmeasured: int
    """jobs without a right, timed plan of the dispatch"""


@dataclass(frozen=True)
class KernelReport:
    row: str
    measured: int
    wins: int
    loss: float
    """how many times as long the best would take without it: geometric mean of all its jobs"""
    worst: float
    worst_job: str
    wrong: int
    refused: int


def reached(record: Record) -> float | None:
    """Best time over that of the dispatch; None where one of them is not known."""
    timed = record.timed
    ours = next((c for c in timed if c.plan == record.dispatch), None)
    if ours is None or not ours.us or not timed[0].us:
        return None
    return timed[0].us / ours.us


def _reached_by_model(record: Record) -> float | None:
    timed = [c for c in record.timed if c.us]
    if not timed:
        return None
    # Variants of a plan have its prediction: the first one is the plan as the model makes it.
    first = {c.plan: index for index, c in enumerate(record.candidates)}
    liked = min(timed, key=lambda c: (c.predicted_us, first[c.plan]))
    return (timed[0].us or 0.0) / (liked.us or 1.0)


def families(records: Sequence[Record]) -> list[FamilyReport]:
    found = []
    for name in dict.fromkeys(record.family for record in records):
        own = [record for record in records if record.family == name]
        known = [(value, r.job) for r in own if (value := reached(r)) is not None]
        by_model = [value for r in own if (value := _reached_by_model(r)) is not None]
        worst, job = min(known, default=(math.nan, ""))
        found.append(
            FamilyReport(
                name,
                len(own),
                geomean(value for value, _ in known),
                worst,
                job,
                geomean(by_model),
                len(own) - len(known),
            )
        )
    return found


def kernels(records: Sequence[Record]) -> list[KernelReport]:
    """Most valuable first, then by name."""
    losses: dict[str, list[tuple[float, str]]] = {}
    wins: dict[str, int] = {}
    failed: dict[str, list[str]] = {}
    for record in records:
        for c in record.candidates:
            if c.status in ("wrong", "refused"):
                failed.setdefault(c.row, []).append(c.status)
                losses.setdefault(c.row, [])
        timed = record.timed
        for row in dict.fromkeys(c.row for c in timed):
            rest = [c.us for c in timed if c.row != row and c.us]
            own = next(c.us for c in timed if c.row == row)
            best = timed[0].us
            # A job that only this kernel serves says nothing of its worth in time.
            loss = rest[0] / best if rest and best and timed[0].row == row else 1.0
            losses.setdefault(row, []).append((loss, record.job))
            if own and best and own <= _TIE * best:
                wins[row] = wins.get(row, 0) + 1
    found = []
    for row, values in losses.items():
        worst, job = max(values, default=(math.nan, ""))
        statuses = failed.get(row, [])
        found.append(
            KernelReport(
                row,
                len(values),
                wins.get(row, 0),
                geomean(value for value, _ in values),
                worst,
                job,
                statuses.count("wrong"),
                statuses.count("refused"),
            )
        )

    def order(kernel: KernelReport) -> tuple[float, int, str]:
        return (-kernel.loss if kernel.measured else 0.0, -kernel.wins, kernel.row)

    return sorted(found, key=order)


def text_of(journal: Journal) -> str:
    records = [record for record in journal.latest if not record.error]
    gpu = journal.setup.gpu
    lines = [
        f"{gpu.name}, {gpu.sm_count} SMs, cutwheel {journal.setup.cutwheel}:"
        f" {len(records)} jobs, {sum(len(r.candidates) for r in records)} plans measured",
        "",
        "Share of the best that is reached: by this wheel's dispatch, and by the cost model.",
        "",
        "| family | jobs | dispatch | worst | cost model | worst job |",
        "|---|---|---|---|---|---|",
    ]
    for family in families(records):
        missing = f" ({family.unmeasured} without)" if family.unmeasured else ""
        lines.append(
            f"| {family.family} | {family.jobs}{missing} | {_percent(family.geomean)} |"
            f" {_percent(family.worst)} | {_percent(family.by_model)} |"
            f" {family.worst_job.partition(' ')[2]} |"
        )
    lines += _kernel_lines(records)
    failed = [record for record in journal.latest if record.error]
    if failed:
        lines += ["", "Not measured:", ""]
        lines += [f"- {record.job}: {record.error}" for record in failed]
    return "\n".join(lines) + "\n"


def _kernel_lines(records: Sequence[Record]) -> list[str]:
    found = kernels(records)
    winners = [kernel for kernel in found if kernel.wins]
    idle = [kernel for kernel in found if kernel.measured and not kernel.wins]
    broken = [kernel for kernel in found if kernel.wrong or kernel.refused]
    lines = [
        "",
        "What the best would lose without a kernel, in the mean of the jobs it was measured in:",
        "",
        "| kernel | jobs | wins | loss | at most | where |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {k.row} | {k.measured} | {k.wins} | {_percent(k.loss - 1)} |"
        f" {_percent(k.worst - 1)} | {k.worst_job} |"
        for k in winners
    ]
    if idle:
        lines += ["", "Measured, and never the fastest:", ""]
        lines += [f"- {k.row} ({k.measured} jobs)" for k in idle]
    if broken:
        lines += ["", "With wrong results, or refused:", ""]
        for kernel in broken:
            lines.append(f"- {kernel.row}: {kernel.wrong} wrong, {kernel.refused} refused")
            lines += [f"  {note}" for note in _notes(records, kernel.row)[:_SHOWN]]
    return lines


def _notes(records: Sequence[Record], row: str) -> list[str]:
    return [
        f"{record.job}: {c.status}, {c.note}"
        for record in records
        for c in record.candidates
        if c.row == row and c.status in ("wrong", "refused")
    ]


def _percent(share: float) -> str:
    return "-" if math.isnan(share) else f"{100 * share:.1f} %"
