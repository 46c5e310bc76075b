"""Which kernels of convolutions serve which GPU. Extents are those of the implicit product."""

from __future__ import annotations

import json
import re

import pytest
import torch
from selection import (
    A100,
    B200,
    BF16,
    DGRAD,
    E4M3,
    F16,
    F32,
    FPROP,
    H200,
    L40S,
    NONE,
    RTX3090,
    S8,
    TF32,
    V100,
    VECTOR,
    WGRAD,
    Gpu,
    chosen,
    explain,
    needs_all,
)

cutwheel = pytest.importorskip("cutwheel", reason="needs the built package (make test builds it)")

pytestmark = needs_all

OF_INPUT = {"direction": FPROP, "taps": 9}
OF_GRADIENT = {"direction": DGRAD, "taps": 9}
OF_FILTER = {"direction": WGRAD, "taps": 9}
ALL = [OF_INPUT, OF_GRADIENT, OF_FILTER]

# 3x3 filters on 32 images of a ResNet.
SHAPES = [(100352, 64, 576), (6272, 256, 2304), (1568, 512, 4608)]
GPUS = [
    (A100, "_sm80_"),
    (RTX3090, "_sm80_"),
    (L40S, "_sm80_"),
    (H200, "_sm90a_"),
    (B200, "_sm80_"),
]


def gpu_id(value: object) -> str:
    return f"cc{value.major}{value.minor}" if isinstance(value, Gpu) else str(value)


def rows_by_name() -> dict[str, dict]:
    return {row["name"]: row for row in json.loads(torch.ops.cutwheel._kernels())}


def of_filter(shape: tuple[int, int, int]) -> tuple[int, int, int]:
    """The product that is the gradient of the filter."""
    m, n, k = shape
    return n, k, m


def check_served(gpu: Gpu, arch: str, shape: tuple[int, int, int], **options: object) -> None:
    direction = {FPROP: "fprop", DGRAD: "dgrad", WGRAD: "wgrad"}[options["direction"]]
    plans = explain(gpu, *shape, **options)["plans"]
    assert plans
    rows = rows_by_name()
    for plan in plans:
        assert arch in plan["row"]
        assert rows[plan["row"]]["op"] == "conv2d"
        assert rows[plan["row"]]["direction"] == direction
        assert direction == "wgrad" or (plan["splits"], plan["reduce"]) == (1, None)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize(("gpu", "arch"), GPUS, ids=gpu_id)
def test_16_bits_are_served_in_all_directions(gpu: Gpu, arch: str, dtype: str, shape) -> None:
    for addend in (NONE, VECTOR):
        check_served(gpu, arch, shape, **OF_INPUT, a=dtype, addend=addend)
    for epilogue in ("bias_relu", "bias_residual_relu", "bias_relu_residual", "bias_silu"):
        check_served(gpu, arch, shape, **OF_INPUT, a=dtype, epilogue=epilogue)
    for step in (1, 4):
        check_served(gpu, arch, shape, **OF_GRADIENT, a=dtype, step=step)
    check_served(gpu, arch, of_filter(shape), **OF_FILTER, a=dtype)


# wgmma reads 32-bit operands K-major only, which the gradients' are not.
@pytest.mark.parametrize(("gpu", "arch"), GPUS, ids=gpu_id)
def test_tf32_gradients_are_those_of_ampere(gpu: Gpu, arch: str) -> None:
    check_served(gpu, arch, SHAPES[1], **OF_INPUT, a=TF32)
    check_served(gpu, "_sm80_", SHAPES[1], **OF_GRADIENT, a=TF32)
    check_served(gpu, "_sm80_", of_filter(SHAPES[1]), **OF_FILTER, a=TF32)


@pytest.mark.parametrize("d", [BF16, F16, F32])
def test_8_bits_are_served_forward(d: int) -> None:
    options = {**OF_INPUT, "d": d, "epilogue": "scaled_bounded"}
    for gpu, arch in GPUS:
        check_served(gpu, arch, SHAPES[1], **options, a=S8)
    check_served(H200, "_sm90a_", SHAPES[1], **options, a=E4M3)
    check_served(L40S, "_sm89_", SHAPES[1], **options, a=E4M3)
    assert explain(A100, *SHAPES[1], **options, a=E4M3)["plans"] == []


@pytest.mark.parametrize("epilogue", ["quantized", "quantized_silu", "quantized_residual"])
def test_results_of_8_bits_are_served(epilogue: str) -> None:
    options = {**OF_INPUT, "epilogue": epilogue}
    for gpu, arch in GPUS:
        check_served(gpu, arch, SHAPES[1], **options, a=S8, d=S8)
    check_served(H200, "_sm90a_", SHAPES[1], **options, a=E4M3, d=E4M3)
    check_served(L40S, "_sm89_", SHAPES[1], **options, a=E4M3, d=E4M3)
    assert explain(A100, *SHAPES[1], **options, a=E4M3, d=E4M3)["plans"] == []


def test_older_gpus_are_not_served() -> None:
    for options in ALL:
        assert explain(V100, *SHAPES[1], **options)["plans"] == []


@pytest.mark.parametrize("gpu", [A100, H200], ids=gpu_id)
def test_a_long_k_is_split_where_tiles_are_few(gpu: Gpu) -> None:
    few = chosen(gpu, 64, 576, 100352, **OF_FILTER)
    assert few["splits"] > 4
    assert few["reduce"]
    plans = explain(gpu, 512, 4608, 1568, **OF_FILTER)["plans"]
    assert max(plan["splits"] for plan in plans) <= 8


def test_no_split_is_empty() -> None:
    rows = rows_by_name()
    for pixels in (513, 1000, 6272, 100351):
        for plan in explain(H200, 64, 576, pixels, **OF_FILTER)["plans"]:
            steps = -(-pixels // rows[plan["row"]]["tile"][2])
            each = -(-steps // plan["splits"])
            assert (plan["splits"] - 1) * each < steps


def test_partial_sums_are_reduced_into_the_result() -> None:
    rows = rows_by_name()
    for gpu in (A100, H200):
        for plan in explain(gpu, 256, 2304, 6272, **OF_FILTER)["plans"]:
            is_float = rows[plan["row"]]["d"] == "f32"
            assert is_float == (plan["reduce"] is not None)
            if is_float:
                assert rows[plan["reduce"]]["d"] == "bf16"


def test_small_filters_get_narrow_tiles() -> None:
    def columns(n: int) -> int:
        return rows_by_name()[chosen(H200, 100352, n, 1152, **OF_INPUT)["row"]]["tile"][1]

    assert columns(64) == 64
    assert columns(128) == 128
    assert columns(512) >= 128


# 64 images of 56x56 pixels, 64 channels and filters: output tiles of 4 rows.
@pytest.mark.parametrize("options", [OF_INPUT, OF_GRADIENT], ids=["fprop", "dgrad"])
def test_few_channels_are_convolved_directly(options: dict[str, int]) -> None:
    implicit = chosen(H200, 200704, 64, 576, **options)
    direct = chosen(H200, 200704, 64, 576, **options, rectangles=896)
    assert "_direct_" not in implicit["row"]
    assert "_direct_" in direct["row"]
    assert direct["predicted_us"] < 0.75 * implicit["predicted_us"]
    # Images so small that most positions of an output tile are outside of them.
    assert "_direct_" not in chosen(H200, 12544, 64, 576, **options, rectangles=256)["row"]


# 8 images of 256x256 pixels, 3x3: two positions more in each row, whose taps share three pixels.
@pytest.mark.parametrize("options", [OF_INPUT, OF_GRADIENT], ids=["fprop", "dgrad"])
@pytest.mark.parametrize("channels", [32, 64])
def test_taps_of_large_images_share_pixels(options: dict[str, int], channels: int) -> None:
    m, k, shared_pixels = 8 * 256 * 256, 9 * 128, (8 * 256 * 258, 3)
    alone = chosen(H200, m, channels, k, **options)
    shared = chosen(H200, m, channels, k, **options, shared_pixels=shared_pixels)
    assert "_rows_" not in alone["row"]
    assert "_rows_" in shared["row"]
    assert shared["predicted_us"] < 0.8 * alone["predicted_us"]
    # Of 128 columns the tile in turns takes 0.94 of the time of 256x128, whose taps share them
    # (H200).
    wide = chosen(H200, m, 128, k, **options, shared_pixels=shared_pixels)
    assert "_128x128x64_" in wide["row"]
    assert "_pingpong_" in wide["row"]
    # In rows of 7 pixels two of nine positions are none.
    small = chosen(H200, 256 * 7 * 7, 512, 9 * 512, **options, shared_pixels=(256 * 7 * 9, 3))
    assert "_rows_" not in small["row"]


# Of 32 channels half of a tile of K of 64 would be zeros; 256 fill it. 8 images of 56x56 pixels.
@pytest.mark.parametrize(
    ("channels", "is_half"), [(32, True), (64, False), (112, False), (256, False)]
)
@pytest.mark.parametrize("direction", [FPROP, DGRAD])
def test_few_channels_have_tiles_of_their_own(direction: str, channels: int, is_half: bool) -> None:
    plan = chosen(H200, 8 * 56 * 56, 256, 9 * channels, direction=direction, taps=9)
    assert (rows_by_name()[plan["row"]]["tile"][2] == 32) == is_half, plan["row"]


# All threadblocks ask for the same lines of a filter of 240 rows of 40 channels at once.
def test_few_columns_of_a_row_major_weight_have_few_threadblocks() -> None:
    plan = chosen(H200, 3136, 40, 240, layout_a="t", layout_b="t")
    m, n, k = rows_by_name()[plan["row"]]["tile"]
    assert k == 64
    assert max(m, n) > 64


# A transposed convolution from 64 channels to 3, padded to 8: 64 images of 128x128 pixels, 4x4.
def test_residue_classes_of_few_channels_are_computed_together() -> None:
    options = {"direction": DGRAD, "taps": 16, "step": 4}
    implicit = chosen(H200, 1048576, 8, 1024, **options)
    strided = chosen(H200, 1048576, 8, 1024, **options, rectangles=1216)
    assert "_strided_" not in implicit["row"]
    assert "_strided_" in strided["row"]
    assert strided["predicted_us"] < 0.6 * implicit["predicted_us"]


# 8 images of 256x256 pixels. 96 channels: 192 bytes a pixel, one line and a half. 232: 4,176 bytes
# a filter, 130 sectors and a half.
@pytest.mark.parametrize(
    ("options", "padding", "family", "channels"),
    [
        (OF_INPUT, "taps", "sm90_conv", 96),
        (OF_INPUT, "filters", "sm90_gather_conv", 232),
        (OF_GRADIENT, "taps", "sm90_conv", 96),
    ],
    ids=["fprop, taps", "fprop, filters", "dgrad, taps"],
)
def test_padded_filters_are_read_in_whole_lines(
    options: dict[str, int], padding: str, family: str, channels: int
) -> None:
    unpadded = explain(H200, 524288, channels, 9 * channels, **options)["plans"]
    padded = explain(H200, 524288, channels, 9 * channels, **options, padded_filter=padding)
    rows = rows_by_name()
    assert {rows[plan["row"]]["family"] for plan in padded["plans"]} == {family}
    times = {(plan["row"], plan["splits"]): plan["predicted_us"] for plan in unpadded}
    faster = [plan["predicted_us"] / times[plan["row"], plan["splits"]] for plan in padded["plans"]]
    assert max(faster) < 1
    assert any("zeros that this kernel" in r["reason"] for r in padded["rejected"])
    # With 128 channels they lie so anyway.
    own, copy = (
        {
            plan["row"]: plan["predicted_us"]
            for plan in explain(H200, 524288, 128, 1152, **options, padded_filter=x)["plans"]
        }
        for x in ("none", padding)
    )
    assert copy.items() <= own.items()


# 1280 filters of 2560 channels, 3x3, on one image of 27x27: float32 sums would be 118 MB.
def test_large_sums_of_a_filter_are_not_read_again() -> None:
    plan = chosen(H200, 1280, 23040, 729, **OF_FILTER)
    assert rows_by_name()[plan["row"]]["d"] == "bf16"
    assert plan["splits"] == 1


@pytest.mark.parametrize(
    ("row", "of", "text"),
    [
        ("_fprop_direct_plain", {"direction": FPROP}, "up to 64 channels"),
        ("_fprop_rows_plain", {"direction": FPROP}, "three or more taps of a row"),
        ("_dgrad_strided_plain", {"direction": DGRAD}, "strides that divide the image"),
        ("_dgrad_direct_plain", {"direction": DGRAD, "step": 4, "rectangles": 9}, "takes stride 1"),
    ],
)
def test_a_reason_says_what_is_implemented(row: str, of: dict[str, int], text: str) -> None:
    rejected = explain(H200, 200704, 128, 1152, taps=9, **of)["rejected"]
    reasons = {r["reason"] for r in rejected if row in r["row"]}
    assert any(text in reason for reason in reasons)


# Where TMA loads, a tap's channels fill whole steps of K: taps of few channels are gathered.
def test_taps_count_on_hopper() -> None:
    def predicted(gpu: Gpu, taps: int, mode: str = "") -> float:
        plans = explain(gpu, 100352, 64, 576, direction=FPROP, taps=taps)["plans"]
        return min(plan["predicted_us"] for plan in plans if mode in plan["row"])

    assert predicted(H200, 72, "_persistent_") > 4 * predicted(H200, 9, "_persistent_")
    # 16 channels are a sector of 32 bytes; 8 begin within one.
    assert predicted(H200, 36, "_gather_") < 1.2 * predicted(H200, 9, "_gather_")
    assert "_gather_" in chosen(H200, 100352, 64, 576, direction=FPROP, taps=72)["row"]
    assert predicted(A100, 72) < 1.2 * predicted(A100, 9)


# Two threadblocks load the output's gradient for each other where L2 limits them: rows that begin
# within lines. Of whole lines TMA loads both operands.
@pytest.mark.parametrize(("channels", "is_shared"), [(232, True), (256, False), (1280, False)])
def test_gathered_gradients_are_shared_within_lines(channels: int, is_shared: bool) -> None:
    plan = chosen(H200, channels, 9 * channels, 50176, direction=WGRAD, taps=9)
    assert ("_wgrad_gather_multicast_" in plan["row"]) == is_shared


def test_a_stride_leaves_less_to_multiply() -> None:
    for gpu in (A100, H200):
        dense, strided = (
            chosen(gpu, 100352, 256, 2304, **OF_GRADIENT, step=step)["predicted_us"]
            for step in (1, 4)
        )
        assert strided < 0.6 * dense


@pytest.mark.parametrize("of", ALL, ids=["fprop", "dgrad", "wgrad"])
@pytest.mark.parametrize("width", [64, 128, 192])
def test_tiles_of_convolutions_of_groups_lie_in_one(of: dict[str, int], width: int) -> None:
    extents = 12544, 32 * width, 9 * width
    if of["direction"] == WGRAD:
        extents = 32 * width, 9 * width, 12544
    plans = explain(H200, *extents, **of, groups=32)["plans"]
    assert plans
    for plan in plans:
        rows, columns, _ = map(int, re.findall(r"_(\d+)x(\d+)x(\d+)_", plan["row"])[0])
        assert width % (rows if of["direction"] == WGRAD else columns) == 0
        assert not any(mode in plan["row"] for mode in ("_gather_", "_rows_", "_direct_"))
    every = explain(H200, *extents, **of)["plans"]
    assert len(every) > len(plans)
    # Channels that end within a step of K are followed by those of the next group.
    assert not explain(H200, 12544, 32 * 72, 9 * 72, **of, groups=32)["plans"]


def test_a_request_names_the_direction() -> None:
    request = explain(H200, 64, 128, 576, **OF_INPUT, step=4)["request"]
    assert (request["direction"], request["taps"], request["step"]) == ("fprop", 9, 4)
    assert request["layout"] is None
    assert request["epilogue"] == "plain"
    assert "direction" not in explain(H200, 64, 128, 256)["request"]


def test_a_reason_names_the_other_direction() -> None:
    reasons = {r["reason"] for r in explain(H200, 64, 128, 576, **OF_GRADIENT)["rejected"]}
    assert "the direction is dgrad, its own is fprop" in reasons


def test_convolutions_have_candidates_of_their_own() -> None:
    ops = {kernel.name: kernel.op for kernel in cutwheel.kernels()}
    for op, options in (("gemm", {}), *(("conv2d", options) for options in ALL)):
        answer = explain(H200, 512, 576, 576, **options)
        assert {ops[row["row"]] for row in (*answer["plans"], *answer["rejected"])} == {op}


@pytest.mark.parametrize("gpu", [A100, H200], ids=gpu_id)
def test_environment_names_one_kernel(environment, gpu: Gpu) -> None:
    name = chosen(gpu, 6272, 256, 2304, **OF_INPUT)["row"]
    environment(CUTWHEEL_KERNEL=name)
    assert [plan["row"] for plan in explain(gpu, 6272, 256, 2304, **OF_INPUT)["plans"]] == [name]
    assert explain(gpu, 6272, 256, 2304, **OF_GRADIENT)["plans"] == []
    assert explain(gpu, 512, 512, 512)["plans"] == []


def test_the_cpu_is_refused_in_one_sentence() -> None:
    ops = torch.ops.cutwheel
    x, w, y = torch.ones(2, 16, 5, 5), torch.ones(8, 16, 3, 3), torch.ones(2, 8, 3, 3)
    where = 1, 1, 0, 0, 0, 0, 1, 1
    for call in (
        lambda: ops.conv2d(x, w, None, *where),
        lambda: ops.conv2d_fused(x, w, None, None, *where, "bias_relu"),
        lambda: ops.conv2d_input_grad(y, w, 5, 5, *where),
        lambda: ops.conv2d_weight_grad(y, x, 3, 3, *where),
        lambda: ops.scaled_conv2d(x, w, torch.ones(1), torch.ones(1), None, *where),
    ):
        with pytest.raises(RuntimeError, match="tensors are on the CPU"):
            call()


@pytest.mark.parametrize("gpu", [A100, H200], ids=gpu_id)
@pytest.mark.parametrize("shape", [(16, 72), (2048, 4608)], ids=str)
def test_the_gradient_of_a_filter_over_many_pixels_is_split(
    gpu: Gpu, shape: tuple[int, int]
) -> None:
    pixels = 5 << 19
    plans = explain(gpu, *shape, pixels, **OF_FILTER)["plans"]
    assert plans
    for plan in plans:
        assert plan["reduce"], plan["row"]
        assert pixels / plan["splits"] <= (1 << 18) + 256  # a slice is whole tiles
