"""How GPU time is taken, results are checked and operands are made: for the tuner, the benchmarks
and the tests.

A problem has buffers: independent sets of random operands, rotated so that no call finds its own in
L2. Calls are captured into one CUDA graph, which takes the time the CPU needs to launch them out
of the measurement. The results of the very graph that is timed are checked before it is timed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch

Tensor = torch.Tensor
Results = Any  # a tensor, or a tuple of them
Call = Callable[[int], Results]  # runs the operation on the operands of a buffer
Key = TypeVar("Key")

E4M3, INT8 = torch.float8_e4m3fn, torch.int8
LARGEST = {E4M3: 448.0, INT8: 127.0}
BLOCK = 128
CHUNK_BYTES = 1 << 30  # temporaries of references and checks stay below about this size


# ---- how often
@dataclass(frozen=True)
class Spread:
    """A median, which one interrupted replay does not move, and the middle 60 % of the samples."""

    median: float
    p20: float
    p80: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of two values or more; quantiles are interpolated."""
        p20, _, _, p80 = statistics.quantiles(values, n=5, method="inclusive")
        return cls(statistics.median(values), p20, p80)

    def scaled(self, factor: float) -> Spread:
        return Spread(self.median * factor, self.p20 * factor, self.p80 * factor)


def rotation(bytes_per_buffer: int, l2_bytes: int, most: int = 1024) -> int:
    """How many buffers it takes until none is in L2 when its turn comes again.

    Between two uses of a buffer the others are read; together they exceed twice the L2 size.
    """
    if bytes_per_buffer <= 0:
        raise ValueError(f"bytes_per_buffer is {bytes_per_buffer}; expected a positive number")
    return max(2, min(2 + 2 * l2_bytes // bytes_per_buffer, most))


def iterations(of_call: float, buffers: int, of_replay: float, most: int) -> int:
    """Calls in one graph: whole rotations, since the next replay begins at buffer 0 again.

    Args:
        of_call: time of one call, and
        of_replay: that a replay is to take, in the same unit
        most: calls, unless one rotation has more
    """
    if not of_call > 0.0:
        raise ValueError(f"a call takes {of_call}; expected a positive number")
    wanted = min(math.ceil(of_replay / of_call), most)
    return buffers * max(1, round(wanted / buffers))


# ---- the clock
class Replay(Protocol):
    """Calls that were recorded and can be run again."""

    calls: int
    results: Mapping[int, Results]
    """what the last call of each buffer returned; a replay writes the same memory again"""

    def run(self) -> None: ...

    def seconds(self) -> float:
        """Runs it; the time of one call."""
        ...


class Clock(Protocol):
    """Records and times calls; GraphClock on a GPU, a synthetic one in tests."""

    def warm_up(self, call: Call, buffers: int) -> None: ...

    def record(self, call: Call, buffers: int, calls: int) -> Replay: ...


class GraphReplay:
    """One captured graph, replayed on the stream that it was captured on."""

    def __init__(
        self,
        graph: torch.cuda.CUDAGraph,
        stream: torch.cuda.Stream,
        calls: int,
        results: Mapping[int, Results],
    ) -> None:
        self.calls, self.results = calls, results
        self._graph, self._stream = graph, stream
        self._start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._stop = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

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
        return float(self._start.elapsed_time(self._stop)) * 1e-3 / self.calls


class GraphClock:
    """Captures and replays on one side stream, so that library workspaces are made only once.

    Args:
        shares_memory: all graphs are captured into one memory pool. What one has returned is
            overwritten by the next one, unless it is still referred to.
    """

    def __init__(self, device: torch.device, *, shares_memory: bool = False) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle() if shares_memory else None
        # A pool without a graph is gone, and nothing can be recorded into it any more.
        self._newest: torch.cuda.CUDAGraph | None = None

    def warm_up(self, call: Call, buffers: int) -> None:
        """Module load, handle creation and heuristics happen here, outside capture and timing."""
        self._stream.wait_stream(torch.cuda.default_stream())
        with torch.cuda.stream(self._stream):
            for index in range(min(buffers, 2)):
                call(index)
        self._stream.synchronize()

    def record(self, call: Call, buffers: int, calls: int) -> GraphReplay:
        # Not the torch.cuda.graph context manager: it collects garbage and empties the allocator's
        # cache every time, which would take longer than the measurement.
        graph = torch.cuda.CUDAGraph()
        results: dict[int, Results] = {}
        with torch.cuda.stream(self._stream), _capture(graph, self._pool):
            for index in range(calls):
                # A buffer's last result is freed only after its next one is made: outputs of
                # functional calls rotate through memory, as their operands do.
                results[index % buffers] = call(index % buffers)
        if self._pool is not None:
            self._newest = graph
        return GraphReplay(graph, self._stream, calls, results)


@contextmanager
def _capture(graph: torch.cuda.CUDAGraph, pool: Any) -> Iterator[None]:
    graph.capture_begin(pool=pool, capture_error_mode="thread_local")
    try:
        yield
    except BaseException:
        # The capture must end even so; what it says then is only a consequence of the first error.
        with suppress(RuntimeError):
            graph.capture_end()
        raise
    graph.capture_end()


def in_turns(replays: Mapping[Key, Replay], rounds: int) -> dict[Key, list[float]]:
    """Seconds of a call, once in each round: clocks and temperature move all alike."""
    samples: dict[Key, list[float]] = {key: [] for key in replays}
    for _ in range(rounds):
        for key, replay in replays.items():
            samples[key].append(replay.seconds())
    return samples


# ---- the check
# Half a unit in the last place: what the one rounding at the end costs.
ROUNDING = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-23}
# TF32 keeps 10 bits of each operand; hardware may cut where another path rounds.
TF32_OPERANDS = 2.0**-10
WITHOUT_BASELINE = 4.0  # times the floor
# Roundings deviate by up to about ten times their root mean square, those of products by more.
WORST = 20.0


@dataclass(frozen=True)
class Error:
    """Deviation from the reference, over the root mean square of the reference."""

    relative: float
    """of the whole result: ||result - expected|| / ||expected||"""
    worst: float
    """of the worst element; a single wrong element does not show in the norm"""

    @classmethod
    def of(cls, result: Tensor, expected: Tensor) -> Error:
        """In float64, a block of rows at a time. NaN where the result has NaN.

        Raises:
            ValueError: another shape, or a reference of zeros alone
        """
        if result.shape != expected.shape:
            raise ValueError(f"shape {tuple(result.shape)}; expected {tuple(expected.shape)}")
        columns = result.shape[-1]
        result, expected = result.reshape(-1, columns), expected.reshape(-1, columns)
        rows = max(1, CHUNK_BYTES // (24 * columns))
        # Sums of squares of the difference and of the reference.
        squares = torch.zeros(2, dtype=torch.float64, device=result.device)
        worst = torch.zeros((), dtype=torch.float64, device=result.device)
        for first in range(0, result.shape[0], rows):
            reference = wide(expected[first : first + rows])
            difference = wide(result[first : first + rows]) - reference
            squares[0] += difference.square().sum()
            squares[1] += reference.square().sum()
            worst = torch.maximum(worst, difference.abs_().max())  # keeps NaN
        norm = math.sqrt(squares[1].item())
        if norm == 0.0:
            raise ValueError("the reference is all zeros: random data is needed")
        rms = norm / math.sqrt(expected.numel())
        return cls(math.sqrt(squares[0].item()) / norm, worst.item() / rms)

    @classmethod
    def largest(cls, errors: Sequence[Error]) -> Error:
        def largest(values: list[float]) -> float:
            return math.nan if any(map(math.isnan, values)) else max(values)

        return cls(largest([e.relative for e in errors]), largest([e.worst for e in errors]))

    def within(self, allowed: Error) -> bool:
        # Written so that NaN fails.
        return self.relative <= allowed.relative and self.worst <= allowed.worst


def limit(of_torch: float, floor: float) -> float:
    """The error rule: at most twice the error of torch's own op, plus a floor."""
    return 2 * of_torch + floor


def tolerance(baseline: Error | None, dtype: torch.dtype) -> Error:
    """The largest error that is right by the error rule.

    Args:
        baseline: error of torch's own op; None where it has none, and NaN counts as none: torch's
            op with 1x128 scales returns NaN where K / 128 is no multiple of 4 (torch 2.11)
        dtype: of the result. Of float32 the operands are taken to be TF32.
    """
    floor = TF32_OPERANDS if dtype == torch.float32 else ROUNDING.get(dtype, TF32_OPERANDS)
    if baseline is None or math.isnan(baseline.relative):
        return Error(WITHOUT_BASELINE * floor, WORST * WITHOUT_BASELINE * floor)
    relative = limit(baseline.relative, floor)
    # Sums that stay in fp8 tensor cores are truncated: some elements suffer far more than others.
    return Error(relative, max(WORST * relative, 2 * baseline.worst))


def tensors_of(results: Results) -> tuple[Tensor, ...]:
    return results if isinstance(results, tuple) else (results,)


def run_poisoned(replay: Replay) -> None:
    """Runs the graph on results that were overwritten: what it does not write stands out."""
    for result in replay.results.values():
        for tensor in tensors_of(result):
            poison(tensor)
    replay.run()


def poison(x: Tensor) -> None:
    """NaN, or a number that no GEMM results in."""
    if x.element_size() == 1:
        x.view(torch.uint8).fill_(0x7F)  # NaN in e4m3 and e5m2
    else:
        x.fill_(math.nan if x.is_floating_point() else -0x7FFFFFF)


def wide(x: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """In a wider type; 8-bit floats by way of float32, which holds them exactly."""
    return (x.float() if x.element_size() == 1 else x).to(dtype)


def deviation(results: Results, expected: Results) -> Error:
    """The largest error of one or several results."""
    pairs = zip(tensors_of(results), tensors_of(expected), strict=True)
    return Error.largest([Error.of(result, wanted) for result, wanted in pairs])


# ---- references
def exactly(function: Callable[..., Tensor], *operands: Any, dtype: torch.dtype) -> Tensor:
    """`function` of tensors in a wider dtype, kept as float32.

    Args:
        dtype: float64, without cuDNN; or float32 without TF32, for GPUs whose float64 is slow
    """
    given = [wide(x, dtype) if isinstance(x, Tensor) else x for x in operands]
    if dtype == torch.float64:
        with torch.backends.cudnn.flags(enabled=False):
            return function(*given).float()
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = False
    try:
        return function(*given)
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


def matmul(x: Tensor, w: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """x [M, K] times w [K, N] in a wider dtype, kept as float32; blocks of rows bound the memory.

    Batches of both come one after the other. float64 does not depend on the TF32 setting.
    """
    if x.dim() == 3:
        return torch.stack([matmul(*each, dtype) for each in zip(x, w, strict=True)])
    if dtype == torch.float32:
        return exactly(torch.mm, x, w, dtype=dtype)
    right = wide(w)
    result = torch.empty(x.shape[0], w.shape[1], dtype=torch.float32, device=x.device)
    rows = max(1, CHUNK_BYTES // (8 * (x.shape[1] + w.shape[1])))
    for first in range(0, x.shape[0], rows):
        result[first : first + rows] = wide(x[first : first + rows]) @ right
    return result


# ---- operands
@dataclass(frozen=True)
class Operands:
    """Makes random operands; of zeros, a GPU draws less power and clocks higher."""

    device: torch.device
    l2_bytes: int
    dtype: torch.dtype = torch.bfloat16
    exact: torch.dtype = torch.float64
    """of references: float32 where many GPUs, whose float64 is slow, are to compute them"""

    def matmul(self, x: Tensor, w: Tensor) -> Tensor:
        """Reference of x [M, K] times w [K, N], or of a batch of them, float32"""
        return matmul(x, w, self.exact)

    def normal(self, *extents: int, scale: float = 1.0) -> Tensor:
        values = torch.empty(extents, dtype=self.dtype, device=self.device).normal_()
        return values.mul_(scale) if scale != 1.0 else values

    def channels_last(self, *extents: int, scale: float = 1.0) -> Tensor:
        """[N, C, H, W] or [N, C, D, H, W]"""
        n, c, *rest = extents
        return self.normal(n, *rest, c, scale=scale).movedim(-1, 1)

    def eight_bits(self, *extents: int, dtype: torch.dtype = E4M3) -> Tensor:
        """Normal, a standard deviation of 24; by chunks, since weights of experts are large"""
        out = torch.empty(extents, dtype=dtype, device=self.device)
        flat, most = out.view(-1), 1 << 26
        for first in range(0, flat.numel(), most):
            part = flat[first : first + most]
            some = torch.randn(part.numel(), device=self.device).mul_(24)
            some = some.round_() if dtype == INT8 else some
            part.copy_(some.clamp_(-LARGEST[dtype], LARGEST[dtype]).to(dtype))
        return out

    def scales(self, *extents: int) -> Tensor:
        """Powers of two from 2^-8 to 2^-4, float32: products of 8-bit values stay exact"""
        return torch.exp2(torch.randint(-8, -3, extents, device=self.device).float())

    def ends(self, ends: Sequence[int]) -> Tensor:
        """Ends of groups as grouped GEMMs take them, int32."""
        return torch.tensor(ends, dtype=torch.int32, device=self.device)


def spans(ends: Sequence[int]) -> list[tuple[int, int]]:
    """First row of each group, and that behind its last one"""
    return list(zip((0, *ends[:-1]), ends, strict=True))


def blocks(extent: int) -> int:
    return -(-extent // BLOCK)


def outer_major(x: Tensor) -> Tensor:
    """Stride 1 along the first extent: how torch and cuBLAS want the scales of 1x128."""
    return x.t().contiguous().t()


def scaled(values: Tensor, scales: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """values [rows, K] times scales of blocks of them, or of one or both of rows and K"""
    for dim in (0, 1):
        if scales.shape[dim] not in (1, values.shape[dim]):
            scales = scales.repeat_interleave(BLOCK, dim).narrow(dim, 0, values.shape[dim])
    return values.to(dtype) * scales.to(dtype)
