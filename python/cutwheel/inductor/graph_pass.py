"""The pass that Inductor runs over every graph, forward and backward.

It is Inductor's public interface for custom passes: a `CustomGraphPass` whose `uuid` is a part of
the key of Inductor's caches.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass

from .. import _library
from ..ops._common import batch_invariance
from .chains import mutating_positions
from .convolutions import replace_convolution
from .gains import Target
from .gating import replace_gated
from .gemms import replace_product
from .report import Replacement, record
from .scaled import replace_scaled

Previous = Callable[[fx.Graph], None]


class _Context:
    """What is asked of a graph again and again."""

    def __init__(self, graph: fx.Graph, only_faster: bool) -> None:
        self.graph = graph
        self.only_faster = only_faster
        self.autotuned = bool(config.max_autotune or config.max_autotune_gemm) and bool(
            config.external_matmul
        )
        self._order = {node: position for position, node in enumerate(graph.nodes)}
        self._mutations = mutating_positions(graph, self._order)
        self._targets: dict[torch.device, Target | str] = {}

    def target(self, device: torch.device) -> Target | str:
        if device not in self._targets:
            self._targets[device] = Target.of(device, self.only_faster)
        return self._targets[device]

    def is_written_between(self, first: fx.Node, last: fx.Node) -> bool:
        """Whether an operation between two nodes writes to what it is given. Nodes that the pass
        has made since stand where the ones that they replace stood."""
        begin, end = self._order.get(first, -1), self._order.get(last, len(self._order))
        return any(begin < position < end for position in self._mutations)


class CutwheelPass(CustomGraphPass):  # type: ignore[misc,unused-ignore]
    """Puts cutwheel's kernels in the place of products and convolutions, with what follows them.

    Args:
        only_faster: as of `inductor_options()`
        previous: passes that were set before, which run first
    """

    def __init__(self, only_faster: bool = True, previous: tuple[Previous, ...] = ()) -> None:
        self.only_faster = only_faster
        self.previous = previous

    def __call__(self, graph: fx.Graph) -> None:
        for each in self.previous:
            each(graph)
        context = _Context(graph, self.only_faster)
        entries: list[Replacement] = []
        # Before single products, which may be a part of a gated linear unit.
        for node in list(graph.nodes):
            if not node._erased:
                entries += replace_gated(graph, node, context)
        for node in list(graph.nodes):
            if node._erased:
                continue
            for replace in (replace_product, replace_convolution, replace_scaled):
                entry = replace(graph, node, context)
                if entry is not None:
                    entries.append(entry)
                    break
        if any(entry.replaced_by for entry in entries):
            from torch._inductor.pattern_matcher import stable_topological_sort

            # What an epilogue stores may be used before the place where it was put.
            stable_topological_sort(graph)
            graph.lint()
        record(_name_of_graph(), entries)

    def uuid(self) -> Any | None:
        """What the result depends on besides the graph. None, which turns Inductor's caches off, if
        a previous pass has no uuid; and with freezing, since keys of caches leave the values of
        frozen weights out, which packed ones are made of."""
        if config.freezing:
            return None
        known = []
        for each in self.previous:
            identity = each.uuid() if isinstance(each, CustomGraphPass) else None
            if identity is None:
                return None
            known.append(identity)
        mode = self.only_faster, batch_invariance.enabled
        return ("cutwheel", self._sources, *mode, *known)

    @cached_property
    def _sources(self) -> str:
        """A hash of this package's sources and of the kernels that the wheel has."""
        digest = hashlib.sha256(_library.VERSION.encode())
        for path in sorted(Path(__file__).parent.glob("*.py")):
            digest.update(path.read_bytes())
        digest.update(torch.ops.cutwheel._kernels().encode())
        return digest.hexdigest()

    def __eq__(self, other: object) -> bool:
        """torch.compile compares options to find out whether it has compiled a function before."""
        return (
            isinstance(other, CutwheelPass)
            and self.only_faster == other.only_faster
            and self.previous == other.previous
        )

    def __hash__(self) -> int:
        return hash((self.only_faster, self.previous))

    def __getstate__(self) -> dict[str, Any]:
        return {"only_faster": self.only_faster, "previous": self.previous}


def _name_of_graph() -> str:
    try:
        from torch._functorch._aot_autograd.logging_utils import get_graph_being_compiled

        return str(get_graph_being_compiled())
    except (ImportError, AttributeError, IndexError):
        return "graph"
