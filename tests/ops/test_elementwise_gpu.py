"""Epilogues without a product, the backward passes: values, and sums over the rows."""

from __future__ import annotations

import math
import random
from types import ModuleType
from typing import Any

import pytest
import torch
from elementwise_cases import check, random_operands, run, torchs
from epilogue_cases import Served, elementwise, served
from gemm_cases import BRAIN, DTYPES, LAYOUTS, dtype_id, random_tensor, require_arch

pytestmark = pytest.mark.gpu

CASES = served(elementwise())
BRAINS = [case for case in CASES if case.dtype == BRAIN and case.arch == "sm80"]
SUMS = [case for case in BRAINS if case.epilogue.name == "identity_backward"]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_random_values(cutwheel: ModuleType, device: str, environment: Any, case: Served) -> None:
    require_arch(case.arch)
    environment(CUTWHEEL_ARCH=case.arch)
    for shape in ((72, 136), (67, 131), (1, 40), (300, 1000), (2, 3, 5, 24), (17,), (5, 1)):
        check(case.epilogue, random_operands(case.epilogue, shape, case.dtype, device))


@pytest.mark.parametrize("case", BRAINS, ids=str)
def test_operands_may_lie_anyhow(cutwheel: ModuleType, device: str, case: Served) -> None:
    for shape in ((72, 136), (33, 65)):
        operands = random_operands(case.epilogue, shape, BRAIN, device)
        for index, x in enumerate(operands):
            lays = ("row_padded_8", "row_padded_3", "row_offset", "column", "every_second")
            variants = [LAYOUTS[lay](x) for lay in lays]
            variants += [x[:1].expand(x.shape), x[:, :1].expand(x.shape)]
            variants += [x[:1, :1].expand(x.shape)]  # the gradient of a sum
            for variant in variants:
                check(case.epilogue, [*operands[:index], variant, *operands[index + 1 :]])


@pytest.mark.parametrize("case", BRAINS, ids=str)
def test_empty(cutwheel: ModuleType, device: str, case: Served) -> None:
    for shape in ((0, 24), (24, 0), (0, 0), (2, 0, 24)):
        operands = random_operands(case.epilogue, shape, BRAIN, device)
        result, sums = run(case.epilogue, operands, with_result=True, with_sums=True)
        expected = torchs(case.epilogue, operands)
        assert result.shape == expected.shape
        assert torch.equal(sums, torch.zeros_like(sums))  # also over no rows
        assert sums.shape == expected.shape[-1:]


@pytest.mark.parametrize("case", BRAINS, ids=str)
def test_nan_spreads_as_in_torch(cutwheel: ModuleType, device: str, case: Served) -> None:
    for index in range(len(case.epilogue.tensors)):
        operands = random_operands(case.epilogue, (70, 90), BRAIN, device)
        operands[index].view(-1)[1234] = math.nan
        operands[index].view(-1)[-1] = math.nan
        result, sums = run(case.epilogue, operands, with_result=True, with_sums=True)
        expected = torchs(case.epilogue, [x.double() for x in operands])
        assert torch.equal(result.isnan(), expected.isnan())
        assert torch.equal(sums.isnan(), expected.isnan().any(0))


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
@pytest.mark.parametrize("case", SUMS, ids=str)
def test_sums_of_integers_are_exact(
    cutwheel: ModuleType, device: str, case: Served, dtype: torch.dtype
) -> None:
    """Integers add up exactly in float32: a row left out or read twice shows."""
    rng = random.Random(5)
    extents = [(1, 1), (1, 4099), (10_000, 1), (9_999, 33), (257, 2049), (4_096, 512)]
    extents += [(rng.randint(1, 10_000), rng.randrange(1, 1500, 2)) for _ in range(10)]
    for m, n in extents:
        grad = torch.randint(-2, 4, (m, n), device=device).to(dtype)
        result, sums = run(case.epilogue, [grad], with_result=False, with_sums=True)
        assert result.shape == (0,)
        assert torch.equal(sums, grad.double().sum(0).to(dtype)), f"[{m}, {n}]"


@pytest.mark.parametrize("case", BRAINS, ids=str)
def test_sums_of_many_rows(cutwheel: ModuleType, device: str, case: Served) -> None:
    for shape in ((10_000, 33), (7_001, 130)):
        operands = random_operands(case.epilogue, shape, BRAIN, device)
        check(case.epilogue, operands)
        first = run(case.epilogue, operands, with_result=True, with_sums=True)
        second = run(case.epilogue, operands, with_result=True, with_sums=True)
        for one, other in zip(first, second, strict=True):
            assert torch.equal(one, other), "two runs differ"


def test_more_than_2_to_the_31_elements(cutwheel: ModuleType, device: str) -> None:
    if device == "cpu" or not SUMS or torch.cuda.mem_get_info()[0] < 20e9:
        pytest.skip("needs a GPU with 20 GB of free memory")
    m, n = 2**17 + 8, 2**14 + 8
    grad = torch.ones((m, n), dtype=BRAIN, device=device)
    grad[-1] = 2
    result, sums = run(SUMS[0].epilogue, [grad], with_result=True, with_sums=True)
    assert torch.equal(result[-2:], grad[-2:])
    assert torch.equal(sums, torch.full_like(sums, m + 1))


@pytest.mark.no_dispatch_mode
@pytest.mark.parametrize("case", BRAINS, ids=str)
def test_opcheck(cutwheel: ModuleType, device: str, case: Served) -> None:
    for shape in ((24, 40), (2, 3, 17)):
        operands = random_operands(case.epilogue, shape, BRAIN, device)
        for asked in ((True, True), (True, False), (False, True)):
            torch.library.opcheck(
                torch.ops.cutwheel.elementwise.default, (operands, case.epilogue.name, *asked)
            )


@pytest.mark.skipif(not BRAINS, reason="no kernels of the family elementwise")
def test_bad_input(cutwheel: ModuleType, device: str) -> None:
    op = torch.ops.cutwheel.elementwise
    grad, z = (random_tensor((24, 40), BRAIN, device) for _ in range(2))
    # The library's own classes: ValueError and TypeError arise in Python's wrappers.
    for operands, epilogue in (
        ([grad], "gelu_backward"),  # too few
        ([grad, z, z], "gelu_backward"),
        ([grad, z[:, :5]], "gelu_backward"),
        ([grad, z.half()], "gelu_backward"),
        ([grad, z], "gated_gelu_backward"),  # z is not twice as wide
        ([grad, z], "gelu_backwards"),
        ([grad], "plain"),
        ([grad, z.double()], "gelu_backward"),
    ):
        with pytest.raises((RuntimeError, ValueError, TypeError)):
            op(operands, epilogue)
    check(BRAINS[0].epilogue, random_operands(BRAINS[0].epilogue, (24, 40), BRAIN, device))
