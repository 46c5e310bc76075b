"""Compares two wheels by journals of the tuner, with kernels that did not change as a control.

    python tools/tuning/compare.py --before old.jsonl --since new.jsonl --changed '*_pingpong_*'

A GPU is slower once it is warm: a wheel of a few kernels leaves it cooler than one that tries fifty
plans for each problem, and looks 3 to 5 % faster for that alone. So both wheels try all plans
(python -m cutwheel tune), and what unchanged kernels took since, over before, is taken out of each
problem. Of several journals of one wheel a plan's median counts.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from cutwheel.tuning.journal import Journal, JournalError, read

Plan = tuple[str, int]
"""a kernel and in how many slices of K"""
Times = Mapping[str, Mapping[Plan, float]]
"""microseconds by job and plan"""
LEAST_CONTROLS = 5
COLUMNS = (
    *("job", "problem", "before: kernel", "us", "since: kernel", "us"),
    "unchanged kernels, since over before",
)


class CompareError(ValueError):
    """Journals that say nothing about each other."""


@dataclass(frozen=True)
class Comparison:
    """One problem."""

    job: str
    before: tuple[Plan, float]
    """the fastest plan"""
    since: tuple[Plan, float]
    control: float | None
    """of unchanged kernels, time since over before; None: too few of them"""
    controls: int
    changed: Mapping[Plan, tuple[float, float]]
    """times of the plans of changed kernels that both have, before and since"""

    @property
    def ratio(self) -> float | None:
        """Time of the fastest plan since over before, without what the GPU's state does."""
        return self.adjusted(self.before[1], self.since[1])

    def adjusted(self, before: float, since: float) -> float | None:
        return None if self.control is None else since / before / self.control


def times_of(journals: Iterable[Journal]) -> Times:
    runs: dict[str, dict[Plan, list[float]]] = defaultdict(lambda: defaultdict(list))
    for journal in journals:
        for record in journal.latest:
            fastest: dict[Plan, float] = {}
            for c in record.timed:
                assert c.us is not None
                fastest.setdefault((c.row, c.splits), c.us)
            for plan, us in fastest.items():
                runs[record.job][plan].append(us)
    return {
        job: {plan: statistics.median(us) for plan, us in plans.items()}
        for job, plans in runs.items()
    }


def compare(before: Times, since: Times, changed: Sequence[str]) -> list[Comparison]:
    """The problems that both have, in the order of `since`.

    Args:
        changed: patterns of the names of kernels that are not the same in both

    Raises:
        CompareError: no problem is in both, or a pattern names none of their kernels
    """
    jobs = [job for job in since if job in before]
    if not jobs:
        raise CompareError("--before and --since have no problem in common")
    names = {row for times in (before, since) for job in jobs for row, _ in times[job]}
    for pattern in changed:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise CompareError(f"--changed {pattern}: no kernel of these journals has such a name")

    def has_changed(plan: Plan) -> bool:
        return any(fnmatchcase(plan[0], pattern) for pattern in changed)

    found = []
    for job in jobs:
        old, new = before[job], since[job]
        both = [plan for plan in new if plan in old]
        same = [new[plan] / old[plan] for plan in both if not has_changed(plan)]
        found.append(
            Comparison(
                job,
                min(old.items(), key=lambda item: item[1]),
                min(new.items(), key=lambda item: item[1]),
                statistics.geometric_mean(same) if len(same) >= LEAST_CONTROLS else None,
                len(same),
                {plan: (old[plan], new[plan]) for plan in both if has_changed(plan)},
            )
        )
    return found


def spelled(plan: Plan) -> str:
    kernel, splits = plan
    return kernel if splits == 1 else f"{kernel} /{splits}"


def rows_of(comparisons: Iterable[Comparison]) -> list[list[Any]]:
    """The fastest plans of each problem, then those of changed kernels."""
    rows = []
    for c in comparisons:
        family, problem = c.job.rsplit(" ", 1)
        control = None if c.control is None else round(c.control, 3)
        fastest = (c.before, c.since)
        others = [((plan, us[0]), (plan, us[1])) for plan, us in sorted(c.changed.items())]
        pairs = [fastest, *(pair for pair in others if pair != fastest)]
        rows += [
            [family, problem, spelled(a), round(us, 1), spelled(b), round(now, 1), control]
            for (a, us), (b, now) in pairs
        ]
    return rows


def summary(comparisons: Sequence[Comparison]) -> list[str]:
    """Lines of text: problems, then means of families and of changed kernels."""
    lines = []
    families: dict[str, list[float]] = defaultdict(list)
    kernels: dict[str, list[float]] = defaultdict(list)
    for c in comparisons:
        text = f"{c.job}: {c.before[1]:.1f} to {c.since[1]:.1f} us, {spelled(c.since[0])}"
        if c.ratio is None or c.control is None:
            lines.append(f"{text}; {c.controls} unchanged kernels are too few to compare with")
            continue
        lines.append(f"{text}; {c.ratio:.3f} (unchanged kernels {c.control:.3f}, {c.controls})")
        families[c.job.rsplit(" ", 1)[0]].append(c.ratio)
        for plan, (before, since) in c.changed.items():
            if (ratio := c.adjusted(before, since)) is not None:
                kernels[spelled(plan)].append(ratio)
    for title, groups in (("fastest plan", families), ("changed kernels", kernels)):
        lines += ["", f"{title}, since over before: geometric mean (least to most; problems)"]
        lines += [
            f"  {name}: {statistics.geometric_mean(x):.3f} ({min(x):.3f} to {max(x):.3f}; {len(x)})"
            for name, x in sorted(groups.items())
        ]
    return lines


def setup_of(journals: Sequence[Journal]) -> dict[str, str]:
    """GPU, driver and torch, which have to be the same."""
    setups = {(j.setup.gpu.name, j.setup.driver, j.setup.torch) for j in journals}
    if len(setups) > 1:
        raise CompareError(f"journals of unlike machines: {sorted(setups)}")
    gpu, driver, torch = setups.pop()
    return {"gpu": gpu, "driver": driver, "torch": torch}


def document(
    setup: Mapping[str, str], commit: str, about: str, comparisons: Sequence[Comparison]
) -> str:
    """A file of benchmarks/results/native_kernels, a line for each row."""
    head = {
        **setup,
        "commit": commit,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "about": about,
        "columns": COLUMNS,
    }
    lines = [f" {json.dumps(key)}: {json.dumps(value)}," for key, value in head.items()]
    rows = ",\n".join(f"  {json.dumps(row)}" for row in rows_of(comparisons))
    return "\n".join(["{", *lines, ' "rows": [', rows, " ]", "}", ""])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for wheel in ("before", "since"):
        parser.add_argument(
            f"--{wheel}",
            help=f"of the wheel {wheel}",
            type=Path,
            nargs="+",
            required=True,
            metavar="JOURNAL",
        )
    parser.add_argument(
        *("--changed", "-c"),
        action="append",
        required=True,
        metavar="PATTERN",
        help="names of kernels that are not the same in both wheels; again for several",
    )
    parser.add_argument("--out", type=Path, help="a file of benchmarks/results to write")
    parser.add_argument("--commit", default="", help="of the wheels, for --out")
    parser.add_argument("--about", default="", help="what was compared, for --out")
    given = parser.parse_args(arguments)
    try:
        before, since = ([read(path) for path in paths] for paths in (given.before, given.since))
        setup = setup_of([*before, *since])
        found = compare(times_of(before), times_of(since), given.changed)
    except (CompareError, JournalError, OSError) as error:
        print(f"compare: {error}", file=sys.stderr)
        return 2
    print("\n".join(summary(found)))
    if given.out:
        given.out.write_text(document(setup, given.commit, given.about, found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
