"""Gradients of convolutions for tests: ours, the reference, and their operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from conv_reference import Geometry, fprop
from fused_cases import activate, inputs, values

Tensors = list[torch.Tensor | None]
Function = Callable[..., torch.Tensor]
STRIDED = ((2, 16, 9, 10), (24, 16, 3, 3), Geometry((2, 2), (1, 1, 1, 1)))
ODD = ((2, 5, 8, 7), (7, 5, 3, 2), Geometry((1, 2), (1, 1, 0, 0), (2, 1)))
ONE_TAP = ((3, 24, 5, 6), (40, 24, 1, 1), Geometry())


def both(
    cutwheel: Any, g: Geometry, activation: str | None = None, place: str = "no_residual"
) -> tuple[Function, Function]:
    """Ours and the reference, of input, weight, bias and residual."""
    where: dict[str, Any] = {"stride": g.stride, "padding": (g.padding[0], g.padding[2])}
    where |= {"dilation": g.dilation, "groups": g.groups, "activation": activation}

    def ours(x: Any, weight: Any, bias: Any = None, residual: Any = None) -> torch.Tensor:
        is_last = place == "after"
        result: torch.Tensor = cutwheel.conv2d(
            x, weight, bias, **where, residual=residual, residual_after_activation=is_last
        )
        return result

    def theirs(x: Any, weight: Any, bias: Any = None, residual: Any = None) -> torch.Tensor:
        z = fprop(x, weight, g)
        z = z if bias is None else z + bias.view(-1, 1, 1)
        if residual is not None and place == "before":
            return activate(activation, z + residual)
        y = activate(activation, z)
        return y if residual is None else y + residual

    return ours, theirs


def leaves(
    problem: Any,
    dtype: torch.dtype,
    device: str,
    needed: Sequence[bool] = (True, True, True, True),
    place: str = "no_residual",
) -> Tensors:
    """Input, weight, bias, and with a `place` a residual; they need gradients as `needed` says."""
    (n, c, h, w), (k_out, of_group, r, s), g = problem
    # The weight is scaled as that of a linear layer with as many products in a sum.
    weight, bias = inputs((1,), k_out, of_group * r * s, dtype, device)[1:3]
    assert weight is not None
    found: Tensors = [values((n, c, h, w), dtype, device)]
    found += [weight.view(k_out, of_group, r, s), bias]
    if place != "no_residual":
        found.append(values((n, k_out, *g.extents((h, w), (r, s))), dtype, device))
    return [
        None if x is None else x.requires_grad_(need)
        for x, need in zip(found, needed, strict=False)
    ]
