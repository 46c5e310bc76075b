#!/usr/bin/env python3
"""Fits the figures of dense, scaled and conv tiles in cuda/dispatch/tuning/calibration.toml.

    python -m cutwheel tune --exhaustive --op mm --op mm:bf16:dgrad ... --journal mm.jsonl
    python tools/tuning/calibrate.py mm.jsonl [more.jsonl ...] [--hold-out 4] [--write]

Journals hold the times of all plans of their problems. The fit minimises the time by which the plan
that the model chooses exceeds the best one. A soft minimum of the predictions chooses, so that the
excess can be differentiated. Errors of single times count a little, or figures would drift where
they decide nothing.

--hold-out N fits with N - 1 of N problems, N times, and reports what the model chooses for the
others: the figure to believe. These fits begin with computed figures, since those of the file may
have been fitted to the same problems; with --keep-limits they begin with the file's, to which
--prior draws them. The tool needs torch, and no GPU.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomllib
import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[2]
FIGURES = ROOT / "cuda/dispatch/tuning/calibration.toml"
BYTES = {"bf16": 2, "f16": 2, "f32": 4, "tf32": 4, "e4m3": 1, "e5m2": 1, "s8": 1, "s32": 4}
DENSE = ("sm90_persistent", "sm90_warpspecialized")
CONV = ("sm90_conv", "sm90_gather_conv", "sm90_row_conv")
GROUPED = "sm90_grouped"
# What kernels of convolutions put in front of the direction in the file: how they load.
LOADS = {"sm90_gather_conv": "gather_", "sm90_row_conv": "row_"}
LEAST_SHARPNESS = 1.5
# Microseconds of a step of 128x128x128 bytes at four fifths of the tensor cores' paper rate. Less
# would stand for a limit of memory, and be wrong wherever that does not rule.
LEAST_STEP = 0.8 * 0.28
REDUCE = ("reduce_us", "reduce_tb_per_s")
LIMITS = ("l2", "lone_l2", "sm", "paired", "dram", "sharpness", "split_lines", "beyond_us")
# Few of the problems that are drawn are large, and they take most of the time.
LARGE_US, LARGE_WEIGHT = 250.0, 3.0
# Constants of cuda/dispatch/cost_model.cpp: microseconds for 128x128 of our own tiles, by whether
# the epilogue reads a matrix and whether warpgroups take turns.
FUSED = {(False, False): 1.5, (False, True): 0.6, (True, False): 1.2, (True, True): 1.6}
STORED = {False: 0.8, True: 2.0}  # z besides, and no matrix is read
MATRIX_C, MATRIX_C_CUTLASS = 0.4, 1.03
SPARE_C, SPARE_C_CUTLASS = 1.0, 1.1  # of any tile, where a call leaves out the matrix C
SAME_LINE = 0.0035  # of a row of results, where a bias is read as a matrix
SAME_COLUMNS, FEW_COLUMNS = 0.015, 192  # of same_columns_us(): a threadblock and 64 elements of K
SINGLE_STEP = 1.4  # of the first of our own tiles, for 128x128, where K is one step
WIDE_RESIDUAL = 1.8  # of convolutions whose threads load it, for each 128x128 beyond the first
LONE_ROW = {192: 1.5, 256: 1.25}  # by columns, of wgrad at stride 1 with one row of tiles
WITHIN_TWO = 2.0  # of gathered loads, filters that begin within two sectors
SHARED_K = 1.15  # of clusters that share K, of 16 bits
NEEDLESS_GATHER = 1.15  # of gathered tiles whose rows two threadblocks share, of whole lines
NEEDLESS_HALF, MOST_CHANNELS = 1.6, 256  # of tiles whose K is 32 channels, and where it is not
NEEDLESS_MULTICAST = 1.3  # of our own tiles, where rows are whole lines
LATER_SUMS = 3.0  # of clusters of more than two that share K, before each tile behind the first
FEW_STEPS, HIDING = 0.74, 7  # of CUTLASS's tiles behind the first, for 128x128, where K is one step
LATER_TILE, HIDING_TILE = 1.0, 4  # of tiles behind the first where A is row-major, K one step
# Of a tile of 256 columns of fprop, and of dgrad without a stride: what so many steps of K hide.
WIDE_EPILOGUE, HIDING_WIDE, WIDE = 7.0, 12, 256

# Kind, tile M, N and bytes of K, ours, schedule, swap_ab, splits, columns, rows: as in the file.
Key = tuple[str, int, int, int, bool, str, bool, int, int, int]


def wide_kind_of(kernel: Mapping[str, Any]) -> str:
    """The kind of a dense kernel of 16 bits: by the dtype of its results, and by its layouts."""
    if kernel["d"] == "f32":
        return "wide_f32"
    layout = kernel["layout"]
    return "wide" if layout[1] == "n" else f"wide_{layout[:2]}t"


def has_multicast_figures(kernel: Mapping[str, Any]) -> bool:
    """Whether a tile whose threadblocks share operands has figures of its own."""
    return bool(kernel["swap_ab"]) or kernel["schedule"] == "pingpong"


def key_of(kernel: Mapping[str, Any], step: int = 1) -> Key:
    """The row of figures that a kernel has in common with others.

    Args:
        step: of a convolution, the product of its strides
    """
    m, n, k = kernel["tile"]
    size = BYTES[kernel["a"]]
    if kernel["family"] in CONV:
        loads = LOADS.get(kernel["family"], "")
        if step > 1 and kernel["direction"] == "dgrad":
            loads = "strided_"
        rest = kernel["schedule"], False, kernel["cluster"][2], 1, 1
        return loads + kernel["direction"], m, n, k * size, True, *rest
    kind = {"s8": "int8", "tf32": "tf32"}.get(kernel["a"]) or wide_kind_of(kernel)
    if kernel["a"] in ("e4m3", "e5m2"):
        kind = "fp8_fast" if kernel["fast_accum"] else "fp8"
    if kernel["scales"]:
        kind = "blocks_of_b" if kernel["scales"] == "1x128_128x128" else "columns_of_b"
    if kernel["family"] == "sm90_unaligned":
        kind = "unaligned"
    if kernel["family"] == GROUPED and BYTES[kernel["a"]] == 2:
        kind = f"grouped_{kernel['grouping']}"
    native = kernel["family"] in ("sm90_persistent", "sm90_unaligned", GROUPED)
    columns, rows, splits = kernel["cluster"]
    if kernel["family"] != "sm90_persistent" or not has_multicast_figures(kernel):
        columns = rows = 1  # those of the tile without multicast
    rest = kernel["schedule"], kernel["swap_ab"], splits, columns, rows
    return kind, m, n, k * size, native, *rest


@dataclass(frozen=True)
class Terms:
    """The terms of the cost model (cuda/dispatch/cost_model.cpp) for one plan, without figures."""

    tiles: float
    slots: float
    """threadblocks in flight at once"""
    k_tiles: float
    bytes: float
    fetched: tuple[float, float]
    lines: tuple[int, int]
    """index into split_lines, from 1 on; 0: rows are whole lines of 128 bytes"""
    is_lone: bool
    beyond: float
    """128 bytes of rows past the end, for each step"""
    factor: float
    added_us: float
    first_us: float = 0.0
    """of the first tile of a threadblock alone"""
    later_us: float = 0.0
    """of each tile behind it"""
    slower: float = 1.0
    """of all of it"""
    reduced: float = 0.0
    """bytes of the sums of split-K that its second kernel reads and writes; 0: there is none"""
    missed: float = 0.0
    """those that are not in L2"""
    streamed: float = 0.0
    """bytes of the weight that a tile reads and no other does; 0: others do"""
    longest: float = 0.0
    """k-tiles of the longest tile where these differ and are shared out evenly; else 0"""


def index_of_lines(length: int) -> int:
    """Of split_lines, for rows of so many bytes."""
    return next((i for i, x in enumerate((128, 64, 32)) if length % x == 0), 3)


def slots_of(kernel: Mapping[str, Any], sm_count: int) -> int:
    """Threadblocks in flight at once: SMs of a GPC that make no whole cluster stay idle."""
    cluster = math.prod(kernel["cluster"])
    return sm_count if cluster <= 2 else sm_count * 10 // 11 // cluster * cluster


def shared_pixels_of(job: str) -> tuple[int, int]:
    """Positions and taps of a row, as SharedPixels has them, of a job "conv2d:bf16:fprop N x ...".

    The layer has stride 1, as all that kernels with shared pixels take.
    """
    family, _, shape = job.rpartition(" ")
    n, _, h, w, _, r, s, _, padding, dilation, *_ = map(int, shape.split("x"))
    lines, rows = (s - 1) * dilation, h
    if family.split(":")[2].startswith("fprop"):
        rows = h + 2 * padding - (r - 1) * dilation
        w += 2 * padding - lines
    return n * rows * (w + lines), s


def conv_terms_of(
    kernel: Mapping[str, Any],
    request: Mapping[str, Any],
    splits: int,
    gpu: Mapping[str, Any],
    shared_pixels: tuple[int, int] = (0, 1),
) -> Terms:
    """Of a convolution with 16-bit operands."""
    sm_count = gpu["sm_count"]
    (tile_m, tile_n, tile_k), size = kernel["tile"], BYTES[request["a"]]
    m, n, k = request["m"], request["n"], request["k"]
    taps, step, direction = request["taps"], request["step"], request["direction"]
    gathers = kernel["family"] == "sm90_gather_conv"
    reuse = taps / min(taps, step)
    fetched_a = tile_m * tile_k * float(size)
    longest, beside = 0.0, kernel["cluster"][1]

    def steps_of(some: float) -> float:
        if gathers:
            return float(math.ceil(k / taps * some / tile_k))
        return float(some * math.ceil(k / taps / tile_k))

    if direction == "wgrad":
        columns = n if gathers else taps * math.ceil(n / taps / 64) * 64
        fetched_a /= beside
        across = math.ceil(math.ceil(columns / tile_n) / beside) * beside
        tiles = math.ceil(m / tile_m) * across * splits
        k_tiles: float = math.ceil(math.ceil(k / tile_k) / splits)
        operands = m * k + n * k / reuse
        channels = m, n // taps
    else:
        tiles_n = math.ceil(n / tile_n)
        if direction == "fprop":
            tiles, k_tiles = math.ceil(m / tile_m) * tiles_n, steps_of(taps)
            operands = m * k / reuse + n * k
        else:
            tiles = step * math.ceil(m / step / tile_m) * tiles_n
            k_tiles = steps_of(taps) / step
            operands = m * k / taps / step + n * k
            if step > 1:
                longest = k_tiles * step / taps * math.ceil(math.sqrt(taps / step)) ** 2
        parts = kernel["cluster"][2]
        if not longest:
            tiles, k_tiles = tiles * parts, math.ceil(k_tiles / parts)
        if kernel["family"] == "sm90_row_conv":
            tiles = math.ceil(shared_pixels[0] / tile_m) * tiles_n
            fetched_a /= shared_pixels[1]
        of_filter = n if direction == "dgrad" else k // taps
        channels = k // taps, of_filter
    result = BYTES[kernel["d"]] * (2 if "residual" in str(kernel["epilogue"]) else 1)
    factor = 1.0
    if direction == "wgrad" and taps > 1 and step == 1 and m <= tile_m == 64 and not gathers:
        factor = LONE_ROW.get(tile_n, 1.0)
    slots = slots_of(kernel, sm_count)
    reduced, missed = sums_of(kernel, request, splits, gpu)
    if gathers:  # fprop: pixels and filters that begin within a sector of 32 bytes
        pixel, row = (x if direction == "fprop" and x * size % 32 else 0 for x in (k // taps, k))
        channels = pixel, row
    lines = tuple(index_of_lines(x * size) for x in channels)
    is_padded = request.get("padded_filter", "none") != "none"
    if is_padded:
        lines = lines[0], 0
    within_two = gathers and direction == "fprop" and k * size % 32 == 0 and k * size % 64
    fetched_b = tile_n * tile_k * size * (WITHIN_TWO if within_two and not is_padded else 1)
    loads_residual = "residual" in str(kernel["epilogue"]) and kernel["family"] != "sm90_row_conv"
    added = WIDE_RESIDUAL * max(0.0, tile_m * tile_n / 128**2 - 1) if loads_residual else 0.0
    is_wide = kernel["family"] == "sm90_conv" and tile_n == WIDE
    if is_wide and direction != "wgrad" and not (direction == "dgrad" and step > 1):
        added += WIDE_EPILOGUE * max(0.0, (HIDING_WIDE - k_tiles) / HIDING_WIDE)
    slower = NEEDLESS_GATHER if beside > 1 and n // taps % 64 == 0 else 1.0
    if tile_k == 32 and direction != "wgrad":
        is_half = 0 < k // taps % 64 <= 32 and 32 <= k // taps < MOST_CHANNELS
        slower *= 1.0 if is_half else NEEDLESS_HALF
    return Terms(
        tiles=tiles,
        slots=slots,
        k_tiles=k_tiles,
        bytes=size * operands + result * m * n * splits,
        fetched=(fetched_a, fetched_b),
        lines=lines,  # type: ignore[arg-type]
        is_lone=tiles > slots and beside == 1,
        slower=slower,
        beyond=0,
        factor=factor,
        added_us=added,
        first_us=same_columns_us(kernel, request, sm_count),
        reduced=reduced,
        missed=missed,
        longest=longest,
    )


def sums_of(
    kernel: Mapping[str, Any], request: Mapping[str, Any], splits: int, gpu: Mapping[str, Any]
) -> tuple[float, float]:
    """Bytes that split-K's second kernel reads and writes, and those that L2 does not hold."""
    if splits == 1 and kernel["d"] == request["d"]:
        return 0.0, 0.0
    results = request["m"] * request["n"]
    epilogue = request.get("epilogue", "") if request["addend"] == "other" else ""
    # D, half as wide as the product where units are gated, and what the epilogue reads and stores.
    elements = (0.5 if epilogue.startswith("gated") else 1) + ("residual" in epilogue)
    elements += epilogue.endswith("_aux")
    sums, written = 4.0 * results * splits, results * elements * BYTES[request["d"]]
    missing = min(max(2 * sums / gpu["l2_bytes"] - 1, 0.0), 1.0)
    return 2 * sums + written, missing * (sums + written)


def same_columns_us(kernel: Mapping[str, Any], request: Mapping[str, Any], sm_count: int) -> float:
    """same_columns_us() of the model, whose constants these are."""
    is_gradient = kernel["family"] == "sm90_conv" and request["direction"] == "dgrad"
    is_product = kernel["family"] in DENSE and kernel["op"] == "gemm" and request["batch"] == 1
    if is_gradient:
        is_there = request["step"] == 1
    else:
        is_there = is_product and request["layouts"] == "tt" and BYTES[request["a"]] == 2
    if not is_there or request["n"] > FEW_COLUMNS or request["n"] % 64 == 0:
        return 0.0
    tile_m, tile_n, tile_k = kernel["tile"]
    tiles: int = math.ceil(request["m"] / (tile_n if kernel["swap_ab"] else tile_m))
    elements: int = min(tile_k, request["k"])
    return SAME_COLUMNS * elements / 64 * min(tiles, sm_count)


def few_steps(kernel: Mapping[str, Any], request: Mapping[str, Any]) -> float:
    """few_steps() of the model, whose constants these are."""
    rows, columns, k = request["m"], request["n"], request["k"]
    layout_a, layout_b = request["layouts"]
    takes_rows = kernel["family"] in DENSE and kernel["op"] == "gemm" and layout_a == "t"
    if not takes_rows or request["batch"] != 1 or BYTES[request["a"]] != 2:
        return 1.0
    if rows < 3000 or columns > 2048 or k > 512:
        return 1.0
    tile_m, tile_n, tile_k = kernel["tile"]
    steps = math.ceil(k / tile_k) * tile_k // 64
    by_rows, in_turns = layout_b == "t", kernel["schedule"] == "pingpong"
    if rows < 15000:
        return 0.81 if in_turns and steps <= 2 and not by_rows else 1.0
    if columns <= 300:
        if rows < 30000 or (by_rows and steps > 1):
            return 1.0
        if not by_rows or in_turns:
            return 1.23
        return 0.80 if k % 64 == 0 else 1.0
    if steps > 3:
        return 1.0
    if in_turns:
        return 1.44
    if kernel["cluster"][0] > 1:
        return 0.81
    return 1.27 if steps > 1 and tile_m * tile_n / 128**2 < 1.4 else 1.0


def terms_of(
    kernel: Mapping[str, Any], request: Mapping[str, Any], splits: int, gpu: Mapping[str, Any]
) -> Terms:
    sm_count = gpu["sm_count"]
    (tile_m, tile_n, tile_k), (cluster_m, cluster_n, of_cluster) = kernel["tile"], kernel["cluster"]
    parts = of_cluster * splits
    swap, size = kernel["swap_ab"], BYTES[request["a"]]
    rows, columns, k = request["m"], request["n"], request["k"]
    m, n = (columns, rows) if swap else (rows, columns)

    def along(extent: int, tile: int, cluster: int) -> int:
        return math.ceil(math.ceil(extent / tile) / cluster) * cluster

    def lines(contiguous: int) -> int:
        return index_of_lines(contiguous * size)

    layout_a, layout_b = request["layouts"]
    of_a, of_b = lines(k if layout_a == "t" else rows), lines(k if layout_b == "n" else columns)
    tiles = along(m, tile_m, cluster_m) * along(n, tile_n, cluster_n) * request["batch"] * parts
    native, epilogue = kernel["family"] == "sm90_persistent", str(kernel["epilogue"])
    pingpong = kernel["schedule"] == "pingpong"
    reads_matrix = "residual" in epilogue
    reduced, missed = sums_of(kernel, request, splits, gpu)
    result = rows * columns * BYTES[kernel["d"]] * splits
    adds_matrix = request["addend"] == "matrix" and not reduced
    result *= 2 if reads_matrix or adds_matrix else 1
    result *= 0.5 if epilogue.startswith("gated") else 1
    operands = size * k * (rows + columns)
    area = tile_m * tile_n / 128**2
    added, factor = 0.0, 1.0
    if native and request["addend"] == "other" and kernel["op"] == "gemm" and not reduced:
        stores = epilogue.endswith("_aux") and not reads_matrix
        of_area = STORED[pingpong] if stores else FUSED[reads_matrix, pingpong]
        added = area * of_area
    if epilogue == "linear_combination":
        # These serve calls without a matrix, too.
        is_spare = request["addend"] != "matrix"
        added += MATRIX_C * area + SPARE_C * is_spare if native else 0
        factor = 1 if native else SPARE_C_CUTLASS if is_spare else MATRIX_C_CUTLASS
    k_tiles = math.ceil(k / parts / tile_k)
    first = SINGLE_STEP * area if native and k_tiles == 1 else 0.0
    first += same_columns_us(kernel, request, sm_count)
    if native and epilogue == "linear_combination" and request["addend"] == "row":
        first += SAME_LINE * rows * request["batch"]
    later = 0.0
    if kernel["family"] in DENSE and layout_a == "t":
        later = LATER_TILE * max(0.0, (HIDING_TILE - k_tiles) / HIDING_TILE)
    if kernel["family"] == "sm90_warpspecialized":
        later += FEW_STEPS * area * max(0.0, (HIDING - k_tiles) / (HIDING - 1))
    if native and of_cluster > 2:
        later += LATER_SUMS
    slots = slots_of(kernel, sm_count)
    slower = SHARED_K if native and of_cluster > 1 and kernel["op"] == "gemm" else 1.0
    if native and cluster_m > 1 and not has_multicast_figures(kernel) and not (of_a or of_b):
        slower = NEEDLESS_MULTICAST
    slower *= few_steps(kernel, request)
    rows_of_m = tile_n if swap else tile_m
    streams = request["batch"] == 1 and rows <= rows_of_m and kernel["family"] in DENSE
    past = (tile_m - m % tile_m) % tile_m + (tile_n - n % tile_n) % tile_n
    if is_grouped := kernel["family"] == GROUPED:
        # The model counts whole tiles, in whole lines: only the device knows where groups begin.
        m, n, of_a, of_b = tile_m, tile_n, 0, 0
    return Terms(
        tiles=tiles,
        slots=slots,
        k_tiles=k_tiles,
        bytes=request["batch"] * (operands + result),
        # An operand smaller than the tile counts with its own rows: no load asks for more.
        fetched=(
            min(tile_m, m) * tile_k * size / cluster_n,
            min(tile_n, n) * tile_k * size / cluster_m,
        ),
        lines=(of_b, of_a) if swap else (of_a, of_b),
        is_lone=(native or of_a or of_b or cluster_m * cluster_n == 1) and tiles > slots,
        beyond=0 if native or is_grouped else past * tile_k * size / 128,
        factor=factor,
        added_us=added,
        first_us=first,
        later_us=later,
        slower=slower,
        reduced=reduced,
        missed=missed,
        streamed=k_tiles * min(tile_m if swap else tile_n, columns) * tile_k * size * streams,
    )


class Plans:
    """All measured plans of some problems, as tensors."""

    def __init__(self, problems: Sequence[Problem], keys: Sequence[Key]) -> None:
        rows = [(i, *plan) for i, problem in enumerate(problems) for plan in problem.plans]
        terms = [row[2] for row in rows]
        number = {key: i for i, key in enumerate(keys)}

        def of(values: Iterable[float]) -> Tensor:
            return torch.tensor(list(values), dtype=torch.float64)

        self.count = len(problems)
        self.problem = torch.tensor([row[0] for row in rows])
        self.key = torch.tensor([number[row[1]] for row in rows])
        self.us = of(row[3] for row in rows)
        self.tiles, self.slots = of(x.tiles for x in terms), of(x.slots for x in terms)
        self.k_tiles = of(x.k_tiles for x in terms)
        self.bytes, self.beyond = of(x.bytes for x in terms), of(x.beyond for x in terms)
        self.fetched = of(y for x in terms for y in x.fetched).view(-1, 2)
        self.lines = torch.tensor([x.lines for x in terms])
        self.is_lone = torch.tensor([x.is_lone for x in terms])
        self.factor, self.added = of(x.factor for x in terms), of(x.added_us for x in terms)
        self.first, self.later = of(x.first_us for x in terms), of(x.later_us for x in terms)
        self.reduced, self.missed = of(x.reduced for x in terms), of(x.missed for x in terms)
        self.streamed = of(x.streamed for x in terms)
        self.longest = of(x.longest for x in terms)
        self.slower = of(x.slower for x in terms)
        self.sm_count = of(problems[row[0]].sm_count for row in rows)
        self.gb_per_s = of(problems[row[0]].gb_per_s for row in rows)
        is_large = self.least(self.us) >= LARGE_US
        self.weight = torch.where(is_large, LARGE_WEIGHT, 1.0).to(torch.float64)

    def sums(self, values: Tensor) -> Tensor:
        return torch.zeros(self.count, dtype=torch.float64).index_add(0, self.problem, values)

    def least(self, values: Tensor) -> Tensor:
        start = torch.full((self.count,), math.inf, dtype=torch.float64)
        return start.scatter_reduce(0, self.problem, values, "amin")


@dataclass(frozen=True)
class Problem:
    family: str
    plans: tuple[tuple[Key, Terms, float], ...]
    """row of figures, terms, microseconds"""
    sm_count: int
    gb_per_s: float
    gpu: str = ""


def read(path: Path, kernels: Mapping[str, Mapping[str, Any]]) -> list[Problem]:
    """The problems of a journal. A plan counts with the raster order that dispatch gives it.

    Products whose operands are copied first are left out: gradients of weights with a transposed A
    that no kernel reads as it lies.
    """
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    gpu = lines[0]["gpu"]
    found = []
    for record in lines[1:]:
        plans: dict[tuple[str, int], tuple[Key, Terms, float]] = {}
        asked = record["request"]
        copies = asked["layouts"] == "tt" and asked.get("direction", "none") == "none"
        if record["family"].endswith(":wgrad") and copies:
            continue
        for row, _, _, splits, _, us, status, *_ in record.get("candidates", ()):
            kernel = kernels.get(row)
            if kernel is None or (row, splits) in plans or us is None:
                continue
            if kernel["family"] in CONV and kernel["a"] in ("bf16", "f16"):
                if status in ("ok", "slow"):
                    shares = kernel["family"] == "sm90_row_conv"
                    shared = shared_pixels_of(record["job"]) if shares else (0, 1)
                    conv = conv_terms_of(kernel, record["request"], splits, gpu, shared)
                    plans[row, splits] = (key_of(kernel, asked["step"]), conv, us)
                continue
            others = "sm90_blockwise", GROUPED
            if status in ("ok", "slow") and kernel["family"] in (*DENSE, *others):
                terms = terms_of(kernel, record["request"], splits, gpu)
                plans[row, splits] = (key_of(kernel), terms, us)
        if plans:
            gpu_terms = gpu["sm_count"], gpu["memory_gb_per_s"], gpu["name"]
            found.append(Problem(record["family"], tuple(plans.values()), *gpu_terms))
    return found


class Model(torch.nn.Module):
    """predict_us() of cuda/dispatch/cost_model.cpp for dense GEMMs and convolutions."""

    def __init__(
        self,
        figures: Tensor,
        limits: Mapping[str, Any],
        *,
        fits_limits: bool,
        least: Tensor | None = None,
        is_fitted: Tensor | None = None,
    ) -> None:
        """least: what no step is below, by tile; is_fitted: 0 for tiles that keep their figures"""
        super().__init__()
        self.least = torch.zeros(len(figures), dtype=torch.float64) if least is None else least
        self.figures = torch.nn.Parameter(figures.clamp_min(1e-2).log())
        if is_fitted is not None:
            mask = is_fitted[:, None]
            self.figures.register_hook(lambda x: x * mask)  # type: ignore[no-untyped-call]
        self.start = self.figures.detach().clone()
        self.limits = torch.nn.ParameterDict(
            {
                name: torch.nn.Parameter(
                    torch.tensor(limits[name], dtype=torch.float64).clamp_min(1e-9).log(),
                    requires_grad=fits_limits,
                )
                for name in (*LIMITS, *REDUCE)
            }
        )

    def values(self) -> Tensor:
        found = self.figures.exp()
        return torch.cat([torch.maximum(found[:, :1], self.least[:, None]), found[:, 1:]], 1)

    def forward(self, plans: Plans) -> Tensor:
        limit = {name: value.exp() for name, value in self.limits.items()}
        k_tile, tile, launch = self.values()[plans.key].unbind(1)
        # Of 1 the limits are added up; less means nothing.
        sharpness = limit["sharpness"].clamp_min(LEAST_SHARPNESS)

        def combine(*times: Tensor) -> Tensor:
            total = torch.stack(times).pow(sharpness).sum(0) + 1e-30
            return total.pow(1 / sharpness)

        dram = plans.bytes / (limit["dram"] * plans.gb_per_s * 1e3)
        factors = torch.cat([torch.ones(1, dtype=torch.float64), limit["split_lines"]])
        fetched = (plans.fetched * factors[plans.lines]).sum(1)
        rate = torch.where(plans.is_lone, limit["lone_l2"], limit["l2"]) * plans.sm_count * 1e6
        l2 = plans.tiles * plans.k_tiles * fetched / rate
        own = plans.k_tiles * (k_tile + limit["beyond_us"] * plans.beyond) + tile
        own = own * plans.factor + plans.added
        full = torch.floor(plans.tiles / plans.slots)
        whole = full * plans.slots / plans.tiles
        together = full * own + plans.first + (full - 1).clamp_min(0) * plans.later
        waves = torch.where(full > 0, combine(together, dram * whole, l2 * whole), 0.0)
        last = own + torch.where(full > 0, plans.later, plans.first)
        one_sm = plans.k_tiles * plans.fetched.sum(1) / (limit["sm"] * 1e6)
        of_l2 = torch.maximum(l2 * (1 - whole), one_sm)
        shares_tpc = (plans.tiles - full * plans.slots) * 2 > plans.sm_count
        paired = torch.where(shares_tpc, plans.streamed / (limit["paired"] * 1e6), 0.0)
        of_dram = torch.maximum(dram * (1 - whole), paired)
        rest = torch.where(whole < 1, combine(last, of_dram, of_l2), 0.0)
        even = torch.maximum(plans.tiles / plans.slots * own, plans.longest * k_tile + tile)
        shared = combine(even, dram, l2)
        second = limit["reduce_us"] + plans.reduced / (limit["reduce_tb_per_s"] * 1e6)
        second = second + plans.missed / (limit["dram"] * plans.gb_per_s * 1e3)
        found = torch.where(plans.longest > 0, shared, waves + rest)
        return (launch + found + torch.where(plans.reduced > 0, second, 0.0)) * plans.slower


def fit(
    model: Model,
    plans: Plans,
    steps: int,
    weight_of_start: float = 0.03,
    weight_of_times: float = 1.0,
) -> None:
    softness, near = 0.03, 0.15
    excess = (plans.us / plans.least(plans.us)[plans.problem]).log()
    weight = torch.exp(-excess / near)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.02)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        predicted = model(plans).log()
        ahead = (plans.least(predicted)[plans.problem] - predicted) / softness
        chosen = ahead.exp()
        cost = plans.sums(chosen * excess) / plans.sums(chosen)
        error = (weight * (predicted - plans.us.log()) ** 2).sum() / weight.sum()
        moved = (model.figures - model.start) ** 2 * torch.tensor([1.0, 0.1, 0.1])
        share = plans.weight / plans.weight.sum()
        loss = (share * (cost + 2 * cost**2)).sum() + weight_of_times * error
        loss = loss + weight_of_start * moved.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


@torch.no_grad()
def excess_of(model: Model, plans: Plans) -> Tensor:
    """For each problem, the time of the plan that is predicted to be the fastest over the least."""
    predicted = model(plans)
    is_chosen = predicted == plans.least(predicted)[plans.problem]
    return plans.least(torch.where(is_chosen, plans.us, math.inf)) / plans.least(plans.us)


def summary(excess: Tensor) -> str:
    mean = excess.log().mean().exp()
    return f"{mean:.4f} (95 of 100: {excess.quantile(0.95):.3f}, worst {excess.max():.3f})"


# ---- the file of figures
def rows_of(document: Mapping[str, Any]) -> dict[Key, list[float]]:
    found = {}
    for group in document["tiles"]:
        for row in group["figures"]:
            native = row.get("native", row["schedule"] == "persistent")
            rest = row["schedule"], row.get("swap_ab", False)
            cluster = row.get("splits", 1), row.get("columns", 1), row.get("rows", 1)
            found[(group["kind"], *row["tile"], native, *rest, *cluster)] = row["us"]
    return found


def section_of(kind: str) -> str:
    """Of the limits of a kind; those of block-wise scales are not fitted here."""
    if kind.rpartition("_")[2] in ("fprop", "dgrad", "wgrad"):
        return "conv"
    if kind.startswith("grouped_"):
        return "grouped"
    return "others" if kind.endswith("_of_b") else "dense"


def figures_of(key: Key, known: Mapping[Key, list[float]]) -> list[float] | None:
    """Those that the library takes, if the file has them."""
    kinds = (key[0], "wide") if key[0].startswith("wide_") else (key[0],)
    keys = [(kind, *key[1:-2], *shared) for kind in kinds for shared in (key[-2:], (1, 1))]
    return next((known[key] for key in keys if key in known), None)


def start_of(key: Key, known: Mapping[Key, list[float]]) -> list[float]:
    """Figures to begin with: those of the file, of the swapped tile, or 0.85 of the paper rate."""
    kind, m, n, k_bytes, native, schedule, swap, splits, columns, rows = key
    mirrored: Key = (kind, m, n, k_bytes, native, schedule, not swap, splits, columns, rows)
    return (
        figures_of(key, known)
        or figures_of(mirrored, known)
        or [m * n * k_bytes / 2 / 2.98e6, 0.7, 2.5]
    )


def least_step(key: Key) -> float:
    _, m, n, k_bytes, *_ = key
    return LEAST_STEP * m * n * k_bytes / 128**3


def line_of(key: Key, us: Sequence[float]) -> str:
    _, m, n, k_bytes, native, schedule, swap, splits, columns, rows = key
    times = f"{us[0]:.4f}, {us[1]:.3f}, {us[2]:.3f}"
    text = f'{{ tile = [{m}, {n}, {k_bytes}], schedule = "{schedule}", us = [{times}]'
    text += ", native = true" if native and schedule == "pingpong" else ""
    text += ", swap_ab = true" if swap else ""
    for name, count in (("splits", splits), ("columns", columns), ("rows", rows)):
        text += f", {name} = {count}" if count > 1 else ""
    return f"  {text} }},\n"


def order_of(key: Key) -> tuple[Any, ...]:
    kind, m, n, _, native, schedule, swap, *cluster = key
    return kind, not native, schedule, swap, *cluster, -m, -n


def rewritten(
    text: str, rows: Mapping[Key, Sequence[float]], section: str, limits: Mapping[str, Any]
) -> str:
    """The file with other figures; comments stay, and want to be read.

    Args:
        section: of the limits
    """
    for kind in {key[0] for key in rows}:
        lines = "".join(line_of(k, rows[k]) for k in sorted(rows, key=order_of) if k[0] == kind)
        text = re.sub(
            rf'(kind = "{kind}"\nfigures = \[\n).*?\n\]\n',
            lambda found, lines=lines: f"{found[1]}{lines}]\n",  # type: ignore[misc]
            text,
            flags=re.DOTALL,
        )
    before, own, after = re.split(rf"(\[limits\.{section}\].*?\n\n)", text, maxsplit=1, flags=re.S)
    for name, value in limits.items():
        spelled = (
            f"[{', '.join(f'{x:.2f}' for x in value)}]"
            if value.__class__ is list
            else f"{value:.4g}"
        )
        own = re.sub(rf"^{name} = .*$", f"{name} = {spelled}", own, flags=re.M)
    return before + own + after


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("journals", nargs="+", type=Path)
    parser.add_argument("--manifest", type=Path, default=ROOT / "python/cutwheel/manifest.json")
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument(
        "--hold-out", type=int, metavar="N", help="fit N times, without an N-th each"
    )
    parser.add_argument("--write", action="store_true", help=f"change {FIGURES.relative_to(ROOT)}")
    parser.add_argument(
        "--keep-limits", action="store_true", help="fit tiles alone, in few problems of some kinds"
    )
    parser.add_argument(
        "--prior", type=float, default=0.03, help="weight of the figures that a fit begins with"
    )
    parser.add_argument(
        "--times",
        type=float,
        default=1.0,
        help="weight of the errors of single times; little of it where some tiles are kept, so"
        " that the others do not move against them",
    )
    parser.add_argument(
        "--only", nargs="+", metavar="KIND", help="kinds of tiles that are fitted; others are kept"
    )
    parser.add_argument(
        "--largest", type=int, metavar="AREA", help="rows times columns of tiles that are fitted"
    )
    given = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    manifest = json.loads(given.manifest.read_text(encoding="utf-8"))
    kernels = {kernel["name"]: kernel for kernel in manifest["kernels"]}
    problems = [problem for path in given.journals for problem in read(path, kernels)]
    if not problems:
        sys.exit(
            "calibrate.py: the journals have no times of dense or scaled kernels of this manifest"
        )
    sections = {section_of(p.plans[0][0][0]) for p in problems}
    if len(sections) > 1:
        sys.exit(f"calibrate.py: {' and '.join(sorted(sections))} have other limits; fit one")
    (section,) = sections
    fits_limits = section != "others" and not given.keep_limits
    text = FIGURES.read_text(encoding="utf-8")
    document = tomllib.loads(text)
    known = rows_of(document)
    keys = sorted({plan[0] for problem in problems for plan in problem.plans}, key=order_of)
    start = torch.tensor([start_of(key, known) for key in keys], dtype=torch.float64)
    least = torch.tensor([least_step(key) for key in keys], dtype=torch.float64)
    limits = document["limits"][section]
    only = given.only or {key[0] for key in keys}
    largest = given.largest or math.inf
    may_move = [key[0] in only and key[1] * key[2] <= largest for key in keys]
    is_fitted = torch.tensor(may_move, dtype=torch.float64)

    def model(figures: Tensor = start) -> Model:
        return Model(figures, limits, fits_limits=fits_limits, least=least, is_fitted=is_fitted)

    everything = Plans(problems, keys)
    print(f"{len(problems)} problems, {len(everything.us)} plans, {len(keys)} tiles")
    print(f"chosen / best, before:   {summary(excess_of(model(), everything))}")
    if given.hold_out:
        parts = []
        computed = torch.tensor([start_of(key, {}) for key in keys], dtype=torch.float64)
        begin = start if given.keep_limits else computed
        for i in range(given.hold_out):
            others = [p for at, p in enumerate(problems) if at % given.hold_out != i]
            fitted = model(begin)
            fit(fitted, Plans(others, keys), given.steps, given.prior, given.times)
            left_out = Plans(problems[i :: given.hold_out], keys)
            parts.append(excess_of(fitted, left_out))
        print(f"chosen / best, held out: {summary(torch.cat(parts))}")
    fitted = model()
    fit(fitted, everything, given.steps, given.prior, given.times)
    excess = excess_of(fitted, everything)
    print(f"chosen / best, fitted:   {summary(excess)}")
    labels = [f"{problem.gpu} {problem.family}" for problem in problems]
    for label in sorted(set(labels)):
        own = torch.tensor([other == label for other in labels])
        print(f"  {label}: {summary(excess[own])}")
    if given.write:
        figures = fitted.values().detach().tolist()
        moved = {key: us for key, us, may in zip(keys, figures, may_move, strict=True) if may}
        kinds = {key[0] for key in moved}
        rows = {key: us for key, us in (known | moved).items() if key[0] in kinds}
        values = {n: v.detach().exp().tolist() for n, v in fitted.limits.items()}
        values["sharpness"] = max(values["sharpness"], LEAST_SHARPNESS)
        values = values if fits_limits else {}
        FIGURES.write_text(rewritten(text, rows, section, values), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
