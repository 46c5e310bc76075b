"""Sums over the rows of each group, which are the gradient of a grouped bias, and their transpose.

The sums are a GEMM of the K-grouped kind with ones: exact terms, added up in float32 in an order
that is always the same. float32 values go through it in three pieces of 8 bits, which
together are exact, so TF32 rounds nothing and need not be allowed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, is_grad_enabled

from .._common.call import Op, fast_apply, is_tracing, overloads
from .._common.errors import out_of_memory
from .._common.sizes import known
from .._common.transforms import REVERSE, is_transformed, refuse

_grouped_mm, _grouped_mm_direct = overloads("grouped_mm")

# Rows of ones: as many as make 16 bytes, so that they are read as they lie.
_ONES = 8


def _leading_bits(values: Tensor) -> Tensor:
    """float32 values as bfloat16, in which the first 8 bits are right."""
    if is_tracing():
        # torch.compile goes on with values as they were before they were rounded to 16 bits, and
        # the rest would be 0. It cannot do so where bits are cut off.
        cut = (values.view(torch.int32) & -(2**16)).view(torch.float32)
        values = torch.where(values.isnan(), values, cut)
    return values.to(torch.bfloat16)


def _pieces(values: Tensor) -> Tensor:
    """[T, N] float32 -> [T, 3 N] bfloat16, of which the three parts add up to the values."""
    first = _leading_bits(values)
    # 0 where the first piece is all there is to say: of an infinity the rest would be NaN.
    rest = (values - first).nan_to_num(0, 0, 0)
    second = _leading_bits(rest)
    return torch.cat((first, second, (rest - second).to(torch.bfloat16)), dim=1)


def _sum_groups(values: Tensor, offs: Tensor) -> Tensor:
    n = values.shape[1]
    is_16_bit = values.dtype in (torch.float16, torch.bfloat16)
    terms = values if is_16_bit else _pieces(values)
    rows, tracing = terms.shape[0], is_tracing()
    if tracing and not known(rows >= 2):
        # torch.compile takes no transposed constant of a size that it does not know.
        ones = terms.new_ones(_ONES, rows)
    else:
        ones = terms.new_ones(rows, _ONES).mT
    call = _grouped_mm if tracing else _grouped_mm_direct
    try:
        sums = call(ones, terms, offs, None, torch.float32, False)[:, 0]
    except RuntimeError as error:
        raise out_of_memory(error) from None
    return sums if is_16_bit else sums.reshape(sums.shape[0], 3, n).sum(1)


def sum_groups(values: Tensor, offs: Tensor) -> Tensor:
    """[T, N] -> [G, N] in float32: the sum of each group's rows; differentiable."""
    if is_transformed():
        refuse("grouped_mm", REVERSE, grad=values)
    if is_grad_enabled() and values.requires_grad:
        return _sum_with_grad(values, offs)
    return _sum_groups(values, offs)


def _expand_groups(sums: Tensor, offs: Tensor, rows: int) -> Tensor:
    indices = torch.arange(rows, device=offs.device, dtype=offs.dtype)
    # The group of a row is the number of groups that end at or before it. Rows behind the last one
    # get the zeros that are appended.
    groups = torch.searchsorted(offs.contiguous(), indices, right=True)
    padded = torch.cat((sums, sums.new_zeros(1, sums.shape[1])))
    return padded.index_select(0, groups)


class _SumGroups(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, offs: Tensor) -> Tensor:
        ctx.save_for_backward(offs)
        ctx.rows, ctx.dtype = values.shape[0], values.dtype
        return _sum_groups(values, offs)

    @staticmethod
    def backward(ctx: Any, of_sums: Tensor) -> tuple[Tensor, None]:
        (offs,) = ctx.saved_tensors
        return _expand_with_grad(of_sums, offs, ctx.rows).to(ctx.dtype), None


class _ExpandGroups(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, sums: Tensor, offs: Tensor, rows: int) -> Tensor:
        ctx.save_for_backward(offs)
        ctx.dtype = sums.dtype
        return _expand_groups(sums, offs, rows)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (offs,) = ctx.saved_tensors
        return sum_groups(grad, offs).to(ctx.dtype), None, None


_sum_with_grad: Op = fast_apply(_SumGroups, 2)
_expand_with_grad: Op = fast_apply(_ExpandGroups, 2)
