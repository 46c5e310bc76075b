"""Tables of the scaled benchmarks. Needs neither torch nor a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from . import report
from .report import Row
from .scaled_jobs import FASTER
from .stats import geomean

SMALL_M = 64
STATES = ("ok", "failed", "skipped")


class Goal(NamedTuple):
    """Ratios to torch: of all shapes, of the worst one, and of those up to SMALL_M."""

    geomean: float
    worst: float | None = None
    small: float | None = None


GOALS = {  # (group, baseline; None: any)
    ("fp8_fast", FASTER): Goal(1.0, 0.85, 1.0),
    ("fp8", FASTER): Goal(1.0, 0.85, 1.0),
    ("blockwise", None): Goal(1.0),
    ("int8", "_int_mm + scaling"): Goal(1.4),
}


def label(row: Row) -> str:
    """Of the groups that are averaged: quantisation by recipe."""
    return f"quantize {row['recipe']}" if row["group"] == "quantize" else str(row["group"])


def name_of(row: Row) -> str:
    return " x ".join(str(row[extent]) for extent in "mnk" if row[extent])


def summarize(rows: Sequence[Row]) -> dict[str, Any]:
    """Counts, and for each group, side and baseline the geomean over its shapes."""
    found: dict[tuple[str, str, str], list[tuple[Row, Mapping[str, Any]]]] = {}
    for row in report.measured(rows):
        for ratio in row["ratios"]:
            key = (label(row), ratio["side"], ratio["baseline"])
            found.setdefault(key, []).append((row, ratio))
    return {
        "cases": len(rows),
        **{state: sum(row["status"] == state for row in rows) for state in STATES},
        "without_baseline": sum(not row["ratios"] for row in report.measured(rows)),
        "lines": [_line(key, members) for key, members in found.items()],
    }


def _line(
    key: tuple[str, str, str], members: Sequence[tuple[Row, Mapping[str, Any]]]
) -> dict[str, Any]:
    group, side, baseline = key
    row, worst = min(members, key=lambda member: float(member[1]["median"]))
    goal = GOALS.get((group, baseline)) or GOALS.get((group, None))
    small = [ratio["median"] for row, ratio in members if row["m"] <= SMALL_M]
    per_m: dict[str, list[float]] = {}
    for member, ratio in sorted(members, key=lambda pair: int(pair[0]["m"])):
        per_m.setdefault(str(member["m"]), []).append(ratio["median"])
    below = goal.worst if goal and goal.worst is not None else 1.0
    return {
        "group": group,
        "side": side,
        "baseline": baseline,
        "shapes": len(members),
        "geomean": geomean(ratio["median"] for _, ratio in members),
        "goal": goal.geomean if goal else None,
        "worst": worst["median"],
        "worst_goal": goal.worst if goal else None,
        "worst_shape": name_of(row),
        "worst_kernel": row["kernels"].get(side),
        "below": sum(ratio["median"] < below for _, ratio in members),
        "small": geomean(small) if small else None,
        "small_goal": goal.small if goal else None,
        "per_m": {m: geomean(ratios) for m, ratios in per_m.items()},
    }


def markdown(result: Mapping[str, Any]) -> str:
    rows = result["results"]
    summary = summarize(rows)
    parts = [report.heading(result)]
    lines = summary["lines"]
    if lines:
        parts += [_table(lines), _per_m(lines), _worst(rows)]
    parts.append(report.exceptions(rows, _full_name))
    parts.append(_incomplete(rows))
    counts = ", ".join(f"{summary[state]} {state}" for state in STATES)
    alone = summary["without_baseline"]
    text = f"**{summary['cases']} cases: {counts}; {alone} without a baseline.**"
    parts.append(text)
    return "\n\n".join(part for part in parts if part)


def _full_name(row: Row) -> str:
    return f"{label(row)} {name_of(row)}"


def _of(value: float | None, goal: float | None = None) -> str:
    if value is None:
        return ""
    return f"{value:.3f}" + ("" if goal is None else f" ({goal:.2f})")


def _title(line: Mapping[str, Any]) -> str:
    return f"{line['group']}: {line['side']} to {line['baseline']}"


def _table(lines: Sequence[Mapping[str, Any]]) -> str:
    body = [
        [
            _title(line),
            str(line["shapes"]),
            f"**{_of(line['geomean'], line['goal'])}**",
            _of(line["small"], line["small_goal"]),
            f"{_of(line['worst'], line['worst_goal'])} at {line['worst_shape']}",
            str(line["below"]),
        ]
        for line in lines
    ]
    head = ["ratio: time of the baseline / ours (goal)", "shapes", "geomean", f"M <= {SMALL_M}"]
    return report.table([*head, "worst", "below 0.85 or 1"], body)


def _per_m(lines: Sequence[Mapping[str, Any]]) -> str:
    ms = sorted({int(m) for line in lines for m in line["per_m"]})
    body = [
        [
            _title(line),
            *(f"{line['per_m'][str(m)]:.2f}" if str(m) in line["per_m"] else "" for m in ms),
        ]
        for line in lines
    ]
    return report.table(["geomean at M", *map(str, ms)], body)


def _worst(rows: Sequence[Row], count: int = 5) -> str:
    """Of each group the worst shapes, against the baselines that have a goal."""
    found: dict[tuple[str, str], list[tuple[Row, Mapping[str, Any]]]] = {}
    for row in report.measured(rows):
        for ratio in row["ratios"]:
            has_goal = (row["group"], ratio["baseline"]) in GOALS or (row["group"], None) in GOALS
            if has_goal:
                found.setdefault((row["group"], ratio["side"]), []).append((row, ratio))
    body = []
    for (group, side), members in found.items():
        for row, ratio in sorted(members, key=lambda member: float(member[1]["median"]))[:count]:
            baseline = ratio.get("mode", ratio["baseline"])
            ours = row["sides"][side]
            body.append(
                [
                    f"{group} {name_of(row)}",
                    side,
                    f"{ratio['median']:.2f} ({ratio['p20']:.2f}-{ratio['p80']:.2f})",
                    baseline,
                    f"{row['sides'][baseline]['us']['median']:.1f}",
                    f"{ours['us']['median']:.1f}",
                    f"{ours['tflops']:.0f}",
                    f"{ours['relative_error']:.1e}",
                    row["kernels"].get(side) or "-",
                ]
            )
    head = ["worst: M x N x K", "side", "ratio (p20-p80)", "baseline", "us", "ours us", "TFLOP/s"]
    return report.table([*head, "error", "kernel"], body) if body else ""


def _incomplete(rows: Sequence[Row]) -> str:
    """Baselines that torch does not have or that are wrong; alike ones in one line."""
    found: dict[str, list[str]] = {}
    for row in report.measured(rows):
        if row["reason"]:
            found.setdefault(f"{label(row)}: {row['reason']}", []).append(name_of(row))
    return "\n".join(
        f"- WITHOUT {reason} ({len(names)} shapes, such as {names[0]})"
        for reason, names in found.items()
    )
