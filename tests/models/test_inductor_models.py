"""What the pass for torch.compile finds in the graphs of models as people have them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

import model_cases as cases
import pytest
import torch

if TYPE_CHECKING:
    from cpu_reference import CpuOps
    from inductor_on_cpu import Compiled

Tensor = torch.Tensor
BRAIN = torch.bfloat16
Graphs = Callable[..., "Compiled"]

RESIDUAL = "linear_fused(bias_residual)"
# By op and epilogue, in two layers and what is around them; nothing is left.
FORWARD: dict[str, dict[str | None, int]] = {
    "llama": {RESIDUAL: 4, "linear_fused(gated_silu)": 4, "mm": 7},
    "bert": {RESIDUAL: 4, "linear_fused(bias_gelu)": 3, "addmm": 7},
    # Its patches are no channels-last images.
    "vit": {RESIDUAL: 4, "linear_fused(bias_gelu)": 2, "addmm": 6, None: 1},
    # Attention and MLP side by side: one sum has three terms.
    "phi": {RESIDUAL: 2, "linear_fused(bias_gelu_tanh)": 2, "addmm": 9},
}

# Batch norms stay between the convolutions.
NETWORKS: dict[str, dict[str | None, int]] = {"resnet18": {"conv2d": 20, "addmm": 1}}


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
    """Of each graph, how many products and convolutions became what."""
    graphs = cutwheel.inductor.report(clear=True).graphs
    return [dict(Counter(entry.replaced_by for entry in graph.entries)) for graph in graphs]


def distance(got: Tensor, wanted: Tensor) -> float:
    return float((got.float() - wanted.float()).norm() / wanted.float().norm())


@pytest.mark.slow
@pytest.mark.parametrize("family", list(FORWARD))
def test_forward(inductor_graphs: Graphs, cutwheel: ModuleType, family: str) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    model = cases.build(family).to(BRAIN)
    given = cases.inputs(family, dtype=BRAIN)
    with torch.no_grad():
        wanted = cases.result(model, given)
        compiled = inductor_graphs(lambda **given: cases.result(model, given))
        assert distance(compiled(**given), wanted) < 0.03
    assert replaced(cutwheel) == [FORWARD[family]]


@pytest.mark.slow
def test_where_a_result_goes(inductor_graphs: Graphs, cutwheel: ModuleType) -> None:
    """A Llama's residuals are needed twice, and its gated units are all that reads their input."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    model = cases.build("llama").to(BRAIN)
    given = cases.inputs("llama", dtype=BRAIN)
    with torch.no_grad():
        compiled = inductor_graphs(lambda **given: cases.result(model, given), only_faster=True)
        compiled(**given)
    (found,) = replaced(cutwheel)
    assert found == FORWARD["llama"]


@pytest.mark.slow
def test_backward(inductor_graphs: Graphs, cutwheel: ModuleType) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    model = cases.build("llama", num_hidden_layers=1).to(BRAIN)
    given = cases.inputs("llama", dtype=BRAIN)
    wanted = cases.gradients(model, given)
    compiled = inductor_graphs(model)
    found = cases.gradients(_Called(model, compiled), given)
    for name, grad in wanted.items():
        assert distance(found[name], grad) < 0.1, name
    forward, backward = replaced(cutwheel)
    assert None not in forward
    assert None not in backward
    # Two gradients for each product.
    assert sum(backward.values()) == 2 * sum(forward.values())


class _Called:
    """A model that is called in another way."""

    def __init__(self, model: torch.nn.Module, call: Callable[..., Any]) -> None:
        self._model, self._call = model, call

    def __call__(self, **given: Any) -> Any:
        return self._call(**given)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


@pytest.fixture
def networks() -> Any:
    try:
        import torchvision
    except (ImportError, RuntimeError) as error:  # its operators are of another torch
        pytest.skip(f"torchvision does not import: {error}")
    return torchvision.models


@pytest.mark.slow
@pytest.mark.parametrize("name", list(NETWORKS))
def test_networks(inductor_graphs: Graphs, cutwheel: ModuleType, networks: Any, name: str) -> None:
    torch.manual_seed(3)
    last = torch.channels_last
    model = getattr(networks, name)(weights=None).eval().to(BRAIN)
    model = model.to(memory_format=last)
    x = torch.randn(2, 3, 64, 64).bfloat16().to(memory_format=last)
    with torch.no_grad():
        wanted = model(x)
        compiled = inductor_graphs(model)
        assert distance(compiled(x), wanted) < 0.05
    (found,) = replaced(cutwheel)
    assert found == NETWORKS[name]
