"""cutwheel.fuse on a GPU: volumes, transposed convolutions, padding, scales and pixels as rows."""

from __future__ import annotations

import copy
import itertools
import operator
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from gemm_cases import BRAIN, HALF, dtype_id
from runtime import capture
from test_fuse_gpu import check

pytestmark = pytest.mark.gpu

C = 32
SEED = 20261124
Tensor = torch.Tensor
CONTIGUOUS = torch.contiguous_format
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


class Net(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        torch.manual_seed(SEED)
        print(f"seed {SEED}")
        self.function = function
        self.conv = torch.nn.Conv2d(C, C, 3)
        self.point = torch.nn.Conv2d(C, C, 1)
        self.volume = torch.nn.Conv3d(C, C, 3)
        self.slices = torch.nn.Conv3d(C, C, (1, 3, 3), padding=(0, 1, 1))
        self.up1 = torch.nn.ConvTranspose1d(C, C, 4, 2, 1)
        self.up2 = torch.nn.ConvTranspose2d(C, C, 2, 2, bias=False)
        self.up3 = torch.nn.ConvTranspose3d(C, C, 4, 2, 1)
        self.norm1 = torch.nn.BatchNorm1d(C)
        self.norm2 = torch.nn.BatchNorm2d(C)
        self.norm3 = torch.nn.BatchNorm3d(C)
        self.wide, self.linear = torch.nn.Linear(C, 4 * C), torch.nn.Linear(4 * C, C)
        self.scale = torch.nn.Parameter(torch.randn(C, 1, 1))
        for norm in (self.norm1, self.norm2, self.norm3):
            torch.nn.init.uniform_(norm.running_var, 0.5, 2.0)
            torch.nn.init.normal_(norm.running_mean)
        self.eval()

    def forward(self, x: Any, r: Any) -> Any:
        return self.function(self, x, r)


def convnext(m: Any, x: Tensor, r: Tensor) -> Any:
    z = m.linear(F.gelu(m.wide(x.permute(0, 2, 3, 1))))
    return operator.iadd(m.scale * z.permute(0, 3, 1, 2), r)


CAUSAL = (1, 1, 1, 1, 2, 0)
FORWARDS: dict[str, tuple[int, Callable[..., Any], str]] = {
    "causal": (
        3,
        lambda m, x, r: F.silu(m.volume(F.pad(x, CAUSAL))) + r,
        "padding + conv + bias + silu + residual",
    ),
    "volume": (
        3,
        lambda m, x, r: F.relu(operator.iadd(m.norm3(m.volume(F.pad(x, CAUSAL))), r)),
        "padding + conv + bias + batch norm + residual + relu",
    ),
    "slices": (3, lambda m, x, r: F.gelu(m.slices(x)), "conv + bias + gelu"),
    "up1": (
        1,
        lambda m, x, r: F.relu(m.norm1(m.up1(x))),
        "transposed conv + bias + batch norm + relu",
    ),
    "up2": (2, lambda m, x, r: F.relu(m.norm2(m.up2(x))), "transposed conv + batch norm + relu"),
    "up3": (3, lambda m, x, r: F.silu(m.up3(x)), "transposed conv + bias"),
    "padded": (
        2,
        lambda m, x, r: F.relu(m.norm2(m.conv(F.pad(x, (2, 0, 0, 2)))) + r),
        "padding + conv + bias + batch norm + residual + relu",
    ),
    "scale": (2, lambda m, x, r: m.scale * m.point(x) + r, "conv + bias + scale + residual"),
    "hardswish": (
        2,
        lambda m, x, r: F.hardswish(m.norm2(m.point(x))),
        "conv + bias + batch norm + hardswish",
    ),
    "gate": (
        2,
        lambda m, x, r: x * torch.sigmoid(m.point(x.mean((2, 3), True))),
        "conv + bias + sigmoid",
    ),
    "convnext": (2, convnext, "linear + bias + gelu, linear + bias + scale + residual"),
}


def inputs(dims: int, device: str, dtype: torch.dtype) -> list[Tensor]:
    size = (4, C, *(7, 9, 8)[:dims])
    return [torch.randn(size, device=device, dtype=dtype) for _ in range(2)]


def in_format(x: Tensor, is_last: bool) -> Tensor:
    return x.contiguous(memory_format=LAST.get(x.dim(), CONTIGUOUS) if is_last else CONTIGUOUS)


@pytest.mark.parametrize("dtype", [HALF, BRAIN], ids=dtype_id)
@pytest.mark.parametrize("name", FORWARDS)
def test_results_and_how_they_lie(
    cutwheel: ModuleType, device: str, name: str, dtype: torch.dtype
) -> None:
    dims, function, expected = FORWARDS[name]
    net = Net(function).to(device, dtype)
    x, r = inputs(dims, device, dtype)
    for of_weights, of_x, of_r in itertools.product((False, True), repeat=3):
        model = copy.deepcopy(net)
        for parameter in model.parameters():
            parameter.data = in_format(parameter.data, of_weights)
        made = cutwheel.fuse(model)
        found = ", ".join(" + ".join(each.parts) for each in made.fusion_report.replaced)
        assert found == expected
        check(made, model, in_format(x, of_x), in_format(r, of_r))


def test_images_without_a_batch(cutwheel: ModuleType, device: str) -> None:
    for name in ("causal", "slices", "up3", "scale"):
        dims, function, _ = FORWARDS[name]
        model = Net(function).to(device, BRAIN)
        check(cutwheel.fuse(model), model, *(x[0] for x in inputs(dims, device, BRAIN)))


def test_residuals_of_another_shape(cutwheel: ModuleType, device: str) -> None:
    for name in ("causal", "padded", "convnext", "scale"):
        dims, function, _ = FORWARDS[name]
        model = Net(function).to(device, BRAIN)
        x, r = inputs(dims, device, BRAIN)
        for residual in (r[:1], r[:, :1]):
            check(cutwheel.fuse(model), model, x, residual)


def excited(m: Any, x: Tensor, r: Tensor) -> Any:
    s = m.wide_up(F.silu(m.squeeze(F.adaptive_avg_pool2d(x, 1))))
    return m.narrow_norm(m.narrow(x * torch.sigmoid(s)))


@pytest.mark.parametrize("dtype", [HALF, BRAIN], ids=dtype_id)
@pytest.mark.parametrize("size", [(1, 7, 7), (1, 56, 56), (3, 8, 9), (5, 28, 28)], ids=str)
@pytest.mark.parametrize("has_sum", [False, True])
def test_squeeze_and_excite(
    cutwheel: ModuleType, device: str, has_sum: bool, size: tuple[int, ...], dtype: torch.dtype
) -> None:
    """Gates that scale weights, and means by products with ones."""
    c, k, (n, h, w) = 144, 24, size
    net = Net((lambda m, x, r: excited(m, x, r) + r) if has_sum else excited)
    net.squeeze, net.wide_up = torch.nn.Conv2d(c, 6, 1), torch.nn.Conv2d(6, c, 1)
    net.narrow = torch.nn.Conv2d(c, k, 1, bias=False)
    net.narrow_norm = torch.nn.BatchNorm2d(k)
    model = net.eval().to(device, dtype)
    x, r = (torch.randn(n, each, h, w, device=device, dtype=dtype) for each in (c, k))
    for of_x, of_r in itertools.product((False, True), repeat=2):
        made = cutwheel.fuse(model)
        assert type(made.narrow).__name__ == "ExcitedConv2d"
        check(made, model, in_format(x, of_x), in_format(r, of_r))
    with torch.no_grad():
        x, r = in_format(x, True), in_format(r, True)
        expected = made(x, r)
        graph, captured = capture(lambda: made(x, r))
        captured.fill_(float("nan"))
        graph.replay()
        torch.testing.assert_close(captured, expected, rtol=2e-2, atol=2e-2)


@pytest.mark.no_dispatch_mode
@pytest.mark.parametrize("name", ["causal", "up2", "convnext", "hardswish"])
def test_graphs_and_compile(cutwheel: ModuleType, device: str, name: str) -> None:
    dims, function, _ = FORWARDS[name]
    model = Net(function).to(device, BRAIN)
    made = cutwheel.fuse(model)
    x, r = inputs(dims, device, BRAIN)
    with torch.no_grad():
        expected = made(x, r)
        graph, captured = capture(lambda: made(x, r))
        captured.fill_(float("nan"))
        graph.replay()
        torch.testing.assert_close(captured, expected, rtol=2e-2, atol=2e-2)
        torch._dynamo.reset()
        compiled = torch.compile(made, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(x, r), expected, rtol=2e-2, atol=2e-2)
