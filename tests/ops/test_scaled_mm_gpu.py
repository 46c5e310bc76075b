"""Scaled products of fp8 and int8 against float64: recipes, dtypes, shapes, and every kernel."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from gemm_cases import BRAIN, HALF, SINGLE, TORCH_DTYPE, require_arch
from scaled_cases import (
    ARCHS_OF,
    BLOCKWISE,
    FP8_PAIRS,
    SPREAD,
    Call,
    call_of,
    calls_of_row,
    cases,
    integers,
    random_values,
    rows,
    without_bias,
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
    outer_major,
)

pytestmark = pytest.mark.gpu

CASES = cases()
PRODUCTS, _ = rows()


@pytest.mark.parametrize(
    ("arch", "group"),
    [(arch, group) for group in CASES for arch in ARCHS_OF[group.split("-")[0]]],
)
def test_random_values(
    cutwheel: ModuleType, device: str, environment: Any, arch: str, group: str
) -> None:
    require_arch(arch)
    environment(CUTWHEEL_ARCH=arch)
    for case in CASES[group]:
        call_of(case, device).check(cutwheel)


@pytest.mark.parametrize("kernel", PRODUCTS, ids=lambda kernel: kernel["name"])
def test_every_kernel(
    cutwheel: ModuleType, device: str, environment: Any, kernel: dict[str, Any]
) -> None:
    require_arch(kernel["arch"])
    environment(CUTWHEEL_KERNEL=kernel["name"])
    if kernel["d"] == "s32":
        dtypes = (TORCH_DTYPE[kernel["a"]], TORCH_DTYPE[kernel["b"]])
        for m, n, k in ((264, 328, 1168), (24, 40, 80), (77, 333, 296)):
            integers(Call.random(m, n, k, device, dtypes), cutwheel)
        return
    for call in calls_of_row(kernel, device):
        assert call.row(cutwheel) == kernel["name"], str(call)
        call.check(cutwheel)
    without_bias(call).judge(_without_bias(cutwheel, call, kernel["name"]))


def _without_bias(cutwheel: ModuleType, call: Call, name: str) -> torch.Tensor:
    """Its kernel without a bias; a float32 one is what some are there for, then one of zeros."""
    bare = without_bias(call)
    try:
        if bare.row(cutwheel) == name:
            return bare.run(cutwheel)
    except NotImplementedError:
        pass
    assert call.bias is not None
    return replace(call, bias=torch.zeros_like(call.bias)).run(cutwheel)


def test_every_product_has_a_kernel(cutwheel: ModuleType, device: str) -> None:
    """All dtypes, recipes, results and biases on this GPU, whatever architecture serves them."""
    for dtypes, recipes, d, bias in itertools.product(
        (*FP8_PAIRS, (INT8, INT8)), (*SPREAD, *BLOCKWISE), (BRAIN, HALF, SINGLE), (None, "d", "f32")
    ):
        if dtypes[0] == INT8 and recipes in BLOCKWISE:
            continue
        Call.random(40, 72, 144, device, dtypes, recipes, d, bias).check(cutwheel)


# ---- integers
@pytest.mark.parametrize("arch", ARCHS_OF["int8"])
def test_integers_are_exact(cutwheel: ModuleType, device: str, environment: Any, arch: str) -> None:
    require_arch(arch)
    environment(CUTWHEEL_ARCH=arch)
    for m, n, k in (
        (1, 1, 1),
        (1, 128, 8192),
        (17, 72, 33),
        (129, 127, 640),
        (300, 520, 4112),
        (1000, 264, 8192),
    ):
        integers(Call.random(m, n, k, device, (INT8, INT8)), cutwheel)


@pytest.mark.parametrize("arch", ARCHS_OF["int8"])
def test_integers_at_their_ends(
    cutwheel: ModuleType, device: str, environment: Any, arch: str
) -> None:
    """The largest sums: (-128)^2 K = 2^27, and -128 x 127."""
    require_arch(arch)
    environment(CUTWHEEL_ARCH=arch)
    one = torch.ones(1, device=device)
    for left, right in ((-128, -128), (-128, 127), (127, 127)):
        a = Quantised(torch.full((72, 8192), left, dtype=INT8, device=device), one, TENSOR)
        b = Quantised(torch.full((136, 8192), right, dtype=INT8, device=device), one, TENSOR)
        result = integers(Call(a, b, SINGLE), cutwheel)
        assert int(result[0, 0]) == left * right * 8192
        # Powers of two times a short factor: exact in float32, too.
        scaled = Call(a, b, SINGLE).run(cutwheel)
        assert torch.equal(scaled.double(), result.double())


@pytest.mark.parametrize("arch", ARCHS_OF["int8"])
@pytest.mark.parametrize("azp", ["tensor", "row"])
def test_zero_points(
    cutwheel: ModuleType, device: str, environment: Any, azp: str, arch: str
) -> None:
    require_arch(arch)
    environment(CUTWHEEL_ARCH=arch)
    for (m, n, k), recipes, with_adj in zip(
        ((129, 264, 1031), (17, 72, 640), (1, 333, 4112), (300, 520, 33)),
        SPREAD,
        (True, False, True, False),
        strict=True,
    ):
        call = Call.random(
            m, n, k, device, (INT8, INT8), recipes, SINGLE, "f32", azp, with_adj=with_adj
        )
        call.check(cutwheel)
        for extreme in (-128, 127, 0):
            zero = torch.full_like(call.a.azp, extreme)
            replace(call, a=replace(call.a, azp=zero)).check(cutwheel)
    # One value of any shape, and one for each row without an extent for it.
    a, b, scale_a, scale_b = call.positional
    given = call.keywords
    found = [call.run(cutwheel)]
    for shape in ((), (1,), (1, 1)) if azp == "tensor" else ((m,), (m, 1)):
        given["azp"] = call.a.azp.reshape(shape)
        adj = b.sum(0, dtype=torch.int32)
        found += [
            cutwheel.scaled_mm(a, b, scale_a, scale_b=scale_b, **{**given, "azp_adj": adj}),
            cutwheel.scaled_mm(a, b, scale_a, scale_b=scale_b, **{**given, "azp_adj": adj[None]}),
        ]
    assert all(torch.equal(other, found[0]) for other in found)


# ---- accumulation
@pytest.mark.parametrize("arch", ARCHS_OF["fp8"])
@pytest.mark.parametrize("recipes", SPREAD[:2], ids="-".join)
def test_long_sums_are_promoted(
    cutwheel: ModuleType, device: str, environment: Any, recipes: tuple[str, str], arch: str
) -> None:
    """Sums that only grow lose most where tensor cores keep them; float32 every 128 of K does not.

    No worse than torch without fast accumulation.
    """
    require_arch(arch)
    environment(CUTWHEEL_ARCH=arch)
    for dtypes in FP8_PAIRS:
        for m, n in ((256, 384), (9, 72)):
            call = Call.random(m, n, 8192, device, dtypes, recipes, SINGLE)
            positive = (
                replace(x, values=(x.values.view(torch.uint8) & 0x7F).view(x.values.dtype))
                for x in (call.a, call.b)
            )
            a, b = positive
            # Results stay far below the largest float32; these are measured against their norm.
            replace(call, a=a, b=b).check(cutwheel)


@pytest.mark.parametrize("arch", ARCHS_OF["fp8"])
def test_fast_accumulation(cutwheel: ModuleType, device: str, environment: Any, arch: str) -> None:
    require_arch(arch)
    environment(CUTWHEEL_ARCH=arch)
    for recipes, d in itertools.product(SPREAD, (BRAIN, SINGLE)):
        for m, n, k in ((3, 264, 4096), (300, 520, 2048)):
            Call.random(m, n, k, device, recipes=recipes, d=d, fast=True).check(cutwheel)


# ---- recipes
@pytest.mark.parametrize("recipes", [*SPREAD, *BLOCKWISE], ids="-".join)
def test_recipes_are_told_from_shapes(
    cutwheel: ModuleType, device: str, recipes: tuple[str, str]
) -> None:
    for m, n, k in ((1, 1, 1), (1, 129, 128), (3, 128, 300), (129, 1, 40), (130, 300, 129)):
        call = Call.random(m, n, k, device, recipes=recipes, d=SINGLE)
        told = call.check(cutwheel)
        assert torch.equal(replace(call, named=True).run(cutwheel), told)


def members() -> dict[str, Any]:
    """The recipes, as torch has them."""
    kinds = getattr(torch.nn.functional, "ScalingType", None)
    if kinds is None:
        pytest.skip("this torch has no ScalingType")
    return {
        TENSOR: kinds.TensorWise,
        ROW: kinds.RowWise,
        BY_128: kinds.BlockWise1x128,
        BY_128_128: kinds.BlockWise128x128,
    }


def test_recipes_may_be_torchs(cutwheel: ModuleType, device: str) -> None:
    for recipes in (*SPREAD, *BLOCKWISE):
        call = Call.random(33, 264, 300, device, recipes=recipes)
        of_a, of_b = (members()[recipe] for recipe in recipes)
        result = call.run(cutwheel, scale_recipe_a=of_a, scale_recipe_b=of_b)
        assert torch.equal(result, call.check(cutwheel))


def test_scales_of_any_rank(cutwheel: ModuleType, device: str) -> None:
    call = Call.random(33, 72, 80, device, recipes=(TENSOR, TENSOR))
    a, b, scale_a, scale_b = call.positional
    wanted = call.check(cutwheel)
    for shape in ((), (1,), (1, 1)):
        result = cutwheel.scaled_mm(a, b, scale_a.reshape(shape), scale_b=scale_b.reshape(shape))
        assert torch.equal(result, wanted)
    call = Call.random(33, 72, 80, device, recipes=(ROW, ROW))
    a, b, scale_a, scale_b = call.positional
    flat = cutwheel.scaled_mm(
        a,
        b,
        scale_a.flatten(),
        scale_b=scale_b.flatten(),
        scale_recipe_a="rowwise",
        scale_recipe_b="rowwise",
    )
    assert torch.equal(flat, call.check(cutwheel))


def test_stands_in_for_torchs_op(cutwheel: ModuleType, device: str) -> None:
    """The very arguments of torch's function, where it takes them."""
    if torch.device(device).type != "cuda":
        pytest.skip("torch's op takes other layouts on the CPU")
    compared = 0
    for recipes in ((TENSOR, TENSOR), (ROW, ROW), *BLOCKWISE):
        for dtypes in FP8_PAIRS:
            call = Call.random(256, 384, 512, device, dtypes, recipes, bias="d")
            a, b, scale_a, scale_b = call.positional
            if recipes in BLOCKWISE:
                scale_a = outer_major(scale_a)
            if recipes == BLOCKWISE[1]:
                scale_b = outer_major(scale_b.t()).t()
            of_a, of_b = (members()[recipe] for recipe in recipes)
            named = {"scale_a": scale_a, "scale_recipe_a": of_a, "contraction_dim": (-1, -2)}
            named |= {"scale_b": scale_b, "scale_recipe_b": of_b, "swizzle_a": None}
            named |= {"bias": call.bias, "output_dtype": BRAIN, "use_fast_accum": False}
            try:
                theirs = torch.nn.functional.scaled_mm(mat_a=a, mat_b=b, **named)
            except (RuntimeError, ValueError):
                continue
            ours = cutwheel.scaled_mm(mat_a=a, mat_b=b, **named)
            in_order = (a, b, [scale_a], [of_a], [scale_b], [of_b], None, None, call.bias)
            assert torch.equal(cutwheel.scaled_mm(*in_order), ours)
            assert (ours.dtype, ours.shape, ours.stride()) == (BRAIN, theirs.shape, theirs.stride())
            call.judge(ours)
            compared += 1
    assert compared >= 2, "torch takes not even scales of tensors and rows"


# ---- special values
@pytest.mark.parametrize("dtypes", FP8_PAIRS, ids=lambda pair: "-".join(str(d)[-6:] for d in pair))
@pytest.mark.parametrize("recipes", [*SPREAD, *BLOCKWISE], ids="-".join)
def test_nan_of_operands_spreads(
    cutwheel: ModuleType, device: str, recipes: tuple[str, str], dtypes: tuple[torch.dtype, ...]
) -> None:
    call = Call.random(70, 90, 144, device, dtypes, recipes)  # type: ignore[arg-type]
    call.a.values.view(torch.uint8)[3, 7] = 0x7F  # NaN in both kinds
    call.b.values.view(torch.uint8)[5, 131] = 0xFF
    result = call.run(cutwheel)
    wanted = torch.zeros(70, 90, dtype=torch.bool, device=device)
    wanted[3], wanted[:, 5] = True, True
    assert torch.equal(result.isnan(), wanted)
    assert result[~wanted].isfinite().all()


def test_infinities_of_e5m2_spread(cutwheel: ModuleType, device: str) -> None:
    call = Call.random(70, 90, 144, device, (E4M3, E5M2), (ROW, ROW))
    positive = random_values(70, 144, E4M3, device).float().abs().clamp_min(1).to(E4M3)
    call = replace(call, a=replace(call.a, values=positive))
    call.b.values.view(torch.uint8)[5, 131] = 0x7C
    call.b.values.view(torch.uint8)[6, 11] = 0xFC
    result = call.run(cutwheel)
    assert (result[:, 5] == torch.inf).all()
    assert (result[:, 6] == -torch.inf).all()
    assert result[:, 7:].isfinite().all()


@pytest.mark.parametrize("dtypes", [(E4M3, E4M3), (INT8, INT8)], ids=["fp8", "int8"])
@pytest.mark.parametrize("recipes", [*SPREAD, *BLOCKWISE], ids="-".join)
def test_nan_and_infinite_scales(
    cutwheel: ModuleType, device: str, recipes: tuple[str, str], dtypes: tuple[torch.dtype, ...]
) -> None:
    """A scale that an overflow has spoiled shows in the results of its group, and in no other."""
    if dtypes[0] == INT8 and recipes in BLOCKWISE:
        pytest.skip("int8 has no block-wise recipes")
    groups = {
        TENSOR: slice(None),
        ROW: slice(5, 6),
        BY_128: slice(5, 6),
        BY_128_128: slice(128, 256),
    }
    for value in (float("nan"), float("inf")):
        for side in (0, 1):
            call = Call.random(150, 300, 272, device, dtypes, recipes)  # type: ignore[arg-type]
            recipe = recipes[side]
            scales = (call.a if side == 0 else call.b).scales
            scales[{TENSOR: 0, ROW: (5, 0), BY_128: (5, 1), BY_128_128: (1, 1)}[recipe]] = value
            wanted = torch.zeros(150, 300, dtype=torch.bool, device=device)
            wanted[groups[recipe] if side == 0 else slice(None)] = side == 0
            if side == 1:
                wanted[:, groups[recipe]] = True
            result = call.run(cutwheel)
            assert result[~wanted].isfinite().all(), str(call)
            if value != value:
                assert result[wanted].isnan().all(), str(call)
            else:  # a sum of zero times infinity is NaN
                assert not result[wanted].isfinite().any(), str(call)
