"""Gradients of every differentiable op against float64, once and twice, and autocast."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from autograd_cases import GRADIENTS, compare_any_gradients
from fused_cases import (
    assert_near,
    compare_second_gradients,
    in_double,
    present,
    values,
)
from gemm_cases import BRAIN, DTYPES, HALF, SINGLE, dtype_id, random_tensor
from runtime import capture

pytestmark = pytest.mark.gpu

cases = pytest.mark.parametrize("name", GRADIENTS)
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)


@dtypes
@cases
def test_gradients(cutwheel: ModuleType, device: str, name: str, dtype: torch.dtype) -> None:
    """Gradients of any of the tensors, and of all in other sizes."""
    compare_any_gradients(GRADIENTS[name], cutwheel, device, dtype)


@cases
def test_second_gradients(cutwheel: ModuleType, device: str, name: str) -> None:
    case = GRADIENTS[name]
    for given in case.variants(SINGLE, device):
        compare_second_gradients(*case.both(cutwheel, device), given)


@dtypes
@cases
def test_gradients_of_a_sum_have_no_strides(
    cutwheel: ModuleType, device: str, name: str, dtype: torch.dtype
) -> None:
    case = GRADIENTS[name]
    ours, theirs = case.both(cutwheel, device)
    for given in case.variants(dtype, device):
        exact = in_double(given)
        ours(*given).sum().backward()
        theirs(*exact).sum().backward()
        for got, want in zip(present(given), present(exact), strict=True):
            assert got.grad is not None
            assert want.grad is not None
            assert_near(got.grad, want.grad, dtype)


@pytest.mark.parametrize(
    ("name", "layout"), [(name, layout) for name, case in GRADIENTS.items() for layout in case.lays]
)
def test_tensors_and_gradients_may_lie_anyhow(
    cutwheel: ModuleType, device: str, name: str, layout: str
) -> None:
    case = GRADIENTS[name]
    ours, theirs = case.both(cutwheel, device)
    for plain in map(present, case.variants(BRAIN, device)):
        given = [case.lay(layout, x.detach()).requires_grad_() for x in plain]
        exact = [x.detach().double().requires_grad_() for x in given]
        result, expected = ours(*given), theirs(*exact)
        seed = case.lay(layout, random_tensor(tuple(result.shape), BRAIN, device))
        grads = torch.autograd.grad(result, given, seed)
        wanted = torch.autograd.grad(expected, exact, seed.double())
        for got, want in zip(grads, wanted, strict=True):
            assert_near(got, want, BRAIN)


@pytest.mark.parametrize("dtype", [HALF, BRAIN], ids=dtype_id)
@pytest.mark.parametrize("name", [name for name, case in GRADIENTS.items() if case.casts])
def test_autocast(cutwheel: ModuleType, device: str, name: str, dtype: torch.dtype) -> None:
    if device == "cpu":
        pytest.skip("autocast of CUDA tensors")
    case = GRADIENTS[name]
    ours, theirs = case.both(cutwheel, device)
    for given in case.variants(SINGLE, device):
        exact = in_double(given)
        with torch.autocast("cuda", dtype=dtype):
            result = ours(*given)
        assert result.dtype == (SINGLE if case.keeps_residual else dtype)
        result.sum().backward()
        expected = theirs(*exact)
        expected.sum().backward()
        assert_near(result.detach(), expected.detach(), dtype)
        for got, want in zip(present(given), present(exact), strict=True):
            assert got.grad is not None
            assert want.grad is not None
            assert got.grad.dtype == SINGLE
            assert_near(got.grad, want.grad, dtype)
        with torch.autocast("cuda", enabled=False):
            assert ours(*given).dtype == SINGLE


@pytest.mark.no_dispatch_mode
@cases
def test_cuda_graph_of_a_training_step(cutwheel: ModuleType, cuda: str, name: str) -> None:
    case = GRADIENTS[name]
    ours, theirs = case.both(cutwheel, cuda)
    variants = (case.variants(BRAIN, cuda) for _ in range(3))
    for given, *others in zip(*variants, strict=True):
        seed = values(ours(*given).shape, BRAIN, cuda)

        def step(given: list[torch.Tensor | None] = given, seed: torch.Tensor = seed) -> list:
            result = ours(*given)
            return [result.detach(), *torch.autograd.grad(result, present(given), seed)]

        graph, results = capture(step)
        for other in others:
            with torch.no_grad():
                for held, fresh in zip(present(given), present(other), strict=True):
                    held.copy_(fresh)
            for result in results:
                # The gradient of what is added last is the seed itself.
                if result.untyped_storage().data_ptr() != seed.untyped_storage().data_ptr():
                    result.fill_(float("nan"))
            graph.replay()
            torch.cuda.synchronize()
            exact = in_double(given)
            expected = theirs(*exact)
            wanted = torch.autograd.grad(expected, present(exact), seed.double())
            for got, want in zip(results, (expected.detach(), *wanted), strict=True):
                assert_near(got, want, BRAIN)
