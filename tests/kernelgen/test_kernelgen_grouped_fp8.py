"""Grouped products of 8-bit floats on Ada: rules, names and sources."""

from __future__ import annotations

from pathlib import Path

import pytest
from kernelgen_cases import SM80_GROUPED, Table, changed, dtypes, errors_of
from kernelgen_scaled_cases import E4M3, FP8_PAIRS, document

from kernelgen.emit import render
from kernelgen.families import FAMILIES
from kernelgen.manifest import Manifest, parse
from kernelgen.naming import procedural_name

ROWWISE = changed(
    SM80_GROUPED,
    arch=["89"],
    dtypes=[E4M3],
    epilogue=["scaled"],
    tile=[128, 128, 64],
    warp=[64, 32, 64],
)
BLOCKWISE: Table = {
    **changed(ROWWISE, epilogue=["block_bias"], tile=[128, 128, 128], warp=[64, 32, 128], stages=2),
    "scales": ["1x128_128x128"],
}


def manifest(*entries: Table) -> Manifest:
    return parse(document(*entries))


def one_error(entry: Table, **values: object) -> str:
    found = errors_of(document(changed(entry, **values)))
    assert len(found) == 1, found
    return ": ".join(found[0])


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"arch": ["80"]}, "e4m3 operands on architecture 80; tensor cores multiply fp8 from 89"),
        ({"warp": [64, 32, 32]}, "8-bit operands need multiples of 16x16x64 (pairs of mma 16"),
        ({"layouts": ["ttt"]}, "layout ttt; tensor cores read 8-bit operands K-major only"),
        ({"grouping": ["k"]}, "grouping k with e4m3 operands; scaled products have groups of row"),
        ({"dtypes": [dtypes("e5m2", "bf16")]}, "combination e5m2_e5m2_f32_bf16"),
        (
            {"stages": 6},
            "6 stages x (128 + 128) x 64 x 1 + 8200 for the ends of groups = 106504 bytes, but a",
        ),
    ],
)
def test_rules_of_rowwise_scales(values: Table, text: str) -> None:
    assert text in one_error(ROWWISE, **values)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"tile": [128, 128, 64], "warp": [64, 32, 64]}, "tile K = 64; it is 128, one block of s"),
        ({"warp": [64, 64, 64]}, "warp K = 64; warps share M and N of a tile, not K"),
        ({"warp": [24, 32, 128], "tile": [48, 128, 128]}, "multiples of 16x16x64 (pairs of mma 16"),
        (
            {"tile": [128, 96, 128], "warp": [64, 48, 128]},
            "warp N = 48; it must divide the 128 columns that share a scale",
        ),
        ({"fast_accum": True}, "scales 1x128_128x128 with fast_accum or other operands than fp8"),
        ({"scales": ["128x128"]}, "unknown scales '128x128'; allowed: 1x128_128x128, 1x128_1x128"),
        (
            {"stages": 3},
            "3 stages x (128 + 128) x 128 x 1 + 8200 for the ends of groups = 106504 bytes, but a",
        ),
        ({"arch": ["80", "89"]}, "e4m3 operands on architecture 80"),
    ],
)
def test_rules_of_blockwise_scales(values: Table, text: str) -> None:
    assert text in one_error(BLOCKWISE, **values)


def test_blockwise_scales_are_for_8_bit_floats() -> None:
    wide = changed(BLOCKWISE, dtypes=[dtypes("bf16", "bf16")], tile=[64, 64, 128])
    assert "scales 1x128_128x128 with fast_accum or other operands than fp8" in one_error(wide)


def test_what_is_taken() -> None:
    every = [dtypes(a, d, b=b) for a, b in FP8_PAIRS for d in ("bf16", "f16", "f32")]
    for entry in (ROWWISE, BLOCKWISE):
        assert len(manifest(changed(entry, dtypes=every)).kernels) == len(every)
    assert manifest(changed(ROWWISE, fast_accum=True))
    assert manifest(changed(BLOCKWISE, scales=["1x128_1x128"]))


def test_shared_memory_of_blockwise_scales() -> None:
    (kernel,) = manifest(BLOCKWISE).kernels
    need = FAMILIES["sm80_grouped"].shared_memory(kernel)
    terms = "2 stages x (128 + 128) x 128 x 1 + 8200 for the ends of groups = 73736 bytes"
    assert need == (73736, terms)


def test_names() -> None:
    kernels = manifest(ROWWISE, changed(ROWWISE, fast_accum=True), BLOCKWISE).kernels
    operands = "grouped_mm_sm89_e4m3_e4m3_f32_bf16"
    assert [procedural_name(kernel) for kernel in kernels] == [
        f"{operands}_128x128x128_64x32x128_tnt_multistage2_rows_1x128_128x128_block_bias",
        f"{operands}_128x128x64_64x32x64_tnt_multistage4_fast_rows_scaled",
        f"{operands}_128x128x64_64x32x64_tnt_multistage4_rows_scaled",
    ]


def test_sources() -> None:
    found = manifest(ROWWISE, changed(ROWWISE, fast_accum=True), BLOCKWISE)
    files = render(found.kernels, found.epilogues, Path("/out"))
    product = "DType::e4m3, DType::e4m3, DType::f32, DType::bf16, Layout::row, Layout::column"
    small = "Shape3<128, 128, 64>, Shape3<64, 32, 64>, /*stages=*/4, Grouping::rows"
    large = "Shape3<128, 128, 128>, Shape3<64, 32, 128>, /*stages=*/2, Grouping::rows"
    text = files["grouped_mm_sm89_grouped.cu"]
    assert '#include "sm80/grouped.cuh"\n' in text
    for arguments in (
        f"{small}, epilogue::scaled, /*fast_accum=*/false",
        f"{small}, epilogue::scaled, /*fast_accum=*/true",
        f"{large}, epilogue::block_bias, /*fast_accum=*/false, BlockScales::a1x128_b128x128",
    ):
        assert f"= Sm80Grouped<Arch::sm89, {product}, {arguments}>;" in text
