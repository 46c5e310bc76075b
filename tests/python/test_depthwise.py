"""Depthwise convolutions on the CPU: which calls their kernels take, what is fused, gradients."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from cpu_reference import CpuOps

C = 6


@pytest.fixture
def kernels(cpu_ops: CpuOps, monkeypatch: pytest.MonkeyPatch) -> CpuOps:
    """cpu_ops, which CPU tensors of float64 reach, too: gradients are compared in it."""
    from cutwheel.ops.conv import _convolve

    monkeypatch.setattr(_convolve, "why_torch", lambda *given: None)
    return cpu_ops


def operands(**options: Any) -> tuple[torch.Tensor, ...]:
    shapes = (2, C, 7, 8), (C, 1, 3, 3), (C,), (2, C, 4, 4)
    return tuple(torch.randn(shape, dtype=torch.float64, **options) for shape in shapes)


WHERE = {"stride": 2, "padding": 1, "groups": C}


def test_what_the_kernels_take(cutwheel: ModuleType) -> None:
    from cutwheel.ops.conv._convolve import why_torch

    def on_meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.empty(shape, device="meta", dtype=dtype)

    x, weight = on_meta(2, C, 7, 8), on_meta(C, 1, 3, 3)
    where = 1, 1, 0, 0, 0, 0, 1, 1
    assert why_torch(x, weight, C, where) is None
    assert why_torch(x, on_meta(C, 1, 31, 31), C, (3, 3, 0, 0, 0, 0, 9, 9)) is None
    assert "of 1 channels and 2 filters" in str(why_torch(x, on_meta(2 * C, 1, 3, 3), C, where))
    assert "float32" in str(why_torch(x.float(), weight.float(), C, where))
    on_cpu = torch.zeros(2, C, 7, 8, dtype=torch.bfloat16), torch.zeros(C, 1, 3, 3).bfloat16()
    assert "on the CPU" in str(why_torch(*on_cpu, C, where))
    y = cutwheel.conv2d(*on_cpu, groups=C)
    torch.testing.assert_close(y, F.conv2d(*on_cpu, groups=C))


@pytest.mark.parametrize(
    ("activation", "place", "expected"),
    [
        (None, "none", "bias"),
        (None, "first", "bias_residual"),
        ("silu", "none", "bias_silu"),
        ("hardswish", "none", "bias_hardswish"),
        ("gelu", "first", "bias_residual_gelu"),
        ("gelu_tanh", "last", "bias_gelu_tanh_residual"),
        ("sigmoid", "last", "bias_sigmoid"),
        ("tanh", "first", "bias_residual"),
        ("leaky_relu", "none", "bias"),
    ],
)
def test_what_is_fused(
    cutwheel: ModuleType, kernels: CpuOps, activation: str | None, place: str, expected: str
) -> None:
    x, weight, bias, residual = operands()
    z = F.conv2d(x, weight, bias, **WHERE)
    act = getattr(F, activation or "", lambda y: y)
    if activation == "gelu_tanh":
        act = lambda y: F.gelu(y, approximate="tanh")  # noqa: E731
    wanted = {"none": act(z), "first": act(z + residual), "last": act(z) + residual}[place]
    result = cutwheel.conv2d(
        *(x, weight, bias),
        **WHERE,
        activation=activation,
        residual=None if place == "none" else residual,
        residual_after_activation=place == "last",
    )
    torch.testing.assert_close(result, wanted)
    assert kernels.names("conv2d_grouped") == [expected]


@pytest.mark.parametrize("activation", [None, "relu", "silu"])
def test_gradients(cutwheel: ModuleType, kernels: CpuOps, activation: str | None) -> None:
    """First and second ones, each by its own op."""
    given = [x.requires_grad_() for x in operands()]

    def ours(*tensors: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = cutwheel.conv2d(
            *tensors[:3], **WHERE, activation=activation, residual=tensors[3]
        )
        return result

    assert torch.autograd.gradcheck(ours, given)
    ops = {call[0] for call in kernels.calls}
    wanted = {"conv2d_grouped_input_grad", "conv2d_grouped_weight_grad"}
    assert wanted <= ops
    if activation is None:
        assert torch.autograd.gradgradcheck(ours, given)


def test_modules_and_fuse(cutwheel: ModuleType, kernels: CpuOps) -> None:
    layers = torch.nn.Sequential(
        torch.nn.Conv2d(C, C, 3, 2, 1, groups=C, bias=False),
        torch.nn.BatchNorm2d(C),
        torch.nn.Hardswish(),
    )
    model = layers.eval().half()
    fused = cutwheel.fuse(model)
    assert [module for module in fused.modules() if isinstance(module, cutwheel.nn.Conv2d)]
    assert not fused.fusion_report.kept
    x = operands()[0]
    with torch.no_grad():
        result, expected = fused.double()(x), model.double()(x)
    torch.testing.assert_close(result, expected, rtol=1e-2, atol=1e-2)
    assert kernels.names("conv2d_grouped") == ["bias_hardswish"]


def test_meta_tensors(cutwheel: ModuleType) -> None:
    x = torch.empty(2, C, 7, 8, device="meta", dtype=torch.float16)
    weight = torch.empty(C, 1, 3, 3, device="meta", dtype=torch.float16)
    y = cutwheel.conv2d(x, weight, **WHERE)
    assert (y.shape, y.stride()) == ((2, C, 4, 4), (96, 1, 24, 6))
    with pytest.raises(ValueError, match="filter spans 15 pixels"):
        cutwheel.conv2d(x, weight, **WHERE, dilation=7)
    op = torch.ops.cutwheel.conv2d_grouped
    with pytest.raises(ValueError, match="whose channels divide them into groups"):
        op(x[:, :3], x[:, :2], None, None, 1, 1, 0, 0, 0, 0, 1, 1, "plain")
