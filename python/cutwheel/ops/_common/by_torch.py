"""Torch's own functions in place of the kernels, where no kernel of the wheel may compute a call.

That is so for float32 where torch's setting forbids TF32, the only way in which the kernels
multiply float32, and inside of torch.func's transforms and forward-mode AD, for which the operators
of the wheel have no rules. All of it is made of differentiable functions of torch, each of which
rounds its result to the dtype of the operands.

Arguments are those of the public functions; what those refuse is refused here in the same words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, is_autocast_enabled

from ... import _library  # noqa: F401  (registers torch.ops.cutwheel)
from ...errors import ArgumentError, DtypeError, ShapeError
from . import batch_invariance, log
from .call import is_tracing
from .epilogue import Signature, expressions_of
from .errors import check_one_device, dtype_name, shape_text, wrong_dtype, wrong_shape
from .expressions import evaluate
from .precision import DTYPES, conv_tf32_allowed, tf32_allowed
from .sizes import differ, known, shapes_differ
from .transforms import is_transformed

_float32 = torch.float32
_ops = torch.ops.cutwheel
_told: set[str] = set()

ALLOW_TF32 = (
    'torch.backends.cuda.matmul.fp32_precision = "tf32" (or '
    'torch.set_float32_matmul_precision("high"))'
)
ALLOW_CONV_TF32 = 'torch.backends.cudnn.conv.fp32_precision = "tf32"'
_TRANSFORMED = (
    "a transform of torch.func, or forward-mode AD, is active, for which the kernels have no rules"
)

# Torch's function for each op.
FUNCTIONS = {
    **{op: f"torch.{op}" for op in ("mm", "bmm", "addmm", "baddbmm")},
    **dict.fromkeys(("linear", "gated_linear"), "torch.nn.functional.linear"),
    "gemm": "torch.matmul",
}
_OPERANDS = {
    **dict.fromkeys(("mm", "bmm"), ("input", "mat2")),
    "addmm": ("mat1", "mat2"),
    "baddbmm": ("batch1", "batch2"),
}


def tell(op: str, allow: str) -> None:
    """Says once for each op that torch computes its float32 calls."""
    if op not in _told:
        _told.add(op)
        log.logger.warning(
            "%s: torch computes float32 operands in full precision, as its setting forbids TF32, "
            "and cutwheel has no kernel for that; %s allows the kernels for TF32 (said once)",
            op,
            allow,
        )


# torch.compile calls it where it traces the op.
tell._dynamo_marked_constant = True  # type: ignore[attr-defined]


def tell_choice(op: str, because: str, *operands: Tensor) -> None:
    """Tells with CUTWHEEL_LOG=debug that torch computes a call."""
    if log.enabled:
        log.tell_torch(op, because, *(() if is_tracing() else operands))


def _is_refused(operand: Tensor) -> bool:
    """Whether the library refuses the operand, whatever the settings are: then it says so."""
    return operand.dtype not in DTYPES or operand.device.type == "cpu"


def why(operand: Tensor) -> str | None:
    """Why torch computes a matmul; None: a kernel does, or the library refuses it."""
    if _is_refused(operand):
        return None
    if operand.dtype == _float32 and not tf32_allowed():
        return (
            "the operands have dtype float32, and torch's setting for matrix products forbids "
            f"TF32 ({ALLOW_TF32} allows it)"
        )
    return _TRANSFORMED if is_transformed() else None


def why_convolution(input: Tensor) -> str | None:
    """Why torch computes a convolution in a dtype of the kernels; None: a kernel does."""
    if input.dtype == _float32 and not conv_tf32_allowed():
        return (
            "input has dtype float32, and torch's setting for convolutions forbids TF32 "
            f"({ALLOW_CONV_TF32} allows it)"
        )
    return _TRANSFORMED if is_transformed() and not _is_refused(input) else None


def serves(op: str, operand: Tensor) -> bool:
    """Whether torch computes a matmul; asked where the operand is float32, or is_transformed()."""
    if _is_refused(operand):
        return False
    if operand.dtype == _float32 and not tf32_allowed():
        if batch_invariance.enabled:
            batch_invariance.refuse_torch(op, str(why(operand)))
        tell(op, ALLOW_TF32)
        if log.enabled:
            tell_choice(op, str(why(operand)), operand)
        return True
    if not is_transformed():
        return False
    batch_invariance.refuse_torch(op, _TRANSFORMED)
    tell_choice(op, _TRANSFORMED, operand)
    return True


def _on_meta(value: Any) -> Any:
    """Without the elements."""
    if isinstance(value, Tensor):
        strides = value.stride()
        return torch.empty_strided(value.shape, strides, dtype=value.dtype, device="meta")
    return [_on_meta(each) for each in value] if isinstance(value, list) else value


Refuse = Callable[[], Any]
"""Raises what the library would raise for a call, TF32 apart."""


def _check_dtypes(
    op: str, names: tuple[str, str], a: Tensor, b: Tensor, dtype: torch.dtype, what: str
) -> None:
    """Checks the dtypes of A, B and the result, of which `what` says what it is."""
    if b.dtype != a.dtype:
        raise wrong_dtype(op, names[1], b.dtype, a.dtype, f" as {names[0]} has")
    if dtype not in (a.dtype, _float32):
        wanted = "float32" if a.dtype == _float32 else f"{dtype_name(a.dtype)} or float32"
        raise DtypeError(f"{op}: {what} {dtype_name(dtype)}; expected {wanted}")


def _check_operand(
    op: str, name: str, tensor: Tensor, dtype: torch.dtype, *allowed: Sequence[Any]
) -> None:
    """Checks the dtype of an operand that torch would promote, and the shape that it would
    broadcast."""
    if tensor.dtype != dtype:
        raise wrong_dtype(op, name, tensor.dtype, dtype)
    expected = next((shape for shape in allowed if len(shape) == tensor.dim()), allowed[0])
    if shapes_differ(tensor.shape, expected):
        raise wrong_shape(op, name, tensor, " or ".join(map(shape_text, allowed)))


def _check_even(op: str, name: str, n: Any) -> None:
    if differ(n % 2, 0):
        raise ShapeError(
            f"{op}: {name} makes {n} columns; expected an even number: they go in pairs"
        )


def _check_out(op: str, name: str, out: Tensor, shape: Sequence[Any]) -> None:
    if shapes_differ(out.shape, shape):
        raise wrong_shape(op, name, out, shape, " (out is never resized)")
    places = zip(out.shape, out.stride(), strict=True)
    if any(known(stride == 0) and known(size > 1) for size, stride in places):
        raise ArgumentError(
            f"{op}: {name} overlaps itself (an expanded view?); expected memory of its own for "
            "each element"
        )


def _infer(op: str, tensors: Mapping[str, Tensor | None], overload: Any, *given: Any) -> Any:
    """The result of the library's call, on meta.

    Args:
        op: name of the function that was called
        tensors: its tensor arguments by name, the first of them an operand
        overload, given: the call of the library
    """
    check_one_device(op, {k: v for k, v in tensors.items() if isinstance(v, Tensor)})
    return overload(*map(_on_meta, given))


def _compute(compute: Callable[[], Any], fits: bool, refuse: Refuse) -> Any:
    """The result of `compute`, or the error of the library if the arguments are wrong.

    The library's checks take longer than the call of torch. So they come first only where torch
    would take what the library refuses: where `fits` is False, and in transforms.
    """
    if not fits or is_transformed():
        refuse()
    try:
        if not is_autocast_enabled():
            return compute()
        # The operands have been cast. With out=, and for float32 results, they stay as they are.
        with torch.autocast("cuda", enabled=False):
            return compute()
    except Exception:
        refuse()
        raise


def _wide(out_dtype: torch.dtype | None, *tensors: Tensor) -> tuple[Tensor, ...]:
    """The operands in the dtype of the result. Those of 16 bits are exact in TF32, too."""
    if out_dtype is None or all(tensor.dtype == out_dtype for tensor in tensors):
        return tensors
    return tuple(tensor.to(out_dtype) for tensor in tensors)


def matmul(
    op: str,
    a: Tensor,
    b: Tensor,
    out_dtype: torch.dtype | None = None,
    out: Tensor | None = None,
    c: Tensor | None = None,
    beta: float = 0,
    alpha: float = 1,
) -> Tensor:
    """mm and bmm; with C, addmm and baddbmm."""
    dtype = out_dtype if out is None else out.dtype
    names = _OPERANDS[op]

    def refuse() -> None:
        tensors = {names[0]: a, names[1]: b, **({} if c is None else {"input": c}), "out": out}
        given = (a, b, None, True) if c is None else (c, a, b, None, beta, alpha, True)
        shape = _infer(op, tensors, getattr(_ops, op).default, *given).shape
        what = "out_dtype is" if out is None else "out has dtype"
        _check_dtypes(op, names, a, b, dtype or a.dtype, what)
        if c is not None and c.dtype not in (a.dtype, dtype or a.dtype):
            raise wrong_dtype(op, "input", c.dtype, a.dtype)
        if out is not None:
            _check_out(op, "out", out, shape)

    def compute() -> Tensor:
        if c is not None and beta != 0:
            result: Tensor = getattr(torch, op)(*_wide(dtype, c, a, b), beta=beta, alpha=alpha)
            return result
        result = (torch.bmm if op.endswith("bmm") else torch.mm)(*_wide(dtype, a, b))
        return result if c is None else alpha * result  # vmap multiplies C by a beta of 0

    # Without C torch does not look at it.
    fits = dtype in (None, _float32) and a.dtype == b.dtype and out is None
    result: Tensor = _compute(
        compute, fits and (c is None or (c.dtype == a.dtype and beta != 0)), refuse
    )
    return result if out is None else out.copy_(result)


Activation = Callable[[Tensor], Tensor]


def linear(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: Activation | None = None,
    residual: Tensor | None = None,
    residual_after_activation: bool = False,
) -> Tensor:
    op, dtype, n = "linear", input.dtype, weight.shape[:1]
    # torch would broadcast them.
    fits = weight.dim() == 2 and weight.dtype == dtype
    if bias is not None:
        fits = fits and bias.shape == n and bias.dtype == dtype
    if residual is not None:
        fits = fits and residual.shape == (*input.shape[:-1], *n) and residual.dtype == dtype

    def refuse() -> None:
        tensors = {"input": input, "weight": weight, "bias": bias, "residual": residual}
        shape = _infer(op, tensors, _ops.linear.default, input, weight, None, True).shape
        _check_dtypes(op, ("input", "weight"), input, weight, dtype, "")
        if bias is not None:
            _check_operand(op, "bias", bias, dtype, n)
        if residual is not None:
            _check_operand(op, "residual", residual, dtype, shape)

    is_last = residual_after_activation and activation is not None

    def compute() -> Tensor:
        z = F.linear(input, weight, bias)
        if residual is not None and not is_last:
            z = z + residual
        if activation is not None:
            z = activation(z)
        return z + residual if residual is not None and is_last else z

    result: Tensor = _compute(compute, fits, refuse)
    return result


def gated_linear(
    input: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation
) -> Tensor:
    dtype, columns = input.dtype, weight.shape[:1]
    fits = weight.dtype == dtype and weight.dim() == 2 and weight.shape[0] % 2 == 0
    if bias is not None:  # which torch would broadcast
        fits = fits and bias.shape == columns and bias.dtype == dtype

    def compute() -> Tensor:
        z = F.linear(input, weight, bias)
        return activation(z[..., 0::2]) * z[..., 1::2]

    def refuse() -> None:
        op, tensors = "gated_linear", {"input": input, "weight": weight, "bias": bias}
        *_, n = _infer(op, tensors, _ops.linear.default, input, weight, None, True).shape
        _check_dtypes(op, ("input", "weight"), input, weight, dtype, "")
        _check_even(op, "weight", n)
        if bias is not None:
            _check_operand(op, "bias", bias, dtype, columns)

    result: Tensor = _compute(compute, fits, refuse)
    return result


def gated_linear_of_two(
    given: dict[str, Any],
    gate: Tensor,
    up: Tensor,
    biases: Sequence[Tensor | None],
    activation: Activation,
) -> Tensor:
    """gated_linear, of two matrices.

    Args:
        given: the tensors by the names that errors give them, among them input
        gate, up, biases: the weights and biases in it, or the halves of those in it
    """
    op, input = "gated_linear", given["input"]
    dtype, columns = input.dtype, gate.shape[:1]
    fits = gate.dtype == dtype == up.dtype and gate.dim() == 2 and gate.shape == up.shape
    for each in biases:  # which torch would broadcast
        fits = fits and (each is None or (each.shape == columns and each.dtype == dtype))

    def compute() -> Tensor:
        if (whole := given.get("weight")) is not None:
            z, u = F.linear(input, whole, given.get("bias")).chunk(2, -1)
        else:
            z, u = F.linear(input, gate, biases[0]), F.linear(input, up, biases[1])
        return activation(z) * u

    def refuse() -> None:
        named = {name: each for name, each in given.items() if not name.startswith("bias")}
        _infer(op, named, _ops.linear.default, input, gate, None, True)
        *_, last = named
        for name, each in named.items():
            _check_dtypes(op, ("input", name), input, each, dtype, "")
        if last != "weight":
            _check_operand(op, last, up, dtype, gate.shape)
        for name, shape in (
            ("bias", (2 * columns[0],)),
            *((f"bias[{i}]", columns) for i in (0, 1)),
        ):
            if given.get(name) is not None:
                _check_operand(op, name, given[name], dtype, shape)

    result: Tensor = _compute(compute, fits, refuse)
    return result


def gemm(
    a: Tensor,
    b: Tensor,
    epilogue: str,
    tensors: list[Tensor | None],
    scalars: list[float],
    signature: Signature,
    out_dtype: torch.dtype | None,
    out: list[Tensor] | None = None,
    multiply: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> list[Tensor]:
    """D, and what the epilogue stores, each rounded once; also in `out`, if that is given.

    Args:
        multiply: computes the GEMM in float32; None: torch.matmul of the operands in float32
    """
    dtype = a.dtype if out_dtype is None else out_dtype
    operands = list(zip(signature.tensors, signature.kinds, tensors, strict=True))
    expressions = expressions_of(epilogue)

    def compute() -> list[Tensor]:
        accum = torch.matmul(*_wide(_float32, a, b)) if multiply is None else multiply(a, b)
        values: dict[str, Any] = dict(zip(signature.scalars, scalars, strict=True))
        values["accum"] = accum
        for name, kind, value in operands:
            values[name] = _as_matrix(kind, value, accum)
        for name, text in expressions:
            values[name] = evaluate(text, values)
        *stores, result = (values[name].to(dtype) for name, _ in expressions)
        return [result, *stores]

    def refuse() -> None:
        outs = {} if out is None else {f"out[{i}]": each for i, each in enumerate(out)}
        named = {name: value for name, _, value in operands}
        given = a, b, epilogue, tensors, scalars, None, True
        results = _infer("gemm", {"a": a, "b": b, **named, **outs}, _ops.gemm.default, *given)
        what = "out_dtype is" if out is None else "out has dtype"
        _check_dtypes("gemm", ("a", "b"), a, b, dtype, what)
        *batch, m, n = *a.shape[:-1], b.shape[-1]
        if known(results[0].shape[-1] < n):
            _check_even("gemm", "b", n)
        shapes: dict[str, tuple[Any, ...]] = {
            "row[N]": (n,),
            "col[M]": (m,),
            "matrix[M,N]": (m, n),
            "matrix[M,2N]": (m, 2 * n),
        }
        for name, kind, value in operands:
            if value is not None:
                shape = shapes[kind.removesuffix(" f32")]
                allowed = [shape, (*batch, *shape)] if batch else [shape]
                wanted = _float32 if kind.endswith(" f32") else dtype
                _check_operand("gemm", name, value, wanted, *allowed)
        for (name, each), result in zip(outs.items(), results, strict=False):
            if each.dtype != dtype:
                raise wrong_dtype("gemm", name, each.dtype, dtype)
            _check_out("gemm", name, each, result.shape)

    # torch would broadcast what the library refuses.
    results: list[Tensor] = _compute(compute, False, refuse)
    if out is not None:
        for target, result in zip(out, results, strict=True):
            target.copy_(result)
    return results


def _as_matrix(kind: str, value: Tensor | None, accum: Tensor) -> Tensor:
    """An operand of an epilogue in float32, as it goes with `accum`, [M, N] or [B, M, N]: a row,
    [N] or [B, N], a column, [M] or [B, M], or a matrix. None: zeros."""
    if value is None:
        zero = accum.new_zeros(())
        return zero.expand(*accum.shape[:-1], accum.shape[-1] * (2 if "2N" in kind else 1))
    if not kind.startswith("matrix"):
        value = value.unsqueeze(-2 if kind.startswith("row") else -1)
    return value.to(_float32)
