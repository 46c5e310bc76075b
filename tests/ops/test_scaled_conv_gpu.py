"""Convolutions of fp8 and int8 with scales, against float64."""

from __future__ import annotations

import itertools
import random
from types import ModuleType
from typing import Any

import pytest
import torch
from conv_cases import archs_of, drawn, rows
from conv_layouts import LAYOUTS, assert_channels_last
from conv_reference import Geometry
from conv_scaled_cases import ScaledConv, scaled_of_row
from gemm_cases import BRAIN, HALF, SINGLE, TORCH_DTYPE, dtype_id, require_arch
from scaled_reference import E4M3, INT8

pytestmark = pytest.mark.gpu

_, KERNELS = rows()
KINDS = [
    (arch, dtype)
    for dtype in (E4M3, INT8)
    for arch in archs_of(row for row in KERNELS if TORCH_DTYPE[row["a"]] == dtype)
]
EVEN = ((2, 48, 9, 14), (40, 48, 3, 3), Geometry((1, 2), (1, 1, 2, 2)))
ODD = ((2, 5, 8, 7), (7, 5, 3, 2), Geometry((2, 1), (1, 1, 0, 0)))
ONE_TAP = ((3, 64, 5, 6), (33, 64, 1, 1), Geometry())


@pytest.fixture
def kind(request: pytest.FixtureRequest, device: str) -> torch.dtype:
    """A dtype that this GPU multiplies."""
    dtype: torch.dtype = request.param
    if dtype == E4M3 and device != "cpu" and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("fp8 needs compute capability 8.9 or newer")
    return dtype


kinds = pytest.mark.parametrize("kind", [E4M3, INT8], indirect=True, ids=dtype_id)


@pytest.mark.parametrize(("arch", "dtype"), KINDS, ids=str)
def test_random_problems(
    cutwheel: ModuleType, device: str, environment: Any, arch: str, dtype: torch.dtype
) -> None:
    require_arch(arch)
    environment(CUTWHEEL_ARCH=arch)
    rng = random.Random(1)
    for problem in drawn(25, 11):
        ScaledConv.random(
            *problem,
            dtype,
            device,
            rng.choice((BRAIN, HALF, SINGLE)),
            rng.choice((None, "d", "f32")),
            rng.random() < 0.5,
            lay_x=rng.choice(("channels_last", *LAYOUTS)),
            lay_weight=rng.choice(("channels_last", *LAYOUTS)),
        ).check()


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel["name"])
def test_every_kernel(
    cutwheel: ModuleType, device: str, environment: Any, kernel: dict[str, Any]
) -> None:
    require_arch(kernel["arch"])
    environment(CUTWHEEL_KERNEL=kernel["name"])
    for conv in scaled_of_row(kernel, device):
        conv.check()


@kinds
def test_arguments(cutwheel: ModuleType, device: str, kind: torch.dtype) -> None:
    """Every bias with every result, one scale and many; filters of one tap, too."""
    for problem, d, bias, by_filter in itertools.product(
        (EVEN, ODD, ONE_TAP), (BRAIN, HALF, SINGLE), (None, "d", "f32"), (True, False)
    ):
        conv = ScaledConv.random(*problem, kind, device, d, bias, by_filter)
        result = conv.check(cutwheel)
        assert result.dtype == d
    given = conv.arguments
    scalar = {"scale_input": conv.scale_x.reshape(()), "scale_weight": conv.scale_w.reshape(())}
    assert torch.equal(cutwheel.scaled_conv2d(**{**given, **scalar}), result)
    del given["out_dtype"]
    assert cutwheel.scaled_conv2d(**given).dtype == BRAIN
    one = cutwheel.scaled_conv2d(**{**given, "input": given["input"][0]})
    assert one.shape == result.shape[1:]


@kinds
@pytest.mark.parametrize("lay", LAYOUTS)
def test_operands_may_lie_anyhow(
    cutwheel: ModuleType, device: str, lay: str, kind: torch.dtype
) -> None:
    for problem in (EVEN, ODD, ONE_TAP):
        conv = ScaledConv.random(*problem, kind, device, lay_x=lay, lay_weight=lay)
        conv.check(cutwheel)


@kinds
def test_scales_and_bias_may_be_slices(
    cutwheel: ModuleType, device: str, kind: torch.dtype
) -> None:
    conv = ScaledConv.random(*EVEN, kind, device, bias="d")
    wanted = conv.check(cutwheel)
    for offset, step in ((1, 1), (3, 2)):
        changed = {}
        for name, x in (("scale_weight", conv.scale_w), ("bias", conv.bias)):
            assert x is not None
            whole = x.new_full((offset + step * len(x) + 4,), float("nan"))
            changed[name] = whole[offset : offset + step * len(x) : step]
            changed[name].copy_(x)
        assert torch.equal(conv.run(cutwheel, **changed), wanted)


@kinds
def test_empty_batch_and_ambiguous_strides(
    cutwheel: ModuleType, device: str, kind: torch.dtype
) -> None:
    for n, c, h, w, k_out in ((0, 16, 5, 5, 8), (2, 1, 6, 5, 8), (2, 16, 1, 1, 1), (1, 1, 1, 1, 1)):
        for lay in ("channels_last", "nchw"):
            sizes = ((n, c, h, w), (k_out, c, 3, 3))
            same = Geometry((1, 1), (1, 1, 1, 1))
            conv = ScaledConv.random(*sizes, same, kind, device, lay_x=lay, lay_weight=lay)
            assert_channels_last(conv.check(cutwheel))


@pytest.mark.no_dispatch_mode
@kinds
def test_opcheck_and_compile(cutwheel: ModuleType, device: str, kind: torch.dtype) -> None:
    conv = ScaledConv.random(*EVEN, kind, device, bias="d")
    given = conv.arguments
    # torch's own comparisons in the other checks are missing for fp8 tensors.
    checks = {"test_utils": ("test_faketensor", "test_autograd_registration")}
    torch.library.opcheck(
        torch.ops.cutwheel.scaled_conv2d.default,
        (*conv.arguments_of_op, *EVEN[2].numbers, BRAIN),
        **(checks if kind == E4M3 else {}),  # type: ignore[arg-type]
    )
    compiled = torch.compile(cutwheel.scaled_conv2d, fullgraph=True, backend="aot_eager")
    conv.judge(compiled(**given))
