"""torchao's quantize_ with cutwheel's configurations, on reference kernels."""

from __future__ import annotations

import json
from types import ModuleType

import pytest
import torch
from cpu_reference import CpuOps

pytest.importorskip("torchao", reason="torchao is not installed")


def model() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(128, 256), torch.nn.ReLU(), torch.nn.Linear(256, 128)
    )


@pytest.mark.parametrize("recipe", ["rowwise", "tensorwise", "blockwise"])
def test_float8(cutwheel: ModuleType, cpu_ops: CpuOps, recipe: str) -> None:
    from torchao.quantization import quantize_

    from cutwheel.models.torchao import Float8Config

    layers, x = model(), torch.randn(9, 128)
    want = layers(x)
    quantize_(layers, Float8Config(recipe))
    assert [type(layer) for layer in layers[::2]] == [cutwheel.nn.ScaledLinear] * 2
    assert {layer.recipe for layer in layers[::2]} == {recipe}
    with torch.no_grad():
        found = layers(x)
    assert 1e-4 < float((found - want).norm() / want.norm()) < 0.1


def test_int8_of_some_layers(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    from torchao.quantization import quantize_

    from cutwheel.models.torchao import Int8Config

    layers = model()
    quantize_(layers, Int8Config(), filter_fn=lambda module, name: name == "2")
    assert type(layers[0]) is torch.nn.Linear
    assert layers[2].weight.dtype == torch.int8


def test_configurations_are_written_to_files(cutwheel: ModuleType) -> None:
    from torchao.core.config import config_to_dict

    from cutwheel.models.torchao import Float8Config

    text = json.dumps(config_to_dict(Float8Config("blockwise")))
    assert "Float8Config" in text
    assert "blockwise" in text
