"""Convolutions of tensors that lie anyhow, of other ranks, and of many bytes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from conv_cases import (
    PLACES,
    PLAIN,
    Conv,
    archs_of,
    arguments,
    check_public,
    epilogue_of,
    rows,
    serves,
)
from conv_layouts import LAYOUTS, assert_channels_last, laid
from conv_reference import DIRECTIONS, Geometry, dgrad, fprop, wgrad
from epilogue_reference import Epilogue
from fused_cases import TRAINED, assert_near, values
from gemm_cases import BRAIN, DTYPES, HALF, SINGLE, dtype_id, require_arch
from torch.nn import functional

pytestmark = pytest.mark.gpu

ARCHS = archs_of(rows()[0])
SAME_3X3 = Geometry((1, 1), (1, 1, 1, 1))
EVEN = ((2, 24, 9, 14), (40, 24, 3, 3), Geometry((1, 2), (1, 1, 2, 2)))
ODD = ((2, 5, 8, 7), (7, 5, 3, 2), Geometry((2, 1), (1, 2, 0, 1)))


# ---- operands
@pytest.mark.parametrize("lay", LAYOUTS)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_operands_may_lie_anyhow(
    cutwheel: ModuleType, device: str, direction: str, lay: str
) -> None:
    for problem, dtype in itertools.product((EVEN, ODD), (BRAIN, SINGLE)):
        conv = Conv.random(direction, *problem, dtype, device)
        for lay_a, lay_b in ((lay, "channels_last"), ("channels_last", lay), (lay, lay)):
            replace(conv, lay_a=lay_a, lay_b=lay_b).check()


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_operands_may_be_expanded(cutwheel: ModuleType, device: str, direction: str) -> None:
    for problem in (EVEN, ODD):
        conv = Conv.random(direction, *problem, HALF, device)
        for name in ("a", "b"):
            values_of = getattr(conv, name)
            for dim in range(4):
                one = values_of.narrow(dim, 0, 1)
                for source in (one, one.contiguous(memory_format=torch.channels_last)):
                    given = replace(conv, **{name: source.expand_as(values_of)})
                    given.check(lambda given=given: given.run(as_they_are=True))


# Channels that are no multiple of 64, in layers that take long enough.
RESIDUAL = Epilogue(
    "bias_residual_relu",
    "relu(accum + bias + residual)",
    {},
    {"bias": "row[N]", "residual": "matrix[M,N]"},
    "same",
)
STRIDED_3X3 = Geometry((2, 2), (1, 1, 1, 1))
PADDED_TAPS = (
    ("fprop", (16, 96, 128, 128), (96, 96, 3, 3), SAME_3X3, RESIDUAL),
    ("fprop", (32, 144, 56, 56), (144, 144, 3, 3), SAME_3X3, PLAIN),
)
PADDED_FILTERS = (
    ("fprop", (32, 232, 112, 112), (232, 232, 3, 3), STRIDED_3X3, RESIDUAL),
    ("fprop", (16, 200, 64, 64), (200, 200, 3, 3), SAME_3X3, PLAIN),
)
PADDED = (
    *PADDED_FILTERS,
    ("dgrad", (16, 232, 56, 56), (232, 232, 3, 3), STRIDED_3X3, PLAIN),
    ("dgrad", (16, 200, 64, 64), (200, 200, 3, 3), SAME_3X3, PLAIN),  # a flipped filter
)


only_hopper = pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() != (9, 0),
    reason="kernels that read filters by TMA are those of compute capability 9.0",
)


@only_hopper
@pytest.mark.parametrize("dtype", [HALF, BRAIN], ids=dtype_id)
@pytest.mark.parametrize(
    ("direction", "size", "filters", "g", "epilogue"),
    PADDED,
    ids=[f"{direction} of {size[1]} channels" for direction, size, *_ in PADDED],
)
def test_filters_are_padded_where_taps_are_no_whole_lines(
    cutwheel: ModuleType,
    device: str,
    direction: str,
    size: tuple[int, ...],
    filters: tuple[int, ...],
    g: Geometry,
    epilogue: Epilogue,
    dtype: torch.dtype,
) -> None:
    conv = Conv.random(direction, size, filters, g, dtype, device, epilogue)
    for lay in ("channels_last", "nchw"):
        given = replace(conv, lay_b=lay)
        assert given.explained()["request"]["padded_filter"] != "none"
        given.check()
    with cutwheel.batch_invariant():
        assert conv.explained()["request"]["padded_filter"] != "none"
        together = conv.check()
        one = replace(conv, input_size=(1, *size[1:]), a=conv.a[:1])
        residual = conv.operands.get("residual")
        if residual is not None:
            one = replace(one, operands=conv.operands | {"residual": residual[:1]})
        assert torch.equal(one.run(), together[:1])


@only_hopper
@pytest.mark.parametrize("dtype", [HALF, BRAIN], ids=dtype_id)
@pytest.mark.parametrize(
    ("family", "padding", "problems"),
    [("sm90_conv", "taps", PADDED_TAPS), ("sm90_gather_conv", "filters", PADDED_FILTERS)],
    ids=["taps", "filters"],
)
def test_families_read_filters_padded_in_their_way(
    cutwheel: ModuleType,
    device: str,
    environment: Callable[..., None],
    family: str,
    padding: str,
    problems: tuple[Any, ...],
    dtype: torch.dtype,
) -> None:
    for direction, size, filters, g, epilogue in problems:
        wanted = (
            family,
            direction,
            {HALF: "f16", BRAIN: "bf16"}[dtype],
            epilogue.name,
            [128, 128, 64],
        )
        name = next(
            row["name"]
            for row in rows()[0]
            if (row["family"], row["direction"], row["a"], row["epilogue"], row["tile"]) == wanted
        )
        environment(CUTWHEEL_KERNEL=name)
        conv = Conv.random(direction, size, filters, g, dtype, device, epilogue)
        for lay in ("channels_last", "nchw"):
            given = replace(conv, lay_b=lay)
            assert given.row() == name
            assert given.explained()["request"]["padded_filter"] == padding
            given.check()


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_strides_where_memory_formats_are_ambiguous(
    cutwheel: ModuleType, device: str, direction: str
) -> None:
    """One channel, one pixel: torch calls them contiguous and channels_last at once."""
    for n, c, h, w, k_out in (
        (2, 1, 6, 5, 8),
        (2, 16, 1, 1, 8),
        (1, 1, 1, 1, 1),
        (3, 16, 1, 7, 1),
        (3, 1, 7, 1, 16),
        (1, 8, 4, 4, 1),
    ):
        for geometry in (SAME_3X3, Geometry((2, 2), (1, 1, 1, 1))):
            for lay_a, lay_b in itertools.product(("channels_last", "nchw"), repeat=2):
                sizes = ((n, c, h, w), (k_out, c, 3, 3))
                options = {"lay_a": lay_a, "lay_b": lay_b}
                # judge asserts the strides.
                Conv.random(direction, *sizes, geometry, BRAIN, device, **options).check()


@pytest.mark.parametrize("activation", [None, *TRAINED, "sigmoid"], ids=str)
@pytest.mark.parametrize("place", PLACES)
def test_strides_behind_an_activation(
    cutwheel: ModuleType, device: str, place: str, activation: str | None
) -> None:
    """In one kernel and in two, with and without a gradient."""
    for n, c, h, w, k_out in ((2, 16, 6, 5, 1), (2, 16, 1, 1, 8), (1, 1, 1, 1, 1), (2, 3, 5, 4, 7)):
        sizes = ((n, c, h, w), (k_out, c, 3, 3))
        conv = Conv.random("fprop", *sizes, SAME_3X3, BRAIN, device, epilogue_of(activation, place))
        for lay in ("channels_last", "nchw"):
            conv = replace(conv, lay_a=lay, lay_residual=lay)
            check_public(cutwheel, conv, activation, place)
            given = arguments(conv, activation, place)
            given["weight"] = given["weight"].detach().requires_grad_()
            assert_channels_last(cutwheel.conv2d(**given), conv)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("arch", ARCHS)
def test_nothing_is_read_that_nobody_wrote(
    cutwheel: ModuleType, device: str, environment: Any, arch: str, direction: str
) -> None:
    """torch fills new memory with NaN: results, copies that pad channels, partial sums."""
    require_arch(arch)
    environment(CUTWHEEL_ARCH=arch)
    problems = [*(problem[:3] for problem in (EVEN, ODD))]
    problems += [((20, 3, 40, 40), (16, 3, 3, 3), SAME_3X3)]  # a K that is split
    problems += [((1, 16, 9, 9), (24, 16, 2, 2), Geometry((3, 3)))]  # phases without a tap
    for problem, dtype in itertools.product(problems, DTYPES):
        if not serves(direction, dtype):
            continue
        conv = Conv.random(direction, *problem, dtype, device)
        torch.use_deterministic_algorithms(True)
        try:
            result = conv.run()
        finally:
            torch.use_deterministic_algorithms(False)
        conv.judge(result)


# ---- signals and volumes
@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_conv1d(cutwheel: ModuleType, device: str, dtype: torch.dtype) -> None:
    for (n, c, length), (k_out, taps), stride, padding, dilation in (
        ((3, 24, 50), (40, 3), 1, 1, 1),
        ((2, 5, 33), (7, 4), 2, 3, 2),
        ((2, 16, 21), (24, 5), 1, "same", 2),
        ((2, 64, 9), (8, 1), 1, 0, 1),
        ((1, 1, 1), (1, 3), 3, 1, 1),
    ):
        g = Geometry.of((1, taps), (1, stride), 0, (1, dilation))
        total = dilation * (taps - 1)
        sides = (total // 2, total - total // 2) if padding == "same" else (padding, padding)
        g = replace(g, padding=(0, 0, *sides))
        sizes = ((n, c, 1, length), (k_out, c, 1, taps))
        for activation, place in ((None, "no_residual"), ("relu", "before"), ("silu", "after")):
            conv = Conv.random("fprop", *sizes, g, dtype, device, epilogue_of(activation, place))
            given = {"stride": stride, "padding": padding, "dilation": dilation}
            given["activation"] = activation
            if place != "no_residual":
                given["residual"] = conv.operands["residual"].squeeze(2)  # type: ignore[union-attr]
                given["residual_after_activation"] = place == "after"
            for lay in ("channels_last", "nchw", "every_second_pixel"):
                operands = (laid(conv.a, lay).squeeze(2), conv.b.squeeze(2), conv.operands["bias"])
                result = cutwheel.conv1d(*operands, **given)
                assert result.dim() == 3
                assert result.stride(1) == 1
                conv.judge(laid(result.unsqueeze(2), "channels_last"))
            one = replace(conv, a=conv.a[:1], input_size=(1, c, 1, length))
            if place == "no_residual":
                result = cutwheel.conv1d(operands[0][0], *operands[1:], **given)
                assert result.dim() == 2
                one.judge(laid(result[None, :, None], "channels_last"))


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_conv3d(cutwheel: ModuleType, device: str, dtype: torch.dtype) -> None:
    """With one tap along the depth the images of all depths; with more taps torch's own."""
    for c, k_out in ((24, 40), (5, 7)):
        x = values((2, c, 4, 9, 8), dtype, device)
        weight = values((k_out, c, 1, 3, 3), dtype, device) / 16
        bias = values((k_out,), dtype, device)
        residual = values((2, k_out, 4, 5, 8), dtype, device)
        where = {"stride": (1, 2, 1), "padding": (0, 1, 1)}
        for lay in (lambda t: t, lambda t: t.contiguous(memory_format=torch.channels_last_3d)):
            result = cutwheel.conv3d(lay(x), weight, bias, **where)
            exact = functional.conv3d(x.double(), weight.double(), bias.double(), **where)
            assert_near(result, exact, dtype)
            assert result.stride(1) == 1
            result = cutwheel.conv3d(
                lay(x), weight, bias, **where, activation="relu", residual=lay(residual)
            )
            assert_near(result, torch.relu(exact + residual.double()), dtype)
        deep = values((k_out, c, 3, 3, 3), dtype, device) / 16
        result = cutwheel.conv3d(x, deep, bias, padding=1, activation="relu")
        exact = functional.conv3d(x.double(), deep.double(), bias.double(), padding=1)
        assert_near(result, torch.relu(exact), dtype)


# ---- many bytes
LIMITS = ("2^31", "2**31", "2147483647", "too large", "limit")


def _or_a_limit(call: Any, *operands: Any) -> torch.Tensor | None:
    """None where an error says which limit was met."""
    try:
        result: torch.Tensor = call(*operands)
    except (RuntimeError, ValueError) as error:
        if not any(word in str(error) for word in LIMITS):
            raise
        return None
    return result


def _require_memory(device: str, least: float) -> None:
    if device == "cpu" or torch.cuda.mem_get_info()[0] < least:
        pytest.skip(f"needs a GPU with {least / 1e9:.0f} GB of free memory")


large = pytest.mark.parametrize("elements", [1.3e9, 2.5e9], ids=["bytes", "elements"])
SIDE, CHANNELS = 1024, 64


@pytest.mark.slow
@large
@pytest.mark.parametrize("arch", ARCHS)
def test_more_than_2_to_the_31_of_input(
    cutwheel: ModuleType, device: str, environment: Any, arch: str, elements: float
) -> None:
    require_arch(arch)
    environment(CUTWHEEL_ARCH=arch)
    _require_memory(device, 30e9)
    images = int(elements / (SIDE * SIDE * CHANNELS)) + 1
    g = Geometry((3, 3), (1, 1, 1, 1))
    x = torch.empty(images, SIDE, SIDE, CHANNELS, dtype=BRAIN, device=device).normal_()
    x = x.permute(0, 3, 1, 2)
    weight = values((16, CHANNELS, 3, 3), BRAIN, device) / 16
    dy = values((images, 16, *g.extents((SIDE, SIDE), (3, 3))), BRAIN, device)
    geometry = g.numbers
    ops = torch.ops.cutwheel
    y = _or_a_limit(ops.conv2d, x, weight, None, *geometry)
    if y is not None:
        assert_channels_last(y)
        for i in (0, images // 2, images - 2, images - 1):
            assert_near(y[i : i + 1], fprop(x[i : i + 1].double(), weight.double(), g), BRAIN)
    dw = _or_a_limit(ops.conv2d_weight_grad, dy, x, *weight.shape[2:], *geometry)
    if dw is not None:
        exact = torch.zeros(weight.shape, dtype=torch.float64, device=device)
        for i in range(images):
            exact += wgrad(dy[i : i + 1].double(), x[i : i + 1].double(), weight.shape, g)
        assert_near(dw, exact, BRAIN)


@pytest.mark.slow
@large
@pytest.mark.parametrize("arch", ARCHS)
def test_more_than_2_to_the_31_of_result(
    cutwheel: ModuleType, device: str, environment: Any, arch: str, elements: float
) -> None:
    require_arch(arch)
    environment(CUTWHEEL_ARCH=arch)
    _require_memory(device, 30e9)
    images = int(elements / (SIDE * SIDE * CHANNELS)) + 1
    some = (0, images // 2, images - 2, images - 1)
    ops = torch.ops.cutwheel
    g = Geometry((3, 3), (1, 1, 1, 1))
    weight = values((16, CHANNELS, 3, 3), BRAIN, device) / 4
    dy = values((images, 16, *g.extents((SIDE, SIDE), (3, 3))), BRAIN, device)
    size = (images, CHANNELS, SIDE, SIDE)
    geometry = g.numbers
    dx = _or_a_limit(ops.conv2d_input_grad, dy, weight, *size[2:], *geometry)
    if dx is not None:
        assert_channels_last(dx)
        for i in some:
            exact = dgrad(dy[i : i + 1].double(), weight.double(), (1, *size[1:]), g)
            assert_near(dx[i : i + 1], exact, BRAIN)
    del dx
    x = values((images, 8, SIDE, SIDE), BRAIN, device)
    weight = values((256, 8, 2, 2), BRAIN, device) / 4
    g = Geometry((2, 2))
    y = _or_a_limit(ops.conv2d, x, weight, None, *g.numbers)
    if y is not None:
        assert y.numel() >= elements
        for i in some:
            assert_near(y[i : i + 1], fprop(x[i : i + 1].double(), weight.double(), g), BRAIN)


@pytest.mark.parametrize("stride", [(65536, 65536), (2**31 - 2**16, 2**31 - 2**16), (1, 2**30)])
def test_strides_whose_product_is_no_int(
    cutwheel: ModuleType, device: str, stride: tuple[int, int]
) -> None:
    x, weight = values((2, 16, 8, 8), BRAIN, device), values((8, 16, 3, 3), BRAIN, device)
    explanation = cutwheel.explain("conv2d", x, weight, stride=stride)
    predicted = [plan["predicted_us"] for plan in explanation.candidates if "predicted_us" in plan]
    assert predicted
    assert all(0 < us < float("inf") for us in predicted)
    result = cutwheel.conv2d(x, weight, stride=stride)
    everywhere = torch.nn.functional.conv2d(x.double(), weight.double())
    expected = everywhere[:, :, :: stride[0], :: stride[1]]
    torch.testing.assert_close(result.double(), expected, rtol=2**-7, atol=2**-5)
