"""mm, addmm and bmm against torch's: cutwheel.tuning.cases.gemm has the calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

import cutwheel
from cutwheel.tuning.case import Case, Setting
from cutwheel.tuning.cases import gemm

from ..compare import Limits
from . import Suite, compiled


@contextmanager
def precision(dtype: str) -> Iterator[None]:
    """Allows TF32 for float32 operands, on both providers: cutwheel follows torch's setting."""
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    if dtype == "tf32":
        matmul.fp32_precision = "tf32"
    try:
        yield
    finally:
        matmul.fp32_precision = before


def mm(setting: Setting) -> Case:
    """In the batch-invariant mode beside a kernel of one configuration, too."""
    if cutwheel.is_batch_invariant() and setting.operands.dtype == torch.bfloat16:
        try:
            from . import one_configuration
        except ImportError:
            return gemm.mm(setting)  # without Triton
        setting = replace(setting, others={one_configuration.NAME: one_configuration.mm})
    return gemm.mm(setting)


def dgrad(setting: Setting) -> Case:
    """mm in the layouts of the gradient of a linear layer's input."""
    return gemm.mm(replace(setting, variant="dgrad"))


def wgrad(setting: Setting) -> Case:
    """mm in the layouts of the gradient of its weight."""
    return gemm.mm(replace(setting, variant="wgrad"))


# Triton's GEMM with the tiles that Inductor finds fastest, cuBLAS's not among them.
TRITON_ALONE = {"max_autotune": True, "max_autotune_gemm_backends": "TRITON"}

SUITE = Suite(
    {
        "mm": mm,
        "dgrad": dgrad,
        "wgrad": wgrad,
        "addmm": gemm.addmm,
        "scores": gemm.scores,
        "values": gemm.values,
    },
    Limits(),
    "bf16",
    has_ceilings=True,
    context=precision,
    compiled=lambda function, mode: compiled(function, options=TRITON_ALONE, dynamic=False),
    mode="max_autotune, Triton alone",
)
