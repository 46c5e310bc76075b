"""Dtypes of dense operands, and what torch's settings mean for them: TF32 and autocast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
"""of operands that are not quantised"""


def _make_tf32_lookup(of: str) -> Callable[[], bool]:
    # torch._C's getter is the one place that knows all of torch's settings at once: those of
    # backends.cuda.matmul.fp32_precision (backends.cudnn.conv.fp32_precision), of the generic
    # backends.fp32_precision behind it, of allow_tf32 and of set_float32_matmul_precision. The
    # public property asks it, too, at ten times the cost; allow_tf32 and its getter raise where a
    # user mixed the older settings and the newer.
    getter: Callable[[str, str], str] | None = getattr(torch._C, "_get_fp32_precision_getter", None)
    if getter is None:
        backends: Any = torch.backends
        settings = backends.cuda.matmul if of == "matmul" else backends.cudnn.conv
        return lambda: bool(settings.fp32_precision == "tf32")
    return lambda: getter("cuda", of) == "tf32"


tf32_allowed = _make_tf32_lookup("matmul")
"""Whether torch allows float32 matmuls on TF32 tensor cores now.

torch.compile takes the answer at trace time as a constant. torch's own guards make it trace again
when torch.backends.cuda.matmul.fp32_precision, allow_tf32 or set_float32_matmul_precision change
it, but not for the generic torch.backends.fp32_precision: set that before compiling.
"""

conv_tf32_allowed = _make_tf32_lookup("conv")
"""Whether torch allows float32 convolutions on TF32 tensor cores now, as it does by default.

torch.compile takes the answer at trace time as a constant.
"""
# As torch.compiler.assume_constant_result, without its import of the whole compiler.
for _lookup in (tf32_allowed, conv_tf32_allowed):
    _lookup._dynamo_marked_constant = True  # type: ignore[attr-defined]


def autocast_operands(*tensors: Any) -> tuple[Any, ...]:
    """The tensors in the autocast dtype, as torch casts for its own matmuls.

    Only floating-point CUDA tensors other than float64 are cast; the cast is differentiable.
    """
    dtype = torch.get_autocast_dtype("cuda")
    return tuple(
        tensor.to(dtype)
        if tensor is not None
        and tensor.is_cuda
        and tensor.is_floating_point()
        and tensor.dtype != torch.float64
        else tensor
        for tensor in tensors
    )
