"""A clock that needs no GPU: calls run on the CPU, times are made up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def as_tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


class SyntheticReplay:
    def __init__(self, call: Callable[[int], Any], buffers: int, calls: int, each: float) -> None:
        self.call, self.buffers, self.calls, self.each = call, buffers, calls, each
        self.timed = 0
        self.results: dict[int, Any] = {}
        self.run()

    def run(self) -> None:
        """Writes the memory of the first run again, as a graph does."""
        for index in range(self.calls):
            result = self.call(index % self.buffers)
            kept = self.results.setdefault(index % self.buffers, result)
            for old, new in zip(as_tuple(kept), as_tuple(result), strict=True):
                old.copy_(new)

    def seconds(self) -> float:
        self.timed += 1
        return self.each


class SyntheticClock:
    """Every call of a provider takes the time given for it; they are recorded in their order."""

    def __init__(self, *each: float) -> None:
        self.each = each
        self.replays: list[SyntheticReplay] = []

    def warm_up(self, call: Callable[[int], Any], buffers: int) -> None:
        call(0)

    def record(self, call: Callable[[int], Any], buffers: int, calls: int) -> SyntheticReplay:
        each = self.each[len(self.replays) % len(self.each)]
        self.replays.append(SyntheticReplay(call, buffers, calls, each))
        return self.replays[-1]
