"""Products of 16-bit operands by sm90_persistent: layouts, clusters that share K, names, C++."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from kernelgen_cases import (
    EPILOGUES,
    PERSISTENT,
    Table,
    changed,
    declared,
    document,
    dtypes,
    errors,
    errors_of,
)

from kernelgen.emit import render
from kernelgen.families import FAMILIES
from kernelgen.kernel import Kernel
from kernelgen.manifest import parse
from kernelgen.naming import procedural_name, source_stem

TILE = "[[kernel]] #1 (family sm90_persistent), tiles[0]"
TF32 = dtypes("tf32", "f32")
SPLIT = changed(PERSISTENT, tile=[64, 128, 64], cluster=[1, 1, 4], swap_ab=True)


def only(entry: Table) -> Kernel:
    (kernel,) = parse(document(entry)).kernels
    return kernel


def one_error(entry: Table, **values: Any) -> str:
    ((where, reason),) = errors(changed(entry, **values))
    assert where.startswith("[[kernel]] #1 (family sm90_persistent)")
    return reason


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (
            {"tile": [320, 128, 64]},
            "tile M = 320; one or two warpgroups take 64 rows each, or two of them 128: 64, 128 or"
            " 256, or all 192 and half of the columns",
        ),
        (
            {"tile": [192, 208, 64]},
            "tile N = 208; rows of D are made of 16 columns, and a warpgroup has half of them: a"
            " multiple of 32 up to 256",
        ),
        # Of fewer than 128 columns three warpgroups have 64 rows each, and all of the columns.
        ({"tile": [192, 104, 64]}, "tile N = 104; rows of D are made of 16 columns: a multiple of"),
        (
            {"tile": [192, 256, 64]},
            "tile 192x256; the registers of a warpgroup hold 192 rows of at most 117 columns",
        ),
        (
            {"tile": [192, 256, 64], "layouts": ["ttt"]},
            "tile 192x256; the registers of three warpgroups hold 192 columns each",
        ),
        (
            {"tile": [256, 192, 64]},
            "tile 256x192; the registers of a warpgroup hold 128 rows of at most 176 columns",
        ),
        (
            {"tile": [128, 132, 64], "swap_ab": True},
            "tile N = 132; columns are rows of D: a multiple of 8 up to 256",
        ),
        ({"tile": [128, 72, 64]}, "tile N = 72; rows of D are made of 16 columns: a multiple of"),
        ({"tile": [128, 272, 64]}, "tile N = 272; rows of D are made of 16 columns"),
        ({"tile": [128, 128, 32]}, "tile K = 32; it is 64 or 128: one swizzle spans 128 bytes"),
        ({"tile": [64, 64, 192]}, "tile K = 192; it is 64 or 128: one swizzle spans 128 bytes"),
        (
            {"tile": [256, 176, 128]},
            "needs too much shared memory for sm90a: 2 stages x ((256 ",
        ),
        ({"dtypes": [TF32], "tile": [64, 64, 128]}, "tile K = 128; it is 32 or 64: one swizzle"),
        (
            {"dtypes": [TF32], "tile": [64, 48, 32]},
            "no wgmma of tf32 and tf32 in that width here; N is one of 16, 32, 64, 96, 128, 192, 2",
        ),
        (
            {"cluster": [1, 2, 2]},
            "cluster 1x2x2; it is one of [2, 1, 1], [4, 1, 1], [1, 2, 1], [1, 4, 1], [2, 2, 1],"
            " or shares K: [1, 1, 2], 4 or 8 at the end",
        ),
        ({"cluster": [1, 1, 3]}, "cluster 1x1x3; it is one of [2, 1, 1], [4, 1, 1]"),
        ({"cluster": [1, 1, 16]}, "cluster 1x1x16; it is one of [2, 1, 1], [4, 1, 1]"),
        ({"cluster": [2, 1, 2]}, "cluster 2x1x2; it is one of [2, 1, 1], [4, 1, 1]"),
        ({"cluster": [4, 4, 1]}, "cluster 4x4x1; it is one of [2, 1, 1], [4, 1, 1]"),
        ({"cluster": [1, 1, 0]}, "must be three positive integers [M, N, K], not [1, 1, 0]"),
        ({"cluster": 2}, "must be three positive integers [M, N, K], not 2"),
        (
            {"cluster": [1, 1, 2]},
            "tile N = 176 with cluster 1x1x2; each of 2 threadblocks finishes a multiple of 16"
            " columns: N must be a multiple of 32",
        ),
        (
            {"cluster": [1, 1, 8], "tile": [64, 64, 64]},
            "tile N = 64 with cluster 1x1x8; each of 8 threadblocks finishes a multiple of 16"
            " columns: N must be a multiple of 128",
        ),
        ({"fast_accum": True}, "fast_accum with bf16 operands; only sums of fp8 products can stay"),
        (
            {"schedule": "cooperative"},
            "unknown schedule 'cooperative'; allowed: persistent, pingpong",
        ),
        (
            {"schedule": "pingpong", "tile": [128, 192, 64]},
            "tile 128x192; the registers of a warpgroup hold 128 rows of at most 176 columns",
        ),
        (
            {"schedule": "pingpong", "tile": [256, 64, 64]},
            "tile M = 256 with schedule pingpong; a warpgroup takes whole tiles: 64, 128 or 192",
        ),
        (
            {"schedule": "pingpong", "tile": [128, 128, 64], "cluster": [1, 1, 2]},
            "cluster 1x1x2 with schedule pingpong; leave one of the two out",
        ),
        ({"stages": 4}, "unknown key 'stages'; allowed: tile, swap_ab, fast_accum, cluster"),
        ({"arch": ["80"]}, "unknown architecture '80'; allowed: 90a"),
        ({"layouts": ["tnn"]}, "unknown layout 'tnn'; allowed: tnt, ttt, nnt, ntt"),
        ({"epilogue": ["silu_backward"]}, "epilogue silu_backward does not use accum; it is for"),
        ({"dtypes": [dtypes("bf16", "f16")]}, "combination bf16_bf16_f32_f16 (a_b_acc_d); suppor"),
    ],
)
def test_rules_of_dense_products(values: Table, text: str) -> None:
    assert text in one_error(PERSISTENT, **values)


@pytest.mark.parametrize("x", ["bf16", "f16"])
def test_a_tile_has_any_width(x: str) -> None:
    for n in range(16, 257, 16):
        for d in (x, "f32"):
            assert only(changed(PERSISTENT, dtypes=[dtypes(x, d)], tile=[64, n, 64]))
    for n in (8, 56, 120, 136, 152, 200, 256):
        assert only(changed(PERSISTENT, dtypes=[dtypes(x, x)], tile=[64, n, 64], swap_ab=True))
        assert only(changed(PERSISTENT, dtypes=[dtypes(x, x)], tile=[64, n, 64], swap_ab=True))


@pytest.mark.parametrize("n", [24, 40, 56, 88])
def test_few_rows_may_have_an_odd_number_of_eights(n: int) -> None:
    """Stored in pieces of 16 bytes, where nothing is stored or paired besides."""
    kernel = only(changed(PERSISTENT, tile=[64, n, 64]))
    _, arithmetic = FAMILIES[kernel.family].shared_memory(kernel)
    assert f"staged rows 64 x {2 * n}" in arithmetic
    for values in (
        {"tile": [128, n, 64]},
        {"tile": [64, n, 64], "cluster": [1, 1, 2]},
        {"tile": [64, n, 64], "dtypes": [{"a": "bf16", "b": "bf16", "acc": "f32", "d": "f32"}]},
    ):
        assert "rows of D are made of 16 columns" in errors(changed(PERSISTENT, **values))[0][1]


@pytest.mark.parametrize("splits", [1, 2, 4, 8])
def test_a_cluster_shares_k_alone(splits: int) -> None:
    for n in range(16, 257, 16):
        # The sums of the others take shared memory, too: one warpgroup, one swizzle.
        entry = changed(PERSISTENT, tile=[64, n, 64], cluster=[1, 1, splits])
        if splits == 1 or n % (16 * splits) == 0:
            assert only(entry).tile.cluster == (1, 1, splits)
        else:
            assert f"N must be a multiple of {16 * splits}" in one_error(entry)


@pytest.mark.parametrize(
    ("layout", "swap_ab", "is_contiguous"),  # K, in the kernel's own B [K, N]
    [
        ("tnt", False, True),
        ("ttt", False, False),
        ("nnt", False, True),
        ("ntt", False, False),
        # The kernel's B is A, transposed.
        ("tnt", True, True),
        ("ttt", True, True),
        ("nnt", True, False),
        ("ntt", True, False),
    ],
)
def test_the_last_columns_are_a_box_of_their_own_where_k_is_not_contiguous(
    layout: str, swap_ab: bool, is_contiguous: bool
) -> None:
    def tile(n: int) -> Table:
        return changed(PERSISTENT, layouts=[layout], tile=[64, n, 64], swap_ab=swap_ab)

    for n in range(16, 257, 16):
        assert only(tile(n))
    if is_contiguous:
        assert only(tile(24))
    else:
        assert one_error(tile(24)).endswith(
            f" with layout {layout}; where K is not contiguous, the last columns of a tile are a"
            " box of their own: N must be a multiple of 16"
        )


@pytest.mark.parametrize("schedule", ["persistent", "pingpong"])
@pytest.mark.parametrize("layout", ["tnt", "ttt", "nnt", "ntt"])
def test_threadblocks_of_a_cluster_share_either_operand_or_both(layout: str, schedule: str) -> None:
    """Parts of it are rows, or parts of K: there is no tile that does not have them."""
    for cluster in ([2, 1, 1], [4, 1, 1], [1, 2, 1], [1, 4, 1], [2, 2, 1]):
        tile = {"tile": [192, 80, 64], "swap_ab": True, "schedule": schedule}
        entry = changed(PERSISTENT, layouts=[layout], cluster=cluster, **tile)
        assert only(entry).tile.cluster == tuple(cluster)


@pytest.mark.parametrize("swap_ab", [False, True])
def test_32_bit_operands_are_k_major(swap_ab: bool) -> None:
    entry = changed(PERSISTENT, dtypes=[TF32], tile=[128, 128, 32], swap_ab=swap_ab)
    assert only(entry)
    for layout in ("ttt", "nnt", "ntt"):
        assert one_error(entry, layouts=[layout]) == (
            f"layout {layout}; wgmma reads 32-bit operands K-major only, as they lie in tnt:"
            " sm90_warpspecialized has the other layouts"
        )


STORED = {"expr": "accum + v", "operands": {"v": "row[N]"}}


@pytest.mark.parametrize(
    ("values", "operands", "besides", "terms"),
    [
        ({}, (128 + 176) * 128, 128 * 176 * 2, "staged rows 128 x 352 ="),
        # Threads store large tiles, 128 bytes of a row at a time.
        (
            {"tile": [256, 112, 64]},
            (256 + 112) * 128,
            128 * 128,
            "2 stages x ((256 + 112) x 128 + 16) + staged rows 128 x 128 =",
        ),
        (
            {"tile": [192, 160, 64], "swap_ab": True},
            (192 + 160) * 128,
            128 * 128,
            "2 stages x ((192 + 160) x 128 + 16) + staged rows 128 x 128 =",
        ),
        # 512 bytes of a row at most, in even parts: 88 columns are none, since they are no 16.
        (
            {"dtypes": [dtypes("bf16", "f32")]},
            (128 + 176) * 128,
            128 * 16 * 4,
            "staged rows 128 x 64 =",
        ),
        (
            {"tile": [64, 64, 128], "swap_ab": True},
            (64 + 64) * 256,
            64 * 64 * 2,
            "2 stages x ((64 + 64) x 256 + 16) + staged rows 64 x 128 =",
        ),
        # Each of two finishes 64 columns. Sums of others may lie in the stages.
        (
            {"tile": [64, 128, 64], "cluster": [1, 1, 2]},
            (64 + 128) * 128,
            64 * 64 * 2,
            "staged rows 64 x 128 =",
        ),
        (
            {"tile": [128, 64, 64], "cluster": [1, 1, 4], "swap_ab": True},
            (128 + 64) * 128,
            128 * 16 * 2,
            "staged rows 128 x 32 =",
        ),
        # A vector of the columns of each warpgroup that it finishes; swapped, of the rows.
        (
            {"tile": [128, 64, 64], "cluster": [1, 1, 4], "epilogue": ["mine"]},
            (128 + 64) * 128,
            128 * 16 * 2 + 2 * 16 * 2,
            "128 x 32 + vectors 2 x (16 x 2) =",
        ),
        (
            {"tile": [128, 64, 64], "cluster": [1, 1, 4], "epilogue": ["mine"], "swap_ab": True},
            (128 + 64) * 128,
            128 * 16 * 2 + 2 * 64 * 2,
            "128 x 32 + vectors 2 x (64 x 2) =",
        ),
    ],
)
def test_what_a_tile_takes(values: Table, operands: int, besides: int, terms: str) -> None:
    data = declared(document(changed(PERSISTENT, **values)), mine=STORED)
    (kernel,) = parse(data).kernels
    total, arithmetic = FAMILIES[kernel.family].shared_memory(kernel)
    assert total == 2 * (operands + 16) + besides
    assert terms in arithmetic
    assert arithmetic.endswith(f" = {total} bytes")


def test_rows_of_a_cluster_belong_to_three_warpgroups_whatever_the_columns() -> None:
    entry = changed(PERSISTENT, tile=[192, 160, 64], swap_ab=True)
    for cluster, staged in (([1, 1, 1], 128), ([1, 1, 2], 192)):
        (kernel,) = parse(document(changed(entry, cluster=cluster))).kernels
        _, arithmetic = FAMILIES[kernel.family].shared_memory(kernel)
        assert f"staged rows {staged} x " in arithmetic


def test_what_a_threadblock_finishes_is_stored_in_pieces_of_32_bytes() -> None:
    half = {"expr": "even(accum) * odd(accum)"}
    tile = {"tile": [64, 32, 64], "epilogue": ["mine"]}
    assert parse(declared(document(changed(PERSISTENT, **tile)), mine=half))
    data = declared(document(changed(PERSISTENT, **tile, cluster=[1, 1, 2])), mine=half)
    assert errors_of(data) == [
        (
            TILE,
            "tile N = 32; with epilogue mine a row of D is 16 bytes, and TMA stores pieces of 32:"
            " N must be a multiple of 32",
        )
    ]


def test_names_follow_the_documented_spelling() -> None:
    lone = changed(PERSISTENT, cluster=[1, 1, 1])
    named = {
        "gemm_sm90a_bf16_bf16_f32_bf16_128x176x64_tnt_persistent_plain": PERSISTENT,
        "gemm_sm90a_bf16_bf16_f32_bf16_64x128x64_tnt_persistent_swap_split4_plain": SPLIT,
        "gemm_sm90a_bf16_bf16_f32_bf16_128x256x64_tnt_persistent_multicast_plain": changed(
            SPLIT, tile=[128, 256, 64], layouts=["tnt"], swap_ab=False, cluster=[2, 1, 1]
        ),
        "gemm_sm90a_bf16_bf16_f32_bf16_64x128x64_tnt_persistent_swap_multicast2x2_plain": changed(
            SPLIT, cluster=[2, 2, 1]
        ),
        "gemm_sm90a_bf16_bf16_f32_bf16_64x128x64_tnt_persistent_split2_plain": changed(
            SPLIT, cluster=[1, 1, 2], swap_ab=False
        ),
    }
    for name, entry in named.items():
        assert procedural_name(only(entry)) == name
    assert procedural_name(only(lone)) == procedural_name(only(PERSISTENT))
    assert source_stem(only(PERSISTENT)) == "gemm_sm90a_persistent"
    assert source_stem(only(SPLIT)) == "gemm_sm90a_persistent"
    ((_, reason),) = errors(PERSISTENT, lone)
    assert reason.startswith("kernel gemm_sm90a_bf16_bf16_f32_bf16_128x176x64_tnt_persistent_plain")


def rendered(*entries: Table) -> dict[str, str]:
    manifest = parse(document(*entries))
    return render(manifest.kernels, manifest.epilogues, Path("/out"))


@pytest.mark.parametrize(
    ("entry", "spelled"),
    [
        (
            changed(PERSISTENT, epilogue=["bias_gelu"]),
            "DType::bf16, DType::bf16, DType::f32, DType::bf16, Layout::row, Layout::column,"
            " Shape3<128, 176, 64>, Schedule::persistent,"
            " /*swap_ab=*/false, Shape3<1, 1, 1>, epilogue::bias_gelu",
        ),
        (
            changed(SPLIT, dtypes=[dtypes("f16", "f16")], layouts=["ttt"]),
            "DType::f16, DType::f16, DType::f32, DType::f16, Layout::row, Layout::row,"
            " Shape3<64, 128, 64>, Schedule::persistent,"
            " /*swap_ab=*/true, Shape3<1, 1, 4>, epilogue::plain",
        ),
        (
            changed(PERSISTENT, layouts=["nnt"], tile=[64, 64, 128], cluster=[1, 1, 2]),
            "DType::bf16, DType::bf16, DType::f32, DType::bf16, Layout::column, Layout::column,"
            " Shape3<64, 64, 128>, Schedule::persistent,"
            " /*swap_ab=*/false, Shape3<1, 1, 2>, epilogue::plain",
        ),
    ],
)
def test_a_source(entry: Table, spelled: str) -> None:
    text = rendered(entry)["gemm_sm90a_persistent.cu"]
    assert '#include "sm90/native/dense.cuh"\n' in text
    assert "#define CUTLASS_ENABLE_GDC_FOR_SM90 1\n" in text
    assert f"\nusing K0 = Sm90Persistent<Arch::sm90a, {spelled}>;\n" in text
    assert "using namespace gemm" not in text


def test_tiles_and_layouts_share_a_source() -> None:
    tiles = [{"tile": [128, n, 64]} for n in (64, 128)] + [{"tile": [64, 64, 128]}]
    many = changed(PERSISTENT, layouts=["tnt", "ttt", "nnt", "ntt"], tiles=tiles)
    names = [name for name in rendered(many, SPLIT) if name.endswith(".cu")]
    assert names == ["gemm_sm90a_persistent.cu"]


def test_the_table() -> None:
    table = re.sub(r"\s+", " ", rendered(PERSISTENT, SPLIT)["kernel_table.cpp"])
    name = "gemm_sm90a_bf16_bf16_f32_bf16_64x128x64_tnt_persistent_swap_split4_plain"
    assert (
        f'{{"{name}", Op::gemm, Family::sm90_persistent, Arch::sm90a, /*has_ptx=*/false,'
        " DType::bf16, DType::bf16, DType::f32, DType::bf16, Layout::row, Layout::column,"
        " Epilogue::plain, {64, 128, 64}, /*cluster=*/{1, 1, 4}, /*stages=*/0,"
        " Schedule::persistent, /*swap_ab=*/true,"
    ) in table
    assert "{128, 176, 64}, /*cluster=*/{1, 1, 1}, /*stages=*/0, Schedule::persistent," in table


def test_splits_and_swapped_tiles_take_the_epilogues_without_stores() -> None:
    for name, body in EPILOGUES.items():
        found = parse(document()).epilogues
        (epilogue,) = (x for x in found if x.name == name)
        if epilogue.has_accum:
            assert only(changed(PERSISTENT, tile=[128, 128, 64], epilogue=[name]))
        if epilogue.has_accum and "aux" not in body:
            assert only(changed(SPLIT, epilogue=[name]))
