"""Which kernel would serve which GPU: selection is asked about GPUs that are not here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from selection import (
    A100,
    B200,
    BF16,
    COLUMN,
    DGRAD,
    E4M3,
    F16,
    F32,
    H200,
    L40S,
    MATRIX,
    NONE,
    ROW,
    RTX3090,
    RTX5090,
    S8,
    TF32,
    V100,
    VECTOR,
    Gpu,
    chosen,
    explain,
    needs_all,
)

from kernelgen import manifest
from kernelgen.naming import procedural_name

cutwheel = pytest.importorskip("cutwheel", reason="needs the built package (make test builds it)")

pytestmark = needs_all


def rows_by_name() -> dict[str, dict]:
    return {row["name"]: row for row in json.loads(torch.ops.cutwheel._kernels())}


def test_the_table_holds_every_declared_kernel() -> None:
    declared = {procedural_name(k) for k in manifest.load(Path(__file__).parents[2]).kernels}
    assert {kernel.name for kernel in cutwheel.kernels()} == declared


SHAPES = [(1, 4096, 4096), (64, 4096, 14336), (512, 4096, 4096), (4096, 4096, 4096), (129, 8, 8)]


@pytest.mark.parametrize(
    ("gpu", "arch"), [(A100, "sm80"), (RTX3090, "sm80"), (H200, "sm90a"), (B200, None)]
)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_architecture_of_the_chosen_row(gpu: Gpu, arch: str | None, shape) -> None:
    name = chosen(gpu, *shape)["row"]
    if (
        arch is None
    ):  # newer than every architecture in the wheel: through PTX, which sm90a rows have not
        assert "_sm80_" in name or "_sm89_" in name
    else:
        assert f"_{arch}_" in name


@pytest.mark.skipif(
    not cutwheel.build_info()["assembled"], reason="the compiler of this build knows no newer GPU"
)
@pytest.mark.parametrize("gpu", [B200, RTX5090], ids=lambda g: f"cc{g.major}{g.minor}")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_what_is_assembled_for_a_newer_gpu_comes_before_ptx(gpu: Gpu, shape) -> None:
    for options in ({}, {"a": F16, "addend": VECTOR}, {"epilogue": "bias_gelu"}):
        answer = explain(gpu, *shape, **options)
        assert answer["plans"]
        assert all("gemm_sm80_" in plan["row"] for plan in answer["plans"])
        reasons = {r["reason"] for r in answer["rejected"] if "gemm_sm89_bf16_" in r["row"]}
        assert "would run through PTX, and kernels with machine code for this GPU are there" in (
            reasons
        )
    # TF32 is not assembled: PTX of either runs.
    rows = {plan["row"] for plan in explain(gpu, *shape, a=TF32)["plans"]}
    assert {row.split("_")[1] for row in rows} == {"sm80", "sm89"}
    # Nor is anything for 11.0.
    other = Gpu(11, 0, gpu.sms, gpu.shared_memory, gpu.bandwidth, gpu.clock)
    rows = {plan["row"] for plan in explain(other, *shape)["plans"]}
    assert {row.split("_")[1] for row in rows} == {"sm80", "sm89"}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_ada_has_rows_of_its_own(shape) -> None:
    plans = explain(L40S, *shape)["plans"]
    assert any("_sm89_" in plan["row"] for plan in plans)
    assert all("_sm90a_" not in plan["row"] for plan in plans)


def test_rows_that_need_more_shared_memory_than_the_gpu_has_are_refused() -> None:
    rows = rows_by_name()
    small = Gpu(8, 6, 82, 40 * 1024, 936, 1.7)
    answer = explain(small, 512, 512, 512)
    for plan in answer["plans"]:
        assert rows[plan["row"]]["shared_memory_bytes"] <= small.shared_memory
    refused = [r for r in answer["rejected"] if "shared memory" in r["reason"]]
    assert refused
    for r in refused:
        assert rows[r["row"]]["shared_memory_bytes"] > small.shared_memory
        assert str(small.shared_memory) in r["reason"]


def test_a_gpu_older_than_every_row_gets_no_plan_and_reasons() -> None:
    answer = explain(V100, 64, 64, 64)
    assert answer["plans"] == []
    assert answer["rejected"]
    assert any("compute capability 7.0" in r["reason"] for r in answer["rejected"])


@pytest.mark.parametrize("layout_a", [ROW, COLUMN])
@pytest.mark.parametrize("layout_b", [ROW, COLUMN])
@pytest.mark.parametrize("addend", [NONE, VECTOR, MATRIX])
@pytest.mark.parametrize(
    ("a", "d"), [(BF16, BF16), (F16, F16), (BF16, F32), (F16, F32), (TF32, F32)]
)
@pytest.mark.parametrize(
    "gpu", [A100, RTX3090, L40S, H200, B200], ids=lambda g: f"cc{g.major}{g.minor}"
)
def test_every_combination_is_served(
    gpu: Gpu, a: str, d: str, layout_a: str, layout_b: str, addend: str
) -> None:
    answer = explain(
        gpu, 777, 1024, 512, a=a, d=d, layout_a=layout_a, layout_b=layout_b, addend=addend
    )
    assert answer["plans"]
    if gpu is H200:
        assert all("_sm90a_" in plan["row"] for plan in answer["plans"])
    fit = {NONE: ("_plain",), VECTOR: ("_bias",), MATRIX: ()}[addend]
    for plan in answer["plans"]:
        assert plan["reduce"] or plan["row"].endswith((*fit, "_linear_combination"))


@needs_all
@pytest.mark.parametrize(("m", "n", "k"), [(2048, 512, 8192), (4096, 256, 8192)])
def test_a_bias_is_not_read_as_a_matrix(m: int, n: int, k: int) -> None:
    """Its rows would be one, whose lines of L2 all threadblocks ask for."""
    assert chosen(H200, m, n, k, addend=VECTOR)["row"].endswith("_bias")


@pytest.mark.parametrize("dtype", [BF16, F16, TF32])
@pytest.mark.parametrize(
    "gpu", [A100, RTX3090, L40S, H200, B200], ids=lambda g: f"cc{g.major}{g.minor}"
)
def test_every_epilogue_of_the_layers_is_served(gpu: Gpu, dtype: str) -> None:
    """In the layout of linear layers; other layouts are copied into it."""
    for epilogue in cutwheel.epilogues():
        if not epilogue.has_accum:
            continue
        for m in (1, 777):
            answer = explain(gpu, m, 1024, 512, a=dtype, layout_b=COLUMN, epilogue=epilogue.name)
            assert answer["plans"], epilogue.name
            if epilogue.name not in ("plain", "bias", "linear_combination"):
                assert answer["request"]["epilogue"] == epilogue.name
                for plan in answer["plans"]:
                    assert plan["row"].endswith(f"_{epilogue.name}")
                    assert plan["splits"] == 1


# sm80 code runs on 8.9, too, and nothing in these kernels is better there.
@pytest.mark.parametrize("arch", ["sm80", "sm90a"])
def test_every_elementwise_epilogue_has_a_kernel(arch: str) -> None:
    names = {e.name for e in cutwheel.epilogues() if not e.has_accum}
    assert names
    for dtype in ("bf16", "f16", "f32"):
        rows = [
            kernel
            for kernel in cutwheel.kernels()
            if kernel.family == "elementwise" and kernel.d == dtype and kernel.arch == arch
        ]
        assert {kernel.epilogue for kernel in rows} == names


def test_small_m_on_hopper_takes_narrow_tiles() -> None:
    """Nearly all of a tile with many rows and columns would be padding."""
    for m in (1, 16, 32):
        tile = rows_by_name()[chosen(H200, m, 4096, 4096)["row"]]["tile"]
        assert tile[0] * tile[1] <= 64 * 32


def test_large_problems_on_hopper_take_large_tiles() -> None:
    tile = rows_by_name()[chosen(H200, 8192, 8192, 8192)["row"]]["tile"]
    assert tile[0] * tile[1] >= 128 * 128


@pytest.mark.parametrize("dtype", [BF16, F16, TF32])
@pytest.mark.parametrize("gpu", [A100, RTX3090, L40S], ids=lambda g: f"cc{g.major}{g.minor}")
def test_tiles_on_ampere_and_ada_go_with_the_number_of_rows(gpu: Gpu, dtype: str) -> None:
    rows = rows_by_name()
    few, many = (
        rows[chosen(gpu, m, 4096, 4096, a=dtype, layout_b=COLUMN)["row"]]["tile"] for m in (8, 8192)
    )
    assert few[0] <= 64
    assert many[:2] == [128, 256]


def tiles_of(row: dict, m: int, n: int) -> int:
    rows, columns = row["tile"][:2]
    if row["swap_ab"]:
        m, n = n, m
    return -(-m // rows) * -(-n // columns)


@pytest.mark.parametrize("shape", [(1024, 2304, 8192), (768, 3072, 8192), (512, 4608, 8192)])
def test_tiles_of_odd_width_win_where_they_fill_a_wave(shape) -> None:
    rows, plans = rows_by_name(), explain(H200, *shape)["plans"]
    best = rows[plans[0]["row"]]
    assert best["family"] == "sm90_persistent"
    assert best["tile"][1] % 64 != 0
    assert 0.85 * H200.sms < tiles_of(best, *shape[:2]) <= H200.sms
    usual = next(p for p in plans if rows[p["row"]]["tile"][1] % 64 == 0)
    assert usual["predicted_us"] > 1.1 * plans[0]["predicted_us"]


@pytest.mark.parametrize("shape", [(16, 256, 8192), (32, 512, 8192), (8, 256, 4096)])
@pytest.mark.parametrize("addend", [NONE, VECTOR])
@pytest.mark.parametrize("dtype", [BF16, F16])
def test_a_cluster_shares_a_long_k_where_tiles_are_few(shape, addend: str, dtype: str) -> None:
    plan = chosen(H200, *shape, a=dtype, addend=addend)
    row = rows_by_name()[plan["row"]]
    assert row["cluster"][:2] == [1, 1]
    assert row["cluster"][2] > 1
    assert f"_split{row['cluster'][2]}_" in row["name"]
    # By one kernel, and it leaves no SM with more than a tile.
    assert (plan["splits"], plan["reduce"]) == (1, None)
    assert tiles_of(row, *shape[:2]) * row["cluster"][2] <= H200.sms


def test_a_cluster_shares_k_of_batches_too() -> None:
    plan = chosen(H200, 16, 128, 32768, batch=8)
    assert rows_by_name()[plan["row"]]["cluster"][2] > 1
    # The second kernel of split-K is for one problem.
    assert not any(p["reduce"] for p in explain(H200, 16, 128, 32768, batch=8)["plans"])


def test_nobody_shares_k_where_tiles_are_many() -> None:
    for shape in ((4096, 4096, 4096), (64, 57344, 8192), (1, 4096, 4096)):
        assert rows_by_name()[chosen(H200, *shape)["row"]]["cluster"][2] == 1


FP8 = {"a": E4M3, "d": BF16, "epilogue": "scaled"}


@pytest.mark.parametrize("kind", [{}, {"a": F16}, FP8, {**FP8, "fast_accum": True}], ids=str)
@pytest.mark.parametrize("shape", [(4096, 4096, 11016), (16384, 1024, 2728), (2048, 4096, 4104)])
def test_columns_are_shared_where_rows_begin_within_lines(shape, kind: dict[str, Any]) -> None:
    m, n, k = shape
    row = rows_by_name()[chosen(H200, m, n, k, **kind)["row"]]
    assert (row["cluster"], "_multicast_" in row["name"]) == ([2, 1, 1], True)
    row = rows_by_name()[chosen(H200, m, n, k // 128 * 128, **kind)["row"]]
    assert "_multicast_" not in row["name"]


@pytest.mark.parametrize(("layout_b", "letters"), [(COLUMN, "tnt"), (ROW, "ttt")])
def test_a_cluster_is_refused_a_k_that_is_too_short_for_it(layout_b: str, letters: str) -> None:
    shared = {
        row["name"]: row["cluster"][2] * row["tile"][2]
        for row in rows_by_name().values()
        if row["op"] == "gemm"
        and row["cluster"][2] > 1
        and (row["a"], row["layout"], row["epilogue"]) == ("bf16", letters, "plain")
    }
    assert shared
    for k in (8, 128, 255, 256, 4096):
        answer = explain(H200, 64, 4096, k, layout_b=layout_b)
        reasons = {r["row"]: r["reason"] for r in answer["rejected"]}
        served = {plan["row"] for plan in answer["plans"]}
        for name, least in shared.items():
            assert (name in served) == (k >= least)
            if k < least:
                assert reasons[name] == f"K = {k}, and a cluster shares {least} or more"
        assert served - shared.keys()


def test_raster_order_walks_along_the_shorter_side_of_small_problems() -> None:
    assert chosen(H200, 1024, 8192, 4096)["raster"] == "along_m"
    assert chosen(H200, 1024, 512, 4096)["raster"] == "along_n"


def test_raster_order_of_large_problems_is_along_n() -> None:
    for m, n, swizzle in ((2048, 8192, 4), (8192, 1024, 2), (8192, 57344, 4)):
        plan = chosen(H200, m, n, 4096)
        assert (plan["raster"], plan["swizzle"]) == ("along_n", swizzle)


def test_raster_order_is_along_m_where_a_stays_in_l2() -> None:
    for m, n, k in ((2048, 201088, 1440), (4096, 32768, 512)):
        own = [plan for plan in explain(H200, m, n, k)["plans"] if "2x1x1" not in plan["row"]]
        assert {(plan["raster"], plan["swizzle"]) for plan in own} == {("along_m", 2)}
    # Not beside a smaller B.
    assert chosen(H200, 16384, 2048, 256)["raster"] == "along_n"
    # Of CUTLASS's tiles, those of 8 bits.
    tf32 = {"a": TF32, "d": F32, "layout_a": COLUMN, "layout_b": ROW}
    fp8 = {"a": E4M3, "d": BF16, "epilogue": "block_bias", "scales": "1x128_1x128"}
    for given, cluster, raster in (
        (fp8, "1x1x1", "along_m"),
        (tf32, "2x1x1", "along_n"),
    ):
        plans = explain(H200, 2048, 201088, 1440, **given)["plans"]
        assert {plan["raster"] for plan in plans if cluster in plan["row"]} == {raster}


def test_tiles_of_cutlass_that_fill_no_band_are_walked_in_bands_of_one() -> None:
    name = "gemm_sm90a_tf32_tf32_f32_f32_128x128x32_2x1x1_ntt_pingpong_linear_combination"
    given = {"a": TF32, "d": F32, "layout_a": COLUMN, "layout_b": ROW}
    # 33 columns of tiles would count as 34; eight are few.
    for n, swizzle in ((4224, 1), (4096, 2), (1024, 1)):
        plans = explain(H200, 4096, n, 7168, **given)["plans"]
        assert [plan["swizzle"] for plan in plans if plan["row"] == name] == [swizzle]


def test_rows_of_no_whole_lines_are_read_twice_from_l2() -> None:
    """K = 3080 is 6160 bytes: a tile that reads much from L2 takes far longer than at 3072."""
    whole, parts = (explain(H200, 8289, 1112, k)["plans"] for k in (3072, 3080))
    narrow = "gemm_sm90a_bf16_bf16_f32_bf16_128x112x64_tnt_persistent_plain"
    us = [next(p["predicted_us"] for p in x if p["row"] == narrow) for x in (whole, parts)]
    assert us[1] > 1.4 * us[0]
    assert parts[0]["predicted_us"] < 0.9 * us[1]  # by a wider tile or a cluster, which read less


@pytest.mark.parametrize("gpu", [A100, H200], ids=lambda gpu: f"cc{gpu.major}{gpu.minor}")
@pytest.mark.parametrize("k", [7168, 7000])
def test_splits_carry_a_reduce_kernel_and_fill_the_sms(gpu: Gpu, k: int) -> None:
    """Slices are equal, but of our own kernels for Hopper, whose last one may be shorter."""
    plans = explain(gpu, 64, 2112, k)["plans"]
    split = [plan for plan in plans if plan["splits"] > 1 and plan["reduce"]]
    own = [plan for plan in split if "_persistent_" in plan["row"]]
    assert split if k == 7168 else len(split) == len(own)
    assert bool(own) == (gpu is H200)
    for plan in split:
        assert plan["reduce"].endswith("bf16_splitk_reduce")
        assert "_bf16_bf16_f32_f32_" in plan["row"]
        assert plan in own or k % plan["splits"] == 0
    by_row = {plan["row"]: set() for plan in own}
    for plan in own:
        by_row[plan["row"]].add(plan["splits"])
    for row, splits in by_row.items():
        tile = rows_by_name()[row]["tile"]
        tiles = -(-64 // tile[0]) * -(-2112 // tile[1])
        if "_swap_" not in row and 2 * tiles < gpu.sms and k // 512 > gpu.sms // tiles:
            # Whole tiles of K: a slice more for each tile might have less than one.
            assert any(gpu.sms >= tiles * s > 0.8 * gpu.sms for s in splits), row


@pytest.mark.parametrize("epilogue", ["bias_gelu", "gated_silu", "bias_tanh", "bias_residual_relu"])
@pytest.mark.parametrize("a", [BF16, TF32])
def test_a_fused_product_of_few_tiles_is_split(a: str, epilogue: str) -> None:
    """By the kernels that store float32, with a reduction of the epilogue's own."""
    plans = explain(H200, 200, 1024, 14336, a=a, epilogue=epilogue)["plans"]
    best = plans[0]
    assert best["splits"] > 1
    d = F32 if a == TF32 else a
    assert best["reduce"] == f"gemm_sm90a_f32_f32_f32_{d}_splitk_epilogue_{epilogue}"
    assert best["row"].endswith("_plain")
    us = min(p["predicted_us"] for p in plans if not p["reduce"])
    assert best["predicted_us"] < 0.9 * us


def test_only_what_is_served_unsplit_is_split() -> None:
    """Else K would decide whether float32 results of 16 bits have an epilogue."""
    assert not explain(H200, 64, 2048, 14336, d=F32, epilogue="bias_gelu")["plans"]
    odd = explain(H200, 481, 2046, 14336, epilogue="bias_gelu")["plans"]
    assert odd
    assert not any(plan["reduce"] for plan in odd)


LONG = 1 << 18
"""The longest sum that one accumulator takes."""


@pytest.mark.parametrize(
    "gpu", [A100, L40S, H200, B200], ids=lambda gpu: f"cc{gpu.major}{gpu.minor}"
)
@pytest.mark.parametrize("k", [LONG + 8, 3 * LONG, (1 << 27) + 24])
@pytest.mark.parametrize(
    ("a", "options"),
    [
        (BF16, {}),
        (F16, {"d": F32}),
        (BF16, {"addend": MATRIX, "layout_a": COLUMN}),
        (BF16, {"batch": 3}),
        (TF32, {}),
    ],
    ids=str,
)
def test_a_long_k_is_always_split(gpu: Gpu, k: int, a: str, options: dict) -> None:
    """Tensor cores truncate as they add: what one accumulator loses grows with its additions."""
    for m, n in ((17, 24), (4096, 8192)):
        plans = explain(gpu, m, n, k, a=a, **options)["plans"]
        assert plans
        for plan in plans:
            assert plan["reduce"], plan["row"]
            assert k / plan["splits"] <= LONG + 256  # a slice is whole tiles


def test_a_k_that_is_not_long_needs_no_split() -> None:
    assert any(not plan["reduce"] for plan in explain(H200, 4096, 8192, LONG)["plans"])


def test_sums_that_leave_the_tensor_cores_are_not_split() -> None:
    plans = explain(H200, 64, 64, 4 * LONG, a=E4M3, d=BF16, epilogue="scaled")["plans"]
    assert any(not plan["reduce"] for plan in plans)


def test_unaligned_extents_rule_out_cp_async_rows_only() -> None:
    assert explain(A100, 64, 63, 65, extents_aligned=False)["plans"] == []
    assert explain(H200, 64, 63, 65, extents_aligned=False)["plans"]


def kernels_of(gpu: Gpu, m: int, n: int, k: int, **options: Any) -> list[str]:
    return [plan["row"] for plan in explain(gpu, m, n, k, **options)["plans"]]


@pytest.mark.parametrize("layouts", [(ROW, COLUMN), (ROW, ROW), (COLUMN, COLUMN), (COLUMN, ROW)])
@pytest.mark.parametrize("a", [BF16, F16])
def test_kernels_of_their_own_read_what_does_not_lie_on_16_bytes(
    a: str, layouts: tuple[str, str]
) -> None:
    options = {"a": a, "layout_a": layouts[0], "layout_b": layouts[1]}
    for unaligned in ("a", "b", "ab", "ad"):
        names = kernels_of(H200, 640, 640, 640, **options, unaligned=unaligned)
        assert names
        assert all("_unaligned_" in name for name in names)
    assert not any("_unaligned_" in name for name in kernels_of(H200, 640, 640, 640, **options))


def test_the_largest_tiles_are_for_large_products_that_do_not_lie_on_16_bytes() -> None:
    assert "_128x128x64_" in chosen(H200, 2048, 2048, 1024, unaligned="ab")["row"]
    assert "_64x64x64_" in chosen(H200, 16, 640, 640, unaligned="ab")["row"]


@pytest.mark.parametrize(
    ("m", "n", "k", "batch", "in_turns"),
    [
        # What one of two warpgroups stores, the other hides behind a K of 768, and not of 64.
        (4096, 50257, 768, 1, True),
        (197, 197, 64, 192, False),
        # Rows that begin on words are stored faster.
        (1500, 1500, 64, 48, True),
    ],
)
def test_tiles_in_turns_store_rows_that_begin_anywhere_behind_a_long_k(
    m: int, n: int, k: int, batch: int, in_turns: bool
) -> None:
    row = chosen(H200, m, n, k, batch=batch, unaligned="d")["row"]
    assert ("_pingpong_" in row) == in_turns


@pytest.mark.parametrize(
    ("m", "n", "k", "shares"), [(4624, 201088, 2880, False), (3156, 1152, 4304, True)]
)
def test_multicast_is_for_rows_that_bring_many_lines_into_l2(
    m: int, n: int, k: int, shares: bool
) -> None:
    options = {"a": E4M3, "d": BF16, "epilogue": "scaled", "addend": "other", "fast_accum": True}
    assert ("_multicast_" in chosen(H200, m, n, k, **options)["row"]) == shares


@pytest.mark.parametrize(
    ("m", "n", "k", "layouts", "fastest"),
    [
        # A few hundred rows: 39.0 us for 44.1, 74.8 for 80.5, 46.3 for 52.9, 30.4 for 34.0.
        (183, 8192, 8192, "tn", ["128x96x64_tnt_pingpong_swap_multicast1x2"]),
        (157, 36864, 3584, "tn", ["192x80x64_tnt_pingpong_swap_multicast1x2"]),
        (
            *(204, 12288, 6144, "tn"),
            [f"192x104x64_tnt_pingpong_swap{shared}" for shared in ("", "_multicast1x2")],
        ),
        (405, 6144, 4096, "tt", ["192x104x64_ttt_pingpong_swap"]),
        # Gradients of weights: 118 us for 141, 27.5 for 33.1, 55.9 for 66.9.
        (3840, 1280, 9302, "nt", ["256x160x64_ntt_persistent", "128x160x64_ntt_pingpong"]),
        (1536, 1536, 4100, "nt", ["192x96x64_ntt_pingpong", "128x160x64_ntt_pingpong"]),
        (4304, 288, 12606, "nt", ["128x96x64_ntt_pingpong_multicast4x1"]),
    ],
)
def test_tiles_in_turns_that_share_and_narrow_columns_are_chosen_where_they_gain(
    m: int, n: int, k: int, layouts: str, fastest: list[str]
) -> None:
    """On an H200: multicast/h200_in_turns.json and gradients/h200_narrow_columns.json."""
    row = chosen(H200, m, n, k, layout_a=layouts[0], layout_b=layouts[1])["row"]
    assert row in [f"gemm_sm90a_bf16_bf16_f32_bf16_{name}_plain" for name in fastest]


@pytest.mark.parametrize(
    "options",
    [
        {"a": TF32},
        {"a": E4M3, "d": BF16, "epilogue": "scaled"},
        {"a": S8, "d": BF16, "epilogue": "scaled"},
        {"addend": "other", "epilogue": "bias_gelu"},
        {"d": F32},
    ],
    ids=["tf32", "fp8", "int8", "fused", "float32"],
)
def test_other_operands_that_do_not_lie_on_16_bytes_have_no_kernels(
    options: dict[str, Any],
) -> None:
    assert kernels_of(H200, 640, 640, 640, **options)
    answer = explain(H200, 640, 640, 640, **options, unaligned="a")
    assert answer["plans"] == []
    assert "A or B does not lie on 16 bytes" in {x["reason"] for x in answer["rejected"]}
    assert answer["request"]["unaligned"] == "a"


def test_kernels_of_our_own_store_a_d_that_does_not_lie_on_16_bytes() -> None:
    for options in ({}, {"addend": VECTOR}, {"epilogue": "bias_gelu"}, {"epilogue": "gated_silu"}):
        names = kernels_of(H200, 640, 640, 640, **options, unaligned="d")
        assert names
        assert all("_persistent_" in name or "_pingpong_" in name for name in names)
    rejected = explain(H200, 640, 640, 640, epilogue="bias_residual", unaligned="d")["rejected"]
    assert "D does not lie on 16 bytes" in {x["reason"] for x in rejected}
    # An epilogue that stores more than D, and split-K, whose sum is stored by vectors.
    assert not kernels_of(H200, 640, 640, 640, epilogue="bias_gelu_aux", unaligned="d")
    plans = explain(H200, 64, 64, 65536, unaligned="d")["plans"]
    assert plans
    assert not any(plan["reduce"] for plan in plans)
    assert kernels_of(A100, 640, 640, 640, unaligned="d") == []


MANY_SHORT_ROWS = [
    *((965888, 144, 24, COLUMN), (802816, 96, 16, COLUMN), (50176, 240, 40, COLUMN)),
    *((802816, 16, 96, ROW), (965888, 24, 144, ROW), (200704, 144, 24, ROW)),
]


@pytest.mark.parametrize("a", [BF16, F16])
@pytest.mark.parametrize("shape", MANY_SHORT_ROWS, ids=str)
def test_many_short_rows_have_kernels_of_their_own(
    shape: tuple[int, int, int, str], a: str
) -> None:
    *extents, layout_b = shape
    assert "_thin_" in chosen(H200, *extents, a=a, layout_b=layout_b)["row"]


def test_short_rows_with_residuals_do_too() -> None:
    """Results take their places, or 240 columns would leave no room for two warpgroups."""
    for columns, k in ((24, 144), (240, 40)):
        taken = chosen(H200, 358400, columns, k, epilogue="bias_residual_relu")
        assert "_thin_" in taken["row"]


def test_few_steps_of_many_rows_take_no_turns() -> None:
    """Memory is what they wait for: tiles in turns take 6 to 15 % longer than the best plan."""
    for shape in ((137469, 672, 112), (100352, 480, 80), (250000, 672, 112)):
        assert "pingpong" not in chosen(H200, *shape)["row"]


def test_zeros_of_strided_gradients_count_less_than_tiles() -> None:
    """Of 1x1 filters behind a stride of 2, three of four classes of pixels are zeros."""
    shape = (64 * 112 * 112, 256, 512)
    alone = chosen(H200, *shape, direction=DGRAD, taps=1, step=4)["predicted_us"]
    with_taps = chosen(H200, *shape[:2], 4 * 512, direction=DGRAD, taps=4, step=4)["predicted_us"]
    assert alone < 0.7 * with_taps


def test_thin_kernels_are_for_nothing_else() -> None:
    for extents in ((50176, 512, 512), (12544, 96, 96), (4096, 64, 64), (64, 64, 64)):
        for layout_b in (COLUMN, ROW):
            assert "_thin_" not in chosen(H200, *extents, layout_b=layout_b)["row"]
    for extents, options in (
        ((50176, 36, 24), {}),
        ((50176, 64, 36), {}),
        ((50176, 1024, 64), {}),
        ((50176, 64, 64), {"batch": 2}),
    ):
        assert not any("_thin_" in name for name in kernels_of(H200, *extents, **options))


def test_predictions_grow_with_the_problem() -> None:
    times = [chosen(H200, m, 4096, 4096)["predicted_us"] for m in (64, 512, 4096, 8192)]
    assert times == sorted(times)
    assert times[-1] > 4 * times[0]


def test_environment_restricts_the_architecture(environment) -> None:
    environment(CUTWHEEL_ARCH="sm80")
    assert all("_sm80_" in plan["row"] for plan in explain(H200, 512, 512, 512)["plans"])
    environment(CUTWHEEL_ARCH="sm89")
    assert all("_sm89_" in plan["row"] for plan in explain(H200, 512, 512, 512)["plans"])
    # sm89 code does not run on 8.0, not even through PTX
    assert explain(A100, 512, 512, 512)["plans"] == []


def test_environment_names_one_kernel(environment) -> None:
    name = chosen(H200, 512, 512, 512)["row"]
    other = next(
        p["row"]
        for p in explain(H200, 512, 512, 512)["plans"]
        if p["row"] != name and not p["reduce"]
    )
    environment(CUTWHEEL_KERNEL=other)
    assert {plan["row"] for plan in explain(H200, 512, 512, 512)["plans"]} == {other}


def test_an_unknown_kernel_in_the_environment_is_an_error(environment) -> None:
    with pytest.raises(RuntimeError, match="no such kernel"):
        environment(CUTWHEEL_KERNEL="gemm_sm80_nonsense")


def test_a_wrong_architecture_in_the_environment_is_an_error(environment) -> None:
    with pytest.raises(RuntimeError, match="CUTWHEEL_ARCH"):
        environment(CUTWHEEL_ARCH="sm100")
