"""Asks the library for its choice on GPUs that are not here."""

from __future__ import annotations

import json
from dataclasses import dataclass

import torch

# As the library numbers them.
F16, BF16, F32, TF32, E4M3, E5M2, S8, S32 = range(8)
ROW, COLUMN = 0, 1
NONE, VECTOR, MATRIX = 0, 1, 2  # the addend
A1X128_B128X128, A1X128_B1X128 = 1, 2  # scales
ROWS, K = 1, 2  # grouping
FPROP, DGRAD, WGRAD = 1, 2, 3  # the direction of a convolution


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


def explain(gpu: Gpu, m: int, n: int, k: int, **options: object) -> dict:
    a = options.get("a", BF16)
    text = torch.ops.cutwheel._explain_for_gpu(
        gpu.major,
        gpu.minor,
        gpu.sms,
        gpu.shared_memory,
        gpu.bandwidth,
        gpu.clock,
        a,
        options.get("d", F32 if a == TF32 else a),
        options.get("layout_a", ROW),
        options.get("layout_b", COLUMN),
        options.get("addend", NONE),
        options.get("extents_aligned", True),
        m,
        n,
        k,
        options.get("batch", 1),
        options.get("epilogue", ""),
        options.get("b", -1),
        options.get("fast_accum", False),
        options.get("scales", 0),
        options.get("grouping", 0),
        options.get("groups", 0),
        options.get("direction", 0),
        options.get("taps", 1),
        options.get("step", 1),
        options.get("rectangles", 0),
    )
    return json.loads(text)


def chosen(gpu: Gpu, m: int, n: int, k: int, **options: object) -> dict:
    plans = explain(gpu, m, n, k, **options)["plans"]
    assert plans, "no row serves this GPU"
    return plans[0]
