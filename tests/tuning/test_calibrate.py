"""The tool that fits the cost model: its mirror of the model, the fit, and the file it writes."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomllib
from selection import BF16, COLUMN, E4M3, F32, H200, ROW, explain

torch = pytest.importorskip("torch")
calibrate = pytest.importorskip("calibrate")
cutwheel = pytest.importorskip("cutwheel", reason="needs the built package (make test builds it)")

# What the library is asked about, whose L2 it takes for that of an H100.
GPU = {"sm_count": H200.sms, "l2_bytes": 50 << 20}

narrow = pytest.mark.skipif(
    bool(os.environ.get("CUTWHEEL_NARROW")),
    reason="the built package holds a selection of the declared kernels",
)


def kernels() -> dict[str, Mapping[str, Any]]:
    path = Path(cutwheel.__file__).parent / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    return {kernel["name"]: kernel for kernel in manifest["kernels"]}


def request(m: int, n: int, k: int, **changes: Any) -> dict[str, Any]:
    plain = {"op": "gemm", "a": "bf16", "d": "bf16", "layouts": "tn", "addend": "none"}
    return plain | {"m": m, "n": n, "k": k, "batch": 1, "direction": "none"} | changes


@narrow
@pytest.mark.parametrize(
    ("asked", "options"),
    [
        (request(777, 5120, 4304), {}),
        (request(3000, 4096, 4096), {}),
        (request(16, 2112, 7168), {}),
        (request(4000, 512, 64), {}),
        (request(4096, 14336, 128, layouts="nt"), {"layout_a": COLUMN, "layout_b": ROW}),
        (request(30000, 2048, 40, layouts="nt"), {"layout_a": COLUMN, "layout_b": ROW}),
        (request(300, 4096, 1024, layouts="tt"), {"layout_b": ROW}),
        (request(300, 4096, 1000, layouts="nt"), {"layout_a": COLUMN, "layout_b": ROW}),
        (request(900, 3072, 2048, addend="other", epilogue="bias_gelu"), {"epilogue": "bias_gelu"}),
        (
            request(900, 3072, 2048, addend="other", epilogue="gated_silu"),
            {"epilogue": "gated_silu"},
        ),
        (request(100, 512, 8192), {}),  # clusters that share K among them
        (request(512, 2112, 7168, addend="row"), {"addend": "row"}),  # a bias, also read as C
        (
            request(900, 3072, 512, addend="other", epilogue="bias_residual"),
            {"epilogue": "bias_residual"},
        ),
        # In one wave, of more tiles than there are TPCs and of fewer.
        *((request(m, 5120, 8192), {}) for m in (1, 24, 100)),
        (request(1, 1024, 8192), {}),
        # Split, with the epilogue behind the sums.
        *(
            (request(481, 2048, 14336, addend="other", epilogue=name), {"epilogue": name})
            for name in ("bias_gelu", "gated_silu", "bias_residual")
        ),
        (request(900, 3072, 2048, a="e4m3", addend="other"), {"epilogue": "scaled"}),
    ],
)
def test_it_predicts_what_the_library_predicts(
    asked: dict[str, Any], options: dict[str, Any]
) -> None:
    document = tomllib.loads(calibrate.FIGURES.read_text(encoding="utf-8"))
    figures = calibrate.rows_of(document)
    known = kernels()
    dtypes = {"a": E4M3, "d": BF16} if asked["a"] == "e4m3" else {}
    extents = asked["m"], asked["n"], asked["k"]
    plans = explain(H200, *extents, **options, **dtypes)["plans"]
    compared = 0
    for plan in plans:
        kernel = known[plan["row"]]
        key = calibrate.key_of(kernel)
        # Kernels for a matrix C, which are spares here, are not mirrored.
        us = calibrate.figures_of(key, figures)
        if us is None or kernel["epilogue"] == "linear_combination":
            continue
        terms = calibrate.terms_of(kernel, asked, plan["splits"], GPU)
        problem = calibrate.Problem("any", ((key, terms, 1.0),), H200.sms, H200.bandwidth)
        start = torch.tensor([us], dtype=torch.float64)
        model = calibrate.Model(start, document["limits"]["dense"], fits_limits=True)
        predicted = model(calibrate.Plans([problem], [key])).item()
        assert predicted == pytest.approx(plan["predicted_us"], rel=0.01), plan["row"]
        compared += 1
    assert compared > 4


@narrow
@pytest.mark.parametrize(
    ("grouping", "extents", "layouts"),
    [
        ("rows", (100, 4096, 1024), {}),
        ("rows", (3000, 2816, 2048), {"layout_b": ROW}),
        ("k", (4096, 2048, 300), {"layout_a": COLUMN, "layout_b": ROW}),
    ],
)
@pytest.mark.parametrize("groups", [8, 128])
def test_it_predicts_grouped_gemms_as_the_library(
    grouping: str, extents: tuple[int, int, int], layouts: dict[str, Any], groups: int
) -> None:
    document = tomllib.loads(calibrate.FIGURES.read_text(encoding="utf-8"))
    figures = calibrate.rows_of(document)
    asked = request(*extents, batch=groups, layouts="nt" if grouping == "k" else "tn")
    plans = explain(H200, *extents, grouping=grouping, groups=groups, **layouts)["plans"]
    assert {plan["row"].split("_")[-2] for plan in plans} == {grouping}
    for plan in plans:
        kernel = kernels()[plan["row"]]
        key = calibrate.key_of(kernel)
        terms = calibrate.terms_of(kernel, asked, 1, GPU)
        problem = calibrate.Problem("any", ((key, terms, 1.0),), H200.sms, H200.bandwidth)
        start = torch.tensor([figures[key]], dtype=torch.float64)
        model = calibrate.Model(start, document["limits"]["grouped"], fits_limits=False)
        predicted = model(calibrate.Plans([problem], [key])).item()
        assert predicted == pytest.approx(plan["predicted_us"], rel=0.01), plan["row"]


@narrow
@pytest.mark.parametrize("channels", [256, 232, 24, 2560])
@pytest.mark.parametrize(
    ("direction", "step"), [("fprop", 1), ("fprop", 4), ("dgrad", 1), ("dgrad", 4), ("wgrad", 4)]
)
@pytest.mark.parametrize("padded", ["none", "taps", "filters"])
@pytest.mark.parametrize("epilogue", ["plain", "bias_residual_relu"])
def test_it_predicts_convolutions_as_the_library(
    direction: str, step: int, channels: int, padded: str, epilogue: str
) -> None:
    if epilogue != "plain" and direction != "fprop":
        pytest.skip("gradients have no residual")
    if padded not in {"fprop": ("none", "taps", "filters"), "dgrad": ("none", "taps")}.get(
        direction, ("none",)
    ):
        pytest.skip(f"no kernel of {direction} reads such a filter")
    document = tomllib.loads(calibrate.FIGURES.read_text(encoding="utf-8"))
    figures, known = calibrate.rows_of(document), kernels()
    # The float32 sums of 640 filters of 2560 channels are more than L2.
    filters, taps = 640 if channels == 2560 else 192, 9
    pixels, positions = 4 * 56 * 56, 4 * 56 * 56 // step
    extents = {
        "fprop": (positions, filters, taps * channels),
        "dgrad": (pixels, channels, taps * filters),
        "wgrad": (filters, taps * channels, positions),
    }[direction]
    rest = {"direction": direction, "taps": taps, "step": step, "padded_filter": padded}
    rest["epilogue"] = epilogue
    asked = request(*extents, op="conv2d", **rest)
    # Rows of 56 pixels, three taps each.
    shared = (4 * 56 * 58, 3) if step == 1 else (0, 0)
    plans = explain(H200, *extents, **rest, shared_pixels=shared)["plans"]
    compared = set()
    for plan in plans:
        kernel = known[plan["row"]]
        if kernel["family"] not in calibrate.CONV:
            continue
        key = calibrate.key_of(kernel, step)
        terms = calibrate.conv_terms_of(kernel, asked, plan["splits"], GPU, shared)
        problem = calibrate.Problem("any", ((key, terms, 1.0),), H200.sms, H200.bandwidth)
        start = torch.tensor([figures[key]], dtype=torch.float64)
        model = calibrate.Model(start, document["limits"]["conv"], fits_limits=True)
        predicted = model(calibrate.Plans([problem], [key])).item()
        assert predicted == pytest.approx(plan["predicted_us"], rel=0.01), plan["row"]
        compared.add((kernel["family"], kernel["d"] == F32))
    kinds = {"fprop": 2 if padded == "none" else 1, "dgrad": 1, "wgrad": 3}[direction]
    assert len(compared) == kinds + (step == 1 and padded != "filters")


def test_it_reads_shared_pixels_off_a_job() -> None:
    """Layers of 56x58 pixels, 3x5, dilated by two in the second, with and without padding."""
    of = calibrate.shared_pixels_of
    assert of("conv2d:bf16:fprop 2x64x56x58x32x3x5x1x2x1x1") == (2 * 58 * (58 + 4), 5)
    assert of("conv2d:bf16:dgrad 2x64x56x58x32x3x5x1x2x1x1") == (2 * 56 * (58 + 4), 5)
    assert of("conv2d:bf16:fprop 2x64x56x58x32x3x5x1x0x2") == (2 * 52 * 58, 5)


@narrow
def test_every_row_of_figures_is_of_a_kernel() -> None:
    document = tomllib.loads(calibrate.FIGURES.read_text(encoding="utf-8"))
    others = "sm90_blockwise", "sm90_unaligned", calibrate.GROUPED
    families = (*calibrate.DENSE, *calibrate.CONV, *others)
    there = {
        calibrate.key_of(kernel, step)
        for kernel in kernels().values()
        for step in (1, 4)
        if kernel["family"] in families
    }
    rows = calibrate.rows_of(document).keys()
    # Figures of 16 bits stand in for layouts and results that have none of their own.
    there |= {("wide", *key[1:]) for key in there - rows if key[0].startswith("wide_")}
    assert rows <= there


def test_each_problem_counts_with_its_own_gpu() -> None:
    document = tomllib.loads(calibrate.FIGURES.read_text(encoding="utf-8"))
    figures = {k: us for k, us in calibrate.rows_of(document).items() if k[0] == "wide" and k[4]}
    (faster,) = made_up(1, figures)
    slower = replace(faster, sm_count=114, gb_per_s=faster.gb_per_s / 2)
    keys = list(figures)
    start = torch.tensor([figures[key] for key in keys], dtype=torch.float64)
    model = calibrate.Model(start, document["limits"]["dense"], fits_limits=False)
    alone = [model(calibrate.Plans([problem], keys)) for problem in (faster, slower)]
    assert not torch.equal(*alone)
    # Vectorised arithmetic may differ in the last bit by where an element stands.
    together = model(calibrate.Plans([faster, slower], keys))
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-14, atol=0)


@narrow
def test_products_of_copies_are_left_out(tmp_path: Path) -> None:
    """The times of these include the copy of A, which no figure stands for. Layouts of
    convolutions mean nothing."""
    name = "gemm_sm90a_bf16_bf16_f32_bf16_128x128x64_ttt_persistent_plain"
    gpu = GPU | {"name": "a GPU", "memory_gb_per_s": 3352.0}
    journal = tmp_path / "journal.jsonl"
    for family, count in (("mm:bf16:wgrad", 0), ("mm:bf16:dgrad", 1)):
        record = {"family": family, "request": request(300, 4096, 1024, layouts="tt")}
        record["candidates"] = [[name, "along_m", 1, 1, 20.0, 21.0, "ok", ""]]
        journal.write_text(json.dumps({"gpu": gpu}) + "\n" + json.dumps(record) + "\n")
        assert len(calibrate.read(journal, kernels())) == count
    conv = request(192, 2304, 3136, op="conv2d", direction="wgrad", taps=9, step=1, layouts="tt")
    name = "conv2d_sm90a_bf16_bf16_f32_bf16_128x128x64_wgrad_persistent_plain"
    record = {"family": "conv2d:bf16:wgrad", "request": conv}
    record["candidates"] = [[name, "along_m", 1, 1, 20.0, 21.0, "ok", ""]]
    journal.write_text(json.dumps({"gpu": gpu}) + "\n" + json.dumps(record) + "\n")
    assert len(calibrate.read(journal, kernels())) == 1


def made_up(count: int, figures: dict[Any, list[float]]) -> list[Any]:
    """Problems whose times follow the model with these figures."""
    document = tomllib.loads(calibrate.FIGURES.read_text(encoding="utf-8"))
    keys = list(figures)
    generator = torch.Generator().manual_seed(5)
    found = []
    for _ in range(count):
        m, n, k = (int(2 ** (6 + 7 * x)) for x in torch.rand(3, generator=generator).tolist())
        plans = []
        for key in keys:
            _, tile_m, tile_n, _, _, schedule, swap, *_ = key
            kernel = {
                "op": "gemm",
                "family": "sm90_persistent",
                "d": "bf16",
                "a": "bf16",
                "epilogue": "plain",
                "tile": [tile_m, tile_n, 64],
                "cluster": [1, 1, 1],
                "schedule": schedule,
                "swap_ab": swap,
            }
            plans.append((key, calibrate.terms_of(kernel, request(m, n, k), 1, GPU), 1.0))
        found.append(calibrate.Problem("made up", tuple(plans), 132, 3352.0))
    start = torch.tensor([figures[key] for key in keys], dtype=torch.float64)
    model = calibrate.Model(start, document["limits"]["dense"], fits_limits=False)
    us = iter(model(calibrate.Plans(found, keys)).tolist())
    return [
        calibrate.Problem(
            p.family, tuple((key, terms, next(us)) for key, terms, _ in p.plans), 132, 3352.0
        )
        for p in found
    ]


def test_it_finds_figures_that_choose_the_fastest() -> None:
    document = tomllib.loads(calibrate.FIGURES.read_text(encoding="utf-8"))
    right = {
        key: us
        for key, us in calibrate.rows_of(document).items()
        if key[0] == "wide" and key[3] == 128 and key[4] and key[7] == 1
    }
    assert len(right) > 10
    problems, keys = made_up(60, right), list(right)
    plans = calibrate.Plans(problems, keys)
    # Wide tiles seem three times as fast as they are.
    wrong = [[us[0] / (3 if key[2] > 128 else 1), *us[1:]] for key, us in right.items()]
    start = torch.tensor(wrong, dtype=torch.float64)
    model = calibrate.Model(start, document["limits"]["dense"], fits_limits=False)
    before = calibrate.excess_of(model, plans).log().mean().exp().item()
    calibrate.fit(model, plans, 200)
    after = calibrate.excess_of(model, plans).log().mean().exp().item()
    assert before > 1.05
    assert 1 <= after < 1 + (before - 1) / 4


def test_tiles_that_are_not_fitted_keep_their_figures() -> None:
    document = tomllib.loads(calibrate.FIGURES.read_text(encoding="utf-8"))
    right = {k: us for k, us in calibrate.rows_of(document).items() if k[0] == "wide" and k[4]}
    problems, keys = made_up(20, right), list(right)
    start = torch.tensor([[2 * us[0], *us[1:]] for us in right.values()], dtype=torch.float64)
    is_small = torch.tensor([float(key[1] * key[2] <= 8192) for key in keys], dtype=torch.float64)
    given = document["limits"]["dense"]
    model = calibrate.Model(start, given, fits_limits=False, is_fitted=is_small)
    before = model.values().detach()
    calibrate.fit(model, calibrate.Plans(problems, keys), 20)
    moved = (model.values().detach() != before).any(1)
    assert torch.equal(moved, is_small.bool())
    assert 0 < moved.sum() < len(keys)


def test_layouts_without_figures_have_those_of_all() -> None:
    key = ("wide", 128, 256, 128, True, "persistent", False, 1)
    own = ("wide_ntt", *key[1:])
    known = {key: [1.0, 2.0, 3.0]}
    assert calibrate.figures_of(own, known) == known[key]
    assert calibrate.figures_of(own, known | {own: [4.0, 5.0, 6.0]}) == [4.0, 5.0, 6.0]
    assert calibrate.figures_of(("fp8", *key[1:]), known) is None


def test_no_step_is_faster_than_tensor_cores() -> None:
    limits = tomllib.loads(calibrate.FIGURES.read_text(encoding="utf-8"))["limits"]["dense"]
    figures = torch.tensor([[0.1, 1.0, 2.0], [0.5, 1.0, 2.0]], dtype=torch.float64)
    least = torch.tensor([0.2, 0.2], dtype=torch.float64)
    model = calibrate.Model(figures, limits, fits_limits=False, least=least)
    expected = torch.tensor([[0.2, 1.0, 2.0], [0.5, 1.0, 2.0]], dtype=torch.float64)
    torch.testing.assert_close(model.values().detach(), expected)


def test_what_it_writes_is_read_again() -> None:
    text = calibrate.FIGURES.read_text(encoding="utf-8")
    document = tomllib.loads(text)
    rows = calibrate.rows_of(document)
    wide = {key: [2 * x for x in us] for key, us in rows.items() if key[0] == "wide"}
    limits = document["limits"]["dense"]
    changed = {"dram": 0.5, "split_lines": [1.0, 2.0, 3.0]}
    again = tomllib.loads(calibrate.rewritten(text, wide, "dense", changed))
    expected = rows | wide
    found = calibrate.rows_of(again)
    assert found.keys() == expected.keys()
    for key, us in found.items():
        assert all(math.isclose(x, y, abs_tol=1e-3) for x, y in zip(us, expected[key], strict=True))
    assert again["limits"]["dense"] == limits | changed
    others = {name: values for name, values in document["limits"].items() if name != "dense"}
    assert again["limits"] == others | {"dense": limits | changed}
