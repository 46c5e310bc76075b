"""Dense GEMMs on tensor cores: mm, bmm, addmm, baddbmm, matmul, and gemm with any epilogue.

All accumulate in float32. Operands are float16, bfloat16 or float32 CUDA tensors of one dtype and
device. float32 is multiplied on TF32 tensor cores if torch's own setting allows TF32
(``torch.backends.cuda.matmul.fp32_precision = "tf32"`` or
``torch.set_float32_matmul_precision("high")``); else torch computes it in full precision, and the
logger "cutwheel" says so once for each op.

Row- and column-major operands with any pitch of 16 bytes are used as they lie. Other strides,
offsets and pitches give the same results: on Hopper there are 16-bit kernels that take any offset
and pitch, else they go by way of a copy. Results are contiguous.

Every op but gemm is differentiable, twice and more. All work in torch.compile(fullgraph=True), in
CUDA graphs and with autocast, and run on the current stream of their tensors' device. Inside of
torch.func's transforms and of forward-mode AD torch computes them, so that derivatives are right.

Errors of every op: TypeError for an argument that is no tensor or of a wrong dtype, ValueError for
a wrong shape, a tensor on another device or an ``out`` that overlaps, NotImplementedError for CPU
tensors, RuntimeError for a driver that is missing or too old. For a dtype, a shape and the like
they are classes of cutwheel.errors, which are RuntimeError, too, as torch's own functions raise.
"""

from __future__ import annotations

import torch
from torch import Tensor, is_autocast_enabled, is_grad_enabled

from ...errors import DtypeError
from .._common import by_torch, node
from .._common.call import Op, distinct, fast_apply, increment_version, is_tracing, overloads
from .._common.errors import RAISED, check_tensors, reraise
from .._common.precision import autocast_operands
from .._common.transforms import is_transformed
from ._autograd import Addmm, Baddbmm, Bmm, Mm
from ._epilogue import gemm
from ._matmul import matmul

__all__ = ["addmm", "baddbmm", "bmm", "gemm", "matmul", "mm"]

_float32 = torch.float32


_ops = torch.ops.cutwheel
_mm, _mm_direct = overloads("mm")
_bmm, _bmm_direct = overloads("bmm")
_addmm, _addmm_direct = overloads("addmm")
_baddbmm, _baddbmm_direct = overloads("baddbmm")
_mm_with_grad: Op = fast_apply(Mm, 2)
_bmm_with_grad: Op = fast_apply(Bmm, 2)
_addmm_with_grad: Op = fast_apply(Addmm, 3)
_baddbmm_with_grad: Op = fast_apply(Baddbmm, 3)


def mm(
    input: Tensor, mat2: Tensor, out_dtype: torch.dtype | None = None, *, out: Tensor | None = None
) -> Tensor:
    """Matrix product, as torch.mm.

    Args:
        input: [M, K]
        mat2: [K, N], dtype of input
        out_dtype: dtype of the result: that of input (default) or float32
        out: [M, N], any strides that do not overlap; it is never resized

    Returns:
        input @ mat2, [M, N]; `out` if that was given
    """
    try:
        if out is not None:
            return _into(out, out_dtype, "mm", (), input=input, mat2=mat2)
        if is_autocast_enabled():
            input, mat2 = autocast_operands(input, mat2)
        allow_tf32 = input.dtype == _float32
        if (allow_tf32 or is_transformed()) and by_torch.serves("mm", input):
            return by_torch.matmul("mm", input, mat2, out_dtype)
        if is_grad_enabled() and (input.requires_grad or mat2.requires_grad):
            is_plain = out_dtype is None and not allow_tf32
            # The node's gradient of the first operand is row-major.
            if is_plain and node.serves(input, mat2) and input.is_contiguous():
                return node.product(input, mat2)
            if is_tracing():
                input, mat2 = distinct(input, mat2)
            return _mm_with_grad(input, mat2, out_dtype, allow_tf32)
        call = _mm if is_tracing() else _mm_direct
        # Defaults are left out: each argument costs a tenth of a microsecond.
        if allow_tf32 or out_dtype is not None:
            return call(input, mat2, out_dtype, allow_tf32)
        return call(input, mat2)
    except RAISED as error:
        reraise("mm", error, ("out",), input=input, mat2=mat2, out=out)


def bmm(
    input: Tensor, mat2: Tensor, out_dtype: torch.dtype | None = None, *, out: Tensor | None = None
) -> Tensor:
    """Matrix product of each pair of matrices in two batches, as torch.bmm.

    Args:
        input: [B, M, K]; expanded (stride 0) batches are not copied
        mat2: [B, K, N], dtype of input
        out_dtype: dtype of the result: that of input (default) or float32
        out: [B, M, N], any strides that do not overlap; it is never resized

    Returns:
        input @ mat2, [B, M, N]; `out` if that was given
    """
    try:
        if out is not None:
            return _into(out, out_dtype, "bmm", (), input=input, mat2=mat2)
        if is_autocast_enabled():
            input, mat2 = autocast_operands(input, mat2)
        allow_tf32 = input.dtype == _float32
        if (allow_tf32 or is_transformed()) and by_torch.serves("bmm", input):
            return by_torch.matmul("bmm", input, mat2, out_dtype)
        if is_grad_enabled() and (input.requires_grad or mat2.requires_grad):
            if is_tracing():
                input, mat2 = distinct(input, mat2)
            return _bmm_with_grad(input, mat2, out_dtype, allow_tf32)
        call = _bmm if is_tracing() else _bmm_direct
        if allow_tf32 or out_dtype is not None:
            return call(input, mat2, out_dtype, allow_tf32)
        return call(input, mat2)
    except RAISED as error:
        reraise("bmm", error, ("out",), input=input, mat2=mat2, out=out)


def addmm(
    input: Tensor,
    mat1: Tensor,
    mat2: Tensor,
    out_dtype: torch.dtype | None = None,
    *,
    beta: float = 1,
    alpha: float = 1,
    out: Tensor | None = None,
) -> Tensor:
    """Matrix product plus C, as torch.addmm.

    Args:
        input: broadcasts to [M, N]; dtype of mat1 or of the result. Not read if beta is 0, so NaN
            in it does not spread
        mat1: [M, K]
        mat2: [K, N], dtype of mat1
        out_dtype: dtype of the result: that of mat1 (default) or float32
        beta: factor of input
        alpha: factor of mat1 @ mat2
        out: [M, N], any strides that do not overlap; it is never resized. It may be `input` itself

    Returns:
        beta * input + alpha * mat1 @ mat2, [M, N]; `out` if that was given
    """
    try:
        if out is not None:
            operands = {"input": input, "mat1": mat1, "mat2": mat2}
            return _into(out, out_dtype, "addmm", (beta, alpha), **operands)
        if is_autocast_enabled():
            input, mat1, mat2 = autocast_operands(input, mat1, mat2)
        allow_tf32 = mat1.dtype == _float32
        if (allow_tf32 or is_transformed()) and by_torch.serves("addmm", mat1):
            return by_torch.matmul("addmm", mat1, mat2, out_dtype, None, input, beta, alpha)
        if is_grad_enabled() and (input.requires_grad or mat1.requires_grad or mat2.requires_grad):
            is_plain = out_dtype is None and beta == 1 and alpha == 1 and not allow_tf32
            if is_plain and node.serves(mat1, mat2) and _is_row(input, mat1, mat2):
                return node.product(mat1, mat2, input)
            if is_tracing():
                input, mat1, mat2 = distinct(input, mat1, mat2)
            return _addmm_with_grad(input, mat1, mat2, out_dtype, beta, alpha, allow_tf32)
        call = _addmm if is_tracing() else _addmm_direct
        if allow_tf32 or out_dtype is not None or beta != 1 or alpha != 1:
            return call(input, mat1, mat2, out_dtype, beta, alpha, allow_tf32)
        return call(input, mat1, mat2)
    except RAISED as error:
        reraise("addmm", error, ("out",), input=input, mat1=mat1, mat2=mat2, out=out)


def _is_row(input: Tensor, mat1: Tensor, mat2: Tensor) -> bool:
    """Whether C is a bias, as autograd's node takes it, and A lies as its gradient would."""
    return (
        input.dim() == 1
        and mat2.dim() == 2
        and input.shape[0] == mat2.shape[1]
        and input.dtype == mat1.dtype
        and mat1.is_contiguous()
    )


def baddbmm(
    input: Tensor,
    batch1: Tensor,
    batch2: Tensor,
    out_dtype: torch.dtype | None = None,
    *,
    beta: float = 1,
    alpha: float = 1,
    out: Tensor | None = None,
) -> Tensor:
    """Matrix product of each pair of matrices in two batches, plus C, as torch.baddbmm.

    Args:
        input: broadcasts to [B, M, N]; dtype of batch1 or of the result. Not read if beta is 0
        batch1: [B, M, K]
        batch2: [B, K, N], dtype of batch1
        out_dtype: dtype of the result: that of batch1 (default) or float32
        beta: factor of input
        alpha: factor of batch1 @ batch2
        out: [B, M, N], any strides that do not overlap; it is never resized. It may be `input`

    Returns:
        beta * input + alpha * batch1 @ batch2, [B, M, N]; `out` if that was given
    """
    try:
        if out is not None:
            operands = {"input": input, "batch1": batch1, "batch2": batch2}
            return _into(out, out_dtype, "baddbmm", (beta, alpha), **operands)
        if is_autocast_enabled():
            input, batch1, batch2 = autocast_operands(input, batch1, batch2)
        allow_tf32 = batch1.dtype == _float32
        if (allow_tf32 or is_transformed()) and by_torch.serves("baddbmm", batch1):
            return by_torch.matmul("baddbmm", batch1, batch2, out_dtype, None, input, beta, alpha)
        if is_grad_enabled() and (
            input.requires_grad or batch1.requires_grad or batch2.requires_grad
        ):
            if is_tracing():
                input, batch1, batch2 = distinct(input, batch1, batch2)
            return _baddbmm_with_grad(input, batch1, batch2, out_dtype, beta, alpha, allow_tf32)
        call = _baddbmm if is_tracing() else _baddbmm_direct
        if allow_tf32 or out_dtype is not None or beta != 1 or alpha != 1:
            return call(input, batch1, batch2, out_dtype, beta, alpha, allow_tf32)
        return call(input, batch1, batch2)
    except RAISED as error:
        reraise("baddbmm", error, ("out",), input=input, batch1=batch1, batch2=batch2, out=out)


def _into(
    out: Tensor,
    out_dtype: torch.dtype | None,
    op: str,
    scalars: tuple[float, ...],
    **operands: Tensor,
) -> Tensor:
    """The call with out=; checks first what the library cannot know about `out`."""
    tensors = {**operands, "out": out}
    check_tensors(op, tensors)
    if out_dtype is not None and out.dtype != out_dtype:
        raise DtypeError(f"{op}: out has dtype {out.dtype}; expected {out_dtype} as out_dtype says")
    if is_grad_enabled():
        for name, tensor in tensors.items():
            if tensor.requires_grad:
                raise RuntimeError(
                    f"{op}: {name} requires grad, and out= does not support automatic "
                    "differentiation: call without out=, or under torch.no_grad()"
                )
    *c, a, b = operands.values()
    allow_tf32 = a.dtype == _float32
    if (allow_tf32 or is_transformed()) and by_torch.serves(op, a):
        return by_torch.matmul(op, a, b, None, out, c[0] if c else None, *scalars)
    getattr(_ops, op).out(*operands.values(), *scalars, allow_tf32, out=out)
    increment_version(out)
    return out
