"""out=: layouts, aliases and gradients; threads, and what explain says."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from gemm_cases import BRAIN, DTYPES, HALF, SINGLE, dtype_id, operands, random_tensor
from reference import Problem, assert_as_good_as
from runtime import in_threads

pytestmark = pytest.mark.gpu


def nan_out(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> torch.Tensor:
    return torch.full(shape, float("nan"), dtype=dtype, device=device)


OUTS: dict[str, Callable[[int, int, torch.dtype, str], torch.Tensor]] = {
    "row": lambda m, n, dtype, device: nan_out((m, n), dtype, device),
    "column": lambda m, n, dtype, device: nan_out((n, m), dtype, device).t(),
    "padded": lambda m, n, dtype, device: nan_out((m, n + 8), dtype, device)[:, :n],
    "padded_to_16_bytes": lambda m, n, dtype, device: nan_out(
        (m, n // 16 * 16 + 32), dtype, device
    )[:, :n],
    "padded_oddly": lambda m, n, dtype, device: nan_out((m, n + 3), dtype, device)[:, 1 : n + 1],
    "every_second": lambda m, n, dtype, device: nan_out((m, 2 * n), dtype, device)[:, ::2],
    "every_second_row": lambda m, n, dtype, device: nan_out((2 * m, n), dtype, device)[::2],
    "column_padded": lambda m, n, dtype, device: nan_out((n, m + 5), dtype, device)[:, :m].t(),
}


@pytest.mark.parametrize("layout", OUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_out(cutwheel: ModuleType, device: str, dtype: torch.dtype, layout: str) -> None:
    for m, n, k in ((72, 88, 104), (33, 65, 77)):
        a, b = operands(m, n, k, dtype, device)
        c = random_tensor((n,), dtype, device)
        for given in {dtype, SINGLE}:
            out = OUTS[layout](m, n, given, device)
            strides, address, storage = out.stride(), out.data_ptr(), out.untyped_storage()
            untouched = storage.nbytes() // out.element_size() - out.numel()
            assert cutwheel.mm(a, b, out=out) is out
            assert (out.stride(), out.data_ptr()) == (strides, address)
            exact = Problem.of(a, b)
            assert_as_good_as(out, exact.value.to(given), exact)
            # Memory between the elements of a view is not written.
            whole = torch.empty(0, dtype=given, device=device).set_(storage)
            assert int(whole.isnan().sum()) == untouched
            assert cutwheel.addmm(c, a, b, beta=2, out=out) is out
            exact = Problem.of(a, b, c, beta=2)
            assert_as_good_as(out, exact.value.to(given), exact)


def test_out_of_batches(cutwheel: ModuleType, device: str) -> None:
    a, b = operands(40, 56, 72, HALF, device, batch=(3,))
    exact = Problem.of(a, b)
    for out in (
        nan_out((3, 40, 56), HALF, device),
        nan_out((3, 56, 40), HALF, device).mT,
        nan_out((40, 3, 56), HALF, device).transpose(0, 1),
    ):
        assert cutwheel.bmm(a, b, out=out) is out
        assert_as_good_as(out, exact.value.to(HALF), exact)
        out.fill_(float("nan"))
        assert cutwheel.baddbmm(a[:, :1, :56], a, b, beta=0, out=out) is out
        assert_as_good_as(out, exact.value.to(HALF), exact)


def test_out_may_be_the_addend(cutwheel: ModuleType, device: str) -> None:
    a, b = operands(72, 88, 104, BRAIN, device)
    c = random_tensor((72, 88), BRAIN, device)
    exact = Problem.of(a, b, c, beta=0.5)
    assert cutwheel.addmm(c, a, b, beta=0.5, out=c) is c
    assert_as_good_as(c, exact.value.to(BRAIN), exact)
    row = random_tensor((1, 88), BRAIN, device)  # a row addend that is also D
    exact = Problem.of(a[:1], b, row)
    assert cutwheel.addmm(row, a[:1], b, out=row) is row
    assert_as_good_as(row, exact.value.to(BRAIN), exact)


def test_out_tells_autograd_that_it_changed(cutwheel: ModuleType, device: str) -> None:
    a, b = operands(24, 40, 32, HALF, device)
    buffer = random_tensor((24, 40), HALF, device)
    weight = torch.ones_like(buffer, requires_grad=True)
    product = buffer * weight  # saves buffer for its backward
    cutwheel.mm(a, b, out=buffer)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


def test_explain_of_an_empty_product(cutwheel: ModuleType, cuda: str) -> None:
    explanation = cutwheel.explain(
        "mm",
        torch.empty(0, 64, device=cuda, dtype=HALF),
        torch.empty(64, 8, device=cuda, dtype=HALF),
    )
    assert explanation.row is None


def test_out_with_gradients_is_refused(cutwheel: ModuleType, device: str) -> None:
    a, b = operands(8, 16, 24, HALF, device)
    out = nan_out((8, 16), HALF, device)
    a.requires_grad_()
    with pytest.raises(RuntimeError, match="automatic differentiation"):
        cutwheel.mm(a, b, out=out)
    with torch.no_grad():
        cutwheel.mm(a, b, out=out)
    assert not out.isnan().any()


@pytest.mark.no_dispatch_mode
def test_second_thread(cutwheel: ModuleType, device: str) -> None:
    a, b = operands(72, 88, 104, HALF, device)
    a.requires_grad_()

    def work(_: int) -> None:
        result = cutwheel.mm(a, b)
        result.sum().backward()
        assert_as_good_as(result, torch.mm(a, b), Problem.of(a, b))

    in_threads(1, work)
    assert a.grad is not None


def test_a_call_that_no_row_serves_names_what_was_asked(
    cutwheel: ModuleType, cuda: str, environment: Any
) -> None:
    row = next(kernel for kernel in cutwheel.kernels() if kernel.a == "bf16" and kernel.tile[0] > 1)
    environment(CUTWHEEL_KERNEL=row.name)
    a, b = operands(40, 56, 72, HALF, cuda)
    with pytest.raises(NotImplementedError, match=r"(?s)mm: no kernel.*f16.*CUTWHEEL_KERNEL"):
        cutwheel.mm(a, b)


def test_explain(cutwheel: ModuleType, cuda: str) -> None:
    a, b = operands(256, 512, 1024, BRAIN, cuda)
    explanation = cutwheel.explain("mm", a, b)
    assert len(explanation.candidates) > 1
    assert explanation.parameters["request"]["m"] == 256
    with pytest.raises(ValueError, match="mat2"):
        cutwheel.explain("mm", a, b[:-1])
