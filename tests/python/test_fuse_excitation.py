"""cutwheel.fuse: means over pixels, and gates of images, as products of matrices."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cpu_reference import CpuOps
from fusion_models import Net, norm

SEED = 41
Tensor = torch.Tensor
LAST = torch.channels_last


def layers(c: int = 64, k: int = 8) -> dict[str, torch.nn.Module]:
    found = {
        "fc1": torch.nn.Conv2d(c, 8, 1),
        "fc2": torch.nn.Conv2d(8, c, 1),
        "project": torch.nn.Conv2d(c, k, 1, bias=False),
        "bn": torch.nn.BatchNorm2d(k),
        "pool": torch.nn.AdaptiveAvgPool2d(1),
    }
    torch.nn.init.uniform_(found["bn"].running_var, 0.5, 2.0)  # type: ignore[arg-type]
    return found


def gate(m: Any, x: Tensor) -> Tensor:
    return torch.sigmoid(m.fc2(F.silu(m.fc1(m.pool(x)))))


FORWARDS: dict[str, Callable[..., Any]] = {
    "plain": lambda m, x, r: m.bn(m.project(x * gate(m, x))),
    "reversed": lambda m, x, r: m.bn(m.project(gate(m, x) * x)),
    "sum": lambda m, x, r: m.bn(m.project(x * gate(m, x))) + r,
    "sum, reversed": lambda m, x, r: r + m.bn(m.project(torch.mul(gate(m, x), x))),
    "sum in place": lambda m, x, r: m.bn(m.project(x * gate(m, x))).add_(r),
    "function": lambda m, x, r: m.bn(m.project(x * m.fc2(F.adaptive_avg_pool2d(m.fc0(x), (1, 1))))),
}


def check(made: torch.nn.Module, model: torch.nn.Module, *given: Tensor) -> None:
    """Strides and dtypes as those of the model; at most twice its error, and a floor."""
    with torch.no_grad():
        exact = copy.deepcopy(model).double()(*(x.double() for x in given))
        expected, found = model(*copy.deepcopy(given)), made(*copy.deepcopy(given))
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    assert found.stride() == expected.stride()
    errors = [((y - exact).norm() / exact.norm()).item() for y in (found, expected)]
    assert errors[0] <= 2 * errors[1] + 4e-3, errors


@pytest.mark.parametrize("name", FORWARDS)
def test_squeeze_and_excite(cutwheel: ModuleType, cpu_ops: CpuOps, name: str) -> None:
    torch.manual_seed(SEED)
    net = Net(FORWARDS[name], **layers(), fc0=torch.nn.Conv2d(64, 8, 3, padding=1)).bfloat16()
    for n, of_weights, of_x in itertools.product((1, 3), (torch.contiguous_format, LAST), (0, 1)):
        model = copy.deepcopy(net).to(memory_format=of_weights)
        x = torch.randn(n, 64, 9, 10).bfloat16()
        x, r = x.to(memory_format=LAST) if of_x else x, torch.randn(n, 8, 9, 10).bfloat16()
        made = cutwheel.fuse(model)
        assert type(made.project).__name__ == "ExcitedConv2d"
        for residual in (r, r.to(memory_format=LAST)):
            cpu_ops.calls.clear()
            check(made, model, x, residual)
            calls = [str(op) for op, *_ in cpu_ops.calls]
        if of_x and n > 1:
            assert calls.count("baddbmm") == 2 or name == "function", calls
        elif of_x and name != "function":
            assert "addmm" in calls, "the mean of one image"
        assert not any("ones" in key for key in made.state_dict())


def test_calls_that_torch_serves(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    """Other shapes and dtypes than those that the products take."""
    torch.manual_seed(SEED)
    model = Net(FORWARDS["sum"], **layers()).bfloat16()
    made = cutwheel.fuse(model)
    x, r = torch.randn(3, 64, 9, 10).bfloat16().to(memory_format=LAST), torch.randn(3, 8, 9, 10)
    few = x[:, :, :2, :2].contiguous(memory_format=LAST)
    part = x[:, :, 1:6, 2:8]
    for image in (few, part):
        check(made, model, image, r[:, :, : image.shape[2], : image.shape[3]].bfloat16())
    for residual in (r.bfloat16()[:, :1], r.bfloat16()[:1], r):
        cpu_ops.calls.clear()
        check(made, model, x, residual)
        assert [str(op) for op, *_ in cpu_ops.calls].count("baddbmm") == 1, "the mean alone"
    wide = Net(FORWARDS["plain"], **layers(64, 128)).bfloat16()
    check(cutwheel.fuse(wide), wide, x, x)


def test_products_that_are_no_gates(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    torch.manual_seed(SEED)
    x, r = (torch.randn(2, 64, 9, 9).bfloat16().to(memory_format=LAST) for _ in range(2))
    for function in (
        lambda m, x, r: m.bn(m.project(x * r)),
        lambda m, x, r: m.bn(m.project(x * r[:, :1])),
        lambda m, x, r: m.bn(m.project(r[:, :, :1, :1] * x[:1])),
        lambda m, x, r: F.relu(m.bn(m.project(x * gate(m, x)))),
        lambda m, x, r: m.bn(m.project(z := x * gate(m, x))) + z.mean(),
        lambda m, x, r: m.bn(m.project(x * 2)),
    ):
        model = Net(function, **layers()).bfloat16()
        check(cutwheel.fuse(model), model, x, r)


def test_writes_between_a_product_and_its_convolution(
    cutwheel: ModuleType, cpu_ops: CpuOps
) -> None:
    torch.manual_seed(SEED)

    def forward(m: Any, x: Tensor, r: Tensor) -> Any:
        z = x * r[:, :, :1, :1]
        x += 1
        return m.bn(m.project(z))

    model = Net(forward, **layers()).bfloat16()
    x, r = (torch.randn(2, 64, 9, 9).bfloat16().to(memory_format=LAST) for _ in range(2))
    made = cutwheel.fuse(model)
    assert type(made.project).__name__ == "Conv2d"
    check(made, model, x, r)

    def behind(m: Any, x: Tensor, r: Tensor) -> Any:
        z = m.bn(m.project(x * x[:, :, :1, :1]))
        x += 1
        return z + x[:, :8]

    model = Net(behind, **layers()).bfloat16()
    check(cutwheel.fuse(model), model, x, r)


def test_float32_is_left(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    made = cutwheel.fuse(Net(FORWARDS["plain"], **layers()))
    assert type(made.project).__name__ == "Conv2d"
    assert not any("pixel_mean" in name for name, _ in made.named_modules())
    assert norm().training
