"""The rules of the families that serve scaled_mm, and the shared memory that their kernels take."""

from __future__ import annotations

import pytest
from kernelgen_cases import (
    SM80,
    SM90,
    Table,
    changed,
    dtypes,
    errors_of,
)
from kernelgen_cases import document as gemm_document
from kernelgen_scaled_cases import (
    BLOCK_SM89,
    BLOCK_SM90,
    E4M3,
    FP8_SM90,
    INT8,
    INT8_SM80,
    PERSISTENT_SM90,
    QUANTIZE,
    document,
    errors,
    manifest,
)

from kernelgen.families import FAMILIES
from kernelgen.manifest import parse


def one_error(entry: Table, **values: object) -> str:
    found = errors(changed(entry, **values))
    assert len(found) == 1, found
    return ": ".join(found[0])


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"layouts": ["ttt"]}, "layout ttt; tensor cores read 8-bit operands K-major only"),
        ({"layouts": ["nnt"]}, "from row-major A and column-major B: tnt"),
        ({"tile": [128, 128, 32]}, "tile K = 32 of 1-byte elements is 32 bytes; it must be a mul"),
        ({"tile": [128, 128, 64]}, "tile K = 64; sums of fp8 products are promoted to float32"),
        ({"tile": [128, 64, 192]}, "so tile K is a multiple of 128 unless fast_accum = true"),
        ({"fast_accum": 1}, "fast_accum: must be true or false, not 1"),
        ({"dtypes": [INT8], "fast_accum": True}, "fast_accum with s8 operands; only sums of fp8"),
        ({"dtypes": [INT8], "tile": [128, 40, 128], "cluster": [1, 1, 1]}, "multiple of 16 for s8"),
        ({"dtypes": [dtypes("e5m2", "bf16")]}, "e5m2_e5m2_f32_bf16 (a_b_acc_d); supported: f16"),
        ({"dtypes": [dtypes("s8", "bf16")]}, "combination s8_s8_f32_bf16"),
        ({"dtypes": [dtypes("e4m3", "e4m3")]}, "combination e4m3_e4m3_f32_e4m3"),
        (
            {"dtypes": [dtypes("s8", "s32", acc="s32")]},
            "epilogue scaled computes in float32, which does not hold every s32",
        ),
        ({"scales": ["1x128_1x128"]}, "unknown key 'scales'; allowed: family, arch, dtypes, lay"),
    ],
)
def test_rules_of_sm90_warpspecialized(values: Table, text: str) -> None:
    assert text in one_error(FP8_SM90, **values)


def test_what_sm90_warpspecialized_takes() -> None:
    assert manifest(changed(FP8_SM90, tile=[64, 16, 256], cluster=[1, 1, 1], fast_accum=True))
    assert manifest(changed(FP8_SM90, tile=[128, 40, 128], cluster=[1, 1, 1]))
    for n in (8, 24, 48):
        assert manifest(changed(FP8_SM90, dtypes=[INT8], tile=[64, n, 128], cluster=[1, 1, 1]))
    exact = changed(
        FP8_SM90, dtypes=[dtypes("s8", "s32", acc="s32")], epilogue=["accumulator"], swap_ab=True
    )
    assert manifest(exact)
    stored = {"expr": "accum", "aux": {"z": "accum"}}
    data = document(changed(exact, epilogue=["stored"]))
    data["epilogue"]["stored"] = stored
    assert "epilogue stored computes in float32" in errors_of(data)[0][1]


def test_dtypes_tell_the_op() -> None:
    for family in FAMILIES.values():
        served = [combination for types in family.dtypes.values() for combination in types]
        assert len(served) == len(set(served))
    scaled = (FP8_SM90, INT8_SM80, PERSISTENT_SM90, BLOCK_SM90, BLOCK_SM89, QUANTIZE)
    assert {kernel.op for kernel in manifest(*scaled).kernels} == {"scaled_mm"}
    dense = parse(gemm_document(SM80, SM90))
    assert {kernel.op for kernel in dense.kernels} == {"gemm"}


def test_the_epilogues_of_mm_are_not_for_scaled_mm() -> None:
    data = document(changed(FP8_SM90, epilogue=["plain"]))
    data["epilogue"]["plain"] = {"expr": "alpha * accum"}
    text = "epilogue plain is one of mm and addmm, with alpha or beta; products of 8-bit operands"
    assert text in errors_of(data)[0][1]


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"layouts": ["ntt"]}, "layout ntt; tensor cores read 8-bit operands K-major only"),
        ({"warp": [64, 64, 32]}, "8-bit operands need multiples of 16x16x64 (pairs of mma 16"),
        (
            {"dtypes": [E4M3]},
            "e4m3 operands on architecture 80; tensor cores multiply fp8 from 89 on",
        ),
        ({"fast_accum": True}, "fast_accum with s8 operands"),
    ],
)
def test_rules_of_sm80_multistage(values: Table, text: str) -> None:
    assert text in one_error(INT8_SM80, **values)
    assert manifest(changed(INT8_SM80, dtypes=[E4M3], arch=["89"], fast_accum=True))


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"tile": [128, 128, 64]}, "tile K = 64; it is 128, one block of scales"),
        (
            {"tile": [128, 64, 128]},
            "tile N = 64; scales of 128 columns of B need a multiple of 128",
        ),
        (
            {"tile": [64, 32, 128], "cluster": [1, 1, 1], "swap_ab": True},
            "tile M, which swap_ab lays along N, = 64; scales of 128 columns of B need",
        ),
        ({"tile": [64, 128, 128], "schedule": "cooperative"}, "tile M = 64 is no multiple of 128"),
        ({"schedule": "streamk"}, "unknown schedule 'streamk'; allowed: pingpong, cooperative"),
        ({"cluster": [1, 3, 1]}, "cluster 1x3x1"),
        ({"fast_accum": True}, "unknown key 'fast_accum'; allowed: tile, cluster, schedule, swap"),
        ({"scales": ["128x128_1x128"]}, "unknown scales '128x128_1x128'; allowed: 1x128_128x128,"),
        ({"scales": []}, "scales must be a list of at least one item"),
        ({"dtypes": [INT8]}, "combination s8_s8_s32_bf16"),
        (
            {"layouts": ["tnt"]},
            "unknown key 'layouts'; allowed: family, arch, dtypes, epilogue, sc",
        ),
        ({"arch": ["89"]}, "unknown architecture '89'; allowed: 90a"),
    ],
)
def test_rules_of_sm90_blockwise(values: Table, text: str) -> None:
    assert text in one_error(BLOCK_SM90, **values)


def test_columns_with_scales_of_their_own_come_in_any_number() -> None:
    narrow = changed(BLOCK_SM90, tile=[64, 64, 128], scales=["1x128_1x128"])
    assert manifest(narrow, changed(narrow, swap_ab=True))
    swapped = changed(BLOCK_SM90, tile=[128, 32, 128], cluster=[1, 1, 1], swap_ab=True)
    assert manifest(swapped, changed(swapped, swap_ab=True, scales=["1x128_1x128"]))


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"tile": [128, 128, 64], "warp": [64, 32, 64]}, "tile K = 64; it is 128, one block of"),
        ({"warp": [64, 32, 64]}, "warp K = 64; warps share M and N of a tile, not K"),
        (
            {"tile": [64, 8, 128], "warp": [64, 8, 128]},
            "8-bit operands need multiples of 16x16x64 (pairs of",
        ),
        ({"tile": [128, 80, 128]}, "tile 128x80x128 is not divisible by warp 64x32x128"),
        ({"stages": 1}, "stages = 1; 2 to 8 are supported"),
        ({"arch": ["80"]}, "unknown architecture '80'; allowed: 89"),
        ({"swap_ab": True}, "unknown key 'swap_ab'; allowed: tile, warp, stages"),
        ({"stages": 4}, "4 stages x (128 + 128) x 128 x 1 = 131072 bytes, but a threadblock has"),
    ],
)
def test_rules_of_sm89_blockwise(values: Table, text: str) -> None:
    assert text in one_error(BLOCK_SM89, **values)
    assert manifest(changed(BLOCK_SM89, tile=[32, 128, 128], warp=[32, 32, 128], stages=4))


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"recipes": ["rowwise_asymmetric"]}, "recipe rowwise_asymmetric with e4m3; only s8 has"),
        (
            {"recipes": ["blockwise_1x128"], "dtypes": [dtypes("f32", "s8")]},
            "recipe blockwise_1x128 with s8; no product has block scales of s8",
        ),
        ({"recipes": ["blockwise"]}, "unknown recipe 'blockwise'; allowed: tensorwise, rowwise, "),
        ({"recipes": ["rowwise", "rowwise"]}, "recipes[1]: repeats recipes[0]"),
        ({"dtypes": [dtypes("bf16", "s32")]}, "combination bf16_bf16_f32_s32"),
        ({"epilogue": ["scaled"]}, "unknown key 'epilogue'; allowed: family, arch, dtypes, recip"),
    ],
)
def test_rules_of_quantize(values: Table, text: str) -> None:
    assert text in one_error(QUANTIZE, **values)


@pytest.mark.parametrize(
    ("entry", "arithmetic"),
    [
        (FP8_SM90, "2 stages x ((128 + 128) x 128 x 1 + 16) + epilogue 2 x 64 x 32 x 2 = 73760"),
        (BLOCK_SM90, "2 stages x ((128 + 128) x 128 + (128 + 1) x 4 + 16) + epilogue 2 x 64 x 32"),
        (
            changed(BLOCK_SM90, tile=[256, 32, 128], swap_ab=True, schedule="cooperative"),
            "((256 + 32) x 128 + (32 + 2) x 4 + 16) + epilogue 2 x 128 x 32 x 2 = 90416 bytes",
        ),
        (
            changed(BLOCK_SM90, tile=[64, 32, 128], swap_ab=True, scales=["1x128_1x128"]),
            "((64 + 32) x 128 + (32 + 64) x 4 + 16) + epilogue 2 x 64 x 32 x 2 = 33568 bytes",
        ),
        (
            changed(FP8_SM90, dtypes=[dtypes("s8", "s32", acc="s32")], epilogue=["accumulator"]),
            "+ epilogue 2 x 64 x 32 x 4 = 81952 bytes",
        ),
        (INT8_SM80, "3 stages x (128 + 128) x 64 x 1 = 49152 bytes"),
        (BLOCK_SM89, "3 stages x (128 + 128) x 128 x 1 = 98304 bytes"),
        (
            PERSISTENT_SM90,
            "2 stages x ((128 + 160) x 128 + 16) + staged rows 128 x 320"
            " + vectors 2 x (64 x 4 + 160 x 4 + 160 x 2) = 117152 bytes",
        ),
        (
            # Rows of D that are longer than 512 bytes are staged in parts of even width.
            changed(
                PERSISTENT_SM90,
                tile=[128, 192, 128],
                dtypes=[dtypes("e4m3", "f32")],
                epilogue=["accumulator"],
            ),
            "2 stages x ((128 + 192) x 128 + 16) + staged rows 128 x 384 = 131104 bytes",
        ),
        (QUANTIZE, "0 bytes"),
    ],
)
def test_shared_memory(entry: Table, arithmetic: str) -> None:
    kernel = manifest(entry).kernels[0]
    total, terms = FAMILIES[kernel.family].shared_memory(kernel)
    assert arithmetic in terms
    assert terms.endswith(f"{total} bytes")
