"""Problems that options select: no GPU is needed."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

pytest.importorskip("cutwheel", reason="needs the built package (make test builds it)")

from benchmarks import cli, problems
from benchmarks.problems import Problem
from benchmarks.report import record
from cutwheel.tuning import draw
from cutwheel.tuning.shapes import Conv, Gemm, Grouped, checked, listed

TABLE = problems.load()
DILATED = Conv(1, 5, 9, 8, 4, 3, 2, 1, 2, 2)


def parsed(*arguments: str) -> argparse.Namespace:
    return cli.parser().parse_args(list(arguments))


def of(name: str, *arguments: str) -> list[Problem]:
    return problems.of_section(name, parsed(*arguments)).all


# --- shapes


def test_shapes_of_the_lists() -> None:
    everything = listed(TABLE, Gemm)
    assert Gemm(512, 4096, 14336) in everything
    assert everything[-2:] == [Gemm(1024, 1024, 1024), Gemm(2048, 2048, 2048)]
    assert len(set(everything)) == len(everything) == 13 * 9 + 4 - 2  # two squares are in both
    assert len(listed(TABLE, Gemm, quick=True)) == 17
    with pytest.raises(ValueError, match="at least 1"):
        listed({"gemm": {"m": [0], "nk": [[5, 7]]}}, Gemm)
    assert len(problems.layers(TABLE)) == 5 * 13
    assert len(problems.layers(TABLE, quick=True)) == 4
    images = listed(TABLE, Conv)
    assert (len(images), len(listed(TABLE, Conv, quick=True))) == (19, 3)
    assert (images[0].p, images[0].q) == (112, 112)
    for wrong, reason in (
        ([2, 8, 0, 6, 16, 3, 3, 2, 1, 1], "at least 1"),
        ([2, 8, 2, 6, 16, 5, 3, 1, 1, 1], "the filter is larger than the padded image"),
        ([2, 8, 9, 6, 16, 5, 3, 1, -1, 1], "at least 1"),
    ):
        with pytest.raises(ValueError, match=reason):
            listed({"conv": {"cases": [wrong]}}, Conv)
    assert len(listed(TABLE, Grouped, quick=True)) < len(listed(TABLE, Grouped))
    assert checked(Conv, DILATED._replace(padding=0, dilation=1), "x").padding == 0


def test_where_torch_compile_is_asked_for() -> None:
    named = problems.compiled_shapes(TABLE, "fused")
    assert named <= set(problems.layers(TABLE))
    assert len(named) == 8
    named = problems.compiled_shapes(TABLE, "gemm")
    assert named <= set(listed(TABLE, Gemm))
    assert len(named) == 4


def test_shape_arithmetic() -> None:
    shape = Gemm(2, 3, 5)
    assert shape.flops == 60
    assert shape.min_bytes(2) == 2 * (10 + 15 + 6)


def test_rows_of_groups() -> None:
    for shape in (*listed(TABLE, Grouped), Grouped(9, 200, 64, 48), Grouped(1, 200, 64, 48)):
        for skew in problems.SKEWS:
            found = shape.sizes(skew)
            assert (len(found), sum(found)) == (shape.groups, shape.m)
            assert shape.ends(skew)[-1] == shape.m
            assert min(found) >= 0
        if shape.groups > 1:
            assert 0 in shape.sizes("skewed")
            assert max(shape.sizes("skewed")) >= 2 * shape.m / shape.groups or shape.groups < 5
            assert shape.sizes("skewed") == shape.sizes("skewed")
        if shape.m % shape.groups == 0:
            assert len(set(shape.sizes("uniform"))) == 1


# --- problems


def test_problems_say_what_they_are() -> None:
    for name in record.SECTIONS[:-1]:
        for problem in of(name, "all", "--drawn", "4")[::7]:
            fields = problem.fields()
            assert fields["group"] == problem.group
            assert fields["m"] >= 1
    first, *_, last = of("conv", "all")
    assert str(first) == "fprop 64 x 3 x 224 x 224, 64 of 7 x 7, stride 2"
    assert str(last).startswith("grouped_wgrad 1 x 896 x 14 x 14")
    first, *_, last = of("volumes", "all")
    assert str(first) == "volume_fprop 1 x 384 x 6 x 120 x 208, 384 of 3 x 3 x 3, zeros 0 + 0"
    assert str(last) == "transposed 32 x 128 x 64 x 64, 64 of 4 x 4, stride 2"
    assert last.shape.output == (32, 64, 128, 128)
    assert len(of("volumes", "volumes", "--quick", "--only", "^transposed")) == 2
    assert of("volumes", "all", "--shape", "8x8x8") == []
    first, *_, last = of("models", "all")
    assert str(first) == "resnet50 1 x 3 x 224 x 224"
    assert last.fields() == {"group": "vit_l", "input": [64, 3, 224, 224], "m": 64}
    assert [str(p.shape) for p in of("models", "models", "--only", "^llama ")] == [
        *("1 x 4096", "1 x 512", "64 x 1", "1 x 1")
    ]
    assert str(of("models", "all", "--quick")[0]) == "resnet50 64 x 3 x 224 x 224"
    assert of("models", "all", "--shape", "8x8x8") == []
    assert str(Problem("wgrad", DILATED)).endswith("stride 1, dilation 2")
    assert str(Problem("wgrad", Grouped(8, 512, 3, 4), "skewed")) == (
        "wgrad skewed 8 groups, 512 x 3 x 4"
    )
    assert str(Problem("quantize", Gemm(4, 0, 8), "rowwise")) == "quantize rowwise 4 x 8"
    assert Problem("quantize", Gemm(4, 0, 8), "rowwise").fields() == {
        "group": "quantize",
        "recipe": "rowwise",
        "m": 4,
        "n": 0,
        "k": 8,
    }


def test_problems_of_every_section() -> None:
    counts = {name: len(of(name, "all")) for name in record.SECTIONS}
    assert counts == {
        "mm": 119,
        "addmm": 119,
        "bmm": 32,
        "fused": 390,
        "scaled": 499,
        "grouped": 120,
        "conv": 151,
        "volumes": 51,
        "models": 26,
        "host": 0,
        "cold": 0,
    }
    (one,) = of("mm_f16", "mm", "--shape", "64x64x64", "--dtype", "f16")
    assert one == Problem("mm", Gemm(64, 64, 64))
    few = of("grouped", "all", "--shape", "8x512x64x32", "1x2x3", "--only", "^(forward|gated) skew")
    assert few == [Problem(g, Grouped(8, 512, 64, 32), "skewed") for g in ("forward", "gated")]
    assert {p.group for p in of("conv", "conv", "--only", "^[dw]grad .* of 1 x 1")} == {
        "dgrad",
        "wgrad",
    }
    assert {p.shape for p in of("fused", "all", "--shape", "3x5x7")} == {Gemm(3, 5, 7)}
    assert {p.group for p in of("scaled", "all", "--shape", "3x5x7")} == set(problems.SCALED)
    assert {p.group for p in of("conv", "all", "--shape", "x".join(map(str, DILATED)))} == set(
        problems.DIRECTIONS
    )
    in_groups = {
        is_depthwise: of("conv", "conv", "--shape", f"2x32x9x9x{k}x3x3x1x1x1x{groups}")
        for is_depthwise, k, groups in ((True, 32, 32), (False, 64, 4))
    }
    for is_depthwise, found in in_groups.items():
        assert tuple(p.group for p in found) == problems.IN_GROUPS[is_depthwise]
    with pytest.raises(ValueError, match="5 groups do not divide the channels and filters"):
        of("conv", "conv", "--shape", "2x32x9x9x32x3x3x1x1x1x5")
    with pytest.raises(ValueError, match="--shape 3xfivex7: expected MxNxK"):
        of("mm", "mm", "--shape", "3xfivex7")


def test_scaled_problems() -> None:
    everything = of("scaled", "all")
    groups = [problem.group for problem in everything]
    for group in problems.SCALED:
        assert groups.count(group) == len(listed(TABLE, Gemm))
    kinds = {problem.variant for problem in everything if problem.group == "quantize"}
    assert kinds == set(problems.QUANTIZE)
    assert all(p.shape.m % 128 == 0 for p in everything if p.variant == "blockwise_128x128")
    assert all(problem.shape.k % 128 == 0 for problem in everything)


def test_drawn_problems_are_asked_for() -> None:
    given = parsed("all", "--drawn", "12", "--seed", "5")
    for name in record.SECTIONS:
        if name in ("bmm", "volumes", "models", *record.OF_CALLS):
            continue  # lists alone
        found = problems.of_section(name, given)
        assert found.drawn
        assert not problems.of_section(name, parsed("all")).drawn
        by_group: dict[str, list[object]] = {}
        for problem in found.drawn:
            by_group.setdefault(problem.group, []).append(problem.shape)
        assert {len(shapes) for shapes in by_group.values()} == {12}, "each group has them all"
        if name != "mm":
            assert len({str(shapes) for shapes in by_group.values()}) == 1
    drawn = problems.of_section("mm", given).drawn
    layers = draw.drawn(TABLE, Gemm, 12, 5)
    shapes = {g: [p.shape for p in drawn if p.group == g] for g in ("mm", "dgrad", "wgrad")}
    assert shapes["mm"] == layers
    # y [M, N] = x [M, K] @ w.T; dx = dy @ w, dw = dy.T @ x
    assert shapes["dgrad"] == [Gemm(m, k, n) for m, n, k in layers]
    assert shapes["wgrad"] == [Gemm(n, k, m) for m, n, k in layers]
    only = parsed("fused", "--drawn", "--only", "^gated_silu")
    assert {p.group for p in problems.of_section("fused", only).drawn} == {"gated_silu"}
    grouped = problems.of_section("grouped", given).drawn
    assert {problem.variant for problem in grouped} == set(draw.SKEWS)


# --- the command line


def test_sections_of_commands() -> None:
    assert cli.sections_of(parsed("all")) == list(record.SECTIONS)
    assert cli.sections_of(parsed("all", "--sections", "host", "mm")) == ["mm", "host"]
    assert cli.sections_of(parsed("mm")) == ["mm"]
    assert cli.sections_of(parsed("addmm", "--dtype", "tf32")) == ["addmm_tf32"]
    assert cli.sections_of(parsed("conv")) == ["conv"]


def test_parts_do_not_go_to_the_results() -> None:
    assert cli.part_of(parsed("all", "--drawn", "--no-compile")) == ""
    assert cli.output_path(parsed("all"), "NVIDIA H200") == record.FOLDER / "h200.json"
    for arguments, part in (
        (["mm", "--shape", "64x4096x4096", "--only", "mm"], "--shape, --only"),
        (["grouped", "--quick"], "--quick"),
        (["conv", "--candidate", "torch"], "--candidate"),
        (["mm", "--batch-invariant"], "--batch-invariant"),
        (["all", "--budget-seconds", "60"], "--budget-seconds"),
        (["all", "--budget-seconds", "0"], "--budget-seconds"),
    ):
        given = parsed(*arguments)
        assert cli.part_of(given) == part
        assert record.FOLDER not in cli.output_path(given, "NVIDIA H200").parents
    given = parsed("mm", "--quick", "--out", "x/new.json")
    assert cli.output_path(given, "NVIDIA H200") == Path("x/new.json")
    assert cli.output_path(parsed("mm", "--out", "x"), "NVIDIA H200") == Path("x/h200.json")


def test_options() -> None:
    assert parsed("mm").drawn == 0
    assert parsed("mm", "--drawn").drawn == problems.DRAWN
    assert parsed("all", "--drawn", "40", "--seed", "7").seed == 7
    for wrong in (["mm", "--drawn", "few"], ["fused", "--dtype", "f16"], ["mm", "--only", "["]):
        with pytest.raises(SystemExit):
            parsed(*wrong)
