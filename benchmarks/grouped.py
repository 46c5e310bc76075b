"""Grouped products of experts against what torch has for the same, on even and on skewed groups.

`forward`, `dgrad` and `wgrad` are the three products of a linear layer of every expert, in
bfloat16: x [T, K] and weights [G, N, K], the gradient of the result [T, N] and the same weights,
that gradient transposed and x. `fp8` is the forward product with a scale for each row of x and of
the weights, `gated` the forward product with its gated activation, N the width of gate and up.
Nothing writes with ``out=``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from . import gemm, grouped_jobs, harness, plan, scaled
from .grouped_jobs import GroupedShape, Job
from .grouped_sides import (
    E4M3,
    Library,
    eager_gated,
    library,
    packed,
    torch_grouped_mm,
    torch_scaled,
)
from .scaled_sides import LARGEST
from .session import Made, SkippedError, gpu, kernel_of

TOLERANCE = 1e-2
# Times the tolerance, of one element: products of two normally distributed values have large ones.
WORST, WORST_GATED = 10.0, 50.0
LIMITS = plan.Limits(replay_seconds=1.5e-3, case_seconds=0.25, max_rounds=15)
# Inputs and results together; what they are made with and checked with comes on top.
MOST_BYTES = 60e9
# One set of inputs suffices where L2 holds less than this part of it.
SINGLE_SET = 64
CHECKED_BYTES = 8e9  # of the float32 reference of a result: of a larger one, some groups

Tensor = torch.Tensor
Span = tuple[int, int]


@dataclass(frozen=True)
class Setting:
    """Of one case: what it measures, and where it runs."""

    job: Job
    device: torch.device
    l2_bytes: int
    library: Library

    @property
    def shape(self) -> GroupedShape:
        return self.job.shape

    @functools.cached_property
    def spans(self) -> list[Span]:
        ends = grouped_jobs.ends(grouped_jobs.sizes(self.shape, self.job.skew))
        return list(zip((0, *ends[:-1]), ends, strict=True))

    @property
    def offs(self) -> Tensor:
        """int32, as torch wants it"""
        return torch.tensor([last for _, last in self.spans], dtype=torch.int32, device=self.device)

    def random(self, *extents: int, scale: float = 1.0) -> Tensor:
        values = torch.empty(extents, dtype=torch.bfloat16, device=self.device).normal_()
        return values.mul_(scale) if scale != 1.0 else values

    def values(self, *extents: int) -> Tensor:
        """fp8, normal, a standard deviation of 24; one matrix at a time, weights are large"""
        found = torch.empty(extents, dtype=torch.uint8, device=self.device).view(E4M3)
        for part in found if len(extents) == 3 else (found,):
            wide = self.random(*part.shape, scale=24.0).clamp_(-LARGEST[E4M3], LARGEST[E4M3])
            part.copy_(wide.to(E4M3))
        return found

    def scales(self, *extents: int) -> Tensor:
        """Powers of two: results are exact but for the sums and the last rounding."""
        return torch.exp2(torch.randint(-8, -3, extents, device=self.device).float())

    def slots(self, of_set: int, of_results: int) -> int:
        """Sets of inputs (bytes) to rotate through; results of both sides are kept for each."""

        def needed(slots: int) -> int:
            kept = slots + (slots > 1)  # calls on a single set are long: a graph has one of them
            return slots * of_set + 2 * kept * of_results

        found = plan.rotation(of_set, self.l2_bytes)
        written = of_set + of_results  # results pass through L2 as inputs do
        if needed(found) > MOST_BYTES and written > SINGLE_SET * self.l2_bytes:
            found = 1
        if needed(found) > MOST_BYTES:
            raise SkippedError(
                f"takes {needed(found) / 1e9:.0f} GB; the limit is {MOST_BYTES / 1e9:.0f}"
            )
        return found


def filled(spans: Sequence[Span]) -> int:
    return sum(last > first for first, last in spans)


def by_rows(
    spans: Sequence[Span], product: Callable[[int, slice], Tensor], rows: int, columns: int
) -> Tensor:
    """product(group, its rows) of all groups, as float32 [rows, columns]"""
    parts = [
        (slice(first, last), product(g, slice(first, last)))
        for g, (first, last) in enumerate(spans)
        if last > first
    ]
    result = torch.zeros(rows, columns, device=parts[0][1].device)
    for where, part in parts:
        result[where] = part
    return result


# ---- groups
def forward(setting: Setting) -> Made:
    """x [T, K] times weights [G, N, K], transposed"""
    shape = setting.shape
    return _of_rows(setting, shape.k, shape.n, transposed=True)


def dgrad(setting: Setting) -> Made:
    """The gradient of the result [T, N] times weights [G, N, K]"""
    shape = setting.shape
    return _of_rows(setting, shape.n, shape.k, transposed=False)


def _of_rows(setting: Setting, inner: int, columns: int, transposed: bool) -> Made:
    shape, ours, spans, offs = setting.shape, setting.library, setting.spans, setting.offs
    of_set = 2 * (shape.m * inner + shape.groups * shape.n * shape.k)
    slots = setting.slots(of_set, 2 * shape.m * columns)
    x = [setting.random(shape.m, inner) for _ in range(slots)]
    stored = [setting.random(shape.groups, shape.n, shape.k) for _ in range(slots)]
    w = [weights.mT if transposed else weights for weights in stored]  # [G, inner, columns]

    def expected(i: int) -> Tensor:
        return by_rows(spans, lambda g, rows: gemm.reference(x[i][rows], w[i][g]), shape.m, columns)

    sides = (
        harness.Side("torch", lambda i: torch_grouped_mm(x[i], w[i], offs)),
        harness.Side(ours.name, lambda i: ours.grouped_mm(x[i], w[i], offs)),
    )
    case = harness.Case(sides, slots, expected, TOLERANCE, worst=WORST)
    kernels = {ours.name: kernel_of(ours.kernel, "grouped_mm", x[0], w[0], offs=offs)}
    moved = shape.m * (inner + columns) + filled(spans) * shape.n * shape.k
    return Made(case, shape.flops, 2 * moved, kernels)


def wgrad(setting: Setting) -> Made:
    """The gradient of the result, transposed, [N, T] times x [T, K], to [G, N, K]

    Of torch's result groups without rows are not looked at; ours are zeros and checked in whole,
    unless all groups together would be too large.
    """
    shape, ours, spans, offs = setting.shape, setting.library, setting.spans, setting.offs
    matrix = shape.n * shape.k
    of_set = 2 * shape.m * (shape.n + shape.k)
    slots = setting.slots(of_set, 2 * shape.groups * matrix)
    dy = [setting.random(shape.m, shape.n) for _ in range(slots)]
    x = [setting.random(shape.m, shape.k) for _ in range(slots)]
    most = max(1, int(CHECKED_BYTES // (4 * matrix)))
    with_rows = [g for g, (first, last) in enumerate(spans) if last > first]
    chosen = with_rows[:: -(-len(with_rows) // most)]
    is_whole = len(spans) <= most

    def product(i: int, g: int) -> Tensor:
        rows = slice(*spans[g])
        return gemm.reference(dy[i][rows].t(), x[i][rows])

    def some(result: Tensor) -> tuple[Tensor, ...]:
        return tuple(result[g] for g in chosen)

    def expected(i: int) -> tuple[Tensor, ...]:
        return tuple(product(i, g) for g in chosen)

    def whole(i: int) -> Tensor:
        result = torch.zeros(len(spans), shape.n, shape.k, device=setting.device)
        for g in with_rows:
            result[g] = product(i, g)
        return result

    def mine(i: int) -> Any:
        result = ours.grouped_mm(dy[i].t(), x[i], offs)
        return result if is_whole and not ours.is_torch else some(result)

    sides = (
        harness.Side("torch", lambda i: some(torch_grouped_mm(dy[i].t(), x[i], offs)), expected),
        harness.Side(ours.name, mine, whole if is_whole and not ours.is_torch else expected),
    )
    case = harness.Case(sides, slots, expected, TOLERANCE, worst=WORST)
    kernels = {ours.name: kernel_of(ours.kernel, "grouped_mm", dy[0].t(), x[0], offs=offs)}
    moved = shape.m * (shape.n + shape.k) + shape.groups * matrix
    return Made(case, shape.flops, 2 * moved, kernels)


def fp8(setting: Setting, fast: bool) -> Made:
    """As forward, of e4m3 with a scale for each row of x and of the weights"""
    shape, ours, spans, offs = setting.shape, setting.library, setting.spans, setting.offs
    of_set = shape.m * shape.k + shape.groups * shape.n * shape.k
    slots = setting.slots(of_set, 2 * shape.m * shape.n)
    x = [setting.values(shape.m, shape.k) for _ in range(slots)]
    w = [setting.values(shape.groups, shape.n, shape.k) for _ in range(slots)]
    scale_x, scale_w = setting.scales(shape.m), setting.scales(shape.groups, shape.n)

    def expected(i: int) -> Tensor:
        def product(g: int, rows: slice) -> Tensor:
            return scaled.product(x[i][rows], w[i][g]) * scale_x[rows, None] * scale_w[g]

        return by_rows(spans, product, shape.m, shape.n)

    def side(name: str, call: Callable[..., Tensor]) -> harness.Side:
        return harness.Side(name, lambda i: call(x[i], w[i].mT, scale_x, scale_w, offs, fast))

    sides = (side("torch", torch_scaled), side(ours.name, ours.scaled))
    worst = scaled.WORST_FAST if fast else scaled.WORST
    case = harness.Case(sides, slots, expected, TOLERANCE, worst=worst)
    given = (x[0], w[0].mT, scale_x, scale_w)
    chosen = kernel_of(
        ours.kernel,
        "scaled_grouped_mm",
        *given[:3],
        scale_b=given[3],
        offs=offs,
        use_fast_accum=fast,
    )
    moved = shape.m * (shape.k + 2 * shape.n) + filled(spans) * shape.n * shape.k
    return Made(case, shape.flops, moved, {ours.name: chosen})


def gated(setting: Setting) -> Made:
    """silu(x gate^T) * (x up^T): the first half of an expert MLP; N is gate's and up's together"""
    shape, ours, spans, offs = setting.shape, setting.library, setting.spans, setting.offs
    half = shape.n // 2
    weights = 2 * shape.groups * shape.n * shape.k
    of_set = 2 * shape.m * shape.k + weights * (1 if ours.is_torch else 2)
    # torch keeps three results for a moment: the product, silu of its half, and what is returned.
    slots = setting.slots(of_set, 2 * shape.m * (half + shape.n))
    x = [setting.random(shape.m, shape.k) for _ in range(slots)]
    scale = shape.k**-0.5  # activations bend near 1
    w = [setting.random(shape.groups, shape.n, shape.k, scale=scale) for _ in range(slots)]
    of_ours = w if ours.is_torch else [packed(weight) for weight in w]

    def expected(i: int) -> Tensor:
        def product(g: int, rows: slice) -> Tensor:
            gate, up = gemm.reference(x[i][rows], w[i][g].t()).chunk(2, 1)
            return functional.silu(gate) * up

        return by_rows(spans, product, shape.m, half)

    sides = (
        harness.Side("eager", lambda i: eager_gated(x[i], w[i], offs)),
        harness.Side(ours.name, lambda i: ours.gated(x[i], of_ours[i], offs)),
    )
    case = harness.Case(sides, slots, expected, TOLERANCE, worst=WORST_GATED)
    chosen = kernel_of(ours.kernel, "grouped_gated_linear", x[0], of_ours[0], offs=offs)
    moved = shape.m * (shape.k + half) + filled(spans) * shape.n * shape.k
    return Made(case, shape.flops, 2 * moved, {ours.name: chosen})


GROUPS: dict[str, Callable[[Setting], Made]] = {
    "forward": forward,
    "dgrad": dgrad,
    "wgrad": wgrad,
    "fp8": functools.partial(fp8, fast=False),
    "fp8_fast": functools.partial(fp8, fast=True),
    "gated": gated,
}


def maker(side: str) -> Callable[[Job], Made]:
    device, l2_bytes = gpu()
    ours = library(side)
    return lambda job: GROUPS[job.group](Setting(job, device, l2_bytes, ours))
