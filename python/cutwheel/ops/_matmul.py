"""matmul: the shapes of torch.matmul on top of mm, bmm and linear."""

from __future__ import annotations

import torch

from ..errors import ShapeError
from ._errors import check_tensors, raise_as
from .gemm import bmm, mm
from .linear import linear

_MADE_OF = {"mm": {"mat2": "other"}, "bmm": {"mat2": "other"}, "linear": {"weight": "other"}}


def matmul(input: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
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


def _matmul(input: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    dims, other_dims = input.dim(), other.dim()
    if dims == 2 and other_dims == 2:
        return mm(input, other)
    _check_shapes(input, other)
    if dims == 1:
        return _matmul(input.unsqueeze(0), other).squeeze(-2 if other_dims > 1 else 0)
    if other_dims == 1:
        return _matmul(input, other.unsqueeze(1)).squeeze(-1)
    if other_dims == 2 and _rows_are_one_matrix(input):
        return linear(input, other.t())
    return _batched(input, other)


def _check_shapes(input: torch.Tensor, other: torch.Tensor) -> None:
    for name, tensor in (("input", input), ("other", other)):
        if tensor.dim() == 0:
            raise ShapeError(f"matmul: {name} has no dimensions; expected at least one")
    k = input.shape[-1]
    if other.shape[max(other.dim() - 2, 0)] != k:
        raise ShapeError(
            f"matmul: other has shape {list(other.shape)}; expected "
            f"{f'[{k}]' if other.dim() == 1 else f'[..., {k}, N]'} as input has shape "
            f"{list(input.shape)}"
        )


def _rows_are_one_matrix(tensor: torch.Tensor) -> bool:
    """Whether [..., M, K] can be seen as [rows, K] without a copy."""
    if tensor.is_contiguous():
        return True
    shape, strides = tensor.shape, tensor.stride()
    expected = None  # the stride the next outer dimension must have
    for size, stride in zip(reversed(shape[:-1]), reversed(strides[:-1]), strict=True):
        if size == 1:
            continue
        if expected is not None and stride != expected:
            return False
        expected = stride * size
    return True


def _batched(input: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    try:
        batch = torch.broadcast_shapes(input.shape[:-2], other.shape[:-2])  # type: ignore[no-untyped-call]
    except RuntimeError:
        raise ShapeError(
            f"matmul: the leading dimensions of input (shape {list(input.shape)}) and other "
            f"(shape {list(other.shape)}) do not broadcast"
        ) from None
    m, n = input.shape[-2], other.shape[-1]
    return bmm(_as_batch(input, batch), _as_batch(other, batch)).view(*batch, m, n)


def _as_batch(tensor: torch.Tensor, batch: torch.Size) -> torch.Tensor:
    """Expanded to [*batch, rows, columns] and seen as [B, rows, columns]."""
    rows, columns = tensor.shape[-2:]
    expanded = tensor.expand(*batch, rows, columns)
    if len(batch) == 1:
        return expanded
    # Copies only where no single stride describes the batch.
    return expanded.reshape(batch.numel(), rows, columns)
