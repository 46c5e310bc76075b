"""Convolutions: the rules of their families, names, sources and rows of the table."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernelgen_cases import (
    SM80,
    SM80_CONV,
    SM90,
    SM90_CONV,
    SM90_GATHER_CONV,
    SM90_ROW_CONV,
    Table,
    bounded,
    changed,
    declared,
    document,
    dtypes,
    errors_of,
    subsets,
)
from kernelgen_conv_cases import PRODUCT, errors, manifest, one_error, rendered
from kernelgen_scaled_cases import E4M3, INT8

from kernelgen.families import FAMILIES
from kernelgen.naming import procedural_name

TF32 = dtypes("tf32", "f32")
SUMS = dtypes("bf16", "f32")
DIRECTIONS = ["fprop", "dgrad", "wgrad"]


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (
            {"direction": ["wgrad"], "dtypes": [SUMS], "tile": [256, 128, 64]},
            "tile M = 256; one or two warpgroups take 64 rows each: 64 or",
        ),
        ({"tile": [160, 128, 64]}, "tile M = 160; one or two warpgroups take 64 rows each, or two"),
        (
            {"direction": ["wgrad"], "dtypes": [SUMS], "tile": [192, 128, 64]},
            "tile M = 192; one or two warpgroups take 64 rows each: 64 or 128",
        ),
        ({"tile": [128, 8, 64]}, "tile N = 8; rows of D are made of 16 columns"),
        (
            {"dtypes": [TF32], "tile": [128, 160, 32]},
            "no wgmma of tf32 and tf32 in that width here; N is one of 16, 32, 64, 96, 128, 192, 2",
        ),
        (
            {"tile": [128, 128, 128]},
            "tile K = 128; it is 32 or 64: a swizzle spans 64 or 128 bytes",
        ),
        ({"dtypes": [TF32]}, "tile K = 64; it is 32: a swizzle spans 128 bytes"),
        (
            {"direction": ["dgrad"], "tile": [128, 96, 64]},
            "tile N = 96 with direction dgrad; of a row-major B one swizzle spans 64 columns: N mu",
        ),
        (
            {"direction": ["wgrad"], "tile": [64, 32, 64]},
            "tile N = 32 with direction wgrad; of a row-major B one swizzle spans 64 columns",
        ),
        (
            {"dtypes": [TF32], "direction": ["dgrad"], "tile": [128, 128, 32]},
            "direction dgrad with tf32 operands; wgmma reads 32-bit operands K-major only, as they",
        ),
        (
            {"dtypes": [TF32], "direction": ["fprop", "wgrad"], "tile": [128, 128, 32]},
            "direction wgrad with tf32 operands; wgmma reads 32-bit operands K-major only, as they",
        ),
        (
            {"schedule": "pingpong", "direction": ["dgrad", "wgrad"]},
            "schedule pingpong with direction wgrad; it has fprop and dgrad: leave schedule out",
        ),
        (
            {"schedule": "pingpong", "tile": [256, 64, 64], "direction": ["dgrad"]},
            "tile M = 256 with schedule pingpong; a warpgroup takes whole tiles: 64 or 128",
        ),
        (
            {"direction": ["fprop", "wgrad"], "tile": [128, 64, 32]},
            "tile K = 32; it is 64: a swizzle spans 128 bytes",
        ),
        ({"cluster": [2, 1, 1]}, "cluster 2x1x1; it shares K alone: [1, 1, 2], 4 or 8 at the end"),
        (
            {"cluster": [1, 1, 4], "tile": [128, 96, 64]},
            "tile N = 96 with cluster 1x1x4; each of 4 threadblocks finishes a multiple of 16 colu",
        ),
        (
            {"cluster": [1, 1, 2], "direction": ["fprop", "wgrad"]},
            "cluster 1x1x2 with direction wgrad; its K is split without: leave cluster out",
        ),
        ({"fast_accum": True}, "unknown key 'fast_accum'; allowed: tile"),
        ({"arch": ["80"]}, "unknown architecture '80'; allowed: 90a"),
    ],
)
def test_rules_of_sm90_conv(values: Table, text: str) -> None:
    assert text in one_error(SM90_CONV, **values)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"direction": ["dgrad"]}, "direction dgrad; it has fprop and wgrad: sm90_conv has all"),
        ({"tile": [128, 64, 128]}, "tile K = 128; it is 64: one swizzle spans 128 bytes"),
        ({"direction": ["wgrad"], "tile": [64, 96, 64]}, "N must be a multiple of 64"),
        (
            {"epilogue": ["two_residuals"], "tile": [128, 256, 64]},
            "3 stages x ((128 + 256) x 128 + 16) + staged rows 128 x 512 + matrices 128 x 512",
        ),
        ({"cluster": [2, 1, 1]}, "cluster 2x1x1 with direction fprop; wgrad has [1, 2, 1]"),
        (
            {"direction": ["wgrad"], "cluster": [1, 1, 2]},
            "cluster 1x1x2 with direction wgrad; wgrad has [1, 2, 1]",
        ),
        (
            {"direction": ["wgrad"], "tile": [64, 128, 64], "cluster": [1, 2, 1]},
            "tile M = 64 with cluster 1x2x1; each of two threadblocks loads half of the rows, in"
            " swizzles of 64: M must be a multiple of 128",
        ),
    ],
)
def test_rules_of_sm90_gather_conv(values: Table, text: str) -> None:
    assert text in one_error(SM90_GATHER_CONV, **values)


def test_threadblocks_of_gathered_wgrad_share_rows() -> None:
    values: Table = {"direction": ["wgrad"], "tile": [256, 128, 64], "cluster": [1, 2, 1]}
    (kernel,) = manifest(changed(SM90_GATHER_CONV, **values)).kernels
    assert "_256x128x64_wgrad_gather_multicast_" in procedural_name(kernel)
    assert "Direction::wgrad, /*sharing=*/2, " in FAMILIES[kernel.family].cpp_type(kernel)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (
            {"direction": ["wgrad"], "tile": [128, 128, 64]},
            "direction wgrad; it has fprop and dgrad",
        ),
        ({"tile": [256, 80, 64]}, "tile N = 80; TMA stores 64 bytes of a pixel or more: N must"),
        ({"tile": [128, 64, 128]}, "tile K = 128; it is 32 or 64: a swizzle spans 64 or 128 bytes"),
        ({"direction": ["dgrad"], "tile": [256, 96, 64]}, "N must be a multiple of 64"),
        (
            {"epilogue": ["two_residuals"]},
            "epilogue two_residuals; TMA loads one matrix, and rows and scalars are read beside it",
        ),
    ],
)
def test_rules_of_sm90_row_conv(values: Table, text: str) -> None:
    assert text in one_error(SM90_ROW_CONV, **values)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (
            {"tile": [128, 16, 32], "warp": [64, 4, 32]},
            "16-bit operands need multiples of 16x16x32 (pairs of mma",
        ),
        ({"tile": [128, 96, 32]}, "tile 128x96x32 is not divisible by warp 64x64x32"),
        ({"tile": [128, 128, 64]}, "warp K = 32; warps share M and N of a tile, not K"),
        ({"stages": 9, "tile": [64, 64, 32]}, "stages = 9; 2 to 8 are supported"),
        ({"swap_ab": True}, "unknown key 'swap_ab'; allowed: tile, warp, stages"),
        ({"arch": ["90a"]}, "unknown architecture '90a'; allowed: 80, 89"),
        (
            {"stages": 8, "arch": ["89"]},
            "8 stages x (128 + 128) x 32 x 2 = 131072 bytes, but a threadblock has at most 101376",
        ),
        (
            {
                "dtypes": [E4M3],
                "epilogue": ["scaled"],
                "arch": ["80", "89"],
                "tile": [128, 128, 64],
                "warp": [64, 32, 64],
                "stages": 3,
            },
            "e4m3 operands on architecture 80; tensor cores multiply fp8 from 89 on: declare it",
        ),
    ],
)
def test_rules_of_sm80_conv(values: Table, text: str) -> None:
    assert text in one_error(SM80_CONV, **values)


@pytest.mark.parametrize("entry", [SM90_CONV, SM80_CONV])
@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"direction": ["bprop"]}, "unknown direction 'bprop'; allowed: fprop, dgrad, wgrad"),
        ({"direction": ["dgrad", "dgrad"]}, "direction[1]: repeats direction[0]"),
        ({"direction": []}, "direction must be a list of at least one item"),
        ({"layouts": ["tnt"]}, "unknown key 'layouts'; allowed: family, arch, dtypes, direction, "),
        ({"dtypes": [dtypes("bf16", "f16")]}, "dtype combination bf16_bf16_f32_f16 (a_b_acc_d);"),
        ({"dtypes": [dtypes("s8", "s32", acc="s32")]}, "dtype combination s8_s8_s32_s32"),
        ({"dtypes": [dtypes("e4m3", "bf16", b="e5m2")]}, "dtype combination e4m3_e5m2_f32_bf16"),
        (
            {"dtypes": [SUMS], "direction": ["wgrad", "dgrad"]},
            "d = f32 with direction dgrad; of bf16 operands wgrad alone is stored in float32",
        ),
        ({"dtypes": [SUMS]}, "d = f32 with direction fprop; of bf16 operands wgrad alone is stor"),
        (
            {"epilogue": ["linear_combination"]},
            "epilogue linear_combination has beta and C, and convolutions have neither",
        ),
        (
            {"epilogue": ["plain", "bias_gelu"], "direction": ["fprop", "wgrad"]},
            "epilogue bias_gelu with direction wgrad; gradients are stored as they are",
        ),
        (
            {"epilogue": ["linear_combination"], "direction": ["wgrad"]},
            "epilogue linear_combination with direction wgrad; gradients are stored as they are",
        ),
        ({"epilogue": ["gated"]}, "epilogue gated gives D half the columns of the product; a con"),
        ({"epilogue": ["doubled"]}, "epilogue doubled gives D twice the columns of the product; a"),
        ({"epilogue": ["silu_backward"]}, "epilogue silu_backward does not use accum; it is for"),
    ],
)
def test_rules_of_directions(entry: Table, values: Table, text: str) -> None:
    assert text in one_error(entry, **values)


def test_forward_on_hopper_stores_more_than_d() -> None:
    assert manifest(changed(SM90_CONV, epilogue=["relu_aux"])).kernels
    for entry, direction in ((SM90_CONV, "dgrad"), (SM90_CONV, "wgrad"), (SM80_CONV, "fprop")):
        found = errors(entry, epilogue=["relu_aux"], direction=[direction])
        text = "epilogue relu_aux stores z; nothing but D can be stored"
        assert any(text in error for _, error in found)


def eight_bit(entry: Table, combination: Table, **values: Any) -> Table:
    k = 128 if entry is SM90_CONV else 64
    own = {} if entry is SM90_CONV else {"warp": [64, 32, k], "stages": 3, "arch": ["89"]}
    tile = {"dtypes": [combination], "epilogue": ["scaled"], "tile": [128, 128, k]}
    return changed(entry, **{**tile, **own, **values})


@pytest.mark.parametrize("entry", [SM90_CONV, SM80_CONV])
@pytest.mark.parametrize("combination", [E4M3, INT8])
def test_8_bit_operands_are_those_of_forward(entry: Table, combination: Table) -> None:
    every = [{**combination, "d": d} for d in ("bf16", "f16", "f32")]
    assert len(manifest(eight_bit(entry, combination, dtypes=every)).kernels) == 3
    for direction in ("dgrad", "wgrad"):
        found = errors(eight_bit(entry, combination), direction=[direction])
        text = f"direction {direction}; tensor cores read 8-bit operands K-major only, from row-ma"
        assert text in found[0][1]
        assert found[0][1].endswith(" and column-major B: fprop")
    found = errors(eight_bit(entry, combination), epilogue=["plain"])
    assert (
        "epilogue plain is one of mm and addmm, with alpha or beta; products of 8-bit"
        in (found[0][1])
    )


def test_32_bit_operands_have_all_directions_on_ampere() -> None:
    tile = {"tile": [128, 128, 16], "warp": [64, 64, 16]}
    tf32 = changed(SM80_CONV, dtypes=[TF32], direction=DIRECTIONS, **tile)
    assert [kernel.direction for kernel in manifest(tf32).kernels] == sorted(DIRECTIONS)
    assert manifest(changed(SM90_CONV, dtypes=[TF32], tile=[128, 128, 32]))


def test_direction_belongs_to_convolutions() -> None:
    for entry in (SM90, SM80):
        found = errors_of(document({**entry, "direction": ["fprop"]}))
        assert "unknown key 'direction'; allowed: family, arch, dtypes, layouts" in found[0][1]
    for entry in (SM90_CONV, SM80_CONV):
        assert {kernel.op for kernel in manifest(entry).kernels} == {"conv2d"}
        del (without := changed(entry))["direction"]
        assert errors(without)[0][1] == "key 'direction' is missing"


@pytest.mark.parametrize(
    ("values", "arithmetic"),
    [
        ({}, "2 stages x ((128 + 128) x 128 + 16) + staged rows 128 x 256 ="),
        ({"tile": [64, 64, 64]}, "2 stages x ((64 + 64) x 128 + 16) + staged rows 64 x 128 ="),
        (
            {"dtypes": [SUMS], "direction": ["wgrad"], "tile": [128, 256, 64]},
            "2 stages x ((128 + 256) x 128 + 16) + staged rows 128 x 512 =",
        ),
        # The first matrix lies where rows are staged.
        ({"epilogue": ["bias_residual_relu"]}, "+ staged rows 128 x 256 + vectors 2 x (128 x 2) ="),
        ({"epilogue": ["two_residuals"]}, "+ staged rows 128 x 256 + matrices 128 x 256 ="),
    ],
)
def test_shared_memory_of_sm90_conv(values: Table, arithmetic: str) -> None:
    (kernel,) = manifest(changed(SM90_CONV, **values)).kernels
    total, terms = FAMILIES["sm90_conv"].shared_memory(kernel)
    assert arithmetic in terms
    assert terms.endswith(f" = {total} bytes")


def test_shared_memory_of_sm80_conv() -> None:
    (kernel,) = manifest(SM80_CONV).kernels
    need = FAMILIES["sm80_conv"].shared_memory(kernel)
    assert need == (65536, "4 stages x (128 + 128) x 32 x 2 = 65536 bytes")


@st.composite
def entries(draw: st.DrawFn) -> Table:
    """A valid entry of a family of convolutions."""
    entry = changed(draw(st.sampled_from([SM90_CONV, SM80_CONV])))
    same = [dtypes(x, x) for x in ("f16", "bf16")]
    if draw(st.booleans()):
        epilogues = draw(subsets(["plain", "bias_gelu", "bias_residual_relu"]))
        return changed(entry, dtypes=draw(subsets(same)), epilogue=epilogues)
    if draw(st.booleans()):
        sums = [dtypes(x, "f32") for x in ("f16", "bf16")]
        return changed(entry, dtypes=draw(subsets([*same, *sums])), direction=["wgrad"])
    return changed(entry, dtypes=draw(subsets(same)), direction=draw(subsets(DIRECTIONS)))


# The grammar of names, spelled a second time on purpose: everything outside the build reads them.
NAME = re.compile(
    r"conv2d_(?P<arch>sm80|sm90a)_(?P<dtypes>\w+?_\w+?_f32_\w+?)_(?P<tile>\d+x\d+x\d+)"
    r"(_(?P<warp>\d+x\d+x\d+))?_(?P<direction>fprop|dgrad|wgrad)_(?P<mode>persistent|multistage4)"
    r"_(?P<epilogue>plain|bias_gelu|bias_residual_relu)"
)
LAYOUTS = {"fprop": "tnt", "dgrad": "ttt", "wgrad": "ntt"}


@bounded
@given(entries())
def test_a_name_says_everything_about_its_kernel(entry: Table) -> None:
    kernels = manifest(entry).kernels
    expected = 1
    for axis in ("dtypes", "direction", "epilogue"):
        expected *= len(entry[axis])
    assert len({procedural_name(kernel) for kernel in kernels}) == len(kernels) == expected
    for kernel in kernels:
        match = NAME.fullmatch(procedural_name(kernel))
        assert match is not None, procedural_name(kernel)
        assert kernel.epilogue is not None
        assert match["arch"] == kernel.arch.sm
        assert match["dtypes"] == str(kernel.dtypes)
        assert match["direction"] == kernel.direction
        assert LAYOUTS[match["direction"]] == kernel.layout
        assert match["epilogue"] == kernel.epilogue.name
        assert (match["warp"] is None) == (kernel.family == "sm90_conv")


def test_names_follow_the_documented_spelling() -> None:
    fused = changed(SM90_CONV, epilogue=["bias_residual_relu"])
    gradient = changed(SM80_CONV, direction=["dgrad"])
    kernels = manifest(fused, gradient, eight_bit(SM90_CONV, INT8)).kernels
    assert [procedural_name(kernel) for kernel in kernels] == [
        "conv2d_sm80_bf16_bf16_f32_bf16_128x128x32_64x64x32_dgrad_multistage4_plain",
        "conv2d_sm90a_bf16_bf16_f32_bf16_128x128x64_fprop_persistent_bias_residual_relu",
        "conv2d_sm90a_s8_s8_s32_bf16_128x128x128_fprop_persistent_scaled",
    ]


def test_tiles_and_directions_of_sm90_share_a_source() -> None:
    narrow = changed(SM90_CONV, tile=[64, 128, 64], direction=["wgrad"])
    turns = changed(SM90_CONV, schedule="pingpong", direction=["dgrad"])
    files = rendered(changed(SM90_CONV, direction=["fprop", "dgrad"]), narrow, turns)
    assert [name for name in files if name.endswith(".cu")] == ["conv2d_sm90a_conv.cu"]
    text = files["conv2d_sm90a_conv.cu"]
    assert text.startswith("// Generated by kernelgen from cuda/manifests/*.toml. Do not edit.\n")
    assert "#define CUTLASS_ENABLE_GDC_FOR_SM90 1\n" in text
    assert '#include "sm90/native/conv.cuh"\n' in text
    assert "\nnamespace cutwheel::conv2d {\nusing namespace gemm;\n" in text
    assert re.findall(r"\nusing K\d = (.*);", text) == [
        f"Sm90Conv<Arch::sm90a, {PRODUCT}, Shape3<{tile}>, Direction::{direction},"
        f" Schedule::{schedule}, /*splits=*/1, epilogue::plain>"
        for tile, direction, schedule in (
            ("128, 128, 64", "dgrad", "persistent"),
            ("128, 128, 64", "dgrad", "pingpong"),
            ("128, 128, 64", "fprop", "persistent"),
            ("64, 128, 64", "wgrad", "persistent"),
        )
    ]


def test_a_source_of_sm80_conv() -> None:
    files = rendered(changed(SM80_CONV, direction=DIRECTIONS))
    text = files["conv2d_sm80_conv.cu"]
    assert '#include "sm80/conv.cuh"\n' in text
    for direction in DIRECTIONS:
        assert (
            f"Sm80Conv<Arch::sm80, {PRODUCT}, Shape3<128, 128, 32>, Shape3<64, 64, 32>,"
            f" /*stages=*/4, Direction::{direction}, epilogue::plain>;"
        ) in text


def test_the_table_and_the_json() -> None:
    files = rendered(changed(SM90_CONV, direction=["wgrad"]))
    name = "conv2d_sm90a_bf16_bf16_f32_bf16_128x128x64_wgrad_persistent_plain"
    table = re.sub(r"\s+", " ", files["kernel_table.cpp"])
    assert "namespace cutwheel::conv2d { using namespace gemm; Status launch_conv2d_" in table
    assert (
        f'{{"{name}", Op::conv2d, Family::sm90_conv, Arch::sm90a, /*has_ptx=*/false,'
        f" {PRODUCT}, Layout::column, Layout::row, Epilogue::plain, {{128, 128, 64}},"
        " /*cluster=*/{1, 1, 1}, /*stages=*/0, Schedule::persistent, /*swap_ab=*/false,"
        " /*fast_accum=*/false, BlockScales::none, QuantizeRecipe::none,"
        ' Grouping::none, Direction::wgrad, "wgmma.k16.taps",'
        f" /*assembled=*/{{}}, &conv2d::smem_{name},"
        f" &conv2d::launch_{name},"
        f" &conv2d::workspace_{name}}},"
    ) in table
    (row,) = json.loads(files["manifest.json"])["kernels"]
    assert (row["op"], row["family"], row["layout"]) == ("conv2d", "sm90_conv", "ntt")
    assert (row["grouping"], row["direction"]) == (None, "wgrad")


def test_no_epilogue_is_called_like_the_room_of_convolutions() -> None:
    data = declared(document(SM90), conv2d={"expr": "accum"})
    assert "conv2d means something else in C++; choose another name" in errors_of(data)[0][1]


def test_dgrad_of_transposed_convolutions_takes_a_bias() -> None:
    """Rows of its D are permuted, columns are not."""
    found = manifest(changed(SM90_CONV, direction=["dgrad"], epilogue=["bias_gelu"]))
    assert [kernel.epilogue.name for kernel in found.kernels if kernel.epilogue] == ["bias_gelu"]
