"""cutwheel.fuse: scales that become a part of weights, linear layers whose result is permuted, and
convolutions of one tap as linear layers."""

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
from cpu_reference import CpuOps
from fusion_models import C, Net, fused, images, parts, rows

Tensor = torch.Tensor
Forward = Callable[[Any, Tensor, Tensor], Any]
LAST = torch.channels_last


class Scaled(Net):
    def __init__(self, function: Forward, **layers: torch.nn.Module) -> None:
        super().__init__(function, **layers)
        self.gamma = torch.nn.Parameter(torch.randn(C))


def first(y: Tensor) -> Tensor:
    return y.permute(0, 3, 1, 2)


def hidden(m: Any, x: Tensor) -> Tensor:
    """The last layer of a block of ConvNeXt, [N, H, W, C]."""
    return m.linear(F.gelu(m.wide(x.permute(0, 2, 3, 1))))


CONVNEXT: dict[str, tuple[Forward, str]] = {
    "torchvision": (
        lambda m, x, r: operator.iadd(m.scale * first(hidden(m, x)), r),
        "scale + residual",
    ),
    "timm": (
        lambda m, x, r: first(hidden(m, x)).mul(m.gamma.reshape(1, -1, 1, 1)) + r,
        "scale + residual",
    ),
    "paper": (lambda m, x, r: r + first(m.gamma * hidden(m, x)), "scale + residual"),
    "no scale": (lambda m, x, r: F.relu(first(hidden(m, x)) + r), "residual + relu"),
    "no sum": (lambda m, x, r: first(hidden(m, x)) * m.scale, "scale"),
    "activation": (lambda m, x, r: F.silu(first(m.gamma * hidden(m, x))), "scale + silu"),
    "in place": (
        lambda m, x, r: operator.imul(first(hidden(m, x)), m.scale) + r,
        "scale + residual",
    ),
    "torch": (lambda m, x, r: torch.permute(hidden(m, x), [0, 3, 1, 2]) + r, "residual"),
    "keyword": (lambda m, x, r: torch.permute(hidden(m, x), dims=(0, -1, 1, 2)) + r, "residual"),
}


@pytest.mark.parametrize("name", CONVNEXT)
def test_blocks_of_convnext(cutwheel: ModuleType, cpu_ops: CpuOps, name: str) -> None:
    function, expected = CONVNEXT[name]
    model = Scaled(function, wide=torch.nn.Linear(C, 4 * C), linear=torch.nn.Linear(4 * C, C))
    for of_x, of_r in itertools.product((torch.contiguous_format, LAST), repeat=2):
        x, r = (y.to(memory_format=kind) for y, kind in zip(images(), (of_x, of_r), strict=True))
        made = fused(cutwheel, model, x, r)
        assert parts(made) == ["linear + bias + gelu", f"linear + bias + {expected}"]
        targets = {str(node.target) for node in made.graph.nodes}
        assert "get_attr" not in {node.op for node in made.graph.nodes}
        assert not targets & {"mul", "imul"}
        used = "gamma" if name in ("timm", "paper", "activation") else "scale"
        if "scale" in expected:
            assert used not in made.state_dict(), "it is in the weights"


@pytest.mark.parametrize("residual", [(2, C, 1, 1), (C, 5, 5), (1,), (2, C, 5, 5), ()], ids=str)
def test_permuted_results_with_any_residual(
    cutwheel: ModuleType, cpu_ops: CpuOps, residual: tuple[int, ...]
) -> None:
    for add in (operator.add, lambda z, r: r + z):
        model = Scaled(lambda m, x, r, add=add: F.relu(add(m.scale * first(m.linear(x)), r)))
        for r in (torch.randn(residual), torch.randn(residual).mT if len(residual) == 4 else 1.5):
            made = fused(cutwheel, model, torch.randn(2, 5, 5, C), r)
            assert parts(made) == ["linear + bias + scale + residual + relu"]


SCALES: dict[str, tuple[Forward, str]] = {
    "conv": (lambda m, x, r: m.conv(x) * m.scale, "conv + bias + scale"),
    "norm": (lambda m, x, r: m.scale * m.norm(m.conv(x)), "conv + bias + batch norm + scale"),
    "all": (
        lambda m, x, r: F.relu(torch.mul(m.norm(m.conv(x)), m.scale) + r),
        "conv + bias + batch norm + scale + residual + relu",
    ),
    "in place": (lambda m, x, r: m.conv(x).mul_(m.scale), "conv + bias + scale"),
    "view": (lambda m, x, r: m.conv(x) * m.gamma.view(-1, 1, 1), "conv + bias + scale"),
    "of pixels": (lambda m, x, r: m.conv(x[:, :, :C, :C]) * m.gamma, "conv + bias"),
    "behind": (lambda m, x, r: F.relu(m.conv(x)) * m.scale, "conv + bias + relu"),
    "behind the sum": (lambda m, x, r: (m.conv(x) + r) * m.scale, "conv + bias + residual"),
    "twice": (lambda m, x, r: m.conv(x) * m.scale * m.scale, "conv + bias + scale"),
    "value": (lambda m, x, r: m.conv(x) * r, "conv + bias"),
    "itself": (lambda m, x, r: (z := m.conv(x)) * z, "conv + bias"),
    "number": (lambda m, x, r: m.conv(x) * 2, "conv + bias"),
    "transposed": (
        lambda m, x, r: F.relu(m.up(x) * m.scale),
        "transposed conv + bias + scale + relu",
    ),
}


@pytest.mark.parametrize("name", SCALES)
def test_scales(cutwheel: ModuleType, cpu_ops: CpuOps, name: str) -> None:
    function, expected = SCALES[name]
    up = torch.nn.ConvTranspose2d(C, C, 2, stride=2)
    size = C if name == "of pixels" else 5
    assert parts(fused(cutwheel, Scaled(function, up=up), *images(size))) == [expected]


def test_a_scale_of_rows(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    """As LayerScale has it in vision transformers."""
    model = Scaled(lambda m, x, r: r + m.linear(x) * m.gamma)
    assert parts(fused(cutwheel, model, *rows())) == ["linear + bias + scale + residual"]
    model = Scaled(lambda m, x, r: m.plain(x) * m.gamma, plain=torch.nn.Linear(C, C, bias=False))
    made = fused(cutwheel, model, *rows())
    assert parts(made) == ["linear + scale"]
    assert list(made.plain.state_dict()) == ["weight"]


def test_a_scale_that_serves_elsewhere_stays(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    model = Scaled(lambda m, x, r: (m.conv(x) * m.scale, r + m.scale))
    made = fused(cutwheel, model, *images())
    assert parts(made) == ["conv + bias + scale"]
    assert "scale" in made.state_dict()
    model = Scaled(lambda m, x, r: (m.conv(x) * m.scale, m.other(r) * m.scale))
    made = fused(cutwheel, model, *images())
    assert parts(made) == ["conv + bias + scale"] * 2
    assert "scale" not in made.state_dict()


def test_a_scale_of_another_dtype_stays(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    """Its product is float32, as torch promotes it."""
    model = Scaled(lambda m, x, r: m.conv(x) * m.scale)
    model.conv.bfloat16()
    made = cutwheel.fuse(model)
    assert parts(made) == ["conv + bias"]
    with torch.no_grad():
        assert made(images()[0].bfloat16(), None).dtype == torch.float32


def test_a_scale_that_cannot_be_folded(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    model = Scaled(lambda m, x, r: m.conv(x) * m.scale).half()
    with torch.no_grad():
        model.scale.fill_(6e4)
        model.conv.weight.fill_(6e4)
    (kept, *_) = cutwheel.fuse(model).fusion_report.kept
    assert kept.reason == (
        "the scale behind it is not folded: the folded weight exceeds the range of float16"
    )


def test_permutations_that_nothing_follows_stay(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    pixels = torch.randn(2, 3, 3, C)
    model = Net(lambda m, x, r: first(F.gelu(m.linear(x))))
    made = fused(cutwheel, model, pixels, pixels)
    assert parts(made) == ["linear + bias + gelu"]
    assert any(node.target == "permute" for node in made.graph.nodes)
    model = Net(lambda m, x, r: m.linear(x).permute(0, 2, 1, 3) + r)
    made = fused(cutwheel, model, pixels, pixels)
    assert made.fusion_report.replaced == ()


# --- convolutions of one tap


@pytest.mark.parametrize("name", ["hardswish", "sigmoid", "tanh", "leaky_relu"])
def test_convolutions_as_linear_layers(cutwheel: ModuleType, cpu_ops: CpuOps, name: str) -> None:
    act = {"sigmoid": torch.sigmoid, "tanh": torch.tanh}.get(name) or getattr(F, name)
    model = Net(lambda m, x, r: act(m.norm(m.a(x))), a=torch.nn.Conv2d(C, C, 1)).bfloat16()
    x = images()[0].bfloat16()
    for of_weights, of_x in itertools.product((torch.contiguous_format, LAST), repeat=2):
        given, image = copy.deepcopy(model).to(memory_format=of_weights), x.to(memory_format=of_x)
        made = cutwheel.fuse(given)
        assert parts(made) == [f"conv + bias + batch norm + {name}"]
        cpu_ops.calls.clear()
        with torch.no_grad():
            found, expected = made(image, image), given(image, image)
        calls = [str(op) for op, *_ in cpu_ops.calls]
        assert not any(op.startswith("conv") for op in calls)
        if name != "leaky_relu":  # whose slope is an operand, of another op
            assert cpu_ops.names("linear_fused") == [f"bias_{name}"]
        assert found.stride() == expected.stride()
        torch.testing.assert_close(found, expected, rtol=3e-2, atol=3e-2)
    assert isinstance(made.a, cutwheel.nn.Conv2d)


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({"kernel_size": 1, "stride": 2, "padding": 0}, 0),
        ({"kernel_size": 1, "padding": 1}, 0),
        ({"kernel_size": 3}, 0),
        ({"kernel_size": 1, "padding": "same"}, 1),
    ],
    ids=str,
)
def test_other_convolutions_are_no_linear_layers(
    cutwheel: ModuleType, cpu_ops: CpuOps, options: dict[str, Any], count: int
) -> None:
    model = Net(lambda m, x, r: F.hardswish(m.a(x)), a=torch.nn.Conv2d(C, C, **options)).bfloat16()
    made, x = cutwheel.fuse(model), images()[0].bfloat16()
    cpu_ops.calls.clear()
    with torch.no_grad():
        torch.testing.assert_close(made(x, x), model(x, x), rtol=3e-2, atol=3e-2)
    assert len(cpu_ops.names("linear_fused")) == count


def test_a_sum_behind_a_convolution_as_a_linear_layer(
    cutwheel: ModuleType, cpu_ops: CpuOps
) -> None:
    model = Net(lambda m, x, r: F.hardswish(m.a(x)) + r, a=torch.nn.Conv2d(C, C, 1))
    made = cutwheel.fuse(model.bfloat16())
    assert parts(made) == ["conv + bias + hardswish"]


# --- stochastic depth


def stochastic_depth(input: Tensor, p: float, mode: str, training: bool = True) -> Tensor:
    """torchvision's, as torch.fx sees it: a call that it does not look into."""
    if not training or p == 0.0:
        return input
    return input * torch.bernoulli(torch.full((len(input), 1, 1, 1), 1 - p))


stochastic_depth.__module__ = "torchvision.ops.stochastic_depth"
torch.fx.wrap("stochastic_depth")


@pytest.mark.parametrize(
    ("options", "is_off"),
    [
        ({"p": 0.5, "mode": "row", "training": False}, True),
        ({"p": 0.0, "mode": "row"}, True),
        ({"p": 0.5, "mode": "row", "training": True}, False),
        ({"p": 0.5, "mode": "row"}, False),
    ],
    ids=str,
)
def test_stochastic_depth(
    cutwheel: ModuleType, cpu_ops: CpuOps, options: dict[str, Any], is_off: bool
) -> None:
    model = Net(lambda m, x, r: stochastic_depth(m.norm(m.other(x)), **options) + r)
    made = cutwheel.fuse(model)
    assert parts(made) == ["conv + bias + batch norm" + " + residual" * is_off]


@pytest.mark.parametrize(
    ("stride", "act", "expected"),
    [
        (2, F.silu, " + silu"),
        (2, F.hardswish, " + hardswish"),
        (2, F.gelu, ""),
        (4, F.silu, ""),
        (4, F.relu, " + relu"),
    ],
)
def test_first_layers(
    cutwheel: ModuleType, cpu_ops: CpuOps, stride: int, act: Any, expected: str
) -> None:
    """Whose kernels have few activations, and only behind a stride of 2 more than ReLU."""
    stem = torch.nn.Conv2d(3, 8, 3, stride=stride)
    made = cutwheel.fuse(Net(lambda m, x, r: act(m.stem(x)), stem=stem))
    assert [" + ".join(each.parts) for each in made.fusion_report.replaced] == [
        "conv + bias" + expected
    ]
