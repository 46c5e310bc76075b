"""Scaled products of fp8 and int8, and quantisation, against what torch has for the same.

Scales are random powers of two and values come from 8 bits, so that the dequantised operands are
exact in bfloat16: torch's own bfloat16 product with a float32 result is the reference.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from . import harness, plan
from .scaled_jobs import Job
from .scaled_sides import (
    BLOCK,
    E4M3,
    INT8,
    INT_MM_ROWS,
    LARGEST,
    Library,
    blocks,
    compiled_quantize,
    compiled_scaling,
    eager_quantize,
    int_mm,
    library,
    outer_major,
    scaling,
    torch_scaled_mm,
)
from .session import Made, SkippedError, gpu, kernel_of
from .shapes import GemmShape
from .sides import keep_caches_in_tmpdir

TOLERANCE = 1e-2
# Eager torch multiplies by 1 / 448 where cutwheel divides. A scale that differs in its last bit
# moves all ties one way: 2 % of bfloat16 values where it is three times a power of two.
QUANTIZE_TOLERANCE = 2e-2
# Times the tolerance, of one element. Sums in the tensor cores' own precision are off by up to
# 0.3 of the root mean square at K = 28672, torch's as ours.
WORST, WORST_FAST = 10.0, 100.0
LIMITS = plan.Limits(replay_seconds=1.5e-3, case_seconds=0.2, max_rounds=15)
MOST_BYTES = 60e9

Tensor = torch.Tensor


@dataclass(frozen=True)
class Setting:
    """Of one case: what it measures, and where it runs."""

    job: Job
    device: torch.device
    l2_bytes: int
    library: Library
    compile: bool = False

    @property
    def shape(self) -> GemmShape:
        return self.job.shape

    def values(self, rows: int, dtype: torch.dtype) -> Tensor:
        """[rows, K], normal, a standard deviation of 24"""
        wide = torch.randn(rows, self.shape.k, dtype=torch.bfloat16, device=self.device).mul_(24)
        largest = LARGEST[dtype]
        return (wide.round_() if dtype == INT8 else wide).clamp_(-largest, largest).to(dtype)

    def scales(self, *extents: int) -> Tensor:
        """Powers of two from 2^-8 to 2^-4: results have a standard deviation near sqrt(K)"""
        return torch.exp2(torch.randint(-8, -3, extents, device=self.device).float())

    def slots(self, more: int = 1) -> int:
        """`more`: how many times these inputs are kept"""
        shape = self.shape
        found = plan.rotation(shape.input_bytes(1), self.l2_bytes)
        results = 2 * shape.m * shape.n * (found + 1) * 4 + 3 * 4 * shape.m * shape.n
        needed = more * found * shape.input_bytes(1) + results
        if needed > MOST_BYTES:
            raise SkippedError(f"takes {needed / 1e9:.0f} GB; the limit is {MOST_BYTES / 1e9:.0f}")
        return found


def min_bytes(shape: GemmShape) -> int:
    """Operands of 8 bits, a result of 16; scales are left out"""
    return shape.input_bytes(1) + 2 * shape.m * shape.n


def product(x: Tensor, w: Tensor) -> Tensor:
    """x [M, K] w [N, K]^T in float32 of operands that bfloat16 holds exactly"""
    x, w = x.bfloat16(), w.bfloat16()
    if x.is_cuda:
        return torch.mm(x, w.t(), out_dtype=torch.float32)
    return x.float() @ w.float().t()


def by_block(x: Tensor, scales: Tensor) -> Tensor:
    """x [rows, K] times scales [rows or blocks of them, blocks of K], in bfloat16"""
    wide = x.bfloat16()
    scales = scales.bfloat16()
    if scales.shape[0] != x.shape[0]:
        scales = scales.repeat_interleave(BLOCK, 0)[: x.shape[0]]
    rows, k = x.shape
    if k % BLOCK == 0:
        return (wide.view(rows, -1, BLOCK) * scales[:, :, None]).view(rows, k)
    return wide * scales.repeat_interleave(BLOCK, 1)[:, :k]


def accepted(sides: Sequence[harness.Side]) -> tuple[list[harness.Side], str]:
    """The sides that run at all, and why the others do not."""
    good, refused = [], []
    for side in sides:
        try:
            side.call(0)
        except (RuntimeError, TypeError, ValueError) as error:
            refused.append(f"{side.name}: {harness.describe(error)}")
        else:
            good.append(side)
    return good, "; ".join(refused)


def with_pairs(
    ours: Sequence[harness.Side], theirs: Sequence[harness.Side], pairs: Sequence[harness.Pair]
) -> tuple[list[harness.Side], str, list[harness.Pair]]:
    """Baselines that run, then ours; the pairs of which both are there."""
    good, refused = accepted(theirs)
    names = {side.name for side in good}
    return [*good, *ours], refused, [pair for pair in pairs if pair[1] in names]


# ---- groups
def fp8(setting: Setting, fast: bool) -> Made:
    """Scales of tensors and of rows; all sides share values, and none is fastest by its data."""
    shape, ours, recipes = setting.shape, setting.library, setting.job.recipes
    slots = setting.slots()
    x = [setting.values(shape.m, E4M3) for _ in range(slots)]
    w = [setting.values(shape.n, E4M3) for _ in range(slots)]
    of = {
        "tensorwise": (setting.scales(1), setting.scales(1)),
        "rowwise": (setting.scales(shape.m, 1), setting.scales(1, shape.n)),
    }
    accum = functools.cache(lambda i: product(x[i], w[i]))

    def side(name: str, recipe: str, call: Callable[..., Tensor]) -> harness.Side:
        scale_x, scale_w = of[recipe]
        return harness.Side(
            f"{name} {recipe}",
            lambda i: call(x[i], w[i], scale_x, scale_w, fast),
            lambda i: accum(i) * scale_x * scale_w,
        )

    theirs = [side("torch", recipe, torch_scaled_mm) for recipe in of]
    mine = [side(ours.name, recipe, ours.scaled_mm) for recipe in recipes]
    pairs = [(other.name, baseline.name) for other in mine for baseline in theirs]
    sides, refused, pairs = with_pairs(mine, theirs, pairs)
    kernels = {
        s.name: kernel_of(ours.kernel, x[0], w[0], *of[recipe], fast)
        for s, recipe in zip(mine, recipes, strict=True)
    }
    worst = WORST_FAST if fast else WORST
    case = harness.Case(sides, slots, accum, TOLERANCE, pairs, worst, [s.name for s in mine])
    return Made(case, shape.flops, min_bytes(shape), kernels, refused)


def blockwise(setting: Setting) -> Made:
    """1x128 of activations with 128x128, and with 1x128 of weights"""
    shape, ours = setting.shape, setting.library
    m, n, kb = shape.m, shape.n, blocks(shape.k)
    slots = setting.slots()
    x = [setting.values(m, E4M3) for _ in range(slots)]
    w = [setting.values(n, E4M3) for _ in range(slots)]
    # A set for each slot, as values have: with the weights, they are read from device memory.
    scale_x = [outer_major(setting.scales(m, kb)) for _ in range(slots)]
    scale_w = {
        "128x128": [setting.scales(blocks(n), kb) for _ in range(slots)],
        "1x128": [outer_major(setting.scales(n, kb)) for _ in range(slots)],
    }

    def side(name: str, kind: str, call: Callable[..., Tensor]) -> harness.Side:
        return harness.Side(
            f"{name} 1x128 x {kind}",
            lambda i: call(x[i], w[i], scale_x[i], scale_w[kind][i].t(), False),
            references[kind],
        )

    def reference(kind: str) -> harness.Reference:
        return lambda i: product(by_block(x[i], scale_x[i]), by_block(w[i], scale_w[kind][i]))

    references = {kind: reference(kind) for kind in scale_w}
    sides: list[harness.Side] = []
    pairs: list[harness.Pair] = []
    refusals, kernels = [], {}
    for kind in scale_w:
        theirs = side("torch", kind, torch_scaled_mm)
        mine = side(ours.name, kind, ours.scaled_mm)
        # cuBLAS reads these scales in fours along K, and torch lets others pass.
        if kind == "128x128" and kb % 4:
            good, refused = [], f"{theirs.name}: K / 128 is {kb}, no multiple of 4"
        else:
            good, refused = accepted([theirs])
        refusals += [refused] * bool(refused)
        sides += [*good, mine]
        pairs += [(mine.name, baseline.name) for baseline in good]
        kernels[mine.name] = kernel_of(ours.kernel, x[0], w[0], scale_x[0], scale_w[kind][0].t())
    case = harness.Case(sides, slots, references["1x128"], TOLERANCE, pairs, needed=list(kernels))
    return Made(case, shape.flops, min_bytes(shape), kernels, "; ".join(refusals))


def int8(setting: Setting) -> Made:
    """Scales of rows and columns; torch multiplies integers, then scales and rounds."""
    shape, ours = setting.shape, setting.library
    slots = setting.slots()
    rows = max(shape.m, INT_MM_ROWS)
    padded = [setting.values(rows, INT8) for _ in range(slots)]
    x = padded if ours.pads else [values[: shape.m] for values in padded]
    w = [setting.values(shape.n, INT8) for _ in range(slots)]
    scale_x, scale_w = setting.scales(shape.m, 1), setting.scales(1, shape.n)

    def baseline(name: str, scale: Any) -> harness.Side:
        return harness.Side(
            name, lambda i: int_mm(padded[i], w[i], scale_x, scale_w, scaling=scale)
        )

    theirs = [baseline("_int_mm + scaling", scaling)]
    if setting.compile:
        theirs.append(baseline("_int_mm + compiled scaling", compiled_scaling()))
    mine = harness.Side(ours.name, lambda i: ours.int8_mm(x[i], w[i], scale_x, scale_w))
    pairs = [(mine.name, other.name) for other in theirs]
    sides, refused, pairs = with_pairs([mine], theirs, pairs)
    case = harness.Case(
        sides,
        slots,
        lambda i: product(padded[i][: shape.m], w[i]) * scale_x * scale_w,
        TOLERANCE,
        pairs,
        needed=[mine.name],
    )
    kernels = {mine.name: kernel_of(ours.kernel, x[0], w[0], scale_x, scale_w)}
    return Made(case, shape.flops, min_bytes(shape), kernels, refused)


QUANTIZE = {  # by the name that a job has
    "tensorwise": ("tensorwise", E4M3),
    "rowwise": ("rowwise", E4M3),
    "blockwise_1x128": ("blockwise_1x128", E4M3),
    "blockwise_128x128": ("blockwise_128x128", E4M3),
    "rowwise_int8": ("rowwise", INT8),
}


def quantize(setting: Setting) -> Made:
    """x [M, K] in bfloat16; a result next to a tie may be the other neighbour."""
    (name,), ours = setting.job.recipes, setting.library
    recipe, dtype = QUANTIZE[name]
    m, k = setting.shape.m, setting.shape.k
    slots = plan.rotation(2 * m * k, setting.l2_bytes)
    x = [torch.randn(m, k, dtype=torch.bfloat16, device=setting.device) for _ in range(slots)]

    def expected(i: int) -> tuple[Tensor, ...]:
        values, scales = eager_quantize(x[i], recipe, dtype)
        return values.float(), scales

    theirs = [harness.Side("eager", lambda i: eager_quantize(x[i], recipe, dtype))]
    if setting.compile:
        in_one = compiled_quantize(recipe, dtype)
        theirs.append(harness.Side("compile", lambda i: in_one(x[i])))
    mine = harness.Side(ours.name, lambda i: tuple(ours.quantize(x[i], recipe, dtype)))
    pairs = [(mine.name, other.name) for other in theirs]
    sides, refused, pairs = with_pairs([mine], theirs, pairs)
    case = harness.Case(sides, slots, expected, QUANTIZE_TOLERANCE, pairs, 25, [mine.name])
    return Made(case, 0.0, 3.0 * m * k, refused=refused)


GROUPS: dict[str, Callable[[Setting], Made]] = {
    "fp8_fast": functools.partial(fp8, fast=True),
    "fp8": functools.partial(fp8, fast=False),
    "blockwise": blockwise,
    "int8": int8,
    "quantize": quantize,
}


def maker(side: str, compile: bool) -> Callable[[Job], Made]:
    keep_caches_in_tmpdir()
    device, l2_bytes = gpu()
    ours = library(side)
    last: list[tuple[str, ...]] = []

    def make(job: Job) -> Made:
        if last != [job.recipes]:
            torch._dynamo.reset()  # else it gives up after a few recipes
            last[:] = [job.recipes]
        return GROUPS[job.group](Setting(job, device, l2_bytes, ours, compile))

    return make
