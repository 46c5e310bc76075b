"""What the pass for torch.compile finds in the graphs of models as people have them."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
import torch

if TYPE_CHECKING:
    from cpu_reference import CpuOps
    from inductor_on_cpu import Compiled

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

BRAIN = torch.bfloat16
Graphs = Callable[..., "Compiled"]

# By op and epilogue, in two layers and what is around them.
FORWARD = {
    "llama": {"linear_fused(bias_residual)": 4, "mm": 11},
}


@pytest.fixture
def inductor_graphs(traced_on_cpu: CpuOps, monkeypatch: pytest.MonkeyPatch) -> Iterator[Graphs]:
    from inductor_on_cpu import Compiled, pretend_gpu

    from cutwheel.inductor import report

    pretend_gpu(monkeypatch.setattr)
    report(clear=True)
    yield lambda function, **how: Compiled(traced_on_cpu, function, **how)
    torch._dynamo.reset()
    report(clear=True)


def replaced(cutwheel: ModuleType) -> list[dict[str | None, int]]:
    """Of each graph, how many products became what."""
    graphs = cutwheel.inductor.report(clear=True).graphs
    return [dict(Counter(entry.replaced_by for entry in graph.entries)) for graph in graphs]


def close(got: Any, wanted: Any) -> None:
    distance = (got.float() - wanted.float()).norm() / wanted.float().norm()
    assert float(distance) < 0.03
