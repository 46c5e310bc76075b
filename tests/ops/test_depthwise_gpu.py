"""Depthwise convolutions: every kernel, filters and geometries, epilogues, gradients, and what
torch asks of an op."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
from conv_cases import epilogue_of
from conv_gradients import both, leaves
from conv_reference import DIRECTIONS
from depthwise_cases import PROBLEMS, drawn, problem
from fused_cases import COMPOSED, TRAINED, compare_gradients, compare_second_gradients, values
from gemm_cases import BRAIN, HALF, dtype_id, manifest_kernels, require_arch
from grouped_conv_cases import NAMES, OPS, GroupedConv, epilogue
from torch.nn import functional

pytestmark = pytest.mark.gpu
HALVES = (HALF, BRAIN)


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("dtype", HALVES, ids=dtype_id)
def test_problems(
    cutwheel: ModuleType, device: str, dtype: torch.dtype, direction: str, name: str
) -> None:
    GroupedConv.random(direction, *PROBLEMS[name], dtype, device).check()


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_drawn_problems(cutwheel: ModuleType, device: str, direction: str) -> None:
    for i, each in enumerate(drawn(24, 23)):
        GroupedConv.random(direction, *each, HALVES[i % 2], device).check()


@pytest.mark.parametrize("kernel", manifest_kernels("conv2d"), ids=lambda kernel: kernel["name"])
def test_every_kernel(
    cutwheel: ModuleType, device: str, environment: Any, kernel: dict[str, Any]
) -> None:
    if kernel["family"] != "depthwise":
        pytest.skip("tests of convolutions of one group run it")
    require_arch(kernel["arch"])
    environment(CUTWHEEL_ARCH=kernel["arch"])
    (r, s, stride), dtype = kernel["tile"], HALF if kernel["a"] == "f16" else BRAIN
    taps = (r, s) if r == s > 1 else (3, s) if s > 1 else (3, 3)
    given = problem(2, 40, (17, 22), taps, stride)
    if s == 1:
        given = problem(2, 37, (17, 22), taps, 1)
    conv = GroupedConv.random(kernel["direction"], *given, dtype, device)
    assert conv.row() == kernel["name"]
    conv.check()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", HALVES, ids=dtype_id)
def test_epilogues(cutwheel: ModuleType, device: str, dtype: torch.dtype, name: str) -> None:
    """Of the three kinds of kernels: an exact filter, one of any size, and anything."""
    for which in ("3x3_stride1", "7x7_stride1", "large_stride", "odd_channels"):
        conv = GroupedConv.random("fprop", *PROBLEMS[which], dtype, device, epilogue(name))
        conv.check()


@pytest.mark.parametrize("layout", ["channels_first", "sliced", "offset", "expanded"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_layouts(cutwheel: ModuleType, device: str, direction: str, layout: str) -> None:
    def lay(x: torch.Tensor) -> torch.Tensor:
        if x.dim() != 4 or x.shape[1] == 1 or layout == "channels_first":
            return x.contiguous()
        n, c, h, w = x.shape
        if layout == "expanded":
            return x[:1].expand(n, c, h, w)
        wide = x.new_full((n, h + 3, w + 2, c + 8), float("nan"))
        first = 1 if layout == "offset" else 8
        view = wide[:, 1 : h + 1, 2:, first : first + c].permute(0, 3, 1, 2)
        view.copy_(x)
        return view

    for name in ("3x3_stride1", "5x5_stride2", "channels_of_four"):
        conv = GroupedConv.random(direction, *PROBLEMS[name], BRAIN, device, lay_a="", lay_b="")
        a, b = lay(conv.a), lay(conv.b)
        object.__setattr__(conv, "a", a)
        object.__setattr__(conv, "b", b)
        conv.check(lambda conv=conv: conv.run(as_they_are=True))


def test_weight_gradients_are_the_same_each_time(cutwheel: ModuleType, device: str) -> None:
    for taps in (3, 5, 7):
        conv = GroupedConv.random("wgrad", *problem(16, 64, (28, 28), (taps, taps)), BRAIN, device)
        first = conv.run()
        for _ in range(3):
            assert torch.equal(conv.run(), first)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_infinities_stay_in_their_channel(
    cutwheel: ModuleType, device: str, direction: str
) -> None:
    for name in ("3x3_stride1", "5x5_stride2", "7x7_stride1"):
        conv = GroupedConv.random(direction, *PROBLEMS[name], BRAIN, device)
        conv.a[0, 3, 4, 5] = float("inf")
        result = conv.run()
        finite = result.isfinite().all(dim=(1, 2, 3) if direction == "wgrad" else (0, 2, 3))
        assert not finite[3]
        assert finite.sum() == finite.numel() - 1


@pytest.mark.parametrize("place", ["no_residual", "before", "after"])
@pytest.mark.parametrize("activation", [None, *TRAINED, *COMPOSED], ids=str)
def test_conv2d(cutwheel: ModuleType, device: str, activation: str | None, place: str) -> None:
    """The public function; what no kernel has is torch's part."""
    x, w, g = problem(2, 40, (13, 14), (3, 3), 2)
    conv = GroupedConv.random("fprop", x, w, g, BRAIN, device, epilogue_of(activation, place))
    residual = conv.operand("residual")
    given = {"stride": 2, "padding": 1, "groups": 40, "activation": activation}
    result = conv.check(
        lambda: cutwheel.conv2d(
            *conv.positional,
            conv.operand("bias"),
            **given,
            residual=residual,
            residual_after_activation=place == "after",
        ),
        fused=False,
    )
    assert result.is_contiguous(memory_format=torch.channels_last)
    found = cutwheel.explain("conv2d", *conv.positional, groups=40, stride=2, padding=1)
    assert "_depthwise" in found.row


@pytest.mark.parametrize("activation", [None, "relu", "silu"], ids=str)
@pytest.mark.parametrize("dtype", HALVES, ids=dtype_id)
def test_gradients(
    cutwheel: ModuleType, device: str, dtype: torch.dtype, activation: str | None
) -> None:
    for each in (problem(2, 16, (8, 7), (3, 3)), problem(2, 24, (9, 9), (5, 5), 2)):
        ours, theirs = both(cutwheel, each[2], activation)
        compare_gradients(ours, theirs, leaves(each, dtype, device), dtype)


def test_second_gradients(cutwheel: ModuleType, device: str) -> None:
    for each in (problem(2, 16, (8, 7), (3, 3)), problem(2, 8, (9, 9), (5, 5), 2)):
        ours, theirs = both(cutwheel, each[2])
        compare_second_gradients(ours, theirs, leaves(each, HALF, device)[:2])


def test_other_dtypes_and_groups_are_torchs(cutwheel: ModuleType, device: str) -> None:
    x = torch.randn(2, 8, 6, 6, device=device)
    for filters in (8, 16):
        weight = torch.randn(filters, 1, 3, 3, device=device)
        assert cutwheel.explain("conv2d", x, weight, groups=8).row is None
        expected = functional.conv2d(x, weight, groups=8)
        torch.testing.assert_close(cutwheel.conv2d(x, weight, groups=8), expected)


def test_autocast(cutwheel: ModuleType, device: str) -> None:
    x, weight = torch.randn(2, 16, 9, 9, device=device), torch.randn(16, 1, 3, 3, device=device)
    with torch.autocast("cuda", torch.bfloat16):
        y = cutwheel.conv2d(x, weight, groups=16, activation="hardswish")
    expected = functional.hardswish(functional.conv2d(x.bfloat16(), weight.bfloat16(), groups=16))
    torch.testing.assert_close(y, expected, rtol=2e-2, atol=2e-2)


def test_compile_graphs_and_opcheck(cutwheel: ModuleType, cuda: str) -> None:
    x = values((2, 24, 12, 13), BRAIN, cuda).to(memory_format=torch.channels_last)
    weight, bias = values((24, 1, 3, 3), BRAIN, cuda), values((24,), BRAIN, cuda)

    def step(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = cutwheel.conv2d(
            x, weight, bias, padding=1, groups=24, activation="silu"
        )
        return result

    expected = step(x, weight)
    torch.testing.assert_close(torch.compile(step, fullgraph=True)(x, weight), expected)
    leaf = weight.clone().requires_grad_()
    (grad,) = torch.autograd.grad(step(x, leaf).float().square().sum(), leaf)
    compiled = torch.compile(step, fullgraph=True)(x, leaf)
    (again,) = torch.autograd.grad(compiled.float().square().sum(), leaf)
    torch.testing.assert_close(again, grad, rtol=2e-2, atol=2e-1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step(x, weight)
    captured.fill_(float("nan"))
    graph.replay()
    torch.testing.assert_close(captured, expected)
    where = (1, 1, 1, 1, 1, 1, 1, 1)
    ops = torch.ops.cutwheel
    tests = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    arguments = {
        "fprop": (x, weight, bias, None, *where, "bias"),
        "dgrad": (x, weight, 12, 13, *where, 24),
        "wgrad": (x, x, 3, 3, *where, 24),
    }
    for direction, given in arguments.items():
        torch.library.opcheck(getattr(ops, OPS[direction]).default, given, test_utils=tests)


def test_fuse(cutwheel: ModuleType, device: str) -> None:
    layers = torch.nn.Sequential(
        torch.nn.Conv2d(32, 32, 5, 2, 2, groups=32, bias=False),
        torch.nn.BatchNorm2d(32),
        torch.nn.Hardswish(),
    )
    model = layers.to(device, BRAIN).eval()
    x = values((2, 32, 15, 15), BRAIN, device)
    fused = cutwheel.fuse(model)
    assert any(isinstance(module, cutwheel.nn.Conv2d) for module in fused.modules())
    torch.testing.assert_close(fused(x), model(x), rtol=3e-2, atol=3e-2)


def test_errors(cutwheel: ModuleType, device: str) -> None:
    x, weight = values((2, 8, 6, 6), HALF, device), values((8, 1, 3, 3), HALF, device)
    ops, where = torch.ops.cutwheel, (1, 1, 0, 0, 0, 0, 1, 1)
    few = weight[:4]
    wrong: list[tuple[str, Any]] = [
        ("weight has dtype", lambda: cutwheel.conv2d(x, weight.bfloat16(), groups=8)),
        ("bias has shape", lambda: cutwheel.conv2d(x, weight, x.new_ones(7), groups=8)),
        ("residual has shape", lambda: cutwheel.conv2d(x, weight, groups=8, residual=x)),
        ("the filter spans", lambda: cutwheel.conv2d(x, weight, groups=8, dilation=3)),
        ("stride is", lambda: cutwheel.conv2d(x, weight, groups=8, stride=0)),
        ("weight has shape", lambda: ops.conv2d_grouped(x, few, None, None, *where, "plain")),
        ("epilogue", lambda: ops.conv2d_grouped(x, weight, None, None, *where, "none")),
        ("grad_output", lambda: ops.conv2d_grouped_input_grad(x, weight, 6, 6, *where, 8)),
        ("size of the weight", lambda: ops.conv2d_grouped_weight_grad(x, x, -1, 3, *where, 8)),
    ]
    for text, call in wrong:
        with pytest.raises((RuntimeError, ValueError, TypeError), match=text):
            call()


def test_an_empty_batch(cutwheel: ModuleType, device: str) -> None:
    x, weight = values((0, 8, 6, 6), HALF, device), values((8, 1, 3, 3), HALF, device)
    assert cutwheel.conv2d(x, weight, groups=8).shape == (0, 8, 4, 4)
    where = (1, 1, 0, 0, 0, 0, 1, 1)
    grad = torch.ops.cutwheel.conv2d_grouped_weight_grad(x[:, :, 2:, 2:], x, 3, 3, *where, 8)
    assert torch.equal(grad, torch.zeros_like(weight))
