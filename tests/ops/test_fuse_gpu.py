"""cutwheel.fuse on a GPU: strides, dtypes and errors of the results, against the model's own."""

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
from gemm_cases import BRAIN, HALF, SINGLE, dtype_id
from runtime import capture
from torch.utils._pytree import tree_leaves

pytestmark = pytest.mark.gpu

C = 32
Tensor = torch.Tensor
LAST = torch.channels_last
FLOOR = {HALF: 2e-3, BRAIN: 1.6e-2, SINGLE: 2e-3}
"""two roundings, relative to the largest element"""


class Net(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.conv = torch.nn.Conv2d(C, C, 3, padding=1)
        self.other = torch.nn.Conv2d(C, C, 1, bias=False)
        self.depthwise = torch.nn.Conv2d(C, C, 3, padding=1, groups=C, bias=False)
        self.norm = torch.nn.BatchNorm2d(C)
        self.linear = torch.nn.Linear(C, C)
        torch.nn.init.uniform_(self.norm.running_var, 0.5, 2.0)
        torch.nn.init.normal_(self.norm.running_mean)
        self.eval()

    def forward(self, x: Any, r: Any) -> Any:
        return self.function(self, x, r)


class Parent(torch.nn.Module):
    """Not traced: which way it goes depends on values."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.body = Net(lambda m, x, r: torch.relu(m.norm(m.conv(x)) + r))
        self.eval()

    def forward(self, x: Tensor, r: Tensor) -> Any:
        return self.function(self.body(x, r)) if x.sum() < 1e9 else x


def images(device: str, size: int = 14) -> list[Tensor]:
    return [torch.randn(4, C, size, size, device=device) for _ in range(2)]


def strides(x: Tensor) -> list[int]:
    """Those of dimensions of size 1 mean nothing."""
    return [stride for size, stride in zip(x.shape, x.stride(), strict=True) if size > 1]


def check(made: torch.nn.Module, model: torch.nn.Module, *given: Any) -> None:
    """Strides and dtypes as those of the model; at most twice its error, and a floor."""
    wide = [x.double() if isinstance(x, Tensor) else x for x in given]
    with torch.no_grad():
        exact = copy.deepcopy(model).double()(*wide)
        expected = model(*copy.deepcopy(given))
        found = made(*copy.deepcopy(given))
    leaves = [tree_leaves(each) for each in (found, expected, exact)]
    for one, other, reference in zip(*leaves, strict=True):
        check_layout(one, other)
        scale = reference.abs().max().clamp_min(1e-3)
        errors = [((y.double() - reference) / scale).abs().max().item() for y in (one, other)]
        assert errors[0] <= 2 * errors[1] + FLOOR[given[0].dtype], errors


def check_layout(found: Tensor, expected: Tensor) -> None:
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert strides(found) == strides(expected)


FORWARDS: dict[str, Callable[..., Any]] = {
    "relu": lambda m, x, r: torch.relu(m.norm(m.conv(x))),
    "bias": lambda m, x, r: (m.conv(x), m.conv(x)[:, 3:9], m.conv(x)[0]),
    "sum": lambda m, x, r: torch.relu(m.conv(x) + r),
    "sum, reversed": lambda m, x, r: r + F.silu(m.conv(x)),
    "sum in place": lambda m, x, r: torch.relu(operator.iadd(m.norm(m.other(x)), r)),
    "two": lambda m, x, r: F.relu(m.norm(m.other(torch.relu(m.conv(x)))) + r),
    "kept": lambda m, x, r: torch.relu(m.norm(m.other(m.depthwise(torch.relu(m.conv(x)))))),
    "pool": lambda m, x, r: F.max_pool2d(F.relu(m.conv(x)), 2),
    "gate": lambda m, x, r: (y := F.silu(m.conv(x))) * torch.sigmoid(m.conv(y.mean((2, 3), True))),
    "together": lambda m, x, r: torch.cat((F.relu(m.conv(x)), F.relu(m.norm(m.other(r)))), 1),
    "tokens": lambda m, x, r: F.gelu(m.linear(F.silu(m.conv(x)).flatten(2).transpose(1, 2))),
    "behind": lambda m, x, r: (
        (y := F.silu(m.conv(x))) + F.gelu(m.linear(y.permute(0, 2, 3, 1))).permute(0, 3, 1, 2)
    ),
    "number": lambda m, x, r: torch.relu(m.conv(x) + x.shape[0]),
}


@pytest.mark.parametrize("dtype", [HALF, BRAIN, SINGLE], ids=dtype_id)
@pytest.mark.parametrize("name", FORWARDS)
def test_results_lie_as_those_of_the_model(
    cutwheel: ModuleType, device: str, name: str, dtype: torch.dtype
) -> None:
    kinds = (torch.contiguous_format, LAST)
    net = Net(FORWARDS[name]).to(device, dtype)
    for of_weights, of_x, of_r in itertools.product(kinds, repeat=3):
        x, r = (
            y.to(dtype).to(memory_format=kind)
            for y, kind in zip(images(device), (of_x, of_r), strict=True)
        )
        model = copy.deepcopy(net).to(memory_format=of_weights)
        made = cutwheel.fuse(model)
        assert made.fusion_report.replaced
        check(made, model, x, r)


def test_what_depends_on_strides(cutwheel: ModuleType, device: str) -> None:
    """as_strided takes other elements of an image that is channels last."""
    net = Net(lambda m, x, r: torch.relu(m.conv(x)).as_strided((C, 7), (14 * 14, 3), 5))
    for of_weights, of_x in itertools.product((torch.contiguous_format, LAST), repeat=2):
        model = copy.deepcopy(net).to(device, BRAIN).to(memory_format=of_weights)
        x = images(device)[0].to(BRAIN).to(memory_format=of_x)
        made = cutwheel.fuse(model)
        assert len(made.fusion_report.replaced) == 1
        with torch.no_grad():
            torch.testing.assert_close(made(x, x), model(x, x), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    "function",
    [
        lambda y: y.view(y.size(0), -1),
        lambda y: y.as_strided((C, 7), (14 * 14, 3), 5),
        lambda y: (y, y[:, ::2]),
    ],
)
def test_parents_that_are_not_traced(
    cutwheel: ModuleType, device: str, function: Callable[..., Any]
) -> None:
    model = Parent(function).to(device, BRAIN)
    made = cutwheel.fuse(model)
    assert type(made) is Parent
    assert len(made.fusion_report.replaced) == 1
    check(made, model, *(x.to(BRAIN) for x in images(device)))


@pytest.mark.parametrize(
    "function",
    [
        lambda m, x, r: m.conv(x).add_(r.float()),
        lambda m, x, r: torch.relu(operator.iadd(m.norm(m.conv(x)), r.float())),
        lambda m, x, r: torch.relu(m.conv(x)).add_(r.double()),
        lambda m, x, r: m.conv(x) + r.float(),
        lambda m, x, r: torch.relu(r.float() + m.conv(x)),
        lambda m, x, r: m.conv(x).sub_(r.float()).mul_(r.float()),
        lambda m, x, r: m.linear(x.flatten(2).mT).add_(r.flatten(2).mT.float()),
        lambda m, x, r: torch.relu(m.linear(x.flatten(2).mT) + r.flatten(2).mT.float()),
    ],
)
@pytest.mark.parametrize("autocast", [False, True])
def test_dtypes_of_sums(
    cutwheel: ModuleType, device: str, function: Callable[..., Any], autocast: bool
) -> None:
    model = Net(function).to(device, SINGLE if autocast else BRAIN)
    x, r = (x if autocast else x.to(BRAIN) for x in images(device))
    with torch.autocast("cuda", BRAIN, enabled=autocast), torch.no_grad():
        made = cutwheel.fuse(model)
        assert made.fusion_report.replaced
        found, expected = made(x, r.clone()), model(x, r.clone())
    check_layout(found, expected)
    torch.testing.assert_close(found, expected, rtol=5e-2, atol=1e-1)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda z: F.gelu(z, approximate="tanh"),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "hardswish": F.hardswish,
    "softplus": F.softplus,
    "leaky_relu": F.leaky_relu,
}


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("grad", [False, True])
def test_dtypes_under_autocast(cutwheel: ModuleType, device: str, name: str, grad: bool) -> None:
    act = ACTIVATIONS[name]
    model = Net(lambda m, x, r: (act(m.linear(x)), act(m.linear(x) + r))).to(device)
    x, r = torch.randn(65, C, device=device), torch.randn(65, C, device=device)
    with torch.autocast("cuda", BRAIN), torch.set_grad_enabled(grad):
        made = cutwheel.fuse(model)
        assert made.fusion_report.replaced
        for found, expected in zip(made(x, r), model(x, r), strict=True):
            assert found.dtype == expected.dtype
            torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)


@pytest.mark.no_dispatch_mode
def test_graphs_and_compile(cutwheel: ModuleType, device: str) -> None:
    """Copies into another format are captured with the rest."""
    model = Net(FORWARDS["two"]).to(device, BRAIN)
    made = cutwheel.fuse(model)
    x, r = (x.to(BRAIN) for x in images(device))
    with torch.no_grad():
        expected = made(x, r)
        graph, captured = capture(lambda: made(x, r))
        captured.fill_(float("nan"))
        graph.replay()
        assert captured.is_contiguous()
        torch.testing.assert_close(captured, expected, rtol=2e-2, atol=2e-2)
        torch._dynamo.reset()
        compiled = torch.compile(made, backend="aot_eager", fullgraph=True)
        for given in ((x, r), (x.to(memory_format=LAST), r)):
            found = compiled(*given)
            check_layout(found, model(*given))
            torch.testing.assert_close(found, made(*given), rtol=2e-2, atol=2e-2)


def test_only_what_is_faster(cutwheel: ModuleType, device: str) -> None:
    def forward(m: Any, x: Tensor, r: Tensor) -> Tensor:
        y = torch.relu(m.norm(m.conv(x)))
        return F.silu(m.other(y) + m.depthwise(y)) + r

    model = Net(forward).to(device, BRAIN, memory_format=LAST)
    x, r = (torch.randn(16, C, 56, 56, device=device, dtype=BRAIN) for _ in range(2))
    x, r = x.to(memory_format=LAST), r.to(memory_format=LAST)
    fused = cutwheel.fuse(model, (x, r))
    report = fused.fusion_report
    for each in report.replaced:
        assert 0 < each.us <= each.torch_us, str(report)
    assert any(each.name == "conv" for each in report.replaced), str(report)
    with torch.no_grad():
        expected = copy.deepcopy(model).float()(x.float(), r.float())
        scale = expected.abs().max()
        worst = ((fused(x, r) - expected).abs().max() / scale).item()
        of_torch = ((model(x, r) - expected).abs().max() / scale).item()
    assert worst <= 2 * of_torch + FLOOR[BRAIN], (worst, of_torch)
