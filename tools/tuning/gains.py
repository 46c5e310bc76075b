"""Writes where our kernels are expected to beat torch's: cuda/torch/intercept_gains.h for enable(),
and python/cutwheel/inductor/measured.py for torch.compile (tools/tuning/fused_gains.py).

    python tools/tuning/gains.py            # writes them
    python tools/tuning/gains.py --check    # fails if they are not what benchmarks/results say

Figures are the medians of the suites mm and bmm against "torch", in bfloat16 on Hopper. Problems
fall into classes: layout, one matrix or a batch, and how many rows. A class is faster if at least
LEAST problems were measured, their geometric mean is at least GAIN, and four of five have a ratio
of LOSS or more. A problem that was measured itself goes by its own figure (the worst of several),
if it differs from its class by more than that.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import fused_gains

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
SOURCES = (
    "h200.json",
    "quick/h100.json",
    "quick/h100_drawn.json",
    "quick/h200_drawn.json",
)
HEADER = ROOT / "cuda" / "torch" / "intercept_gains.h"

LAYOUTS = {"mm": "tn", "dgrad": "tt", "wgrad": "nt", "scores": "tn", "values": "tt"}
ROWS = (1, 16, 64, 128, 512, 2048)
LEAST, GAIN, LOSS = 3, 1.02, 0.97


class Problem(NamedTuple):
    layout: str
    batch: int
    m: int
    n: int
    k: int


class Class(NamedTuple):
    layout: str
    is_batched: bool
    rows: int
    """at most; 0: any number"""


def class_of(problem: Problem) -> Class:
    rows = next((most for most in ROWS if problem.m <= most), 0)
    return Class(problem.layout, problem.batch > 1, rows)


def measured() -> dict[Problem, float]:
    """The ratio of torch's time to ours, the worst where a problem was measured more than once."""
    worst: dict[Problem, float] = {}
    for name in SOURCES:
        sections = json.loads((RESULTS / name).read_text())["sections"]
        for section in ("mm", "bmm"):
            for case in sections.get(section, {}).get("results", []):
                ratios = [r["median"] for r in case.get("ratios", []) if r["baseline"] == "torch"]
                if case["status"] != "ok" or not ratios:
                    continue
                layout, batch = LAYOUTS[case["group"]], case.get("batch", 1)
                problem = Problem(layout, batch, case["m"], case["n"], case["k"])
                worst[problem] = min(worst.get(problem, math.inf), *ratios)
    return worst


def is_faster(ratios: list[float]) -> bool:
    ordered = sorted(ratios)
    mean = math.exp(sum(map(math.log, ordered)) / len(ordered))
    return mean >= GAIN and ordered[len(ordered) // 5] >= LOSS


def header(figures: dict[Problem, float]) -> str:
    classes: defaultdict[Class, list[float]] = defaultdict(list)
    for problem, ratio in figures.items():
        classes[class_of(problem)].append(ratio)
    known = {key: is_faster(ratios) for key, ratios in classes.items() if len(ratios) >= LEAST}
    # A problem that its class tells as it was measured needs no line.
    exact = {
        problem: ratio >= GAIN
        for problem, ratio in figures.items()
        if known.get(class_of(problem)) is not (ratio >= GAIN)
        and not (known.get(class_of(problem)) and ratio >= LOSS)
    }
    text = {True: "true", False: "false"}
    class_lines = []
    for key in sorted(known, key=lambda c: (c.layout, c.is_batched, c.rows or math.inf)):
        ratios = sorted(classes[key])
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        class_lines.append(
            f"    {{'{key.layout[0]}', '{key.layout[1]}', {text[key.is_batched]}, {key.rows}, "
            f"{text[known[key]]}}},  // {len(ratios)} problems, mean {mean:.3f}, "
            f"a fifth up to {ratios[len(ratios) // 5]:.3f}"
        )
    exact_lines = [
        f"    {{'{p.layout[0]}', '{p.layout[1]}', {p.batch}, {p.m}, {p.n}, {p.k}, "
        f"{text[exact[p]]}}},  // {figures[p]:.3f}"
        for p in sorted(exact)
    ]
    return "\n".join(
        (
            "// Written by tools/tuning/gains.py, which has the rule, from benchmarks/results.",
            "// clang-format off",
            "#pragma once",
            "",
            "#include <cstdint>",
            "",
            "namespace cutwheel {",
            "",
            "enum class Measured { nothing, slower, faster };",
            "",
            "struct MeasuredClass {",
            "  char a, b;",
            "  bool is_batched;",
            "  std::int64_t rows;  // at most; 0: any number",
            "  bool is_faster;",
            "};",
            "",
            "struct MeasuredProblem {",
            "  char a, b;",
            "  std::int64_t batch, m, n, k;",
            "  bool is_faster;",
            "};",
            "",
            "// The first that holds a problem is its class. Ratios: torch's time to ours.",
            "constexpr MeasuredClass kMeasuredClasses[] = {",
            *class_lines,
            "};",
            "",
            "// Problems that differ from their class, or have none.",
            "constexpr MeasuredProblem kMeasuredProblems[] = {",
            *exact_lines,
            "};",
            "",
            f"constexpr std::int64_t kClassRows[] = {{{', '.join(map(str, ROWS))}}};",
            "constexpr int kMeasuredMajor = 9;  // compute capability of H100 and H200",
            "",
            "inline Measured measured_gain(char a, char b, std::int64_t batch, std::int64_t m,",
            "                              std::int64_t n, std::int64_t k, int major) {",
            "  if (major != kMeasuredMajor) return Measured::nothing;",
            "  for (MeasuredProblem const& p : kMeasuredProblems) {",
            "    if (p.m == m && p.n == n && p.k == k && p.batch == batch &&",
            "        p.a == a && p.b == b) {",
            "      return p.is_faster ? Measured::faster : Measured::slower;",
            "    }",
            "  }",
            "  std::int64_t rows = 0;",
            "  for (std::int64_t const most : kClassRows) {",
            "    if (m <= most) {",
            "      rows = most;",
            "      break;",
            "    }",
            "  }",
            "  for (MeasuredClass const& c : kMeasuredClasses) {",
            "    if (c.a == a && c.b == b && c.is_batched == (batch > 1) && c.rows == rows) {",
            "      return c.is_faster ? Measured::faster : Measured::slower;",
            "    }",
            "  }",
            "  return Measured::nothing;",
            "}",
            "",
            "}  // namespace cutwheel",
            "",
        )
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    options = parser.parse_args(arguments)
    texts = {HEADER: header(measured()), fused_gains.MODULE: fused_gains.module(is_faster)}
    stale = [path for path, text in texts.items() if path.read_text() != text]
    for path in stale:
        if options.check:
            name = path.relative_to(ROOT)
            print(f"{name} is not what benchmarks/results say: run tools/tuning/gains.py")
        else:
            path.write_text(texts[path])
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
