"""Meta functions of linear, and of linear_gradients and elementwise, parts of its backward.

Results are contiguous, but for the gradient of a column-major weight.
"""

from __future__ import annotations

from torch import Tensor

from ...errors import ShapeError
from .._common.errors import check_dims
from .._common.meta import (
    check_operand,
    check_residual,
    check_shape,
    declared_epilogue,
    register,
    result_width,
)


def _linear(input: Tensor, weight: Tensor) -> Tensor:
    if input.dim() < 1:
        raise ShapeError("linear: input has no dimensions; expected [..., K]")
    check_operand("linear", ("input", "weight"), input, weight, "N", input.shape[-1])
    return input.new_empty((*input.shape[:-1], weight.shape[0]))


def _linear_gradients(
    grad: Tensor, input: Tensor, weight: Tensor, weight_is_column_major: bool
) -> tuple[Tensor, Tensor]:
    """The gradient of the input, and that of the weight, which is laid out as the weight is."""
    check_operand("linear_gradients", ("grad", "weight"), grad, weight, grad.shape[-1], "K")
    n, k = weight.shape
    shape = (k, n) if weight_is_column_major else (n, k)
    of_weight = grad.new_empty(shape)
    return grad.new_empty(input.shape), of_weight.t() if weight_is_column_major else of_weight


def _gated_input_gradient(grad: Tensor, weight: Tensor, up: Tensor) -> Tensor:
    check_dims("gated_input_gradient", "weight", weight, 2)
    n, k = weight.shape
    check_shape("gated_input_gradient", "up", up, (n, k), " as weight has")
    expected = (*["..."] * (grad.dim() - 1), 2 * n)
    check_shape("gated_input_gradient", "grad", grad, expected, " as weight has rows")
    return grad.new_empty((*grad.shape[:-1], k))


def _linear_fused_aux(
    input: Tensor, weight: Tensor, residual: Tensor | None, epilogue: str, up: Tensor | None
) -> tuple[Tensor, Tensor]:
    """D, and z, which the epilogue stores."""
    declared, z = declared_epilogue("linear", epilogue), _linear(input, weight)
    if up is not None:
        check_shape("linear", "up", up, weight.shape, " as weight has")
        z = z.new_empty((*z.shape[:-1], 2 * z.shape[-1]))
    shape = (*z.shape[:-1], result_width(declared, z.shape[-1]))
    check_residual("linear", residual, shape)
    return input.new_empty(shape), z


def _linear_fused(
    input: Tensor, weight: Tensor, residual: Tensor | None, epilogue: str, up: Tensor | None
) -> Tensor:
    return _linear_fused_aux(input, weight, residual, epilogue, up)[0]


def _elementwise(
    operands: list[Tensor], epilogue: str, with_result: bool, with_sums: bool
) -> tuple[Tensor, Tensor]:
    declared = declared_epilogue("elementwise", epilogue)
    first, kind = operands[0], next(iter(declared.operands.values()))
    *rows, n = first.shape
    columns = result_width(declared, n // 2 if kind == "matrix[M,2N]" else n)
    return (
        first.new_empty((*rows, columns) if with_result else (0,)),
        first.new_empty((columns,) if with_sums else (0,)),
    )


register(
    {
        "linear": _linear,
        "linear_gradients": _linear_gradients,
        "gated_input_gradient": _gated_input_gradient,
        "linear_fused": _linear_fused,
        "linear_fused.out": None,
        "linear_fused_aux": _linear_fused_aux,
        "elementwise": _elementwise,
    }
)
