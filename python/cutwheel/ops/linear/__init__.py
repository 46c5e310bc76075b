"""linear and gated_linear, with the activation and the residual that follow, in one kernel.

Dtypes, strides, TF32, autocast, torch.compile and errors are those of cutwheel.ops.gemm.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, is_autocast_enabled, is_grad_enabled

from .._common import by_torch, node, sharding
from .._common.activations import (
    ACTIVATIONS,
    ALL_ACTIVATIONS,
    COMPOSED,
    LEAKY_RELU_SLOPE,
    check_activation,
)
from .._common.call import Op, distinct, fast_apply, is_tracing, overloads
from .._common.errors import RAISED, check_one_device, reraise, wrong_dtype, wrong_shape
from .._common.precision import autocast_operands
from .._common.sizes import shapes_differ
from .._common.transforms import is_transformed
from ._autograd import NOWHERE, OUTPUT, RECOMPUTED, RESULT, SAVED, Linear, LinearFused
from ._gated import gated_linear, pack_gated_weight, unpack_gated_weight

__all__ = ["gated_linear", "linear", "pack_gated_weight", "unpack_gated_weight"]

_float32 = torch.float32
_linear, _linear_direct = overloads("linear")
_linear_fused, _linear_fused_direct = overloads("linear_fused")
_gemm, _ = overloads("gemm")
_linear_with_grad: Op = fast_apply(Linear, 3)
_fused_with_grad: Callable[..., Any] = fast_apply(LinearFused, 4)

RECOMPUTE_UP_TO_K = 256
"""Up to this K, z is not kept for backward but computed again there, by a GEMM whose epilogue
applies the derivative.

Keeping z means that M N elements of 16 bits are written in forward and read in backward: 0.93 ps an
element at 4.3 TB/s. Computing it again takes 2 K operations an element: as long for K = 325 at 700
TFLOP/s, and no memory.
"""


class Fusion(NamedTuple):
    """How an activation and a residual are computed and differentiated."""

    epilogue: str
    epilogue_aux: str | None
    """stores z, which backward needs; None: the result tells as much"""
    activation_backward: str | None
    """None: there is no activation"""


NO_RESIDUAL, RESIDUAL_FIRST, RESIDUAL_LAST = 0, 1, 2


def _fusions() -> dict[tuple[str | None, int], Fusion]:
    fusions: dict[tuple[str | None, int], Fusion] = {}
    for name in ACTIVATIONS:
        for placement, epilogue in (
            (NO_RESIDUAL, f"bias_{name}"),
            (RESIDUAL_FIRST, f"bias_residual_{name}"),
            (RESIDUAL_LAST, f"bias_{name}_residual"),
        ):
            is_told_by_result = name == "relu" and placement != RESIDUAL_LAST
            fusions[name, placement] = Fusion(
                epilogue, None if is_told_by_result else f"{epilogue}_aux", f"{name}_backward"
            )
    for placement in (RESIDUAL_FIRST, RESIDUAL_LAST):
        fusions[None, placement] = Fusion("bias_residual", None, None)
    return fusions


_FUSIONS = _fusions()

_COMPOSED_EPILOGUES = {name: f"bias_{name}" for name in COMPOSED}

LINEAR_ACTIVATIONS = tuple(ALL_ACTIVATIONS)


def linear(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: str | None = None,
    residual: Tensor | None = None,
    residual_after_activation: bool = False,
) -> Tensor:
    """Affine map, as torch.nn.functional.linear, then an activation and a residual.

    Args:
        input: [..., K]
        weight: [N, K], dtype of input
        bias: [N], dtype of input
        activation: None, "relu", "gelu" (of erf), "gelu_tanh" or "silu"; or "sigmoid", "tanh",
            "hardswish", "softplus" or "leaky_relu" (slope 0.01), which take a second kernel where a
            gradient or a residual is asked for. Formulas are those of torch.nn.functional
        residual: [..., N], exactly the shape of the result, dtype of input. Under autocast of any
            dtype: one that is not autocast's is not cast, and added by torch
        residual_after_activation: where the residual is added; means nothing without both

    Returns:
        act(input @ weight.T + bias + residual), or act(input @ weight.T + bias) + residual if
        residual_after_activation, [..., N]; rounded once, after all of it. With a float32 residual
        under autocast it is float32, as that of torch's functions

    Raises:
        ValueError: an activation that is not known, or shapes that do not fit
        TypeError: a residual or bias of another dtype than input
        RuntimeError, NotImplementedError: as mm
    """
    try:
        if activation is not None or residual is not None:
            return _with_epilogue(
                input, weight, bias, activation, residual, residual_after_activation
            )
        if is_autocast_enabled():
            input, weight, bias = autocast_operands(input, weight, bias)
        allow_tf32 = input.dtype == _float32
        if (allow_tf32 or is_transformed()) and by_torch.serves("linear", input):
            return by_torch.linear(input, weight, bias)
        if is_grad_enabled() and (
            input.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
        ):
            if not allow_tf32 and node.serves(input, weight):
                return node.linear(input, weight, bias)
            if is_tracing():
                input, weight, bias = distinct(input, weight, bias)
            return _linear_with_grad(input, weight, bias, allow_tf32)
        call = _linear if is_tracing() else _linear_direct
        return call(input, weight, bias, True) if allow_tf32 else call(input, weight, bias)
    except RAISED as error:
        tensors = {"input": input, "weight": weight, "bias": bias, "residual": residual}
        reraise("linear", error, ("bias", "residual"), **tensors)


def _with_epilogue(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str | None,
    residual: Tensor | None,
    residual_after_activation: bool,
) -> Tensor:
    if is_autocast_enabled():
        input, weight, bias = autocast_operands(input, weight, bias)
        if residual is not None and residual.dtype != input.dtype:
            return _plus_wide(input, weight, bias, activation, residual, residual_after_activation)
    allow_tf32 = input.dtype == _float32
    if (allow_tf32 or is_transformed()) and by_torch.serves("linear", input):
        function = _torchs(activation)
        last = residual_after_activation
        return by_torch.linear(input, weight, bias, function, residual, last)
    if sharding.calls is not None and sharding.calls.linear_reduces(weight, activation, residual):
        if activation is not None:
            check_activation(activation, LINEAR_ACTIVATIONS, "linear")
        rest = activation, residual, residual_after_activation
        reduced: Tensor = sharding.calls.linear(linear, input, weight, bias, *rest)
        return reduced
    if activation is not None and activation not in ACTIVATIONS:
        return _composed(input, weight, bias, activation, residual, residual_after_activation)
    placement = _placement(residual, residual_after_activation)
    fusion = _FUSIONS[activation, placement]
    if not is_grad_enabled() or not (
        input.requires_grad
        or weight.requires_grad
        or (bias is not None and bias.requires_grad)
        or (residual is not None and residual.requires_grad)
    ):
        call = _linear_fused if is_tracing() else _linear_fused_direct
        if allow_tf32:
            return call(input, weight, bias, residual, fusion.epilogue, True)
        return call(input, weight, bias, residual, fusion.epilogue)
    z_from = _z_from(fusion, input, weight, bias, residual, placement)
    epilogue = fusion.epilogue_aux if z_from == OUTPUT else fusion.epilogue
    if is_tracing():
        input, weight, bias, residual = distinct(input, weight, bias, residual)
        z_from = SAVED if z_from == OUTPUT else z_from
    how = epilogue, fusion.activation_backward, placement == RESIDUAL_LAST, z_from, allow_tf32
    made = _fused_with_grad(input, weight, bias, residual, *how)
    result: Tensor = made[0] if z_from == OUTPUT else made
    return result


def _torchs(activation: str | None) -> Op | None:
    """torch's function for an activation."""
    if activation is None:
        return None
    check_activation(activation, LINEAR_ACTIVATIONS, "linear")
    return ALL_ACTIVATIONS[activation]


def _plus_wide(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str | None,
    residual: Tensor,
    residual_after_activation: bool,
) -> Tensor:
    """With a residual that autocast leaves in another dtype than the GEMM. It is promoted for the
    sum and the activation, as that of torch's functions is."""
    if activation is not None:
        check_activation(activation, LINEAR_ACTIVATIONS, "linear")
    z = linear(input, weight, bias, activation=activation if residual_after_activation else None)
    _check_residual(residual, z)
    result = z + residual
    if activation is None or residual_after_activation:
        return result
    return ALL_ACTIVATIONS[activation](result).to(result.dtype)


def _placement(residual: Tensor | None, residual_after_activation: bool) -> int:
    if residual is None:
        return NO_RESIDUAL
    return RESIDUAL_LAST if residual_after_activation else RESIDUAL_FIRST


def _requires_grad(*tensors: Tensor | None) -> bool:
    for tensor in tensors:  # noqa: SIM110  (any() of a generator takes twice as long)
        if tensor is not None and tensor.requires_grad:
            return True
    return False


def _z_from(
    fusion: Fusion,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    placement: int,
) -> str:
    """Where backward is to find the activation's argument."""
    before = residual if placement == RESIDUAL_FIRST else None
    if fusion.activation_backward is None or not _requires_grad(input, weight, bias, before):
        return NOWHERE
    if fusion.epilogue_aux is None:
        return RESULT
    if (
        residual is None
        and input.requires_grad
        and weight.requires_grad  # so both are kept for backward anyway
        and input.dim() > 0
        and input.shape[-1] <= RECOMPUTE_UP_TO_K
    ):
        return RECOMPUTED
    return OUTPUT


def epilogue_of(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str | None,
    residual: Tensor | None,
    residual_after_activation: bool,
) -> str | None:
    """The epilogue of linear's GEMM for these arguments.

    None: the one of a call without activation and residual.
    """
    if activation is not None:
        check_activation(activation, LINEAR_ACTIVATIONS, "linear")
    placement = _placement(residual, residual_after_activation)
    needs_grad = is_grad_enabled() and _requires_grad(input, weight, bias, residual)
    if activation in COMPOSED:
        if placement == NO_RESIDUAL and not needs_grad:
            return _COMPOSED_EPILOGUES[activation]
        activation = None
        placement = RESIDUAL_FIRST if placement == RESIDUAL_FIRST else NO_RESIDUAL
    if activation is None and placement == NO_RESIDUAL:
        return None
    fusion = _FUSIONS[activation, placement]
    if needs_grad and _z_from(fusion, input, weight, bias, residual, placement) == OUTPUT:
        return fusion.epilogue_aux
    return fusion.epilogue


def _composed(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str,
    residual: Tensor | None,
    residual_after_activation: bool,
) -> Tensor:
    check_activation(activation, LINEAR_ACTIVATIONS, "linear")
    if residual is None and not (is_grad_enabled() and _requires_grad(input, weight, bias)):
        allow_tf32 = input.dtype == _float32
        if activation != "leaky_relu":
            call = _linear_fused if is_tracing() else _linear_fused_direct
            return call(input, weight, bias, None, _COMPOSED_EPILOGUES[activation], allow_tf32)
        if _fits(input, weight, bias):
            # The slope is an operand, which the op for linear layers does not take.
            rows, scalars = input.flatten(0, -2), [1.0, LEAKY_RELU_SLOPE]
            operands = (rows, weight.t(), "bias_leaky_relu", [bias], scalars, None, allow_tf32)
            return _gemm(*operands)[0].view(*input.shape[:-1], weight.shape[0])
    first = None if residual_after_activation else residual
    z = linear(input, weight, bias, residual=first)
    # Autocast has float32 rules for some of these.
    result = COMPOSED[activation](z).to(z.dtype)
    if residual is None or first is not None:
        return result
    if residual.dtype != result.dtype:
        raise wrong_dtype("linear", "residual", residual.dtype, result.dtype)
    _check_residual(residual, result)
    return result + residual


def _check_residual(residual: Tensor, result: Tensor) -> None:
    """Checks a residual that torch adds as the library checks one that is its operand."""
    check_one_device("linear", {"input": result, "residual": residual})
    if shapes_differ(residual.shape, result.shape):
        raise wrong_shape("linear", "residual", residual, result.shape)


def _fits(input: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether the arguments fit a GEMM of matrices, whose errors would name other arguments
    than the caller's."""
    return (
        input.dim() >= 2
        and weight.dim() == 2
        and input.shape[-1] == weight.shape[1]
        and (bias is None or bias.shape == weight.shape[:1])
        and all(t is None or t.dtype == input.dtype for t in (weight, bias))
    )
