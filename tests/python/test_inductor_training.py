"""Backward graphs of torch.compile with cutwheel's kernels, and convolutions in both directions."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from inductor_on_cpu import Compiled

Tensor = torch.Tensor
Graphs = Callable[..., "Compiled"]


def close(got: Any, wanted: Any) -> None:
    torch.testing.assert_close(got, wanted, rtol=3e-2, atol=3e-2)


def gradients(function: Callable[..., Tensor], *given: Tensor) -> list[Tensor]:
    """Result, and the gradients of what was given."""
    leaves = [each.detach().clone().requires_grad_() for each in given]
    result = function(*leaves)
    result.float().square().mean().backward()
    return [result.detach(), *(each.grad for each in leaves if each.grad is not None)]


def test_linear_layers(inductor_graphs: Graphs, cutwheel: ModuleType) -> None:
    def block(x: Tensor, w: Tensor, b: Tensor, v: Tensor) -> Tensor:
        return x + F.linear(F.gelu(F.linear(x, w, b)), v)

    given = [torch.randn(*size).bfloat16() for size in ((2, 8, 32), (64, 32), (64,), (32, 64))]
    given[1], given[3] = given[1] / 6, given[3] / 8
    compiled = inductor_graphs(block)
    close(gradients(compiled, *given), gradients(block, *given))
    forward, backward = cutwheel.inductor.report().graphs
    assert [entry.replaced_by for entry in forward.entries] == [
        "linear_fused_aux(bias_gelu_aux)",
        "linear_fused(bias_residual)",
    ]
    assert len(backward.entries) == 4
    assert backward.replaced == 4
    assert {entry.problem.split()[-1] for entry in backward.entries} == {"tt", "nt"}


def test_gradient_that_is_a_sum(inductor_graphs: Graphs, cutwheel: ModuleType) -> None:
    """x goes into two layers: their gradients are added, by one of the kernels."""

    def block(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        return F.linear(x, w) * F.linear(x, v)

    given = [torch.randn(*size).bfloat16() / 4 for size in ((16, 32), (64, 32), (64, 32))]
    compiled = inductor_graphs(block)
    close(gradients(compiled, *given), gradients(block, *given))
    _, backward = cutwheel.inductor.report().graphs
    assert backward.replaced == len(backward.entries) == 4


def test_storing_was_not_measured(inductor_graphs: Graphs, cutwheel: ModuleType) -> None:
    given = [torch.zeros(*size).bfloat16() for size in ((512, 64), (64, 64), (64,))]
    compiled = inductor_graphs(lambda x, w, b: F.gelu(F.linear(x, w, b)), only_faster=True)
    gradients(compiled, *given)
    assert not [call for call in compiled.ops.calls if call[0].startswith("linear_fused")]
    assert "stores its argument was not measured" in str(cutwheel.inductor.report())


# ---- convolutions
def image(*size: int) -> Tensor:
    return torch.randn(size).bfloat16().to(memory_format=torch.channels_last)


@pytest.fixture
def convolution() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x, r = image(2, 16, 9, 8), image(2, 24, 9, 8)
    return x, image(24, 16, 3, 3) / 12, torch.randn(24).bfloat16(), r


def test_what_follows_a_convolution(
    inductor_graphs: Graphs, convolution: tuple[Tensor, ...]
) -> None:
    cases: dict[str, Callable[..., Tensor]] = {
        "bias_relu": lambda x, w, b, r: F.relu(F.conv2d(x, w, b, padding=1)),
        "bias_silu": lambda x, w, b, r: F.silu(
            F.conv2d(x, w, None, padding=1) + b.view(1, -1, 1, 1)
        ),
        "bias_residual_relu": lambda x, w, b, r: F.relu(F.conv2d(x, w, b, padding=1) + r),
        "bias_silu_residual": lambda x, w, b, r: r + F.silu(F.conv2d(x, w, b, padding=1)),
    }
    for epilogue, function in cases.items():
        compiled = inductor_graphs(function)
        with torch.no_grad():
            close(compiled(*convolution), function(*convolution))
        assert compiled.ops.calls == [("conv2d_fused", epilogue)], epilogue


def test_plain_convolution_of_any_size(inductor_graphs: Graphs) -> None:
    layer = torch.nn.Conv2d(16, 24, 3, stride=2, padding=(1, 2), dilation=(1, 2)).bfloat16()
    layer = layer.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def function(x: Tensor) -> Tensor:
        return layer(x).flatten(1).softmax(-1)

    compiled = inductor_graphs(function, dynamic=True)
    with torch.no_grad():
        for batch in (2, 3, 5):
            x = image(batch, 16, 9 + batch, 8)
            close(compiled(x), function(x))
            assert compiled.ops.calls == [("conv2d", "bias")]
    assert len(compiled.graphs) == 1


def test_gradients_of_a_convolution(
    inductor_graphs: Graphs,
    convolution: tuple[Tensor, ...],
    cutwheel: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from cutwheel.inductor import measured

    def function(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.conv2d(x, w, b, stride=2, padding=1)

    compiled = inductor_graphs(function)
    close(gradients(compiled, *convolution[:3]), gradients(function, *convolution[:3]))
    _, backward = cutwheel.inductor.report().graphs
    assert [entry.replaced_by for entry in backward.entries] == [
        "conv2d_input_grad, conv2d_weight_grad"
    ]
    # As if the gradient of the input had been measured slower.
    monkeypatch.setitem(measured.CONVOLUTIONS, ("dgrad", "3x3", True), False)
    compiled = inductor_graphs(lambda x, w: F.conv2d(x, w, None, 2, 1), only_faster=True)
    cutwheel.inductor.report(clear=True)
    gradients(compiled, *convolution[:2])
    _, backward = cutwheel.inductor.report().graphs
    assert backward.entries[0].replaced_by == "conv2d_weight_grad"
    assert "not dgrad" in backward.entries[0].reason
    names = [call[0] for call in compiled.ops.calls]
    assert "conv2d_weight_grad" in names
    assert "conv2d_input_grad" not in names


def check_that_they_stay(
    inductor_graphs: Graphs,
    cutwheel: ModuleType,
    function: Callable[..., Tensor],
    cases: dict[str, tuple[Tensor, Tensor, dict[str, Any]]],
) -> None:
    """cases: input, filters and options, by a part of the reason that is reported"""
    for reason, (given, filters, how) in cases.items():
        compiled = inductor_graphs(lambda x, w, how=how: function(x, w, **how))
        with torch.no_grad():
            close(compiled(given, filters), function(given, filters, **how))
        assert not compiled.ops.calls, reason
        (graph,) = cutwheel.inductor.report(clear=True).graphs
        assert reason in graph.entries[0].reason


def test_convolutions_that_stay(
    inductor_graphs: Graphs, convolution: tuple[Tensor, ...], cutwheel: ModuleType
) -> None:
    x, w, _, _ = convolution
    cases: dict[str, tuple[Tensor, Tensor, dict[str, Any]]] = {
        "channels last": (x.contiguous(), w, {}),
        "several groups": (x, image(16, 8, 3, 3), {"groups": 2}),
        "no multiple of 8": (x, image(12, 16, 3, 3), {}),
        "float32": (x.float(), w.float(), {}),
    }
    check_that_they_stay(inductor_graphs, cutwheel, F.conv2d, cases)


def test_convolution_whose_value_is_used_elsewhere(
    inductor_graphs: Graphs, convolution: tuple[Tensor, ...]
) -> None:
    x, w, b, _ = convolution

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        z = F.conv2d(x, w, b)
        return z, F.relu(z)

    compiled = inductor_graphs(function)
    with torch.no_grad():
        close(compiled(x), function(x))
    assert compiled.ops.calls == [("conv2d", "bias")]


def test_transposed_convolution_stays(inductor_graphs: Graphs) -> None:
    x, w = image(2, 16, 9, 8), image(16, 24, 3, 3)
    compiled = inductor_graphs(lambda x: F.conv_transpose2d(x, w))
    with torch.no_grad():
        compiled(x)
    assert not compiled.ops.calls


# ---- volumes
def volume(*size: int) -> Tensor:
    return torch.randn(size).bfloat16().to(memory_format=torch.channels_last_3d)


@pytest.fixture
def of_volumes() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x, r = volume(2, 16, 5, 7, 6), volume(2, 24, 5, 7, 6)
    return x, volume(24, 16, 3, 3, 3) / 21, torch.randn(24).bfloat16(), r


def test_what_follows_a_convolution_of_volumes(
    inductor_graphs: Graphs, of_volumes: tuple[Tensor, ...]
) -> None:
    cases: dict[str, Callable[..., Tensor]] = {
        "bias_relu": lambda x, w, b, r: F.relu(F.conv3d(x, w, b, padding=1)),
        "bias_residual": lambda x, w, b, r: (
            F.conv3d(x, w, None, padding=1) + b.view(1, -1, 1, 1, 1) + r
        ),
    }
    for epilogue, function in cases.items():
        compiled = inductor_graphs(function)
        with torch.no_grad():
            close(compiled(*of_volumes), function(*of_volumes))
        assert compiled.ops.calls == [("conv3d_fused", epilogue)], epilogue
    # What follows was not measured for volumes: it stays with Inductor.
    compiled = inductor_graphs(cases["bias_relu"], only_faster=True)
    with torch.no_grad():
        close(compiled(*of_volumes), cases["bias_relu"](*of_volumes))
    assert compiled.ops.calls == [("conv3d", "bias")]


def test_gradients_of_a_convolution_of_volumes(
    inductor_graphs: Graphs, of_volumes: tuple[Tensor, ...], cutwheel: ModuleType
) -> None:
    def function(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.conv3d(x, w, b, stride=(1, 2, 2), padding=(0, 1, 1), dilation=(2, 1, 1))

    compiled = inductor_graphs(function)
    close(gradients(compiled, *of_volumes[:3]), gradients(function, *of_volumes[:3]))
    _, backward = cutwheel.inductor.report().graphs
    assert [entry.replaced_by for entry in backward.entries] == [
        "conv3d_input_grad, conv3d_weight_grad"
    ]


def test_volumes_that_stay(
    inductor_graphs: Graphs, of_volumes: tuple[Tensor, ...], cutwheel: ModuleType
) -> None:
    x, w, _, _ = of_volumes
    cases: dict[str, tuple[Tensor, Tensor, dict[str, Any]]] = {
        "channels_last_3d": (x.contiguous(), w, {}),
        "padding up to 15": (x, w, {"padding": 16}),
        "no multiple of 8": (x, volume(12, 16, 3, 3, 3), {}),
    }
    check_that_they_stay(inductor_graphs, cutwheel, F.conv3d, cases)
