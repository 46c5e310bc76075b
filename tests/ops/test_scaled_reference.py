"""The reference of the scaled tests itself, on the CPU: it has to be right, and strict."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from gemm_cases import BRAIN, HALF, SINGLE
from quantize_cases import KINDS, compare, kind_id, random_input
from scaled_cases import (
    BLOCKWISE,
    FP8_PAIRS,
    MS,
    NKS,
    SPREAD,
    Call,
    cases,
    integers,
    laid,
    pairwise,
    random_values,
)
from scaled_reference import (
    BY_128,
    BY_128_128,
    E4M3,
    E5M2,
    INT8,
    ROW,
    TENSOR,
    Quantised,
    ScaledProblem,
    padded,
    per_element,
    torch_quantize,
    torch_scaled_mm,
)

EVERYWHERE = [*((E4M3, pair) for pair in (*SPREAD, *BLOCKWISE)), *((INT8, pair) for pair in SPREAD)]


# ---- values
def test_scales_belong_to_their_groups() -> None:
    x = torch.arange(6.0)
    assert per_element(x[:1], TENSOR, 2, 3).tolist() == [[0, 0, 0], [0, 0, 0]]
    assert per_element(x[:2, None], ROW, 2, 3).tolist() == [[0, 0, 0], [1, 1, 1]]
    found = per_element(x[:4].view(2, 2), BY_128, 2, 130)
    assert found[:, [0, 127, 128, 129]].tolist() == [[0, 0, 1, 1], [2, 2, 3, 3]]
    found = per_element(x.view(2, 3), BY_128_128, 129, 257)
    assert found[[0, 127, 128]][:, [0, 128, 256]].tolist() == [[0, 1, 2], [0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("kind", KINDS, ids=kind_id)
def test_what_is_quantised_is_near(kind: tuple[str, torch.dtype, bool]) -> None:
    recipe, dtype, symmetric = kind
    x = random_input(140, 300, SINGLE, "cpu")
    found = torch_quantize(x, recipe, dtype, symmetric)
    relative = (found.exact() - x).norm() / x.norm()
    assert relative < {E4M3: 0.04, E5M2: 0.08, INT8: 0.02}[dtype]
    compare(found, x, found, symmetric)


def test_known_values_of_quantize() -> None:
    x = torch.tensor([[0.0, 448.0, -224.0, 1.0], [0.0, 0.0, 0.0, 0.0], [1.0, math.inf, 2.0, 3.0]])
    found = torch_quantize(x, ROW, E4M3)
    assert found.scales[:2, 0].tolist() == [1, 1]
    assert found.scales[2].isnan().all()
    assert found.values[:2].float().tolist() == x[:2].tolist()
    found = torch_quantize(torch.tensor([[-1.0, 0.0, 4.1]]), ROW, INT8, symmetric=False)
    assert found.scales.item() == pytest.approx(5.1 / 255)
    assert found.azp is not None
    assert (found.azp.item(), found.values.tolist()) == (-78, [[-128, -78, 127]])
    zeros = torch_quantize(torch.zeros(2, 3), TENSOR, INT8, symmetric=False)
    assert zeros.azp is not None
    assert (zeros.scales.tolist(), zeros.azp.tolist()) == ([1], [0])


@pytest.mark.parametrize("kind", KINDS, ids=kind_id)
def test_wrong_quantisation_is_found(kind: tuple[str, torch.dtype, bool]) -> None:
    recipe, dtype, symmetric = kind
    x = random_input(140, 300, SINGLE, "cpu")
    right = torch_quantize(x, recipe, dtype, symmetric)
    one_off = right.values.clone()
    raw = one_off.view(torch.uint8)
    raw[139, 299] = raw[139, 299] ^ 1  # the next value
    late = right.values.clone()
    late[100:] = 0
    for values in (one_off, late):
        with pytest.raises(AssertionError, match="values are wrong"):
            compare(replace(right, values=values), x, right, symmetric)
    scales = right.scales.clone()
    scales.view(-1)[-1] *= 1 + 2.0**-19
    with pytest.raises(AssertionError, match="scales"):
        compare(replace(right, scales=scales), x, right, symmetric)
    scales.view(-1)[-1] = math.nan
    with pytest.raises(AssertionError, match="NaN"):
        compare(replace(right, scales=scales), x, right, symmetric)


# ---- products
def test_zero_points_shift_the_values() -> None:
    a = Quantised(
        torch.tensor([[3, 4]], dtype=INT8), torch.ones(1), TENSOR, torch.ones(1, dtype=torch.int32)
    )
    b = Quantised(torch.tensor([[10, 100]], dtype=INT8), torch.full((1,), 0.5), TENSOR)
    problem = ScaledProblem.of_operands(a, b, torch.tensor([1.0]))
    assert problem.value.item() == (2 * 10 + 3 * 100) * 0.5 + 1


class Kernel:
    """Stands in for the package: rounds float64 once, after `spoil` has had it."""

    def __init__(self, call: Call, spoil: Any = None) -> None:
        self.call, self.spoil = call, spoil

    def scaled_mm(self, *_: object, output_dtype: torch.dtype, **__: object) -> torch.Tensor:
        value = ScaledProblem.of_operands(self.call.a, self.call.b, self.call.bias).value.float()
        return (self.spoil(value) if self.spoil else value).to(output_dtype).contiguous()


@pytest.mark.parametrize(("dtype", "recipes"), EVERYWHERE, ids=str)
def test_right_results_pass(dtype: torch.dtype, recipes: tuple[str, str]) -> None:
    for (m, n, k), d, bias in itertools.product(
        ((67, 132, 300), (1, 1, 1), (5, 8, 0), (0, 8, 8)), (BRAIN, HALF, SINGLE), (None, "d", "f32")
    ):
        for azp in (None, "tensor", "row") if dtype == INT8 else (None,):
            call = Call.random(m, n, k, "cpu", (dtype, dtype), recipes, d, bias, azp)
            call.check(Kernel(call))


def drop_row(d: torch.Tensor) -> torch.Tensor:
    d[-1] = 0
    return d


def shift(d: torch.Tensor) -> torch.Tensor:
    return d.roll(1, -1)


def one_nan(d: torch.Tensor) -> torch.Tensor:
    d[3, 5] = math.nan
    return d


def one_wrong(d: torch.Tensor) -> torch.Tensor:
    d[3, 5] += d.abs().max()
    return d


def biased(d: torch.Tensor) -> torch.Tensor:
    return d * 1.03


@pytest.mark.parametrize("spoil", [drop_row, shift, one_nan, one_wrong, biased])
@pytest.mark.parametrize(("dtype", "recipes"), EVERYWHERE, ids=str)
def test_wrong_results_fail(dtype: torch.dtype, recipes: tuple[str, str], spoil: Any) -> None:
    for d in (BRAIN, SINGLE):
        call = Call.random(67, 132, 300, "cpu", (dtype, dtype), recipes, d)
        with pytest.raises(AssertionError, match="M=67"):
            call.check(Kernel(call, spoil))


def swap_groups(x: Quantised) -> Quantised:
    """The scales of two neighbouring groups exchanged, along K if there are groups."""
    scales = x.scales.clone()
    scales[:2] = x.scales[:2].flip(1 if x.recipe in (BY_128, BY_128_128) else 0)
    return replace(x, scales=scales)


@pytest.mark.parametrize("side", ["a", "b"])
@pytest.mark.parametrize(("dtype", "recipes"), EVERYWHERE, ids=str)
def test_scales_of_other_groups_fail(
    dtype: torch.dtype, recipes: tuple[str, str], side: str
) -> None:
    if recipes[side == "b"] == TENSOR:
        pytest.skip("there is one scale")
    call = Call.random(200, 200, 256, "cpu", (dtype, dtype), recipes)
    wrong = replace(call, **{side: swap_groups(getattr(call, side))})
    with pytest.raises(AssertionError, match="M=200"):
        call.check(Kernel(wrong))


def test_left_out_operands_fail() -> None:
    call = Call.random(67, 132, 300, "cpu", (INT8, INT8), (ROW, ROW), BRAIN, "f32", "row")
    for wrong in (replace(call, bias=None), replace(call, a=replace(call.a, azp=None))):
        with pytest.raises(AssertionError, match="M=67"):
            call.check(Kernel(wrong))


def test_integers_off_by_one_fail() -> None:
    call = Call.random(9, 7, 40, "cpu", (INT8, INT8))
    wanted = call.a.values.int() @ call.b.values.int().t()
    integers(call, SimpleNamespace(scaled_mm=lambda *_, output_dtype: wanted))
    wrong = wanted.clone()
    wrong[8, 6] += 1
    with pytest.raises(AssertionError, match="1 of 63"):
        integers(call, SimpleNamespace(scaled_mm=lambda *_, output_dtype: wrong))


@pytest.mark.parametrize("dtypes", FP8_PAIRS, ids=str)
@pytest.mark.parametrize("recipes", SPREAD, ids=str)
def test_torchs_op_is_called_as_it_wants(
    recipes: tuple[str, str], dtypes: tuple[torch.dtype, torch.dtype]
) -> None:
    for (m, n, k), bias in itertools.product(((67, 131, 300), (1, 7, 33)), (None, "d", "f32")):
        call = Call.random(m, n, k, "cpu", dtypes, recipes, BRAIN, bias)
        problem = ScaledProblem.of_operands(call.a, call.b, call.bias)
        try:
            found = torch_scaled_mm(call.a, call.b, BRAIN, call.bias, False)
        except (RuntimeError, ValueError) as error:
            pytest.skip(f"this torch has no such product on the CPU: {error}")
        assert found.shape == (m, n)
        assert problem.errors(found)[0] < 5e-3


def test_int8_by_torch() -> None:
    for azp in (None, "tensor", "row"):
        call = Call.random(17, 33, 70, "cpu", (INT8, INT8), (ROW, ROW), SINGLE, "f32", azp)
        problem = ScaledProblem.of_operands(call.a, call.b, call.bias)
        assert problem.errors(torch_scaled_mm(call.a, call.b, SINGLE, call.bias, False))[0] < 1e-6


# ---- cases
def test_pairs_of_all_values_are_among_the_cases() -> None:
    axes = {"a": (1, 2, 3), "b": "xyz", "c": (True, False), "d": range(5)}
    found = list(pairwise(axes))
    assert len(found) < 25
    for p, q in itertools.combinations(axes, 2):
        assert {(case[p], case[q]) for case in found} == set(itertools.product(axes[p], axes[q]))


def test_every_m_meets_every_n_and_k() -> None:
    for kind in ("fp8", "int8"):
        chosen = [
            case for name, group in cases().items() if name.startswith(kind) for case in group
        ]
        assert {(case["m"], case["nk"]) for case in chosen} == set(itertools.product(MS, NKS))


def test_layouts_keep_values_and_surround_them_with_nan() -> None:
    x = random_values(6, 10, E4M3, "cpu")
    for layout in ("row", "column", "row_padded_3", "row_offset", "every_second"):
        assert torch.equal(laid(x, layout).float(), x.float())
    around = laid(x, "row_padded_3")
    assert around.as_strided((6, 13), (13, 1)).float().isnan().sum() == 18
    grown = padded(x.t(), 16, 8)
    assert grown.shape == (16, 8)
    assert torch.equal(grown[:10, :6].float(), x.t().float())
    assert not grown[10:].float().any()
