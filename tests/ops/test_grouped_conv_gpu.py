"""Grouped convolutions: every kernel, widths of groups and geometries, epilogues, gradients, and
what torch asks of an op."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
from conv_cases import epilogue_of
from conv_gradients import both, leaves
from conv_reference import DIRECTIONS
from fused_cases import compare_gradients, compare_second_gradients, values
from gemm_cases import BRAIN, HALF, dtype_id, manifest_kernels, require_arch
from grouped_conv_cases import NAMES, OPS, PROBLEMS, GroupedConv, drawn, epilogue, problem
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
    for i, each in enumerate(drawn(24, 29)):
        GroupedConv.random(direction, *each, HALVES[i % 2], device).check()


@pytest.mark.parametrize("kernel", manifest_kernels("conv2d"), ids=lambda kernel: kernel["name"])
def test_every_kernel(
    cutwheel: ModuleType, device: str, environment: Any, kernel: dict[str, Any]
) -> None:
    if kernel["family"] != "grouped_conv":
        pytest.skip("tests of other convolutions run it")
    require_arch(kernel["arch"])
    environment(CUTWHEEL_ARCH=kernel["arch"])
    width, dtype = kernel["tile"][1], HALF if kernel["a"] == "f16" else BRAIN
    given = problem(3, 5, (width, width), (17, 22), (3, 3))
    for direction in ("wgrad",) if kernel["direction"] == "wgrad" else ("fprop", "dgrad"):
        conv = GroupedConv.random(direction, *given, dtype, device)
        assert conv.row() == kernel["name"]
        conv.check()


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_dense_kernels_convolve_wide_groups(
    cutwheel: ModuleType, device: str, direction: str
) -> None:
    if torch.cuda.get_device_capability(device) != (9, 0):
        pytest.skip("kernels of compute capability 9.0")
    for name in (name for name in PROBLEMS if "_channels" in name):
        conv = GroupedConv.random(direction, *PROBLEMS[name], BRAIN, device)
        assert "_grouped" not in conv.row()
        assert torch.equal(conv.run(), conv.run())
    with cutwheel.batch_invariant():
        conv = GroupedConv.random(direction, *PROBLEMS["64_channels"], BRAIN, device)
        assert ("_grouped" in conv.row()) == (direction != "wgrad")
        conv.check()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", HALVES, ids=dtype_id)
def test_epilogues(cutwheel: ModuleType, device: str, dtype: torch.dtype, name: str) -> None:
    for which in (
        "4_stride1",
        "8_stride1",
        "32_stride2",
        "56_stride1",
        "more_filters",
        "64_channels",
    ):
        conv = GroupedConv.random("fprop", *PROBLEMS[which], dtype, device, epilogue(name))
        conv.check()


@pytest.mark.parametrize("layout", ["channels_first", "sliced", "offset", "expanded"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_layouts(cutwheel: ModuleType, device: str, direction: str, layout: str) -> None:
    def lay(x: torch.Tensor) -> torch.Tensor:
        n, c, h, w = x.shape
        if layout == "channels_first":
            return x.contiguous()
        if layout == "expanded":
            return x[:1].expand(n, c, h, w)
        wide = x.new_full((n, h + 3, w + 2, c + 8), float("nan"))
        first = 1 if layout == "offset" else 8
        view = wide[:, 1 : h + 1, 2:, first : first + c].permute(0, 3, 1, 2)
        view.copy_(x)
        return view

    for name in ("4_stride1", "8_stride2", "64_stride1"):
        conv = GroupedConv.random(direction, *PROBLEMS[name], BRAIN, device, lay_a="", lay_b="")
        a, b = lay(conv.a), lay(conv.b)
        object.__setattr__(conv, "a", a)
        object.__setattr__(conv, "b", b)
        conv.check(lambda conv=conv: conv.run(as_they_are=True))


def test_weight_gradients_are_the_same_each_time(cutwheel: ModuleType, device: str) -> None:
    for width in (4, 8, 32, 56):
        given = problem(16, 4, (width, width), (28, 28), (3, 3))
        conv = GroupedConv.random("wgrad", *given, BRAIN, device)
        first = conv.run()
        for _ in range(3):
            assert torch.equal(conv.run(), first)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_infinities_stay_in_their_group(cutwheel: ModuleType, device: str, direction: str) -> None:
    for name in ("8_stride1", "24_stride2", "56_stride1", "64_channels"):
        conv = GroupedConv.random(direction, *PROBLEMS[name], BRAIN, device)
        conv.a[0, 3, 4, 5] = float("inf")
        finite = conv.run().isfinite().all(dim=(1, 2, 3) if direction == "wgrad" else (0, 2, 3))
        of_group = finite.numel() // conv.g.groups
        assert finite[of_group:].all()
        assert not finite[:of_group].all()


@pytest.mark.parametrize("place", ["no_residual", "before", "after"])
@pytest.mark.parametrize("activation", [None, "relu", "gelu", "hardswish", "leaky_relu"], ids=str)
def test_conv2d(cutwheel: ModuleType, device: str, activation: str | None, place: str) -> None:
    """The public function; what no kernel has is torch's part."""
    x, w, g = problem(2, 5, (16, 16), (13, 14), (3, 3), 2)
    conv = GroupedConv.random("fprop", x, w, g, BRAIN, device, epilogue_of(activation, place))
    given = {"stride": 2, "padding": 1, "groups": 5, "activation": activation}
    result = conv.check(
        lambda: cutwheel.conv2d(
            *conv.positional,
            conv.operand("bias"),
            **given,
            residual=conv.operand("residual"),
            residual_after_activation=place == "after",
        ),
        fused=False,
    )
    assert result.is_contiguous(memory_format=torch.channels_last)
    found = cutwheel.explain("conv2d", *conv.positional, groups=5, stride=2, padding=1)
    assert "_grouped" in found.row


@pytest.mark.parametrize("activation", [None, "relu", "silu"], ids=str)
@pytest.mark.parametrize("dtype", HALVES, ids=dtype_id)
def test_gradients(
    cutwheel: ModuleType, device: str, dtype: torch.dtype, activation: str | None
) -> None:
    for each in (
        problem(2, 4, (4, 4), (8, 7), (3, 3)),
        problem(2, 3, (8, 8), (8, 7), (3, 3)),
        problem(2, 2, (24, 16), (9, 9), (3, 3), 2),
    ):
        ours, theirs = both(cutwheel, each[2], activation)
        compare_gradients(ours, theirs, leaves(each, dtype, device), dtype)


def test_second_gradients(cutwheel: ModuleType, device: str) -> None:
    for each in (
        problem(2, 2, (8, 8), (8, 7), (3, 3)),
        problem(2, 2, (4, 4), (9, 9), (3, 3), 2),
    ):
        ours, theirs = both(cutwheel, each[2])
        compare_second_gradients(ours, theirs, leaves(each, HALF, device)[:2])


def test_what_is_torchs(cutwheel: ModuleType, device: str) -> None:
    """Other dtypes, and widths that no kernel has."""
    single = torch.randn(2, 32, 6, 6, device=device)
    for x, weight in (
        (single, torch.randn(32, 8, 3, 3, device=device)),
        (single.half()[:, :24], torch.randn(24, 6, 3, 3, device=device).half()),
    ):
        assert cutwheel.explain("conv2d", x, weight, groups=4).row is None
        expected = functional.conv2d(x, weight, groups=4)
        torch.testing.assert_close(cutwheel.conv2d(x, weight, groups=4), expected)


def test_autocast(cutwheel: ModuleType, device: str) -> None:
    x, weight = torch.randn(2, 16, 9, 9, device=device), torch.randn(16, 8, 3, 3, device=device)
    with torch.autocast("cuda", torch.bfloat16):
        y = cutwheel.conv2d(x, weight, groups=2, activation="relu")
    assert y.dtype == BRAIN
    expected = functional.conv2d(x.bfloat16().double(), weight.bfloat16().double(), groups=2)
    torch.testing.assert_close(y.double(), expected.relu(), rtol=2e-2, atol=5e-2)


def test_compile_graphs_and_opcheck(cutwheel: ModuleType, cuda: str) -> None:
    x = values((2, 24, 12, 13), BRAIN, cuda).to(memory_format=torch.channels_last)
    weight, bias = values((48, 8, 3, 3), BRAIN, cuda), values((48,), BRAIN, cuda)

    def step(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = cutwheel.conv2d(
            x, weight, bias, padding=1, groups=3, activation="silu"
        )
        return result

    expected = step(x, weight)
    torch.testing.assert_close(torch.compile(step, fullgraph=True)(x, weight), expected)
    leaf = weight.clone().requires_grad_()
    (grad,) = torch.autograd.grad(step(x, leaf).float().square().sum(), leaf)
    compiled = torch.compile(step, fullgraph=True)(x, leaf)
    (again,) = torch.autograd.grad(compiled.float().square().sum(), leaf)
    error = (again - grad).float().norm() / grad.float().norm()
    assert error < 2e-2
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
        "dgrad": (expected, weight, 12, 13, *where, 3),
        "wgrad": (expected, x, 3, 3, *where, 3),
    }
    for direction, given in arguments.items():
        torch.library.opcheck(getattr(ops, OPS[direction]).default, given, test_utils=tests)


def test_fuse(cutwheel: ModuleType, device: str) -> None:
    layers = torch.nn.Sequential(
        torch.nn.Conv2d(32, 32, 3, 2, 1, groups=4, bias=False),
        torch.nn.BatchNorm2d(32),
        torch.nn.ReLU(),
    )
    model = layers.to(device, BRAIN).eval()
    x = values((2, 32, 15, 15), BRAIN, device)
    fused = cutwheel.fuse(model)
    assert any(isinstance(module, cutwheel.nn.Conv2d) for module in fused.modules())
    torch.testing.assert_close(fused(x), model(x), rtol=3e-2, atol=3e-2)


def test_errors(cutwheel: ModuleType, device: str) -> None:
    x, weight = values((2, 16, 6, 6), HALF, device), values((16, 8, 3, 3), HALF, device)
    ops, where = torch.ops.cutwheel, (1, 1, 0, 0, 0, 0, 1, 1)
    narrow = values((8, 12, 6, 6), HALF, device)

    def raw(x: torch.Tensor, weight: torch.Tensor, epilogue: str = "plain") -> torch.Tensor:
        result: torch.Tensor = ops.conv2d_grouped(x, weight, None, None, *where, epilogue)
        return result

    wrong: list[tuple[str, Any]] = [
        ("weight has dtype", lambda: cutwheel.conv2d(x, weight.bfloat16(), groups=2)),
        ("bias has shape", lambda: cutwheel.conv2d(x, weight, x.new_ones(7), groups=2)),
        ("residual has shape", lambda: cutwheel.conv2d(x, weight, groups=2, residual=x)),
        ("the filter spans", lambda: cutwheel.conv2d(x, weight, groups=2, dilation=3)),
        ("stride is", lambda: cutwheel.conv2d(x, weight, groups=2, stride=0)),
        ("weight has shape", lambda: raw(x, weight[:, :6])),
        ("weight has shape", lambda: raw(x, weight[:15])),
        ("groups of 6 channels", lambda: raw(narrow, narrow[:, :6, :3, :3])),
        ("epilogue", lambda: raw(x, weight, "none")),
        ("grad_output", lambda: ops.conv2d_grouped_input_grad(x, weight, 6, 6, *where, 2)),
        ("groups is 3", lambda: ops.conv2d_grouped_input_grad(x, weight, 8, 8, *where, 3)),
        ("groups is 0", lambda: ops.conv2d_grouped_weight_grad(x, x, 1, 1, *where, 0)),
        ("size of the weight", lambda: ops.conv2d_grouped_weight_grad(x, x, -1, 3, *where, 2)),
    ]
    for text, call in wrong:
        with pytest.raises((RuntimeError, ValueError, TypeError), match=text):
            call()


def test_an_empty_batch(cutwheel: ModuleType, device: str) -> None:
    x, weight = values((0, 16, 6, 6), HALF, device), values((32, 8, 3, 3), HALF, device)
    assert cutwheel.conv2d(x, weight, groups=2).shape == (0, 32, 4, 4)
    where, ops = (1, 1, 0, 0, 0, 0, 1, 1), torch.ops.cutwheel
    dy = x.new_empty(0, 32, 4, 4)
    assert ops.conv2d_grouped_input_grad(dy, weight, 6, 6, *where, 2).shape == x.shape
    grad = ops.conv2d_grouped_weight_grad(dy, x, 3, 3, *where, 2)
    assert torch.equal(grad, torch.zeros_like(weight))
