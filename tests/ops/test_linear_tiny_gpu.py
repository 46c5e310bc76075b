"""Gradients of linear on tiny layers, where an error is that of few roundings, beside torch's."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from fused_cases import activate, inputs, leaves, present, torch_linear, values
from gemm_cases import BRAIN, HALF, dtype_id
from reference import ROUNDING

pytestmark = pytest.mark.gpu

LAYERS = 60
EXTENTS = (1, 2, 3, 5, 8, 16, 33, 64)
# Error that the derivative may have, in units of the gradient that it multiplies.
# 16 bits are rounded at 2^-9 and 2^-12, and float32 at 2^-24.
DERIVATIVE = 2.0**-18


def gradients(
    call: Callable[..., torch.Tensor], given: list[Any], activation: str, seed: torch.Tensor
) -> list[torch.Tensor]:
    """Gradients of input, weight, bias, and of any residual before the activation."""
    x, weight, bias, residual = given
    y = call(x, weight, bias, activation=activation, residual=residual)
    return list(torch.autograd.grad(y, present(given), seed))


def magnitudes(given: list[Any], dz: torch.Tensor) -> list[torch.Tensor]:
    """Sizes of the gradients if no term cancelled another, for a gradient of z."""
    x, weight, _, residual = given
    dz = dz.abs()
    of_residual = [] if residual is None else [dz]
    return [dz @ weight.double().abs(), dz.t() @ x.double().abs(), dz.sum(0), *of_residual]


@pytest.mark.parametrize("dtype", [HALF, BRAIN], ids=dtype_id)
@pytest.mark.parametrize("has_residual", [False, True])  # z is computed again, or kept
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "silu"])
def test_gradients_of_tiny_layers(
    cutwheel: ModuleType, device: str, activation: str, has_residual: bool, dtype: torch.dtype
) -> None:
    """Each element: at most twice the error of torch's worst one, and the two roundings that there
    are, of dz and of the result. All layers together: at most twice torch's error.

    A single layer without a floor is not held to that: roundings of few elements may cancel.
    With exact derivatives, 1 in 100 of such layers has more than twice torch's error, and of 3 in
    100 torch's is more than twice that.
    """
    rng = random.Random(f"{activation} {has_residual} {dtype}")
    ours, theirs = [0.0] * 4, [0.0] * 4
    for _ in range(LAYERS):
        m, n, k = (rng.choice(EXTENTS) for _ in range(3))
        given = leaves(inputs((m,), n, k, dtype, device, residual=has_residual))
        seed = values((m, n), dtype, device)
        exact = leaves([None if t is None else t.double() for t in given])
        x, weight, bias, residual = exact
        z = torch_linear(x, weight, bias, residual=residual)  # type: ignore[arg-type]
        (dz,) = torch.autograd.grad(activate(activation, z).sum(), z)
        wanted = gradients(torch_linear, exact, activation, seed.double())
        got = gradients(cutwheel.linear, given, activation, seed)
        torchs = gradients(torch_linear, given, activation, seed)
        sizes = magnitudes(given, dz * seed.double())
        floors = magnitudes(given, seed.double())
        tiny = torch.finfo(dtype).tiny * torch.finfo(dtype).eps
        for index, (ours_is, torchs_is, value, size, floor) in enumerate(
            zip(got, torchs, wanted, sizes, floors, strict=True)
        ):
            error, of_torch = ((d.double() - value).abs() for d in (ours_is, torchs_is))
            unit = ROUNDING[dtype] * size + DERIVATIVE * floor + k * n * tiny
            worst, of_torchs_worst = (error / unit).max().item(), (of_torch / unit).max().item()
            assert worst <= 2 * of_torchs_worst + 2, (
                f"[{m}, {k}] with [{n}, {k}], gradient {index}: {worst:.3g} roundings, torch has"
                f" {of_torchs_worst:.3g}"
            )
            norm = size.norm().clamp_min(1e-30)
            ours[index] += (error.norm() / norm).square().item()
            theirs[index] += (of_torch.norm() / norm).square().item()
    for index, (error_of_ours, error_of_torch) in enumerate(zip(ours, theirs, strict=True)):
        assert error_of_ours**0.5 <= 2 * error_of_torch**0.5, (
            f"gradient {index}: {(error_of_ours / error_of_torch) ** 0.5:.3g} times torch's error"
        )
