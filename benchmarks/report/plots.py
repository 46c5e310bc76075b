"""Plots of a results file: the only module that imports matplotlib."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator
from PIL import Image

from . import names, performance, record, tables
from .chips import chip_of, limit
from .tables import Line, Row

TORCH, OURS, LIMIT, ASIDE = "#6b7280", "#0f766e", "#b45309", "#7c3aed"
COLUMNS = 3
DPI = 90

Result = Mapping[str, Any]


def draw(result: Result, folder: Path) -> list[Path]:
    """Write the plots of a results file; returns what was written."""
    figures: dict[Path, Figure] = {}

    def add(section: str, kind: str, figure: Figure) -> None:
        figures[folder / performance.plot_name(result["gpu"], section, kind)] = figure

    for name, section in result["sections"].items():
        if name in record.OF_CALLS:
            continue
        rows = performance.listed(section)
        problems = [row for row in rows if row["group"] not in (*tables.OWN, "quantize")]
        if tables.best_lines(problems):
            add(name, "ratio", ratio_figure(name, section, problems))
        if performance.intense(rows):
            add(name, "tflops", tflops_figure(name, result["gpu"], performance.intense(rows)))
    cpu = tables.measured(performance.host_rows(result))
    if cpu:
        add("host", "cpu", host_figure(cpu))
    for path, figure in figures.items():
        save(figure, path)
    return list(figures)


def save(figure: Figure, path: Path) -> None:
    """With 64 colours, a third of the size; without metadata, which would differ by version."""
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=DPI, metadata={"Software": None})
    Image.open(drawn).convert("RGB").quantize(64).save(path, optimize=True)


def _panels(count: int, width: float = 4.4, height: float = 2.9) -> tuple[Figure, list[Axes]]:
    columns = min(COLUMNS, count)
    lines = math.ceil(count / columns)
    figure = Figure(figsize=(width * columns, height * lines), layout="constrained")
    axes = list(figure.subplots(lines, columns, squeeze=False).flatten())
    for axis in axes[count:]:
        axis.set_axis_off()
    return figure, axes[:count]


# ---- ratios
def ratio_figure(name: str, section: Mapping[str, Any], rows: Sequence[Row]) -> Figure:
    """A panel for each of our providers: every shape over M, and the geometric mean of each M."""
    found = tables.best_lines(rows)
    aside = performance.drawn(section)
    figure, axes = _panels(len(found), 6.0 if len(found) == 1 else 4.4, 3.2)
    for axis, line in zip(axes, found, strict=True):
        _ratio_panel(axis, name.partition("_")[0], line, rows, aside)
    for axis in axes[::COLUMNS]:
        axis.set_ylabel("torch's best time / ours")
    return figure


def points(rows: Sequence[Row], line: Line) -> list[tuple[int, float]]:
    return [
        (int(row["m"]), ratio["median"])
        for row in tables.measured(rows)
        for ratio in tables.best_of(row)
        if (tables.label(row), ratio["side"]) == (line["group"], line["side"])
    ]


def _ratio_panel(
    axis: Axes, section: str, line: Line, rows: Sequence[Row], aside: Sequence[Row]
) -> None:
    random = "drawn" if any(row.get("drawn") for row in aside) else "kept aside"
    for name, some, colour in (
        ("shapes", points(rows, line), OURS),
        (random, points(aside, line), ASIDE),
    ):
        if some:
            label = f"{name} ({len(some)})"
            axis.plot(
                *zip(*some, strict=True), "o", color=colour, alpha=0.45, markersize=3.5, label=label
            )
    ms = [int(m) for m in line["per_m"]]
    if 2 < len(ms) <= 12:
        axis.plot(ms, list(line["per_m"].values()), "-", color=OURS, linewidth=1)
    axis.axhline(1.0, color=TORCH, linewidth=1)
    title = names.what(section, line).replace("`", "")
    axis.set_title(f"{title}\ngeometric mean {line['geomean']:.3f}", fontsize=8)
    axis.set_xscale("log", base=2)
    axis.set_xlabel("images times pixels" if section in ("conv", "volumes") else "M", fontsize=7)
    if len(ms) <= 12:
        axis.xaxis.set_major_locator(FixedLocator(ms))
        axis.set_xticks(ms, [str(m) for m in ms], fontsize=6, rotation=45)
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_yscale("log")
    values = [value for some in (rows, aside) for _, value in points(some, line)]
    low, high = min(1.0, *values), max(1.0, *values)
    ticks = [tick for tick in TICKS if 0.9 * low <= tick <= 1.1 * high]
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.yaxis.set_minor_locator(NullLocator())
    axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks], fontsize=7)
    axis.grid(alpha=0.25)
    if aside:
        axis.legend(fontsize=6)


TICKS = (0.25, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.4, 1.7, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0, 16.0)


# ---- achieved TFLOP/s
def tflops_figure(name: str, gpu: str, rows: Sequence[Row]) -> Figure:
    """A panel for each dtype: both providers under the limit of the data sheet."""
    by_dtype: dict[str, list[Row]] = {}
    for row in rows:
        by_dtype.setdefault(performance.dtype_of(name, row), []).append(row)
    figure, axes = _panels(len(by_dtype), 5.6, 3.6)
    for axis, (dtype, members) in zip(axes, by_dtype.items(), strict=True):
        _tflops_panel(axis, gpu, dtype, members)
    return figure


def _tflops_panel(axis: Axes, gpu: str, dtype: str, rows: Sequence[Row]) -> None:
    pairs = [
        (
            row["flops_per_byte"],
            row["sides"][best["mode"]]["tflops"],
            row["sides"][best["side"]]["tflops"],
        )
        for row in rows
        for best in tables.best_of(row)
    ]
    xs, theirs, ours = zip(*pairs, strict=True)
    axis.plot(xs, theirs, "x", color=TORCH, markersize=4, alpha=0.7, label=tables.BEST)
    axis.plot(
        xs, ours, "o", color=OURS, markersize=4, alpha=0.7, fillstyle="none", label="cutwheel"
    )
    chip = chip_of(record.device_slug(gpu))
    if chip is not None and dtype in chip.tflops:
        ridge = chip.tflops[dtype] * 1e3 / chip.gbs
        ends = sorted({min(xs), max(xs), min(max(ridge, min(xs)), max(xs))})
        label = f"{chip.name}: {chip.tflops[dtype]:g} TFLOP/s, {chip.gbs:g} GB/s"
        axis.plot(
            ends, [limit(chip, dtype, x) for x in ends], color=LIMIT, linewidth=1, label=label
        )
    axis.set(xscale="log", yscale="log")
    axis.set_xlabel("FLOP per byte (least traffic)", fontsize=8)
    axis.set_ylabel("TFLOP/s", fontsize=8)
    axis.set_title(dtype, fontsize=9)
    axis.tick_params(labelsize=7, which="both")
    axis.legend(fontsize=7)
    axis.grid(alpha=0.25)


# ---- CPU time
def host_figure(rows: Sequence[Row]) -> Figure:
    figure = Figure(figsize=(8, 0.32 * len(rows) + 1.0), layout="constrained")
    axis = figure.subplots()
    for offset, number, label, colour in ((-0.2, 0, "torch", TORCH), (0.2, 1, "cutwheel", OURS)):
        times = [list(row["us"].values())[number]["median"] for row in rows]
        axis.barh([i + offset for i in range(len(rows))], times, 0.38, color=colour, label=label)
    axis.set_yticks(range(len(rows)), [row["case"] for row in rows], fontsize=7)
    axis.invert_yaxis()
    axis.set_xlabel("CPU time of one call, us", fontsize=8)
    axis.legend(fontsize=7)
    axis.grid(alpha=0.25, axis="x")
    return figure
