"""Scaled products of fp8 with grouped rows, against the float64 product of each group."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from gemm_cases import BRAIN, HALF, SINGLE, require_arch
from grouped_cases import DRAWN, archs, rows
from grouped_reference import spans
from scaled_cases import ARCHS_OF, FP8_PAIRS, pairwise
from scaled_grouped_cases import RECIPES, Grouped, grouped_of_row, is_served
from scaled_reference import BY_128, E4M3

pytestmark = pytest.mark.gpu

_, KERNELS = rows()
SERVED = [recipes for recipes in RECIPES if is_served(recipes)]
ARCHS = [arch for arch in ARCHS_OF["fp8"] if arch in archs()]


# ---- values
AXES = {
    "total": (1, 17, 64, 300, 1000),
    "nk": ((128, 128), (264, 512), (1, 1), (72, 1000), (129, 127), (520, 2064), (33, 333)),
    "groups": (1, 2, 9, 40),
    "dtypes": FP8_PAIRS,
    "d": (BRAIN, HALF, SINGLE),
    "bias": (None, "d", "f32"),
    "how": DRAWN,
    "fast": (False, True),
    "offs_dtype": (torch.int32, torch.int64),
    "lay_a": ("row", "row", "row_padded_8", "row_offset"),
    "lay_b": ("row", "row", "row_padded_3", "column"),
    "lay_scales": ("row", "column", "row_padded_3"),
    "flat": (True, False),
}


@pytest.mark.parametrize("recipes", SERVED, ids="-".join)
@pytest.mark.parametrize("arch", ARCHS)
def test_random_values(
    cutwheel: ModuleType, device: str, environment: Any, arch: str, recipes: tuple[str, str]
) -> None:
    require_arch(arch)
    environment(CUTWHEEL_ARCH=arch)
    for seed, case in enumerate(pairwise(AXES)):
        total, (n, k), groups = case.pop("total"), case.pop("nk"), case.pop("groups")
        if recipes[0] == BY_128 and k <= 128:
            k += 128  # a scale for each row would mean another recipe
        if is_served(recipes, case["dtypes"], case["d"]):
            call = Grouped.random(total, n, k, groups, device, recipes=recipes, seed=seed, **case)
            call.check(cutwheel)


def test_what_no_kernel_serves_is_refused(cutwheel: ModuleType, device: str) -> None:
    for recipes, dtypes, d in itertools.product(RECIPES, FP8_PAIRS, (BRAIN, HALF, SINGLE)):
        call = Grouped.random(40, 72, 272, 3, device, dtypes, recipes, d)
        if is_served(recipes, dtypes, d):
            call.check(cutwheel)
        else:
            with pytest.raises(NotImplementedError, match="scaled_grouped_mm"):
                call.run(cutwheel)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel["name"])
def test_every_kernel(
    cutwheel: ModuleType, device: str, environment: Any, kernel: dict[str, Any]
) -> None:
    require_arch(kernel["arch"])
    environment(CUTWHEEL_KERNEL=kernel["name"])
    for call in grouped_of_row(kernel, device):
        call.check(cutwheel)


@pytest.mark.parametrize("arch", ARCHS)
def test_long_sums_are_promoted(
    cutwheel: ModuleType, device: str, environment: Any, arch: str
) -> None:
    """Sums that only grow lose most where tensor cores keep them, and not in float32."""
    require_arch(arch)
    environment(CUTWHEEL_ARCH=arch)
    for recipes in SERVED:
        call = Grouped.random(300, 264, 8192, 4, device, recipes=recipes, d=SINGLE, how="uniform")
        for x in (call.a, *call.b):
            x.values.view(torch.uint8).bitwise_and_(0x7F)
        call.check(cutwheel)


@pytest.mark.parametrize("recipes", SERVED, ids="-".join)
def test_sizes_of_groups(cutwheel: ModuleType, device: str, recipes: tuple[str, str]) -> None:
    for how, groups in itertools.product(DRAWN, (1, 3, 33)):
        call = Grouped.random(400, 136, 272, groups, device, recipes=recipes, how=how)
        assert how != "all_empty" or not call.check(cutwheel).any()
        call.check(cutwheel)


@pytest.mark.parametrize("recipes", SERVED, ids="-".join)
def test_bad_offsets_touch_nothing_else(
    cutwheel: ModuleType, device: str, recipes: tuple[str, str]
) -> None:
    good = Grouped.random(300, 264, 272, 4, device, recipes=recipes)
    for ends in ([200, 100, 300, 50], [-5, 301, -(2**31), 2**31 - 1], [2**31 - 1] * 4):
        for dtype in (torch.int32, torch.int64):
            guards = [torch.full((300, 264), 7.0, dtype=BRAIN, device=device) for _ in range(3)]
            del guards[1]
            bad = replace(good, ends=ends, offs_dtype=dtype)
            assert bad.run(cutwheel).shape == (300, 264)
            assert all((guard == 7.0).all() for guard in guards), str(bad)
    good.check(cutwheel)


@pytest.mark.parametrize("recipes", SERVED, ids="-".join)
def test_nan_stays_in_its_group(
    cutwheel: ModuleType, device: str, recipes: tuple[str, str]
) -> None:
    ends = [37, 37, 100, 101, 300]
    call = replace(
        Grouped.random(300, 136, 272, 5, device, recipes=recipes, how="uniform"), ends=ends
    )
    clean = call.check(cutwheel)
    for g, (first, last) in enumerate(spans(ends, 300)):
        where = torch.zeros_like(clean, dtype=torch.bool)
        where[first:last] = True
        for spoiled in (call.b[g].values.clone().view(torch.uint8).fill_(0x7F).view(E4M3), None):
            b = list(call.b)
            if spoiled is not None:
                b[g] = replace(b[g], values=spoiled)
            else:
                b[g] = replace(b[g], scales=torch.full_like(b[g].scales, float("nan")))
            result = replace(call, b=b).run(cutwheel)
            assert torch.equal(result.isnan(), where), f"{call}, group {g}"
            assert torch.equal(result[~where], clean[~where]), f"{call}, group {g}"


def test_empty_extents(cutwheel: ModuleType, device: str) -> None:
    for total, n, k in itertools.product((0, 24), (0, 40), (0, 256)):
        Grouped.random(total, n, k, 3, device, bias="d").check(cutwheel)


def test_stands_in_for_torchs_op(cutwheel: ModuleType, device: str) -> None:
    """The very arguments of torch's function, where it takes them."""
    if torch.device(device).type != "cuda":
        pytest.skip("torch has no such product on the CPU")
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("torch's op runs on compute capability 9.0")
    for how, fast in itertools.product(("uniform", "ends_empty"), (False, True)):
        call = Grouped.random(256, 384, 512, 4, device, how=how, fast=fast)
        recipe = torch.nn.functional.ScalingType.RowWise
        named = {**call.given, "scale_recipe_a": recipe, "scale_recipe_b": recipe, **call.keywords}
        theirs = torch.nn.functional.scaled_grouped_mm(**named)
        ours = cutwheel.scaled_grouped_mm(**named)
        call.judge(ours)
        assert (ours.dtype, ours.shape, ours.stride()) == (BRAIN, theirs.shape, theirs.stride())
        norm = theirs.float().norm()
        assert (ours.float() - theirs.float()).norm() <= 4e-3 * norm


# ---- among other work
@pytest.mark.no_dispatch_mode
def test_compile(cutwheel: ModuleType, device: str) -> None:
    for recipes in SERVED:
        call = Grouped.random(72, 136, 272, 4, device, recipes=recipes, bias="d")
        torch._dynamo.reset()
        compiled = torch.compile(cutwheel.scaled_grouped_mm, fullgraph=True, backend="aot_eager")
        call.judge(compiled(**call.given, **call.keywords))


@pytest.mark.no_dispatch_mode
def test_opcheck(cutwheel: ModuleType, device: str) -> None:
    # torch's own comparisons in the other checks are missing for fp8 tensors.
    checks = ("test_faketensor", "test_autograd_registration")
    for recipes, bias in itertools.product(SERVED, (None, "d")):
        call = Grouped.random(24, 56, 272, 3, device, recipes=recipes, bias=bias)
        torch.library.opcheck(
            torch.ops.cutwheel.scaled_grouped_mm.default,
            (*call.positional, call.keywords["offs"], call.bias, BRAIN, False),
            test_utils=checks,
        )


def test_bad_input(cutwheel: ModuleType, device: str, check_class: Callable[..., None]) -> None:
    call = Grouped.random(30, 40, 272, 3, device, bias="d")
    a, b, scale_a, scale_b = call.positional
    offs, bias = call.keywords["offs"], call.bias
    assert bias is not None
    for error, words, given, keywords in (
        (ValueError, "scale_a", (a, b, scale_a[:5], scale_b), {"offs": offs}),
        (ValueError, "scale_b", (a, b, scale_a, scale_b[:, :5]), {"offs": offs}),
        (ValueError, "scale_b", (a, b, scale_a, scale_b[:2]), {"offs": offs}),
        (ValueError, "offs", (a, b, scale_a, scale_b), {"offs": offs[:2]}),
        (ValueError, "bias", (a, b, scale_a, scale_b), {"offs": offs, "bias": bias[:, :5]}),
        (ValueError, "mat_b", (a, b[:, :-1], scale_a, scale_b), {"offs": offs}),
        (TypeError, "offs", (a, b, scale_a, scale_b), {"offs": offs.float()}),
        (TypeError, "mat_a", (a.float(), b, scale_a, scale_b), {"offs": offs}),
        (TypeError, "scale_a", (a, b, scale_a.half(), scale_b), {"offs": offs}),
        (TypeError, "output_dtype", (a, b, scale_a, scale_b), {"offs": offs, "output_dtype": E4M3}),
    ):
        named = dict(zip(call.given, given, strict=True))
        with pytest.raises(error, match=words) as raised:
            cutwheel.scaled_grouped_mm(**named, **keywords)
        check_class(raised.value, error)
    call.check(cutwheel)
