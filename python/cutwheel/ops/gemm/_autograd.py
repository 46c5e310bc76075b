"""Gradients of the dense GEMMs, by the same public ops, so that they nest.

With D = alpha * A B + beta * C and G the gradient of D:
dA = alpha * G B^T, dB = alpha * A^T G, dC = beta * G, summed to the shape of C.

A gradient is laid out as its operand is: row-major results come from the formula as it stands,
column-major ones from its transpose, so that a weight passed as `weight.t()` gets a gradient that
needs no copy on its way back to the weight.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, is_autocast_enabled, is_grad_enabled

# Circular, and used at call time only: the gradients are made of the public functions.
from .. import gemm
from .._common import sharding
from .._common.call import is_tracing, overloads
from .._common.errors import RAISED
from .._common.precision import tf32_allowed
from .._common.sizes import is_one_dimension, known
from .._common.transforms import is_transformed

_, _mm_direct = overloads("mm")
_bmm, _bmm_direct = overloads("bmm")
_, _linear_gradients = overloads("linear_gradients")

Gradient = Tensor | None


def is_column_major(matrix: Tensor, tracing: bool) -> bool:
    """How a gradient is to be laid out; `tracing` is is_tracing(), which callers know."""
    if not tracing:
        try:
            return not matrix.is_contiguous() and matrix.stride(-2) == 1
        except RuntimeError:  # sizes that a trace does not know
            pass
    return known(matrix.stride(-2) == 1) and not known(matrix.stride(-1) == 1)


def has_kernel(is_single: bool) -> bool:
    """Whether a GEMM, of float32 operands or of others, is not torch's to compute."""
    return not is_transformed() and (not is_single or tf32_allowed())


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """a @ b for matrices or batches of matrices, by a shorter way than the public functions where
    there is nothing for autograd or autocast to do."""
    is_matrix = a.dim() == 2
    allow_tf32 = a.dtype == torch.float32
    if not (is_grad_enabled() or is_autocast_enabled() or is_tracing()) and has_kernel(allow_tf32):
        try:
            call = _mm_direct if is_matrix else _bmm_direct
            return call(a, b, None, True) if allow_tf32 else call(a, b)
        except RAISED:
            sharding.reraise_if_sharded(a, b)  # else the public function says it in its own words
    return gemm.mm(a, b) if is_matrix else gemm.bmm(a, b)


def linear_gradients(
    grad: Tensor, input: Tensor, weight: Tensor, weight_is_column_major: bool
) -> tuple[Tensor, Tensor] | None:
    """dX [..., K] = G W and dW [N, K] = G^T X of linear(X, W) in one call of the library.

    None where there is something for autograd or autocast to do, or operands are refused.
    """
    allow_tf32 = grad.dtype == torch.float32
    if is_grad_enabled() or is_autocast_enabled() or is_tracing() or not has_kernel(allow_tf32):
        return None
    both: Any
    try:
        both = _linear_gradients(grad, input, weight, weight_is_column_major, allow_tf32)
    except RAISED:
        sharding.reraise_if_sharded(grad, input, weight)
        return None  # the public functions say it in their own words
    return both[0], both[1]


def _multiply(a: Tensor, b: Tensor, alpha: float) -> Tensor:
    """alpha * a @ b for matrices or batches of matrices."""
    if alpha == 1:
        return matmul(a, b)
    # beta == 0 never reads its first argument: alpha is applied in the epilogue, for nothing.
    if a.dim() == 2:
        return gemm.addmm(a.new_empty(()), a, b, beta=0, alpha=alpha)
    return gemm.baddbmm(a.new_empty(()), a, b, beta=0, alpha=alpha)


def _save_operands(
    ctx: Any, a: Tensor, b: Tensor, needs_a: bool, needs_b: bool, tracing: bool
) -> None:
    # Each gradient needs the other operand, and how its own is laid out.
    ctx.save_for_backward(a if needs_b else None, b if needs_a else None)
    ctx.a_is_column_major = needs_a and is_column_major(a, tracing)
    ctx.b_is_column_major = needs_b and is_column_major(b, tracing)


def _operand_gradients(ctx: Any, grad: Tensor, alpha: float = 1) -> tuple[Gradient, Gradient]:
    """Gradients of A [..., M, K] and B [..., K, N] from that of D [..., M, N]."""
    a, b = ctx.saved_tensors
    dtype = a.dtype if a is not None else b.dtype if b is not None else grad.dtype
    if grad.dtype != dtype:
        grad = grad.to(dtype)
    is_plain = alpha == 1 and not ctx.a_is_column_major
    if is_plain and a is not None and b is not None and a.dim() == 2:
        # B is the weight of a linear layer, transposed.
        both = linear_gradients(grad, a, b.t(), not ctx.b_is_column_major)
        if both is not None:
            return both[0], both[1].t()
    grad_a: Gradient = None
    grad_b: Gradient = None
    if b is not None:
        if ctx.a_is_column_major:
            grad_a = _multiply(b, grad.mT, alpha).mT
        else:
            grad_a = _multiply(grad, b.mT, alpha)
    if a is not None:
        if ctx.b_is_column_major:
            grad_b = _multiply(grad.mT, a, alpha).mT
        else:
            grad_b = _multiply(a.mT, grad, alpha)
    return grad_a, grad_b


def sum_to_size(tensor: Tensor, shape: torch.Size) -> Tensor:
    """As Tensor.sum_to_size, which takes no sizes that a trace does not know."""
    if not is_tracing():
        return tensor.sum_to_size(shape)
    added = tensor.dim() - len(shape)
    ones = [added + dim for dim, size in enumerate(shape) if known(size == 1)]
    if ones:
        tensor = tensor.sum(ones, keepdim=True)
    return tensor.sum(tuple(range(added))) if added else tensor


def _matmul(op: str) -> type[torch.autograd.Function]:
    """mm or bmm"""
    overload, function = overloads(op)

    class Matmul(torch.autograd.Function):
        @staticmethod
        def forward(
            ctx: Any, input: Tensor, mat2: Tensor, out_dtype: torch.dtype | None, allow_tf32: bool
        ) -> Tensor:
            needs, tracing = ctx.needs_input_grad, is_tracing()
            _save_operands(ctx, input, mat2, needs[0], needs[1], tracing)
            call = overload if tracing else function
            if allow_tf32 or out_dtype is not None:
                return call(input, mat2, out_dtype, allow_tf32)
            return call(input, mat2)

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Gradient, ...]:
            return (*_operand_gradients(ctx, grad), None, None)

    return Matmul


def _matmul_with_c(op: str) -> type[torch.autograd.Function]:
    """addmm or baddbmm"""
    overload, function = overloads(op)

    class MatmulWithC(torch.autograd.Function):
        @staticmethod
        def forward(
            ctx: Any,
            input: Tensor,
            a: Tensor,
            b: Tensor,
            out_dtype: torch.dtype | None,
            beta: float,
            alpha: float,
            allow_tf32: bool,
        ) -> Tensor:
            needs, tracing = ctx.needs_input_grad, is_tracing()
            _save_operands(ctx, a, b, needs[1], needs[2], tracing)
            ctx.c_shape, ctx.c_dtype = input.shape, input.dtype
            ctx.beta, ctx.alpha = beta, alpha
            call = overload if tracing else function
            return call(input, a, b, out_dtype, beta, alpha, allow_tf32)

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Gradient, ...]:
            grad_c: Gradient = None
            if ctx.needs_input_grad[0]:
                grad_c = grad if ctx.beta == 1 else grad * ctx.beta
                # Summed before it is rounded to the dtype of C.
                grad_c = sum_to_size(grad_c, ctx.c_shape).to(ctx.c_dtype)
            return (grad_c, *_operand_gradients(ctx, grad, ctx.alpha), None, None, None, None)

    return MatmulWithC


Mm, Bmm = _matmul("mm"), _matmul("bmm")
Addmm, Baddbmm = _matmul_with_c("addmm"), _matmul_with_c("baddbmm")


# The longest K that a batch is folded into: longer sums lose accuracy in one accumulator.
_LONGEST_K = 2**27


def broadcast_batch(a: Tensor, b: Tensor) -> torch.Size:
    """The batch of [..., M, K] and [..., K, N]; RuntimeError: they do not broadcast."""
    return torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])  # type: ignore[no-untyped-call, no-any-return]


def as_batch(tensor: Tensor, batch: torch.Size) -> Tensor:
    """[..., rows, columns] expanded to [*batch, rows, columns] and seen as [B, rows, columns]."""
    expanded = tensor.expand(*batch, *tensor.shape[-2:])
    # Copies only where no single stride describes the batch.
    return expanded if len(batch) == 1 else expanded.flatten(0, -3)


def is_broadcast(shape: torch.Size, batch: torch.Size) -> bool:
    """Whether [..., rows, columns] has not all of the batch."""
    pairs = zip(shape, batch, strict=False)
    return len(shape) - 2 < len(batch) or any(
        known(size == 1) and not known(whole == 1) for size, whole in pairs
    )


def _over_batch(
    left: Tensor, right: Tensor, shape: torch.Size, batch: torch.Size, is_column_major: bool
) -> Tensor:
    """[B, P, Q] @ [B, Q, S] as [..., P, S], summed over the dimensions of the batch that it lacks.

    Sums are those of float32, and rounded once.
    """
    if is_column_major:
        turned = torch.Size((*shape[:-2], shape[-1], shape[-2]))
        return _over_batch(right.mT, left.mT, turned, batch, False).mT
    if not is_broadcast(shape, batch):
        return matmul(left, right).view(shape)
    b, p, q, s = *left.shape, right.shape[2]
    if all(known(size == 1) for size in shape[:-2]) and not known(b * q >= _LONGEST_K):
        # Summed over all of the batch: one GEMM, in which K goes on from matrix to matrix. It
        # may take copies of operands that do not lie so, if these are smaller than the batch.
        l_strides, r_strides = left.stride(), right.stride()
        copied = 0
        if not is_one_dimension((b, q), (l_strides[0], l_strides[2])):
            copied = copied + p * q
        if not is_one_dimension((b, q), (r_strides[0], r_strides[1])):
            copied = copied + q * s
        if known(copied <= 2 * p * s):
            return matmul(left.transpose(0, 1).flatten(1), right.flatten(0, 1)).view(shape)
    wide = torch.promote_types(left.dtype, torch.float32)
    products = gemm.bmm(left, right, wide).view(*batch, p, s)
    return sum_to_size(products, shape).to(left.dtype)


class Broadcast(torch.autograd.Function):
    """[..., M, K] @ [..., K, N] -> [*batch, M, N], where an operand lacks some of the batch."""

    @staticmethod
    def forward(
        ctx: Any, input: Tensor, other: Tensor, batch: torch.Size | None, allow_tf32: bool
    ) -> Tensor:
        if batch is None:
            batch = broadcast_batch(input, other)
        needs, tracing = ctx.needs_input_grad, is_tracing()
        _save_operands(ctx, input, other, needs[0], needs[1], tracing)
        ctx.shapes = input.shape, other.shape
        call = _bmm if tracing else _bmm_direct
        result = call(as_batch(input, batch), as_batch(other, batch), None, allow_tf32)
        return result.view(*batch, input.shape[-2], other.shape[-1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Gradient, ...]:
        input, other = ctx.saved_tensors
        batch = grad.shape[:-2]
        grads, grad_input, grad_other = as_batch(grad, batch), None, None
        if other is not None:
            right = as_batch(other, batch).mT
            grad_input = _over_batch(grads, right, ctx.shapes[0], batch, ctx.a_is_column_major)
        if input is not None:
            left = as_batch(input, batch).mT
            grad_other = _over_batch(left, grads, ctx.shapes[1], batch, ctx.b_is_column_major)
        return grad_input, grad_other, None, None
