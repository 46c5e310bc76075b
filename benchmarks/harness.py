"""Two implementations of one operation: checked against a reference, then timed side by side.

A case has slots: independent sets of random inputs and an output each, rotated so that no call
finds its inputs in L2. Each side's calls are captured into one CUDA graph, which takes the time the
CPU needs to launch them out of the measurement. Replays of the two graphs alternate, so that clocks
and temperature move both alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

import torch

from . import plan
from .stats import Spread

Call = Callable[[int], None]  # runs the operation on the inputs of a slot, into its output
CHUNK_BYTES = 1 << 30  # temporaries of the check stay below about this size


class Replay(Protocol):
    """A recorded sequence of calls that can be run again."""

    def run(self) -> None: ...

    def seconds(self) -> float: ...


class Clock(Protocol):
    """Records and times calls; GraphClock on a GPU, a synthetic one in tests."""

    def warm_up(self, call: Call, slots: int) -> None: ...

    def record(self, call: Call, slots: int, iterations: int) -> Replay: ...


class GraphReplay:
    """One captured graph, replayed on the stream it was captured on."""

    def __init__(self, graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream) -> None:
        self._graph = graph
        self._stream = stream
        self._start = torch.cuda.Event(enable_timing=True)
        self._stop = torch.cuda.Event(enable_timing=True)

    def run(self) -> None:
        self._stream.wait_stream(torch.cuda.default_stream())
        with torch.cuda.stream(self._stream):
            self._graph.replay()
        self._stream.synchronize()

    def seconds(self) -> float:
        with torch.cuda.stream(self._stream):
            self._start.record()
            self._graph.replay()
            self._stop.record()
        self._stop.synchronize()
        milliseconds: float = self._start.elapsed_time(self._stop)
        return milliseconds * 1e-3


class GraphClock:
    """Captures and replays on one side stream, so that library workspaces are made only once."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)

    def warm_up(self, call: Call, slots: int) -> None:
        """Module load, handle creation and heuristics happen here, outside capture and timing."""
        self._stream.wait_stream(torch.cuda.default_stream())
        with torch.cuda.stream(self._stream):
            for index in range(min(slots, 2)):
                call(index)
        self._stream.synchronize()

    def record(self, call: Call, slots: int, iterations: int) -> GraphReplay:
        # Not the torch.cuda.graph context manager: it collects garbage and empties the allocator's
        # cache every time, which would take longer than the measurement.
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream), _capture(graph):
            for index in range(iterations):
                call(index % slots)
        return GraphReplay(graph, self._stream)


@contextmanager
def _capture(graph: torch.cuda.CUDAGraph) -> Iterator[None]:
    graph.capture_begin(capture_error_mode="thread_local")
    try:
        yield
    except BaseException:
        # The capture must end even so; what it says then is only a consequence of the first error.
        with suppress(RuntimeError):
            graph.capture_end()
        raise
    graph.capture_end()


@dataclass(frozen=True)
class Side:
    name: str
    call: Call


@dataclass(frozen=True)
class Case:
    """What is compared. The first side is the baseline; ratio = its time over the second side's."""

    sides: tuple[Side, Side]
    outputs: Sequence[torch.Tensor]  # one for each slot, written by both sides in turn
    reference: Callable[[int], torch.Tensor]  # slot -> the result, float32 or better
    tolerance: float  # for the relative error in the Frobenius norm

    @property
    def slots(self) -> int:
        return len(self.outputs)


@dataclass(frozen=True)
class Error:
    """Deviation from the reference, over the root mean square of the reference."""

    relative: float  # of the whole output: ||out - ref|| / ||ref||
    worst: float  # of the worst element; a single wrong element does not show in the norm

    def within(self, tolerance: float) -> bool:
        # Written so that NaN fails. Rounding of normally distributed values deviates by up to about
        # ten times its root mean square; a wrong element by far more.
        return self.relative <= tolerance and self.worst <= 10.0 * tolerance

    @staticmethod
    def largest(errors: Sequence[Error]) -> Error:
        return Error(
            _max_or_nan([error.relative for error in errors]),
            _max_or_nan([error.worst for error in errors]),
        )


def _max_or_nan(values: Sequence[float]) -> float:
    return math.nan if any(math.isnan(value) for value in values) else max(values)


def measure_error(out: torch.Tensor, reference: torch.Tensor) -> Error:
    """Compare in float64, a block of rows at a time."""
    if out.shape != reference.shape:
        raise ValueError(f"output has shape {tuple(out.shape)}; expected {tuple(reference.shape)}")
    columns = out.shape[-1]
    out, reference = out.reshape(-1, columns), reference.reshape(-1, columns)
    rows = max(1, CHUNK_BYTES // (24 * columns))
    squares = torch.zeros(2, dtype=torch.float64, device=out.device)  # of difference, of reference
    worst = torch.zeros((), dtype=torch.float64, device=out.device)
    for first in range(0, out.shape[0], rows):
        expected = reference[first : first + rows].double()
        difference = out[first : first + rows].double().sub_(expected)
        squares[0] += difference.square().sum()
        squares[1] += expected.square().sum()
        worst = torch.maximum(worst, difference.abs_().max())  # propagates NaN
    norm = math.sqrt(squares[1].item())
    if norm == 0.0:
        raise ValueError("the reference is all zeros: random data is needed")
    rms = norm / math.sqrt(reference.numel())
    return Error(math.sqrt(squares[0].item()) / norm, worst.item() / rms)


@dataclass(frozen=True)
class Measurement:
    """Outcome for one case; times exist only where both sides were right."""

    status: str  # "ok" or "failed"
    reason: str
    errors: dict[str, Error]
    times: dict[str, Spread]  # seconds for one call
    ratio: Spread | None  # baseline time / other time
    iterations: int
    rounds: int


def describe(error: BaseException) -> str:
    """The first line: torch appends pages of advice to some of its errors."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0] if text else 'no message'}"


def compare(case: Case, clock: Clock, limits: plan.Limits, seconds: float) -> Measurement:
    """Check both sides on the very graphs that are timed, then time them in alternating rounds."""
    failures: list[str] = []
    pilots: dict[str, float] = {}
    for side in case.sides:
        try:
            clock.warm_up(side.call, case.slots)
            pilot = clock.record(side.call, case.slots, case.slots)
            pilot.run()
            pilots[side.name] = pilot.seconds() / case.slots
        except (RuntimeError, TypeError, ValueError) as failure:
            failures.append(f"{side.name}: {describe(failure)}")
    if failures:
        return _failed(failures, {})

    count = plan.iterations(min(pilots.values()), case.slots, limits)
    replays = {side.name: clock.record(side.call, case.slots, count) for side in case.sides}
    errors = _check(case, replays)
    for name, error in errors.items():
        if not error.within(case.tolerance):
            failures.append(
                f"{name}: wrong result, relative error {error.relative:.1e}, worst element"
                f" {error.worst:.1e}; tolerance {case.tolerance:.0e} and {10 * case.tolerance:.0e}"
            )
    if failures:
        return _failed(failures, errors)

    round_count = plan.rounds(count * sum(pilots.values()), seconds, limits)
    samples: dict[str, list[float]] = {name: [] for name in replays}
    for _ in range(round_count):
        for name, replay in replays.items():
            samples[name].append(replay.seconds() / count)
    times = {name: Spread.of(values) for name, values in samples.items()}
    return Measurement("ok", "", errors, times, _ratio(*samples.values()), count, round_count)


def _failed(failures: Sequence[str], errors: dict[str, Error]) -> Measurement:
    return Measurement("failed", "; ".join(failures), errors, {}, None, 0, 0)


def _ratio(baseline: Sequence[float], other: Sequence[float]) -> Spread:
    """Median over median; the spread is that of single rounds, whose replays share their clocks."""
    each = Spread.of([b / o for b, o in zip(baseline, other, strict=True)])
    overall = Spread.of(baseline).median / Spread.of(other).median
    return Spread(overall, min(each.p20, overall), max(each.p80, overall))


def _check(case: Case, replays: dict[str, Replay]) -> dict[str, Error]:
    """Poison every output, run the graph, compare the first and the last slot, each fully."""
    checked = sorted({0, case.slots - 1})
    references = {slot: case.reference(slot) for slot in checked}
    errors = {}
    for name, replay in replays.items():
        for out in case.outputs:
            out.fill_(math.nan)
        replay.run()
        found = [measure_error(case.outputs[slot], references[slot]) for slot in checked]
        errors[name] = Error.largest(found)
    return errors
