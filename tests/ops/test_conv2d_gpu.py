"""Convolutions against float64: directions, kernels, epilogues, strides of all tensors."""

from __future__ import annotations

import itertools
import os
import random
from contextlib import nullcontext
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from conv_cases import (
    BIAS,
    PLACES,
    PLAIN,
    Conv,
    archs_of,
    arguments,
    check_public,
    convs_of_row,
    drawn,
    epilogue_of,
    epilogue_of_row,
    rows,
    serves,
)
from conv_layouts import LAYOUTS
from conv_reference import DIRECTIONS, Geometry
from fused_cases import COMPOSED, TRAINED, values
from gemm_cases import BRAIN, DTYPES, HALF, SINGLE, TORCH_DTYPE, dtype_id, require_arch

pytestmark = pytest.mark.gpu

KERNELS, _ = rows()
ARCHS = archs_of(KERNELS)
SAME_3X3 = Geometry((1, 1), (1, 1, 1, 1))
# With channels in multiples of 16 bytes, and with none in such.
EVEN = ((2, 24, 9, 14), (40, 24, 3, 3), Geometry((1, 2), (1, 1, 2, 2)))
ODD = ((2, 5, 8, 7), (7, 5, 3, 2), Geometry((2, 1), (1, 2, 0, 1)))


# ---- values
@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
@pytest.mark.parametrize("arch", ARCHS)
def test_random_problems(
    cutwheel: ModuleType, device: str, environment: Any, arch: str, dtype: torch.dtype
) -> None:
    """Three directions of each, on operands that lie in different ways."""
    require_arch(arch)
    environment(CUTWHEEL_ARCH=arch)
    rng = random.Random(DTYPES.index(dtype))
    lays = ["channels_last"] * len(LAYOUTS) + [*LAYOUTS]
    for number, problem in enumerate(drawn(40, DTYPES.index(dtype))):
        for direction in DIRECTIONS:
            if not serves(direction, dtype):
                continue
            epilogue = BIAS if direction == "fprop" and number % 2 else PLAIN
            lay_a, lay_b = rng.choice(lays), rng.choice(lays)
            options = {"lay_a": lay_a, "lay_b": lay_b, "exact": bool(number % 3)}
            Conv.random(direction, *problem, dtype, device, epilogue, **options).check()


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_every_direction_has_a_kernel(
    cutwheel: ModuleType, device: str, dtype: torch.dtype
) -> None:
    """On this GPU, whatever architecture serves it."""
    for direction, problem in itertools.product(DIRECTIONS, (EVEN, ODD)):
        Conv.random(direction, *problem, dtype, device).check()


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel["name"])
def test_every_kernel(
    cutwheel: ModuleType, device: str, environment: Any, kernel: dict[str, Any]
) -> None:
    require_arch(kernel["arch"])
    environment(CUTWHEEL_KERNEL=kernel["name"])
    for conv in convs_of_row(kernel, device):
        assert conv.row() == kernel["name"], str(conv)
        conv.check()
    if conv.operands:  # operands that are left out count as zeros
        without = replace(conv, operands={**conv.operands, "bias": None})
        if kernel["epilogue"] != "bias":
            without.check()


RESIDUES = [x for x in KERNELS if x["direction"] == "dgrad" and x["family"] == "sm90_conv"]


@pytest.mark.parametrize("kernel", RESIDUES, ids=lambda kernel: kernel["name"])
def test_residue_classes_are_shared_out(
    cutwheel: ModuleType, device: str, environment: Any, kernel: dict[str, Any]
) -> None:
    """Every tile of every class is computed once, by however many threadblocks.

    Few threadblocks have rounds of all classes, many have one tile each, or none; and classes have
    rows of many pixels, of few and of less than eight.
    """
    require_arch(kernel["arch"])
    if kernel["cluster"][2] > 1:
        pytest.skip("clusters that share K take no stride")
    environment(CUTWHEEL_KERNEL=kernel["name"])
    dtype, epilogue = TORCH_DTYPE[kernel["a"]], epilogue_of_row(kernel)
    same = (1, 1, 1, 1)
    for image, taps, g in (
        ((5, 40, 63, 58), (3, 3), Geometry((2, 2), same)),
        ((3, 136, 47, 32), (3, 3), Geometry((2, 2), same)),
        ((70, 24, 9, 13), (4, 4), Geometry((2, 2), same)),
        ((4, 72, 61, 29), (3, 2), Geometry((2, 1), same)),
        ((4, 64, 40, 52), (1, 1), Geometry((2, 2))),  # three classes without a tap
        ((33, 40, 47, 61), (1, 1), Geometry((2, 2))),
        ((9, 136, 31, 45), (1, 3), Geometry((2, 2), (0, 0, 1, 1))),  # two of four
        ((4, 16, 62, 34), (3, 3), Geometry((3, 2), same)),  # six classes
    ):
        sizes = (image, (48, image[1], *taps))
        conv = Conv.random("dgrad", *sizes, g, dtype, device, epilogue)
        for limit in (None, 1, 3, 10):
            with cutwheel.sm_limit(limit) if limit else nullcontext():
                conv.check()


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_many_tiles(cutwheel: ModuleType, device: str, direction: str) -> None:
    """Several times as many tiles as multiprocessors, and a K of tens of thousands."""
    for problem in (
        ((6, 72, 57, 55), (264, 72, 3, 3), SAME_3X3),
        ((40, 64, 29, 31), (72, 64, 3, 3), Geometry((2, 2), (1, 1, 1, 1))),
        ((2, 1160, 7, 7), (1032, 1160, 3, 3), SAME_3X3),
    ):
        Conv.random(direction, *problem, BRAIN, device).check()


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_filters_of_one_tap(
    cutwheel: ModuleType, device: str, dtype: torch.dtype, direction: str
) -> None:
    """Matrix products where stride and padding allow it, and where not."""
    for geometry in (Geometry(), Geometry((2, 2)), Geometry((1, 1), (1, 0, 0, 2))):
        for channels, k_out in ((64, 136), (3, 5), (72, 1), (1, 8)):
            for images, image in ((3, (13, 11)), (7, (1, 1))):
                sizes = ((images, channels, *image), (k_out, channels, 1, 1))
                for lay in ("channels_last", "nchw", "cropped"):
                    conv = Conv.random(direction, *sizes, geometry, dtype, device, lay_a=lay)
                    replace(conv, lay_b=lay if direction == "wgrad" else "nchw").check()


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_gradients_of_inputs_without_a_stride(
    cutwheel: ModuleType, device: str, dtype: torch.dtype
) -> None:
    """Those may be convolutions of a flipped filter; with more padding than that has taps, too."""
    for padding in ((0, 0, 0, 0), (1, 1, 1, 1), (4, 3, 5, 2), (0, 3, 4, 0)):
        for dilation, image in itertools.product(((1, 1), (2, 1)), ((9, 12), (5, 4), (1, 1))):
            g = Geometry((1, 1), padding, dilation)
            for c, k_out, r, s in ((24, 40, 3, 2), (5, 7, 1, 3)):
                if min(g.extents(image, (r, s))) > 0:
                    sizes = ((2, c, *image), (k_out, c, r, s))
                    for lay in ("channels_last", "nchw", "cropped"):
                        Conv.random("dgrad", *sizes, g, dtype, device, lay_a=lay).check()


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_first_layers(cutwheel: ModuleType, device: str, dtype: torch.dtype) -> None:
    """Images of one to four channels."""
    for channels, lay in itertools.product((1, 2, 3, 4), ("channels_last", "nchw")):
        for k_out, taps, stride in ((64, 7, 2), (24, 3, 2), (33, 16, 16)):
            side = 0 if stride == taps else taps // 2  # 0 of patches
            g = Geometry((stride, stride), (side, side, side, side))
            sizes = ((4, channels, 64, 48), (k_out, channels, taps, taps))
            for direction in DIRECTIONS:
                Conv.random(direction, *sizes, g, dtype, device, lay_a=lay).check()


@pytest.mark.parametrize("dtype", [HALF, BRAIN], ids=dtype_id)
def test_first_layers_whose_stride_leaves_pixels(
    cutwheel: ModuleType, device: str, dtype: torch.dtype
) -> None:
    """Images that the stride does not divide, from one channel to more than 16 bytes of them."""
    for channels, lay in itertools.product((1, 3, 7, 12), ("channels_last", "nchw", "cropped")):
        for taps, stride, side in ((3, 2, 0), (3, 2, 1), (7, 2, 3), (4, 4, 0), (5, 3, 2)):
            g = Geometry((stride, stride), (side, side, side, side))
            sizes = ((3, channels, 45, 59), (24, channels, taps, taps))
            for direction in DIRECTIONS:
                Conv.random(direction, *sizes, g, dtype, device, lay_a=lay).check()


@pytest.mark.parametrize("dtype", [HALF, BRAIN], ids=dtype_id)
def test_gradients_of_few_filters(cutwheel: ModuleType, device: str, dtype: torch.dtype) -> None:
    """They may be computed with the operands in each other's place."""
    routes = set()
    for c, k_out, taps, padding in (
        (128, 3, (3, 3), (1, 1, 1, 1)),
        (264, 4, (3, 3), (0, 2, 1, 0)),
        (72, 16, (1, 7), (0, 0, 3, 3)),
        (100, 1, (5, 5), (2, 2, 2, 2)),
    ):
        for dilation, lay in itertools.product((1, 2), ("channels_last", "nchw")):
            g = Geometry((1, 1), padding, (dilation, dilation))
            sizes = ((8, c, 67, 61), (k_out, c, *taps))
            conv = Conv.random("wgrad", *sizes, g, dtype, device, lay_a=lay)
            conv.check()
            routes.add(conv.explained()["route"])
    if torch.cuda.get_device_capability() == (9, 0) and not os.environ.get("CUTWHEEL_ARCH"):
        assert "implicit GEMM of swapped operands" in routes


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_gradients_of_inputs_of_few_channels(
    cutwheel: ModuleType, device: str, dtype: torch.dtype
) -> None:
    """They may be sums of the columns that a GEMM makes: each residue class has its own taps."""
    routes = set()
    for c, k_out, taps, stride, dilation, padding in (
        (4, 320, (3, 3), (1, 1), (1, 1), (1, 1, 1, 1)),
        (3, 72, (3, 3), (2, 2), (1, 1), (0, 0, 0, 0)),
        (1, 64, (7, 5), (2, 3), (1, 1), (3, 2, 0, 4)),
        (5, 136, (4, 3), (4, 6), (2, 4), (1, 1, 2, 0)),  # some residue classes have no tap
        (8, 64, (2, 2), (3, 1), (1, 3), (0, 1, 1, 0)),
        (7, 40, (1, 9), (1, 2), (1, 1), (0, 0, 8, 8)),
    ):
        for image in ((97, 61), (64, 130), (9, 26)):
            g = Geometry(stride, padding, dilation)
            sizes = ((5, c, *image), (k_out, c, *taps))
            conv = Conv.random("dgrad", *sizes, g, dtype, device)
            conv.check()
            routes.add(conv.explained()["route"])
    is_native = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
    if is_native and not os.environ.get("CUTWHEEL_ARCH") and dtype != SINGLE:
        assert "GEMM and col2im" in routes


def test_float32_without_tf32(cutwheel: ModuleType, device: str) -> None:
    """torch's setting for convolutions decides: what it forbids has all 24 bits."""
    conv = Conv.random("fprop", *EVEN, SINGLE, device, epilogue_of(None), exact=False)
    before = torch.backends.cudnn.conv.fp32_precision
    try:
        torch.backends.cudnn.conv.fp32_precision = "ieee"
        result = cutwheel.conv2d(**arguments(conv, None, "no_residual"))
    finally:
        torch.backends.cudnn.conv.fp32_precision = before
    exact = conv.weighed().value
    assert (result.double() - exact).norm() <= 2e-5 * exact.norm()  # TF32 has 3e-4
    check_public(cutwheel, conv)


@pytest.mark.parametrize("name", ["float64", "complex64", "bool", "uint8", "int8", "int64", "fp8"])
def test_dtypes_without_a_kernel(cutwheel: ModuleType, device: str, name: str) -> None:
    """Tensors that torch convolves go through; others are refused in our words, not cuDNN's."""
    dtype = torch.float8_e4m3fn if name == "fp8" else getattr(torch, name)
    x, weight = (values(shape, SINGLE, device).to(dtype) for shape in ((2, 6, 9, 8), (4, 6, 3, 3)))
    conv2d = torch.nn.functional.conv2d
    if name in ("float64", "complex64"):
        result, wanted = cutwheel.conv2d(x, weight, padding=1), conv2d(x, weight, padding=1)
        torch.testing.assert_close(result, wanted, check_stride=False)
        return
    if torch.device(device).type != "cuda":
        pytest.skip("torch convolves integers on the CPU")
    with pytest.raises((RuntimeError, NotImplementedError)):
        conv2d(x, weight, padding=1)
    with pytest.raises(TypeError, match=r"^conv2d: input has dtype .*; expected float16, bfloat"):
        cutwheel.conv2d(x, weight, padding=1)


# ---- arguments
@pytest.mark.parametrize("groups", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_arguments_of_torch(
    cutwheel: ModuleType, device: str, dtype: torch.dtype, groups: bool
) -> None:
    """Without groups kernels, with groups torch."""
    rng = random.Random(7)
    for problem in drawn(12, 3, groups, even=True):
        activation, place = rng.choice((None, "relu", "silu")), rng.choice(PLACES)
        epilogue = epilogue_of(activation, place)
        conv = Conv.random("fprop", *problem, dtype, device, epilogue)
        # Results that torch computes in parts are rounded in parts.
        result = conv.check(
            lambda conv=conv, how=(activation, place): cutwheel.conv2d(**arguments(conv, *how)),
            fused=not groups,
        )
        assert result.shape[1] == problem[1][0]
    depthwise = ((2, 24, 9, 8), (24, 1, 3, 3), Geometry((1, 1), (1, 1, 1, 1), (1, 1), 24))
    conv = Conv.random("fprop", *depthwise, dtype, device, epilogue_of(None))
    conv.check(lambda: cutwheel.conv2d(**arguments(conv, None, "no_residual")), fused=False)


@pytest.mark.parametrize("padding", ["same", "valid", 2, (2,), (1, 2)], ids=str)
def test_padding(cutwheel: ModuleType, device: str, padding: Any) -> None:
    for kernel, dilation in itertools.product(((3, 3), (2, 4), (5, 2)), (1, 2, (2, 1))):
        g = Geometry.of(kernel, 1, padding, dilation)
        conv = Conv.random("fprop", (2, 16, 14, 13), (24, 16, *kernel), g, BRAIN, device, BIAS)
        x, weight = conv.positional
        bias = conv.operand("bias")
        conv.check(
            lambda given=(x, weight, bias), by=dilation: cutwheel.conv2d(
                *given, padding=padding, dilation=by
            )
        )


def test_one_image_without_a_batch(cutwheel: ModuleType, device: str) -> None:
    conv = Conv.random("fprop", (1, 24, 9, 14), *EVEN[1:], BRAIN, device, epilogue_of("relu"))
    given = arguments(conv, "relu", "no_residual")
    result = cutwheel.conv2d(**{**given, "input": given["input"][0]})
    assert result.dim() == 3
    assert torch.equal(result, check_public(cutwheel, conv, "relu")[0])


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_empty_batch(cutwheel: ModuleType, device: str, dtype: torch.dtype, direction: str) -> None:
    for (_, *image), *rest in (EVEN, ODD, ((0, 64, 5, 5), (8, 64, 1, 1), Geometry())):
        result = Conv.random(direction, (0, *image), *rest, dtype, device).check()
        assert not result.any()
        assert result.numel() == 0 or direction == "wgrad"


# ---- epilogues
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("activation", [None, *TRAINED, *COMPOSED], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_epilogues(
    cutwheel: ModuleType, device: str, dtype: torch.dtype, activation: str | None, place: str
) -> None:
    """Mixed signs; with and without a bias; filters of one tap, too, which are GEMMs."""
    one_tap = ((3, 40, 7, 5), (24, 40, 1, 1), Geometry())
    even = (*EVEN[:2], Geometry((1, 2), (1, 1, 2, 2)))
    for problem, bias in itertools.product((even, one_tap), (True, False)):
        epilogue = epilogue_of(activation, place, bias)
        conv = Conv.random("fprop", *problem, dtype, device, epilogue)
        check_public(cutwheel, conv, activation, place)


@pytest.mark.parametrize("name", ["bias_residual_relu", "bias_relu_residual"])
@pytest.mark.parametrize("arch", ARCHS)
def test_sum_and_activation_keep_their_order(
    cutwheel: ModuleType, device: str, environment: Any, arch: str, name: str
) -> None:
    """relu(z + residual) has no negative elements, relu(z) + residual has."""
    require_arch(arch)
    environment(CUTWHEEL_ARCH=arch)
    if not serves("fprop", BRAIN, name):
        pytest.skip(f"no kernel with {name}")
    place = "after" if name == "bias_relu_residual" else "before"
    conv = Conv.random("fprop", *EVEN, BRAIN, device, epilogue_of("relu", place))
    result = check_public(cutwheel, conv, "relu", place)
    negative = (result < 0).float().mean().item()
    assert negative == 0 if place == "before" else 0.1 < negative < 0.6
    # The error of another order would be many times the limit.
    other = replace(conv, epilogue=epilogue_of("relu", "before" if place == "after" else "after"))
    with pytest.raises(AssertionError):
        other.judge(result)


@pytest.mark.parametrize("lay", LAYOUTS)
@pytest.mark.parametrize("place", ["before", "after"])
def test_residual_may_lie_anyhow(cutwheel: ModuleType, device: str, place: str, lay: str) -> None:
    for problem in (EVEN, ((2, 40, 6, 7), (19, 40, 3, 3), SAME_3X3)):
        conv = Conv.random(
            "fprop", *problem[:2], SAME_3X3, BRAIN, device, epilogue_of("relu", place)
        )
        check_public(cutwheel, replace(conv, lay_residual=lay), "relu", place)


def test_residual_may_be_expanded_or_the_input(cutwheel: ModuleType, device: str) -> None:
    sizes = ((2, 24, 9, 11), (24, 24, 3, 3))
    conv = Conv.random("fprop", *sizes, SAME_3X3, BRAIN, device, epilogue_of("relu", "before"))
    row = values((1, 24, 1, 1), BRAIN, device)
    picture = values((1, 1, 9, 11), BRAIN, device)
    for residual in (row.expand(conv.output_size), picture.expand(conv.output_size)):
        given = replace(conv, operands={**conv.operands, "residual": residual})
        call = {**arguments(conv, "relu", "before"), "residual": residual}
        given.check(lambda call=call: cutwheel.conv2d(**call))
    call = arguments(conv, "relu", "before")
    given = replace(conv, operands={**conv.operands, "residual": conv.a})
    given.check(lambda: cutwheel.conv2d(**{**call, "residual": call["input"]}))


def test_residual_of_another_shape_is_refused(cutwheel: ModuleType, device: str) -> None:
    """Also where it would broadcast, or has as many elements."""
    for activation, place in itertools.product((None, "relu", "gelu", "silu"), ("before", "after")):
        conv = Conv.random("fprop", *EVEN, BRAIN, device, epilogue_of(activation, place))
        call, (n, k_out, p, q) = arguments(conv, activation, place), conv.output_size
        for shape in (
            (1, k_out, p, q),
            (n, k_out, 1, 1),
            (n, 1, p, q),
            (k_out, p, q),
            (n, p, q, k_out),
            (n, k_out, q, p),
            (n, k_out, p, q + 1),
            (k_out,),
        ):
            call["residual"] = torch.zeros(shape, dtype=BRAIN, device=device)
            with pytest.raises(ValueError, match="residual"):
                cutwheel.conv2d(**call)
        call["residual"] = conv.operand("residual").float()
        with pytest.raises(TypeError, match="residual"):
            cutwheel.conv2d(**call)


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
@pytest.mark.parametrize("arch", ARCHS)
def test_bias_may_be_a_slice(
    cutwheel: ModuleType, device: str, environment: Any, arch: str, dtype: torch.dtype
) -> None:
    """At any element of its storage, and with any stride; around it is NaN."""
    require_arch(arch)
    environment(CUTWHEEL_ARCH=arch)
    for problem in (EVEN, ODD):
        for activation in (None, "relu"):
            if not serves("fprop", dtype, f"bias_{activation}" if activation else "bias"):
                continue
            conv = Conv.random("fprop", *problem, dtype, device, BIAS)
            if activation:
                conv = replace(
                    conv, epilogue=replace(BIAS, name="bias_relu", expr="relu(accum + bias)")
                )
            bias = conv.operands["bias"]
            assert bias is not None
            for offset, step in ((1, 1), (3, 1), (0, 2), (5, 3)):
                whole = bias.new_full((offset + step * len(bias) + 8,), float("nan"))
                view = whole[offset : offset + step * len(bias) : step]
                view.copy_(bias)
                replace(conv, operands={"bias": view}).check()


@pytest.mark.parametrize(
    ("activation", "value"),
    # gelu and silu of minus infinity are what their formulas make of it.
    [
        *((name, float("nan")) for name in ("none", *TRAINED)),
        ("none", float("inf")),
        ("relu", float("inf")),
    ],
    ids=str,
)
@pytest.mark.parametrize("arch", ARCHS)
def test_special_values_reach_their_windows_only(
    cutwheel: ModuleType, device: str, environment: Any, arch: str, activation: str, value: float
) -> None:
    """NaN goes through relu; pixels whose windows do not have it are as without."""
    require_arch(arch)
    environment(CUTWHEEL_ARCH=arch)
    of = None if activation == "none" else activation
    names = {
        "no_residual": f"bias_{of}" if of else "bias",
        "before": f"bias_residual_{of}" if of else "bias_residual",
        "after": f"bias_{of}_residual" if of else "bias_residual",
    }
    for place in PLACES:
        if not serves("fprop", BRAIN, names[place]):
            continue
        conv = Conv.random("fprop", *EVEN, BRAIN, device, epilogue_of(of, place))
        clean = check_public(cutwheel, conv, of, place)
        x = conv.a.clone()
        x[1, 5, 4, 6] = value
        dirty = replace(conv, a=x)
        result = cutwheel.conv2d(**arguments(dirty, of, place))
        exact = dirty.weighed().value
        assert torch.equal(result.isnan(), exact.isnan()), f"{dirty}"
        assert torch.equal(result.isinf(), exact.isinf()), f"{dirty}"
        plain = replace(dirty, epilogue=PLAIN).weighed().value
        touched = ~plain.isfinite()
        assert 0 < int(touched.sum()) < touched.numel()
        assert torch.equal(result[~touched], clean[~touched])
        assert value == value or result[touched].isnan().all(), f"{dirty}: NaN is lost"
