"""cutwheel.fuse: the fused modules in place of the layers of a model, by a pass over its graph.

`model` says how a model is taken apart, `tracing` what can be traced, `chains` what is fused,
`aliases` what must not be moved, `rewriting` puts the new modules, `modules`, into the graph, and
`report` says what was done.
"""

from __future__ import annotations

from .model import fuse
from .report import FusionReport, Kept, Replacement

__all__ = ["FusionReport", "Kept", "Replacement", "fuse"]
