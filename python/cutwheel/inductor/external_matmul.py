"""cutwheel's mm among the candidates that Inductor measures with max-autotune.

Inductor calls each function of `torch._inductor.config.external_matmul` with an `out`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Matmul = Callable[..., None]


def cutwheel_mm(a: Tensor, b: Tensor, *, out: Tensor) -> None:
    """mm into `out` by a kernel of cutwheel, by torch where there is none for the operands.

    Args:
        a: [M, K]
        b: [K, N]
        out: [M, N]
    """
    if a.dtype in (torch.float16, torch.bfloat16) and a.is_cuda:
        try:
            torch.ops.cutwheel.mm.out(a, b, out=out)
            return
        except RuntimeError:  # no kernel for these operands: torch's is measured in its place
            pass
    torch.mm(a, b, out=out)


def matmuls(before: Sequence[Matmul]) -> list[Matmul]:
    """The candidates that were set before, and cutwheel's."""
    _register(cutwheel_mm)
    return [*(each for each in before if each is not cutwheel_mm), cutwheel_mm]


def _register(function: Matmul) -> Any:
    """Inductor registers a candidate where it lowers a product. Code from its cache calls it by
    name in a process that has lowered none."""
    from torch._inductor.kernel.mm import lazy_register_extern_choice

    return lazy_register_extern_choice(function)
