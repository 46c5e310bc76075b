"""cutwheel.fuse: the fused modules in place of the layers of a model, by a pass over its graph.

`model` says how a model is taken apart. `tracing` makes the graph of what can be traced; `opaque`
says what is not looked into, `questions` and `constants` what a graph would not do as forward does.
`layers` says which layers are taken and `chains` what is fused (`padding` in front, `activations`
behind), `aliases` what must not be moved. `rewriting` puts the new modules, `modules`, into the
graph, `formats` keeps memory formats, `excitation` computes squeeze-and-excite by products of
matrices, `measuring` compares chains with torch's layers, and `report` says what was done.
"""

from __future__ import annotations

from .model import fuse
from .report import FusionReport, Kept, Replacement

__all__ = ["FusionReport", "Kept", "Replacement", "fuse"]
