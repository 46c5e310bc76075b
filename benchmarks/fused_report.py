"""Tables of the fused benchmarks. Needs neither torch nor a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from . import report
from .report import Row
from .stats import geomean

# (group, baseline): the least geomean of the ratios. That of overhead depends on the shape.
GOALS = {
    ("bias_gelu", "eager"): 1.08,
    ("bias_gelu", "compile"): 1.0,
    ("bias_gelu", "addmm_activation"): 1.0,
    ("bias_residual", "eager"): 1.08,
    ("gated_silu", "eager"): 1.08,
    ("gated_silu", "compile"): 1.0,
    ("training_gelu", "eager"): 1.0,
}


def summarize(rows: Sequence[Row]) -> dict[str, Any]:
    """Counts, and for each group, side and baseline the geomean over its shapes."""
    found: dict[tuple[str, str, str], list[tuple[Row, Mapping[str, Any]]]] = {}
    for row in report.measured(rows):
        for ratio in row["ratios"]:
            key = (row["group"], ratio["side"], ratio["baseline"])
            found.setdefault(key, []).append((row, ratio))
    return {
        "cases": len(rows),
        **{state: sum(row["status"] == state for row in rows) for state in STATES},
        "lines": [_line(key, members) for key, members in found.items()],
    }


STATES = ("ok", "failed", "skipped")


def _line(
    key: tuple[str, str, str], members: Sequence[tuple[Row, Mapping[str, Any]]]
) -> dict[str, Any]:
    group, side, baseline = key
    row, worst = min(members, key=lambda member: float(member[1]["median"]))
    goals = [ratio["goal"] for _, ratio in members if "goal" in ratio]
    per_m: dict[str, list[float]] = {}
    for member, ratio in sorted(members, key=lambda pair: int(pair[0]["m"])):
        per_m.setdefault(str(member["m"]), []).append(ratio["median"])
    return {
        "group": group,
        "side": side,
        "baseline": baseline,
        "shapes": len(members),
        "geomean": geomean(ratio["median"] for _, ratio in members),
        "goal": geomean(goals) if goals else GOALS.get((group, baseline)),
        "at_goal": sum(ratio["median"] >= ratio["goal"] for _, ratio in members if "goal" in ratio)
        if goals
        else None,
        "worst": worst["median"],
        "worst_shape": name_of(row),
        "per_m": {m: geomean(ratios) for m, ratios in per_m.items()},
    }


def name_of(row: Row) -> str:
    return f"{row['m']} x {row['n']} x {row['k']}"


def markdown(result: Mapping[str, Any]) -> str:
    rows = result["results"]
    summary = summarize(rows)
    parts = [report.heading(result)]
    if summary["lines"]:
        parts.append(_table(summary["lines"]))
    if result.get("addmm_activation"):
        form = result["addmm_activation"]
        parts.append(f"torch._addmm_activation computes {form} here.")
    parts.append(report.exceptions(rows, lambda row: f"{row['group']} {name_of(row)}"))
    parts.append(_incomplete(rows))
    counts = ", ".join(f"{summary[state]} {state}" for state in STATES)
    parts.append(f"**{summary['cases']} cases: {counts}.**")
    return "\n\n".join(part for part in parts if part)


def _table(lines: Sequence[Mapping[str, Any]]) -> str:
    ms = sorted({int(m) for line in lines for m in line["per_m"]})
    body = []
    for line in lines:
        goal = "" if line["goal"] is None else f"{line['goal']:.2f}"
        if line["at_goal"] is not None:
            goal += f" ({line['at_goal']} of {line['shapes']})"
        per_m = [f"{line['per_m'][str(m)]:.2f}" if str(m) in line["per_m"] else "" for m in ms]
        body.append(
            [
                f"{line['group']}: {line['side']} to {line['baseline']}",
                str(line["shapes"]),
                f"**{line['geomean']:.3f}**",
                goal,
                f"{line['worst']:.2f} ({line['worst_shape']})",
                *per_m,
            ]
        )
    head = ["ratio: time of the baseline / ours", "shapes", "geomean", "goal", "worst (M x N x K)"]
    return report.table([*head, *(f"M {m}" for m in ms)], body)


def _incomplete(rows: Sequence[Row]) -> str:
    """Baselines that could not be measured."""
    return "\n".join(
        f"- WITHOUT {row['group']} {name_of(row)}: {row['reason']}"
        for row in report.measured(rows)
        if row["reason"]
    )
