"""cutwheel.mm(x, w.t()) against torch.mm(x, w.t()); with a bias, addmm.

All sides write with ``out=`` into the same rotated outputs: the same addresses for all, and nothing
allocated inside the graphs but workspaces.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

import cutwheel
from cutwheel.tuning.measure import Error, product

from ..compare import Case, Limits, Setting, Side
from . import Suite, kernel

# Relative errors of right results: about 2e-3, 2e-4 and 3e-4; partial sums rounded to 16 bits,
# which torch allows itself, add to that.
ALLOWED = {
    torch.bfloat16: Error(1e-2, 1e-1),
    torch.float16: Error(2e-3, 2e-2),
    torch.float32: Error(2e-3, 2e-2),
}
CUBLASLT = "torch, cublaslt"


@contextmanager
def precision(dtype: str) -> Iterator[None]:
    """Allows TF32 for float32 operands, on both sides: cutwheel follows torch's setting."""
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


def mm(setting: Setting) -> Case:
    return _case(setting, "mm")


def addmm(setting: Setting) -> Case:
    return _case(setting, "addmm", setting.operands.normal(setting.shape.n))


def _case(setting: Setting, op: str, *bias: torch.Tensor) -> Case:
    (m, n, k), make = setting.shape, setting.operands
    itemsize = make.dtype.itemsize
    slots = setting.slots(setting.shape.input_bytes(itemsize))
    x = [make.normal(m, k) for _ in range(slots)]
    w = [make.normal(n, k).t() for _ in range(slots)]
    out = [torch.empty(m, n, dtype=make.dtype, device=make.device) for _ in range(slots)]
    theirs, ours = getattr(torch, op), getattr(cutwheel, op)

    def by_cublaslt(i: int) -> Any:
        # While the graph is captured: a replay does not ask for the library again.
        with blas_library("cublaslt"):
            return theirs(*bias, x[i], w[i], out=out[i])

    def reference(i: int) -> torch.Tensor:
        expected = product(x[i], w[i])
        return expected.add_(bias[0].float()) if bias else expected

    sides = [Side("torch", lambda i: theirs(*bias, x[i], w[i], out=out[i]))]
    if op == "mm":  # addmm with a row takes cuBLASLt by itself
        sides.append(Side(CUBLASLT, by_cublaslt))
    sides.append(Side("cutwheel", lambda i: ours(*bias, x[i], w[i], out=out[i])))
    return Case(
        sides,
        slots,
        reference,
        ALLOWED[make.dtype],
        setting.shape.flops,
        setting.shape.min_bytes(itemsize),
        kernels={"cutwheel": kernel(op, *bias, x[0], w[0])},
    )


SUITE = Suite({"mm": mm, "addmm": addmm}, Limits(), "bf16", has_ceilings=True, context=precision)
