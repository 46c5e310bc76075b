"""Convolutions of fp8 and int8 with scales, against float64."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from conv_cases import archs_of, drawn, rows
from conv_layouts import LAYOUTS, assert_channels_last
from conv_reference import Geometry
from conv_scaled_cases import ScaledConv, scaled_of_row
from gemm_cases import BRAIN, HALF, SINGLE, TORCH_DTYPE, dtype_id, require_arch
from scaled_reference import E4M3, INT8, LARGEST, wide

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
    for problem in drawn(50, 11):
        d = rng.choice((BRAIN, HALF, SINGLE, dtype, dtype))
        activation = rng.choice((None, "relu", "silu" if d == dtype else "relu"))
        ScaledConv.random(
            *problem,
            dtype,
            device,
            d,
            rng.choice((None, "d", "f32")),
            rng.random() < 0.5,
            d == dtype and activation != "silu" and rng.random() < 0.5,
            activation=activation,
            lay_x=rng.choice(("channels_last", *LAYOUTS)),
            lay_weight=rng.choice(("channels_last", *LAYOUTS)),
            lay_residual=rng.choice(("channels_last", *LAYOUTS)),
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
def test_quantized_results(cutwheel: ModuleType, device: str, kind: torch.dtype) -> None:
    """Every activation, with and without a residual; filters of one tap, too."""
    for problem, (activation, has_residual), bias in itertools.product(
        (EVEN, ODD, ONE_TAP),
        ((None, False), ("relu", False), ("silu", False), (None, True), ("relu", True)),
        (None, "d", "f32"),
    ):
        conv = ScaledConv.random(
            *(*problem, kind, device, kind, bias),
            has_residual=has_residual,
            activation=activation,
        )
        result = conv.check(cutwheel)
        assert result.dtype == kind
        one = conv.arguments
        for name in ("input", "residual"):
            one[name] = one[name] if one[name] is None else one[name][0]
        assert torch.equal(wide(cutwheel.scaled_conv2d(**one)), wide(result[0]))


@kinds
@pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() != (9, 0),
    reason="kernels that read filters by TMA are those of compute capability 9.0",
)
def test_layers_whose_filters_are_padded(
    cutwheel: ModuleType, device: str, kind: torch.dtype
) -> None:
    """160 and 224 bytes a pixel are no whole lines of L2."""
    for channels in (160, 224):
        sizes = (16, channels, 112, 112), (channels, channels, 3, 3)
        given = *sizes, Geometry((1, 1), (1, 1, 1, 1)), kind, device, kind, "f32"
        conv = ScaledConv.random(*given, activation="relu")  # type: ignore[arg-type]
        explanation = cutwheel.explain("scaled_conv2d", **conv.arguments)
        assert explanation.parameters["request"]["padded_filter"] == "taps"
        conv.check(cutwheel)


@kinds
@pytest.mark.parametrize("activation", ["relu", "silu"])
def test_activations_of_wide_results(
    cutwheel: ModuleType, device: str, kind: torch.dtype, activation: str
) -> None:
    for problem, d in itertools.product((EVEN, ONE_TAP), (BRAIN, HALF, SINGLE)):
        given = (*problem, kind, device, d, "d")
        ScaledConv.random(*given, activation=activation).check(cutwheel)


@kinds
def test_saturation_and_nan(cutwheel: ModuleType, device: str, kind: torch.dtype) -> None:
    conv = ScaledConv.random(*EVEN, kind, device, kind, "f32", has_residual=True)
    wanted = conv.problem().value

    def values(**changed: torch.Tensor) -> torch.Tensor:
        return wide(conv.run(cutwheel, **changed))

    largest, scale = LARGEST[kind], conv.scale_result
    assert scale is not None
    beyond = values(scale_result=scale * 2.0**-20)
    assert torch.equal(beyond[wanted > 0.1].unique(), beyond.new_tensor([largest]))
    lowest = -128.0 if kind == INT8 else -largest
    assert torch.equal(beyond[wanted < -0.1].unique(), beyond.new_tensor([lowest]))
    for name in ("scale_input", "scale_residual", "scale_result"):
        spoilt = values(**{name: torch.full((1,), float("nan"), device=device)})
        assert (spoilt == 0).all() if kind == INT8 else spoilt.isnan().all()


@kinds
def test_a_chain_stays_in_8_bits(cutwheel: ModuleType, device: str, kind: torch.dtype) -> None:
    """A bottleneck block, each layer against the exact result of what it was given."""
    block = ((2, 64, 14, 14), (16, 64, 1, 1)), ((2, 16, 14, 14), (16, 16, 3, 3))
    inner = Geometry((1, 1), (1, 1, 1, 1))
    first = ScaledConv.random(*block[0], Geometry(), kind, device, kind, "f32", activation="relu")
    second = ScaledConv.random(*block[1], inner, kind, device, kind, "f32", activation="relu")
    third = ScaledConv.random(
        *((2, 16, 14, 14), (64, 16, 1, 1), Geometry(), kind, device, kind, "f32"),
        activation="relu",
    )
    a = first.check(cutwheel)
    second = replace(second, x=a, scale_x=first.scale_result)
    b = second.check(cutwheel)
    given = {"residual": first.x, "scale_residual": first.scale_x}
    replace(third, x=b, scale_x=second.scale_result, **given).check(cutwheel)


@kinds
@pytest.mark.parametrize("lay", LAYOUTS)
def test_operands_may_lie_anyhow(
    cutwheel: ModuleType, device: str, lay: str, kind: torch.dtype
) -> None:
    for problem in (EVEN, ODD, ONE_TAP):
        conv = ScaledConv.random(*problem, kind, device, lay_x=lay, lay_weight=lay)
        conv.check(cutwheel)
        given = (*problem, kind, device, kind, None, True, True)
        ScaledConv.random(*given, lay_x=lay, lay_weight=lay, lay_residual=lay).check(cutwheel)


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
            for d in (BRAIN, kind):
                given = (*sizes, same, kind, device, d, None, True, d == kind)
                conv = ScaledConv.random(*given, lay_x=lay, lay_weight=lay)
                assert_channels_last(conv.check(cutwheel))


@pytest.mark.no_dispatch_mode
@kinds
def test_opcheck_and_compile(cutwheel: ModuleType, device: str, kind: torch.dtype) -> None:
    # torch's own comparisons in the other checks are missing for fp8 tensors.
    checks = {"test_utils": ("test_faketensor", "test_autograd_registration")}
    compiled = torch.compile(cutwheel.scaled_conv2d, fullgraph=True, backend="aot_eager")
    for d in (BRAIN, kind):
        given = (*EVEN, kind, device, d, "d", True, d == kind)
        conv = ScaledConv.random(*given, activation="relu")
        torch.library.opcheck(
            torch.ops.cutwheel.scaled_conv2d.default,
            (*conv.arguments_of_op, *EVEN[2].numbers, *conv.rest_of_op),
            **(checks if kind == E4M3 else {}),  # type: ignore[arg-type]
        )
        conv.judge(compiled(**conv.arguments))
