"""Asks the library for its choice on GPUs that are not here."""

from __future__ import annotations

import functools
import json
import os
from dataclasses import dataclass
from typing import Any

import pytest
import torch

pytest.importorskip("cutwheel", reason="needs the built package (make test builds it)")

# `make test KERNELS=...` says so: a narrow build cannot serve every GPU.
needs_all = pytest.mark.skipif(
    bool(os.environ.get("CUTWHEEL_NARROW")),
    reason="the built package holds a selection of the declared kernels",
)

# As the library calls them.
F16, BF16, F32, TF32, E4M3, E5M2, S8, S32 = (
    *("f16", "bf16", "f32", "tf32"),
    *("e4m3", "e5m2", "s8", "s32"),
)
ROW, COLUMN = "t", "n"
NONE, VECTOR, MATRIX = "none", "row", "matrix"  # C
A1X128_B128X128, A1X128_B1X128 = "1x128_128x128", "1x128_1x128"  # scales
ROWS, K = "rows", "k"  # grouping
FPROP, DGRAD, WGRAD = "fprop", "dgrad", "wgrad"  # the direction of a convolution


@dataclass(frozen=True)
class Gpu:
    """Data-sheet figures."""

    major: int
    minor: int
    sms: int
    shared_memory: int
    bandwidth: float
    clock: float


A100 = Gpu(8, 0, 108, 163 * 1024, 2039, 1.41)
RTX3090 = Gpu(8, 6, 82, 99 * 1024, 936, 1.70)
L40S = Gpu(8, 9, 142, 99 * 1024, 864, 2.52)
# Its bandwidth is that of no GPU, so that no table of measurements in the wheel is for it: what is
# asked about it is the cost model. 4917 is what the driver of an H200 says.
H200 = Gpu(9, 0, 132, 227 * 1024, 5200, 1.98)
B200 = Gpu(10, 0, 148, 227 * 1024, 8000, 1.85)
RTX5090 = Gpu(12, 0, 170, 99 * 1024, 1792, 2.41)
V100 = Gpu(7, 0, 80, 96 * 1024, 900, 1.53)


@functools.cache
def addends() -> dict[str, str]:
    """The addend of each epilogue that gemm takes."""
    return {row["name"]: row["addend"] for row in json.loads(torch.ops.cutwheel._epilogues())}


def request_text(m: int, n: int, k: int, options: dict[str, Any]) -> str:
    """As in a table of measurements."""
    a = options.get("a", BF16)
    grouping, direction = options.get("grouping", "none"), options.get("direction", "none")
    op = "scaled_mm" if a in (E4M3, E5M2, S8) else "gemm"
    if grouping != "none":
        op = "grouped_mm"
    if direction != "none":
        op = "conv2d"
    addend, epilogue = options.get("addend", NONE), options.get("epilogue", "")
    if epilogue:
        addend = addends().get(epilogue, "other")
    elif direction != "none":
        epilogue = "bias" if addend == VECTOR else "plain"
    groups = options.get("groups", 0)
    words = (
        *(op, a, options.get("b", a), options.get("d", F32 if a == TF32 else a)),
        options.get("layout_a", ROW) + options.get("layout_b", COLUMN),
        *(addend, epilogue or "-", int(options.get("fast_accum", False))),
        *(options.get("scales", "none"), int(options.get("extents_aligned", True))),
        *(m, n, k, groups if grouping != "none" else options.get("batch", 1)),
        *(grouping, groups, direction, options.get("taps", 1), options.get("step", 1), 1),
        options.get("padded_filter", "none"),
        options.get("unaligned", "-"),
    )
    return " ".join(map(str, words))


def explain(gpu: Gpu, m: int, n: int, k: int, **options: Any) -> dict[str, Any]:
    text = torch.ops.cutwheel._explain_for_gpu(
        *(gpu.major, gpu.minor, gpu.sms, gpu.shared_memory, gpu.bandwidth, gpu.clock),
        request_text(m, n, k, options),
        options.get("rectangles", 0),
        *options.get("shared_pixels", (0, 0)),
    )
    found: dict[str, Any] = json.loads(text)
    return found


def chosen(gpu: Gpu, m: int, n: int, k: int, **options: Any) -> dict[str, Any]:
    plans = explain(gpu, m, n, k, **options)["plans"]
    assert plans, "no row serves this GPU"
    return plans[0]
