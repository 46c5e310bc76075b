"""gemm: a GEMM with any epilogue that the manifest declares.

Dtypes, strides, TF32, transforms and errors are those of cutwheel.ops.gemm.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, is_autocast_enabled, is_grad_enabled

from ...errors import ArgumentError, DtypeError

# Circular, and used at call time only.
from .. import gemm as _public
from .._common import by_torch, sharding
from .._common.call import increment_version, is_tracing, overloads
from .._common.epilogue import Signature, signature_of
from .._common.errors import RAISED, check_tensors, reraise
from .._common.numbers import number
from .._common.precision import autocast_operands
from .._common.transforms import is_transformed

_gemm, _gemm_direct = overloads("gemm")
_gemm_out = torch.ops.cutwheel.gemm.out


def positional_operands(
    epilogue: str, signature: Signature, operands: dict[str, Any]
) -> tuple[list[Tensor | None], list[float]]:
    """(tensors, scalars) by position, as the library wants them.

    Raises:
        TypeError: an operand is unknown, of the wrong kind, or a scalar that is missing
    """
    tensors: list[Tensor | None] = []
    for name in signature.tensors:
        value = operands.get(name)
        if value is not None and not isinstance(value, Tensor):
            raise TypeError(
                f"gemm: {name} is of type {type(value).__name__}; expected a Tensor, or None for "
                "zeros"
            )
        tensors.append(value)
    scalars = []
    for name in signature.scalars:
        if name not in operands and name not in ("alpha", "beta"):
            raise TypeError(f"gemm: {name}, a scalar of epilogue {epilogue!r}, is missing")
        value = operands.get(name, 1.0)
        if not isinstance(value, (int, float)):
            value = number("gemm", name, value)
        scalars.append(float(value))
    known = (*signature.scalars, *signature.tensors)
    for name in operands:
        if name not in known:
            raise TypeError(
                f"gemm: {name} is no operand of epilogue {epilogue!r}; it has: "
                f"{', '.join(known) or 'none'}"
            )
    return tensors, scalars


def cast_operands(
    a: Tensor,
    b: Tensor,
    tensors: list[Tensor | None],
    signature: Signature,
    out_dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor, list[Tensor | None]]:
    """The operands under autocast: A and B as for mm, the others in the dtype of D."""
    a, b = autocast_operands(a, b)
    dtype = a.dtype if out_dtype is None else out_dtype
    cast_tensors = [
        tensor.to(dtype)
        if tensor is not None
        and not is_float32
        and tensor.is_cuda
        and tensor.is_floating_point()
        and tensor.dtype != torch.float64
        else tensor
        for tensor, is_float32 in zip(tensors, signature.float32, strict=True)
    ]
    return a, b, cast_tensors


def gemm(
    a: Tensor,
    b: Tensor,
    epilogue: str = "plain",
    *,
    out_dtype: torch.dtype | None = None,
    out: Tensor | tuple[Tensor, ...] | None = None,
    **operands: Tensor | float | None,
) -> Tensor | tuple[Tensor, ...]:
    """GEMM with an epilogue by name. It has no gradient.

    Args:
        a: [M, K] or [B, M, K]
        b: [K, N] or [B, K, N], dtype of a
        epilogue: one of cutwheel.epilogues(), which have the formulas and the operands
        out_dtype: dtype of the result D: that of a (default) or float32
        out: D, or a tuple of D and what the epilogue stores: exactly their shapes, any strides that
            do not overlap; never resized. It may be the very same view as a matrix operand
        operands: by name. Scalars are numbers, numpy's and tensors of no dimension too; alpha and
            beta are 1 unless given. Tensors have the dtype of D (or float32, where the epilogue
            says so); None, or none given, stands for zeros, and nothing is read. row[N]: [N] or
            [B, N]. col[M]: [M] or [B, M]. matrix[M,N]: [M, N] or [B, M, N]

    Returns:
        D, [M, N] or [B, M, N] ([M, N / 2] if the epilogue's width is "half", [M, 2 N] if "twice"),
        or the tuple (D, stores...), each [M, N] or [B, M, N]; `out` if that was given

    Raises:
        ValueError: an epilogue that is not declared, shapes that do not fit, `out` that overlaps
        TypeError: an operand that the epilogue does not have, or of the wrong kind or dtype; a
            scalar that is missing
        RuntimeError: a tensor requires grad; as mm
        NotImplementedError: as mm
    """
    signature = signature_of(epilogue)
    tensors, scalars = positional_operands(epilogue, signature, operands)
    try:
        if is_grad_enabled():
            _refuse_grad({"a": a, "b": b, **dict(zip(signature.tensors, tensors, strict=True))})
        if out is not None:
            targets = _targets(out, signature, out_dtype)
            allow_tf32 = a.dtype == torch.float32
            if (allow_tf32 or is_transformed()) and by_torch.serves("gemm", a):
                given = a, b, epilogue, tensors, scalars, signature
                by_torch.gemm(*given, targets[0].dtype, targets)
                return out
            if targets[0].dtype == torch.float32 and is_composed(a, epilogue):
                _composed(a, b, epilogue, tensors, scalars, signature, targets)
                return out
            _gemm_out(a, b, epilogue, tensors, scalars, allow_tf32, out=targets)
            for target in targets:
                increment_version(target)
            return out
        if is_autocast_enabled():
            a, b, tensors = cast_operands(a, b, tensors, signature, out_dtype)
        allow_tf32 = a.dtype == torch.float32
        if (allow_tf32 or is_transformed()) and by_torch.serves("gemm", a):
            results = by_torch.gemm(a, b, epilogue, tensors, scalars, signature, out_dtype)
        elif sharding.calls is not None and sharding.calls.gemm_reduces(b, epilogue):
            given = a, b, epilogue, tensors, scalars, signature
            dtype = a.dtype if out_dtype is None else out_dtype
            multiply = sharding.calls.reduced_product(_public.mm if a.dim() == 2 else _public.bmm)
            results = by_torch.gemm(*given, dtype, None, multiply)
        elif out_dtype == torch.float32 and is_composed(a, epilogue):
            results = _composed(a, b, epilogue, tensors, scalars, signature)
        else:
            call: Any = _gemm if is_tracing() else _gemm_direct
            results = call(a, b, epilogue, tensors, scalars, out_dtype, allow_tf32)
    except RAISED as error:
        reraise("gemm", error, (), a=a, b=b)
    return tuple(results) if signature.stores else results[0]


def is_composed(a: Tensor, epilogue: str) -> bool:
    """Whether a float32 result needs two steps: kernels that write one have 32-bit operands, or an
    epilogue of mm and addmm."""
    return a.dtype in _HALVES and epilogue not in _CLASSIC


_HALVES = (torch.float16, torch.bfloat16)
_CLASSIC = ("plain", "bias", "linear_combination")


def _composed(
    a: Tensor,
    b: Tensor,
    epilogue: str,
    tensors: list[Tensor | None],
    scalars: list[float],
    signature: Signature,
    targets: list[Tensor] | None = None,
) -> list[Tensor]:
    """D and the stores in float32: the GEMM by a kernel, and torch's functions on it."""

    def multiply(a: Tensor, b: Tensor) -> Tensor:
        return (_public.mm if a.dim() == 2 else _public.bmm)(a, b, torch.float32)

    given = a, b, epilogue, tensors, scalars, signature
    return by_torch.gemm(*given, torch.float32, targets, multiply)


def _refuse_grad(tensors: dict[str, Tensor | None]) -> None:
    for name, tensor in tensors.items():
        if tensor is not None and tensor.requires_grad:
            raise RuntimeError(
                f"gemm: {name} requires grad, and gemm has no gradient: use linear, gated_linear "
                "or mm, or call it under torch.no_grad()"
            )


def _targets(
    out: Tensor | Iterable[Tensor], signature: Signature, out_dtype: torch.dtype | None
) -> list[Tensor]:
    targets = [out] if isinstance(out, Tensor) else list(out)
    check_tensors("gemm", {f"out[{index}]": target for index, target in enumerate(targets)})
    if len(targets) != 1 + signature.stores:
        raise ArgumentError(
            f"gemm: out has {len(targets)} tensors; expected {1 + signature.stores}: the result"
            f"{' and what the epilogue stores' if signature.stores else ''}"
        )
    if out_dtype is not None and targets[0].dtype != out_dtype:
        raise DtypeError(
            f"gemm: out has dtype {targets[0].dtype}; expected {out_dtype} as out_dtype says"
        )
    if is_grad_enabled():
        _refuse_grad({"out": next((t for t in targets if t.requires_grad), None)})
    return targets
