"""Writes where our kernels are expected to beat torch's: cuda/torch/intercept/gains.h for enable(),
and python/cutwheel/inductor/measured.py for torch.compile (tools/tuning/fused_gains.py).

    python tools/tuning/gains.py            # writes them
    python tools/tuning/gains.py --check    # fails if they are not what benchmarks/results say

Figures are the medians of benchmarks against torch's own op, in bfloat16 or float8_e4m3fn, on
Hopper. cuDNN had measured its algorithms (torch.backends.cudnn.benchmark) before it was measured.
Problems fall into classes: a kind, such as an op with its layout or its scales, and how many rows.
A class is faster if at least LEAST problems were measured, their geometric mean is at least GAIN,
and four of five have a ratio of LOSS or more. A problem that was measured itself goes by its own
figure (the worst of several), if it differs from its class by more than that. A kind that no
benchmark has is in no class, and stays with torch; results that get it are used as they are.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import fused_gains

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
SOURCES = (
    "h200.json",
    "h100_80gb_hbm3.json",
    "quick/h100_drawn_3.json",
)
HEADER = ROOT / "cuda" / "torch" / "intercept" / "gains.h"

ROWS = (1, 16, 64, 128, 512, 2048)
LEAST, GAIN, LOSS = 3, 1.02, 0.97
FEW_CHANNELS = 8
EXTENTS = 14
"""of the problem with most of them, a convolution"""

# By the group of a benchmark, letters of A and B as names of kernels have them.
GEMMS = {
    "mm": {"mm": "tn", "dgrad": "tt", "wgrad": "nt"},
    "bmm": {"scores": "tn", "values": "tt"},
    "addmm": {"addmm": "tn"},
    "baddbmm": {"scores": "tn", "values": "tt"},
}
GROUPED = {"forward": "tn", "dgrad": "tt", "wgrad": "nt"}
SCALED = ("tensorwise", "rowwise", "1x128 x 128x128", "1x128 x 1x128")


class Problem(NamedTuple):
    kind: str
    rows: int
    """that its class is found by; 0: classes of this kind have any number"""
    extents: tuple[int, ...]
    """batch, M, N and K; groups, M, N and K; of a convolution N, C, H, W, Ko, R, S, then stride,
    padding and dilation along H and W, and groups"""


class Class(NamedTuple):
    kind: str
    rows: int
    """at most; 0: any number"""


def class_of(problem: Problem) -> Class:
    if problem.rows == 0:
        return Class(problem.kind, 0)
    return Class(problem.kind, next((most for most in ROWS if problem.rows <= most), 0))


def _gemm(section: str, case: dict[str, Any]) -> Iterator[tuple[Problem, str, str]]:
    layout = GEMMS[section].get(case["group"])
    if layout is not None:
        m, n, k = case["m"], case["n"], case["k"]
        yield (
            Problem(f"{section} {layout}", m, (case.get("batch", 1), m, n, k)),
            "cutwheel",
            "torch",
        )


def _scaled(case: dict[str, Any]) -> Iterator[tuple[Problem, str, str]]:
    m, n, k = case["m"], case["n"], case["k"]
    if case["group"] == "int_mm":
        yield Problem("_int_mm tn", m, (1, m, n, k)), "cutwheel", "torch"
    if case["group"] not in ("fp8", "fp8_fast", "blockwise"):
        return
    fast = " fast" if case["group"] == "fp8_fast" else ""
    for scales in SCALED:
        problem = Problem(f"_scaled_mm {scales}{fast}", m, (1, m, n, k))
        yield problem, f"cutwheel {scales}", f"torch {scales}"


def _grouped(case: dict[str, Any]) -> Iterator[tuple[Problem, str, str]]:
    group, groups = case["group"], case["groups"]
    t, n, k = case["m"], case["n"], case["k"]  # x [T, K], weights [G, N, K]
    rows = max(1, t // groups)
    if group in GROUPED:
        m, n, k = {"forward": (t, n, k), "dgrad": (t, k, n), "wgrad": (n, k, t)}[group]
        yield Problem(f"_grouped_mm {GROUPED[group]}", rows, (groups, m, n, k)), "cutwheel", "torch"
    elif group in ("fp8", "fp8_fast"):
        kind = "_scaled_grouped_mm rowwise" + (" fast" if group == "fp8_fast" else "")
        yield Problem(kind, rows, (groups, t, n, k)), "cutwheel", "torch"


def conv_kind(direction: str, extents: tuple[int, ...]) -> str:
    """direction: fprop, dgrad or wgrad"""
    _, c, _, _, k, r, s, *strides, _, _, _, _, groups = extents
    if groups > 1:
        what = "depthwise" if groups == c == k else "grouped"
    elif r * s == 1:
        what = "pointwise"
    else:
        what = "of few channels" if c <= FEW_CHANNELS else "dense"
    return f"convolution {direction} {what}, stride {'1' if set(strides) == {1} else '2 or more'}"


def _conv(case: dict[str, Any]) -> Iterator[tuple[Problem, str, str]]:
    direction = case["group"].removeprefix("depthwise_").removeprefix("grouped_")
    if direction in ("fprop", "dgrad", "wgrad"):
        *sizes, stride, padding, dilation, groups = (*case["shape"], 1)[:11]
        extents = (*sizes, *[stride] * 2, *[padding] * 2, *[dilation] * 2, groups)
        yield Problem(conv_kind(direction, extents), 0, extents), "cutwheel", "torch"


def _problems(section: str, case: dict[str, Any]) -> Iterator[tuple[Problem, str, str]]:
    """Problems of a case, with the names of the sides that are compared"""
    if section in GEMMS:
        yield from _gemm(section, case)
    elif section == "scaled":
        yield from _scaled(case)
    elif section == "grouped":
        yield from _grouped(case)
    elif section == "conv":
        yield from _conv(case)


def measured() -> dict[Problem, float]:
    """The ratio of torch's time to ours, the worst where a problem was measured more than once."""
    worst: dict[Problem, float] = {}
    for name in SOURCES:
        sections = json.loads((RESULTS / name).read_text())["sections"]
        for section, content in sections.items():
            if section == "conv" and name not in fused_gains.CONVOLUTIONS:
                continue
            for case in content.get("results", []):
                if case["status"] != "ok":
                    continue
                for problem, side, baseline in _problems(section, case):
                    for ratio in case.get("ratios", []):
                        if (ratio["side"], ratio["baseline"]) == (side, baseline):
                            worst[problem] = min(worst.get(problem, math.inf), ratio["median"])
    return worst


def geometric_mean(ratios: list[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def is_faster(ratios: list[float]) -> bool:
    ordered = sorted(ratios)
    return geometric_mean(ordered) >= GAIN and ordered[len(ordered) // 5] >= LOSS


def kinds_that_win() -> set[str]:
    """Kinds of which something is taken"""
    classes = classes_of(figures := measured())
    known = {
        key.kind for key, ratios in classes.items() if len(ratios) >= LEAST and is_faster(ratios)
    }
    return known | {problem.kind for problem, ratio in figures.items() if ratio >= GAIN}


def classes_of(figures: dict[Problem, float]) -> dict[Class, list[float]]:
    classes: defaultdict[Class, list[float]] = defaultdict(list)
    for problem, ratio in figures.items():
        classes[class_of(problem)].append(ratio)
    return classes


def header(figures: dict[Problem, float]) -> str:
    classes = classes_of(figures)
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
    for key in sorted(known, key=lambda c: (c.kind, c.rows or math.inf)):
        ratios = sorted(classes[key])
        mean, fifth = geometric_mean(ratios), ratios[len(ratios) // 5]
        class_lines.append(
            f'    {{"{key.kind}", {key.rows}, {text[known[key]]}}},'
            f"  // {len(ratios)} problems, mean {mean:.3f}, a fifth up to {fifth:.3f}"
        )
    exact_lines = [
        f'    {{"{p.kind}", {{{", ".join(map(str, p.extents))}}}, {text[exact[p]]}}},'
        f"  // {figures[p]:.3f}"
        for p in sorted(exact)
    ]
    return "\n".join(
        (
            "// Written by tools/tuning/gains.py, which has the rule, from benchmarks/results.",
            "// clang-format off",
            "#pragma once",
            "",
            "#include <array>",
            "#include <cstdint>",
            "#include <string_view>",
            "",
            "namespace cutwheel {",
            "",
            "enum class Measured { nothing, slower, faster };",
            "",
            "struct MeasuredClass {",
            "  std::string_view kind;",
            "  std::int64_t rows;  // at most; 0: any number",
            "  bool is_faster;",
            "};",
            "",
            "// Batch, M, N and K; groups, M, N and K; of a convolution N, C, H, W, Ko, R, S, then",
            "// stride, padding and dilation along H and W, and groups.",
            f"using MeasuredExtents = std::array<std::int64_t, {EXTENTS}>;",
            "",
            "struct MeasuredProblem {",
            "  std::string_view kind;",
            "  MeasuredExtents extents;",
            "  bool is_faster;",
            "};",
            "",
            "// Ratios: torch's time to ours.",
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
            f"constexpr std::int64_t kFewChannels = {FEW_CHANNELS};",
            "constexpr int kMeasuredMajor = 9;  // compute capability of H100 and H200",
            "",
            "// rows: that the class of the problem is found by; 0: its kind has one class.",
            "inline Measured measured_gain(std::string_view kind, std::int64_t rows,",
            "                              MeasuredExtents const& extents, int major) {",
            "  if (major != kMeasuredMajor) return Measured::nothing;",
            "  auto const verdict = [](bool is_faster) {",
            "    return is_faster ? Measured::faster : Measured::slower;",
            "  };",
            "  for (MeasuredProblem const& p : kMeasuredProblems) {",
            "    if (p.kind == kind && p.extents == extents) return verdict(p.is_faster);",
            "  }",
            "  std::int64_t most = 0;",
            "  for (std::int64_t const step : kClassRows) {",
            "    if (rows == 0 || rows > step) continue;",
            "    most = step;",
            "    break;",
            "  }",
            "  for (MeasuredClass const& c : kMeasuredClasses) {",
            "    if (c.kind == kind && c.rows == most) return verdict(c.is_faster);",
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
