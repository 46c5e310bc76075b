"""Convolutions that read what was written just before, in graphs; what explain says of them."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conv_cases import (
    Conv,
    archs_of,
    rows,
)
from conv_gradients import both, leaves
from conv_reference import Geometry, dgrad, fprop, wgrad
from fused_cases import assert_near, values
from gemm_cases import BRAIN, HALF, SINGLE, require_arch
from op_calls import EVEN, SAME_3X3
from runtime import capture

pytestmark = pytest.mark.gpu

ARCHS = archs_of(rows()[0])


# ---- graphs
@pytest.mark.no_dispatch_mode
@pytest.mark.parametrize("arch", ARCHS)
def test_what_was_written_just_before_is_read(
    cutwheel: ModuleType, cuda: str, environment: Any, arch: str
) -> None:
    """Every operand comes from the kernel just before, over and over in one graph."""
    require_arch(arch)
    environment(CUTWHEEL_ARCH=arch)
    c, small = 64, Geometry((2, 2), (1, 1, 1, 1))
    same, halved = SAME_3X3.numbers, small.numbers
    x = values((8, c, 28, 28), BRAIN, cuda).contiguous(memory_format=torch.channels_last)
    weight = values((c, c, 3, 3), BRAIN, cuda) / 16
    ops = torch.ops.cutwheel

    def work() -> list[torch.Tensor]:
        y, found = x, []
        for _ in range(4):
            y = ops.conv2d(y, weight, None, *same)  # the input
            w = ops.conv2d_weight_grad(y, x, 3, 3, *same)  # the gradient
            z = ops.conv2d(x, w, None, *halved)  # the weight, of a reduction
            dx = ops.conv2d_input_grad(z, weight, 28, 28, *halved)  # the gradient
            y = ops.conv2d_fused(x, weight, None, dx, *same, "bias_residual_relu")
            found += [w, z, dx, y]
            y = y * 2.0**-16  # keeps numbers in range
            found.append(y)
        return found

    graph, results = capture(work)
    for _ in range(3):
        x.copy_(values(x.shape, BRAIN, cuda))
        for result in results:
            result.fill_(float("nan"))
        graph.replay()
        graph.replay()
        torch.cuda.synchronize()
        exact_x, exact_w = x.double(), weight.double()
        for i in range(0, len(results), 5):
            w, z, dx, y, _ = (result.double() for result in results[i : i + 5])
            before = exact_x if i == 0 else results[i - 1].double()
            hidden = fprop(before, exact_w, SAME_3X3).to(BRAIN).double()
            assert_near(w, wgrad(hidden, exact_x, weight.shape, SAME_3X3), BRAIN, "weight_grad")
            assert_near(z, fprop(exact_x, w, small), BRAIN, "conv2d")
            assert_near(dx, dgrad(z, exact_w, x.shape, small), BRAIN, "input_grad")
            assert_near(y, torch.relu(fprop(exact_x, exact_w, SAME_3X3) + dx), BRAIN, "residual")


def test_few_channels_are_read_as_they_lie(cutwheel: ModuleType, cuda: str) -> None:
    """Not a tap at a time, and images of three channels are not copied."""
    require_arch("90a")
    if torch.cuda.get_device_capability(cuda) != (9, 0):
        pytest.skip("blocks of pixels are read by kernels of compute capability 9.0")
    weight = torch.randn(64, 8, 7, 7, device=cuda, dtype=torch.bfloat16)
    kinds = {3: ("few_channels", "direct convolution of gathered pixels")}
    kinds |= {6: ("space_to_depth", "implicit GEMM of blocks of pixels")}
    kinds |= {8: ("space_to_depth", "implicit GEMM")}
    for channels, (mode, route) in kinds.items():
        x = torch.randn(64, channels, 128, 128, device=cuda, dtype=torch.bfloat16)
        found = cutwheel.explain("conv2d", x, weight[:, :channels], stride=2, padding=3)
        assert f"_fprop_{mode}_" in found.row
        assert found.parameters["route"] == route


@pytest.mark.parametrize("activation", ["silu", "hardswish", "relu"])
def test_images_of_few_channels_are_read_as_they_lie(
    cutwheel: ModuleType, cuda: str, activation: str
) -> None:
    """Whatever the memory format of image and filter; within a larger tensor, too."""
    require_arch("90a")
    if torch.cuda.get_device_capability(cuda) != (9, 0):
        pytest.skip("pixels are gathered by kernels of compute capability 9.0")
    torch.manual_seed(20)
    weight = torch.randn(24, 3, 3, 3, device=cuda, dtype=torch.bfloat16)
    bias = torch.randn(24, device=cuda, dtype=torch.bfloat16)
    x = torch.randn(2, 5, 45, 99, device=cuda, dtype=torch.bfloat16)
    last = torch.channels_last
    images = (x[:, 1:4], x[:, 1:4].contiguous(memory_format=last), x[:, :3, 1:, 2:])
    images = (*images, x.contiguous(memory_format=last)[:, 2:5])
    apply = {"silu": F.silu, "hardswish": F.hardswish, "relu": F.relu}[activation]
    for image in images:
        for w in (weight, weight.contiguous(memory_format=last)):
            found = cutwheel.explain("conv2d", image, w, bias, 2, 1, activation=activation)
            assert "_few_channels_" in found.row
            result = cutwheel.conv2d(image, w, bias, 2, 1, activation=activation)
            assert result.is_contiguous(memory_format=last)
            exact = apply(F.conv2d(image.double(), w.double(), bias.double(), 2, 1))
            assert_near(result, exact, torch.bfloat16, activation)


def test_explain_says_what_torch_computes(cutwheel: ModuleType, device: str) -> None:
    x, weight = values((2, 16, 8, 8), BRAIN, device), values((8, 4, 3, 3), BRAIN, device)
    explanation = cutwheel.explain("conv2d", x, weight, groups=4)
    assert explanation.row is None
    assert "groups" in str(explanation)
    volume, filters = x.unsqueeze(2), values((8, 4, 3, 3, 3), BRAIN, device)
    explanation = cutwheel.explain("conv3d", volume, filters, padding=1, groups=4)
    assert explanation.row is None
    assert "groups" in str(explanation)


def test_what_no_kernel_takes_is_torchs(cutwheel: ModuleType, device: str) -> None:
    x, weight, bias = (x.double() for x in leaves(EVEN, SINGLE, device) if x is not None)
    ours, theirs = both(cutwheel, EVEN[2], "relu")
    result = ours(x, weight, bias)
    assert result.dtype == torch.float64
    torch.testing.assert_close(result, theirs(x, weight, bias))


def test_gradients_of_other_sizes_are_refused(cutwheel: ModuleType, device: str) -> None:
    """By the ops themselves, which autograd calls with sizes that fit."""
    conv = Conv.random("dgrad", *EVEN, HALF, device)
    dy, weight = conv.positional
    ops, where = torch.ops.cutwheel, EVEN[2].numbers
    x = torch.zeros(2, 24, 9, 14, dtype=HALF, device=device)
    for grad, size in ((dy, (9, 20)), (dy, (0, 14)), (dy, (9, -14)), (dy[:, 1:], (9, 14))):
        with pytest.raises(RuntimeError, match=r"cutwheel\.(Shape|Value)Error"):
            ops.conv2d_input_grad(grad, weight, *size, *where)
    for image, size in ((x, (5, 5)), (x, (3, 0)), (x, (-3, 3)), (x[1:], (3, 3))):
        with pytest.raises(RuntimeError, match=r"cutwheel\.(Shape|Value)Error"):
            ops.conv2d_weight_grad(dy, image, *size, *where)
