"""cutwheel.mm(x, w.t()) against torch.mm(x, w.t()), shape by shape; with a bias, addmm.

Both sides write with ``out=`` into the same rotated outputs: the same addresses for both, nothing
allocated inside the graphs but workspaces, and an output that can be poisoned before the check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from . import harness, plan, session
from .shapes import GemmShape
from .stats import Spread

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "tf32": torch.float32}
# Relative errors of right results: about 2e-3, 2e-4 and 3e-4; partial sums rounded to 16 bits,
# which torch allows itself, add to that.
TOLERANCES = {"bf16": 1e-2, "f16": 2e-3, "tf32": 2e-3}


@contextmanager
def precision(dtype: str) -> Iterator[None]:
    """Allow TF32 for float32 operands, on both sides: cutwheel follows torch's setting."""
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    if dtype == "tf32":
        matmul.fp32_precision = "tf32"
    try:
        yield
    finally:
        matmul.fp32_precision = before


def candidate(name: str, op: str) -> tuple[str, Callable[..., Any]]:
    """The side measured against torch; torch itself shows what the harness calls a difference."""
    if name == "torch":
        return "torch (again)", getattr(torch, op)
    import cutwheel  # a torch-only run needs no cutwheel

    return "cutwheel", getattr(cutwheel, op)


def make_case(
    shape: GemmShape,
    dtype: str,
    device: torch.device,
    l2_bytes: int,
    side: str,
    with_bias: bool = False,
) -> tuple[harness.Case, str | None]:
    """Random inputs and the two sides; also the kernel that cutwheel chooses."""
    kind = DTYPES[dtype]
    slots = plan.rotation(shape.input_bytes(kind.itemsize), l2_bytes)
    x = [torch.randn(shape.m, shape.k, dtype=kind, device=device) for _ in range(slots)]
    w = [torch.randn(shape.n, shape.k, dtype=kind, device=device).t() for _ in range(slots)]
    out = [torch.empty(shape.m, shape.n, dtype=kind, device=device) for _ in range(slots)]
    bias = (torch.randn(shape.n, dtype=kind, device=device),) if with_bias else ()
    op = "addmm" if with_bias else "mm"
    theirs = getattr(torch, op)
    name, ours = candidate(side, op)
    sides = (
        harness.Side("torch", lambda i: theirs(*bias, x[i], w[i], out=out[i])),
        harness.Side(name, lambda i: ours(*bias, x[i], w[i], out=out[i])),
    )

    def expected(i: int) -> torch.Tensor:
        product = reference(x[i], w[i])
        return product.add_(bias[0].float()) if bias else product

    case = harness.Case(sides, slots, expected, TOLERANCES[dtype])
    return case, chosen_kernel(op, *bias, x[0], w[0]) if side == "cutwheel" else None


def reference(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """x [M, K] times w [K, N] in float64, kept as float32; blocks of rows bound the memory.

    float64 does not depend on the TF32 setting.
    """
    wide = w.double()
    result = torch.empty(x.shape[0], w.shape[1], dtype=torch.float32, device=x.device)
    rows = max(1, harness.CHUNK_BYTES // (8 * (x.shape[1] + w.shape[1])))
    for first in range(0, x.shape[0], rows):
        result[first : first + rows] = x[first : first + rows].double() @ wide
    return result


def chosen_kernel(op: str, *operands: torch.Tensor) -> str:
    import cutwheel

    row: str = cutwheel.explain(op, *operands).row
    return row


def row(
    shape: GemmShape, dtype: str, slots: int, kernel: str | None, found: harness.Measurement
) -> dict[str, Any]:
    """One result, ready for JSON. Times in microseconds for one call."""
    itemsize = DTYPES[dtype].itemsize
    sides: dict[str, Any] = {
        name: {"relative_error": error.relative, "worst_error": error.worst}
        for name, error in found.errors.items()
    }
    for name, seconds in found.times.items():
        sides[name] |= {
            "us": spread(seconds.scaled(1e6)),
            "tflops": shape.flops / seconds.median * 1e-12,
            "gbs": shape.min_bytes(itemsize) / seconds.median * 1e-9,
        }
    return {
        "m": shape.m,
        "n": shape.n,
        "k": shape.k,
        "status": found.status,
        "reason": found.reason,
        "kernel": kernel,
        "ratio": spread(found.ratio) if found.ratio else None,
        "flops_per_byte": shape.flops / shape.min_bytes(itemsize),
        "sides": sides,
        "slots": slots,
        "iterations": found.iterations,
        "rounds": found.rounds,
    }


def spread(value: Spread) -> dict[str, float]:
    return {"median": value.median, "p20": value.p20, "p80": value.p80}


def unmeasured(shape: GemmShape, dtype: str, status: str, reason: str) -> dict[str, Any]:
    return row(shape, dtype, 0, None, harness.Measurement(status, reason))


def measure(
    shapes: Sequence[GemmShape],
    dtype: str,
    limits: plan.Limits,
    *,
    budget_seconds: float | None = None,
    side: str = "cutwheel",
    with_bias: bool = False,
    progress: Callable[[list[dict[str, Any]]], None] = lambda rows: None,
) -> list[dict[str, Any]]:
    """A row for each shape, see session.run."""
    device = torch.device("cuda", torch.cuda.current_device())
    l2_bytes = torch.cuda.get_device_properties(device).L2_cache_size
    clock = harness.GraphClock(device)

    def one(shape: GemmShape, seconds: float) -> dict[str, Any]:
        case, kernel = make_case(shape, dtype, device, l2_bytes, side, with_bias)
        found = harness.compare(case, clock, limits, seconds)
        return row(shape, dtype, case.slots, kernel, found)

    def without(shape: GemmShape, status: str, reason: str) -> dict[str, Any]:
        return unmeasured(shape, dtype, status, reason)

    return session.run(shapes, one, without, limits, budget_seconds, progress)


def ceilings(dtype: str) -> dict[str, float]:
    """What this GPU reaches now: a large copy (bytes read plus written), a large torch.mm."""
    device = torch.device("cuda", torch.cuda.current_device())
    clock = harness.GraphClock(device)
    source = torch.randn(1 << 29, dtype=torch.bfloat16, device=device)  # 1 GiB
    target = torch.empty_like(source)
    size = 8192
    a = torch.randn(size, size, dtype=DTYPES[dtype], device=device)
    d = torch.empty_like(a)

    def best(call: harness.Call) -> float:
        clock.warm_up(call, 1)
        replay = clock.record(call, 1, 4)
        return Spread.of([replay.seconds() / 4 for _ in range(7)]).median

    copy = best(lambda _: target.copy_(source))
    product = best(lambda _: torch.mm(a, a, out=d))
    return {
        "gbs": 2 * source.nbytes / copy * 1e-9,
        "tflops": 2 * size**3 / product * 1e-12,
    }
