"""Sizes that torch.compile does not know while it traces, with its own backend and our kernels.

tests/python/test_unbacked.py has every op, on reference kernels.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from fused_cases import values
from gemm_cases import BRAIN

pytestmark = pytest.mark.gpu

N, K = 64, 48
E4M3, INT8 = torch.float8_e4m3fn, torch.int8


def weight(device: str, *leading: int) -> torch.Tensor:
    return values((*leading, N, K), BRAIN, device).requires_grad_()


def of_addmm(cutwheel: ModuleType, device: str) -> Callable[..., Any]:
    square = values((K, K), BRAIN, device).requires_grad_()
    return lambda x: cutwheel.addmm(x, x, square)


def of_matmul(cutwheel: ModuleType, device: str) -> Callable[..., Any]:
    matrix = weight(device)
    return lambda x: cutwheel.matmul(matrix, x.unsqueeze(0).expand(3, -1, -1).mT)


def of_linear(cutwheel: ModuleType, device: str) -> Callable[..., Any]:
    matrix, bias = weight(device), values((N,), BRAIN, device)
    return lambda x: cutwheel.linear(
        x, matrix, bias, activation="gelu", residual=cutwheel.linear(x, matrix)
    )


def of_experts(cutwheel: ModuleType, device: str) -> Callable[..., Any]:
    matrices, bias = weight(device, 2), values((2, N), BRAIN, device).requires_grad_()
    offs = torch.tensor([2, 3], device=device, dtype=torch.int32)
    return lambda x: cutwheel.grouped_linear(x, matrices, offs=offs, bias=bias)


def of_conv(cutwheel: ModuleType, device: str) -> Callable[..., Any]:
    filters = values((N, K, 3), BRAIN, device).requires_grad_()
    return lambda x: cutwheel.conv1d(x.t().unsqueeze(0), filters, padding=1, activation="relu")


def of_scaled_mm(dtype: torch.dtype) -> Callable[..., Callable[..., Any]]:
    def bind(cutwheel: ModuleType, device: str) -> Callable[..., Any]:
        b, scale_b = cutwheel.quantize(values((N, K), BRAIN, device), "rowwise", dtype)

        def call(x: torch.Tensor) -> Any:
            a, scale_a = cutwheel.quantize(x, "rowwise", dtype)
            return cutwheel.scaled_mm(a, b.t(), scale_a, scale_b=scale_b.t())

        return call

    return bind


def of_scaled_linear(cutwheel: ModuleType, device: str) -> Callable[..., Any]:
    source = torch.nn.Linear(K, N, device=device, dtype=BRAIN)
    layer = cutwheel.nn.ScaledLinear.from_linear(source, dtype=INT8, symmetric=False)
    return lambda x: layer(x.detach())


TRAINED = {
    "addmm": of_addmm,
    "matmul": of_matmul,
    "linear": of_linear,
    "grouped_linear": of_experts,
    "conv1d": of_conv,
}
CASES = {
    **TRAINED,
    "scaled_mm, fp8": of_scaled_mm(E4M3),
    "scaled_mm, int8": of_scaled_mm(INT8),
    "ScaledLinear": of_scaled_linear,
}


@pytest.mark.no_dispatch_mode
@pytest.mark.parametrize("name", CASES)
def test_one_graph_for_any_number_of_rows(cutwheel: ModuleType, device: str, name: str) -> None:
    """Those of x.nonzero(), one and none included; and forward and backward of a marked input."""
    is_cuda = torch.device(device).type == "cuda"
    if name == "scaled_mm, fp8" and is_cuda and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("fp8 needs compute capability 8.9")
    function = CASES[name](cutwheel, device)

    def chosen(x: torch.Tensor, mask: torch.Tensor) -> Any:
        return function(x.index_select(0, mask.nonzero().squeeze(1)))

    x = values((9, K), BRAIN, device)
    with (
        warnings.catch_warnings(),
        torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True),
    ):
        warnings.simplefilter("ignore")
        compiled = torch.compile(chosen, fullgraph=True)
        for rows in (5, 9, 1, 0):
            mask = torch.arange(9, device=device) < rows
            with torch.no_grad():
                try:
                    want = chosen(x, mask)
                except (ValueError, RuntimeError):  # no signal without pixels
                    assert (name, rows) == ("conv1d", 0)
                    continue
                torch.testing.assert_close(compiled(x, mask), want)
        if name not in TRAINED:
            return
        grads = []
        for call in (function, torch.compile(function, fullgraph=True)):
            given = x.detach().clone().requires_grad_()
            if call is not function:
                torch._dynamo.decorators.mark_unbacked(given, 0)
            result = call(given)
            grads.append(torch.autograd.grad(result, given, torch.ones_like(result))[0])
        torch.testing.assert_close(*grads, rtol=0.03, atol=0.3)
