"""What the grouped benchmarks compare: torch's grouped products, and the library measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

E4M3 = torch.float8_e4m3fn
Tensor = torch.Tensor


def torch_grouped_mm(a: Tensor, b: Tensor, offs: Tensor) -> Tensor:
    """Without the Python of torch.nn.functional.grouped_mm around it."""
    return torch._grouped_mm(a, b, offs=offs)


def torch_scaled(
    a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, offs: Tensor, fast: bool
) -> Tensor:
    return torch._scaled_grouped_mm(
        a, b, scale_a, scale_b, offs=offs, out_dtype=torch.bfloat16, use_fast_accum=fast
    )


def eager_gated(x: Tensor, weight: Tensor, offs: Tensor) -> Tensor:
    """weight [G, 2F, K]: the rows of gate, then those of up."""
    gate, up = torch_grouped_mm(x, weight.mT, offs).chunk(2, -1)
    return functional.silu(gate) * up


def packed(weight: Tensor) -> Tensor:
    """Rows of gate and up in turn, as cutwheel.pack_gated_weight makes them."""
    gate, up = weight.chunk(2, 1)
    return torch.stack((gate, up), 2).flatten(1, 2)


@dataclass(frozen=True)
class Library:
    """What is measured against torch; the operands of each are those of torch's function."""

    name: str
    grouped_mm: Callable[[Tensor, Tensor, Tensor], Tensor]
    scaled: Callable[..., Tensor]
    gated: Callable[[Tensor, Tensor, Tensor], Tensor]  # of a packed weight, unless it is torch
    kernel: Callable[..., str | None]  # (name of the op, its operands)
    is_torch: bool = False


def library(name: str) -> Library:
    """cutwheel, or torch again: the noise."""
    if name == "torch":
        return Library(
            "torch (again)",
            torch_grouped_mm,
            torch_scaled,
            eager_gated,
            lambda *operands, **keywords: None,
            is_torch=True,
        )
    import cutwheel  # a torch-only run needs no cutwheel

    def grouped_mm(a: Tensor, b: Tensor, offs: Tensor) -> Tensor:
        result: Tensor = cutwheel.grouped_mm(a, b, offs=offs)
        return result

    def scaled(
        a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, offs: Tensor, fast: bool
    ) -> Tensor:
        result: Tensor = cutwheel.scaled_grouped_mm(
            a,
            b,
            scale_a,
            scale_b=scale_b,
            offs=offs,
            output_dtype=torch.bfloat16,
            use_fast_accum=fast,
        )
        return result

    def gated(x: Tensor, weight: Tensor, offs: Tensor) -> Tensor:
        result: Tensor = cutwheel.grouped_gated_linear(x, weight, offs=offs, activation="silu")
        return result

    def kernel(op: str, *operands: Any, **keywords: Any) -> str | None:
        row: str | None = cutwheel.explain(op, *operands, **keywords).row
        return row

    return Library("cutwheel", grouped_mm, scaled, gated, kernel)
