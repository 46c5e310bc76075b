"""The section of docs/performance.md on the kernels of Ampere and Ada: their PTX, measured on a
newer GPU."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import record, tables

PATH = record.FOLDER / "ampere" / "h100_ptx.json"
SUCCESSION = record.FOLDER / "ampere" / "h100_native.json"
"""CUTLASS's kernels with those tiles, and those of our own that took their place"""

TEXT = """\
The PTX of these kernels was measured on an {gpu}, since none of their own GPUs was at hand. It
runs there by mma.sync, and is compared with what mma.sync reaches and with Triton's kernels for
the same targets: the usual matmul with the fastest of 35 configurations (tiles of 16 to 256, 3
to 5 stages, no split-K), compiled by Triton for sm80 (fp8: sm89). Both went through one ptxas,
and were timed in one run with the clock of this page. Shared memory was padded until no more
threadblocks ran on an SM than on an A100, or on Ada. So tiles, stages and the code are compared;
clocks, caches, bandwidth and the number of SMs are an H100's. **For their own chips these
figures are estimates.**

{origin}. Problems are 1 to 8192 rows times the weights (N x K) {weights}. Ratios are Triton's
time over that of the plan that dispatch chooses, whose cost model was fitted to these problems;
"best plan" is the fastest that it had to choose from. The kernels were CUTLASS's classes; those
of int8 and fp8 leave out the scales, as Triton's do. Kernels of our own with the same tiles have
taken their place since: [the last table](#own-kernels-in-the-place-of-cutlasss) compares both."""

PEAK = """\
The share is that of {peaks} TFLOP/s: mma.sync alone, in registers, in the same run. It is the
geometric mean over at least 2048 rows; a plain kernel of fewer rows waits for memory."""

SMALL = """\
With 16 rows the kernels stay behind. A step is of 128 bytes of K at most, Triton's fastest there
are of 256 and 512 (with our own kernels, 256 gain nothing). Ratios by rows, bfloat16,
x @ weight.T, as many threadblocks as on an A100:"""

FP8 = """\
Hopper has no fp8 mma.sync: its code converts to float16 first. There the kernels of Ada are at
{geomean:.2f} of Triton's speed (geometric mean of {count} problems; worst {worst:.2f}), which
says nothing of a GPU that has the instruction. Their tiles are those of int8."""

STREAM_K = """\
CUTLASS's stream-K was measured beside these plans, five of its tiles with their workspace
cleared in every call. In {count} problems it takes {worse:.0%} more time than the best plan
without (geometric mean). It wins in {wins}, by up to {most:.0%}: all but one are of 1152 x 4304,
whose K no split-K divides and whose tiles fill little more than a wave. It is not in the wheel."""

OWN = """\
CUTLASS's time over ours, of kernels with the same tile, warps, stages and epilogue: the fastest of
each problem, and all of them. Again by their PTX, of two wheels, one after the other on one GPU.
{origin}."""

TITLES = {
    ("bf16", "tnt"): "bfloat16, x @ weight.T",
    ("bf16", "ttt"): "bfloat16, x @ weight",
    ("tf32", "tnt"): "TF32, x @ weight.T",
    ("int8", "tnt"): "int8, x @ weight.T",
}
RESIDENCY = {"a100": "A100", "ada": "Ada", "h100": "H100"}

Problem = Mapping[str, Any]


def us_of(problem: Problem, plan: str, residency: str) -> float:
    """With as many threadblocks on an SM as there; without a time of its own that of the H100"""
    own = problem.get(f"us_{residency}", {})
    return float(own.get(plan, problem["us"][plan]))


def ratio(problem: Problem, residency: str) -> float:
    """Triton's time over that of the chosen plan"""
    chosen = us_of(problem, problem["chosen"][residency], residency)
    return float(problem["triton"][residency][1]) / chosen


def shape(problem: Problem) -> str:
    return f"{problem['m']} x {problem['n']} x {problem['k']}"


def section(path: Path = PATH) -> list[str]:
    """Paragraphs and tables, in Markdown"""
    data = json.loads(path.read_text(encoding="utf-8"))
    succession = json.loads(SUCCESSION.read_text(encoding="utf-8"))
    problems = [p for p in data["problems"] if "chosen" in p]
    weights = dict.fromkeys(f"{p['n']} x {p['k']}" for p in problems)
    return [
        "## Ampere and Ada",
        TEXT.format(gpu=data["gpu"], origin=_origin(data), weights=", ".join(weights)),
        _table(problems, data["peak_tflops"]),
        PEAK.format(
            peaks=", ".join(f"{name} {value:g}" for name, value in data["peak_tflops"].items())
        ),
        SMALL,
        _by_rows([p for p in problems if (p["dtype"], p["layout"]) == ("bf16", "tnt")]),
        _fp8([p for p in problems if p["dtype"] == "fp8"]),
        _stream_k(data["exploration"]),
        "### Own kernels in the place of CUTLASS's",
        OWN.format(origin=_origin(succession)),
        _own(succession["us"]),
    ]


def _origin(data: Mapping[str, Any]) -> str:
    keys = [("", "gpu"), ("driver", "driver"), ("torch", "torch"), ("triton", "triton")]
    keys += [("CUDA", "cuda"), ("commit", "commit"), ("", "date")]
    return ", ".join(f"{name} {data[key]}".strip() for name, key in keys if key in data)


def _own(kinds: Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]) -> str:
    """By kind and problem, a kernel's time as CUTLASS's and as our own"""
    body = []
    for kind, problems in kinds.items():
        best = [
            min(old for old, _ in kernels.values()) / min(own for _, own in kernels.values())
            for kernels in problems.values()
        ]
        each = [old / own for kernels in problems.values() for old, own in kernels.values()]
        body.append(
            [
                kind,
                str(len(best)),
                f"**{statistics.geometric_mean(best):.2f}**",
                f"{min(best):.2f}",
                str(len(each)),
                f"{statistics.geometric_mean(each):.2f}",
                f"{min(each):.2f}",
            ]
        )
    head = ["", "problems", "fastest over fastest", "worst", "kernels", "same over same", "worst"]
    return tables.table(head, body)


def _table(problems: Sequence[Problem], peaks: Mapping[str, float]) -> str:
    body = []
    for (dtype, layout), title in TITLES.items():
        rows = [p for p in problems if (p["dtype"], p["layout"]) == (dtype, layout)]
        for residency, name in RESIDENCY.items():
            ratios = [ratio(p, residency) for p in rows]
            worst = min(range(len(rows)), key=ratios.__getitem__)
            shares = [
                2e-6 * p["m"] * p["n"] * p["k"] / us_of(p, p["chosen"][residency], residency)
                for p in rows
                if p["m"] >= 2048
            ]
            best = [
                us_of(p, p["chosen"][residency], residency) / _best_us(p, residency) for p in rows
            ]
            body.append(
                [
                    title if residency == "a100" else "",
                    name,
                    str(len(rows)),
                    f"**{statistics.geometric_mean(ratios):.3f}**",
                    f"{ratios[worst]:.2f}, {shape(rows[worst])}",
                    str(sum(r >= 1 for r in ratios)),
                    f"{1 / statistics.geometric_mean(best):.3f}",
                    f"{statistics.geometric_mean(shares) / peaks[dtype]:.2f}",
                ]
            )
    head = ["", "threadblocks on an SM as on", "problems", "geometric mean", "worst", "ahead"]
    return tables.table([*head, "of the best plan", "share of mma.sync"], body, left=2)


def _best_us(problem: Problem, residency: str) -> float:
    """Time of the fastest plan that dispatch could choose"""
    return min(us_of(problem, plan, residency) for plan in problem["plans"][residency])


def _by_rows(problems: Sequence[Problem]) -> str:
    rows = sorted({p["m"] for p in problems})
    means = [
        statistics.geometric_mean([ratio(p, "a100") for p in problems if p["m"] == m]) for m in rows
    ]
    head = ["rows", *map(str, rows)]
    return tables.table(head, [["geometric mean", *(f"{mean:.2f}" for mean in means)]])


def _fp8(problems: Sequence[Problem]) -> str:
    ratios = [ratio(p, "ada") for p in problems]
    return FP8.format(
        geomean=statistics.geometric_mean(ratios), count=len(ratios), worst=min(ratios)
    )


def _stream_k(exploration: Sequence[Problem]) -> str:
    ratios = [p["stream_k"] / p["without"] for p in exploration if "stream_k" in p]
    wins = [r for r in ratios if r < 1]
    return STREAM_K.format(
        count=len(ratios),
        worse=statistics.geometric_mean(ratios) - 1,
        wins=len(wins),
        most=1 / min(wins) - 1,
    )
