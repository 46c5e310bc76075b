"""Markdown tables from a result file. Needs neither torch nor a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .stats import geomean

Row = Mapping[str, Any]
GOALS = {"geomean": 0.95, "worst": 0.80}  # dense GEMM: ratio to torch


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def measured(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if row["status"] == "ok"]


def summarize(rows: Sequence[Row]) -> dict[str, Any]:
    """Geomean of the ratios, over all and for each M, and how many shapes are in it."""
    ok = measured(rows)
    per_m = {}
    for m in sorted({row["m"] for row in ok}):
        ratios = [row["ratio"]["median"] for row in ok if row["m"] == m]
        per_m[str(m)] = {
            "shapes": len(ratios),
            "geomean": geomean(ratios),
            "min": min(ratios),
            "max": max(ratios),
        }
    return {
        "shapes": len(rows),
        "ok": len(ok),
        "failed": sum(row["status"] == "failed" for row in rows),
        "skipped": sum(row["status"] == "skipped" for row in rows),
        "geomean": geomean(row["ratio"]["median"] for row in ok) if ok else None,
        "worst": min((row["ratio"]["median"] for row in ok), default=None),
        "per_m": per_m,
    }


def worst(rows: Iterable[Row], count: int = 5) -> list[Row]:
    return sorted(measured(rows), key=lambda row: row["ratio"]["median"])[:count]


def heading(result: Mapping[str, Any]) -> str:
    env = result["environment"]
    build = env.get("cutwheel") or {}
    return (
        f"## {result['benchmark']} {result.get('dtype', '')}".rstrip()
        + (" with bias" if result.get("bias") else "")
        + f": {env['gpu']}\n\n"
        + f"torch {env['torch']}, CUDA {env['cuda']}, driver {env['driver']},"
        + f" cutwheel {build.get('version', '-')}, commit {(env.get('commit') or '-')[:12]},"
        + f" {env['date']}\n"
    )


def other_side(result: Mapping[str, Any]) -> str:
    return str(result["candidate"])


def gemm_markdown(result: Mapping[str, Any]) -> str:
    rows = result["results"]
    summary = summarize(rows)
    parts = [heading(result)]
    if summary["ok"]:
        parts += [_matrix(rows), _per_m(summary), _worst(rows, other_side(result))]
    parts += [exceptions(rows, lambda row: f"{row['m']} x {row['n']} x {row['k']}")]
    parts += [_closing(summary, result.get("ceilings"))]
    return "\n\n".join(part for part in parts if part)


def _matrix(rows: Sequence[Row]) -> str:
    """Ratio for every [N, K] (down) and M (across); an empty cell was not measured."""
    ok = measured(rows)
    ms = sorted({row["m"] for row in ok})
    cells = {(row["n"], row["k"], row["m"]): f"{row['ratio']['median']:.2f}" for row in ok}
    pairs = dict.fromkeys((row["n"], row["k"]) for row in ok)
    body = [[f"{n} x {k}", *(cells.get((n, k, m), "") for m in ms)] for n, k in pairs]
    return table(["ratio to torch: N x K \\ M", *map(str, ms)], body)


def _per_m(summary: Mapping[str, Any]) -> str:
    body = [
        [m, str(s["shapes"]), f"{s['geomean']:.3f}", f"{s['min']:.2f}", f"{s['max']:.2f}"]
        for m, s in summary["per_m"].items()
    ]
    return table(["M", "shapes", "geomean", "min", "max"], body)


def _worst(rows: Sequence[Row], other: str) -> str:
    body = []
    for row in worst(rows):
        ratio, ours = row["ratio"], row["sides"][other]
        body.append(
            [
                f"{row['m']} x {row['n']} x {row['k']}",
                f"{ratio['median']:.2f} ({ratio['p20']:.2f}-{ratio['p80']:.2f})",
                f"{row['sides']['torch']['us']['median']:.1f}",
                f"{ours['us']['median']:.1f}",
                f"{ours['tflops']:.0f}",
                f"{ours['gbs']:.0f}",
                f"{ours['relative_error']:.1e}",
                row["kernel"] or "-",
            ]
        )
    head = ["worst: M x N x K", "ratio (p20-p80)", "torch us", "ours us", "TFLOP/s", "GB/s"]
    return table([*head, "error", "kernel"], body)


def exceptions(rows: Sequence[Row], name: Any) -> str:
    lines = []
    for row in rows:
        if row["status"] == "failed":
            lines.append(f"- FAILED {name(row)}: {row['reason']}")
    skipped = [row for row in rows if row["status"] == "skipped"]
    if skipped:
        lines.append(f"- SKIPPED {len(skipped)}, from {name(skipped[0])}: {skipped[0]['reason']}")
    return "\n".join(lines)


def _closing(summary: Mapping[str, Any], ceilings: Mapping[str, float] | None) -> str:
    lines = []
    if ceilings:
        lines.append(
            f"Ceilings measured in this run: {ceilings['gbs']:.0f} GB/s (copy),"
            f" {ceilings['tflops']:.0f} TFLOP/s (torch.mm, 8192 cubed)."
        )
    counts = f"{summary['ok']} of {summary['shapes']} shapes"
    if summary["ok"]:
        lines.append(
            f"**Geomean {summary['geomean']:.3f} (goal {GOALS['geomean']:.2f}), worst"
            f" {summary['worst']:.2f} (goal {GOALS['worst']:.2f})** over {counts},"
            f" {summary['failed']} failed, {summary['skipped']} skipped."
        )
    else:
        lines.append(
            f"**Nothing measured**: {summary['failed']} failed, {summary['skipped']} skipped."
        )
    return "\n".join(lines)


def host_markdown(result: Mapping[str, Any]) -> str:
    return f"{heading(result)}\n\n{host_table(result['results'], other_side(result))}"


def host_table(rows: Sequence[Row], other: str) -> str:
    """CPU times of both sides, and what could not be measured."""
    body = []
    for row in measured(rows):
        torch_us, ours = row["us"]["torch"], row["us"][other]
        body.append(
            [
                row["case"],
                f"{torch_us['median']:.2f}",
                f"{ours['median']:.2f}",
                f"{ours['p20']:.2f}-{ours['p80']:.2f}",
                f"{row['ratio']:.2f}",
            ]
        )
    head = ["CPU time of a call", "torch us", "ours us", "p20-p80", "ratio"]
    parts = [table(head, body) if body else "", exceptions(rows, lambda row: row["case"])]
    return "\n\n".join(part for part in parts if part)


def markdown(result: Mapping[str, Any]) -> str:
    from . import (
        conv_report,
        fused_report,
        grouped_report,
        scaled_report,
    )  # which are made of this module's parts

    reports = {
        "gemm": gemm_markdown,
        "fused": fused_report.markdown,
        "scaled": scaled_report.markdown,
        "grouped": grouped_report.markdown,
        "conv": conv_report.markdown,
        "host": host_markdown,
    }
    return reports[result["benchmark"]](result)
