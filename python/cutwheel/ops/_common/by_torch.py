"""The products by torch's own functions, where no kernel of the wheel may compute them.

That is so for float32 where torch's setting forbids TF32, the only way in which the kernels
multiply float32, and inside of torch.func's transforms and forward-mode AD, for which the operators
of the wheel have no rules. All of it is made of differentiable functions of torch, each of which
rounds its result to the dtype of the operands.

Arguments are those of the public functions; what those refuse is refused here in the same words.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import is_autocast_enabled

from ... import _library  # noqa: F401  (registers torch.ops.cutwheel)
from .expressions import evaluate
from .meta import check_devices
from .precision import DTYPES, conv_tf32_allowed, tf32_allowed
from .transforms import is_transformed

_float32 = torch.float32
_ops = torch.ops.cutwheel
_logger = logging.getLogger("cutwheel")
_told: set[str] = set()

ALLOW_TF32 = (
    'torch.backends.cuda.matmul.fp32_precision = "tf32" (or '
    'torch.set_float32_matmul_precision("high"))'
)
ALLOW_CONV_TF32 = 'torch.backends.cudnn.conv.fp32_precision = "tf32"'
_TRANSFORMED = (
    "a transform of torch.func, or forward-mode AD, is active, for which the kernels have no rules"
)


# What computes the product of each function.
FUNCTIONS = {
    **{op: f"torch.{op}" for op in ("mm", "bmm", "addmm", "baddbmm")},
    **dict.fromkeys(("linear", "gated_linear"), "torch.nn.functional.linear"),
    "gemm": "torch.matmul",
}


def tell(op: str, allow: str) -> None:
    """Says once for each op that torch computes its float32 calls."""
    if op not in _told:
        _told.add(op)
        _logger.warning(
            "%s: torch computes float32 operands in full precision, as its setting forbids TF32, "
            "and cutwheel has no kernel for that; %s allows the kernels for TF32 (said once)",
            op,
            allow,
        )


# torch.compile calls it where it traces the op.
tell._dynamo_marked_constant = True  # type: ignore[attr-defined]


def tell_of_convolution(op: str) -> None:
    """The same where torch's setting for convolutions forbids TF32."""
    if not conv_tf32_allowed():
        tell(op, ALLOW_CONV_TF32)


def _is_refused(operand: torch.Tensor) -> bool:
    """Whether the library refuses the operand, whatever the settings are: then it says so."""
    return operand.dtype not in DTYPES or operand.device.type == "cpu"


def why(operand: torch.Tensor) -> str | None:
    """Why torch computes a product; None: a kernel does, or the library refuses it."""
    if _is_refused(operand):
        return None
    if operand.dtype == _float32 and not tf32_allowed():
        return (
            "the operands have dtype float32, and torch's setting for matrix products forbids "
            f"TF32 ({ALLOW_TF32} allows it)"
        )
    return _TRANSFORMED if is_transformed() else None


def why_convolution(input: torch.Tensor) -> str | None:
    """The same of convolutions in a dtype of the kernels."""
    if input.dtype == _float32 and not conv_tf32_allowed():
        return (
            "input has dtype float32, and torch's setting for convolutions forbids TF32 "
            f"({ALLOW_CONV_TF32} allows it)"
        )
    return _TRANSFORMED if is_transformed() and not _is_refused(input) else None


def serves(op: str, operand: torch.Tensor) -> bool:
    """Whether torch computes a product; asked where the operand is float32, or is_transformed()."""
    if _is_refused(operand):
        return False
    if operand.dtype == _float32 and not tf32_allowed():
        tell(op, ALLOW_TF32)
        return True
    return is_transformed()


def _on_meta(value: Any) -> Any:
    """Without the elements."""
    if isinstance(value, torch.Tensor):
        strides = value.stride()
        return torch.empty_strided(value.shape, strides, dtype=value.dtype, device="meta")
    return [_on_meta(each) for each in value] if isinstance(value, list) else value


def check(
    op: str, tensors: Mapping[str, torch.Tensor | None], overload: Any, *given: Any, **out: Any
) -> None:
    """Raises what the library would raise for these arguments, TF32 apart.

    Args:
        op: name of the function that was called
        tensors: its tensor arguments by name, the first of them an operand
        overload, given, out: the call of the library
    """
    check_devices(op, {k: v for k, v in tensors.items() if isinstance(v, torch.Tensor)})
    overload(*map(_on_meta, given), **{key: _on_meta(value) for key, value in out.items()})


def _compute(
    compute: Callable[[], Any],
    fits: bool,
    op: str,
    tensors: Mapping[str, torch.Tensor | None],
    overload: Any,
    *given: Any,
) -> Any:
    """What `compute` returns, or the error of the library if the arguments are wrong.

    The library's checks take longer than the call of torch. So they come first only where torch
    would take what the library refuses: where `fits` is False, and in transforms.
    """
    if not fits or is_transformed():
        check(op, tensors, overload, *given)
    try:
        if not is_autocast_enabled():
            return compute()
        # The operands have been cast. With out=, and for float32 results, they stay as they are.
        with torch.autocast("cuda", enabled=False):
            return compute()
    except Exception:
        check(op, tensors, overload, *given)
        raise


def _wide(out_dtype: torch.dtype | None, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The operands of a product with that result. Those of 16 bits are exact in TF32, too."""
    if out_dtype is None or all(tensor.dtype == out_dtype for tensor in tensors):
        return tensors
    return tuple(tensor.to(out_dtype) for tensor in tensors)


def mm(a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype | None) -> torch.Tensor:
    tensors = {"input": a, "mat2": b}
    fits = out_dtype in (None, _float32) and a.dtype == b.dtype
    given = (_ops.mm.default, a, b, out_dtype, True)
    result: torch.Tensor = _compute(
        lambda: torch.mm(*_wide(out_dtype, a, b)), fits, "mm", tensors, *given
    )
    return result


def bmm(a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype | None) -> torch.Tensor:
    tensors = {"input": a, "mat2": b}
    fits = out_dtype in (None, _float32) and a.dtype == b.dtype
    given = (_ops.bmm.default, a, b, out_dtype, True)
    result: torch.Tensor = _compute(
        lambda: torch.bmm(*_wide(out_dtype, a, b)), fits, "bmm", tensors, *given
    )
    return result


def _added(
    function: Callable[..., torch.Tensor],
    product: Callable[..., torch.Tensor],
    operands: tuple[torch.Tensor, ...],
    out_dtype: torch.dtype | None,
    beta: float,
    alpha: float,
) -> torch.Tensor:
    c, a, b = operands
    if beta == 0:  # vmap multiplies C by it
        return alpha * product(*_wide(out_dtype, a, b))
    return function(*_wide(out_dtype, c, a, b), beta=beta, alpha=alpha)


def addmm(
    c: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    out_dtype: torch.dtype | None,
    beta: float,
    alpha: float,
) -> torch.Tensor:
    tensors = {"mat1": a, "mat2": b, "input": c}
    # Without an addend torch does not look at it.
    fits = out_dtype in (None, _float32) and a.dtype == b.dtype == c.dtype and beta != 0
    operands = c, a, b
    result: torch.Tensor = _compute(
        lambda: _added(torch.addmm, torch.mm, operands, out_dtype, beta, alpha),
        *(fits, "addmm", tensors, _ops.addmm.default),
        *(*operands, out_dtype, beta, alpha, True),
    )
    return result


def baddbmm(
    c: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    out_dtype: torch.dtype | None,
    beta: float,
    alpha: float,
) -> torch.Tensor:
    tensors = {"batch1": a, "batch2": b, "input": c}
    fits = out_dtype in (None, _float32) and a.dtype == b.dtype == c.dtype and beta != 0
    operands = c, a, b
    result: torch.Tensor = _compute(
        lambda: _added(torch.baddbmm, torch.bmm, operands, out_dtype, beta, alpha),
        *(fits, "baddbmm", tensors, _ops.baddbmm.default),
        *(*operands, out_dtype, beta, alpha, True),
    )
    return result


def write(
    out: torch.Tensor,
    result: Callable[[], torch.Tensor],
    op: str,
    tensors: Mapping[str, torch.Tensor],
    *given: Any,
) -> torch.Tensor:
    """The result as `out`, which may overlap what it is computed of.

    Args:
        given: the call of the library: its overload with out=, and what it takes besides
    """
    check(op, {**tensors, "out": out}, *given, out=out)
    return out.copy_(result())


def mm_out(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    tensors = {"input": a, "mat2": b}
    return write(out, lambda: mm(a, b, out.dtype), "mm", tensors, _ops.mm.out, a, b, True)


def bmm_out(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    tensors = {"input": a, "mat2": b}
    return write(out, lambda: bmm(a, b, out.dtype), "bmm", tensors, _ops.bmm.out, a, b, True)


def addmm_out(
    c: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    beta: float,
    alpha: float,
    out: torch.Tensor,
) -> torch.Tensor:
    tensors = {"mat1": a, "mat2": b, "input": c}
    given = (_ops.addmm.out, c, a, b, beta, alpha, True)
    return write(out, lambda: addmm(c, a, b, out.dtype, beta, alpha), "addmm", tensors, *given)


def baddbmm_out(
    c: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    beta: float,
    alpha: float,
    out: torch.Tensor,
) -> torch.Tensor:
    tensors = {"batch1": a, "batch2": b, "input": c}
    given = (_ops.baddbmm.out, c, a, b, beta, alpha, True)
    return write(out, lambda: baddbmm(c, a, b, out.dtype, beta, alpha), "baddbmm", tensors, *given)


Activation = Callable[[torch.Tensor], torch.Tensor]


def linear(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: Activation | None = None,
    residual: torch.Tensor | None = None,
    residual_after_activation: bool = False,
) -> torch.Tensor:
    tensors = {"input": input, "weight": weight, "bias": bias, "residual": residual}
    # torch would broadcast them.
    fits = weight.dim() == 2 and weight.dtype == input.dtype
    if bias is not None:
        fits = fits and bias.shape == weight.shape[:1] and bias.dtype == input.dtype
    given: tuple[Any, ...]
    if residual is None:
        given = (_ops.linear.default, input, weight, bias, True)
    else:
        shape = (*input.shape[:-1], weight.shape[0])
        fits = fits and residual.shape == shape and residual.dtype == input.dtype
        given = (_ops.linear_fused.default, input, weight, bias, residual, "bias_residual", True)
    is_last = residual_after_activation and activation is not None

    def compute() -> torch.Tensor:
        z = F.linear(input, weight, bias)
        if residual is not None and not is_last:
            z = z + residual
        if activation is not None:
            z = activation(z)
        return z + residual if residual is not None and is_last else z

    result: torch.Tensor = _compute(compute, fits, "linear", tensors, *given)
    return result


def gated_linear(input: torch.Tensor, weight: torch.Tensor, activation: Activation) -> torch.Tensor:
    fits = weight.dtype == input.dtype and weight.dim() == 2 and weight.shape[0] % 2 == 0

    def compute() -> torch.Tensor:
        z = F.linear(input, weight)
        return activation(z[..., 0::2]) * z[..., 1::2]

    given = (_ops.linear_fused.default, input, weight, None, None, "gated_relu", True)
    tensors = {"input": input, "weight": weight}
    result: torch.Tensor = _compute(compute, fits, "gated_linear", tensors, *given)
    return result


def gemm(
    a: torch.Tensor,
    b: torch.Tensor,
    epilogue: str,
    tensors: Mapping[str, tuple[str, torch.Tensor | None]],
    scalars: Mapping[str, float],
    expressions: Sequence[tuple[str, str]],
    out_dtype: torch.dtype | None,
    multiply: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
) -> list[torch.Tensor]:
    """D, and what the epilogue stores, each rounded once.

    Args:
        tensors: kind and value of each tensor operand by name
        expressions: name and text of what is stored, in order, and of D at last
        multiply: computes the product in float32; None: torch.matmul of the operands in float32
    """
    operands = [value for _, value in tensors.values()]
    dtype = a.dtype if out_dtype is None else out_dtype

    def compute() -> list[torch.Tensor]:
        accum = torch.matmul(*_wide(_float32, a, b)) if multiply is None else multiply(a, b)
        values: dict[str, Any] = {**scalars, "accum": accum}
        for name, (kind, value) in tensors.items():
            values[name] = _as_matrix(kind, value, accum)
        for name, text in expressions:
            values[name] = evaluate(text, values)
        *stores, result = (values[name].to(dtype) for name, _ in expressions)
        return [result, *stores]

    given = (_ops.gemm.default, a, b, epilogue, operands, list(scalars.values()), out_dtype, True)
    named = {"a": a, "b": b, **{name: value for name, (_, value) in tensors.items()}}
    # torch would broadcast what the library refuses.
    results: list[torch.Tensor] = _compute(compute, False, "gemm", named, *given)
    return results


def _as_matrix(kind: str, value: torch.Tensor | None, accum: torch.Tensor) -> torch.Tensor:
    """An operand of an epilogue in float32, as it goes with `accum`, [M, N] or [B, M, N]: a row,
    [N] or [B, N], a column, [M] or [B, M], or a matrix. None: zeros."""
    if value is None:
        zero = accum.new_zeros(())
        return zero.expand(*accum.shape[:-1], accum.shape[-1] * (2 if "2N" in kind else 1))
    if not kind.startswith("matrix"):
        value = value.unsqueeze(-2 if kind.startswith("row") else -1)
    return value.to(_float32)
