"""Grouped products against float64: kinds, groups of any size, dtypes, strides, every kernel."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from gemm_cases import (
    BRAIN,
    DTYPE_PAIRS,
    DTYPES,
    HALF,
    LAYOUTS,
    SINGLE,
    dtype_id,
    random_tensor,
    require_arch,
)
from grouped_cases import (
    DRAWN,
    Call,
    FusedCall,
    archs,
    calls_of_row,
    draw_ends,
    offsets,
    rows,
)
from grouped_reference import loop, spans

pytestmark = pytest.mark.gpu

KINDS = ("rows", "k", "columns", "batched")
GROUPED = KINDS[:3]
KERNELS, _ = rows()


# ---- values
@pytest.mark.parametrize("dtypes", DTYPE_PAIRS, ids=dtype_id)
@pytest.mark.parametrize("arch", archs())
def test_random_groups(
    cutwheel: ModuleType, device: str, environment: Any, arch: str, dtypes: tuple[torch.dtype, ...]
) -> None:
    """Sizes with many zeros, extents with every kind of remainder."""
    require_arch(arch)
    environment(CUTWHEEL_ARCH=arch)
    rng = random.Random(DTYPE_PAIRS.index(dtypes))  # type: ignore[arg-type]
    extents = (1, 8, 17, 64, 72, 130, 256, 333, 520)
    for seed, kind in enumerate(KINDS * 4):
        total = rng.choice((5, 64, 300, 1000, 1500)) if kind != "batched" else rng.choice(extents)
        n, k = rng.choice(extents), rng.choice(extents)
        m, n, k = {"rows": (total, n, k), "k": (n, k, total), "columns": (n, total, k)}.get(
            kind, (total, n, k)
        )
        call = Call.random(
            kind,
            m,
            n,
            k,
            rng.choice((1, 2, 5, 16, 40)),
            dtypes[0],
            device,
            dtypes[1],
            rng.choice(DRAWN),
            seed,
            offs_dtype=rng.choice((torch.int32, torch.int64)),
            lay_a=rng.choice(("row", "column")),
            lay_b=rng.choice(("row", "column")),
        )
        if call.is_served:
            call.check(cutwheel)


def test_every_product_has_a_kernel(cutwheel: ModuleType, device: str) -> None:
    """On this GPU, whatever architecture serves it."""
    for kind, (dtype, d) in itertools.product(KINDS, DTYPE_PAIRS):
        Call.random(kind, 72, 104, 88, 4, dtype, device, d).check(cutwheel)
        if kind != "k" and d == dtype:
            Call.random(kind, 72, 104, 88, 4, dtype, device, bias=True).check(cutwheel)
        if kind == "k":
            Call.random(kind, 72, 104, 88, 4, dtype, device).accumulate(cutwheel)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel["name"])
def test_every_kernel(
    cutwheel: ModuleType, device: str, environment: Any, kernel: dict[str, Any]
) -> None:
    require_arch(kernel["arch"])
    environment(CUTWHEEL_KERNEL=kernel["name"])
    for call in calls_of_row(kernel, device):
        if isinstance(call, FusedCall):
            call.check()
        elif kernel["epilogue"] == "linear_combination":
            call.accumulate(cutwheel)
        else:
            assert call.row(cutwheel) == kernel["name"], str(call)
            call.check(cutwheel)


@pytest.mark.parametrize("kind", GROUPED)
@pytest.mark.parametrize("how", DRAWN)
@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_sizes_of_groups(
    cutwheel: ModuleType, device: str, dtype: torch.dtype, how: str, kind: str
) -> None:
    for groups in (1, 3, 33):
        for seed in range(2):
            m, n, k = {"rows": (500, 136, 72), "k": (72, 136, 500), "columns": (72, 504, 136)}[kind]
            call = Call.random(kind, m, n, k, groups, dtype, device, how=how, seed=seed)
            result = call.check(cutwheel)
            if how == "all_empty":
                assert not result.any()
            replace(call, offs_dtype=torch.int64).check(cutwheel)


def test_many_groups(cutwheel: ModuleType, device: str) -> None:
    """More than threads of a threadblock, and more groups than rows."""
    for groups, total in ((256, 2000), (300, 64), (1024, 3000)):
        for kind, (m, n, k) in (("rows", (total, 40, 72)), ("k", (72, 40, total))):
            Call.random(kind, m, n, k, groups, BRAIN, device, seed=groups).check(cutwheel)


def test_many_tiles(cutwheel: ModuleType, device: str) -> None:
    """Many times as many tiles as multiprocessors, in groups of very different sizes."""
    for kind, (m, n, k) in (("rows", (9000, 1032, 136)), ("k", (1160, 1032, 3000))):
        for how in ("random", "one_has_all"):
            Call.random(kind, m, n, k, 24, BRAIN, device, how=how).check(cutwheel)


def test_groups_of_one_row(cutwheel: ModuleType, device: str) -> None:
    for kind, (m, n, k) in (("rows", (48, 264, 136)), ("k", (136, 264, 48))):
        Call.random(kind, m, n, k, 48, BRAIN, device, how="uniform").check(cutwheel)


# ---- offsets
def test_offsets_may_lie_anyhow(cutwheel: ModuleType, device: str) -> None:
    call = Call.random("rows", 300, 136, 72, 9, HALF, device)
    wanted = call.check(cutwheel)
    for dtype in (torch.int32, torch.int64):
        offs = offsets(call.ends or (), device, dtype)
        wide = offs.new_full((2 * len(offs) + 1,), 2**30)
        wide[1::2] = offs
        shifted = offs.new_full((len(offs) + 1,), 2**30)
        shifted[1:] = offs
        for other in (wide[1::2], shifted[1:]):
            assert torch.equal(call.run(cutwheel, offs=other), wanted)


BAD_ENDS = {
    "decreasing": [200, 100, 150, 50, 300],
    "negative": [-5, 100, -(2**31), 200, 300],
    "too_large": [100, 301, 2**31 - 1, 400, 500],
    "all_too_large": [2**31 - 1] * 5,
    "all_negative": [-(2**31)] * 5,
    "last_is_zero": [300, 300, 300, 300, 0],
}


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=dtype_id)
@pytest.mark.parametrize("name", BAD_ENDS)
def test_bad_offsets_touch_nothing_else(
    cutwheel: ModuleType, device: str, name: str, dtype: torch.dtype
) -> None:
    """The result is not specified; what lies around it stays as it is."""
    ends = BAD_ENDS[name]
    if dtype == torch.int64:
        ends = [end * 2**20 if abs(end) > 1000 else end for end in ends]
    for kind, (m, n, k) in (
        ("rows", (300, 264, 136)),
        ("k", (136, 264, 300)),
        ("columns", (136, 300, 264)),
    ):
        good = Call.random(kind, m, n, k, 5, BRAIN, device)
        shape = (5, m, n) if kind == "k" else (m, n)
        # The allocator splits one block: the result most likely lies between the other two.
        guards = [torch.full(shape, 7.0, dtype=BRAIN, device=device) for _ in range(3)]
        del guards[1]
        bad = replace(good, ends=ends, offs_dtype=dtype)
        assert bad.run(cutwheel).shape == shape
        assert all((guard == 7.0).all() for guard in guards), str(bad)
        good.check(cutwheel)  # the context is alive
    whole = torch.full((7, 136, 264), 7.0, device=device)
    offs = offsets(ends, device, dtype)
    a, b = random_tensor((136, 300), BRAIN, device), random_tensor((300, 264), BRAIN, device)
    cutwheel.grouped_mm(a, b, offs=offs, accumulate_into=whole[1:-1])
    assert (whole[0] == 7.0).all()
    assert (whole[-1] == 7.0).all()


# ---- special values
@pytest.mark.parametrize("value", [float("nan"), float("inf")], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
@pytest.mark.parametrize("arch", archs())
def test_special_values_stay_in_their_group(
    cutwheel: ModuleType, device: str, environment: Any, arch: str, dtype: torch.dtype, value: float
) -> None:
    """Tiles and steps along K reach into the next group: nothing of it may be seen."""
    require_arch(arch)
    environment(CUTWHEEL_ARCH=arch)
    ends = [37, 37, 100, 101, 230, 300]
    for kind, (m, n, k) in (("rows", (300, 136, 72)), ("k", (72, 136, 300))):
        call = replace(Call.random(kind, m, n, k, 6, dtype, device, how="uniform"), ends=ends)
        clean = call.check(cutwheel)
        for g, (first, last) in enumerate(spans(ends, 300)):
            a, b = call.a.clone(), call.b.clone()
            where = torch.zeros_like(clean, dtype=torch.bool)
            if kind == "rows":
                a[first:last] = value
                b[g] = value
                where[first:last] = True
            else:
                a[:, first:last] = value
                b[first:last] = value
                where[g] = first < last
            result = replace(call, a=a, b=b).run(cutwheel)
            assert torch.equal(result.isfinite(), ~where), f"{call}, group {g}"
            assert torch.equal(result[~where], clean[~where]), f"{call}, group {g}"


# ---- extents
@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_empty_extents(cutwheel: ModuleType, device: str, dtype: torch.dtype) -> None:
    for kind, m, n, k in itertools.product(KINDS, (0, 24), (0, 40), (0, 16)):
        for bias in (False, True) if kind in ("rows", "batched") else (False,):
            call = Call.random(kind, m, n, k, 3, dtype, device, bias=bias)
            result = call.check(cutwheel)
            if kind != "batched" and not bias and 0 in (m, n, k):
                assert not result.any()


# ---- layouts
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("lay_a", "lay_b"), list(itertools.product(LAYOUTS, LAYOUTS)))
def test_operands_may_lie_anyhow(
    cutwheel: ModuleType, device: str, lay_a: str, lay_b: str, kind: str
) -> None:
    for m, n, k in ((72, 136, 200), (67, 131, 77)):
        call = Call.random(kind, m, n, k, 4, BRAIN, device, lay_a=lay_a, lay_b=lay_b)
        call.check(cutwheel)


@pytest.mark.parametrize("dtype", [HALF, SINGLE], ids=dtype_id)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_of_other_dtypes(
    cutwheel: ModuleType, device: str, layout: str, dtype: torch.dtype
) -> None:
    for kind, (m, n, k) in itertools.product(GROUPED, ((72, 136, 200), (67, 131, 77))):
        Call.random(kind, m, n, k, 4, dtype, device, lay_a=layout, lay_b=layout).check(cutwheel)


def test_weights_may_be_expanded_and_sliced(cutwheel: ModuleType, device: str) -> None:
    call = Call.random("rows", 200, 72, 40, 4, BRAIN, device)
    one = random_tensor((1, 40, 72), BRAIN, device)
    heads = random_tensor((40, 4, 72), BRAIN, device).transpose(0, 1)
    every_second = random_tensor((8, 40, 72), BRAIN, device)[::2]
    wide = random_tensor((4, 96, 80), BRAIN, device)[:, 3:43, 5:77]
    backwards = random_tensor((72, 40, 4), BRAIN, device).permute(2, 1, 0)
    for b in (one.expand(4, 40, 72), heads, every_second, wide, backwards):
        replace(call, b=b).check(cutwheel)
    a = random_tensor((1, 40), BRAIN, device).expand(200, 40)
    replace(call, a=a).check(cutwheel)


# ---- bias and dtypes
@pytest.mark.parametrize("dtypes", DTYPE_PAIRS, ids=dtype_id)
@pytest.mark.parametrize("kind", ["rows", "columns", "batched"])
def test_bias(
    cutwheel: ModuleType, device: str, kind: str, dtypes: tuple[torch.dtype, ...]
) -> None:
    for seed, (m, n, k) in enumerate(((300, 136, 72), (65, 33, 41))):
        call = Call.random(kind, m, n, k, 6, dtypes[0], device, dtypes[1], "short", seed, bias=True)
        if not call.is_served:
            pytest.skip("no kernel with a bias for these dtypes")
        result = call.check(cutwheel)
        if call.ends is not None:
            rest = result[call.ends[-1] :] if kind == "rows" else result[:, call.ends[-1] :]
            assert not rest.any(), "rows of no group have no bias"
        bias = call.bias
        assert bias is not None
        wide = bias.new_full((6, bias.shape[1] + 3), float("nan"))
        wide[:, :-3] = bias
        assert torch.equal(call.run(cutwheel, bias=wide[:, :-3]), result)


@pytest.mark.parametrize("dtype", [HALF, BRAIN], ids=dtype_id)
@pytest.mark.parametrize("kind", ["rows", "columns", "batched"])
def test_bias_of_the_operands_dtype(
    cutwheel: ModuleType, device: str, kind: str, dtype: torch.dtype
) -> None:
    """A float32 result is that of a bias of the same values in float32, bit for bit."""
    for seed, (m, n, k) in enumerate(((300, 136, 72), (65, 33, 41))):
        call = Call.random(kind, m, n, k, 6, dtype, device, SINGLE, "short", seed, bias=True)
        if not call.is_served:
            pytest.skip("no kernel with a bias for these dtypes")
        assert call.bias is not None
        bias = call.bias.to(dtype)
        wanted = replace(call, bias=bias.float()).check(cutwheel)
        assert torch.equal(replace(call, bias=bias).check(cutwheel), wanted)
        with pytest.raises(TypeError, match="bias has dtype float64; expected"):
            call.run(cutwheel, bias=bias.double())
        call.run(cutwheel, bias=bias.requires_grad_()).sum().backward()
        assert bias.grad is not None
        assert bias.grad.dtype == dtype


@pytest.mark.parametrize("dtypes", DTYPE_PAIRS, ids=dtype_id)
def test_accumulate(cutwheel: ModuleType, device: str, dtypes: tuple[torch.dtype, ...]) -> None:
    for seed, ((m, n, k), how) in enumerate(
        itertools.product(((136, 264, 500), (67, 131, 300)), DRAWN)
    ):
        call = Call.random("k", m, n, k, 7, dtypes[0], device, how=how, seed=seed)
        call.accumulate(cutwheel)
        replace(call, lay_a="row_offset", lay_b="row_padded_3").accumulate(cutwheel)


# ---- beside torch
def test_stands_in_for_torchs_op(cutwheel: ModuleType, device: str) -> None:
    """The very arguments of torch's own function, where it takes them."""
    theirs = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm
    compared = 0
    for kind in KINDS:
        # An assertion on the device ends the process where a group is no multiple of 16 bytes.
        call = Call.random(kind, 128, 128, 64, 4, BRAIN, device, how="ends_empty")
        for lay_b in ("row", "column"):
            call = replace(call, lay_b=lay_b)
            try:
                expected = theirs(*call.positional, offs=call.offs)
            except (RuntimeError, ValueError):
                continue
            result = call.check(cutwheel)
            assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
            call.judge(expected)
            compared += 1
    assert compared >= 2 or device == "cpu"


# ---- lists
def test_lists(cutwheel: ModuleType, device: str) -> None:
    """Each product has extents and strides of its own."""
    sizes = ((24, 40, 56), (1, 8, 16), (0, 8, 16), (130, 33, 77), (24, 40, 56), (5, 7, 0))
    for dtype in DTYPES:
        lays = ("row", "column", "row", "row_padded_3", "column", "row")
        a = [
            LAYOUTS[lay](random_tensor((m, k), dtype, device))
            for (m, _, k), lay in zip(sizes, lays, strict=True)
        ]
        b = [random_tensor((k, n), dtype, device) for _, n, k in sizes]
        results = cutwheel.grouped_mm_list(a, b)
        assert len(results) == len(sizes)
        for x, y, result in zip(a, b, results, strict=True):
            # A product is a batch of one.
            Call(x[None], y[None], None, dtype).judge(result[None])
    assert list(cutwheel.grouped_mm_list([], [])) == []


@pytest.mark.slow
def test_more_than_2_to_the_31_elements(cutwheel: ModuleType, device: str) -> None:
    if device == "cpu" or torch.cuda.mem_get_info()[1] < 40e9:
        pytest.skip("needs a GPU with 40 GB of memory")
    groups, n, k = 40, 8200, 8192  # weights of 2.7e9 elements
    w = torch.empty(groups, n, k, dtype=BRAIN, device=device).normal_()
    ends = draw_ends(600, groups, "random")
    a = random_tensor((600, k), BRAIN, device)
    result = cutwheel.grouped_mm(a, w.mT, offs=offsets(ends, device))
    for g, (first, last) in enumerate(spans(ends, 600)):
        if first < last and g in (*range(3), *range(groups - 10, groups)):
            exact = loop(a[first:last].double(), w[g : g + 1].double().mT, [last - first])
            error = (result[first:last].double() - exact).norm() / exact.norm()
            assert error < 4e-3, f"group {g}"
