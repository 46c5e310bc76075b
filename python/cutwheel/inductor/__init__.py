"""torch.compile with cutwheel's kernels: a pass over Inductor's graphs, its options, a backend.

A graph's products (`products`), convolutions and gated units (`gating`) are found with what follows
them (`chains`, `formulas`), judged by what was measured (`gains`), and replaced (`graph_pass`).
"""

from __future__ import annotations

from .options import backend
from .options import inductor_options as inductor_options
from .report import CompiledGraph, CompileReport, Replacement, report

__all__ = [
    "CompileReport",
    "CompiledGraph",
    "Replacement",
    "backend",
    "report",
]
