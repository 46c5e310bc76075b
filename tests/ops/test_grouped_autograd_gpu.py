"""Gradients of grouped products: uncovered rows, accumulation, lists; compilers."""

from __future__ import annotations

import warnings
from types import ModuleType

import pytest
import torch
from autograd_cases import EVEN, GRADIENTS, GROUPS, random_leaves
from fused_cases import assert_near, leaves
from gemm_cases import BRAIN, DTYPES, HALF, SINGLE, dtype_id, random_tensor
from grouped_cases import draw_ends, offsets
from grouped_reference import loop

pytestmark = pytest.mark.gpu


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
@pytest.mark.parametrize("kind", EVEN)
def test_only_needed_gradients_are_computed(
    cutwheel: ModuleType, device: str, kind: str, needed: int
) -> None:
    how = "batches" if kind == "batched" else "random"
    case = GRADIENTS[f"grouped_mm-{kind}-{how}"]
    ours, _ = case.both(cutwheel, device)
    given = leaves(case.variants(HALF, device)[0], (needed == 0, needed == 1))
    result = ours(*given)
    with torch.profiler.profile() as profile:
        result.backward(torch.ones_like(result))
    calls = [event.count for event in profile.key_averages() if event.key.startswith("cutwheel::")]
    assert sum(calls) == 1
    assert [x is not None and x.grad is not None for x in given] == [needed == 0, needed == 1]


def test_out_dtype_gradients_have_the_operands_dtype(cutwheel: ModuleType, device: str) -> None:
    a, b = random_leaves(EVEN["rows"][:2], BRAIN, device)
    ends = draw_ends(60, GROUPS, "random")
    result = cutwheel.grouped_mm(a, b, offs=offsets(ends, device), out_dtype=SINGLE)
    assert result.dtype == SINGLE
    result.square().sum().backward()
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


@pytest.mark.no_dispatch_mode
def test_compile_of_lists(cutwheel: ModuleType, device: str) -> None:
    def model(*tensors: torch.Tensor) -> torch.Tensor:
        half = len(tensors) // 2
        results = cutwheel.grouped_mm_list(list(tensors[:half]), list(tensors[half:]))
        return sum((result.square().sum() for result in results), start=tensors[0].sum())

    sizes = ((24, 40, 56), (33, 65, 77))
    given = [random_tensor((m, k), BRAIN, device).requires_grad_() for m, _, k in sizes]
    given += [random_tensor((k, n), BRAIN, device).requires_grad_() for _, n, k in sizes]
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    grads = torch.autograd.grad(compiled(*given), given)
    wanted = torch.autograd.grad(model(*given), given)
    for got, want in zip(grads, wanted, strict=True):
        assert_near(got, want.double(), BRAIN)


@pytest.mark.no_dispatch_mode
def test_compiled_sums_of_a_bias_are_exact(cutwheel: ModuleType, device: str) -> None:
    """All 24 bits of float32 gradients go into the gradient of a bias."""
    a, b, bias = random_leaves((*EVEN["rows"][:2], (GROUPS, 56)), SINGLE, device)
    ends = draw_ends(60, GROUPS, "random")
    seed = torch.randn(a.shape[0], bias.shape[1], device=device)
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
