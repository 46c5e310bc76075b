"""Grouped products of quantised matrices: a weight in fp8 for each group of rows.

Recipes are those of cutwheel.ops.scaled, groups those of cutwheel.ops.grouped. There is no
gradient.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import is_grad_enabled

from .. import _library  # noqa: F401  (registers torch.ops.cutwheel)
from ._call import direct, is_tracing
from ._errors import RAISED, reraise

_scaled: Callable[..., torch.Tensor] = torch.ops.cutwheel.scaled_grouped_mm.default
_scaled_direct: Callable[..., torch.Tensor] = direct(_scaled)


def scaled_grouped_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    *,
    offs: torch.Tensor,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
    use_fast_accum: bool = False,
) -> torch.Tensor:
    """Product of fp8 operands with grouped rows, with the scales that their values were made with.

    Args:
        a: [T, K], float8_e4m3fn or float8_e5m2
        b: [G, K, N], float8_e4m3fn or float8_e5m2 (but not float8_e5m2 twice). Read without a copy
            as the transpose of a contiguous [G, N, K]
        scale_a: float32, any strides: a scale for each row, [T] or [T, 1], or for each 128 elements
            of a row, [T, ceil(K / 128)]
        scale_b: float32, any strides: a scale for each column, [G, N] or [G, 1, N], or, with the
            second kind of scale_a, for each block of 128x128, [G, ceil(K / 128), ceil(N / 128)]
        offs: [G], int32 or int64, on the device of a: the end of each group's rows
        bias: [G, N], dtype of the result or float32
        out_dtype: bfloat16 (default), float16 or float32
        use_fast_accum: as in scaled_mm

    Returns:
        scale_a * scale_b * (a_g @ b_g) + bias_g for each group's rows, [T, N]; rows behind offs[-1]
        are zeros. It has no gradient

    Raises:
        ValueError: shapes that do not fit, scales that fit no recipe
        TypeError: a dtype that is none of the above
        RuntimeError: a tensor requires grad; as mm
        NotImplementedError: as mm; a GPU below compute capability 8.9
    """
    try:
        if is_grad_enabled():
            _refuse_grad(a, b, scale_a, scale_b, bias)
        call = _scaled if is_tracing() else _scaled_direct
        return call(a, b, scale_a, scale_b, offs, bias, out_dtype, use_fast_accum)
    except RAISED as error:
        named = {"a": a, "b": b, "scale_a": scale_a, "scale_b": scale_b, "offs": offs}
        reraise("scaled_grouped_mm", error, ("bias",), **named, bias=bias)


def _refuse_grad(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None,
) -> None:
    if not (
        a.requires_grad
        or b.requires_grad
        or scale_a.requires_grad
        or scale_b.requires_grad
        or (bias is not None and bias.requires_grad)
    ):
        return
    tensors = {"a": a, "b": b, "scale_a": scale_a, "scale_b": scale_b, "bias": bias}
    for name, tensor in tensors.items():
        if tensor is not None and tensor.requires_grad:
            raise RuntimeError(
                f"scaled_grouped_mm: {name} requires grad, and the derivative of scaled_grouped_mm "
                "is not implemented: call it under torch.no_grad(), or use grouped_mm"
            )
