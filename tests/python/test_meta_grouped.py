"""Meta functions of the grouped products: results, gradients, tracing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from cpu_reference import CpuOps
from torch._subclasses.fake_tensor import FakeTensorMode

HALF, SINGLE, E4M3, E5M2 = torch.float16, torch.float32, torch.float8_e4m3fn, torch.float8_e5m2
Make = Callable[..., torch.Tensor]
FUSED = ("relu", "gelu", "gelu_tanh", "silu")


def on_meta(*shape: int, dtype: torch.dtype = HALF, **_: Any) -> torch.Tensor:
    """A CPU-only torch has no device guard for a backward pass on fake CUDA tensors."""
    grad = dtype.is_floating_point and dtype.itemsize > 1
    return torch.empty(shape, dtype=dtype, device="meta", requires_grad=grad)


@pytest.fixture
def fake(cutwheel: ModuleType) -> Iterator[Make]:
    """Makes fake CUDA tensors; none of it needs a GPU."""
    with FakeTensorMode():
        yield lambda *shape, dtype=HALF, device="cuda": torch.empty(
            shape, dtype=dtype, device=device
        )


def ends(make: Make, groups: int = 3, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return make(groups, dtype=dtype)


PRODUCTS = {
    "rows": ((10, 6), (3, 6, 8), (10, 8)),
    "no_rows": ((0, 6), (3, 6, 8), (0, 8)),
    "no_k": ((10, 0), (3, 0, 8), (10, 8)),
    "columns": ((3, 8, 6), (6, 10), (8, 10)),
    "k": ((6, 10), (10, 8), (3, 6, 8)),
    "k_of_nothing": ((6, 0), (0, 8), (3, 6, 8)),
    "batched": ((3, 4, 6), (3, 6, 8), (3, 4, 8)),
}


@pytest.mark.parametrize("kind", PRODUCTS)
@pytest.mark.parametrize("out_dtype", [None, SINGLE])
def test_products(
    cutwheel: ModuleType, fake: Make, kind: str, out_dtype: torch.dtype | None
) -> None:
    a, b, shape = PRODUCTS[kind]
    if kind == "columns":  # whose result is copied, which a CPU-only torch has not for fake CUDA
        fake = on_meta
    for dtype in (torch.int32, torch.int64):
        offs = None if kind == "batched" else ends(fake, dtype=dtype)
        result = cutwheel.grouped_mm(fake(*a), fake(*b), offs=offs, out_dtype=out_dtype)
        assert result.shape == shape
        assert result.dtype == (out_dtype or HALF)
        assert result.is_contiguous()
        assert result.device.type == ("meta" if kind == "columns" else "cuda")
    if kind.startswith("k"):
        total = fake(*shape, dtype=SINGLE)
        assert cutwheel.grouped_mm(fake(*a), fake(*b), offs=offs, accumulate_into=total) is total
    else:
        bias = fake(3, 8, dtype=out_dtype or HALF)
        arguments = {"offs": offs, "bias": bias, "out_dtype": out_dtype}
        assert cutwheel.grouped_mm(fake(*a), fake(*b), **arguments).shape == shape
        arguments["bias"] = fake(3, 8, dtype=HALF)
        assert cutwheel.grouped_mm(fake(*a), fake(*b), **arguments).shape == shape


@pytest.mark.parametrize("kind", PRODUCTS)
def test_gradients_of_products(cutwheel: ModuleType, kind: str) -> None:
    a, b, _ = PRODUCTS[kind]
    given = [on_meta(*a), on_meta(*b)]
    if not kind.startswith("k"):
        given.append(on_meta(3, 8))
    offs = None if kind == "batched" else ends(on_meta)
    bias = given[2] if len(given) > 2 else None
    for out_dtype in (None, SINGLE):
        y = cutwheel.grouped_mm(*given[:2], offs=offs, bias=bias, out_dtype=out_dtype)
        for tensor, grad in zip(given, torch.autograd.grad(y.sum(), given), strict=True):
            assert (grad.shape, grad.dtype) == (tensor.shape, tensor.dtype)


@pytest.mark.parametrize("activation", [*FUSED, None])
def test_linear(cutwheel: ModuleType, activation: str | None) -> None:
    x, w, bias, offs = on_meta(10, 6), on_meta(3, 8, 6), on_meta(3, 8), ends(on_meta)
    y = cutwheel.grouped_linear(x, w, offs=offs, bias=bias, activation=activation)
    assert y.shape == (10, 8)
    results = [(y, (x, w, bias))]
    if activation:
        gated = cutwheel.grouped_gated_linear(x, w, offs=offs, activation=activation)
        assert gated.shape == (10, 4)
        results.append((gated, (x, w)))
    for y, given in results:
        for tensor, grad in zip(given, torch.autograd.grad(y.sum(), given), strict=True):
            assert (grad.shape, grad.stride()) == (tensor.shape, tensor.stride())


SCALES = {
    "rowwise": ((10, 1), (3, 1, 160)),
    "rowwise_flat": ((10,), (3, 160)),
    "blockwise": ((10, 3), (3, 3, 2)),
}


@pytest.mark.parametrize("recipe", SCALES)
def test_scaled(cutwheel: ModuleType, fake: Make, recipe: str) -> None:
    a, b = fake(10, 260, dtype=E4M3), fake(3, 160, 260, dtype=E5M2).mT
    scales = [fake(*shape, dtype=SINGLE) for shape in SCALES[recipe]]
    result = cutwheel.scaled_grouped_mm(a, b, scales[0], scale_b=scales[1], offs=ends(fake))
    assert (result.shape, result.dtype) == ((10, 160), torch.bfloat16)
    for dtype in (HALF, SINGLE):
        bias = fake(3, 160, dtype=dtype)
        arguments = {"offs": ends(fake), "bias": bias, "output_dtype": HALF, "use_fast_accum": True}
        arguments |= {"scale_a": scales[0], "scale_b": scales[1]}
        assert cutwheel.scaled_grouped_mm(a, b, **arguments).dtype == HALF


def test_compile(cutwheel: ModuleType, traced_on_cpu: CpuOps) -> None:
    """No graph break, and other ends and numbers of rows without a difference."""

    def model(
        x: torch.Tensor, up: torch.Tensor, down: torch.Tensor, bias: torch.Tensor, offs: Any
    ) -> torch.Tensor:
        h = cutwheel.grouped_gated_linear(x, up, offs=offs)
        y = cutwheel.grouped_mm(h, down.mT, offs=offs, bias=bias)
        total = cutwheel.grouped_mm(y.mT, h, offs=offs).square().sum()
        total = total + cutwheel.grouped_mm(down, h.mT, offs=offs).square().sum()
        total = total + cutwheel.grouped_mm(up, down).square().sum()
        for activation in (None, *FUSED):
            z = cutwheel.grouped_linear(y, up, offs=offs, activation=activation)
            total = total + z.square().sum()
        first, second = cutwheel.grouped_mm_list([x, y], [down[0], up[0].t()], [None, y[0, :1]])
        return total + first.sum() + second.sum()

    shapes = ((3, 8, 6), (3, 6, 4), (3, 6))
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for rows, last in ((10, 7), (10, 10), (13, 0)):
        offs = torch.tensor([min(2, last), min(2, last), last], dtype=torch.int32)
        given = [torch.randn(rows, 6), *(torch.randn(shape) / 2 for shape in shapes)]
        for tensor in given:
            tensor.requires_grad_()
        grads = [torch.autograd.grad(f(*given, offs), given) for f in (compiled, model)]
        for got, want in zip(*grads, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
        with torch.no_grad():
            torch.testing.assert_close(compiled(*given, offs), model(*given, offs))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compile_of_accumulation(cutwheel: ModuleType, traced_on_cpu: CpuOps, backend: str) -> None:
    """Accumulation by a product, and by the wgrad of a backward pass."""

    def model(
        x: torch.Tensor, w: torch.Tensor, g: torch.Tensor, offs: torch.Tensor, *totals: torch.Tensor
    ) -> torch.Tensor:
        y = cutwheel.grouped_mm(x, w.mT, offs=offs, accumulate_into=totals[0].mT)
        cutwheel.grouped_mm(g.mT, g, offs=offs, accumulate_into=totals[1])
        result: torch.Tensor = y.square().sum()
        return result

    x, w = torch.randn(10, 6, requires_grad=True), torch.randn(3, 8, 6, requires_grad=True)
    g, offs = torch.randn(10, 4), torch.tensor([2, 5, 9])
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    results = []
    for function in (compiled, model):
        totals = torch.zeros(3, 8, 6), torch.zeros(3, 4, 4)
        function(x, w, g, offs, *totals).backward()
        assert w.grad is None
        results.append(totals)
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want)
        assert want.any()


def test_compile_of_scaled_products(cutwheel: ModuleType, traced_on_cpu: CpuOps) -> None:
    def model(x: torch.Tensor, w: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
        a, scale_a = cutwheel.quantize(x, "rowwise")
        b, scale_b = cutwheel.quantize(w, "rowwise")
        given = {"scale_a": scale_a, "scale_b": scale_b.view(3, 8), "offs": offs}
        result: torch.Tensor = cutwheel.scaled_grouped_mm(a, b.mT, **given)
        return result

    torch._dynamo.reset()
    given = torch.randn(10, 16), torch.randn(3, 8, 16), torch.tensor([1, 5, 9])
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(*given), model(*given))


def test_opcheck(cutwheel: ModuleType, traced_on_cpu: CpuOps) -> None:
    ops, check = torch.ops.cutwheel, torch.library.opcheck
    x, w, g = torch.randn(10, 6), torch.randn(3, 8, 6), torch.randn(10, 8)
    offs, bias = torch.tensor([2, 2, 7], dtype=torch.int32), torch.randn(3, 8)
    tests = ("test_schema", "test_faketensor")
    for op, given in (
        (ops.grouped_mm, (x, w.mT, offs, bias, None, True)),
        (ops.grouped_mm, (x.mT, g, offs.long(), None, None, True)),
        (ops.grouped_linear_fused, (x, w, offs, bias, "bias_gelu", True)),
        (ops.grouped_linear_fused, (x, w, offs, None, "gated_silu", True)),
        (ops.grouped_linear_fused_aux, (x, w, offs, bias, "bias_gelu_aux", True)),
        (ops.grouped_linear_fused_aux, (x, w, offs, None, "gated_silu_aux", True)),
    ):
        check(op.default, given, test_utils=tests)
    out = torch.zeros(3, 6, 8)
    check(ops.grouped_mm_accumulate.default, (x.mT, g, offs, True), {"out": out}, test_utils=tests)
