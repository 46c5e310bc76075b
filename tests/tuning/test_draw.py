"""Problems drawn at random: the same from a seed, of real layers, with any number of rows."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cutwheel", reason="needs the built package (make test builds it)")

from cutwheel.tuning import draw, shapes
from cutwheel.tuning.shapes import Conv, Gemm, Grouped, Kind

DOCUMENT = shapes.read_toml(Path(__file__).parents[2] / "benchmarks" / "shapes.toml")


def drawn(kind: Kind, count: int, seed: int) -> list[Any]:
    return draw.drawn(DOCUMENT, kind, count, seed)


def layers(name: str) -> set[tuple[int, ...]]:
    return {tuple(layer) for some in DOCUMENT["drawn"][name].values() for layer in some}


@pytest.mark.parametrize("kind", [Gemm, Grouped, Conv])
def test_a_seed_draws_the_same_problems(kind: Kind) -> None:
    found = drawn(kind, 40, 7)
    assert found == drawn(kind, 40, 7)
    assert found != drawn(kind, 40, 8)
    assert found[:10] == drawn(kind, 10, 7)
    assert len({str(problem) for problem in found}) > 35


def test_gemms_are_weights_or_shards_of_them() -> None:
    found = drawn(Gemm, 2000, 1)
    weights = layers("gemm")
    shards = {(n // s, k) for n, k in weights for s in (2, 4, 8) if n % (8 * s) == 0}
    shards |= {(n, k // s) for n, k in weights for s in (2, 4, 8) if k % (16 * s) == 0}
    counts = Counter((shape.n, shape.k) for shape in found)
    assert set(counts) <= weights | shards
    assert set(counts) - weights, "tensor parallelism cuts some"
    # A weight has one GPU to itself in half of the draws, and more where it cannot be cut.
    assert 0.5 < sum(counts[weight] for weight in weights) / len(found) < 0.7
    assert min(min(shape.n, shape.k) for shape in found) >= 256
    assert max(counts.values()) < 5 * len(found) / len(weights), "all weights are as likely"


def test_rows_are_log_uniform_and_of_any_form() -> None:
    rows = [shape.m for shape in drawn(Gemm, 4000, 2)]
    assert min(rows) == 1
    assert 8192 < max(rows) <= 16384
    assert sum(m <= 128 for m in rows) / len(rows) == pytest.approx(0.5, abs=0.05)
    large = [m for m in rows if m > 512]
    powers = sum(m & (m - 1) == 0 for m in large) / len(large)
    sixteens = sum(m % 16 == 0 for m in large) / len(large)
    assert powers == pytest.approx(0.2, abs=0.05)
    # Powers of two, those that are rounded to sixteen, and one in sixteen of the rest.
    assert sixteens == pytest.approx(0.4 + 0.6 / 16, abs=0.06)


def test_groups_have_all_rows_however_they_are_spread() -> None:
    found = drawn(Grouped, 300, 3)
    assert {skew for _, skew in found} == set(draw.SKEWS)
    experts = layers("grouped")
    for shape, skew in found:
        assert (shape.groups, shape.n, shape.k) in experts
        sizes = shape.sizes(skew)
        assert (len(sizes), sum(sizes)) == (shape.groups, shape.m)
        assert min(sizes) >= 0
        assert shape.groups <= shape.m <= 32768
    even, random, zipf = (sorted(Grouped(64, 8192, 8, 8).sizes(skew)) for skew in draw.SKEWS)
    assert set(even) == {128}
    assert 200 < random[-1] < 400
    assert zipf[-1] > 1500
    assert zipf[0] > 0


def test_convolutions_have_results_and_fit_memory() -> None:
    found = drawn(Conv, 1000, 4)
    kinds = {layer[:6] for layer in layers("conv")}
    for shape in found:
        assert min(shape.p, shape.q) >= 1
        assert shape.n * shape.c * shape.h * shape.w <= draw.MOST_ELEMENTS
        kind = shape.c, shape.k, shape.r, shape.stride, shape.padding, shape.dilation
        assert kind in kinds
        assert shape.r == shape.s
    assert any(shape.w > shape.h for shape in found)
    assert len({shape.n for shape in found}) > 50
    assert {kind[0] for kind in kinds} == {shape.c for shape in found}
