"""Convolutions of groups on the CPU: which calls their kernels take, gradients, modules."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from cpu_reference import CpuOps

GROUPS = 2
UNIT = 1, 1, 0, 0, 0, 0, 1, 1


@pytest.fixture
def kernels(cpu_ops: CpuOps, monkeypatch: pytest.MonkeyPatch) -> CpuOps:
    """cpu_ops, which CPU tensors of float64 reach, too: gradients are compared in it."""
    from cutwheel.ops.conv import _convolve

    monkeypatch.setattr(_convolve, "why_torch", lambda *given: None)
    return cpu_ops


def why(
    channels: int,
    filters: int,
    groups: int = GROUPS,
    taps: tuple[int, int] = (3, 3),
    where: tuple[int, ...] = UNIT,
) -> str:
    from cutwheel.ops.conv._convolve import why_torch

    x = torch.empty(2, groups * channels, 40, 40, device="meta", dtype=torch.float16)
    weight = torch.empty(groups * filters, channels, *taps, device="meta", dtype=torch.float16)
    return why_torch(x, weight, groups, where) or ""


@pytest.mark.parametrize("width", [4, *range(8, 129, 8)])
def test_widths_that_kernels_take(cutwheel: ModuleType, width: int) -> None:
    assert not why(width, width)
    assert not why(width, width, where=(2, 2, 1, 0, 2, 3, 5, 5))


@pytest.mark.parametrize(
    ("channels", "filters", "given", "reason"),
    [
        (12, 12, {}, "groups is 2, of 12 channels and 12 filters; cutwheel's grouped convolutions"),
        (136, 136, {}, "multiples of 8 up to 128"),
        (8, 4, {}, "of 8 channels and 4 filters"),
        (4, 4, {"groups": 3}, "groups is 3, of 4 channels"),
        (1, 8, {}, "of 1 channels and 8 filters"),
        (8, 8, {"taps": (9, 1)}, "of 9 x 1"),
        (8, 8, {"taps": (7, 7), "where": (1, 1, 0, 0, 0, 0, 2, 2)}, "dilation (2, 2)"),
        (72, 72, {"taps": (7, 7)}, "at most 3136 taps times channels"),
        (8, 8, {"where": (3, 3, 0, 0, 0, 0, 1, 1)}, "strides of 1 and 2"),
    ],
)
def test_what_torch_takes(
    cutwheel: ModuleType, channels: int, filters: int, given: dict[str, Any], reason: str
) -> None:
    assert reason in why(channels, filters, **given)


def test_groups_that_fit_nothing_are_torchs_to_refuse(cutwheel: ModuleType) -> None:
    x = torch.zeros(2, 24, 7, 7, dtype=torch.float16)
    for groups, weight in ((5, x.new_zeros(10, 8, 3, 3)), (3, x.new_zeros(16, 8, 3, 3))):
        with pytest.raises((RuntimeError, ValueError)):
            cutwheel.conv2d(x, weight, groups=groups)


def operands(width: int, filters: int, **options: Any) -> list[torch.Tensor]:
    c, k = GROUPS * width, GROUPS * filters
    shapes = (2, c, 5, 6), (k, width, 3, 3), (k,), (2, k, 3, 3)
    return [torch.randn(shape, dtype=torch.float64, **options) for shape in shapes]


WHERE = {"stride": 2, "padding": 1, "groups": GROUPS}


@pytest.mark.parametrize("activation", [None, "relu", "silu"])
@pytest.mark.parametrize(("width", "filters"), [(2, 2), (1, 2), (3, 1)])
def test_gradients(
    cutwheel: ModuleType, kernels: CpuOps, width: int, filters: int, activation: str | None
) -> None:
    """First and second ones, each by its own op."""
    given = [x.requires_grad_() for x in operands(width, filters)]

    def ours(*tensors: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = cutwheel.conv2d(
            *tensors[:3], **WHERE, activation=activation, residual=tensors[3]
        )
        return result

    z = F.conv2d(*given[:3], **WHERE) + given[3]
    torch.testing.assert_close(ours(*given), getattr(F, activation)(z) if activation else z)
    assert torch.autograd.gradcheck(ours, given)
    wanted = {"conv2d_grouped_input_grad", "conv2d_grouped_weight_grad"}
    assert wanted <= {call[0] for call in kernels.calls}
    if activation is None:
        assert torch.autograd.gradgradcheck(ours, given)


def test_modules_and_fuse(cutwheel: ModuleType, kernels: CpuOps) -> None:
    """A bottleneck's 3x3 layer, and the sum behind another one."""

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Conv2d(16, 16, 3, 1, 1, groups=2, bias=False)
            self.first_norm = torch.nn.BatchNorm2d(16)
            self.second = torch.nn.Conv2d(16, 16, 3, 1, 1, groups=2, bias=False)
            self.second_norm = torch.nn.BatchNorm2d(16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.first_norm(self.first(x)).relu()
            return (self.second_norm(self.second(y)) + x).relu()

    model = Block().eval().half()
    fused = cutwheel.fuse(model)
    assert len([m for m in fused.modules() if isinstance(m, cutwheel.nn.Conv2d)]) == 2
    assert not fused.fusion_report.kept
    x = torch.randn(2, 16, 6, 5, dtype=torch.float64)
    with torch.no_grad():
        result, expected = fused.double()(x), model.double()(x)
    torch.testing.assert_close(result, expected, rtol=1e-2, atol=1e-2)
    assert kernels.names("conv2d_grouped") == ["bias_relu", "bias_residual_relu"]


def test_fuse_keeps_what_no_kernel_takes(cutwheel: ModuleType) -> None:
    layers = torch.nn.Conv2d(24, 24, 3, groups=2), torch.nn.ReLU()
    model = torch.nn.Sequential(*layers).eval().half()
    kept = cutwheel.fuse(model).fusion_report.kept
    assert "of 12 channels and 12 filters" in str(kept)


def test_meta_tensors(cutwheel: ModuleType) -> None:
    x = torch.empty(2, 32, 7, 8, device="meta", dtype=torch.float16)
    weight = torch.empty(64, 8, 3, 3, device="meta", dtype=torch.float16)
    where = {"stride": 2, "padding": 1, "groups": 4}
    y = cutwheel.conv2d(x, weight, **where)
    assert (y.shape, y.stride()) == ((2, 64, 4, 4), (1024, 1, 256, 64))
    with pytest.raises(ValueError, match="filter spans 11 pixels"):
        cutwheel.conv2d(x, weight, **where, dilation=5)
    ops, numbers = torch.ops.cutwheel, (2, 2, 1, 1, 1, 1, 1, 1)
    dx = ops.conv2d_grouped_input_grad(y, weight, 7, 8, *numbers, 4)
    dw = ops.conv2d_grouped_weight_grad(y, x, 3, 3, *numbers, 4)
    assert (dx.shape, dw.shape) == (x.shape, weight.shape)
