"""Tables of what several GPUs do, for the console and for docs/distributed.md. Needs no GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import performance, record, tables

FOLDER = record.FOLDER / record.SEVERAL
DOCUMENT = performance.ROOT / "docs" / "distributed.md"
NOTHING = "Nothing has been measured on several GPUs yet."

GROUPS = {
    "block": "Llama block, forward",
    "block_training": "Llama block, forward and backward",
    "block_launched": "Llama block, forward, as launched",
    "block_training_launched": "Llama block, forward and backward, as launched",
    "experts": "experts, forward",
    "experts_training": "experts, forward and backward",
    "all_gather": "`all_gather_linear`",
    "all_gather_gated": "`all_gather_gated_linear`",
    "reduce_scatter": "`linear_reduce_scatter`",
    "all_reduce": "all-reduce of NCCL",
}


# ---- the console
def summary(sections: Mapping[str, Mapping[str, Any]]) -> str:
    """A line for each ratio; the times of one call on the slowest GPU in microseconds."""
    body, notes = [], []
    for name, section in sections.items():
        for each in section["results"]:
            what = str(each.get("case") or f"{each['group']} {tables.shape_of(each)}")
            state = each["status"] if each["status"] != "ok" else ""
            shown = set()
            for ratio in each["ratios"]:
                ours, theirs = (each["sides"][ratio[side]] for side in ("side", "baseline"))
                shown |= {ratio["side"], ratio["baseline"]}
                names = f"{ratio['side']} to {ratio['baseline']}"
                times = [_us(ours), _us(theirs), _error(ours), _error(theirs)]
                body.append([f"{name} {what}", names, f"{ratio['median']:.3f}", *times, state])
            for side, found in each["sides"].items():
                if side not in shown:
                    cells = [_us(found), "", _error(found), ""]
                    body.append([f"{name} {what}", side, "", *cells, state])
            if words := each.get("ended") or each["reason"]:
                seconds = f" after {each['seconds']:.1f} s" if "seconds" in each else ""
                notes.append(f"- {each['status']} {name} {what}: {words}{seconds}")
    head = ["problem", "side", "ratio", "us", "baseline us", "error", "baseline error", ""]
    return "\n\n".join(filter(None, (tables.table(head, body, left=2), "\n".join(notes))))


def _us(side: Mapping[str, Any]) -> str:
    return f"{side['us']['median']:.1f}" if side.get("us") else "-"


def _error(side: Mapping[str, Any]) -> str:
    """NaN is null in JSON."""
    found = side["relative_error"]
    return "NaN" if found is None else f"{found:.2e}"


# ---- docs/distributed.md
def results(folder: Path = FOLDER) -> list[Mapping[str, Any]]:
    return [record.read(path) for path in sorted(folder.glob("*.json"))]


def figures(found: Sequence[Mapping[str, Any]]) -> str:
    """A table for each file: of each ratio a line."""
    parts = []
    for result in found:
        sections = [name for name in result["sections"] if name != "faults"]
        environments = [result["sections"][name]["environment"] for name in sections]
        commits: dict[str, dict[str, None]] = {}
        for env in environments:
            machine = f"{env['gpus']} x {env['gpu']}, driver {env['driver']}, torch {env['torch']}"
            machine += f", NCCL {env.get('nccl', '-')}"
            commits.setdefault(machine, {})[(env.get("commit") or "-")[:12]] = None
        origins = [
            f"{machine}, commit{'s' if len(these) > 1 else ''} {', '.join(these)}"
            for machine, these in commits.items()
        ]
        body = [line for name in sections for line in _lines(result["sections"][name]["results"])]
        head = ["", "sizes", "", "against", "ratio", "us", "against, us"]
        parts += ["; ".join(origins) + ":", tables.table(head, body, left=4)]
    return "\n\n".join(parts) or NOTHING


def _lines(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    body = []
    for row in rows:
        for ratio in row["ratios"]:
            ours, theirs = (row["sides"][ratio[side]] for side in ("side", "baseline"))
            what = GROUPS.get(row["group"], row["group"])
            sides = [what, tables.shape_of(row), ratio["side"], ratio["baseline"]]
            body.append([*sides, f"**{ratio['median']:.2f}**", _us(ours), _us(theirs)])
    return body


def document(text: str, found: Sequence[Mapping[str, Any]]) -> str:
    """docs/distributed.md with its figures written anew."""
    return performance.between_marks(text, figures(found), DOCUMENT.name)


def write() -> Path:
    DOCUMENT.write_text(document(DOCUMENT.read_text(), results()))
    return DOCUMENT
