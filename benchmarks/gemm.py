"""cutwheel.mm(x, w.t()) against torch.mm(x, w.t()), shape by shape; with a bias, addmm.

All sides write with ``out=`` into the same rotated outputs: the same addresses for all, nothing
allocated inside the graphs but workspaces, and an output that can be poisoned before the check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from . import harness, plan
from .session import Made, gpu, spread
from .shapes import ProductJob
from .stats import Spread

__all__ = ["DTYPES", "TOLERANCES", "ceilings", "make", "maker", "precision", "reference", "spread"]

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "tf32": torch.float32}
# Relative errors of right results: about 2e-3, 2e-4 and 3e-4; partial sums rounded to 16 bits,
# which torch allows itself, add to that.
TOLERANCES = {"bf16": 1e-2, "f16": 2e-3, "tf32": 2e-3}
CUBLASLT = "torch, cublaslt"


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


@contextmanager
def blas_library(name: str) -> Iterator[None]:
    """What torch.mm calls: "cublas", as it does by itself, or "cublaslt"."""
    before = torch.backends.cuda.preferred_blas_library()
    torch.backends.cuda.preferred_blas_library(name)
    try:
        yield
    finally:
        torch.backends.cuda.preferred_blas_library(before)


def candidate(name: str, op: str) -> tuple[str, Callable[..., Any]]:
    """The side measured against torch; torch itself shows what the harness calls a difference."""
    if name == "torch":
        return "torch (again)", getattr(torch, op)
    import cutwheel  # a torch-only run needs no cutwheel

    return "cutwheel", getattr(cutwheel, op)


def make(job: ProductJob, dtype: str, device: torch.device, l2_bytes: int, side: str) -> Made:
    """Random inputs and the sides of ``mm`` or, with a row that is added, ``addmm``."""
    op, shape = job
    kind = DTYPES[dtype]
    slots = plan.rotation(shape.input_bytes(kind.itemsize), l2_bytes)
    x = [torch.randn(shape.m, shape.k, dtype=kind, device=device) for _ in range(slots)]
    w = [torch.randn(shape.n, shape.k, dtype=kind, device=device).t() for _ in range(slots)]
    out = [torch.empty(shape.m, shape.n, dtype=kind, device=device) for _ in range(slots)]
    bias = (torch.randn(shape.n, dtype=kind, device=device),) if op == "addmm" else ()
    theirs = getattr(torch, op)
    name, ours = candidate(side, op)

    def by_cublaslt(i: int) -> Any:
        # While the graph is captured: a replay does not ask for the library again.
        with blas_library("cublaslt"):
            return theirs(*bias, x[i], w[i], out=out[i])

    sides = [harness.Side("torch", lambda i: theirs(*bias, x[i], w[i], out=out[i]))]
    if op == "mm":  # addmm with a row takes cuBLASLt by itself
        sides.append(harness.Side(CUBLASLT, by_cublaslt))
    sides.append(harness.Side(name, lambda i: ours(*bias, x[i], w[i], out=out[i])))

    def expected(i: int) -> torch.Tensor:
        product = reference(x[i], w[i])
        return product.add_(bias[0].float()) if bias else product

    case = harness.Case(sides, slots, expected, TOLERANCES[dtype])
    kernels = {name: chosen_kernel(op, *bias, x[0], w[0])} if side == "cutwheel" else {}
    return Made(case, shape.flops, shape.min_bytes(kind.itemsize), kernels)


def maker(dtype: str, side: str) -> Callable[[ProductJob], Made]:
    device, l2_bytes = gpu()
    return lambda job: make(job, dtype, device, l2_bytes, side)


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


def ceilings(dtype: str) -> dict[str, float]:
    """What this GPU reaches now: a large copy (bytes read plus written), a large torch.mm."""
    device, _ = gpu()
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
