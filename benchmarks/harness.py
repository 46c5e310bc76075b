"""Implementations of one operation: checked against a reference, then timed side by side.

A case has slots: independent sets of random inputs, rotated so that no call finds its inputs in L2.
Each side's calls are captured into one CUDA graph, which takes the time the CPU needs to launch
them out of the measurement. Replays of the graphs alternate, so that clocks and temperature move
all sides alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from . import plan
from .stats import Spread

Results = Any  # a tensor, or a tuple of them
Call = Callable[[int], Results]  # runs the operation on the inputs of a slot
CHUNK_BYTES = 1 << 30  # temporaries of the check stay below about this size


class Replay(Protocol):
    """A recorded sequence of calls that can be run again.

    `results` has what the last call of each slot returned. A replay writes the same memory again.
    """

    results: Mapping[int, Results]

    def run(self) -> None: ...

    def seconds(self) -> float: ...


class Clock(Protocol):
    """Records and times calls; GraphClock on a GPU, a synthetic one in tests."""

    def warm_up(self, call: Call, slots: int) -> None: ...

    def record(self, call: Call, slots: int, iterations: int) -> Replay: ...


class GraphReplay:
    """One captured graph, replayed on the stream it was captured on."""

    def __init__(
        self,
        graph: torch.cuda.CUDAGraph,
        stream: torch.cuda.Stream,
        results: Mapping[int, Results],
    ) -> None:
        self.results = results
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
        results: dict[int, Results] = {}
        with torch.cuda.stream(self._stream), _capture(graph):
            for index in range(iterations):
                # A slot's last result is freed only after its next one is made: outputs of
                # functional calls rotate through memory, as their inputs do.
                results[index % slots] = call(index % slots)
        return GraphReplay(graph, self._stream, results)


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


Reference = Callable[[int], Results]  # slot -> what the results should be, float32 or better
Pair = tuple[str, str]  # a side and the baseline it is compared with


@dataclass(frozen=True)
class Side:
    name: str
    call: Call
    reference: Reference | None = None  # where it is another than the case's


@dataclass(frozen=True)
class Case:
    """What is compared: ratio = time of a pair's baseline over that of its other side.

    Without pairs, an empty sequence, sides are only checked and timed.
    """

    sides: Sequence[Side]
    slots: int
    reference: Reference
    tolerance: float  # for the relative error in the Frobenius norm
    pairs: Sequence[Pair] | None = None  # if not given: the last side with each of the others
    worst: float = 10.0  # times the tolerance: of one element, over the root mean square of all
    needed: Sequence[str] = ()  # sides that must not fail, beside those of the pairs

    def all_pairs(self) -> list[Pair]:
        if self.pairs is not None:
            return list(self.pairs)
        *baselines, other = (side.name for side in self.sides)
        return [(other, baseline) for baseline in baselines]


@dataclass(frozen=True)
class Error:
    """Deviation from the reference, over the root mean square of the reference."""

    relative: float  # of the whole output: ||out - ref|| / ||ref||
    worst: float  # of the worst element; a single wrong element does not show in the norm

    def within(self, tolerance: float, worst: float) -> bool:
        # Written so that NaN fails. Rounding of normally distributed values deviates by up to about
        # ten times its root mean square, of products of two of them by more; a wrong element by
        # far more.
        return self.relative <= tolerance and self.worst <= worst * tolerance

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
        expected = wide(reference[first : first + rows])
        difference = wide(out[first : first + rows]) - expected
        squares[0] += difference.square().sum()
        squares[1] += expected.square().sum()
        worst = torch.maximum(worst, difference.abs_().max())  # propagates NaN
    norm = math.sqrt(squares[1].item())
    if norm == 0.0:
        raise ValueError("the reference is all zeros: random data is needed")
    rms = norm / math.sqrt(reference.numel())
    return Error(math.sqrt(squares[0].item()) / norm, worst.item() / rms)


def wide(x: torch.Tensor) -> torch.Tensor:
    """float64; 8-bit floats by way of float32, which holds them exactly."""
    return (x.float() if x.element_size() == 1 else x).double()


def poison(x: torch.Tensor) -> None:
    """What a graph does not write again is NaN, or far off where there is no NaN."""
    if x.element_size() == 1:
        x.view(torch.uint8).fill_(0x7F)  # NaN in e4m3 and e5m2
    else:
        x.fill_(math.nan if x.is_floating_point() else 0x7FFF)


@dataclass(frozen=True)
class Measurement:
    """Outcome for one case; times exist only where all results were right."""

    status: str  # "ok" or "failed"
    reason: str  # of a failure; if ok, which baselines could not be measured, and why
    errors: dict[str, Error] = field(default_factory=dict)
    times: dict[str, Spread] = field(default_factory=dict)  # seconds for one call
    ratios: dict[Pair, Spread] = field(default_factory=dict)
    iterations: int = 0
    rounds: int = 0

    @property
    def ratio(self) -> Spread | None:
        """That of the only pair there is."""
        return next(iter(self.ratios.values()), None)


def describe(error: BaseException) -> str:
    """The first line: torch appends pages of advice to some of its errors."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0] if text else 'no message'}"


def compare(case: Case, clock: Clock, limits: plan.Limits, seconds: float) -> Measurement:
    """Check all sides on the very graphs that are timed, then time them in alternating rounds.

    A baseline that cannot be measured is left out; the case fails if another side cannot be, or if
    no baseline is left.
    """
    failures: dict[str, str] = {}
    pilots: dict[str, float] = {}
    for side in case.sides:
        try:
            pilots[side.name] = _pilot(side, case.slots, clock)
        except (RuntimeError, TypeError, ValueError) as failure:
            failures[side.name] = describe(failure)
    if _has_failed(case, failures):
        return _failed(failures, {})

    count = plan.iterations(min(pilots.values()), case.slots, limits)
    replays = {
        side.name: clock.record(side.call, case.slots, count)
        for side in case.sides
        if side.name in pilots
    }
    errors = _check(case, replays)
    for name, error in errors.items():
        if not error.within(case.tolerance, case.worst):
            failures[name] = (
                f"wrong result, relative error {error.relative:.1e}, worst element"
                f" {error.worst:.1e}; tolerance"
                f" {case.tolerance:.0e} and {case.worst * case.tolerance:.0e}"
            )
            del replays[name]
    if _has_failed(case, failures):
        return _failed(failures, errors)

    round_seconds = count * sum(pilots[name] for name in replays)
    round_count = plan.rounds(round_seconds, seconds, limits)
    samples: dict[str, list[float]] = {name: [] for name in replays}
    for _ in range(round_count):
        for name, replay in replays.items():
            samples[name].append(replay.seconds() / count)
    times = {name: Spread.of(values) for name, values in samples.items()}
    ratios = {
        (name, baseline): _ratio(samples[baseline], samples[name])
        for name, baseline in case.all_pairs()
        if baseline in samples
    }
    return Measurement("ok", _texts(failures), errors, times, ratios, count, round_count)


def _pilot(side: Side, slots: int, clock: Clock) -> float:
    """Seconds for one call, roughly. A function of its own: it frees the graph and its results."""
    clock.warm_up(side.call, slots)
    pilot = clock.record(side.call, slots, slots)
    pilot.run()
    return pilot.seconds() / slots


def _has_failed(case: Case, failures: Mapping[str, str]) -> bool:
    pairs = case.all_pairs()
    measured = [baseline for _, baseline in pairs if baseline not in failures]
    needed = [*case.needed, *(name for name, _ in pairs)]
    return bool(pairs and not measured) or any(name in failures for name in needed)


def _texts(failures: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {text}" for name, text in failures.items())


def _failed(failures: Mapping[str, str], errors: dict[str, Error]) -> Measurement:
    return Measurement("failed", _texts(failures), errors)


def _ratio(baseline: Sequence[float], other: Sequence[float]) -> Spread:
    """Median over median; the spread is that of single rounds, whose replays share their clocks."""
    each = Spread.of([b / o for b, o in zip(baseline, other, strict=True)])
    overall = Spread.of(baseline).median / Spread.of(other).median
    return Spread(overall, min(each.p20, overall), max(each.p80, overall))


def _check(case: Case, replays: Mapping[str, Replay]) -> dict[str, Error]:
    """Poison every result, run the graph, compare the first and the last slot, each fully."""
    checked = sorted({0, case.slots - 1})
    errors = {}
    known: tuple[Reference | None, list[Results]] = (None, [])
    for side in case.sides:
        if side.name not in replays:
            continue
        replay = replays[side.name]
        reference = side.reference or case.reference
        if known[0] is not reference:  # sides that share one follow each other; none is kept
            known = (None, [])
            known = (reference, [reference(slot) for slot in checked])
        for result in replay.results.values():
            for tensor in tensors_of(result):
                poison(tensor)
        replay.run()
        found = [
            measure_error(out, expected)
            for slot, wanted in zip(checked, known[1], strict=True)
            for out, expected in zip(
                tensors_of(replay.results[slot]), tensors_of(wanted), strict=True
            )
        ]
        errors[side.name] = Error.largest(found)
    return errors


def tensors_of(results: Results) -> tuple[torch.Tensor, ...]:
    return results if isinstance(results, tuple) else (results,)
