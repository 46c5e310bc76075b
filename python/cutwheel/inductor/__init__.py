"""torch.compile with cutwheel's kernels: a pass over Inductor's graphs, its options, a backend.

    formulas, products, chains   what is found: activations, GEMMs, what follows them
    convolutions                 the same of images
    gains, measured              where a kernel is expected to be faster
    graph_pass                   replaces, for Inductor
    options                      inductor_options(), the backend "cutwheel"
    report                       what was replaced, and why not the rest
"""

from __future__ import annotations

from .options import backend, inductor_options
from .report import CompiledGraph, CompileReport, Replacement, report

__all__ = [
    "CompileReport",
    "CompiledGraph",
    "Replacement",
    "backend",
    "inductor_options",
    "report",
]
