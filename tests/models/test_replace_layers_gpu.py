"""cutwheel.replace_layers on a GPU: models of Transformers beside their own results in float32."""

from __future__ import annotations

import copy
from types import ModuleType
from typing import Any

import model_cases as cases
import pytest
import torch
import torch.nn.functional as F
from runtime import capture, no_waiting

pytest.importorskip("transformers", reason="transformers is not installed")
pytestmark = pytest.mark.gpu

Tensor = torch.Tensor
BRAIN = torch.bfloat16


def error(got: Tensor, want: Tensor) -> float:
    """Of the median token: a router that decides otherwise for one says nothing about kernels."""
    difference = (got.float() - want).norm(dim=-1) / want.norm(dim=-1)
    assert bool(torch.isfinite(difference).all())
    return float(difference.median())


@pytest.fixture(params=list(cases.FAMILIES))
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_logits(cutwheel: ModuleType, device: str, family: str) -> None:
    """No further from float32 than twice what torch is in bfloat16."""
    single = cases.build(family).to(device)
    with torch.no_grad():
        want = cases.result(single, cases.inputs(family, device))
        given = cases.inputs(family, device, BRAIN)
        model = copy.deepcopy(single).to(BRAIN)
        floor = error(cases.result(model, given), want)
        report = cutwheel.replace_layers(model)
        found = error(cases.result(model, given), want)
    assert report.replaced
    assert found <= 2 * floor


@pytest.mark.parametrize("family", ["llama", "qwen2", "phi", "phi3", "bert", "whisper"])
def test_gradients(cutwheel: ModuleType, device: str, family: str) -> None:
    single = cases.build(family).to(device)
    weights = cases.weights_of(single)
    want = cases.gradients(single, cases.inputs(family, device))
    given = cases.inputs(family, device, BRAIN)
    model = copy.deepcopy(single).to(BRAIN)
    floor = cases.gradients(model, given)
    cutwheel.replace_layers(model)
    found = cases.gradients(model, given)
    assert {*found} == {*want} == {*weights}
    for name, grad in want.items():
        scale = grad.norm() + 1e-3 * weights[name].norm()
        allowed = 2 * (floor[name].float() - grad).norm() / scale + 1e-3
        assert bool((found[name].float() - grad).norm() / scale <= allowed), name


def reference(layer: Any, input: Tensor) -> Tensor:
    """ScaledLinear's result from its own quantised values, multiplied by torch in float32."""
    import cutwheel

    rows = input.flatten(0, -2)
    recipe = "blockwise_1x128" if layer.recipe == "blockwise" else layer.recipe
    values, scale = cutwheel.quantize(rows, recipe, layer.weight.dtype)
    if layer.recipe == "blockwise":
        scale = scale.repeat_interleave(128, 1)[:, : rows.shape[1]]
    result = F.linear(values.float() * scale, layer.dequantize())
    if layer.bias is not None:
        result = result + layer.bias.float()
    return result.to(input.dtype).view(*input.shape[:-1], -1)


@pytest.mark.parametrize("quantize", ["fp8", "fp8_blockwise", "int8"])
@pytest.mark.parametrize("family", ["llama", "phi3", "gpt_oss", "bert", "vit", "whisper"])
def test_quantised(cutwheel: ModuleType, device: str, family: str, quantize: str) -> None:
    """Each layer, for the input that it has in the model."""
    if quantize != "int8" and torch.cuda.get_device_capability(device) < (8, 9):
        pytest.skip("fp8 needs compute capability 8.9")
    model = cases.build(family).to(device, BRAIN)
    given = cases.inputs(family, device, BRAIN)
    distances: list[float] = []

    def compare(layer: Any, args: tuple[Tensor, ...], result: Tensor) -> None:
        want = reference(layer, args[0]).float()
        distances.append(float((result.float() - want).norm() / want.norm()))

    with torch.no_grad():
        before = cases.result(model, given).float()
        cutwheel.replace_layers(model, quantize)
        layers = [m for m in model.modules() if isinstance(m, cutwheel.nn.ScaledLinear)]
        for layer in layers:
            layer.register_forward_hook(compare)
        found = cases.result(model, given)
    assert len(distances) == len(layers) >= 4
    # Both round to bfloat16; fp8 sums may be those of the tensor cores.
    assert max(distances) < 6e-3
    assert 1e-3 < error(found, before) < 0.3


@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "gpt_oss", "bert"])
def test_captured(cutwheel: ModuleType, device: str, family: str) -> None:
    """Without waiting, and replayed with another input."""
    model = cases.build(family).to(device, BRAIN)
    cutwheel.replace_layers(model)
    hidden = 128
    states = torch.randn(2, 16, hidden, device=device, dtype=BRAIN)
    block = next(m for name, m in model.named_modules() if name.endswith(("layers.1", "layer.1")))
    width = 16 if family == "gpt_oss" else 32  # GPT-OSS has half of them
    heads = (torch.ones(2, 16, width, device=device, dtype=BRAIN),) * 2
    options = {} if family == "bert" else {"position_embeddings": heads, "attention_mask": None}

    def work() -> Tensor:
        output = block(states, **options)
        return output[0] if isinstance(output, tuple) else output

    with torch.no_grad():
        graph, result = capture(work)
        with no_waiting():
            work()
        states.copy_(torch.randn_like(states))
        graph.replay()
        torch.testing.assert_close(result, work(), rtol=0, atol=0)


@pytest.mark.no_dispatch_mode
@pytest.mark.parametrize("quantize", [None, "fp8"])
@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "bert"])
def test_compiled(cutwheel: ModuleType, device: str, family: str, quantize: str | None) -> None:
    if quantize and torch.cuda.get_device_capability(device) < (8, 9):
        pytest.skip("fp8 needs compute capability 8.9")
    model = cases.build(family).to(device, BRAIN)
    given = cases.inputs(family, device, BRAIN)
    with torch.no_grad():
        cutwheel.replace_layers(model, quantize)
        want = cases.result(model, given).float()
        found = cases.result(torch.compile(model, fullgraph=True), given)
    assert error(found, want) <= (0.1 if quantize else 2e-2)
