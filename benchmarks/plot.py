"""Plots of a result file: the only module that imports matplotlib."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from . import conv_report, fused_report, grouped_report, scaled_report
from .report import GOALS, Row, measured, summarize

TORCH, OURS, GOAL = "#6b7280", "#0f766e", "#b45309"
COLUMNS = 4
REPORTS = {
    "fused": fused_report,
    "scaled": scaled_report,
    "grouped": grouped_report,
    "conv": conv_report,
}


def draw(result: Mapping[str, Any], path: Path) -> list[Path]:
    """Write the plots of a result beside its JSON file; returns what was written."""
    rows = measured(result["results"])
    if not rows:
        return []
    if result["benchmark"] == "host":
        target = path.with_suffix(".png")
        host_figure(rows, result).savefig(target, dpi=130)
        return [target]
    if result["benchmark"] in REPORTS:
        if not any(row["ratios"] for row in rows):
            return []
        target = path.with_suffix(".png")
        groups_figure(rows, result).savefig(target, dpi=130)
        return [target]
    ratio = path.with_suffix(".png")
    roofline = path.with_name(path.stem + "_roofline.png")
    ratio_figure(rows, result).savefig(ratio, dpi=130)
    roofline_figure(rows, result).savefig(roofline, dpi=130)
    return [ratio, roofline]


def title(result: Mapping[str, Any]) -> str:
    env = result["environment"]
    return f"{result['candidate']} {result.get('dtype', '')} on {env['gpu']}, torch {env['torch']}"


def groups(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows of one [N, K] together; shapes that appear with one M only share the last panel."""
    by_weight: dict[tuple[int, int], list[Row]] = {}
    for row in rows:
        by_weight.setdefault((row["n"], row["k"]), []).append(row)
    panels = {}
    single = []
    for (n, k), members in by_weight.items():
        if len(members) > 1:
            panels[f"N {n}, K {k}"] = sorted(members, key=lambda row: int(row["m"]))
        else:
            single += members
    if single:
        panels["other shapes"] = sorted(single, key=lambda row: int(row["m"]))
    return panels


def ratio_figure(rows: Sequence[Row], result: Mapping[str, Any]) -> Figure:
    """Ratio to torch over M, a panel for each [N, K]; the band holds the middle 60 % of rounds."""
    panels = groups(rows)
    lines = math.ceil(len(panels) / COLUMNS)
    figure = Figure(figsize=(3.4 * COLUMNS, 2.5 * lines + 0.8), layout="constrained")
    figure.suptitle(f"{title(result)}: geomean {summarize(rows)['geomean']:.3f} of torch")
    axes = figure.subplots(lines, COLUMNS, sharey=True, squeeze=False).flatten()
    for axis, (name, members) in zip(axes, panels.items(), strict=False):
        _ratio_panel(axis, name, members)
    for axis in axes[len(panels) :]:
        axis.set_axis_off()
    for axis in axes[: len(panels) : COLUMNS]:
        axis.set_ylabel("torch time / ours")
    return figure


def _ratio_panel(axis: Axes, name: str, members: Sequence[Row]) -> None:
    ms = [row["m"] for row in members]
    ratios = [row["ratio"] for row in members]
    joined = len(set(ms)) == len(ms) and name != "other shapes"
    low, high = [r["p20"] for r in ratios], [r["p80"] for r in ratios]
    if joined:
        axis.fill_between(ms, low, high, color=OURS, alpha=0.2, linewidth=0)
    axis.plot(ms, [r["median"] for r in ratios], "o-" if joined else "o", color=OURS, markersize=4)
    axis.axhline(1.0, color=TORCH, linewidth=1)
    axis.axhline(GOALS["worst"], color=GOAL, linewidth=1, linestyle=":")
    axis.set_title(name, fontsize=9)
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_locator(FixedLocator(sorted(set(ms))))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xticks(sorted(set(ms)), [str(m) for m in sorted(set(ms))], rotation=60, fontsize=7)
    axis.grid(alpha=0.25)


def roofline_figure(rows: Sequence[Row], result: Mapping[str, Any]) -> Figure:
    """Achieved TFLOP/s over arithmetic intensity, under the ceilings measured in the same run."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    axis = figure.subplots()
    for name, colour, mark in (("torch", TORCH, "x"), (result["candidate"], OURS, "o")):
        axis.plot(
            [row["flops_per_byte"] for row in rows],
            [row["sides"][name]["tflops"] for row in rows],
            mark,
            color=colour,
            label=name,
            markersize=5,
            fillstyle="none",
        )
    ceilings = result.get("ceilings")
    if ceilings:
        low = min(row["flops_per_byte"] for row in rows)
        high = max(row["flops_per_byte"] for row in rows)
        ridge = ceilings["tflops"] * 1e3 / ceilings["gbs"]
        xs = sorted({low, high, min(max(ridge, low), high)})
        ys = [min(ceilings["tflops"], x * ceilings["gbs"] * 1e-3) for x in xs]
        label = f"{ceilings['gbs']:.0f} GB/s, {ceilings['tflops']:.0f} TFLOP/s (measured)"
        axis.plot(xs, ys, color=GOAL, linewidth=1, label=label)
    axis.set(xscale="log", yscale="log", xlabel="FLOP per byte (least traffic)", ylabel="TFLOP/s")
    axis.set_title(title(result))
    axis.legend()
    axis.grid(alpha=0.25, which="both")
    return figure


def groups_figure(rows: Sequence[Row], result: Mapping[str, Any]) -> Figure:
    """A panel for each side and baseline: the ratio of every shape over M, and their geomeans."""
    is_scaled = result["benchmark"] == "scaled"
    lines = REPORTS[result["benchmark"]].summarize(rows)["lines"]
    height = math.ceil(len(lines) / COLUMNS)
    figure = Figure(figsize=(3.4 * COLUMNS, 2.5 * height + 0.8), layout="constrained")
    figure.suptitle(title(result))
    axes = figure.subplots(height, COLUMNS, squeeze=False).flatten()
    for axis in axes[len(lines) :]:
        axis.set_axis_off()
    for axis, line in zip(axes, lines, strict=False):
        points = [
            (row["m"], ratio["median"])
            for row in rows
            for ratio in row["ratios"]
            if (scaled_report.label(row) if is_scaled else row["group"]) == line["group"]
            and (ratio["side"], ratio["baseline"]) == (line["side"], line["baseline"])
        ]
        axis.plot(*zip(*points, strict=True), ".", color=OURS, alpha=0.5)
        ms = [int(m) for m in line["per_m"]]
        axis.plot(ms, list(line["per_m"].values()), "-", color=OURS)
        axis.axhline(1.0, color=TORCH, linewidth=1)
        if line["goal"] is not None:
            axis.axhline(line["goal"], color=GOAL, linewidth=1, linestyle=":")
        name = f"{line['group']}: {line['side']}\nto {line['baseline']}, {line['geomean']:.3f}"
        axis.set_title(name, fontsize=9)
        axis.set_xscale("log", base=2)
        axis.set_xticks(ms, [str(m) for m in ms], fontsize=7)
        axis.grid(alpha=0.25)
    return figure


def host_figure(rows: Sequence[Row], result: Mapping[str, Any]) -> Figure:
    figure = Figure(figsize=(8, 0.45 * len(rows) + 1.2), layout="constrained")
    axis = figure.subplots()
    names = [row["case"] for row in rows]
    for offset, side, colour in ((-0.2, "torch", TORCH), (0.2, result["candidate"], OURS)):
        times = [row["us"][side]["median"] for row in rows]
        axis.barh([i + offset for i in range(len(rows))], times, 0.38, color=colour, label=side)
    axis.set_yticks(range(len(rows)), names)
    axis.invert_yaxis()
    axis.set_xlabel("CPU time of one call, us")
    axis.set_title(title(result))
    axis.legend()
    axis.grid(alpha=0.25, axis="x")
    return figure
