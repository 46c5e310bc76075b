"""cutwheel.fuse: what of a graph becomes one module, what does not, and why."""

from __future__ import annotations

import operator
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cpu_reference import CpuOps
from fusion_models import C, Net, conv, fused, images, norm, parts, rows, same

CONVS: dict[str, tuple[Callable[..., Any], str]] = {
    "norm": (lambda m, x, r: m.norm(m.conv(x)), "conv + bias + batch norm"),
    "bias": (lambda m, x, r: m.conv(x).exp(), "conv + bias"),
    "relu": (lambda m, x, r: m.relu(m.conv(x)), "conv + bias + relu"),
    "in place": (lambda m, x, r: m.relu_(m.norm(m.conv(x))), "conv + bias + batch norm + relu"),
    "silu": (lambda m, x, r: F.silu(m.conv(x)), "conv + bias + silu"),
    "gelu": (lambda m, x, r: F.gelu(m.conv(x)), "conv + bias + gelu"),
    "gelu_tanh": (
        lambda m, x, r: F.gelu(m.conv(x), approximate="tanh"),
        "conv + bias + gelu_tanh",
    ),
    "sum first": (lambda m, x, r: m.relu(m.conv(x) + r), "conv + bias + residual + relu"),
    "sum last": (lambda m, x, r: m.relu(m.conv(x)) + r, "conv + bias + relu + residual"),
    "sum alone": (lambda m, x, r: r + m.norm(m.conv(x)), "conv + bias + batch norm + residual"),
    "silu, sum last": (lambda m, x, r: r + F.silu(m.conv(x)), "conv + bias + silu + residual"),
    "silu, sum first": (
        lambda m, x, r: F.silu(torch.add(r, m.conv(x))),
        "conv + bias + residual + silu",
    ),
    "gelu, sum first": (lambda m, x, r: F.gelu(m.conv(x) + r), "conv + bias + residual + gelu"),
    "gelu, sum last": (lambda m, x, r: F.gelu(m.conv(x)) + r, "conv + bias + gelu + residual"),
    "sigmoid": (lambda m, x, r: torch.sigmoid(m.conv(x)), "conv + bias + sigmoid"),
    "hardswish, sum first": (lambda m, x, r: F.hardswish(m.conv(x) + r), "conv + bias + residual"),
    "hardswish, sum last": (lambda m, x, r: F.hardswish(m.conv(x)) + r, "conv + bias + hardswish"),
    "softplus": (lambda m, x, r: F.softplus(m.conv(x)), "conv + bias"),
    "method": (lambda m, x, r: m.conv(x).add_(r).relu_(), "conv + bias + residual + relu"),
    "+=": (
        lambda m, x, r: torch.relu_(operator.iadd(m.norm(m.conv(x)), r)),
        "conv + bias + batch norm + residual + relu",
    ),
    "dropout": (
        lambda m, x, r: m.relu(F.dropout(m.drop(m.same(m.conv(x))), 0.0, False)),
        "conv + bias",
    ),
    "identity": (lambda m, x, r: m.relu(m.drop(m.same(m.conv(x)))), "conv + bias + relu"),
    "factor": (lambda m, x, r: torch.add(m.conv(x), r, alpha=2), "conv + bias"),
    "itself": (lambda m, x, r: (z := m.conv(x)) + z, "conv + bias"),
    "number": (lambda m, x, r: m.relu(m.conv(x) + 1), "conv + bias"),
    "two sums": (lambda m, x, r: m.conv(x) + r + x, "conv + bias + residual"),
    "two activations": (lambda m, x, r: F.silu(m.relu(m.conv(x))), "conv + bias + relu"),
    "norm later": (lambda m, x, r: m.norm(m.relu(m.conv(x))), "conv + bias + relu"),
}


@pytest.mark.parametrize("name", CONVS)
def test_convolutions(cutwheel: ModuleType, cpu_ops: CpuOps, name: str) -> None:
    function, expected = CONVS[name]
    layers = {"same": torch.nn.Identity(), "drop": torch.nn.Dropout(0.5)}
    made = fused(cutwheel, Net(function, **layers), *images())
    assert parts(made) == [expected]
    assert made.fusion_report.kept == ()
    is_fused = any(part not in ("conv", "bias", "batch norm") for part in expected.split(" + "))
    assert len(cpu_ops.names("conv2d_fused" if is_fused else "conv2d")) == 1


@pytest.mark.parametrize(
    ("function", "expected", "epilogue"),
    [
        (lambda m, x, r: F.gelu(m.linear(x)), "gelu", "bias_gelu"),
        (lambda m, x, r: m.relu_(m.linear(x) + r), "residual + relu", "bias_residual_relu"),
        (lambda m, x, r: r + F.silu(m.linear(x)), "silu + residual", "bias_silu_residual"),
        (lambda m, x, r: r + m.linear(x), "residual", "bias_residual"),
        (lambda m, x, r: F.hardswish(m.linear(x)), "hardswish", "bias_hardswish"),
        (lambda m, x, r: F.softplus(m.linear(x)), "softplus", "bias_softplus"),
        (lambda m, x, r: F.leaky_relu(m.linear(x), 0.01), "leaky_relu", None),
        (lambda m, x, r: torch.tanh(m.linear(x)) + r, "tanh", "bias_tanh"),
    ],
)
def test_linear_layers(
    cutwheel: ModuleType, cpu_ops: CpuOps, function: Any, expected: str, epilogue: str | None
) -> None:
    made = fused(cutwheel, Net(function), *rows())
    assert parts(made) == [f"linear + bias + {expected}"]
    if epilogue is not None:
        assert cpu_ops.names("linear_fused") == [epilogue]


@pytest.mark.parametrize(
    "function",
    [
        lambda m, x, r: m.linear(x),
        lambda m, x, r: F.leaky_relu(m.linear(x), 0.2),
        lambda m, x, r: F.softplus(m.linear(x), beta=2),
        lambda m, x, r: F.elu(m.linear(x)),
    ],
)
def test_layers_that_nothing_follows_are_left(
    cutwheel: ModuleType, cpu_ops: CpuOps, function: Any
) -> None:
    made = fused(cutwheel, Net(function), *rows())
    ((name, kind, reason),) = made.fusion_report.kept
    assert (name, kind, "nothing follows" in reason) == ("linear", "Linear", True)
    assert type(made) is Net, "no graph in its place without need"


def hooked() -> torch.nn.Conv2d:
    made = conv(bias=False)
    made.register_forward_hook(lambda module, args, result: result * 2)
    return made


LEFT: dict[str, tuple[Callable[..., Any], dict[str, torch.nn.Module], str]] = {
    "groups": (lambda m, x, r: m.relu(m.a(x)), {"a": conv(groups=2)}, "groups is 2"),
    "hooks": (lambda m, x, r: m.relu(m.a(x)), {"a": hooked()}, "has hooks"),
    "transposed, in groups": (
        lambda m, x, r: m.relu(m.a(x)),
        {"a": torch.nn.ConvTranspose2d(C, C, 3, groups=2)},
        "groups is 2; cutwheel's transposed convolutions have one group",
    ),
    "signal": (
        lambda m, x, r: m.relu(m.a(x.flatten(2))),
        {"a": torch.nn.Conv1d(C, C, 3)},
        "call cutwheel.conv1d in its place",
    ),
    "volume": (
        lambda m, x, r: m.relu(m.a(x[None])),
        {"a": torch.nn.Conv3d(2, C, (1, 3, 3), padding=1)},
        "cutwheel's convolutions of volumes take float16 and bfloat16",
    ),
    "volume, in groups": (
        lambda m, x, r: m.relu(m.a(x[None].bfloat16())),
        {"a": torch.nn.Conv3d(2, 4, 2, groups=2).bfloat16()},
        "groups is 2; cutwheel's convolutions of volumes have one group",
    ),
    "volume, far padding": (
        lambda m, x, r: m.relu(m.a(x[None].bfloat16())),
        {"a": torch.nn.Conv3d(2, 4, 2, padding=16).bfloat16()},
        "padding up to 15",
    ),
    "parametrized": (
        lambda m, x, r: m.relu(m.a(x)),
        {"a": torch.nn.utils.parametrizations.weight_norm(conv())},
        "it is a ParametrizedConv2d",
    ),
    "double": (
        lambda m, x, r: m.relu(m.a(x.double())),
        {"a": conv().double()},
        "weight has dtype float64; expected float16, bfloat16 or float32",
    ),
    "statistics": (
        lambda m, x, r: m.b(m.a(x)),
        {"a": conv(bias=False), "b": norm(track_running_stats=False)},
        "the batch norm behind it is not in it: it has no running statistics",
    ),
    "function": (lambda m, x, r: m.relu(F.conv2d(x, m.a.weight)), {"a": conv()}, "as a function"),
    "keyword": (lambda m, x, r: m.relu(m.a(input=x)), {"a": conv()}, "not called with one"),
    "used elsewhere": (
        lambda m, x, r: (m.relu(z := m.a(x)), z),
        {"a": conv(bias=False)},
        "the relu behind it is not in it: others use its value, too",
    ),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left_and_why(cutwheel: ModuleType, cpu_ops: CpuOps, name: str) -> None:
    function, layers, reason = LEFT[name]
    made = fused(cutwheel, Net(function, **layers), *images())
    report = made.fusion_report
    assert report.replaced == ()
    assert [reason in each.reason for each in report.kept] == [True], report
    assert reason in str(report)


NOTES: dict[str, tuple[Callable[..., Any], dict[str, torch.nn.Module], str]] = {
    "training": (
        lambda m, x, r: m.b(m.conv(x)),
        {"b": norm(momentum=0.0)},
        "the batch norm behind it is not in it: it is in training mode",
    ),
    "used elsewhere": (
        lambda m, x, r: m.relu(z := m.norm(m.conv(x))) * z,
        {},
        "the relu behind it is not in it: others use its value, too",
    ),
    "result": (lambda m, x, r: (z := m.conv(x), m.relu(z)), {}, "others use its value, too"),
    "parameter": (lambda m, x, r: m.conv(x) + m.scale, {}, "what is added to it is a parameter"),
    "other operand": (
        lambda m, x, r: operator.iadd(r, m.conv(x)),
        {},
        "the sum behind it is written to its other operand",
    ),
    "input written": (
        lambda m, x, r: (z := m.conv(x), m.relu_(x), z + r)[-1],
        {},
        "its input may be written to before the sum behind it",
    ),
    "view of the input written": (
        lambda m, x, r: (z := m.conv(x), x.flatten().mul_(2), z + r)[-1],
        {},
        "its input may be written to before the sum behind it",
    ),
}


@pytest.mark.parametrize("name", NOTES)
def test_why_a_kernel_takes_no_more(cutwheel: ModuleType, cpu_ops: CpuOps, name: str) -> None:
    function, layers, note = NOTES[name]
    model = Net(function, **layers)
    for layer in layers.values():
        layer.train()
    made = cutwheel.fuse(model)
    same(made, model, *images())
    (replaced,) = made.fusion_report.replaced
    assert note in replaced.note
    assert "residual" not in replaced.parts


def test_float32_without_tf32_is_left(
    cutwheel: ModuleType, cpu_ops: CpuOps, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Net(lambda m, x, r: m.relu(m.conv(x)))
    settings = torch.backends.cudnn.conv
    before = settings.fp32_precision
    settings.fp32_precision = "ieee"
    try:
        (kept,) = cutwheel.fuse(model).fusion_report.kept
        with monkeypatch.context() as patch:
            patch.setattr(torch, "is_autocast_enabled", lambda: True)
            assert len(cutwheel.fuse(model).fusion_report.replaced) == 1
    finally:
        settings.fp32_precision = before
    assert "forbids TF32: convert the model to bfloat16 or float16" in kept.reason
    assert len(cutwheel.fuse(model.bfloat16()).fusion_report.replaced) == 1
