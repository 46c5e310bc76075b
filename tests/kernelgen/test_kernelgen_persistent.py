"""The rules of sm90_persistent that its 8-bit products show, and what all of its products share."""

from __future__ import annotations

from typing import Any

import pytest
from kernelgen_cases import Table, changed, dtypes, errors_of
from kernelgen_scaled_cases import (
    E4M3,
    FP8_PAIRS,
    INT8,
    PERSISTENT_SM90,
    document,
    errors,
    manifest,
)

from kernelgen.families import FAMILIES
from kernelgen.manifest import InvalidManifestError, parse
from kernelgen.naming import procedural_name, source_stem

TILE = "[[kernel]] #1 (family sm90_persistent), tiles[0]"
MIXED = dtypes("e4m3", "bf16", b="e5m2")


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"tile": [512, 128, 128]}, "tile M = 512; one or two warpgroups take 64 rows each, or"),
        ({"tile": [32, 128, 128]}, "tile M = 32; one or two warpgroups"),
        ({"tile": [192, 128, 128]}, "tile M = 192; one or two warpgroups"),
        ({"tile": [128, 72, 128]}, "tile N = 72; rows of D are made of 16 columns: a multiple of"),
        ({"tile": [128, 8, 128]}, "tile N = 8; rows of D are made of 16 columns"),
        ({"tile": [128, 272, 128]}, "tile N = 272; rows of D are made of 16 columns"),
        ({"tile": [128, 128, 64]}, "tile K = 64; it is 128 or 256: one swizzle spans 128 bytes"),
        ({"tile": [64, 64, 384]}, "tile K = 384; it is 128 or 256"),
        ({"tile": [128, 128]}, "tile: must be three positive integers"),
        (
            {"schedule": "cooperative"},
            "unknown schedule 'cooperative'; allowed: persistent, pingpong",
        ),
        ({"swap_ab": 1}, "swap_ab: must be true or false, not 1"),
        ({"stages": 4}, "unknown key 'stages'; allowed: tile, swap_ab, fast_accum"),
        ({"fast_accum": 1}, "fast_accum: must be true or false, not 1"),
        (
            {"layouts": ["ttt"]},
            "layout ttt; tensor cores read 8-bit operands K-major only, from row",
        ),
        ({"arch": ["89"]}, "unknown architecture '89'; allowed: 90a"),
        (
            {"dtypes": [INT8]},
            "tile N = 160 is multiplied 160 columns at a time, and there is no wgmma of s8 and s8",
        ),
        (
            {"dtypes": [INT8], "tile": [64, 64, 128], "cluster": [1, 1, 2]},
            "cluster 1x1x2 with s32 sums; clusters add float32 alone",
        ),
        ({"scales": ["128x128"]}, "unknown scales '128x128'; allowed: 1x128_128x128, 1x128_1x128"),
        (
            {"scales": ["1x128_1x128"], "fast_accum": True},
            "scales 1x128_1x128 with fast_accum or other operands than fp8; they are applied when",
        ),
        (
            {"scales": ["1x128_128x128"], "tile": [128, 128, 128], "cluster": [1, 2, 1]},
            "scales 1x128_128x128 with cluster 1x2x1; leave one of the two out",
        ),
        (
            {"scales": ["1x128_128x128"], "tile": [128, 192, 128]},
            "tile N = 192 is multiplied 96 columns at a time, which must divide the 128 columns",
        ),
        # A tile of K takes one scale.
        (
            {"scales": ["1x128_128x128"], "tile": [64, 64, 256]},
            "tile K = 256; it is 128: one swizzle spans 128 bytes",
        ),
    ],
)
def test_rules_of_sm90_persistent(values: Table, text: str) -> None:
    found = errors(changed(PERSISTENT_SM90, **values))
    assert len(found) == 1, found
    assert text in ": ".join(found[0])


@pytest.mark.parametrize(
    ("combination", "is_fast", "taken"),
    [
        # Parts of 144, 160, 176, 192, 208, 224 and 240: 72, 80, 88, 96, 16, 56 and 48 columns.
        (E4M3, False, [*range(16, 257, 16)]),
        (E4M3, True, [*range(16, 257, 16)]),
        (MIXED, False, [16, 32, 64, 96, 128, 192, 208, 256]),
        (MIXED, True, [16, 32, 64, 96, 128, 192, 256]),
    ],
)
def test_tiles_have_a_width_of_wgmma(combination: Table, is_fast: bool, taken: list[int]) -> None:
    entry = changed(PERSISTENT_SM90, dtypes=[combination], fast_accum=is_fast)
    for n in range(16, 257, 16):
        narrow = changed(entry, tile=[128, n, 128])
        if n in taken:
            assert manifest(narrow)
            continue
        ((where, reason),) = errors(narrow)
        assert where == TILE
        assert reason.startswith(f"tile N = {n} is multiplied ")
        assert reason.endswith(f"in that width here; N is one of {', '.join(map(str, taken))}")


def test_halves_of_promoted_sums_have_a_width_of_wgmma() -> None:
    for n in range(192, 257, 16):
        assert manifest(changed(PERSISTENT_SM90, dtypes=[E4M3], tile=[64, n, 128]))
    mixed = changed(PERSISTENT_SM90, dtypes=[MIXED])
    assert manifest(changed(mixed, tile=[64, 256, 128]))
    ((_, reason),) = errors(changed(mixed, tile=[64, 224, 128]))
    assert reason.startswith("tile N = 224 is multiplied 112 columns at a time")
    ((_, reason),) = errors(changed(mixed, tile=[64, 208, 128]))
    assert "and a warpgroup has half of them: a multiple of 32" in reason


def test_a_width_that_is_missing_is_named() -> None:
    ((_, reason),) = errors(changed(PERSISTENT_SM90, dtypes=[MIXED]))
    assert reason.startswith(
        "tile N = 160 is multiplied 80 columns at a time, and there is no wgmma of e4m3 and e5m2"
    )
    ((_, reason),) = errors(changed(PERSISTENT_SM90, dtypes=[MIXED], fast_accum=True))
    assert reason.startswith("tile N = 160 is multiplied 160 columns at a time")
    ((_, reason),) = errors(changed(PERSISTENT_SM90, dtypes=[MIXED], tile=[128, 240, 128]))
    assert reason.startswith("tile N = 240 is multiplied 48 columns at a time")


def test_a_tile_needs_no_schedule() -> None:
    every = [dtypes(a, d, b=b) for a, b in FP8_PAIRS for d in ("bf16", "f16", "f32")]
    wide = {"tile": [128, 256, 128]}
    entry = changed(PERSISTENT_SM90, dtypes=every, tiles=[wide, {**wide, "fast_accum": True}])
    kernels = manifest(entry).kernels
    assert len(kernels) == 2 * len(every)
    assert {kernel.tile.schedule for kernel in kernels} == {"persistent"}
    assert {kernel.tile.cluster for kernel in kernels} == {(1, 1, 1)}


def with_epilogue(body: Table, **values: Any) -> Table:
    data = document(changed(PERSISTENT_SM90, epilogue=["mine"], **values))
    data["epilogue"]["mine"] = body
    return data


EVERY_OPERAND = {
    "expr": "pair(accum * even(w) + r, s * c * odd(w) + m)",
    "operands": {
        "w": "matrix[M,2N]",
        "r": "row[1|N] f32",
        "s": "scalar",
        "c": "col[M]",
        "m": "matrix[M,N] f32",
    },
}


@pytest.mark.parametrize(
    ("body", "n", "terms", "epilogue"),
    [
        # No vectors; rows of D are as wide as D.
        ({"expr": "accum * m", "operands": {"m": "matrix[M,N]"}}, 160, "128 x 320 =", 128 * 320),
        ({"expr": "even(accum) * odd(accum)"}, 160, "128 x 160 =", 128 * 160),
        # 640 bytes would be too many: two parts of 80 columns.
        ({"expr": "pair(accum, 2 * accum)"}, 160, "128 x 320 =", 128 * 320),
        # 11 is prime: 16 columns at a time.
        ({"expr": "pair(accum, 2 * accum)"}, 176, "128 x 64 =", 128 * 64),
        (
            {"expr": "accum + v", "operands": {"v": "row[N]"}},
            96,
            "128 x 192 + vectors 2 x (96 x 2) =",
            128 * 192 + 384,
        ),
        (
            {"expr": "accum + v", "operands": {"v": "col[M] f32"}},
            96,
            "128 x 192 + vectors 2 x (64 x 4) =",
            128 * 192 + 512,
        ),
        (
            EVERY_OPERAND,
            96,
            "128 x 384 + vectors 2 x (96 x 4 + 64 x 2) =",
            128 * 384 + 1024,
        ),
    ],
)
def test_what_an_epilogue_takes(body: Table, n: int, terms: str, epilogue: int) -> None:
    (kernel,) = parse(with_epilogue(body, tile=[128, n, 128])).kernels
    total, arithmetic = FAMILIES[kernel.family].shared_memory(kernel)
    assert terms in arithmetic
    assert total == 2 * ((128 + n) * 128 + 16) + epilogue
    assert arithmetic.startswith(f"2 stages x ((128 + {n}) x 128 + 16) + staged rows ")
    assert arithmetic.endswith(f" = {total} bytes")


@pytest.mark.parametrize(
    ("values", "more", "terms"),
    [
        ({}, 2 * 2 * 8 * (64 + 1) * 4, "scales 2 x 2 x 8 x (64 + 1) x 4"),
        ({"scales": ["1x128_1x128"]}, 2 * 2 * 8 * (64 + 128) * 4, "x 8 x (64 + 128) x 4"),
        # Rows of the tile are columns of D, which share a scale, and its columns are rows of D.
        ({"swap_ab": True}, 2 * 2 * 8 * (128 + 1) * 4, "scales 2 x 2 x 8 x (128 + 1) x 4"),
    ],
)
def test_what_block_wise_scales_take(values: Table, more: int, terms: str) -> None:
    plain = changed(PERSISTENT_SM90, tile=[128, 128, 128], swap_ab=values.get("swap_ab", False))
    entry = changed(plain, **{"scales": ["1x128_128x128"], **values})
    bare, scaled = (
        FAMILIES[kernel.family].shared_memory(kernel)
        for (kernel,) in (manifest(plain).kernels, manifest(entry).kernels)
    )
    assert scaled[0] - bare[0] == more
    assert terms in scaled[1]


def test_swapped_operands() -> None:
    entry = changed(PERSISTENT_SM90, tile=[64, 32, 128], swap_ab=True)
    (kernel,) = manifest(entry).kernels
    assert procedural_name(kernel).endswith("_64x32x128_tnt_persistent_swap_scaled")
    assert source_stem(kernel) == "scaled_mm_sm90a_persistent"
    total, arithmetic = FAMILIES[kernel.family].shared_memory(kernel)
    # A scale for each of 32 rows of D, the columns of the tile, and one for each of 64 columns.
    assert "staged rows 64 x 64 + vectors 1 x (" in arithmetic
    assert total > 2 * ((64 + 32) * 128 + 16) + 64 * 64


def test_swapped_tiles_have_whole_columns() -> None:
    half = {"expr": "even(accum) * odd(accum)"}
    assert errors_of(with_epilogue(half, tile=[64, 96, 128], swap_ab=True)) == [
        (TILE, "epilogue mine pairs columns, which are rows of a swapped tile: leave swap_ab out")
    ]


def test_what_an_epilogue_stores_besides_d() -> None:
    body = {"expr": "z * 2", "aux": {"z": "accum"}}
    assert parse(with_epilogue(body))
    for values in ({"swap_ab": True}, {"cluster": [1, 1, 2]}):
        assert errors_of(with_epilogue(body, tile=[64, 64, 128], **values)) == [
            (TILE, "epilogue mine stores z; nothing but D can be stored here")
        ]


def test_rows_of_d_are_stored_in_pieces_of_32_bytes() -> None:
    half = {"expr": "even(accum) * odd(accum)"}
    assert errors_of(with_epilogue(half, tile=[128, 80, 128])) == [
        (
            TILE,
            "tile N = 80; with epilogue mine a row of D is 80 bytes, and TMA stores pieces of 32:"
            " N must be a multiple of 32",
        )
    ]
    # Tiles of few rows store pieces of 16.
    assert parse(with_epilogue(half, tile=[64, 80, 128]))
    wider = with_epilogue(half, tile=[128, 80, 128], dtypes=[dtypes("e4m3", "f32")])
    assert parse(wider)
    assert parse(with_epilogue(half, tile=[64, 96, 128]))


def test_a_doubled_width_takes_16_bit_elements() -> None:
    data = with_epilogue({"expr": "pair(accum, 2 * accum)"}, dtypes=[dtypes("e4m3", "f32")])
    with pytest.raises(InvalidManifestError, match="epilogue mine: its result has 2N columns"):
        parse(data)
