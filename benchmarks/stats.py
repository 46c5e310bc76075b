"""Statistics of timings: medians, because one interrupted replay must not move a result."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


def quantile(values: Sequence[float], q: float) -> float:
    """Linear interpolation between the two nearest order statistics."""
    if not values:
        raise ValueError("quantile of no values")
    if not 0.0 <= q <= 1.0:
        raise ValueError(f"q is {q}; expected a number from 0 to 1")
    ordered = sorted(values)
    position = q * (len(ordered) - 1)
    low = math.floor(position)
    high = math.ceil(position)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def median(values: Sequence[float]) -> float:
    return quantile(values, 0.5)


def geomean(values: Iterable[float]) -> float:
    """The mean for ratios: 2x faster and 2x slower cancel out."""
    logs = [math.log(value) for value in values]
    if not logs:
        raise ValueError("geomean of no values")
    return math.exp(math.fsum(logs) / len(logs))


@dataclass(frozen=True)
class Spread:
    """A median and the range that holds the middle 60 % of the samples."""

    median: float
    p20: float
    p80: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(median(values), quantile(values, 0.2), quantile(values, 0.8))

    @property
    def relative(self) -> float:
        """Width of the range over the median: differences below this are noise."""
        return (self.p80 - self.p20) / self.median

    def scaled(self, factor: float) -> Spread:
        return Spread(self.median * factor, self.p20 * factor, self.p80 * factor)
