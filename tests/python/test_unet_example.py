"""examples/unet.py, small and on the CPU, with reference kernels."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from cpu_reference import CpuOps

EXAMPLE = Path(__file__).parents[2] / "examples" / "unet.py"
WIDTHS = {"unet": 32, "decoder": 8}


@pytest.fixture(scope="module")
def example() -> ModuleType:
    pytest.importorskip("cutwheel", reason="needs the built package (make test builds it)")
    spec = importlib.util.spec_from_file_location("unet", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules["unet"] = found
    spec.loader.exec_module(found)
    return found


@pytest.mark.parametrize("part", WIDTHS)
def test_same_results_by_cutwheel(
    example: ModuleType, cpu_ops: CpuOps, part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    width = WIDTHS[part]
    model = example.make(part, "cpu", torch.float32, width)
    given = example.inputs(part, 2, 8, "cpu", torch.float32, width)
    ours = example.by_cutwheel(model, None)
    printed = capsys.readouterr().out.splitlines()
    convolutions = sum(isinstance(each, torch.nn.Conv2d) for each in model.modules())
    linear = sum(isinstance(each, torch.nn.Linear) for each in model.modules())
    units = sum(isinstance(each, example.GEGLU) for each in model.modules())
    assert sum(isinstance(each, example.GEGLU) for each in ours.modules()) == units
    replaced = sum(isinstance(each, sys.modules["cutwheel"].nn.Linear) for each in ours.modules())
    assert replaced == linear - units
    assert f"{len(ours.fusion_report.replaced)} of " in printed[0]
    assert "0 left" in printed[1]
    residuals = [each for each in ours.fusion_report.replaced if "residual" in each.parts]
    # The second convolution of each ResBlock adds what was in front of it.
    assert len(residuals) >= sum(type(m).__name__ == "ResBlock" for m in model.modules())
    cpu_ops.calls.clear()
    with torch.no_grad():
        found, want = ours(*given), model(*given)
    torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-4)
    called = [call[0] for call in cpu_ops.calls]
    assert sum(str(name).startswith("conv2d") for name in called) == convolutions
    assert sum(str(name).startswith("linear") for name in called) == linear
    assert cpu_ops.names("linear_fused").count("gated_bias_gelu") == units


@pytest.mark.parametrize("part", WIDTHS)
def test_shapes_of_the_whole(example: ModuleType, part: str) -> None:
    model = example.make(part, "meta")
    found = model(*example.inputs(part, 2, 64, "meta"))
    assert found.shape == {"unet": (2, 640, 32, 32), "decoder": (2, 3, 512, 512)}[part]
    assert found.dtype == torch.bfloat16


def test_wrong_results_are_told(example: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    times = {"torch": 2.0, "cutwheel": 1.0, "torch.compile": 1.5}
    errors = dict.fromkeys(times, 0.01)
    assert example.show("unet", errors, times)
    printed = capsys.readouterr().out
    assert "2.00                1.50" in printed
    assert "wrong" not in printed
    assert not example.show("unet", errors | {"cutwheel": 0.021}, times)
    assert "cutwheel is wrong: expected at most 2.0" in capsys.readouterr().out
    assert not example.show("unet", errors | {"cutwheel": float("nan")}, times)


def test_errors_are_relative_to_float32(example: ModuleType) -> None:
    model = example.make("decoder", "cpu", torch.bfloat16, 8)
    given = example.inputs("decoder", 1, 8, "cpu", torch.bfloat16, 8)
    found = example.errors(model, {"same": model, "half": lambda z: model(z) / 2}, given)
    assert 0 < found["same"] < 0.1
    assert found["half"] == pytest.approx(0.5, abs=0.05)


def test_parts_are_checked(example: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        example.main(["encoder"])
    assert "unet, decoder, not encoder" in capsys.readouterr().err
