"""Experts of Transformers' models by cutwheel: against its own implementations, on a GPU."""

from __future__ import annotations

import copy
from types import ModuleType
from typing import Any

import model_cases as cases
import pytest
import torch
from runtime import capture, no_waiting

pytest.importorskip("transformers", reason="transformers is not installed")
pytestmark = pytest.mark.gpu

Tensor = torch.Tensor
BRAIN = torch.bfloat16
MODELS = ["mixtral", "qwen3_moe", "deepseek_v3", "gpt_oss"]
TOKENS, K, HIDDEN = 67, 2, 128


def experts(family: str, device: str) -> Any:
    model = cases.build(family).to(device)
    name = next(name for name, _ in model.named_modules() if name.endswith("experts"))
    found = [m for key, m in model.named_modules() if key.endswith(".experts")]
    assert found, name
    return found[-1]


def drawn(device: str, count: int) -> list[Tensor]:
    ids = torch.randint(0, count, (TOKENS, K), device=device)
    ids[:3] = 1  # one expert twice
    weights = torch.rand(TOKENS, K, device=device)
    return [torch.randn(TOKENS, HIDDEN, device=device), ids, weights]


def results(module: Any, given: list[Tensor], how: str, dtype: torch.dtype) -> list[Tensor]:
    """The result, and gradients of states, factors and the original's parameters."""
    module = copy.deepcopy(module).to(dtype)
    module.config._experts_implementation = how
    states, ids, weights = given
    states = states.clone().to(dtype).requires_grad_()
    factors = weights.clone().to(dtype).requires_grad_()
    if how == "replaced":
        from cutwheel.models.experts import replace_experts

        replace_experts(module)
    result = module(states, ids, factors)
    made = torch.Generator(states.device).manual_seed(3)
    grad = torch.randn(result.shape, device=states.device, generator=made)
    result.backward(grad.to(dtype))
    of_weights = cases.gradients_of(module)
    return [
        result.detach(),
        states.grad,
        factors.grad,
        *(of_weights[n] for n in sorted(of_weights)),
    ]


def distance(got: Tensor, want: Tensor) -> float:
    return float(
        (got.detach().float() - want.detach().float()).norm() / want.detach().float().norm()
    )


@pytest.mark.parametrize("how", ["cutwheel", "replaced"])
@pytest.mark.parametrize("family", MODELS)
def test_against_transformers(cutwheel: ModuleType, device: str, family: str, how: str) -> None:
    cutwheel.models.register_transformers()
    module = experts(family, device)
    given = drawn(device, 4)
    want = results(module, given, "eager", torch.float32)
    floors = [results(module, given, name, BRAIN) for name in ("eager", "grouped_mm")]
    found = results(module, given, how, BRAIN)
    for index, wanted in enumerate(want):
        floor = max(distance(each[index], wanted) for each in floors)
        assert found[index].shape == wanted.shape
        assert distance(found[index], wanted) <= 2 * floor, index


@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss"])
def test_ids_of_no_expert_add_nothing(cutwheel: ModuleType, device: str, family: str) -> None:
    """As expert parallelism marks those of other devices."""
    cutwheel.models.register_transformers()
    module = experts(family, device).to(BRAIN)
    module.config._experts_implementation = "cutwheel"
    states, ids, weights = drawn(device, 4)
    states, weights = states.to(BRAIN), weights.to(BRAIN)
    with torch.no_grad():
        want = module(states, ids[:, :1], weights[:, :1])
        ids[:, 1], weights[:, 1] = module.gate_up_proj.shape[0], 0
        torch.testing.assert_close(module(states, ids, weights), want, rtol=0, atol=0)


@pytest.mark.parametrize("family", MODELS)
def test_captured_with_gradients(cutwheel: ModuleType, device: str, family: str) -> None:
    """Other tokens per expert at the replay; the host never waits."""
    cutwheel.models.register_transformers()
    module = experts(family, device).to(BRAIN)
    module.config._experts_implementation = "cutwheel"
    states, ids, weights = drawn(device, 4)
    states = states.to(BRAIN).requires_grad_()
    weights = weights.to(BRAIN)

    def work() -> tuple[Tensor, Tensor]:
        result = module(states, ids, weights)
        return result, torch.autograd.grad(result.float().square().sum(), states)[0]

    graph, found = capture(work)
    with no_waiting():
        work()
    ids.copy_(torch.zeros_like(ids))
    graph.replay()
    for got, want in zip(found, work(), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0)


@pytest.mark.no_dispatch_mode
def test_compiled(cutwheel: ModuleType, device: str) -> None:
    cutwheel.models.register_transformers()
    module = experts("qwen3_moe", device).to(BRAIN)
    module.config._experts_implementation = "cutwheel"
    states, ids, weights = drawn(device, 4)
    given = states.to(BRAIN), ids, weights.to(BRAIN)
    with torch.no_grad():
        want = module(*given)
        found = torch.compile(module, fullgraph=True)(*given)
    assert distance(found, want) < 1e-2
