"""Tables of the convolution benchmarks. Needs neither torch nor a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from . import report
from .conv_jobs import ConvShape, text_of
from .report import Row
from .stats import geomean

STATES = ("ok", "failed", "skipped")
GOALS = {
    ("fprop", "torch"): 0.95,
    ("dgrad", "torch"): 0.85,
    ("wgrad", "torch"): 0.85,
    ("fused", "eager"): 1.40,
    ("fused", "cudnn_convolution_add_relu"): 1.00,
    ("resnet50", "eager"): 1.30,
    ("resnet50", "compile"): 1.00,
}
WORST_GOALS = {"fprop": 0.75}
BELOW = 0.75


def name_of(row: Row) -> str:
    return text_of(row["group"], ConvShape(*row["shape"]))


def summarize(rows: Sequence[Row]) -> dict[str, Any]:
    """Counts, and for each group, side and baseline the geomean over its cases."""
    found: dict[tuple[str, str, str], list[tuple[Row, Mapping[str, Any]]]] = {}
    for row in report.measured(rows):
        for ratio in row["ratios"]:
            key = (str(row["group"]), ratio["side"], ratio["baseline"])
            found.setdefault(key, []).append((row, ratio))
    return {
        "cases": len(rows),
        **{state: sum(row["status"] == state for row in rows) for state in STATES},
        "lines": [_line(key, members) for key, members in found.items()],
    }


def _line(
    key: tuple[str, str, str], members: Sequence[tuple[Row, Mapping[str, Any]]]
) -> dict[str, Any]:
    group, side, baseline = key
    row, worst = min(members, key=lambda member: float(member[1]["median"]))
    per_m: dict[str, list[float]] = {}
    for member, ratio in sorted(members, key=lambda pair: int(pair[0]["m"])):
        per_m.setdefault(str(member["m"]), []).append(ratio["median"])
    return {
        "group": group,
        "side": side,
        "baseline": baseline,
        "cases": len(members),
        "geomean": geomean(ratio["median"] for _, ratio in members),
        "goal": GOALS.get((group, baseline)),
        "worst": worst["median"],
        "worst_goal": WORST_GOALS.get(group),
        "worst_case": name_of(row),
        "worst_kernel": row["kernels"].get(side),
        "below": sum(ratio["median"] < BELOW for _, ratio in members),
        "per_m": {m: geomean(ratios) for m, ratios in per_m.items()},
    }


def markdown(result: Mapping[str, Any]) -> str:
    rows = result["results"]
    summary = summarize(rows)
    parts = [report.heading(result)]
    if summary["lines"]:
        parts += [_table(summary["lines"]), _cases(rows)]
    if result.get("host"):
        parts.append(report.host_table(result["host"], report.other_side(result)))
    parts += [report.exceptions(rows, name_of), _left_out(rows)]
    counts = ", ".join(f"{summary[state]} {state}" for state in STATES)
    parts.append(f"**{summary['cases']} cases: {counts}.**")
    return "\n\n".join(part for part in parts if part)


def _of(value: float, goal: float | None = None) -> str:
    return f"{value:.3f}" + ("" if goal is None else f" ({goal:.2f})")


def _table(lines: Sequence[Mapping[str, Any]]) -> str:
    body = [
        [
            f"{line['group']}: {line['side']} to {line['baseline']}",
            str(line["cases"]),
            f"**{_of(line['geomean'], line['goal'])}**",
            f"{_of(line['worst'], line['worst_goal'])} at {line['worst_case']}",
            str(line["below"]),
        ]
        for line in lines
    ]
    head = ["ratio: time of the baseline / ours (goal)", "cases", "geomean", "worst"]
    return report.table([*head, f"below {BELOW}"], body)


def _cases(rows: Sequence[Row]) -> str:
    """Every case: there are few."""
    body = []
    for row in report.measured(rows):
        for ratio in row["ratios"]:
            ours, theirs = row["sides"][ratio["side"]], row["sides"][ratio["baseline"]]
            body.append(
                [
                    f"{name_of(row)}: to {ratio['baseline']}",
                    f"{ratio['median']:.2f} ({ratio['p20']:.2f}-{ratio['p80']:.2f})",
                    f"{theirs['us']['median']:.1f}",
                    f"{ours['us']['median']:.1f}",
                    f"{ours['tflops']:.0f}",
                    f"{ours['gbs']:.0f}",
                    f"{ours['relative_error']:.1e}",
                    row["kernels"].get(ratio["side"]) or "-",
                ]
            )
    head = ["N x C x H x W, K of R x S", "ratio (p20-p80)", "baseline us", "ours us", "TFLOP/s"]
    return report.table([*head, "GB/s", "error", "kernel"], body)


def _left_out(rows: Sequence[Row]) -> str:
    """Baselines that could not be measured."""
    found = [row for row in report.measured(rows) if row["reason"]]
    return "\n".join(f"- WITHOUT a baseline, {name_of(row)}: {row['reason']}" for row in found)
