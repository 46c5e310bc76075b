"""Inputs and references of the fused linear layers: torch's own functions, in any dtype."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from epilogue_cases import Call
from epilogue_reference import ACTIVATIONS, Epilogue
from gemm_cases import BRAIN, HALF, SINGLE

TRAINED = ("relu", "gelu", "gelu_tanh", "silu")  # with a derivative of their own
COMPOSED = ("sigmoid", "tanh", "hardswish", "softplus", "leaky_relu")
PLACES = ("no_residual", "before", "after")
# Relative to the largest element of a gradient: three products and their roundings.
TOLERANCE = {HALF: 4e-3, BRAIN: 3e-2, SINGLE: 4e-3}

Tensors = list[torch.Tensor | None]


def activate(name: str | None, z: torch.Tensor) -> torch.Tensor:
    if name is None:
        return z
    if name == "leaky_relu":
        return torch.nn.functional.leaky_relu(z)
    return ACTIVATIONS[name](z)


def torch_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    activation: str | None = None,
    residual: torch.Tensor | None = None,
    residual_after_activation: bool = False,
) -> torch.Tensor:
    z = torch.nn.functional.linear(x, weight, bias)
    if residual is not None and not residual_after_activation:
        return activate(activation, z + residual)
    y = activate(activation, z)
    return y if residual is None else y + residual


def torch_gated(
    x: torch.Tensor,
    weight: torch.Tensor,
    activation: str = "silu",
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    z = torch.nn.functional.linear(x, weight, bias)
    return activate(activation, z[..., 0::2]) * z[..., 1::2]


def values(shape: Sequence[int], dtype: torch.dtype, device: str) -> torch.Tensor:
    """bfloat16 values in every dtype: TF32 does not round them, so ReLU's z keeps its sign."""
    return torch.randn(*shape, device=device).to(BRAIN).to(dtype)


def inputs(
    leading: Sequence[int],
    n: int,
    k: int,
    dtype: torch.dtype,
    device: str,
    bias: bool = True,
    residual: bool = False,
) -> Tensors:
    """x [*leading, K], weight [N, K], bias [N] or None, residual [*leading, N] or None.

    The product has a standard deviation of 2.
    """
    scale = 2.0 ** round(torch.tensor(2 * max(k, 1) ** -0.5).log2().item())
    return [
        values((*leading, k), dtype, device),
        scale * values((n, k), dtype, device),
        values((n,), dtype, device) if bias else None,
        values((*leading, n), dtype, device) if residual else None,
    ]


def keywords(place: str, residual: torch.Tensor | None) -> dict[str, Any]:
    if place == "no_residual":
        return {}
    return {"residual": residual, "residual_after_activation": place == "after"}


def _rows(x: torch.Tensor) -> torch.Tensor:
    """[..., X] as [rows, X]; unlike reshape(-1, X) for X = 0, too."""
    return x.detach().reshape(math.prod(x.shape[:-1]), x.shape[-1])


def check_linear(
    result: torch.Tensor, given: Tensors, activation: str | None, place: str = "no_residual"
) -> None:
    """Against the same as an epilogue, in float64, by the rule of reference.py."""
    x, weight, bias, residual = given
    assert x is not None
    assert weight is not None
    z = "accum" + " + bias" * (bias is not None) + " + residual" * (place == "before")
    slope = ", 0.01" if activation == "leaky_relu" else ""
    expr = (f"{activation}({z}{slope})" if activation else z) + " + residual" * (place == "after")
    operands = {"bias": bias.detach()} if bias is not None else {}
    if residual is not None:
        operands["residual"] = _rows(residual)
    kinds = {name: "row[N]" if name == "bias" else "matrix[M,N]" for name in operands}
    epilogue = Epilogue("linear", expr, {}, kinds, "same")
    call = Call(epilogue, _rows(x), weight.detach().t(), x.dtype, operands, {})
    assert result.shape == (*x.shape[:-1], weight.shape[0])
    assert result.is_contiguous()
    # With a residual these take a second kernel, and roundings in between.
    call.judge([_rows(result)], fused=activation not in COMPOSED or residual is None)


def check_gated(
    result: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    activation: str,
    bias: torch.Tensor | None = None,
) -> None:
    expr = f"{activation}(even(accum)) * odd(accum)"
    operands = {}
    if bias is not None:
        expr = f"{activation}(even(accum) + even(bias)) * (odd(accum) + odd(bias))"
        operands["bias"] = bias.detach()
    epilogue = Epilogue("gated", expr, {}, dict.fromkeys(operands, "row[N]"), "half")
    assert result.shape == (*x.shape[:-1], weight.shape[0] // 2)
    assert result.is_contiguous()
    call = Call(epilogue, _rows(x), weight.detach().t(), x.dtype, operands, {})
    call.judge([_rows(result)])


def gated_of(op: Callable[..., torch.Tensor], activation: str = "silu") -> Any:
    """(x, weight, bias) -> result"""
    return lambda x, weight, bias=None: op(x, weight, activation, bias)


def leaves(tensors: Tensors, needed: Sequence[bool] | None = None) -> Tensors:
    """Copies that require grad: all, or those that `needed` says."""
    wanted = [True] * len(tensors) if needed is None else needed
    return [
        None if x is None else x.detach().clone().requires_grad_(need)
        for x, need in zip(tensors, wanted, strict=True)
    ]


def in_double(tensors: Tensors) -> Tensors:
    return [
        None if x is None else x.detach().double().requires_grad_(x.requires_grad) for x in tensors
    ]


def present(tensors: Tensors) -> list[torch.Tensor]:
    return [x for x in tensors if x is not None and x.requires_grad]


def assert_near(
    got: torch.Tensor, wanted: torch.Tensor, dtype: torch.dtype, what: str = "result"
) -> None:
    assert got.shape == wanted.shape
    if not wanted.numel():
        return
    scale = wanted.abs().max().clamp_min(1e-3)
    error = ((got.double() - wanted.double()).abs() / scale).max().item()
    assert error <= TOLERANCE[dtype], f"{what}: error {error:.3g} of the largest element"


def compare_gradients(
    ours: Callable[..., torch.Tensor],
    theirs: Callable[..., torch.Tensor],
    given: Tensors,
    dtype: torch.dtype,
) -> None:
    """Gradients of all leaves in `given` against float64."""
    exact = in_double(given)
    result, expected = ours(*given), theirs(*exact)
    seed = values(result.shape, dtype, str(result.device))
    grads = torch.autograd.grad(result, present(given), seed)
    wanted = torch.autograd.grad(expected, present(exact), seed.double())
    for tensor, got, want in zip(present(given), grads, wanted, strict=True):
        assert got.dtype == tensor.dtype
        assert_near(got, want, dtype, f"gradient of {tuple(tensor.shape)}")


def compare_second_gradients(
    ours: Callable[..., torch.Tensor], theirs: Callable[..., torch.Tensor], given: Tensors
) -> None:
    exact = in_double(given)
    seconds = []
    for function, tensors in ((ours, given), (theirs, exact)):
        result = function(*tensors)
        grads = torch.autograd.grad(result.square().mean(), present(tensors), create_graph=True)
        loss = sum(grad.square().sum() for grad in grads)
        seconds.append(torch.autograd.grad(loss, present(tensors), allow_unused=True))
    for got, want in zip(*seconds, strict=True):
        if want is not None:
            assert got is not None
            assert_near(got, want, BRAIN, "second gradient")  # chained TF32 products


def subsets(count: int) -> list[tuple[bool, ...]]:
    return [chosen for chosen in itertools.product((False, True), repeat=count) if any(chosen)]
