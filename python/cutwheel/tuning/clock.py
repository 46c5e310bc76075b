"""Time by CUDA-graph replay: what the host does between launches is left out."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import torch

Tensor = torch.Tensor


class Replay(Protocol):
    """Calls that were recorded; `results` of the first slot and the last one."""

    calls: int
    results: list[Tensor]

    def run(self) -> None: ...

    def seconds(self) -> float:
        """Of one call."""
        ...


class Clock(Protocol):
    def record(self, call: Callable[[int], Tensor], slots: int, calls: int) -> Replay: ...


class GraphReplay:
    def __init__(self, graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream, calls: int) -> None:
        self.calls = calls
        self.results: list[Tensor] = []
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
    """One stream and one memory pool for all graphs of a job."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()
        # A pool without a graph is gone, and nothing can be recorded into it any more.
        self._newest: torch.cuda.CUDAGraph | None = None

    def record(self, call: Callable[[int], Tensor], slots: int, calls: int) -> GraphReplay:
        # Modules are loaded at their first launch, which must not happen in a capture.
        self._stream.wait_stream(torch.cuda.default_stream())
        with torch.cuda.stream(self._stream):
            call(0)
        self._stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        replay = GraphReplay(graph, self._stream, calls)
        kept: dict[int, Tensor] = {}
        with torch.cuda.stream(self._stream):
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                for index in range(calls):
                    # A slot's last result lives until its next one is there: results rotate, too.
                    kept[index % slots] = call(index % slots)
            except BaseException:
                with suppress(RuntimeError):  # only a consequence of the first error
                    graph.capture_end()
                raise
            graph.capture_end()
        self._newest = graph
        replay.results = [kept[0], kept[min(slots, calls) - 1]]
        return replay


def calls_for(us: float, slots: int, replay_us: float = 500.0, most: int = 128) -> int:
    """Calls of a graph: whole rotations of about so many microseconds."""
    wanted = min(most, math.ceil(replay_us / max(us, 0.5)))
    return slots * max(1, round(wanted / slots))
