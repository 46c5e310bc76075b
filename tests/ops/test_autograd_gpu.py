"""What every differentiable op does: gradients against float64, once and twice, and autocast."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from autograd_cases import GRADIENTS
from fused_cases import (
    assert_near,
    compare_gradients,
    compare_second_gradients,
    in_double,
    leaves,
    present,
    subsets,
)
from gemm_cases import BRAIN, DTYPES, HALF, SINGLE, dtype_id, random_tensor

pytestmark = pytest.mark.gpu

cases = pytest.mark.parametrize("name", GRADIENTS)
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)


@dtypes
@cases
def test_gradients(cutwheel: ModuleType, device: str, name: str, dtype: torch.dtype) -> None:
    case = GRADIENTS[name]
    given = case.leaves(dtype, device)
    few = ((True,) * 4, (False, False, True, False), (True, False, False, True))
    for needed in subsets(len(given)) if len(given) < 4 else (*few, (False, False, False, True)):
        compare_gradients(*case.both(cutwheel, device), leaves(given, needed), dtype)


@cases
def test_second_gradients(cutwheel: ModuleType, device: str, name: str) -> None:
    case = GRADIENTS[name]
    compare_second_gradients(*case.both(cutwheel, device), case.leaves(SINGLE, device))


@dtypes
@cases
def test_gradients_of_a_sum_have_no_strides(
    cutwheel: ModuleType, device: str, name: str, dtype: torch.dtype
) -> None:
    case = GRADIENTS[name]
    ours, theirs = case.both(cutwheel, device)
    given = case.leaves(dtype, device)
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
    plain = present(case.leaves(BRAIN, device))
    given = [case.lay(layout, x.detach()).requires_grad_() for x in plain]
    exact = [x.detach().double().requires_grad_() for x in given]
    result, expected = ours(*given), theirs(*exact)
    seed = case.lay(layout, random_tensor(tuple(result.shape), BRAIN, device))
    grads = torch.autograd.grad(result, given, seed)
    wanted = torch.autograd.grad(expected, exact, seed.double())
    for got, want in zip(grads, wanted, strict=True):
        assert_near(got, want, BRAIN)


@pytest.mark.parametrize("dtype", [HALF, BRAIN], ids=dtype_id)
@cases
def test_autocast(cutwheel: ModuleType, device: str, name: str, dtype: torch.dtype) -> None:
    if device == "cpu":
        pytest.skip("autocast of CUDA tensors")
    case = GRADIENTS[name]
    ours, theirs = case.both(cutwheel, device)
    given = case.leaves(SINGLE, device)
    exact = in_double(given)
    with torch.autocast("cuda", dtype=dtype):
        result = ours(*given)
    assert result.dtype == (SINGLE if case.keeps_residual else dtype)
    result.sum().backward()
    theirs(*exact).sum().backward()
    for got, want in zip(present(given), present(exact), strict=True):
        assert got.grad is not None
        assert want.grad is not None
        assert got.grad.dtype == SINGLE
        assert_near(got.grad, want.grad, dtype)
    with torch.autocast("cuda", enabled=False):
        assert ours(*given).dtype == SINGLE
