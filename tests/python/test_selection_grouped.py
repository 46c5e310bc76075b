"""Which kernels of grouped products would serve which GPU. Extents are those of the mean group."""

from __future__ import annotations

import json

import pytest
import torch
from selection import (
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
    MATRIX,
    NONE,
    ROW,
    ROWS,
    RTX3090,
    RTX5090,
    TF32,
    VECTOR,
    Gpu,
    K,
    chosen,
    explain,
    needs_all,
)

cutwheel = pytest.importorskip("cutwheel", reason="needs the built package (make test builds it)")

pytestmark = needs_all

OF_ROWS = {"grouping": ROWS, "groups": 8}
OF_K = {"grouping": K, "groups": 8, "layout_a": COLUMN, "layout_b": ROW}
SCALED = {**OF_ROWS, "a": E4M3, "d": BF16, "epilogue": "scaled"}
BLOCK_SCALED = {**SCALED, "epilogue": "block_bias", "scales": A1X128_B128X128}

SHAPES = [(1, 4096, 4096), (64, 2048, 7168), (1024, 4096, 4096), (129, 8, 16)]
# The architecture whose kernels run there: on what is newer than all of them, by its PTX.
GPUS = [
    (A100, "_sm80_"),
    (RTX3090, "_sm80_"),
    (L40S, "_sm80_"),
    (H200, "_sm90a_"),
    (B200, "_sm80_"),
    (RTX5090, "_sm80_"),
]
FP8_GPUS = [(L40S, "_sm89_"), (H200, "_sm90a_"), (B200, "_sm89_"), (RTX5090, "_sm89_")]


def gpu_id(value: object) -> str:
    return f"cc{value.major}{value.minor}" if isinstance(value, Gpu) else str(value)


def rows_by_name() -> dict[str, dict]:
    return {row["name"]: row for row in json.loads(torch.ops.cutwheel._kernels())}


def check_served(gpu: Gpu, arch: str, shape: tuple[int, int, int], **options: object) -> None:
    plans = explain(gpu, *shape, **options)["plans"]
    assert plans
    rows = rows_by_name()
    grouping = {ROWS: "rows", K: "k"}[options["grouping"]]
    for plan in plans:
        assert arch in plan["row"]
        assert (plan["splits"], plan["reduce"]) == (1, None)
        assert rows[plan["row"]]["op"] == "grouped_mm"
        assert rows[plan["row"]]["grouping"] == grouping


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize(("gpu", "arch"), GPUS, ids=gpu_id)
def test_groups_of_rows_are_served(gpu: Gpu, arch: str, dtype: str, shape) -> None:
    options = {**OF_ROWS, "a": dtype}
    for layout_b in (COLUMN, ROW):
        check_served(gpu, arch, shape, **options, layout_b=layout_b)
    check_served(gpu, arch, shape, **options, addend=VECTOR)
    for epilogue in ("gated_silu", "gated_silu_aux"):
        check_served(gpu, arch, shape, **options, epilogue=epilogue)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize(("gpu", "arch"), GPUS, ids=gpu_id)
def test_groups_of_k_are_served(gpu: Gpu, arch: str, dtype: str, shape) -> None:
    check_served(gpu, arch, shape, **OF_K, a=dtype)
    for addend in (NONE, MATRIX):
        check_served(gpu, arch, shape, **OF_K, a=dtype, d=F32, addend=addend)


@pytest.mark.parametrize(("gpu", "arch"), GPUS, ids=gpu_id)
def test_tf32_reads_k_contiguous_in_both_kinds(gpu: Gpu, arch: str) -> None:
    for shape in SHAPES:
        check_served(gpu, arch, shape, **OF_ROWS, a=TF32)
        of_k = {**OF_K, "layout_a": ROW, "layout_b": COLUMN}
        for addend in (NONE, MATRIX):
            check_served(gpu, arch, shape, **of_k, a=TF32, addend=addend)
    for options in ({**OF_ROWS, "layout_b": ROW}, OF_K):
        answer = explain(gpu, *SHAPES[0], **options, a=TF32)
        assert answer["plans"] == []
        assert any("layouts" in rejected["reason"] for rejected in answer["rejected"])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("gpu", "arch"), FP8_GPUS, ids=gpu_id)
def test_scaled_products_are_served(gpu: Gpu, arch: str, shape) -> None:
    for options in (SCALED, BLOCK_SCALED):
        for operands in ({"d": BF16}, {"d": F32}, {"b": E5M2}, {"a": E5M2, "b": E4M3}):
            for fast_accum in (False, True):
                check_served(gpu, arch, shape, **{**options, **operands}, fast_accum=fast_accum)


@pytest.mark.parametrize("gpu", [A100, RTX3090], ids=gpu_id)
def test_scaled_products_need_fp8_tensor_cores(gpu: Gpu) -> None:
    for options in (SCALED, BLOCK_SCALED):
        assert explain(gpu, 64, 2048, 7168, **options)["plans"] == []


def test_sums_in_the_tensor_cores_need_permission() -> None:
    rows = rows_by_name()

    def kinds(fast_accum: bool) -> set[bool]:
        plans = explain(H200, 1024, 4096, 4096, **SCALED, fast_accum=fast_accum)["plans"]
        return {rows[plan["row"]]["fast_accum"] for plan in plans}

    assert kinds(False) == {False}
    assert kinds(True) == {False, True}


def test_the_mean_group_decides_on_the_tile() -> None:
    def tile_rows(m: int, **options: object) -> int:
        name = chosen(H200, m, 4096, 4096, **options)["row"]
        return rows_by_name()[name]["tile"][0]

    for options in (OF_ROWS, SCALED):
        assert [tile_rows(m, **options) for m in (1, 16, 64, 4096)] == [64, 64, 64, 128]


def test_the_number_of_groups_counts() -> None:
    def predicted(groups: int) -> float:
        return chosen(H200, 512, 4096, 4096, grouping=ROWS, groups=groups)["predicted_us"]

    assert predicted(64) > 4 * predicted(8)


def test_a_request_names_the_groups() -> None:
    request = explain(H200, 64, 128, 256, **OF_ROWS)["request"]
    assert (request["grouping"], request["groups"], request["batch"]) == ("rows", 8, 8)
    assert explain(H200, 64, 128, 256, **OF_K)["request"]["grouping"] == "k"
    assert "grouping" not in explain(H200, 64, 128, 256)["request"]


def test_a_reason_names_the_other_kind_of_groups() -> None:
    reasons = {r["reason"] for r in explain(H200, 64, 128, 256, **OF_K)["rejected"]}
    assert any("groups are along k" in reason for reason in reasons)


# A row of each group is no matrix with the rows of D.
def test_a_row_of_each_group_needs_an_epilogue_with_a_row() -> None:
    rows = rows_by_name()
    for gpu in (A100, H200):
        for plan in explain(gpu, 64, 128, 256, **OF_ROWS, addend=VECTOR)["plans"]:
            assert rows[plan["row"]]["epilogue"] == "bias"


def test_groups_have_candidates_of_their_own() -> None:
    ops = {kernel.name: kernel.op for kernel in cutwheel.kernels()}
    for op, options in (("gemm", {}), ("grouped_mm", OF_ROWS), ("grouped_mm", SCALED)):
        answer = explain(H200, 512, 512, 512, **options)
        assert {ops[row["row"]] for row in (*answer["plans"], *answer["rejected"])} == {op}


def test_unaligned_extents_rule_out_cp_async_rows_only() -> None:
    for options in (OF_ROWS, OF_K):
        assert explain(A100, 64, 63, 65, **options, extents_aligned=False)["plans"] == []
        assert explain(H200, 64, 63, 65, **options, extents_aligned=False)["plans"]


@pytest.mark.parametrize("gpu", [A100, H200], ids=gpu_id)
def test_environment_names_one_grouped_kernel(environment, gpu: Gpu) -> None:
    name = chosen(gpu, 512, 512, 512, **OF_ROWS)["row"]
    environment(CUTWHEEL_KERNEL=name)
    assert [plan["row"] for plan in explain(gpu, 512, 512, 512, **OF_ROWS)["plans"]] == [name]
    assert explain(gpu, 512, 512, 512)["plans"] == []


def test_the_epilogues_of_gemm_stay_those_of_gemm() -> None:
    offered = {epilogue.name for epilogue in cutwheel.epilogues()}
    assert {"bias", "gated_silu", "gated_silu_aux"} <= offered
    assert "scaled" not in offered


def test_the_cpu_is_refused_in_one_sentence() -> None:
    ops = torch.ops.cutwheel
    a, b, weight = torch.ones(4, 16), torch.ones(2, 16, 8), torch.ones(2, 8, 16)
    ends = torch.tensor([2, 4], dtype=torch.int32)
    for call in (
        lambda: ops.grouped_mm(a, b, ends),
        lambda: ops.grouped_mm_accumulate(a.t(), a, ends, out=torch.zeros(2, 16, 16)),
        lambda: ops.grouped_linear_fused(a, weight, ends, None, "gated_silu"),
        lambda: ops.grouped_linear_fused_aux(a, weight, ends, None, "gated_silu_aux"),
        lambda: ops.scaled_grouped_mm(a, b, torch.ones(4), torch.ones(2, 8), ends),
    ):
        with pytest.raises(RuntimeError, match="move them with"):
            call()
