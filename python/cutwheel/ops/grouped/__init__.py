"""Grouped GEMMs: many matrices of one expert or one segment each, in one launch.

    cutwheel.grouped_mm(x, weight.mT, offs=ends)     # rows of x by group, a weight for each

`offs` says where groups end: group g has the rows (or columns) from offs[g - 1] to offs[g], and the
first one begins at 0. It is a tensor on the GPU, int32 or int64, which the host never reads: a call
waits for nothing, can be captured in a CUDA graph, and is replayed with other ends. Ends do not
decrease; what lies behind the last one belongs to no group.

Dtypes, strides, autocast, torch.compile and errors are those of cutwheel.ops.gemm. float32 needs
torch's permission for TF32, else RuntimeError is raised: torch's own function would read `offs` on
the host. torch.func's transforms and forward-mode AD find no derivative: NotImplementedError.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, is_autocast_enabled, is_grad_enabled

from ...errors import ArgumentError, DtypeError, ShapeError
from .._common import sharding
from .._common.call import Op, distinct, fast_apply, increment_version, is_tracing, overloads
from .._common.errors import (
    RAISED,
    check_dims,
    check_one_device,
    check_tensors,
    dtype_name,
    raise_as,
    reraise,
    shape_text,
    wrong_dtype,
    wrong_shape,
)
from .._common.precision import autocast_operands, tf32_allowed
from .._common.sizes import differ, shapes_differ
from .._common.transforms import REVERSE, is_transformed, refuse
from ._autograd import GroupedK, GroupedRows
from ._linear import grouped_gated_linear, grouped_linear

__all__ = ["grouped_gated_linear", "grouped_linear", "grouped_mm", "grouped_mm_list"]
from ..gemm import addmm, baddbmm, bmm, mm

_float32 = torch.float32
_grouped_mm, _grouped_mm_direct = overloads("grouped_mm")
_accumulate, _ = overloads("grouped_mm_accumulate")
_rows_with_grad: Op = fast_apply(GroupedRows, 4)
_k_with_grad: Op = fast_apply(GroupedK, 3)

_OP = "grouped_mm"
_OPTIONAL = ("offs", "bias", "accumulate_into")
_BATCHED = {
    "bmm": {"input": "mat_a", "mat2": "mat_b"},
    "baddbmm": {"input": "bias", "batch1": "mat_a", "batch2": "mat_b"},
}


def grouped_mm(
    mat_a: Tensor,
    mat_b: Tensor,
    *,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    accumulate_into: Tensor | None = None,
) -> Tensor:
    """GEMMs of G groups, as torch.nn.functional.grouped_mm; the ranks tell what is grouped.

        mat_a        mat_b        result
        [T, K]       [G, K, N]    [T, N]       rows of mat_a: sorted tokens, a weight by expert
        [G, M, K]    [K, T]       [M, T]       columns of mat_b: the transpose of the first kind
        [M, T]       [T, N]       [G, M, N]    K, the dimension of the sum: wgrad
        [G, M, K]    [G, K, N]    [G, M, N]    nothing: bmm

    Args:
        mat_a, mat_b: of one dtype; any strides
        offs: [G], int32 or int64, on the device of mat_a: the end of each group along T; up to 1024
            groups. None if there is no T
        bias: a row for each group, dtype of mat_a or of the result (so is its gradient): [G, N];
            for the second kind, a column for each group, [G, M]. None where K is grouped
        out_dtype: dtype of the result: that of mat_a (default) or float32
        accumulate_into: float32. Where K is grouped, [G, M, N]: the result is added to it, and
            it is returned. Where the rows of mat_a are grouped, [G, K, N]: backward adds the
            gradient of mat_b to it, in float32, and mat_b itself gets none. Contiguous, or the
            transpose of a contiguous tensor

    Returns:
        as in the table; rows and columns behind offs[-1] are zeros. An empty group has no rows, or
        zeros if K is grouped

    Raises:
        ValueError: ranks or shapes that do not fit, offs missing or without a meaning
        TypeError, RuntimeError, NotImplementedError: as mm
    """
    try:
        ranks = mat_a.dim(), mat_b.dim()
        if offs is None or accumulate_into is not None or (ranks != (2, 3) and ranks != (2, 2)):
            return _less_common(mat_a, mat_b, ranks, offs, bias, out_dtype, accumulate_into)
        return _by_ends(mat_a, mat_b, offs, bias, out_dtype)
    except RAISED as error:
        others = {"offs": offs, "bias": bias, "accumulate_into": accumulate_into}
        reraise(_OP, error, _OPTIONAL, mat_a=mat_a, mat_b=mat_b, **others)


def _by_ends(
    a: Tensor,
    b: Tensor,
    offs: Tensor,
    bias: Tensor | None,
    out_dtype: torch.dtype | None,
    accumulate_into: Tensor | None = None,
) -> Tensor:
    """The two kinds that are kernels: a is [T, K] or [M, T]."""
    if sharding.calls is not None and sharding.calls.is_sharded(a, b):
        return _sharded(a, b, offs, bias, out_dtype, accumulate_into)
    if is_transformed():
        refuse(_OP, REVERSE, a=a, b=b, bias=bias)
    if is_autocast_enabled():
        a, b, bias = autocast_operands(a, b, bias)
    allow_tf32 = a.dtype == _float32 and tf32_allowed()
    if is_grad_enabled() and (
        a.requires_grad or b.requires_grad or (bias is not None and bias.requires_grad)
    ):
        if is_tracing():
            a, b, bias = distinct(a, b, bias)
        if b.dim() == 3:
            return _rows_with_grad(a, b, offs, bias, out_dtype, allow_tf32, accumulate_into)
        _refuse_bias(bias)
        return _k_with_grad(a, b, offs, out_dtype, allow_tf32)
    call = _grouped_mm if is_tracing() else _grouped_mm_direct
    if allow_tf32 or out_dtype is not None:
        return call(a, b, offs, bias, out_dtype, allow_tf32)
    return call(a, b, offs, bias)


def _sharded(
    a: Tensor,
    b: Tensor,
    offs: Tensor,
    bias: Tensor | None,
    out_dtype: torch.dtype | None,
    accumulate_into: Tensor | None,
) -> Tensor:
    if accumulate_into is not None:
        raise NotImplementedError(
            f"{_OP}: accumulate_into is given, and the operands are DTensors; expected None"
        )

    def call(a: Tensor, b: Tensor, ends: Tensor, others: dict[str, Any]) -> Tensor:
        return _by_ends(a, b, ends, others["bias"], out_dtype)

    result: Tensor = sharding.calls.grouped(_OP, call, a, b, offs, {"bias": bias})
    return result


def _less_common(
    a: Tensor,
    b: Tensor,
    ranks: tuple[int, int],
    offs: Tensor | None,
    bias: Tensor | None,
    out_dtype: torch.dtype | None,
    accumulate_into: Tensor | None,
) -> Tensor:
    if not {*ranks} <= {2, 3}:
        check_dims(_OP, "mat_a", a, 2, 3)
        check_dims(_OP, "mat_b", b, 2, 3)
    if (offs is None) != (ranks == (3, 3)):
        raise ArgumentError(
            f"{_OP}: offs is None, and {'mat_a' if ranks[0] == 2 else 'mat_b'} has 2 dimensions; "
            "expected the end of each group, [G]"
            if offs is None
            else f"{_OP}: offs is given, and mat_a and mat_b have 3 dimensions, a matrix for each "
            "group; expected None"
        )
    if accumulate_into is not None:
        check_tensors(_OP, {"accumulate_into": accumulate_into})
        if ranks[0] == 3:
            raise ArgumentError(
                f"{_OP}: accumulate_into is given, and mat_a has 3 dimensions; expected None: it "
                "is for products with grouped K, and for the gradient of mat_b with grouped rows"
            )
    if offs is None:
        return _batched(a, b, bias, out_dtype)
    if ranks[0] == 3:
        return _grouped_columns(a, b, offs, bias, out_dtype)
    if accumulate_into is not None and ranks == (2, 2):
        return _accumulated(a, b, offs, bias, out_dtype, accumulate_into)
    if accumulate_into is not None:
        _check_total(accumulate_into, tuple(b.shape), b)
    return _by_ends(a, b, offs, bias, out_dtype, accumulate_into)


def _refuse_bias(bias: Tensor | None) -> None:
    if bias is not None:
        raise ArgumentError(
            f"{_OP}: bias is given, and the groups are along K (mat_b has 2 dimensions); expected "
            "None"
        )


def _check_bias_shape(bias: Tensor | None, groups: int, size: int) -> None:
    if bias is not None and shapes_differ(bias.shape, (groups, size)):
        raise wrong_shape(_OP, "bias", bias, (groups, size), ", a row for each group")


def _batched(a: Tensor, b: Tensor, bias: Tensor | None, out_dtype: torch.dtype | None) -> Tensor:
    try:
        if bias is None:
            return bmm(a, b, out_dtype)
        _check_bias_shape(bias, a.shape[0], b.shape[2])
        return baddbmm(bias.unsqueeze(1), a, b, out_dtype)
    except (TypeError, ValueError, RuntimeError) as error:
        raise_as(_OP, error, _BATCHED)


def _grouped_columns(
    a: Tensor, b: Tensor, offs: Tensor, bias: Tensor | None, out_dtype: torch.dtype | None
) -> Tensor:
    """[G, M, K], [K, T] -> [M, T], by the GEMM of the transposed operands.

    Each operand alone is checked here: the transposed call knows it by the other's name.
    """
    groups, m, k = a.shape
    if differ(b.shape[0], k):
        raise wrong_shape(_OP, "mat_b", b, (k, "T"), f" as mat_a has shape {shape_text(a.shape)}")
    if b.dtype != a.dtype and not is_autocast_enabled():
        raise wrong_dtype(_OP, "mat_b", b.dtype, a.dtype, " as mat_a has")
    if offs.dim() == 1 and differ(offs.shape[0], groups):
        raise ShapeError(
            f"{_OP}: offs has {offs.shape[0]} elements; expected {groups}, one for each matrix of "
            f"mat_a (shape {shape_text(a.shape)})"
        )
    _check_bias_shape(bias, groups, m)
    return _by_ends(b.mT, a.mT, offs, bias, out_dtype).mT.contiguous()


def _check_total(total: Tensor, shape: tuple[int, ...], b: Tensor) -> None:
    """Checks accumulate_into."""
    if total.dtype != _float32:
        raise wrong_dtype(_OP, "accumulate_into", total.dtype, _float32)
    if shapes_differ(total.shape, shape):
        raise wrong_shape(_OP, "accumulate_into", total, shape)
    check_one_device(_OP, {"mat_b": b, "accumulate_into": total})
    if not total.is_contiguous() and not total.mT.is_contiguous():
        raise ArgumentError(
            f"{_OP}: accumulate_into has strides {list(total.stride())}; expected those of a "
            "contiguous tensor, or of its transpose"
        )
    if is_grad_enabled() and total.requires_grad:
        raise RuntimeError(
            f"{_OP}: accumulate_into requires grad, and it is changed in place: detach it"
        )


def _accumulated(
    a: Tensor,
    b: Tensor,
    offs: Tensor,
    bias: Tensor | None,
    out_dtype: torch.dtype | None,
    total: Tensor,
) -> Tensor:
    """total[g] += a_g @ b_g"""
    if is_transformed():
        refuse(_OP, REVERSE, a=a, b=b, accumulate_into=total)
    _refuse_bias(bias)
    if out_dtype not in (None, _float32):
        raise DtypeError(
            f"{_OP}: out_dtype is {dtype_name(out_dtype)}; expected float32, that of "
            "accumulate_into"
        )
    check_tensors(_OP, {"offs": offs})
    if is_grad_enabled():
        for name, tensor in (("mat_a", a), ("mat_b", b)):
            if tensor.requires_grad:
                raise RuntimeError(
                    f"{_OP}: {name} requires grad, and accumulate_into= does not support automatic "
                    "differentiation where K is grouped: call without it, or under torch.no_grad()"
                )
    if differ(b.shape[0], a.shape[1]):
        wanted, why = (a.shape[1], "N"), f" as mat_a has shape {shape_text(a.shape)}"
        raise wrong_shape(_OP, "mat_b", b, wanted, why)
    if b.dtype != a.dtype:
        raise wrong_dtype(_OP, "mat_b", b.dtype, a.dtype, " as mat_a has")
    _check_total(total, (offs.shape[0], a.shape[0], b.shape[1]), b)
    allow_tf32 = a.dtype == _float32 and tf32_allowed()
    left, right, out = with_row_major(a, b, total)
    _accumulate(left, right, offs, allow_tf32, out=out)
    increment_version(total)
    return total


def with_row_major(a: Tensor, b: Tensor, total: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same sum with a contiguous total: of the transposed operands, if total is transposed."""
    return (a, b, total) if total.is_contiguous() else (b.mT, a.mT, total.mT)


def grouped_mm_list(
    As: Sequence[Tensor],  # noqa: N803
    Bs: Sequence[Tensor],  # noqa: N803
    biases: Sequence[Tensor | None] | None = None,
) -> list[Tensor]:
    """GEMMs of pairs of matrices of any shapes.

    Each pair is an op of its own: autograd sees every tensor, and a gradient is computed for those
    that need one. Matrices of one shape are better stacked, for grouped_mm: that is one launch.

    Args:
        As: [M_i, K_i] each
        Bs: [K_i, N_i] each, dtype of As[i]
        biases: None, or for each pair None or a tensor that broadcasts to [M_i, N_i], as [N_i]

    Returns:
        As[i] @ Bs[i] (+ biases[i]), [M_i, N_i] each, in the dtype of As[i]

    Raises:
        ValueError: lists of different lengths; shapes that do not fit
        TypeError, RuntimeError, NotImplementedError: as mm
    """
    op = "grouped_mm_list"
    given = [None] * len(As) if biases is None else biases
    for name, others in (("Bs", Bs), ("biases", given)):
        if len(others) != len(As):
            raise ArgumentError(
                f"{op}: {name} has {len(others)} elements; expected {len(As)} as As has"
            )
    results = []
    for index, (a, b, bias) in enumerate(zip(As, Bs, given, strict=True)):
        left, right, added = f"As[{index}]", f"Bs[{index}]", f"biases[{index}]"
        try:
            results.append(mm(a, b) if bias is None else addmm(bias, a, b))
        except (TypeError, ValueError, RuntimeError) as error:
            of_addmm = {"input": added, "mat1": left, "mat2": right}
            raise_as(op, error, {"mm": {"input": left, "mat2": right}, "addmm": of_addmm})
    return results
