"""Which kernels of scaled_mm and quantize would serve which GPU."""

from __future__ import annotations

import json
from itertools import product

import pytest
import torch
from selection import (
    A1X128_B1X128,
    A1X128_B128X128,
    A100,
    B200,
    BF16,
    COLUMN,
    E4M3,
    E5M2,
    F16,
    F32,
    H200,
    L40S,
    RTX3090,
    RTX5090,
    S8,
    S32,
    Gpu,
    chosen,
    explain,
    needs_all,
)

cutwheel = pytest.importorskip("cutwheel", reason="needs the built package (make test builds it)")

pytestmark = needs_all

SCALED_INT8 = {"a": S8, "d": BF16, "layout_b": COLUMN, "epilogue": "scaled"}
SCALED_FP8 = {**SCALED_INT8, "a": E4M3}

FP8_PAIRS = [(E4M3, E4M3), (E4M3, E5M2), (E5M2, E4M3)]
SHAPES = [(1, 4096, 4096), (64, 4096, 14336), (4096, 4096, 4096), (129, 8, 16)]
# The architecture whose kernels run there: on what is newer than all of them, by its PTX.
FP8_GPUS = [(L40S, "_sm89_"), (H200, "_sm90a_"), (B200, "_sm89_"), (RTX5090, "_sm89_")]
INT8_GPUS = [(A100, "_sm80_"), (RTX3090, "_sm80_"), (H200, "_sm90a_"), (B200, "_sm8")]


def gpu_id(value: object) -> str:
    return f"cc{value.major}{value.minor}" if isinstance(value, Gpu) else str(value)


def served(
    gpu: Gpu, arch: str, shape: tuple[int, int, int], d: int, **options: object
) -> list[dict]:
    """The plans for `d`; where the architecture has none, for float32, which is converted."""
    plans: list[dict] = []
    for kind in (d, F32):
        plans = explain(gpu, *shape, d=kind, layout_b=COLUMN, **options)["plans"]
        if plans and all(arch in plan["row"] for plan in plans):
            break
    return plans


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("d", [BF16, F16, F32])
@pytest.mark.parametrize(("a", "b"), FP8_PAIRS)
@pytest.mark.parametrize(("gpu", "arch"), FP8_GPUS, ids=gpu_id)
def test_fp8_is_served(gpu: Gpu, arch: str, a: str, b: str, d: str, shape) -> None:
    for fast_accum in (False, True):
        plans = served(gpu, arch, shape, d, a=a, b=b, epilogue="scaled", fast_accum=fast_accum)
        assert plans
        for plan in plans:
            assert arch in plan["row"]
            assert plan["splits"] == 1


@pytest.mark.parametrize("scales", [A1X128_B128X128, A1X128_B1X128])
@pytest.mark.parametrize("d", [BF16, F16, F32])
@pytest.mark.parametrize(("gpu", "arch"), FP8_GPUS, ids=gpu_id)
def test_block_scales_are_served(gpu: Gpu, arch: str, d: str, scales: str) -> None:
    rows = {row["name"]: row for row in json.loads(torch.ops.cutwheel._kernels())}
    name = {A1X128_B128X128: "1x128_128x128", A1X128_B1X128: "1x128_1x128"}[scales]
    for shape in SHAPES:
        plans = served(gpu, arch, shape, d, a=E4M3, epilogue="block_bias", scales=scales)
        assert plans
        for plan in plans:
            assert arch in plan["row"]
            assert rows[plan["row"]]["scales"] == name


@pytest.mark.parametrize("epilogue", ["scaled", "scaled_azp"])
@pytest.mark.parametrize("d", [BF16, F16, F32])
@pytest.mark.parametrize(("gpu", "arch"), INT8_GPUS, ids=gpu_id)
def test_int8_is_served(gpu: Gpu, arch: str, d: int, epilogue: str) -> None:
    for shape in SHAPES:
        plans = served(gpu, arch, shape, d, a=S8, epilogue=epilogue)
        assert plans
        for plan in plans:
            assert arch in plan["row"]


@pytest.mark.parametrize(("gpu", "arch"), INT8_GPUS, ids=gpu_id)
def test_unscaled_int8_is_served(gpu: Gpu, arch: str) -> None:
    for shape in SHAPES:
        assert chosen(gpu, *shape, a=S8, d=S32, layout_b=COLUMN, epilogue="accumulator")


@pytest.mark.parametrize("gpu", [A100, RTX3090], ids=gpu_id)
def test_a_gpu_without_fp8_gets_no_plan_and_reasons(gpu: Gpu) -> None:
    answer = explain(gpu, 64, 64, 64, **SCALED_FP8)
    assert answer["plans"] == []
    reasons = {r["reason"] for r in answer["rejected"] if "_e4m3_e4m3_" in r["row"]}
    assert any(f"compute capability {gpu.major}.{gpu.minor}" in reason for reason in reasons)


@pytest.mark.parametrize("gpu", [L40S, H200], ids=gpu_id)
def test_sums_in_the_tensor_cores_need_permission(gpu: Gpu) -> None:
    rows = {row["name"]: row for row in json.loads(torch.ops.cutwheel._kernels())}

    def kinds(fast_accum: bool) -> set[bool]:
        answer = explain(gpu, 4096, 4096, 4096, **SCALED_FP8, fast_accum=fast_accum)
        if not fast_accum:
            assert any("use_fast_accum" in r["reason"] for r in answer["rejected"])
        return {rows[plan["row"]]["fast_accum"] for plan in answer["plans"]}

    assert kinds(False) == {False}
    # Promoted sums serve those who would allow less, too.
    assert kinds(True) == {False, True}


def test_a_request_names_what_is_asked_of_scaled_mm() -> None:
    options = {"b": E5M2, "epilogue": "block_bias", "scales": A1X128_B1X128, "fast_accum": True}
    request = explain(H200, 64, 64, 256, **{**SCALED_FP8, **options})["request"]
    assert (request["dtype"], request["b"]) == ("e4m3", "e5m2")
    assert request["fast_accum"] is True
    assert request["scales"] == "1x128_1x128"


def test_small_m_on_hopper_has_narrow_tiles_of_fp8() -> None:
    """Those of 128 columns and more would leave three SMs of four without any."""
    tiles = {kernel.name: kernel.tile for kernel in cutwheel.kernels()}
    for m in (1, 16, 32):
        row = chosen(H200, m, 4096, 4096, **SCALED_FP8)["row"]
        assert "_swap_" in row or tiles[row][1] <= 48


def test_few_tiles_with_a_long_k_share_it() -> None:
    """Also where most columns of a tile are beyond M; with many tiles none does."""
    options = {**SCALED_FP8, "epilogue": "block_bias", "scales": A1X128_B1X128}
    for m, n, k in ((1, 384, 24576), (4, 1024, 14336), (16, 2112, 7168)):
        assert "_split4_" in chosen(H200, m, n, k, **options)["row"]
    assert "_split" not in chosen(H200, 4, 28672, 4096, **options)["row"]


def test_unaligned_extents_rule_out_cp_async_rows_only() -> None:
    assert explain(L40S, 64, 63, 65, **SCALED_FP8, extents_aligned=False)["plans"] == []
    assert explain(H200, 64, 63, 65, **SCALED_FP8, extents_aligned=False)["plans"]


def test_each_op_has_candidates_of_its_own() -> None:
    ops = {kernel.name: kernel.op for kernel in cutwheel.kernels()}
    for op, options in (("gemm", {}), ("scaled_mm", SCALED_INT8)):
        answer = explain(H200, 512, 512, 512, **options)
        assert {ops[row["row"]] for row in (*answer["plans"], *answer["rejected"])} == {op}


def test_gemm_does_not_offer_the_epilogues_of_scaled_mm() -> None:
    def used(op: str) -> set[str]:
        return {k.epilogue for k in cutwheel.kernels() if k.op == op and k.epilogue}

    assert "scaled" in used("scaled_mm")
    offered = {epilogue.name for epilogue in cutwheel.epilogues()}
    assert not offered & (used("scaled_mm") - used("gemm"))
    with pytest.raises(ValueError, match="scaled"):
        cutwheel.gemm(torch.ones(2, 2), torch.ones(2, 2), "scaled")


@pytest.mark.parametrize("arch", ["sm80", "sm89", "sm90a"])
def test_environment_names_one_kernel_of_scaled_mm(environment, arch: str) -> None:
    gpu = {"sm80": A100, "sm89": L40S, "sm90a": H200}[arch]
    name = chosen(gpu, 512, 512, 512, **SCALED_INT8)["row"]
    environment(CUTWHEEL_KERNEL=name)
    assert [plan["row"] for plan in explain(gpu, 512, 512, 512, **SCALED_INT8)["plans"]] == [name]
    assert explain(gpu, 512, 512, 512)["plans"] == []


SYMMETRIC = ("tensorwise", "rowwise")
FP8_RECIPES = (*SYMMETRIC, "blockwise_1x128", "blockwise_128x128")
INT8_RECIPES = (*SYMMETRIC, "tensorwise_asymmetric", "rowwise_asymmetric")


# PTX of the first serves what is newer than all of them.
@pytest.mark.parametrize("archs", [("sm80", "sm89"), ("sm90a",)], ids=str)
def test_every_recipe_of_quantize_has_a_kernel(archs: tuple[str, ...]) -> None:
    found = {
        (kernel.a, kernel.d, kernel.recipe)
        for kernel in cutwheel.kernels()
        if kernel.family == "quantize" and kernel.arch in archs
    }
    inputs = ("bf16", "f16", "f32")
    assert found >= set(product(inputs, ("e4m3", "e5m2"), FP8_RECIPES))
    assert found >= set(product(inputs, ("s8",), INT8_RECIPES))
