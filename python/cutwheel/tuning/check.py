"""Whether a result is right: at most twice the error of torch's own op, plus a floor."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

Tensor = torch.Tensor
# About what the last rounding costs; TF32 keeps 10 bits of the operands.
FLOOR = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-10}
WITHOUT_BASELINE = 4.0  # times the floor
# Roundings deviate by up to about ten times their root mean square, those of products by more.
WORST = 20.0


@dataclass(frozen=True)
class Error:
    """Over the root mean square of what is expected."""

    relative: float
    worst: float
    """of one element"""

    @classmethod
    def of(cls, result: Tensor, expected: Tensor) -> Error:
        """expected: float32. NaN where the result has NaN. Raises ValueError for another shape."""
        if result.shape != expected.shape:
            raise ValueError(f"shape {tuple(result.shape)}; expected {tuple(expected.shape)}")
        difference = result.float() - expected
        norm = torch.linalg.vector_norm(expected).item()
        rms = norm / math.sqrt(max(1, expected.numel()))
        if rms == 0.0:
            raise ValueError("the reference is all zeros")
        # Unlike a maximum of Python's, torch's keeps NaN.
        worst = difference.abs().max().item()
        return cls(torch.linalg.vector_norm(difference).item() / norm, worst / rms)


def tolerance(baseline: Error | None, dtype: torch.dtype) -> Error:
    """The largest error that is right."""
    floor = FLOOR.get(dtype, 2.0**-10)
    if baseline is None:
        return Error(WITHOUT_BASELINE * floor, WORST * WITHOUT_BASELINE * floor)
    relative = 2 * baseline.relative + floor
    # Sums that stay in fp8 tensor cores are truncated: some elements suffer far more than others.
    return Error(relative, max(WORST * relative, 2 * baseline.worst))


def is_right(error: Error, allowed: Error) -> bool:
    # Written so that NaN fails.
    return error.relative <= allowed.relative and error.worst <= allowed.worst


def poison(result: Tensor) -> None:
    """NaN, or a number that no product has."""
    result.fill_(math.nan if result.is_floating_point() else -0x7FFFFFF)
