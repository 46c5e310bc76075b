"""Forward-mode AD and torch.func on the GPU: derivatives against float64, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from gemm_cases import BRAIN, HALF, SINGLE, dtype_id, random_tensor
from torch import func
from torch.autograd import forward_ad

pytestmark = pytest.mark.gpu

Tensor = torch.Tensor
Function = Callable[..., Any]
# Limits relative to the largest element: a product and what follows it, each rounded to the dtype.
TOLERANCE = {HALF: 8e-3, BRAIN: 6e-2, SINGLE: 8e-3}


def gated(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.silu(F.linear(x, w[0::2], b[0::2])) * F.linear(x, w[1::2], b[1::2])


# name: (cutwheel's function, torch's, shapes)
CASES: dict[str, tuple[Function, Function, tuple[tuple[int, ...], ...]]] = {
    "mm": (lambda w: w.mm, torch.mm, ((24, 40), (40, 56))),
    "baddbmm": (lambda w: w.baddbmm, torch.baddbmm, ((56,), (3, 24, 40), (3, 40, 56))),
    "matmul": (lambda w: w.matmul, torch.matmul, ((2, 1, 24, 40), (3, 40, 56))),
    "linear": (lambda w: w.linear, F.linear, ((24, 40), (56, 40), (56,))),
    "linear_gelu": (
        lambda w: lambda x, y, b, r: w.linear(x, y, b, activation="gelu", residual=r),
        lambda x, y, b, r: F.gelu(F.linear(x, y, b) + r),
        ((24, 40), (56, 40), (56,), (24, 56)),
    ),
    "gated_linear": (
        lambda w: lambda x, y, b: w.gated_linear(x, y, bias=b, interleaved=True),
        gated,
        ((24, 40), (56, 40), (56,)),
    ),
    "conv2d": (
        lambda w: lambda *t: w.conv2d(*t, padding=1, activation="relu"),
        lambda *t: F.relu(F.conv2d(*t, padding=1)),
        ((2, 16, 9, 10), (24, 16, 3, 3), (24,)),
    ),
}


def near(got: Any, wanted: Any, dtype: torch.dtype) -> None:
    for result, exact in zip(_flat(got), _flat(wanted), strict=True):
        assert result.shape == exact.shape
        error = (result.double() - exact).abs().max() / exact.abs().max().clamp_min(1e-3)
        assert error.item() <= TOLERANCE[dtype], f"error {error.item():.3g} of the largest element"


def _flat(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [tensor for each in value for tensor in _flat(each)]


@pytest.mark.parametrize("dtype", [HALF, BRAIN, SINGLE], ids=dtype_id)
@pytest.mark.parametrize("name", CASES)
def test_derivatives(cutwheel: ModuleType, device: str, name: str, dtype: torch.dtype) -> None:
    ours, torchs, shapes = CASES[name]
    function = ours(cutwheel)
    primals = [random_tensor(shape, dtype, device) for shape in shapes]
    tangents = [random_tensor(shape, dtype, device) for shape in shapes]
    exact = tuple(t.double() for t in primals), tuple(t.double() for t in tangents)
    wanted = func.jvp(torchs, *exact)
    near(func.jvp(function, tuple(primals), tuple(tangents)), wanted, dtype)
    near(func.linearize(function, *primals)[1](*tangents), wanted[1], dtype)
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(*pair) for pair in zip(primals, tangents, strict=True)]
        near(forward_ad.unpack_dual(function(*duals)).tangent, wanted[1], dtype)
    every = tuple(range(len(shapes)))

    def loss(function: Function) -> Function:
        return lambda *tensors: function(*tensors).float().square().mean()

    def loss_in_double(*tensors: Tensor) -> Tensor:
        return torchs(*tensors).square().mean()

    near(
        func.grad(loss(function), every)(*primals),
        func.grad(loss_in_double, every)(*exact[0]),
        dtype,
    )
    pairs = [torch.stack(pair) for pair in zip(primals, tangents, strict=True)]
    doubles = [pair.double() for pair in pairs]
    near(func.vmap(function)(*pairs), func.vmap(torchs)(*doubles), dtype)
    near(
        func.vmap(func.grad(loss(function)))(*pairs),
        func.vmap(func.grad(loss_in_double))(*doubles),
        dtype,
    )


def test_second_derivatives(cutwheel: ModuleType, device: str) -> None:
    x, w = random_tensor((3, 8), SINGLE, device), random_tensor((8, 8), SINGLE, device)

    def loss(x: Tensor) -> Tensor:
        result: Tensor = cutwheel.linear(x, w, activation="gelu").square().sum()
        return result

    def exact(x: Tensor) -> Tensor:
        return F.gelu(F.linear(x, w.double())).square().sum()

    near(func.hessian(loss)(x), func.hessian(exact)(x.double()), SINGLE)


def test_backward_of_a_dual_gradient(cutwheel: ModuleType, device: str) -> None:
    """Autograd's threads know of the level, too."""
    shapes = ((24, 40), (56, 40), (56,))
    tensors = [random_tensor(shape, HALF, device) for shape in shapes]
    grad, tangent = (random_tensor((24, 56), HALF, device) for _ in range(2))
    found = []
    for function, dtype in (
        (lambda *t: cutwheel.linear(*t, activation="gelu"), HALF),
        (lambda *t: F.gelu(F.linear(*t)), torch.float64),
    ):
        leaves = [t.to(dtype).requires_grad_() for t in tensors]
        result = function(*leaves)
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(grad.to(dtype), tangent.to(dtype))
            grads = torch.autograd.grad(result, leaves, dual)
            found.append([forward_ad.unpack_dual(each).tangent for each in grads])
    near(*found, HALF)


def test_refused(cutwheel: ModuleType, device: str) -> None:
    x, w = random_tensor((32, 64), BRAIN, device), random_tensor((2, 64, 64), BRAIN, device)
    offs = torch.tensor([10, 32], dtype=torch.int32, device=device)
    values, scales = cutwheel.quantize(x, "tensorwise", torch.int8)
    for call in (
        lambda x: cutwheel.grouped_mm(x, w, offs=offs),
        lambda x: cutwheel.grouped_linear(x, w, offs=offs, activation="relu"),
        lambda x: cutwheel.grouped_gated_linear(x, w, offs=offs, interleaved=True),
        lambda x: cutwheel.quantize(x, "tensorwise", torch.int8)[1],
        lambda x: cutwheel.scaled_mm(values, values.t(), scales * x.float().sum(), scale_b=scales),
    ):
        with pytest.raises(NotImplementedError, match="is differentiated by torch"):
            func.jvp(call, (x,), (x,))
        with forward_ad.dual_level():
            with pytest.raises(NotImplementedError, match="is differentiated by torch"):
                call(forward_ad.make_dual(x, x))
            call(x)


@pytest.mark.no_dispatch_mode
def test_kernels_are_used_again(cutwheel: ModuleType, device: str) -> None:
    a, b = (random_tensor((16, 16), BRAIN, device) for _ in range(2))
    func.jvp(cutwheel.mm, (a, b), (a, b))
    with torch.profiler.profile() as profile:
        cutwheel.mm(a, b)
    assert [e.key for e in profile.key_averages() if e.key.startswith("cutwheel::")]
