"""Every epilogue of the manifest on every architecture against the same expression in float64."""

from __future__ import annotations

import math
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from epilogue_cases import Call, Served, declared, nan_outs, products, representatives, served
from gemm_cases import BRAIN, HALF, LAYOUTS, SINGLE, random_tensor, require_arch

pytestmark = pytest.mark.gpu

SHAPES = ((72, 136, 200), (67, 131, 77), (1, 40, 24), (300, 1000, 512))
EVERYWHERE = served(products())
# One epilogue of each form on every architecture.
FORMS = served(representatives(), BRAIN)


@pytest.fixture
def arch(request: pytest.FixtureRequest, environment: Any) -> str:
    """Only kernels of the case's architecture are candidates."""
    case: Served = request.getfixturevalue("case")
    require_arch(case.arch)
    environment(CUTWHEEL_ARCH=case.arch)
    return case.arch


@pytest.mark.usefixtures("arch")
@pytest.mark.parametrize("case", EVERYWHERE, ids=str)
def test_random_values(cutwheel: ModuleType, device: str, case: Served) -> None:
    for m, n, k in SHAPES:
        Call.random(case.epilogue, m, n, k, case.dtype, device, case.d).check(cutwheel)
    # No operand of the product at a multiple of 16 bytes.
    offset = LAYOUTS["row_offset"]
    call = Call.random(
        case.epilogue, 40, 56, 72, case.dtype, device, case.d, lay_a=offset, lay_b=offset
    )
    call.check(cutwheel)


def exact_call(case: Served, device: str, column: torch.Tensor) -> Call:
    """The product is `column` times powers of two, without any rounding."""
    column = column.to(case.dtype)
    a = torch.zeros(column.numel(), 8, dtype=case.dtype, device=device)
    a[:, 0] = column
    b = torch.zeros(8, 24, dtype=case.dtype, device=device)
    b[0] = torch.tensor([1, -0.5, 2, 0.25] * 6, dtype=case.dtype, device=device)
    scalars = {name: {"alpha": 1.0}.get(name, 0.125) for name in case.epilogue.scalars}
    left_out = dict.fromkeys(case.epilogue.tensors)
    return Call(case.epilogue, a, b, case.d, left_out, scalars, exact=True)


@pytest.mark.usefixtures("arch")
@pytest.mark.parametrize("case", EVERYWHERE, ids=str)
def test_the_function_itself(cutwheel: ModuleType, device: str, case: Served) -> None:
    """Where the accumulator is exact, only the function and one rounding are left to err."""
    bends = torch.linspace(-12, 12, 1023, device=device)
    tails = torch.tensor([-88, -40, -20.5, 20.5, 40, 88], device=device)
    small = torch.tensor([0.0, -0.0, 2.0**-8, -(2.0**-8), 2.0**-13, -(2.0**-13)], device=device)
    grid = torch.cat((bends, tails, small)).bfloat16()  # representable in TF32, too
    exact_call(case, device, grid).check(cutwheel)


@pytest.mark.usefixtures("arch")
@pytest.mark.parametrize("case", FORMS, ids=str)
def test_operands_that_are_left_out_are_zeros(
    cutwheel: ModuleType, device: str, case: Served
) -> None:
    for m, n, k in ((72, 136, 200), (33, 65, 40)):
        call = Call.random(case.epilogue, m, n, k, case.dtype, device)
        for name in call.operands:
            call.with_operands(**{name: None}).check(cutwheel)
            only = dict.fromkeys(call.operands) | {name: call.operands[name]}
            call.with_operands(**only).check(cutwheel)
        call.with_operands(**dict.fromkeys(call.operands)).check(cutwheel)


@pytest.mark.usefixtures("arch")
@pytest.mark.parametrize("case", FORMS, ids=str)
def test_operands_may_lie_anyhow(cutwheel: ModuleType, device: str, case: Served) -> None:
    for m, n, k in ((72, 136, 64), (33, 66, 40)):
        call = Call.random(case.epilogue, m, n, k, case.dtype, device)
        for name, x in call.operands.items():
            assert x is not None
            lays = ["row_padded_8", "row_padded_3", "row_offset", "every_second"]
            lays += ["column", "column_padded_1"] if x.dim() > 1 else []
            variants = [LAYOUTS[lay](x) for lay in lays]
            variants.append(x[..., :1].expand(x.shape))  # stride 0 along N (col: along M)
            if x.dim() > 1:
                variants.append(x[:1].expand(x.shape))  # one row for all: a row stride of 0
                variants.append(x[:1, :1].expand(x.shape))
            for variant in variants:
                call.with_operands(**{name: variant}).check(cutwheel)


@pytest.mark.usefixtures("arch")
@pytest.mark.parametrize("case", FORMS, ids=str)
def test_batches(cutwheel: ModuleType, device: str, case: Served) -> None:
    for row_batch in ((), (3,)):
        call = Call.random(
            case.epilogue, 40, 72, 56, case.dtype, device, batch=(3,), row_batch=row_batch
        )
        call.check(cutwheel)
        for name, x in call.operands.items():
            if x is not None and x.dim() == 3:  # one matrix for the whole batch
                call.with_operands(**{name: x[0]}).check(cutwheel)
                call.with_operands(**{name: x[:1].expand(x.shape)}).check(cutwheel)


@pytest.mark.usefixtures("arch")
@pytest.mark.parametrize("case", FORMS, ids=str)
def test_empty_extents(cutwheel: ModuleType, device: str, case: Served) -> None:
    for m, n, k in ((40, 56, 0), (1, 2, 0), (0, 56, 24), (40, 0, 24), (0, 0, 0)):
        call = Call.random(case.epilogue, m, n, k, case.dtype, device)
        call.check(cutwheel)  # without products the operands still count
        call.with_operands(**dict.fromkeys(call.operands)).check(cutwheel)
    call = Call.random(case.epilogue, 40, 56, 0, case.dtype, device, batch=(2,))
    call.check(cutwheel)


@pytest.mark.usefixtures("arch")
@pytest.mark.parametrize("case", FORMS, ids=str)
def test_alpha(cutwheel: ModuleType, device: str, case: Served) -> None:
    call = Call.random(case.epilogue, 72, 136, 200, case.dtype, device)
    for alpha in (0.0, 1.0, -2.5):
        replace(call, scalars={**call.scalars, "alpha": alpha}).check(cutwheel)
    scalars = {name: value for name, value in call.scalars.items() if name != "alpha"}
    replace(call, scalars=scalars).check(cutwheel)  # 1 if it is not given


@pytest.mark.usefixtures("arch")
@pytest.mark.parametrize("case", [c for c in FORMS if "beta" in c.epilogue.scalars], ids=str)
def test_beta_zero_does_not_read(cutwheel: ModuleType, device: str, case: Served) -> None:
    call = Call.random(case.epilogue, 40, 56, 64, case.dtype, device)
    poisoned = {
        name: torch.full_like(x, math.nan) for name, x in call.operands.items() if x is not None
    }
    call = replace(call, scalars={**call.scalars, "beta": 0.0})
    zeros = call.with_operands(**dict.fromkeys(call.operands))
    zeros.judge(call.with_operands(**poisoned).run(cutwheel))


def compare_masks(call: Call, results: list[torch.Tensor], exact_nan: bool) -> None:
    """NaN where torch has NaN, infinities likewise, and all else as usual.

    Where only infinities come in, torch's NaN is that of 0 times infinity in its own formula (the
    lower tail of GELU and SiLU, derivatives); another formula may give the limit, which is finite.
    """
    for result, wanted in zip(results, call.torchs(torch.float64), strict=True):
        nan = wanted.isnan()
        if exact_nan:
            assert torch.equal(result.isnan(), nan)
        else:
            assert not (result.isnan() & ~nan).any()
            assert not result[nan].isinf().any()
        assert torch.equal(result.isinf() & ~nan, wanted.isinf())
        assert torch.equal(result[wanted.isinf()].sign().double(), wanted[wanted.isinf()].sign())
        finite = wanted.isfinite()
        torch.testing.assert_close(result[finite].double(), wanted[finite], rtol=0.02, atol=0.06)


@pytest.mark.usefixtures("arch")
@pytest.mark.parametrize("case", served(products(), BRAIN), ids=str)
def test_nan_spreads_as_in_torch(cutwheel: ModuleType, device: str, case: Served) -> None:
    call = Call.random(case.epilogue, 70, 90, 48, case.dtype, device)
    call.a[3, 7] = math.nan
    call.b[5, 11] = math.nan
    compare_masks(call, call.run(cutwheel), exact_nan=True)
    call = Call.random(case.epilogue, 70, 90, 48, case.dtype, device)
    for x in call.operands.values():
        assert x is not None
        x.view(-1)[x.numel() // 3] = math.nan
        x.view(-1)[-1] = math.nan
    compare_masks(call, call.run(cutwheel), exact_nan=True)


@pytest.mark.usefixtures("arch")
@pytest.mark.parametrize("value", [math.inf, -math.inf])
@pytest.mark.parametrize("case", served(products(), BRAIN), ids=str)
def test_infinities_as_in_torch(
    cutwheel: ModuleType, device: str, case: Served, value: float
) -> None:
    call = Call.random(case.epilogue, 70, 90, 48, case.dtype, device)
    call.a[:] = call.a.abs() + 0.5  # no sum of infinities of both signs
    call.b[:] = (call.b.abs() + 0.1) * 0.1
    call.a[3, 7] = value
    compare_masks(call, call.run(cutwheel), exact_nan=False)
    for name, x in call.operands.items():
        call = Call.random(case.epilogue, 70, 90, 48, case.dtype, device)
        assert x is not None
        infinite = random_tensor(tuple(x.shape), x.dtype, device)
        infinite.view(-1)[x.numel() // 3] = value
        call = call.with_operands(**{name: infinite})
        compare_masks(call, call.run(cutwheel), exact_nan=False)


@pytest.mark.parametrize("dtype", [HALF, BRAIN, SINGLE], ids=str)
def test_two_runs_give_the_same_bits(cutwheel: ModuleType, device: str, dtype: torch.dtype) -> None:
    for epilogue in representatives():
        call = Call.random(epilogue, 264, 328, 1096, dtype, device)
        if not any(c.dtype == dtype for c in served([epilogue])):
            continue
        for first, second in zip(call.run(cutwheel), call.run(cutwheel), strict=True):
            assert torch.equal(first, second)


@pytest.mark.parametrize("name", sorted(e.name for e in products()))
@pytest.mark.parametrize("dtype", [HALF, BRAIN], ids=str)
def test_float32_results_of_16_bit_operands(
    cutwheel: ModuleType, device: str, name: str, dtype: torch.dtype
) -> None:
    """Every epilogue, with out=, too, which may be the view of an operand."""
    epilogue = declared()[name]
    for batch in ((), (3,)):
        call = Call.random(epilogue, 67, 132, 77, dtype, device, SINGLE, batch)
        results = call.check(cutwheel)
        outs = nan_outs(call)
        targets = tuple(outs) if epilogue.aux else outs[0]
        replace(call, out=targets).run(cutwheel)
        for result, out in zip(results, outs, strict=True):
            assert torch.equal(result, out)
    answer = call.explain(cutwheel)
    assert answer.row
    is_composed = name not in ("plain", "bias", "linear_combination")
    assert ("afterwards" in answer.parameters) == is_composed
