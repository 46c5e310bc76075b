"""What gains.py writes for torch.compile: python/cutwheel/inductor/measured.py.

Inductor runs torch's GEMM or cuDNN's convolution and one kernel of its own for all that follows.
Few benchmarks have it as a baseline, so its time is put together: what torch took for the GEMM
alone, and the bytes that Inductor's kernel moves and ours does not, at the bandwidth of the GPU's
data sheet. No kernel reaches that, and the launch costs nothing here. If eager torch, which moves
as much and more, took less, its time counts.

    activation      z is read, the result is written
    residual        the residual is read as well
    gated           two GEMMs, whose results are read; the result is written
    convolution     z and the residual are read, the result is written

That holds where the result goes into kernels that are called as they are. If it goes into one of
Inductor's as well ("shared"), that kernel computes and writes it, and need not read it: a pass
less. If it goes there alone ("goes on"), it is never written: another less.

"bias" and fp8 products, by their scales and with fast accumulation or without, are torch's own
times. A class is a kind, and how many rows; of convolutions the filter, and whether it is strided.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tomllib

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
MODULE = ROOT / "python" / "cutwheel" / "inductor" / "measured.py"
CHIPS = ROOT / "benchmarks" / "report" / "chips.toml"
# With the chip, as CHIPS calls it.
GEMMS = {
    "h200.json": "h200",
    "h100_80gb_hbm3.json": "h100_80gb_hbm3",
    "quick/h100_drawn_3.json": "h100_80gb_hbm3",
}
CONVOLUTIONS = {
    "h200.json": "h200",
    "h100_80gb_hbm3.json": "h100_80gb_hbm3",
    "quick/h100_drawn_3.json": "h100_80gb_hbm3",
}
VOLUMES = {"h100_80gb_hbm3.json": "h100_80gb_hbm3"}
ELEMENT = 2  # bytes of bfloat16
ROWS = (64, 512, 2048)
LEAST = 3
# Where a result goes, as python/cutwheel/inductor/consumers.py has it: each saves Inductor's kernel
# one pass more.
ENDS = ("", ", shared", ", goes on")

Figures = dict[tuple[str, Any], list[float]]


def _results(sections: dict[str, Any], section: str, group: str) -> Iterator[dict[str, Any]]:
    for case in sections.get(section, {}).get("results", []):
        if case.get("group") == group and case["status"] == "ok":
            yield case


def _us(case: dict[str, Any], *sides: str) -> float | None:
    """The shortest time of some providers."""
    times = [case["sides"][side]["us"]["median"] for side in sides if side in case["sides"]]
    return min(times, default=None)


def rows_of(m: int) -> int:
    return next((most for most in ROWS if m <= most), 0)


def _of_gemms(sections: dict[str, Any], gbs: float, figures: Figures) -> None:
    alone: dict[tuple[int, int, int], float] = {}
    for case in _results(sections, "mm", "mm"):
        time = _us(case, "torch", "torch, cublaslt")
        if time is not None:
            alone[case["m"], case["n"], case["k"]] = time
    for case in _results(sections, "addmm", "addmm"):
        ours, torchs = _us(case, "cutwheel"), _us(case, "torch")
        if ours and torchs:
            figures["bias", rows_of(case["m"])].append(torchs / ours)
    for kind, group, side, gemms, passes in (
        ("activation", "bias_gelu", "cutwheel gelu", 1, 2),
        ("residual", "bias_residual", "cutwheel", 1, 3),
        ("gated", "gated_silu", "cutwheel", 2, 3),
    ):
        for case in _results(sections, "fused", group):
            m, n, k = (case[name] for name in "mnk")
            ours, torchs = _us(case, side), alone.get((m, n, k))
            eager = _us(case, "eager")
            if ours and torchs and eager:
                once = m * n * ELEMENT / (gbs * 1e3)
                alone_us = min(gemms * torchs + passes * once, eager)
                for saved, end in enumerate(ENDS):
                    figures[kind + end, rows_of(m)].append((alone_us - saved * once) / ours)


def _of_scaled(sections: dict[str, Any], gbs: float, figures: Figures) -> None:
    for group, suffix in (("fp8", ""), ("fp8_fast", ", fast")):
        for case in _results(sections, "scaled", group):
            for recipe in ("tensorwise", "rowwise"):
                ours, torchs = (_us(case, f"{side} {recipe}") for side in ("cutwheel", "torch"))
                if ours and torchs:
                    figures[recipe + suffix, rows_of(case["m"])].append(torchs / ours)


def filter_of(r: int, s: int, stride: int) -> tuple[str, bool]:
    """A class of convolutions: of one pixel, of 3x3 or another filter; whether it is strided."""
    taps = {(1, 1): "1x1", (3, 3): "3x3"}.get((r, s), "other")
    return taps, stride > 1


def _of_convolutions(sections: dict[str, Any], gbs: float, figures: Figures) -> None:
    alone: dict[tuple[int, ...], float] = {}
    for kind, group in (("fprop", "fprop"), ("dgrad", "dgrad"), ("wgrad", "wgrad")):
        for case in _results(sections, "conv", group):
            ours, torchs = _us(case, "cutwheel"), _us(case, "torch")
            if not ours or not torchs:
                continue
            shape = tuple(case["shape"])
            figures[kind, filter_of(*shape[5:8])].append(torchs / ours)
            if kind == "fprop":
                alone[shape] = torchs
    for case in _results(sections, "conv", "fused"):
        ours, torchs = _us(case, "cutwheel"), alone.get(tuple(case["shape"]))
        eager = _us(case, "eager")
        if ours and torchs and eager:
            n, _, h, w, channels, r, s, stride, padding, dilation = case["shape"]
            pixels = n * math.prod(
                (size + 2 * padding - dilation * (taps - 1) - 1) // stride + 1
                for size, taps in ((h, r), (w, s))
            )
            once = pixels * channels * ELEMENT / (gbs * 1e3)
            alone_us = min(torchs + 3 * once, eager)
            for saved, end in enumerate(ENDS):
                key = f"convolution{end}", filter_of(r, s, stride)
                figures[key].append((alone_us - saved * once) / ours)


def _of_volumes(sections: dict[str, Any], gbs: float, figures: Figures) -> None:
    """3x3x3 without strides; what follows a convolution was measured for images alone."""
    for kind in ("fprop", "dgrad", "wgrad"):
        for case in _results(sections, "volumes", f"volume_{kind}"):
            ours, torchs = _us(case, "cutwheel"), _us(case, "torch")
            if ours and torchs:
                figures[kind, ("3x3x3", False)].append(torchs / ours)


def figures() -> Figures:
    """The ratios of Inductor's time to ours, by kind and class."""
    found: Figures = defaultdict(list)
    rates = {name: chip["gbs"] for name, chip in tomllib.loads(CHIPS.read_text()).items()}
    for add, sources in (
        (_of_gemms, GEMMS),
        (_of_scaled, GEMMS),
        (_of_convolutions, CONVOLUTIONS),
        (_of_volumes, VOLUMES),
    ):
        for name, chip in sources.items():
            sections = json.loads((RESULTS / name).read_text())["sections"]
            add(sections, rates[chip], found)
    return found


def _mean(ratios: list[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def module(is_faster: Callable[[list[float]], bool]) -> str:
    """The text of the module.

    Args:
        is_faster: the rule, of the ratios of a class
    """
    gemms, convolutions = [], []
    known = {key: sorted(ratios) for key, ratios in figures().items() if len(ratios) >= LEAST}
    for (kind, where), ratios in sorted(
        known.items(), key=lambda item: (item[0][0], str(item[0][1]))
    ):
        note = (
            f"  # {len(ratios)} problems, mean {_mean(ratios):.3f}, "
            f"a fifth up to {ratios[len(ratios) // 5]:.3f}"
        )
        if isinstance(where, int):
            gemms.append(f'    ("{kind}", {where}): {is_faster(ratios)},{note}')
        else:
            taps, strided = where
            convolutions.append(f'    ("{kind}", "{taps}", {strided}): {is_faster(ratios)},{note}')
    return "\n".join(
        (
            '"""Where kernels are expected to be faster than what Inductor would run.',
            "",
            "Written by tools/tuning/gains.py from benchmarks/results. Ratios: Inductor's time to",
            "ours; how its times were found is in tools/tuning/fused_gains.py.",
            '"""',
            "",
            f"ROWS = {ROWS}",
            "MAJOR = 9",
            '"""compute capability of H100 and H200, which were measured"""',
            "",
            "# Kind and number of rows, at most; 0: any number.",
            "GEMMS = {",
            *gemms,
            "}",
            "",
            "# Kind, filter, and whether it is strided.",
            "CONVOLUTIONS = {",
            *convolutions,
            "}",
            "",
        )
    )
