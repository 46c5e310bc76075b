"""gated_linear: a gated linear unit, gate and up projection in one GEMM.

Dtypes, strides, TF32, autocast, torch.compile and errors are those of cutwheel.ops.gemm.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor, is_autocast_enabled, is_grad_enabled

from ...errors import ArgumentError, DeviceError, DtypeError
from .. import linear as _public  # circular, and used at call time only
from .._common import by_torch, sharding
from .._common.activations import ACTIVATIONS, check_activation
from .._common.call import distinct, fast_apply, is_tracing, overloads
from .._common.errors import RAISED, check_tensors, reraise, shape_text, wrong_shape
from .._common.precision import autocast_operands
from .._common.sizes import differ, shapes_differ
from .._common.transforms import is_transformed
from ._autograd import OUTPUT, SAVED, GatedLinear, LinearFused

_linear_fused, _linear_fused_direct = overloads("linear_fused")
_with_grad: Callable[..., Any] = fast_apply(LinearFused, 4)
_two_with_grad: Callable[..., Any] = fast_apply(GatedLinear, 4)

_WRONG = (*RAISED, TypeError, ValueError)

Pair = Sequence[Tensor]
BiasPair = Sequence["Tensor | None"]

GATED_ACTIVATIONS = tuple(ACTIVATIONS)
# By activation, and whether there is a bias.
EPILOGUES = {
    **{(name, False): f"gated_{name}" for name in ACTIVATIONS},
    **{(name, True): f"gated_bias_{name}" for name in ACTIVATIONS},
}
# The epilogue that stores z for backward, and that of backward itself.
TRAINED = {
    key: (f"{epilogue}_aux", f"gated_{key[0]}_backward") for key, epilogue in EPILOGUES.items()
}


def gated_linear(
    input: Tensor,
    weight: Tensor | Pair,
    activation: str = "silu",
    bias: Tensor | BiasPair | None = None,
    *,
    interleaved: bool = False,
) -> Tensor:
    """Gated linear unit: act(input @ gate.T + b) * (input @ up.T + c), as in arXiv:2002.05202.

    Args:
        input: [..., K]
        weight: (gate, up), [F, K] each, dtype of input; or one tensor, [2F, K]: the rows of gate,
            then those of up, as checkpoints hold them. Kernels read both where they lie
        activation: "relu" (ReGLU), "gelu" (of erf, GEGLU), "gelu_tanh" or "silu" (SwiGLU)
        bias: as weight: (b, c), [F] each, either of which may be None; or [2F]. Kernels read them
            in turn, so they are copied, but for interleaved ones
        interleaved: True: the rows of `weight`, and the elements of `bias`, are those of gate and
            up in turn, as pack_gated_weight(gate, up) makes them. It says nothing of pairs

    Returns:
        [..., F]. The two are not rounded before they are multiplied, unless a gradient is
        needed: then backward reads them, [..., 2F], in the dtype of input

    Raises:
        ValueError: an activation that is not known, or shapes that do not fit
        TypeError: a bias of another dtype than input
        NotImplementedError, RuntimeError: as mm
    """
    check_activation(activation, GATED_ACTIVATIONS, "gated_linear")
    if interleaved and isinstance(weight, Tensor) and (bias is None or isinstance(bias, Tensor)):
        return _of_one(input, weight, bias, activation)
    return _of_two(input, weight, bias, activation)


def _of_one(input: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    """gated_linear of a weight whose rows are those of gate and up in turn."""
    try:
        if is_autocast_enabled():
            input, weight, bias = autocast_operands(input, weight, bias)
        allow_tf32 = input.dtype == torch.float32
        if (allow_tf32 or is_transformed()) and by_torch.serves("gated_linear", input):
            return by_torch.gated_linear(input, weight, bias, ACTIVATIONS[activation])
        if sharding.calls is not None and sharding.calls.has_split_k(weight):
            gated: Tensor = sharding.calls.gated(_public.linear, input, weight, bias, activation)
            return gated
        if needs_grad(input, weight, bias):
            if is_tracing():
                input, weight, bias = distinct(input, weight, bias)
            z_from = SAVED if is_tracing() else OUTPUT
            how = *TRAINED[activation, bias is not None], False, z_from, allow_tf32
            made = _with_grad(input, weight, bias, None, *how)
            result: Tensor = made[0] if z_from == OUTPUT else made
            return result
        epilogue = EPILOGUES[activation, bias is not None]
        call = _linear_fused if is_tracing() else _linear_fused_direct
        if allow_tf32:
            return call(input, weight, bias, None, epilogue, True)
        return call(input, weight, bias, None, epilogue)
    except RAISED as error:
        reraise("gated_linear", error, ("bias",), input=input, weight=weight, bias=bias)


def needs_grad(*tensors: Tensor | None) -> bool:
    return is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


def _of_two(
    input: Tensor,
    weight: Tensor | Pair,
    bias: Tensor | BiasPair | None,
    activation: str,
) -> Tensor:
    """gated_linear of weights that do not alternate."""
    if bias is None and sharding.calls is None and not is_autocast_enabled():
        result = _at_once(input, weight, activation)
        if result is not None:
            return result
    given = {"input": input, **named_parts("gated_linear", weight, bias)}
    check_tensors("gated_linear", given, ("bias", "bias[0]", "bias[1]"))
    is_one = isinstance(weight, Tensor)
    try:
        if is_autocast_enabled():
            cast = autocast_operands(*given.values())
            given = dict(zip(given, cast, strict=True))
        gate, up = _halves(given) if is_one else (given["weight[0]"], given["weight[1]"])
        allow_tf32 = input.dtype == torch.float32
        if (allow_tf32 or is_transformed()) and by_torch.serves("gated_linear", input):
            act = ACTIVATIONS[activation]
            return by_torch.gated_linear_of_two(given, gate, up, _biases_of(given), act)
        is_trained = needs_grad(*given.values())
        if sharding.calls is not None and sharding.calls.is_sharded(gate, up):
            if sharding.calls.has_split_k(gate):
                return _composed(given, gate, up, activation)
            if is_trained:
                return _of_two_shards(given, gate, up, activation)
        input, packed = given["input"], packed_bias("gated_linear", given, gate)
        if is_trained:
            z_from = SAVED if is_tracing() else OUTPUT
            tensors = (input, given["weight"] if is_one else gate, None if is_one else up, packed)
            if is_tracing():
                tensors = tuple(distinct(*tensors))
            how = *TRAINED[activation, packed is not None], z_from, allow_tf32
            made = _two_with_grad(*tensors, *how)
            trained: Tensor = made[0] if z_from == OUTPUT else made
            return trained
        epilogue = EPILOGUES[activation, packed is not None]
        call = _linear_fused if is_tracing() else _linear_fused_direct
        return call(input, gate, packed, None, epilogue, allow_tf32, up)
    except RAISED as error:
        if is_one:
            reraise("gated_linear", error, ("bias",), **given)
        reraise_of_pair("gated_linear", error, given)


def _at_once(input: Tensor, weight: Tensor | Pair, activation: str) -> Tensor | None:
    """The call where there is nothing to prepare, at a fifth of the time on the CPU; None: there
    is, or something is wrong, which the longer way names."""
    try:
        gate, up = weight.chunk(2) if isinstance(weight, Tensor) else weight
        if input.dtype == torch.float32 or is_transformed() or needs_grad(input, gate, up):
            return None
        call = _linear_fused if is_tracing() else _linear_fused_direct
        return call(input, gate, None, None, EPILOGUES[activation, False], False, up)
    except _WRONG:
        return None


def named_parts(op: str, weight: Any, bias: Any = None) -> dict[str, Any]:
    """The tensors of a weight and a bias, by the names that errors give them."""
    is_pair = isinstance(weight, (tuple, list))
    if bias is not None and isinstance(bias, (tuple, list)) != is_pair:
        wanted = "a pair (b, c)" if is_pair else "a Tensor"
        kind = type(bias).__name__
        raise TypeError(f"{op}: bias is of type {kind}; expected {wanted}, as weight is")
    parts: dict[str, Any] = {}
    for name, value in (("weight", weight), ("bias", bias)):
        if not isinstance(value, (tuple, list)):
            parts[name] = value
        elif len(value) != 2:
            raise ArgumentError(f"{op}: {name} has {len(value)} tensors; expected (gate, up)")
        else:
            parts |= {f"{name}[{index}]": each for index, each in enumerate(value)}
    return parts


def _halves(given: dict[str, Any]) -> tuple[Tensor, Tensor]:
    input, weight = given["input"], given["weight"]
    if weight.dim() != 2 or differ(weight.shape[0] % 2, 0):
        raise wrong_shape("gated_linear", "weight", weight, "[2F, K]")
    if input.dim() and differ(weight.shape[1], k := input.shape[-1]):
        why = f" as input has shape {shape_text(input.shape)}"
        raise wrong_shape("gated_linear", "weight", weight, ("2F", k), why)
    gate, up = weight.chunk(2)
    return gate, up


def packed_bias(op: str, given: dict[str, Any], gate: Tensor) -> Tensor | None:
    """The bias as kernels read it, that of gate and up in turn."""
    (count, *_), whole = gate.shape, given.get("bias")
    if whole is not None:
        if shapes_differ(whole.shape, (2 * count,)):
            raise wrong_shape(op, "bias", whole, (2 * count,))
        return torch.stack(whole.chunk(2), dim=1).flatten()
    parts = {name: given.get(name) for name in ("bias[0]", "bias[1]")}
    if all(part is None for part in parts.values()):
        return None
    for name, part in parts.items():
        if part is not None and shapes_differ(part.shape, (count,)):
            raise wrong_shape(op, name, part, (count,))
    filled = [gate.new_zeros(count) if part is None else part for part in parts.values()]
    return torch.stack(filled, dim=1).flatten()


def reraise_of_pair(op: str, error: Exception, given: dict[str, Any]) -> NoReturn:
    """As reraise, where the library's weight and up are the two of a pair."""
    try:
        reraise(op, error, ("bias[0]", "bias[1]"), **given)
    except Exception as named:
        text = re.sub(r"\bweight\b(?!\[)", "weight[0]", str(named))
        text = re.sub(r"\bup\b(?= (?:has|is) )", "weight[1]", text)
        raise type(named)(text) from None


def _biases_of(given: dict[str, Any]) -> Sequence[Tensor | None]:
    """Those of gate and up."""
    whole: Tensor | None = given.get("bias")
    return (given.get("bias[0]"), given.get("bias[1]")) if whole is None else whole.chunk(2)


def _composed(given: dict[str, Any], gate: Tensor, up: Tensor, activation: str) -> Tensor:
    """Two products, and what follows them."""
    input, (b, c) = given["input"], _biases_of(given)
    return _public.linear(input, gate, b, activation=activation) * _public.linear(input, up, c)


def _of_two_shards(given: dict[str, Any], gate: Tensor, up: Tensor, activation: str) -> Tensor:
    """gated_linear with gradients, of DTensors whose K is not split."""

    def call(input: Tensor, weights: Pair, biases: BiasPair | None) -> Tensor:
        return gated_linear(input, weights, activation, biases)

    result: Tensor = sharding.calls.gated_of_two(call, given, (gate, up), _biases_of(given))
    return result


def epilogue_of(
    input: Tensor, weight: Tensor, bias: Tensor | None, activation: str, up: Tensor | None = None
) -> str:
    """The epilogue of gated_linear's GEMM for these arguments."""
    check_activation(activation, GATED_ACTIVATIONS, "gated_linear")
    key = activation, bias is not None
    return TRAINED[key][0] if needs_grad(input, weight, bias, up) else EPILOGUES[key]


def pack_gated_weight(gate: Tensor, up: Tensor) -> Tensor:
    """An interleaved weight of gated_linear from those of two linear layers, or its bias.

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
