"""gated_linear: a gated linear unit, gate and up projection in one GEMM.

Dtypes, strides, TF32, autocast, torch.compile and errors are those of cutwheel.ops.gemm.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, is_autocast_enabled, is_grad_enabled

from ...errors import DeviceError, DtypeError
from .. import linear as _public  # circular, and used at call time only
from .._common import by_torch, sharding
from .._common.activations import ACTIVATIONS, check_activation
from .._common.call import distinct, fast_apply, is_tracing, overloads
from .._common.errors import RAISED, check_tensors, reraise, wrong_shape
from .._common.precision import autocast_operands
from .._common.sizes import differ, shapes_differ
from .._common.transforms import is_transformed
from ._autograd import OUTPUT, SAVED, LinearFused

_linear_fused, _linear_fused_direct = overloads("linear_fused")
_with_grad: Callable[..., Any] = fast_apply(LinearFused, 4)

GATED_ACTIVATIONS = tuple(ACTIVATIONS)
# By activation, and whether there is a bias.
_EPILOGUES = {
    **{(name, False): f"gated_{name}" for name in ACTIVATIONS},
    **{(name, True): f"gated_bias_{name}" for name in ACTIVATIONS},
}
# The epilogue that stores z for backward, and that of backward itself.
_TRAINED = {
    key: (f"{epilogue}_aux", f"gated_{key[0]}_backward") for key, epilogue in _EPILOGUES.items()
}


def gated_linear(
    input: Tensor, weight: Tensor, activation: str = "silu", bias: Tensor | None = None
) -> Tensor:
    """Gated linear unit: act(input @ gate.T + b) * (input @ up.T + c), as in arXiv:2002.05202.

    Args:
        input: [..., K]
        weight: [2F, K], dtype of input: the rows of gate and up in turn, as
            pack_gated_weight(gate, up) makes it
        activation: "relu" (ReGLU), "gelu" (of erf, GEGLU), "gelu_tanh" or "silu" (SwiGLU)
        bias: [2F], dtype of input: those of gate and up in turn, as pack_gated_weight(b, c) makes
            it

    Returns:
        [..., F]. The two are not rounded before they are multiplied, unless a gradient is
        needed: then backward reads them, [..., 2F], in the dtype of input

    Raises:
        ValueError: an activation that is not known, or shapes that do not fit
        TypeError: a bias of another dtype than input
        NotImplementedError, RuntimeError: as mm
    """
    check_activation(activation, GATED_ACTIVATIONS, "gated_linear")
    try:
        if is_autocast_enabled():
            input, weight, bias = autocast_operands(input, weight, bias)
        allow_tf32 = input.dtype == torch.float32
        if (allow_tf32 or is_transformed()) and by_torch.serves("gated_linear", input):
            return by_torch.gated_linear(input, weight, bias, ACTIVATIONS[activation])
        if sharding.calls is not None and sharding.calls.has_split_k(weight):
            gated: Tensor = sharding.calls.gated(_public.linear, input, weight, bias, activation)
            return gated
        if _needs_grad(input, weight, bias):
            if is_tracing():
                input, weight, bias = distinct(input, weight, bias)
            z_from = SAVED if is_tracing() else OUTPUT
            how = *_TRAINED[activation, bias is not None], False, z_from, allow_tf32
            made = _with_grad(input, weight, bias, None, *how)
            result: Tensor = made[0] if z_from == OUTPUT else made
            return result
        epilogue = _EPILOGUES[activation, bias is not None]
        call = _linear_fused if is_tracing() else _linear_fused_direct
        if allow_tf32:
            return call(input, weight, bias, None, epilogue, True)
        return call(input, weight, bias, None, epilogue)
    except RAISED as error:
        reraise("gated_linear", error, ("bias",), input=input, weight=weight, bias=bias)


def _needs_grad(input: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    return is_grad_enabled() and (
        input.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
    )


def epilogue_of(input: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> str:
    """The epilogue of gated_linear's GEMM for these arguments."""
    check_activation(activation, GATED_ACTIVATIONS, "gated_linear")
    key = activation, bias is not None
    return _TRAINED[key][0] if _needs_grad(input, weight, bias) else _EPILOGUES[key]


def pack_gated_weight(gate: Tensor, up: Tensor) -> Tensor:
    """The weight of gated_linear from those of the two linear layers it stands for, or its bias.

    Args:
        gate: [F, K], what the activation is applied to; or [G, F, K], of grouped_gated_linear; or
            [F], a bias
        up: the shape, dtype and device of gate

    Returns:
        [2F, K] with the rows gate[0], up[0], gate[1], up[1], ..., or [G, 2F, K], each of its
        matrices so, or [2F]; a copy, and differentiable

    Raises:
        TypeError: an argument that is no tensor, or of another dtype than gate
        ValueError: shapes that differ or are not [F, K], [G, F, K] or [F], or another device
    """
    check_tensors("pack_gated_weight", {"gate": gate, "up": up})
    if gate.dim() not in (1, 2, 3):
        raise wrong_shape("pack_gated_weight", "gate", gate, "[F, K], [G, F, K] or [F]")
    if shapes_differ(up.shape, gate.shape):
        raise wrong_shape("pack_gated_weight", "up", up, gate.shape, " as gate has")
    if up.dtype != gate.dtype:
        raise DtypeError(
            f"pack_gated_weight: up has dtype {up.dtype}; expected {gate.dtype} as gate has"
        )
    if up.device != gate.device:
        raise DeviceError(
            f"pack_gated_weight: up is on {up.device} and gate is on {gate.device}; both must be "
            "on the same device"
        )
    if gate.dim() == 1:
        return torch.stack((gate, up), dim=1).flatten()
    return torch.stack((gate, up), dim=-2).flatten(-3, -2)


def unpack_gated_weight(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Takes apart what pack_gated_weight has made.

    Args:
        weight: [2F, K] or [G, 2F, K], or a bias, [2F]

    Returns:
        gate and up, [F, K] or [G, F, K] each, or [F]: views of every second row, differentiable

    Raises:
        TypeError: weight is no tensor
        ValueError: weight is neither [2F, K] nor [G, 2F, K] nor [2F]
    """
    check_tensors("unpack_gated_weight", {"weight": weight})
    dims = weight.dim()
    if dims not in (1, 2, 3) or differ(weight.shape[max(dims - 2, 0)] % 2, 0):
        raise wrong_shape("unpack_gated_weight", "weight", weight, "[2F, K], [G, 2F, K] or [2F]")
    if dims == 1:
        return weight[0::2], weight[1::2]
    return weight[..., 0::2, :], weight[..., 1::2, :]
