"""Convolutions that read what was written just before, in graphs; what explain says of them."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
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
    """Not a tap at a time, whether channels have to be added or not."""
    require_arch("90a")
    if torch.cuda.get_device_capability(cuda) != (9, 0):
        pytest.skip("blocks of pixels are read by kernels of compute capability 9.0")
    weight = torch.randn(64, 8, 7, 7, device=cuda, dtype=torch.bfloat16)
    for channels, route in ((3, "implicit GEMM of blocks of pixels"), (8, "implicit GEMM")):
        x = torch.randn(64, channels, 128, 128, device=cuda, dtype=torch.bfloat16)
        found = cutwheel.explain("conv2d", x, weight[:, :channels], stride=2, padding=3)
        assert "_fprop_space_to_depth_" in found.row
        assert found.parameters["route"] == route


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
