"""Loading tables of measurements, and what selection makes of them, asked about an H200."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from selection import (
    A1X128_B1X128,
    A1X128_B128X128,
    A100,
    BF16,
    COLUMN,
    E4M3,
    E5M2,
    F32,
    FPROP,
    H200,
    ROW,
    ROWS,
    VECTOR,
    WGRAD,
    Gpu,
    K,
    chosen,
    explain,
)
from tuning_tables import EXTENTS, gpu_of, measured, table

cutwheel = pytest.importorskip("cutwheel", reason="needs the built package (make test builds it)")

narrow = pytest.mark.skipif(
    bool(os.environ.get("CUTWHEEL_NARROW")),
    reason="the built package holds a selection of the declared kernels",
)
pytestmark = narrow


@pytest.fixture(autouse=True)
def _cleared() -> Iterator[None]:
    yield
    cutwheel.clear_tuning()


def test_without_a_table_the_cost_model_chooses() -> None:
    answer = explain(H200, *EXTENTS)
    assert answer["choice"] == "cost model"
    assert "table" not in answer


@pytest.mark.parametrize("gpu", [A100, replace(H200, sms=114), replace(H200, bandwidth=2039.0)])
def test_a_gpu_that_was_never_measured_is_estimated(gpu: Gpu) -> None:
    assert explain(gpu, *EXTENTS)["choice"] == "cost model (estimated)"


def test_an_entry_of_the_very_request_decides_row_and_parameters() -> None:
    before = explain(H200, *EXTENTS)
    cutwheel.load_tuning(table(measured(before, 5, 3)))
    after = explain(H200, *EXTENTS)
    assert after["choice"] == "tuned (exact)"
    assert after["table"] == "table"
    first, second, *rest = after["plans"]
    assert first["row"] == before["plans"][5]["row"]
    assert (first["raster"], first["swizzle"], first["predicted_us"]) == ("along_m", 4, 100)
    assert second["row"] == before["plans"][3]["row"]
    # Plans that are not listed were slower than any that is.
    assert all(plan["predicted_us"] >= 115 for plan in rest)
    assert {p["row"] for p in after["plans"]} == {p["row"] for p in before["plans"]}


def test_what_is_listed_comes_first_even_if_it_took_longer_than_predicted() -> None:
    before = explain(H200, *EXTENTS)
    cutwheel.load_tuning(table(measured(before, 5, us=1000)))
    first, *rest = explain(H200, *EXTENTS)["plans"]
    assert (first["row"], first["predicted_us"]) == (before["plans"][5]["row"], 1000)
    assert min(plan["predicted_us"] for plan in rest) == pytest.approx(1150)


def test_splits_are_chosen_too() -> None:
    before = explain(H200, 64, 2112, 7168)
    rank, wanted = next((i, p) for i, p in enumerate(before["plans"]) if p["splits"] == 8)
    cutwheel.load_tuning(table(measured(before, rank, us=1.0)))
    plan = chosen(H200, 64, 2112, 7168)
    assert (plan["row"], plan["splits"], plan["reduce"]) == (
        wanted["row"],
        8,
        wanted["reduce"],
    )


def test_clearing_restores_the_cost_model() -> None:
    before = explain(H200, *EXTENTS)
    cutwheel.load_tuning(table(measured(before, 5)))
    cutwheel.clear_tuning()
    assert explain(H200, *EXTENTS) == before


def test_a_neighbour_corrects_predictions_and_the_correction_fades() -> None:
    before = explain(H200, *EXTENTS)
    row, predicted = before["plans"][1]["row"], before["plans"][1]["predicted_us"]
    # Half as long as predicted: with the neighbour's whole correction, half of the prediction here.
    cutwheel.load_tuning(table(measured(before, 1, us=predicted / 2)))
    last = 0.5
    for m in (4097, 4400, 4900, 5700):
        answer = explain(H200, m, 4096, 4096)
        assert answer["choice"] == "tuned (near 4096x4096x4096)"
        plan = next(p for p in answer["plans"] if p["row"] == row)
        cutwheel.clear_tuning()
        alone = next(p for p in explain(H200, m, 4096, 4096)["plans"] if p["row"] == row)
        cutwheel.load_tuning(table(measured(before, 1, us=predicted / 2)))
        ratio = plan["predicted_us"] / alone["predicted_us"]
        assert last <= ratio * 1.001
        assert ratio < 1
        last = ratio
        # How tiles are best visited depends on how many there are.
        assert (plan["raster"], plan["swizzle"]) == (alone["raster"], alone["swizzle"])
    assert explain(H200, 4095, 4096, 4096)["plans"][0]["row"] == row
    assert last > 0.9


@pytest.mark.parametrize(
    ("options", "extents"),
    [
        ({}, (8192, 8192, 28672)),
        ({"a": E4M3, "d": BF16, "epilogue": "scaled", "fast_accum": True}, (128, 24576, 1536)),
    ],
    ids=["bf16", "fp8"],
)
def test_a_neighbour_in_the_wheel_counts_for_nothing_where_the_model_is_fitted_to_such_products(
    options: dict[str, Any], extents: tuple[int, int, int]
) -> None:
    gpu, near = replace(H200, bandwidth=4917), (extents[0] - 1, *extents[1:])
    assert explain(gpu, *extents, **options)["choice"] == "tuned (exact)"
    assert explain(gpu, *near, **options)["choice"] == "cost model"
    # A table of the user's is of this GPU and these kernels.
    cutwheel.load_tuning(table(measured(explain(gpu, *extents, **options), 0), gpu=gpu_of(gpu)))
    assert "near" in explain(gpu, *near, **options)["choice"]


def test_what_a_neighbour_does_not_list_was_slower_there() -> None:
    before = explain(H200, *EXTENTS)
    best = before["plans"][0]
    # The favourite of the model is missing: it took at least 1.15 times as long as what is there.
    cutwheel.load_tuning(table(measured(before, 1, us=best["predicted_us"])))
    plans = explain(H200, 4095, 4096, 4096)["plans"]
    assert plans[0]["row"] == before["plans"][1]["row"]
    missing = next(p for p in plans if p["row"] == best["row"])
    assert missing["predicted_us"] == pytest.approx(1.15 * best["predicted_us"], rel=2e-3)


def test_tiles_that_do_not_fit_stay_the_models_affair() -> None:
    """A correction is of a kernel, not of the shape: waves are counted for the shape at hand."""
    before = explain(H200, *EXTENTS)
    cutwheel.load_tuning(table(measured(before, 0, us=before["plans"][0]["predicted_us"])))
    plain = [p["predicted_us"] for p in explain(H200, 5600, 4096, 4096)["plans"]][:3]
    cutwheel.clear_tuning()
    assert plain == pytest.approx(
        [p["predicted_us"] for p in explain(H200, 5600, 4096, 4096)["plans"]][:3], rel=0.1
    )


@pytest.mark.parametrize("extents", [(4096, 4096, 2048), (4096, 6000, 4096), (1024, 4096, 4096)])
def test_far_shapes_fall_through(extents: tuple[int, int, int]) -> None:
    cutwheel.load_tuning(table(measured(explain(H200, *EXTENTS), 5)))
    assert explain(H200, *extents)["choice"] == "cost model"


def test_the_nearest_of_several_counts_and_exact_comes_before_near() -> None:
    entries = [measured(explain(H200, m, 4096, 4096), 2, m=m) for m in (3500, 4096, 4500)]
    cutwheel.load_tuning(table(*entries))
    assert explain(H200, 4200, 4096, 4096)["choice"] == "tuned (near 4096x4096x4096)"
    assert explain(H200, 4400, 4096, 4096)["choice"] == "tuned (near 4500x4096x4096)"
    assert explain(H200, 3500, 4096, 4096)["choice"] == "tuned (exact)"


OTHERS: list[dict[str, Any]] = [
    {"addend": VECTOR},
    {"epilogue": "bias_gelu"},
    {"d": F32},
    {"batch": 2},
    {"layout_a": COLUMN},
    {"layout_b": ROW},
    {"extents_aligned": False},
    {"unaligned": "d"},
    {"grouping": ROWS, "groups": 8},
    {"grouping": K, "groups": 8, "layout_a": COLUMN, "layout_b": ROW},
    {"direction": WGRAD, "taps": 9},
    {"a": E4M3, "d": BF16, "epilogue": "scaled"},
]


@pytest.mark.parametrize("other", OTHERS, ids=str)
def test_a_request_that_differs_in_anything_else_falls_through(other: dict[str, Any]) -> None:
    cutwheel.load_tuning(table(measured(explain(H200, *EXTENTS), 5)))
    answer = explain(H200, *EXTENTS, **other)
    assert answer["plans"]
    assert answer["choice"].startswith("cost model")


def test_operands_that_no_gemm_has_are_refused() -> None:
    document = table(measured(explain(H200, *EXTENTS), 0))
    document["entries"][0]["request"]["unaligned"] = "ax"
    with pytest.raises(ValueError, match=r"unaligned is 'ax'; expected letters of a, b and d"):
        cutwheel.load_tuning(document)


@pytest.mark.parametrize("other", OTHERS, ids=str)
def test_each_kind_of_request_has_entries_of_its_own(other: dict[str, Any]) -> None:
    before = explain(H200, *EXTENTS, **other)
    rank = len(before["plans"]) - 1
    cutwheel.load_tuning(table(measured(before, rank, us=0.5)))
    after = explain(H200, *EXTENTS, **other)
    assert after["choice"] == "tuned (exact)"
    assert after["plans"][0]["row"] == before["plans"][rank]["row"]
    assert explain(H200, *EXTENTS)["choice"] == "cost model"


def test_entries_of_all_kinds_beside_each_other_are_told_apart() -> None:
    kinds: list[dict[str, Any]] = [
        *({}, *OTHERS),
        *(
            {"a": E4M3, "d": BF16, "epilogue": "block_bias", "scales": scales}
            for scales in (A1X128_B128X128, A1X128_B1X128)
        ),
    ]
    answers = [explain(H200, *EXTENTS, **kind) for kind in kinds]
    entries = [measured(a, len(a["plans"]) - 1, us=0.5) for a in answers]
    for some in (entries, entries[::-1]):
        cutwheel.load_tuning(table(*some))
        for kind, answer in zip(kinds, answers, strict=True):
            after = explain(H200, *EXTENTS, **kind)
            assert after["choice"] == "tuned (exact)", kind
            assert after["plans"][0]["row"] == answer["plans"][-1]["row"]


@pytest.mark.parametrize(
    ("field", "request_options", "other_options"),
    [
        ("fast_accum", {"fast_accum": True}, {"fast_accum": False}),
        ("scales", {"scales": A1X128_B128X128}, {"scales": A1X128_B1X128}),
        ("b", {"b": E5M2}, {"b": E4M3}),
    ],
)
def test_scaled_requests_differ_in_their_own_fields(
    field: str, request_options: dict[str, Any], other_options: dict[str, Any]
) -> None:
    epilogue = "block_bias" if field == "scales" else "scaled"
    d = F32 if field == "b" else BF16
    common = {"a": E4M3, "d": d, "epilogue": epilogue}
    before = explain(H200, *EXTENTS, **common, **request_options)
    cutwheel.load_tuning(table(measured(before, 0)))
    assert explain(H200, *EXTENTS, **common, **request_options)["choice"] == "tuned (exact)"
    assert explain(H200, *EXTENTS, **common, **other_options)["choice"].startswith("cost model")


def test_groups_taps_and_step_are_part_of_the_kind() -> None:
    before = explain(H200, 512, 4096, 4096, grouping=ROWS, groups=8)
    conv = explain(H200, *EXTENTS, direction=FPROP, taps=9, step=4)
    cutwheel.load_tuning(table(measured(before, 0), measured(conv, 0)))
    assert "exact" in explain(H200, 512, 4096, 4096, grouping=ROWS, groups=8)["choice"]
    assert "tuned" not in explain(H200, 512, 4096, 4096, grouping=ROWS, groups=16)["choice"]
    assert "exact" in explain(H200, *EXTENTS, direction=FPROP, taps=9, step=4)["choice"]
    assert "tuned" not in explain(H200, *EXTENTS, direction=FPROP, taps=9, step=1)["choice"]
    assert "tuned" not in explain(H200, *EXTENTS, direction=FPROP, taps=3, step=4)["choice"]


def test_padded_filters_are_measured_apart() -> None:
    options = {"direction": FPROP, "taps": 9}
    padded = explain(H200, *EXTENTS, **options, padded_filter="taps")
    cutwheel.load_tuning(table(measured(padded, 0)))
    assert "exact" in explain(H200, *EXTENTS, **options, padded_filter="taps")["choice"]
    assert "tuned" not in explain(H200, *EXTENTS, **options, padded_filter="filters")["choice"]
    assert "tuned" not in explain(H200, *EXTENTS, **options)["choice"]


def test_a_plan_that_cannot_run_falls_through() -> None:
    """A kernel of the wheel that another GPU needs, and one that the environment excludes."""
    ampere = explain(A100, *EXTENTS)
    cutwheel.load_tuning(table(measured(ampere, 0)))
    assert explain(H200, *EXTENTS)["choice"] == "cost model"


def test_the_environment_restricts_tables(environment: Callable[..., None]) -> None:
    before = explain(H200, *EXTENTS)
    cutwheel.load_tuning(table(measured(before, 5)))
    environment(CUTWHEEL_KERNEL=before["plans"][2]["row"])
    answer = explain(H200, *EXTENTS)
    assert {plan["row"] for plan in answer["plans"]} == {before["plans"][2]["row"]}
    assert answer["choice"] == "cost model"


@pytest.mark.parametrize(
    ("change", "is_used"),
    [
        ({}, True),
        ({"memory_gb_per_s": H200.bandwidth * 1.04}, True),
        ({"memory_gb_per_s": 3352.0}, False),
        ({"sm_count": 114}, False),
        ({"cc": [9, 1]}, False),
        # Its own name says that it is this GPU, whatever bandwidth a driver tells.
        ({"name": "a GPU described by the caller", "memory_gb_per_s": 3352.0}, True),
    ],
    ids=str,
)
def test_a_table_serves_gpus_like_its_own(change: dict[str, Any], is_used: bool) -> None:
    entry = measured(explain(H200, *EXTENTS), 5)
    cutwheel.load_tuning(table(entry, gpu=gpu_of(H200) | change))
    assert explain(H200, *EXTENTS)["choice"].startswith("tuned") == is_used


def test_a_table_of_the_gpu_itself_comes_before_one_of_a_gpu_like_it() -> None:
    before = explain(H200, *EXTENTS)
    cutwheel.load_tuning(table(measured(before, 5)))
    own = gpu_of(H200, "a GPU described by the caller")
    cutwheel.load_tuning(table(measured(before, 3), gpu=own))
    assert chosen(H200, *EXTENTS)["row"] == before["plans"][3]["row"]


def test_a_later_table_of_the_same_gpu_replaces_the_first() -> None:
    before = explain(H200, *EXTENTS)
    cutwheel.load_tuning(table(measured(before, 5)))
    cutwheel.load_tuning(table(measured(before, 3)))
    assert chosen(H200, *EXTENTS)["row"] == before["plans"][3]["row"]
    cutwheel.load_tuning(table(gpu=gpu_of(A100, "another")))
    assert chosen(H200, *EXTENTS)["row"] == before["plans"][3]["row"]
