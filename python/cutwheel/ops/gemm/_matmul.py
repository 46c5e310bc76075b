"""matmul: the shapes of torch.matmul on top of mm, bmm and linear."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, is_autocast_enabled, is_grad_enabled

from ...errors import ShapeError

# Circular, and used at call time only.
from .. import gemm, linear
from .._common.call import distinct, fast_apply, is_tracing
from .._common.errors import RAISED, check_tensors, raise_as, reraise, shape_text, wrong_shape
from .._common.precision import autocast_operands, tf32_allowed
from .._common.sizes import differ, is_one_dimension
from ._autograd import Broadcast, as_batch, broadcast_batch, has_kernel, is_broadcast

_broadcast_with_grad: Callable[..., Tensor] = fast_apply(Broadcast, 2)
_MADE_OF = {"mm": {"mat2": "other"}, "bmm": {"mat2": "other"}, "linear": {"weight": "other"}}


def matmul(input: Tensor, other: Tensor) -> Tensor:
    """Matrix product of tensors of any rank >= 1, as torch.matmul.

    Args:
        input: [K], [M, K] or [..., M, K]
        other: [K], [K, N] or [..., K, N], dtype of input

    Returns:
        input @ other: 1-D operands count as a row (input) or a column (other) that the result
        lacks; leading dimensions broadcast. Broadcast operands are expanded, not copied, where one
        stride can describe the batch.

    Raises:
        ValueError: an operand has no dimensions, or shapes do not fit
        TypeError, NotImplementedError, RuntimeError: as mm
    """
    check_tensors("matmul", {"input": input, "other": other})
    try:
        return _matmul(input, other)
    except (TypeError, ValueError, RuntimeError) as error:
        raise_as("matmul", error, _MADE_OF)


def _matmul(input: Tensor, other: Tensor) -> Tensor:
    dims, other_dims = input.dim(), other.dim()
    if dims == 2 and other_dims == 2:
        return gemm.mm(input, other)
    if dims == 0 or other_dims == 0:
        name = "input" if dims == 0 else "other"
        raise ShapeError(f"matmul: {name} has no dimensions; expected at least one")
    _check_inner(input, other)
    if dims == 1:
        return _matmul(input.unsqueeze(0), other).squeeze(-2 if other_dims > 1 else 0)
    if other_dims == 1:
        return _matmul(input, other.unsqueeze(1)).squeeze(-1)
    if other_dims == 2 and _rows_are_one_matrix(input):
        return linear.linear(input, other.t())
    return _batched(input, other)


def _check_inner(input: Tensor, other: Tensor) -> None:
    k = input.shape[-1]
    if differ(other.shape[max(other.dim() - 2, 0)], k):
        wanted = (k,) if other.dim() == 1 else ("...", k, "N")
        why = f" as input has shape {shape_text(input.shape)}"
        raise wrong_shape("matmul", "other", other, wanted, why)


def _rows_are_one_matrix(tensor: Tensor) -> bool:
    """Whether [..., M, K] can be seen as [rows, K] without a copy."""
    if not is_tracing():
        try:
            if tensor.is_contiguous():
                return True
        except RuntimeError:  # sizes that a trace does not know
            pass
    return is_one_dimension(tensor.shape[:-1], tensor.stride()[:-1])


def _batched(input: Tensor, other: Tensor) -> Tensor:
    try:
        batch = broadcast_batch(input, other)
    except RuntimeError:
        raise ShapeError(
            f"matmul: the leading dimensions of input (shape {list(input.shape)}) and other "
            f"(shape {list(other.shape)}) do not broadcast"
        ) from None
    has = is_grad_enabled() and has_kernel(input.dtype == torch.float32)
    if has and (
        (input.requires_grad and is_broadcast(input.shape, batch))
        or (other.requires_grad and is_broadcast(other.shape, batch))
    ):
        return _with_grad(input, other, batch)
    m, n = input.shape[-2], other.shape[-1]
    return gemm.bmm(as_batch(input, batch), as_batch(other, batch)).view(*batch, m, n)


def _with_grad(input: Tensor, other: Tensor, batch: torch.Size) -> Tensor:
    try:
        if is_autocast_enabled():
            input, other = autocast_operands(input, other)
        allow_tf32 = input.dtype == torch.float32 and tf32_allowed()
        if is_tracing():
            input, other = distinct(input, other)
            # torch.compile of torch 2.10 takes no size that it does not know for an argument.
            return _broadcast_with_grad(input, other, None, allow_tf32)
        return _broadcast_with_grad(input, other, batch, allow_tf32)
    except RAISED as error:
        reraise("bmm", error, (), input=input, mat2=other)
