"""report(): what the passes replaced in the graphs that were compiled, and why not the rest."""

from __future__ import annotations

import threading
from collections import Counter, deque
from dataclasses import dataclass

from ..ops._common.log import logger

MOST_GRAPHS = 256
"""that are remembered; older ones are forgotten"""


@dataclass(frozen=True)
class Replacement:
    """A matrix product or convolution of a graph."""

    op: str
    """aten's, such as "addmm" """
    problem: str
    """MxNxK, dtype and layout; of a convolution N, C, H, W, Ko and the filter's extents"""
    replaced_by: str | None
    """cutwheel's op, with its epilogue; None: it stays with Inductor"""
    reason: str = ""
    """why it stays, or why not more of what follows it is in the kernel"""

    def __str__(self) -> str:
        note = f" ({self.reason})" if self.replaced_by and self.reason else ""
        where = f"{self.replaced_by}{note}" if self.replaced_by else f"Inductor: {self.reason}"
        return f"{self.op:<12} {self.problem:<34} {where}"


@dataclass(frozen=True)
class CompiledGraph:
    """A graph that Inductor compiled, forward or backward."""

    name: str
    """as Inductor calls it, such as "model__0_forward_1" """
    entries: tuple[Replacement, ...]

    @property
    def replaced(self) -> int:
        """How many products and convolutions run in cutwheel's kernels."""
        return sum(entry.replaced_by is not None for entry in self.entries)

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.replaced} of {len(self.entries)} replaced"]
        for entry, count in Counter(self.entries).items():
            lines.append(f"  {count:>4} x {entry}")
        return "\n".join(lines)


@dataclass(frozen=True)
class CompileReport:
    """What `inductor.report()` tells; as text, a list by graph."""

    graphs: tuple[CompiledGraph, ...]

    @property
    def replaced(self) -> int:
        """How many products and convolutions run in cutwheel's kernels, in all graphs."""
        return sum(graph.replaced for graph in self.graphs)

    @property
    def left(self) -> int:
        """How many stayed with Inductor."""
        return sum(len(graph.entries) for graph in self.graphs) - self.replaced

    def __str__(self) -> str:
        return "\n".join(map(str, self.graphs)) or "no graph was compiled"


_lock = threading.Lock()
_graphs: deque[CompiledGraph] = deque(maxlen=MOST_GRAPHS)


def record(name: str, entries: list[Replacement]) -> None:
    """Remembers a graph, and tells of it: a line at the level info, all of it at debug."""
    graph = CompiledGraph(name, tuple(entries))
    with _lock:
        _graphs.append(graph)
    if not entries:
        return
    logger.info("torch.compile: %s: %d of %d replaced", name, graph.replaced, len(entries))
    for entry, count in Counter(entries).items():
        logger.debug("torch.compile: %s: %d x %s", name, count, entry)


def report(*, clear: bool = False) -> CompileReport:
    """Tells which matrix products and convolutions of compiled graphs run in cutwheel's kernels.

    It knows of the graphs that this process compiled with `inductor_options()` or the backend
    "cutwheel". A graph from Inductor's cache was looked at by the process that wrote it.

    Args:
        clear: begin anew after this report
    """
    with _lock:
        graphs = tuple(_graphs)
        if clear:
            _graphs.clear()
    return CompileReport(graphs)
