"""Experts of Transformers' models with reference kernels on the CPU."""

from __future__ import annotations

import copy
from types import ModuleType
from typing import Any

import model_cases as cases
import pytest
import torch
from cpu_reference import CpuOps

pytest.importorskip("transformers", reason="transformers is not installed")

Tensor = torch.Tensor
MODELS = ["mixtral", "qwen3_moe", "deepseek_v3", "gpt_oss"]


@pytest.fixture(params=MODELS)
def experts(request: pytest.FixtureRequest, cutwheel: ModuleType, cpu_ops: CpuOps) -> Any:
    cutwheel.models.register_transformers()
    model = cases.build(request.param)
    return [m for key, m in model.named_modules() if key.endswith(".experts")][-1]


def results(module: Any, how: str, given: tuple[Tensor, ...]) -> list[Tensor]:
    module = copy.deepcopy(module)
    module.config._experts_implementation = how
    states, ids, weights = given
    states, weights = states.clone().requires_grad_(), weights.clone().requires_grad_()
    result = module(states, ids, weights)
    result.square().sum().backward()
    of_weights = cases.gradients_of(module)
    return [result, states.grad, weights.grad, *(of_weights[name] for name in sorted(of_weights))]


def drawn(count: int, high: int) -> tuple[Tensor, ...]:
    ids = torch.randint(0, high, (count, 2))
    return torch.randn(count, 128), ids, torch.rand(count, 2)


@pytest.mark.parametrize("high", [4, 1])
def test_against_eager(experts: Any, cpu_ops: CpuOps, high: int) -> None:
    """Experts without tokens, and one with all of them."""
    given = drawn(13, high)
    want = results(experts, "eager", given)
    cpu_ops.calls.clear()
    found = results(experts, "cutwheel", given)
    assert cpu_ops.names("grouped_mm")
    for got, wanted in zip(found, want, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


def test_ids_of_no_expert_add_nothing(experts: Any) -> None:
    experts.config._experts_implementation = "cutwheel"
    states, ids, weights = drawn(9, 4)
    with torch.no_grad():
        want = experts(states, ids[:, :1], weights[:, :1])
        ids[:, 1], weights[:, 1] = experts.gate_up_proj.shape[0], torch.inf
        assert torch.equal(experts(states, ids, weights), want)


def test_a_model_takes_it_by_name(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    cutwheel.models.register_transformers()
    model, given = cases.build("qwen3_moe"), cases.inputs("qwen3_moe")
    with torch.no_grad():
        want = cases.result(model, given)
        model.set_experts_implementation("cutwheel")
        cpu_ops.calls.clear()
        found = cases.result(model, given)
    products = [call[:2] for call in cpu_ops.calls if call[0].startswith("grouped")]
    assert products == [("grouped_linear_fused", "gated_silu"), ("grouped_mm", "rows")] * 2
    torch.testing.assert_close(found, want, rtol=1e-5, atol=1e-5)


def test_replaced_experts_keep_their_weights(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    model = cases.build("qwen3_moe")
    parameters = dict(model.named_parameters())
    cutwheel.replace_layers(model)
    with torch.no_grad():
        cases.result(model, cases.inputs("qwen3_moe"))
    assert cpu_ops.names("grouped_linear_fused") == ["gated_silu"] * 2
    name = "model.layers.0.mlp.experts.gate_up_proj"
    assert model.get_parameter(name) is parameters[name]


def test_without_transformers(cutwheel: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "transformers.integrations.moe", None)
    with pytest.raises(ImportError, match=r"expected transformers 5\.0 or newer"):
        cutwheel.models.register_transformers()
