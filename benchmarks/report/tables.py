"""Tables from the sections of a results file. Needs no GPU."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from cutwheel.tuning.shapes import Conv

from ..problems import Problem, Transposed, Volume

Row = Mapping[str, Any]
Line = dict[str, Any]
BEST = "torch's best"  # of the baselines that compute the same, shape by shape
OWN = ("overhead",)  # groups that compare cutwheel with itself
STATES = ("ok", "failed", "skipped")


def table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """left: so many columns are text, the others numbers"""
    lines = [head, ["---"] * left + ["---:"] * (len(head) - left), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


# ---- rows
def measured(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if row["status"] == "ok"]


def is_drawn(row: Row) -> bool:
    """Whether its shape was drawn at random; "held_out" is what older files call that."""
    return bool(row.get("drawn") or row.get("held_out"))


def label(row: Row) -> str:
    """The group whose ratios are averaged; quantisation is averaged by recipe."""
    return f"quantize {row['recipe']}" if row["group"] == "quantize" else str(row["group"])


def shape_of(row: Row) -> str:
    if "input" in row:
        return " x ".join(map(str, row["input"]))
    for field, kind in (("shape", Conv), ("volume", Volume), ("transposed", Transposed)):
        if field in row:
            return str(Problem(row["group"], kind(*row[field]))).removeprefix(f"{row['group']} ")
    text = " x ".join(str(row[extent]) for extent in "mnk" if row[extent])
    return f"{row['groups']} groups, {text}, {row['skew']}" if "groups" in row else text


def name_of(row: Row) -> str:
    return f"{label(row)} {shape_of(row)}"


def best_of(row: Row) -> list[dict[str, Any]]:
    """For each of our providers its ratio to the fastest baseline, which `mode` names."""
    found: dict[str, dict[str, Any]] = {}
    if row["group"] in OWN:
        return []
    for ratio in row["ratios"]:
        best = found.get(ratio["side"])
        if "form" not in ratio and (best is None or ratio["median"] < best["median"]):
            found[ratio["side"]] = {**ratio, "baseline": BEST, "mode": ratio["baseline"]}
    return list(found.values())


# ---- lines: a group, one of our providers and a baseline, over all shapes
def lines(rows: Sequence[Row]) -> list[Line]:
    """The geometric mean of each; torch's best first, where it is not always the same baseline."""
    found: dict[tuple[str, str, str], list[tuple[Row, Mapping[str, Any]]]] = {}
    for row in measured(rows):
        for ratio in (*best_of(row), *row["ratios"]):
            key = (label(row), ratio["side"], ratio["baseline"])
            found.setdefault(key, []).append((row, ratio))
    alike: dict[tuple[str, str], int] = {}  # baselines that compute the same
    for (group, provider, baseline), members in found.items():
        if baseline != BEST and "form" not in members[0][1]:
            alike[group, provider] = alike.get((group, provider), 0) + 1
    alone = {key for key in found if key[2] == BEST and alike[key[:2]] == 1}
    order = list(dict.fromkeys(key[:2] for key in found))
    keys = sorted(found, key=lambda key: (order.index(key[:2]), key[2] != BEST))
    return [_line(key, found[key]) for key in keys if key not in alone]


def _line(key: tuple[str, str, str], members: Sequence[tuple[Row, Mapping[str, Any]]]) -> Line:
    group, provider, baseline = key
    row, worst = min(members, key=lambda member: float(member[1]["median"]))
    per_m: dict[str, list[float]] = {}
    for member, ratio in sorted(members, key=lambda pair: int(pair[0]["m"])):
        per_m.setdefault(str(member["m"]), []).append(ratio["median"])
    ratios = [ratio["median"] for _, ratio in members]
    return {
        "group": group,
        "side": provider,
        "baseline": baseline,
        "form": members[0][1].get("form"),
        "shapes": len(members),
        "geomean": statistics.geometric_mean(ratios),
        "worst": worst["median"],
        "worst_shape": shape_of(row),
        "ahead": sum(ratio >= 1.0 for ratio in ratios),
        "per_m": {m: statistics.geometric_mean(values) for m, values in per_m.items()},
    }


def best_lines(rows: Sequence[Row]) -> list[Line]:
    """For each of our providers, the line against torch's best or against its only baseline."""
    found: dict[tuple[str, str], Line] = {}
    for line in lines(rows):
        if line["form"] is None:
            found.setdefault((line["group"], line["side"]), line)
    return list(found.values())


def counts(rows: Sequence[Row]) -> str:
    states = ", ".join(f"{sum(row['status'] == state for row in rows)} {state}" for state in STATES)
    alone = sum(not row["ratios"] for row in measured(rows))
    return f"{len(rows)} cases: {states}" + (f"; {alone} without a baseline" if alone else "")


def exceptions(rows: Sequence[Row], name: Callable[[Row], str] = name_of) -> str:
    """Failed and skipped cases, and baselines that are not there; alike ones in one line."""
    found = [f"- FAILED {name(row)}: {row['reason']}" for row in rows if row["status"] == "failed"]
    alike: dict[str, list[str]] = {}
    for row in rows:
        if row["status"] == "skipped":
            # How much memory there was differs from case to case.
            reason = "out of memory" if "out of memory" in row["reason"] else row["reason"]
            alike.setdefault(f"SKIPPED {reason}", []).append(name(row))
        elif row["status"] == "ok" and row["reason"]:
            alike.setdefault(f"WITHOUT {label(row)}: {row['reason']}", []).append(shape_of(row))
    found += [
        f"- {reason} ({len(names)} shapes, such as {names[0]})" for reason, names in alike.items()
    ]
    return "\n".join(found)


# ---- a section, for the console
def heading(name: str, section: Mapping[str, Any]) -> str:
    return f"## {name} {section.get('dtype', '')}".rstrip() + f"\n\n{origin(section)}"


def origin(section: Mapping[str, Any], with_date: bool = True) -> str:
    env = section["environment"]
    build = env.get("cutwheel") or {}
    return (
        f"{env['gpu']}, driver {env['driver']}, torch {env['torch']}, CUDA {env['cuda']},"
        f" cutwheel {build.get('version', '-')}, commit {(env.get('commit') or '-')[:12]}"
        + (f", {env['date']}" if with_date else "")
    )


def markdown(name: str, section: Mapping[str, Any]) -> str:
    parts = [heading(name, section)]
    if name == "host":
        return "\n\n".join([*parts, host_table(section["results"], str(section["candidate"]))])
    if name == "cold":
        return "\n\n".join([*parts, cold_table(section["results"])])
    rows = section["results"]
    for title, some in (
        ("", [row for row in rows if not is_drawn(row)]),
        ("Drawn at random:", [row for row in rows if is_drawn(row)]),
    ):
        if some:
            found = lines(some)
            parts += [title, lines_table(found), summary_table({"all groups": some})]
            parts += [per_m_table(found), _worst(some)]
    if section.get("host"):
        parts.append(host_table(section["host"], str(section["candidate"])))
    ceilings = section.get("ceilings")
    if ceilings:
        parts.append(
            f"Measured in this run: {ceilings['gbs']:.0f} GB/s (copy),"
            f" {ceilings['tflops']:.0f} TFLOP/s (torch.mm, 8192 cubed)."
        )
    parts += [compile_note(section), exceptions(rows), f"**{counts(rows)}.**"]
    return "\n\n".join(part for part in parts if part)


def _title(line: Line) -> str:
    form = f" ({line['form']})" if line["form"] else ""
    return f"{line['group']}: {line['side']} to {line['baseline']}{form}"


def lines_table(found: Sequence[Line]) -> str:
    body = [
        [
            _title(line),
            str(line["shapes"]),
            f"**{line['geomean']:.3f}**",
            f"{line['worst']:.2f} at {line['worst_shape']}",
            str(line["ahead"]),
        ]
        for line in found
    ]
    head = ["ratio: time of the baseline / ours", "shapes", "geomean", "worst", "ahead"]
    return table(head, body) if body else ""


def summary_table(some: Mapping[str, Sequence[Row]]) -> str:
    """By name: ratios to torch's best of each problem and provider of ours, all groups together."""
    body = []
    for name, rows in some.items():
        ratios = [(best["median"], row) for row in measured(rows) for best in best_of(row)]
        if len(ratios) < 2:
            continue
        values = [value for value, _ in ratios]
        p5 = statistics.quantiles(values, n=20, method="inclusive")[0]
        worst, row = min(ratios, key=lambda ratio: ratio[0])
        mean, ahead = statistics.geometric_mean(values), sum(value >= 1.0 for value in values)
        shown = [f"**{mean:.3f}**", f"{p5:.3f}", f"{worst:.2f} at {name_of(row)}", str(ahead)]
        body.append([name, str(len(values)), *shown])
    head = ["ratio to torch's best", "ratios", "geomean", "5th percentile", "worst", "ahead"]
    return table(head, body) if body else ""


def per_m_table(found: Sequence[Line], title: Callable[[Line], str] = _title) -> str:
    """A column for each M; empty if there are many, as shapes drawn at random share few."""
    ms = sorted({int(m) for line in found for m in line["per_m"]})
    if not 1 < len(ms) <= 12:
        return ""
    body = [
        [
            title(line),
            *(f"{line['per_m'][str(m)]:.2f}" if str(m) in line["per_m"] else "" for m in ms),
        ]
        for line in found
    ]
    return table(["geometric mean at M", *map(str, ms)], body)


def _worst(rows: Sequence[Row], count: int = 5) -> str:
    """The worst shapes of each of our providers, against torch's best."""
    found: dict[tuple[str, str], list[tuple[Row, Mapping[str, Any]]]] = {}
    for row in measured(rows):
        for ratio in best_of(row):
            found.setdefault((label(row), ratio["side"]), []).append((row, ratio))
    body = []
    for (_, provider), members in found.items():
        for row, ratio in sorted(members, key=lambda member: float(member[1]["median"]))[:count]:
            ours, theirs = row["sides"][provider], row["sides"][ratio["mode"]]
            work = f"{ours['tflops']:.0f}" if "tflops" in ours else "-"
            body.append(
                [
                    name_of(row),
                    provider,
                    f"{ratio['median']:.2f} ({ratio['p20']:.2f}-{ratio['p80']:.2f})",
                    ratio["mode"],
                    f"{theirs['us']['median']:.1f}",
                    f"{ours['us']['median']:.1f}",
                    work,
                    f"{ours['relative_error']:.1e}",
                    row["kernels"].get(provider) or "-",
                ]
            )
    head = ["worst", "side", "ratio (p20-p80)", "baseline", "us", "ours us", "TFLOP/s"]
    return table([*head, "error", "kernel"], body) if body else ""


def compile_note(section: Mapping[str, Any]) -> str:
    """How many cases have torch.compile among their baselines, and of how many it was asked."""
    found = section.get("compile")
    if not found:
        return ""
    text = (
        f"torch.compile({found['mode']}) is a baseline of {found['measured']} of {found['cases']}"
        f" cases; it was asked for at {found['asked']}"
    )
    if found.get("budget_seconds") is not None:
        text += f", {found['left_out']} left out by its {found['budget_seconds']:g} s"
    return text + "."


def host_table(rows: Sequence[Row], other: str) -> str:
    """CPU times of both providers, and what could not be measured."""
    body = []
    for row in measured(rows):
        torch_us, ours = row["us"]["torch"], row["us"][other]
        spread = f"{ours['p20']:.2f}-{ours['p80']:.2f}"
        times = [f"{torch_us['median']:.2f}", f"{ours['median']:.2f}", spread]
        body.append([row["case"], *times, f"{row['ratio']:.2f}"])
    head = ["CPU time of a call", "torch us", "ours us", "p20-p80", "ratio"]
    failed = exceptions([row for row in rows if row["status"] != "ok"], lambda row: row["case"])
    return "\n\n".join(part for part in (table(head, body) if body else "", failed) if part)


def cold_table(rows: Sequence[Row]) -> str:
    """First calls in fresh processes, and what could not be measured."""
    body = []
    for row in measured(rows):
        theirs, ours = row["ms"]["torch"], row["ms"]["cutwheel"]
        more = ours["context"] - theirs["context"]
        times = (theirs["first"], ours["import"], ours["first"], more)
        left = [f"{row['mib'][name]:.0f}" for name in ("torch", "cutwheel")]
        body.append([row["case"], *(f"{ms:.0f}" for ms in times), f"{row['ratio']:.2f}", *left])
    head = ["first call", "torch ms", "import cutwheel ms", "cutwheel ms", "context, more ms"]
    head += ["ratio", "torch MiB", "cutwheel MiB"]
    failed = exceptions([row for row in rows if row["status"] != "ok"], lambda row: row["case"])
    return "\n\n".join(part for part in (table(head, body) if body else "", failed) if part)
