"""The problems that are measured, for the tuner and the benchmarks: a function makes each case."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..case import Case, Setting
from ..jobs import Job
from ..measure import E4M3, INT8, Operands
from . import conv, gemm, grouped, scaled

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "tf32": torch.float32}
DTYPES |= {"fp8": E4M3, "int8": INT8}

_GROUPED = {"rows": grouped.forward, "columns": grouped.columns, "k": grouped.wgrad}
_CONV = {"fprop": conv.fprop, "dgrad": conv.dgrad, "wgrad": conv.wgrad}
_OPS: dict[str, Callable[[Setting], Case]] = {
    "mm": gemm.mm,
    "addmm": gemm.addmm,
    "linear": gemm.linear,
    "gated_linear": gemm.gated_linear,
    "gemm": gemm.gemm,
    "scaled_mm": scaled.scaled_mm,
}


def make_case(job: Job, device: torch.device, l2_bytes: int) -> Case:
    """A job of the tuner. Raises ValueError for one that means nothing."""
    op, variant = job.family.op, job.family.variant
    operands = Operands(device, l2_bytes, DTYPES[job.family.dtype], exact=torch.float32)
    # Rows spread evenly: the library knows their mean alone.
    spread = "uniform" if op.endswith("grouped_mm") else variant
    setting = Setting(job.shape, operands, spread, is_frugal=True)
    if op == "grouped_mm":
        return _GROUPED[variant](setting)
    if op == "scaled_grouped_mm":
        recipe, _, speed = variant.partition("+")
        return grouped.scaled_forward(setting, recipe, speed == "fast")
    return _CONV[variant](setting) if op == "conv2d" else _OPS[op](setting)
