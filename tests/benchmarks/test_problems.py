"""What is measured by which options: neither torch nor a GPU is needed."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from benchmarks import cli, held_out, problems, shapes
from benchmarks.problems import Problem
from benchmarks.report import record
from benchmarks.shapes import Conv, Gemm, Grouped

TABLE = shapes.load()
DILATED = Conv(1, 5, 9, 8, 4, 3, 2, 1, 2, 2)


def parsed(*arguments: str) -> argparse.Namespace:
    return cli.parser().parse_args(list(arguments))


# --- shapes


def test_shapes_of_the_lists() -> None:
    everything = shapes.gemm_shapes(TABLE)
    assert Gemm(512, 4096, 14336) in everything
    assert everything[-2:] == [Gemm(1024, 1024, 1024), Gemm(2048, 2048, 2048)]
    assert len(set(everything)) == len(everything) == 13 * 9 + 4 - 2  # two squares are in both
    assert shapes.gemm_shapes(TABLE, square=[64]) == [Gemm(64, 64, 64)]
    assert shapes.gemm_shapes(TABLE, m=[3], nk=[(5, 7)]) == [Gemm(3, 5, 7)]
    assert len(shapes.gemm_shapes(TABLE, m=[3], square=[64])) == 14
    assert {shape.m for shape in shapes.gemm_shapes(TABLE, m=[3])} == {3}
    assert len(shapes.gemm_shapes(TABLE, quick=True)) == 17
    with pytest.raises(ValueError, match="at least 1"):
        shapes.gemm_shapes(TABLE, m=[0])
    layers = shapes.layer_shapes(TABLE)
    assert len(layers) == 5 * 13
    assert shapes.layer_shapes(TABLE, m=[3], nk=[(5, 7)]) == [Gemm(3, 5, 7)]
    assert len(shapes.layer_shapes(TABLE, quick=True)) == 4
    images = shapes.conv_shapes(TABLE)
    assert (len(images), len(shapes.conv_shapes(TABLE, quick=True))) == (19, 3)
    assert (images[0].p, images[0].q) == (112, 112)
    assert shapes.conv_shapes(TABLE, cases=[1]) == images[1:2]
    for wrong in ([2, 8, 0, 6, 16, 3, 3, 2, 1, 1], [2, 8, 2, 6, 16, 5, 3, 1, 1, 1]):
        with pytest.raises(ValueError, match="expected sizes of at least 1, and a result"):
            shapes.conv_shapes({"conv": {"cases": [wrong]}})
    assert len(shapes.grouped_shapes(TABLE, quick=True)) < len(shapes.grouped_shapes(TABLE))
    with pytest.raises(ValueError, match="at least 1"):
        shapes.grouped_shapes({"grouped": {"cases": [[8, 0, 16, 16]]}})


def test_where_torch_compile_is_asked_for() -> None:
    named = shapes.compiled_shapes(TABLE, None)
    assert named is not None
    assert named <= set(shapes.layer_shapes(TABLE))
    assert len(named) == 8
    assert shapes.compiled_shapes(TABLE, ["all"]) is None
    assert shapes.compiled_shapes(TABLE, ["none"]) == set()
    assert shapes.compiled_shapes(TABLE, ["1x2x3"]) == {Gemm(1, 2, 3)}
    with pytest.raises(ValueError, match="512x4096x14336"):
        shapes.compiled_shapes(TABLE, ["1x2"])


def test_shape_arithmetic() -> None:
    shape = Gemm(2, 3, 5)
    assert shape.flops == 60
    assert shape.min_bytes(2) == 2 * (10 + 15 + 6)
    assert shapes.extents("4096x14336", 2, "") == (4096, 14336)
    with pytest.raises(ValueError, match="4096x14336"):
        shapes.extents("4096", 2, "4096x14336")


def test_rows_of_groups() -> None:
    for shape in (*shapes.grouped_shapes(TABLE), Grouped(9, 200, 64, 48), Grouped(1, 200, 64, 48)):
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
        for problem in problems.of_section(name, parsed("all", "--held-out", "4")).all[::7]:
            fields = problem.fields()
            assert fields["group"] == problem.group
            assert fields["m"] >= 1
    images = shapes.conv_shapes(TABLE)
    first, *_, last = problems.conv_problems(images)
    assert str(first) == "fprop 64 x 3 x 224 x 224, 64 of 7 x 7, stride 2"
    assert str(last) == "resnet50 64 x 3 x 224 x 224"
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
    given = parsed("all")
    counts = {name: len(problems.of_section(name, given).all) for name in record.SECTIONS}
    assert counts == {
        "mm": 119,
        "addmm": 119,
        "fused": 325,
        "scaled": 499,
        "grouped": 120,
        "conv": 77,
        "host": 0,
    }

    def of(name: str, *arguments: str) -> list[Problem]:
        return problems.of_section(name, parsed(*arguments)).all

    assert len(of("conv", "conv", "--convs", "1", "--directions", "wgrad")) == 1
    few = of("grouped", "grouped", "--products", "forward", "--cases", "0", "6")
    assert [(p.group, p.variant) for p in few] == [("forward", s) for s in problems.SKEWS] * 2
    one = of("grouped", "grouped", "--products", "wgrad", "--skew", "skewed")
    assert {(p.group, p.variant) for p in one} == {("wgrad", "skewed")}
    assert len(of("mm_f16", "mm", "--square", "64", "--dtype", "f16")) == 1


def test_scaled_problems() -> None:
    products = shapes.gemm_shapes(TABLE)
    everything = problems.scaled_problems(TABLE, products, problems.RECIPES)
    groups = [problem.group for problem in everything]
    for group in ("fp8", "fp8_fast", "blockwise", "int8"):
        assert groups.count(group) == len(products)
    kinds = {problem.variant for problem in everything if problem.group == "quantize"}
    assert kinds == set(problems.QUANTIZE)
    assert all(p.shape.m % 128 == 0 for p in everything if p.variant == "blockwise_128x128")
    assert all(problem.shape.k % 128 == 0 for problem in everything)
    few = problems.scaled_problems(TABLE, products, ["rowwise"], ["fast"], limit=7)
    assert [problem.group for problem in few] == ["fp8_fast"] * 7
    assert {problem.variant for problem in few} == {"rowwise"}
    assert len({problem.shape.m for problem in few}) > 2


# --- shapes kept aside


def test_shapes_kept_aside_follow_from_their_seed() -> None:
    for draw in (held_out.products, held_out.groups, held_out.convolutions):
        found = draw(TABLE, 40, 7)
        assert found == draw(TABLE, 40, 7)
        assert found != draw(TABLE, 40, 8)
        assert found[:10] == draw(TABLE, 10, 7)
        assert len(set(found)) == 40


def test_shapes_kept_aside_are_those_of_models_and_of_no_list() -> None:
    products = held_out.products(TABLE, 400)
    known = {tuple(pair) for pair in TABLE["gemm"]["nk"]}
    assert not known & {(shape.n, shape.k) for shape in products}
    assert all(1 <= shape.m <= 16384 for shape in products)
    assert sum(shape.m <= 128 for shape in products) == pytest.approx(200, abs=40)  # log-uniform
    pair = [products[0].n, products[0].k]
    without = held_out.products(TABLE | {"gemm": {"nk": [pair]}}, 400)
    assert pair not in [[shape.n, shape.k] for shape in without]
    extents = [extent for shape in products for extent in (shape.n, shape.k)]
    assert all(extent % 8 == 0 and 8 <= extent < 32768 for extent in extents)
    assert 0.75 < sum(extent % 64 == 0 for extent in extents) / len(extents) < 0.95
    assert min(shape.m for shape in held_out.products(TABLE, 100, least_m=64)) >= 64
    experts = {shape[2:] for shape in held_out.groups(TABLE, 100)}
    assert not experts & {tuple(case[2:]) for case in TABLE["grouped"]["cases"]}
    for shape in held_out.convolutions(TABLE, 100):
        assert min(shape.p, shape.q) >= 1


def test_shapes_kept_aside_are_asked_for() -> None:
    given = parsed("all", "--held-out", "12", "--seed", "5")
    for name in record.SECTIONS[:-1]:
        found = problems.of_section(name, given)
        assert found.aside
        assert not problems.of_section(name, parsed("all")).aside
        assert not {str(problem) for problem in found.listed} & {str(p) for p in found.aside}
    aside = problems.of_section("mm", given).aside
    assert {problem.shape for problem in aside} == set(held_out.products(TABLE, 12, 5))
    only = parsed("fused", "--held-out", "--groups", "gated_silu")
    assert {p.group for p in problems.of_section("fused", only).aside} == {"gated_silu"}


# --- the command line


def test_sections_of_commands() -> None:
    assert cli.sections_of(parsed("all")) == list(record.SECTIONS)
    assert cli.sections_of(parsed("all", "--sections", "host", "mm")) == ["mm", "host"]
    assert cli.sections_of(parsed("mm")) == ["mm"]
    assert cli.sections_of(parsed("addmm", "--dtype", "tf32")) == ["addmm_tf32"]
    assert cli.sections_of(parsed("conv")) == ["conv"]


def test_parts_do_not_go_to_the_results() -> None:
    assert cli.part_of(parsed("all", "--held-out", "--no-compile")) == ""
    assert cli.output_path(parsed("all"), "NVIDIA H200") == record.FOLDER / "h200.json"
    for arguments, part in (
        (["mm", "--m", "64", "--nk", "4096x4096"], "--m, --nk"),
        (["scaled", "--recipes", "int8"], "--recipes"),
        (["grouped", "--cases", "0", "--quick"], "--quick, --cases"),
        (["conv", "--candidate", "torch"], "--candidate"),
        (["all", "--budget-seconds", "60"], "--budget-seconds"),
    ):
        given = parsed(*arguments)
        assert cli.part_of(given) == part
        assert record.FOLDER not in cli.output_path(given, "NVIDIA H200").parents
    given = parsed("mm", "--m", "64", "--out", "x/new.json")
    assert cli.output_path(given, "NVIDIA H200") == Path("x/new.json")
    assert cli.output_path(parsed("mm", "--out", "x"), "NVIDIA H200") == Path("x/h200.json")


def test_options() -> None:
    given = parsed("scaled")
    assert (given.recipes, given.accumulation, given.limit) == (None, None, None)
    given = parsed("scaled", "--recipes", "rowwise,int8", "blockwise")
    assert given.recipes == [["rowwise", "int8"], ["blockwise"]]
    with pytest.raises(argparse.ArgumentTypeError, match="mxfp8"):
        cli.recipes_argument("rowwise,mxfp8")
    given = parsed("fused", "--groups", "bias_gelu", "--compile", "none")
    assert (given.groups, given.compile) == (["bias_gelu"], ["none"])
    assert parsed("mm", "--nk", "4096x14336").nk == [(4096, 14336)]
    with pytest.raises(SystemExit):
        parsed("mm", "--nk", "4096")
