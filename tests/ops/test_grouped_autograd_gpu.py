"""Gradients of grouped products against those of the float64 loop, twice; autocast; compilers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import pytest
import torch
from fused_cases import assert_near, compare_gradients, compare_second_gradients, subsets
from gemm_cases import BRAIN, DTYPES, HALF, LAYOUTS, SINGLE, dtype_id, random_tensor
from grouped_cases import DRAWN, draw_ends, offsets
from grouped_reference import loop

pytestmark = pytest.mark.gpu

Tensors = list[torch.Tensor | None]
# kind: shapes of a and b with 5 groups, the extent that is grouped
SHAPES = {
    "rows": ((60, 40), (5, 40, 56), 60),
    "k": ((40, 60), (60, 56), 60),
    "columns": ((5, 24, 40), (40, 64), 64),
    "batched": ((5, 24, 40), (5, 40, 56), 0),
}
ODD = {
    "rows": ((61, 41), (5, 41, 57), 61),
    "k": ((41, 61), (61, 57), 61),
    "columns": ((5, 23, 41), (41, 61), 61),
    "batched": ((5, 23, 41), (5, 41, 57), 0),
}
GROUPS = 5


def leaves(
    kind: str,
    dtype: torch.dtype,
    device: str,
    needed: Sequence[bool] = (True, True, True),
    shapes: Any = SHAPES,
    bias: bool = False,
) -> Tensors:
    a, b, _ = shapes[kind]
    found: Tensors = [random_tensor(shape, dtype, device) for shape in (a, b)]
    if bias:
        width = a[-2] if kind == "columns" else b[-1]
        found.append(random_tensor((GROUPS, width), dtype, device))
    return [
        None if x is None else x.requires_grad_(need)
        for x, need in zip(found, needed, strict=False)
    ]


def both(
    cutwheel: Any, kind: str, device: str, how: str = "random", shapes: Any = SHAPES, seed: int = 0
) -> tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor]]:
    """Ours and the loop, with the same groups."""
    total = shapes[kind][2]
    ends = draw_ends(total, GROUPS, how, seed) if total else None
    keywords = {} if ends is None else {"offs": offsets(ends, device)}

    def ours(a: Any, b: Any, bias: Any = None) -> torch.Tensor:
        given = keywords if bias is None else {**keywords, "bias": bias}
        result: torch.Tensor = cutwheel.grouped_mm(a, b, **given)
        return result

    return ours, lambda a, b, bias=None: loop(a, b, ends, bias)


# ---- first and second gradients
@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
@pytest.mark.parametrize("kind", SHAPES)
def test_gradients(cutwheel: ModuleType, device: str, kind: str, dtype: torch.dtype) -> None:
    for shapes in (SHAPES, ODD):
        for seed, needed in enumerate(subsets(2)):
            ours, theirs = both(cutwheel, kind, device, shapes=shapes, seed=seed)
            compare_gradients(ours, theirs, leaves(kind, dtype, device, needed, shapes), dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
@pytest.mark.parametrize("kind", ["rows", "columns", "batched"])
def test_gradients_with_a_bias(
    cutwheel: ModuleType, device: str, kind: str, dtype: torch.dtype
) -> None:
    for how in ("random", "short"):
        for needed in subsets(3):
            ours, theirs = both(cutwheel, kind, device, how)
            given = leaves(kind, dtype, device, needed, bias=True)
            compare_gradients(ours, theirs, given, dtype)


@pytest.mark.parametrize("how", DRAWN)
@pytest.mark.parametrize("kind", ["rows", "k", "columns"])
def test_gradients_of_groups_of_any_size(
    cutwheel: ModuleType, device: str, kind: str, how: str
) -> None:
    ours, theirs = both(cutwheel, kind, device, how)
    compare_gradients(ours, theirs, leaves(kind, BRAIN, device), BRAIN)


@pytest.mark.parametrize("how", ["random", "short", "all_empty"])
@pytest.mark.parametrize("kind", SHAPES)
def test_second_gradients(cutwheel: ModuleType, device: str, kind: str, how: str) -> None:
    ours, theirs = both(cutwheel, kind, device, how)
    compare_second_gradients(ours, theirs, leaves(kind, SINGLE, device))


def test_second_gradients_with_a_bias(cutwheel: ModuleType, device: str) -> None:
    ours, theirs = both(cutwheel, "rows", device, "short")
    compare_second_gradients(ours, theirs, leaves("rows", SINGLE, device, bias=True))


def test_what_no_group_covers_has_no_gradient(cutwheel: ModuleType, device: str) -> None:
    """Zero, whatever stands there, also in a gradient of it."""
    ends = [0, 17, 17, 40]
    x = random_tensor((64, 24), BRAIN, device)
    x[40:] = float("nan")
    w = random_tensor((4, 24, 32), BRAIN, device).requires_grad_()
    x.requires_grad_()
    result = cutwheel.grouped_mm(x, w, offs=offsets(ends, device))
    assert not result[40:].any()
    seed = random_tensor((64, 32), BRAIN, device)
    seed[40:] = float("nan")
    dx, dw = torch.autograd.grad(result, (x, w), seed)
    assert not dx[40:].any()
    assert not dw[0].any(), "group 0 is empty"
    assert not dw[2].any(), "group 2 is empty"
    exact = [t.detach()[:40].double().requires_grad_() for t in (x,)]
    exact.append(w.detach().double().requires_grad_())
    wanted = torch.autograd.grad(loop(*exact, ends), exact, seed[:40].double())
    assert_near(dx[:40], wanted[0], BRAIN)
    assert_near(dw, wanted[1], BRAIN)


# ---- gradients that lie oddly
@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
@pytest.mark.parametrize("kind", SHAPES)
def test_gradients_of_a_sum_have_no_strides(
    cutwheel: ModuleType, device: str, kind: str, dtype: torch.dtype
) -> None:
    for shapes in (SHAPES, ODD):
        ours, theirs = both(cutwheel, kind, device, shapes=shapes)
        given = leaves(kind, dtype, device, shapes=shapes, bias=kind != "k")
        exact = [None if x is None else x.detach().double().requires_grad_() for x in given]
        ours(*given).sum().backward()
        theirs(*exact).sum().backward()
        for got, want in zip(given, exact, strict=True):
            assert got is not None
            assert want is not None
            assert_near(got.grad, want.grad, dtype)


@pytest.mark.parametrize("layout", ["column", "row_padded_3", "row_offset", "every_second"])
@pytest.mark.parametrize("kind", SHAPES)
def test_operands_and_gradients_may_lie_anyhow(
    cutwheel: ModuleType, device: str, kind: str, layout: str
) -> None:
    for shapes in (SHAPES, ODD):
        ours, theirs = both(cutwheel, kind, device, shapes=shapes)
        plain = leaves(kind, BRAIN, device, shapes=shapes)
        given = [LAYOUTS[layout](x.detach()).requires_grad_() for x in plain if x is not None]
        exact = [x.detach().double().requires_grad_() for x in given]
        result, expected = ours(*given), theirs(*exact)
        seed = LAYOUTS[layout](random_tensor(tuple(result.shape), BRAIN, device))
        grads = torch.autograd.grad(result, given, seed)
        wanted = torch.autograd.grad(expected, exact, seed.double())
        for got, want in zip(grads, wanted, strict=True):
            assert_near(got, want, BRAIN)


def test_weights_gradient_lies_as_the_weight(cutwheel: ModuleType, device: str) -> None:
    x = random_tensor((60, 40), BRAIN, device)
    weight = random_tensor((5, 56, 40), BRAIN, device).requires_grad_()
    ends = draw_ends(60, 5, "random")
    result = cutwheel.grouped_mm(x, weight.mT, offs=offsets(ends, device))
    (grad,) = torch.autograd.grad(result, weight, torch.ones_like(result))
    assert grad.is_contiguous()


# ---- what is computed
@pytest.mark.no_dispatch_mode
@pytest.mark.parametrize("needed", [0, 1])
@pytest.mark.parametrize("kind", SHAPES)
def test_only_needed_gradients_are_computed(
    cutwheel: ModuleType, device: str, kind: str, needed: int
) -> None:
    ours, _ = both(cutwheel, kind, device)
    given = leaves(kind, HALF, device, (needed == 0, needed == 1))
    result = ours(*given)
    with torch.profiler.profile() as profile:
        result.backward(torch.ones_like(result))
    calls = [event.count for event in profile.key_averages() if event.key.startswith("cutwheel::")]
    assert sum(calls) == 1
    assert [x is not None and x.grad is not None for x in given] == [needed == 0, needed == 1]


def test_out_dtype_gradients_have_the_operands_dtype(cutwheel: ModuleType, device: str) -> None:
    a, b = leaves("rows", BRAIN, device)
    ends = draw_ends(60, GROUPS, "random")
    result = cutwheel.grouped_mm(a, b, offs=offsets(ends, device), out_dtype=SINGLE)
    assert result.dtype == SINGLE
    result.square().sum().backward()
    assert a is not None
    assert b is not None
    exact = [x.detach().double().requires_grad_() for x in (a, b)]
    loop(*exact, ends).square().sum().backward()
    for got, want in zip((a, b), exact, strict=True):
        assert got.grad.dtype == BRAIN
        assert_near(got.grad, want.grad, BRAIN)


# ---- an accumulated gradient
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_accumulate_into(
    cutwheel: ModuleType, device: str, dtype: torch.dtype, transposed: bool
) -> None:
    """Two backward passes onto what stood there; the weight has no gradient of its own."""
    shape = (5, 56, 40) if transposed else (5, 40, 56)
    main = torch.randn(shape, device=device)
    weight = random_tensor(shape, dtype, device).requires_grad_()
    wanted = main.double()
    for seed, how in enumerate(("random", "short")):
        ends = draw_ends(60, 5, how, seed)
        x = random_tensor((60, 40), dtype, device).requires_grad_()
        exact = [x.detach().double().requires_grad_(), weight.detach().double().requires_grad_()]
        b, into = (weight.mT, main.mT) if transposed else (weight, main)
        result = cutwheel.grouped_mm(x, b, offs=offsets(ends, device), accumulate_into=into)
        expected = loop(exact[0], exact[1].mT if transposed else exact[1], ends)
        grad = random_tensor((60, 56), dtype, device)
        result.backward(grad)
        expected.backward(grad.double())
        assert exact[1].grad is not None
        wanted = wanted + exact[1].grad
        assert_near(x.grad, exact[0].grad, dtype)
        assert_near(main, wanted, dtype)
    assert weight.grad is None


# ---- lists
@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_gradients_of_lists(cutwheel: ModuleType, device: str, dtype: torch.dtype) -> None:
    sizes = ((24, 40, 56), (1, 8, 16), (0, 8, 16), (33, 65, 77))
    a = [random_tensor((m, k), dtype, device).requires_grad_() for m, _, k in sizes]
    b = [random_tensor((k, n), dtype, device).requires_grad_() for _, n, k in sizes]
    exact = [[x.detach().double().requires_grad_() for x in side] for side in (a, b)]
    results = cutwheel.grouped_mm_list(a, b)
    sum(result.square().sum() for result in results).backward()
    sum((x @ y).square().sum() for x, y in zip(*exact, strict=True)).backward()
    for got, want in zip((*a, *b), (*exact[0], *exact[1]), strict=True):
        assert_near(got.grad, want.grad, BRAIN if dtype == BRAIN else HALF)


# ---- autocast and compilers
@pytest.mark.parametrize("dtype", [HALF, BRAIN], ids=dtype_id)
@pytest.mark.parametrize("kind", SHAPES)
def test_autocast(cutwheel: ModuleType, device: str, kind: str, dtype: torch.dtype) -> None:
    if device == "cpu":
        pytest.skip("autocast of CUDA tensors")
    ours, theirs = both(cutwheel, kind, device)
    given = leaves(kind, SINGLE, device)
    exact = [x.detach().double().requires_grad_() for x in given if x is not None]
    with torch.autocast("cuda", dtype=dtype):
        result = ours(*given)
    assert result.dtype == dtype
    result.sum().backward()
    theirs(*exact).sum().backward()
    for got, want in zip(given, exact, strict=True):
        assert got is not None
        assert got.grad.dtype == SINGLE
        assert_near(got.grad, want.grad, dtype)


@pytest.mark.no_dispatch_mode
def test_compile_of_lists(cutwheel: ModuleType, device: str) -> None:
    def model(*tensors: torch.Tensor) -> torch.Tensor:
        half = len(tensors) // 2
        results = cutwheel.grouped_mm_list(list(tensors[:half]), list(tensors[half:]))
        return sum((result.square().sum() for result in results), start=tensors[0].sum())

    sizes = ((24, 40, 56), (33, 65, 77))
    given = [random_tensor((m, k), BRAIN, device).requires_grad_() for m, _, k in sizes]
    given += [random_tensor((k, n), BRAIN, device).requires_grad_() for _, n, k in sizes]
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    grads = torch.autograd.grad(compiled(*given), given)
    wanted = torch.autograd.grad(model(*given), given)
    for got, want in zip(grads, wanted, strict=True):
        assert_near(got, want.double(), BRAIN)


@pytest.mark.no_dispatch_mode
def test_compiled_sums_of_a_bias_are_exact(cutwheel: ModuleType, device: str) -> None:
    """All 24 bits of float32 gradients go into the gradient of a bias."""
    a, b, bias = leaves("rows", SINGLE, device, bias=True)
    assert a is not None
    assert bias is not None
    ends = draw_ends(60, GROUPS, "random")
    seed = torch.randn(a.shape[0], bias.shape[1], device=device)
    torch._dynamo.reset()
    compiled = torch.compile(cutwheel.grouped_mm, fullgraph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = compiled(a, b, offs=offsets(ends, device), bias=bias)
        (got,) = torch.autograd.grad(result, bias, seed)
    first = 0
    for group, last in enumerate(ends):
        rows = seed[first:last].double()
        error = (got[group].double() - rows.sum(0)).abs()
        assert (error <= 2.0**-20 * rows.abs().sum(0)).all()
        first = last


@pytest.mark.no_dispatch_mode
def test_opcheck(cutwheel: ModuleType, device: str) -> None:
    ops = torch.ops.cutwheel
    offs = offsets(draw_ends(60, GROUPS, "short"), device)
    x, w = random_tensor((60, 40), HALF, device), random_tensor((5, 40, 56), HALF, device)
    bias = random_tensor((5, 56), HALF, device)
    other = random_tensor((60, 56), HALF, device)
    check = torch.library.opcheck
    check(ops.grouped_mm.default, (x, w, offs))
    check(ops.grouped_mm.default, (x, w, offs.long(), bias.float(), SINGLE))
    check(ops.grouped_mm.default, (x.t(), other, offs))
    out = torch.zeros(5, 40, 56, device=device)
    check(ops.grouped_mm_accumulate.default, (x.t(), other, offs), {"out": out})
