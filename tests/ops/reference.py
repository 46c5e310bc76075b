"""The error rule: at most twice the error of torch's own op on the same inputs, plus a floor.

Errors are measured against float64 in two ways: of the whole (Frobenius norm, which sees a small
bias everywhere) and of the worst element (which sees one wrong element among millions). An element
is measured against the magnitude of its own sum, |A| |B|, because cancellation enlarges relative
errors without any kernel being at fault.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch

pytest.importorskip("cutwheel", reason="needs the built package (make test builds it)")

from cutwheel.tuning.measure import ROUNDING, TF32_OPERANDS, limit

# Accumulating in float32 loses at most about one unit in each step of a tensor core.
STEP = 16


@dataclass(frozen=True)
class Problem:
    """alpha * a @ b + beta * c in float64, with what is needed to judge a result."""

    value: torch.Tensor
    magnitude: torch.Tensor
    """|alpha| |a| |b| + |beta| |c|"""
    k: int
    operand: torch.dtype

    @classmethod
    def of(
        cls,
        a: torch.Tensor,
        b: torch.Tensor,
        c: torch.Tensor | None = None,
        alpha: float = 1,
        beta: float = 1,
    ) -> Problem:
        a64, b64 = a.detach().double(), b.detach().double()
        value = alpha * (a64 @ b64)
        magnitude = abs(alpha) * (a64.abs() @ b64.abs())
        if c is not None and beta != 0:
            c64 = c.detach().double()
            value, magnitude = value + beta * c64, magnitude + abs(beta) * c64.abs()
        return cls(value, magnitude, a.shape[-1], a.dtype)

    def errors(self, result: torch.Tensor) -> tuple[float, float]:
        """(of the norm, of the worst element)"""
        if result.numel() == 0:
            return 0.0, 0.0
        difference = (result.detach().double() - self.value).abs()
        norm = self.value.norm().item()
        of_norm = difference.norm().item() / norm if norm else difference.norm().item()
        tiny = torch.finfo(torch.float64).tiny
        return of_norm, (difference / self.magnitude.clamp_min(tiny)).max().item()

    def floor(self, result: torch.dtype) -> float:
        steps = max(self.k / STEP, 4)
        floor = ROUNDING[result] + steps * 2.0**-24
        return floor + (TF32_OPERANDS if self.operand == torch.float32 else 0)


def poison(shape: Sequence[int], dtype: torch.dtype, device: torch.device | str) -> None:
    """The allocator most likely gives this memory to the result: what is not written is NaN.

    In int8, which has none, it is -128.
    """
    value: float = float("nan")
    if dtype.itemsize == 1:
        value, dtype = 0x80 if dtype == torch.int8 else 0x7F, torch.uint8
    blocks = [torch.full(tuple(shape), value, dtype=dtype, device=device) for _ in range(2)]
    del blocks


@contextmanager
def told(call: object) -> Iterator[None]:
    """Errors say of which call they are."""
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{call}: {error}") from error
    except Exception as error:
        error.add_note(str(call))
        raise


def assert_as_good_as(result: torch.Tensor, torchs: torch.Tensor, problem: Problem) -> None:
    """`result` is as near to float64 as torch's result is, by the rule of this module."""
    assert result.shape == torchs.shape, f"shape {result.shape}, torch has {torchs.shape}"
    assert result.dtype == torchs.dtype, f"dtype {result.dtype}, torch has {torchs.dtype}"
    floor = problem.floor(result.dtype)
    names = ("the norm", "the worst element")
    for name, error, of_torch in zip(
        names, problem.errors(result), problem.errors(torchs), strict=True
    ):
        most = limit(of_torch, floor)
        assert error <= most, (
            f"error of {name}: {error:.3g}; torch has {of_torch:.3g}, the limit is {most:.3g}"
        )


# Error that an approximated activation may add, in units of its argument: the hardware's
# tanh.approx is within 2^-11; float32 results are computed without approximations.
APPROXIMATION = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-11, torch.float32: 2.0**-18}
# The most that an element of torch's result counts for, in units of its floor.
FUSED_WORST = 2.0


@dataclass(frozen=True)
class Weighed:
    """A result in float64 with the weights of the errors on the way to it, element by element."""

    value: torch.Tensor
    approx: torch.Tensor
    """weights for approximated functions, in units of their argument"""
    wide: torch.Tensor
    """weights for float32 arithmetic and the product, in units of what was added up"""
    k: int = 1
    tf32: bool = False

    def _floors(self, dtype: torch.dtype) -> tuple[float, torch.Tensor]:
        """(of the norm, of each element)"""
        step = max(self.k / STEP, 4) * 2.0**-24 + (TF32_OPERANDS if self.tf32 else 0)
        info = torch.finfo(dtype)
        tiny = max(info.tiny * info.eps, torch.finfo(torch.float32).tiny)
        rounded = ROUNDING[dtype] * self.value.abs()
        approximated = APPROXIMATION[dtype] * self.approx
        element = rounded + approximated + step * self.wide + tiny
        # Over a whole result the errors of K products add up like a random walk.
        walk = step * self.wide.norm() / max(self.k, 1) ** 0.5
        norm = rounded.norm() + approximated.norm() + walk + tiny * self.value.numel() ** 0.5
        return norm.item(), element

    def assert_as_good(
        self, result: torch.Tensor, torchs: torch.Tensor, what: str = "D", fused: bool = True
    ) -> None:
        """The rule of this module with a floor for each element.

        Where terms cancel, torch's roundings in between exceed that floor without bound. A fused
        result has none of them, and may not be that wrong.
        """
        assert result.shape == torchs.shape, f"{what}: {result.shape}, torch has {torchs.shape}"
        assert result.dtype == torchs.dtype, f"{what}: {result.dtype}, torch has {torchs.dtype}"
        if result.numel() == 0:
            return
        of_norm, of_element = self._floors(result.dtype)
        ours = (result.detach().double() - self.value).abs()
        theirs = (torchs.detach().double() - self.value).abs()
        error, most = ours.norm().item(), limit(theirs.norm().item(), of_norm)
        assert error <= most, (
            f"{what}: error {error:.3g} in the norm; torch has {theirs.norm().item():.3g}, the"
            f" limit is {most:.3g}, the norm of the result {self.value.norm().item():.3g}"
        )
        ratios = ours / of_element
        worst, of_torch = ratios.max().item(), (theirs / of_element).max().item()
        if fused:
            of_torch = min(of_torch, FUSED_WORST)
        at = int(ratios.nan_to_num(torch.inf).argmax())
        assert worst <= limit(of_torch, 1.0), (
            f"{what}: the worst element, number {at} of {tuple(result.shape)}, is"
            f" {result.flatten()[at].item():.6g} instead of {self.value.flatten()[at].item():.6g},"
            f" {worst:.3g} times its floor; torch's worst has {of_torch:.3g}"
        )
