"""Linear layers of many experts: grouped rows, with an activation or a gate in the same kernel.

Groups are those of cutwheel.grouped_mm, and so are dtypes, strides, TF32, autocast, torch.compile
and errors.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, is_autocast_enabled, is_grad_enabled

# Circular, and used at call time only.
from .. import grouped
from .._common import sharding
from .._common.activations import ACTIVATIONS, check_activation
from .._common.call import distinct, fast_apply, is_tracing, overloads
from .._common.errors import (
    RAISED,
    check_dims,
    check_one_device,
    check_tensors,
    raise_as,
    reraise,
    shape_text,
    wrong_dtype,
    wrong_shape,
)
from .._common.precision import autocast_operands, tf32_allowed
from .._common.sizes import differ, shapes_differ
from .._common.transforms import REVERSE, is_transformed, refuse
from ..linear._autograd import OUTPUT, RESULT, SAVED
from ..linear._gated import GATED_ACTIVATIONS, named_parts, reraise_of_pair
from ._autograd import GatheredGated, GroupedFused
from ._permutation import Routing, permute

_ops = torch.ops.cutwheel
_fused, _fused_direct = overloads("grouped_linear_fused")
_with_grad: Callable[..., Any] = fast_apply(GroupedFused, 4)
_gathered, _gathered_direct = overloads("grouped_linear_gathered")
_gathered_with_grad: Callable[..., Any] = fast_apply(GatheredGated, 2)

GROUPED_ACTIVATIONS = tuple(ACTIVATIONS)
_MADE_OF = {"grouped_mm": {"mat_a": "input", "mat_b": "weight"}}
# The epilogue, what stores z for backward (the result of relu tells as much), and the epilogue of
# backward itself.
_LINEAR = {
    name: (f"bias_{name}", None if name == "relu" else f"bias_{name}_aux", f"{name}_backward")
    for name in GROUPED_ACTIVATIONS
}
_GATED = {
    name: (f"gated_{name}", f"gated_{name}_aux", f"gated_{name}_backward")
    for name in GATED_ACTIVATIONS
}


def grouped_linear(
    input: Tensor,
    weight: Tensor,
    *,
    offs: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
) -> Tensor:
    """Affine map of each group of rows, then an activation, in one kernel.

    Args:
        input: [T, K]
        weight: [G, N, K], dtype of input
        offs: [G], int32 or int64, on the device of input: the end of each group's rows
        bias: [G, N], dtype of input
        activation: None, "relu", "gelu" (of erf), "gelu_tanh" or "silu"

    Returns:
        act(input_g @ weight_g.T + bias_g) for each group's rows, [T, N]; rows behind offs[-1] are
        zeros. Rounded once, after all of it. In float32 a GPU other than Hopper's computes the
        activation in a second kernel, torch's

    Raises:
        ValueError: an activation that is not known, or shapes that do not fit
        TypeError, RuntimeError, NotImplementedError: as mm
    """
    op = "grouped_linear"
    if activation is not None:
        check_activation(activation, GROUPED_ACTIVATIONS, op)
        return _apply(op, input, weight, offs, bias, *_LINEAR[activation])
    try:
        if is_transformed():
            refuse(op, REVERSE, input=input, weight=weight, bias=bias)
        _check_operands(op, input, weight)
        return grouped.grouped_mm(input, weight.mT, offs=offs, bias=bias)
    except AttributeError as error:
        reraise(op, error, ("bias",), input=input, weight=weight, offs=offs, bias=bias)
    except (TypeError, ValueError, RuntimeError) as error:
        raise_as(op, error, _MADE_OF)


def _check_operands(op: str, input: Tensor, weight: Tensor) -> None:
    """Checks operands that grouped_mm knows by other names, and the weight transposed."""
    if input.dim() != 2 or weight.dim() != 3:
        check_dims(op, "input", input, 2)
        check_dims(op, "weight", weight, 3)
    k = input.shape[1]
    if differ(weight.shape[2], k):
        why = f" as input has shape {shape_text(input.shape)}"
        raise wrong_shape(op, "weight", weight, ("G", "N", k), why)
    if weight.dtype != input.dtype and not is_autocast_enabled():
        raise wrong_dtype(op, "weight", weight.dtype, input.dtype, " as input has")


def grouped_gated_linear(
    input: Tensor,
    weight: Tensor | Sequence[Tensor],
    *,
    offs: Tensor,
    activation: str = "silu",
    interleaved: bool = False,
) -> Tensor:
    """Gated linear unit of each group of rows: the first half of an expert MLP, in one kernel.

    Args:
        input: [T, K]
        weight: [G, 2F, K], dtype of input: for each group the rows of gate, then those of up, as
            Transformers holds experts; or the two, (gate, up), [G, F, K] each. Kernels read both
            where they lie (a pair is copied into one tensor where a gradient is needed)
        offs: [G], int32 or int64, on the device of input: the end of each group's rows
        activation: "relu" (ReGLU), "gelu" (of erf, GEGLU), "gelu_tanh" or "silu" (SwiGLU)
        interleaved: True: the rows of each group of `weight` are those of gate and up in turn, as
            pack_gated_weight(gate, up) makes them of [G, F, K] each. It says nothing of pairs

    Returns:
        act(input_g @ gate_g.T) * (input_g @ up_g.T) for each group's rows, [T, F]; rows behind
        offs[-1] are zeros. The two are not rounded before they are multiplied, unless a
        gradient is needed: then backward reads them, [T, 2F], in the dtype of input. In float32 a
        GPU other than Hopper's computes the GEMM alone, and torch the activation

    Raises:
        ValueError: an activation that is not known, or shapes that do not fit
        TypeError, RuntimeError, NotImplementedError: as mm
    """
    op = "grouped_gated_linear"
    check_activation(activation, GATED_ACTIVATIONS, op)
    epilogues = _GATED[activation]
    if isinstance(weight, (tuple, list)):
        given = {"input": input, **named_parts(op, weight), "offs": offs}
        del given["bias"]
        check_tensors(op, given)
        gate, up = weight
        is_sharded = sharding.calls is not None and sharding.calls.is_sharded(gate, up)
        allow_tf32 = input.dtype == torch.float32 and tf32_allowed()
        needs_grad = is_grad_enabled() and any(x.requires_grad for x in (input, gate, up))
        is_direct = not (needs_grad or is_sharded or is_autocast_enabled() or is_transformed())
        if is_direct and not (allow_tf32 and not is_served(input, epilogues[0])):
            try:
                call = _fused if is_tracing() else _fused_direct
                result: Tensor = call(input, gate, offs, None, epilogues[0], allow_tf32, up)
                return result
            except RAISED as error:
                reraise_of_pair(op, error, given)
        _check_pair(op, gate, up)
        whole, interleaved = torch.cat((gate, up), dim=1), False
    else:
        assert not isinstance(weight, Sequence)
        whole = weight
    if not interleaved:
        check_tensors(op, {"weight": whole})
        if whole.dim() != 3 or differ(whole.shape[1] % 2, 0):
            raise wrong_shape(op, "weight", whole, "[G, 2F, K]")
    return _apply(op, input, whole, offs, None, *epilogues, in_halves=not interleaved)


def _check_pair(op: str, gate: Tensor, up: Tensor) -> None:
    check_dims(op, "weight[0]", gate, 3)
    if shapes_differ(up.shape, gate.shape):
        raise wrong_shape(op, "weight[1]", up, gate.shape, " as weight[0] has")
    if up.dtype != gate.dtype:
        raise wrong_dtype(op, "weight[1]", up.dtype, gate.dtype, " as weight[0] has")
    check_one_device(op, {"weight[0]": gate, "weight[1]": up})


def gathered_gated_linear(
    tokens: Tensor, weight: Tensor, routing: Routing, activation: str, *, interleaved: bool
) -> Tensor:
    """grouped_gated_linear of the experts' rows, which are tokens: [T, K], [G, 2F, K] -> [T k, F].

    On Hopper a kernel finds the rows itself; elsewhere they are copied first. In 16 bits the op
    decides that, and autograd keeps the tokens alone.
    """
    op = "grouped_gated_linear"
    check_activation(activation, GATED_ACTIVATIONS, op)
    if is_autocast_enabled() and not is_transformed():
        tokens, weight = autocast_operands(tokens, weight)
    if not _finds_rows(tokens, weight):
        rows = permute(tokens, routing.places)
        how: Any = {"activation": activation, "interleaved": interleaved}
        return grouped_gated_linear(rows, weight, offs=routing.offs, **how)
    plain, with_z, backward = _GATED[activation]
    places, sources, offs = routing
    try:
        if not is_grad_enabled() or not (tokens.requires_grad or weight.requires_grad):
            call = _gathered if is_tracing() else _gathered_direct
            first, up = (weight, None) if interleaved else weight.chunk(2, 1)
            return call(tokens, places, sources, first, offs, plain, up)
        z_from = SAVED if is_tracing() else OUTPUT
        rest = places, sources, offs, with_z, backward, z_from, not interleaved
        made = _gathered_with_grad(tokens, weight, *rest)
        result: Tensor = made[0] if z_from == OUTPUT else made
        return result
    except RAISED as error:
        reraise(op, error, (), input=tokens, weight=weight, offs=offs)


def gathered_linear(tokens: Tensor, weight: Tensor, routing: Routing) -> Tensor:
    """grouped_linear of the experts' rows: [T, K], [G, N, K] -> [T k, N]."""
    op = "grouped_linear"
    if is_autocast_enabled() and not is_transformed():
        tokens, weight = autocast_operands(tokens, weight)
    needs_grad = is_grad_enabled() and (tokens.requires_grad or weight.requires_grad)
    if needs_grad or not _finds_rows(tokens, weight):
        return grouped_linear(permute(tokens, routing.places), weight, offs=routing.offs)
    call = _gathered if is_tracing() else _gathered_direct
    places, sources, offs = routing
    try:
        return call(tokens, places, sources, weight, offs, "plain")
    except RAISED as error:
        reraise(op, error, (), input=tokens, weight=weight, offs=offs)


def _finds_rows(tokens: Tensor, weight: Tensor) -> bool:
    if is_transformed() or (
        sharding.calls is not None and sharding.calls.is_sharded(tokens, weight)
    ):
        return False
    return tokens.dtype == weight.dtype and tokens.dtype in (torch.bfloat16, torch.float16)


def _apply(
    op: str,
    input: Tensor,
    weight: Tensor,
    offs: Tensor,
    bias: Tensor | None,
    epilogue: str,
    epilogue_aux: str | None,
    epilogue_backward: str,
    in_halves: bool = False,
) -> Tensor:
    try:
        if is_transformed():
            refuse(op, REVERSE, input=input, weight=weight, bias=bias)
        if is_autocast_enabled():
            input, weight, bias = autocast_operands(input, weight, bias)
        if sharding.calls is not None and sharding.calls.is_sharded(input, weight):
            how = epilogue, epilogue_aux, epilogue_backward, in_halves
            return _sharded(op, input, weight, offs, bias, *how)
        allow_tf32 = input.dtype == torch.float32 and tf32_allowed()
        if allow_tf32 and not is_served(input, epilogue):
            return _composed(op, input, weight, offs, bias, epilogue, in_halves)
        if not is_grad_enabled() or not (
            input.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
        ):
            call = _fused if is_tracing() else _fused_direct
            if in_halves:
                first, up = weight.chunk(2, 1)
                return call(input, first, offs, bias, epilogue, allow_tf32, up)
            if allow_tf32:
                return call(input, weight, offs, bias, epilogue, True)
            return call(input, weight, offs, bias, epilogue)
        if is_tracing():
            input, weight, bias = distinct(input, weight, bias)
        z_from = RESULT if epilogue_aux is None else SAVED if is_tracing() else OUTPUT
        trained = epilogue_aux or epilogue, epilogue_backward, z_from, allow_tf32, in_halves
        made = _with_grad(input, weight, offs, bias, *trained)
        result: Tensor = made[0] if z_from == OUTPUT else made
        return result
    except RAISED as error:
        reraise(op, error, ("bias",), input=input, weight=weight, offs=offs, bias=bias)


def _sharded(
    op: str,
    input: Tensor,
    weight: Tensor,
    offs: Tensor,
    bias: Tensor | None,
    epilogue: str,
    *rest: Any,
) -> Tensor:
    *_, in_halves = rest
    if in_halves or sharding.calls.has_split_k(weight):
        # The activation is that of the whole sum, and the columns of a device are not those of gate
        # and of up.
        return _composed(op, input, weight, offs, bias, epilogue, in_halves)

    def call(a: Tensor, b: Tensor, ends: Tensor, others: dict[str, Any]) -> Tensor:
        return _apply(op, a, b, ends, others["bias"], epilogue, *rest)

    others, names = {"bias": bias, "epilogue": epilogue}, ("input", "weight")
    name = "grouped_linear_fused"
    result: Tensor = sharding.calls.grouped(name, call, input, weight, offs, others, names)
    return result


def is_served(input: Tensor, epilogue: str) -> bool:
    """Whether this wheel has kernels for an epilogue, the input's dtype and its GPU.

    Every epilogue is there in 16 bits; in float32 only Hopper's kernels have activations.
    """
    if input.dtype != torch.float32 or not input.is_cuda:
        return True
    return _has_float32_kernel(input.get_device(), epilogue)


def _has_float32_kernel(device: int, epilogue: str) -> bool:
    served = _float32_epilogues(device)
    return served is None or epilogue in served


# torch.compile takes the answer at trace time as a constant.
_has_float32_kernel._dynamo_marked_constant = True  # type: ignore[attr-defined]


@functools.cache
def _float32_epilogues(device: int) -> frozenset[str] | None:
    """Epilogues of float32 kernels for groups of rows that the GPU can run; None: there is no GPU,
    only fake tensors of one."""
    if not torch.cuda.is_available():
        return None
    served = json.loads(_ops._device_info(device))["archs_served"]
    return frozenset(
        row["epilogue"]
        for row in json.loads(_ops._kernels())
        if (row["op"], row["grouping"], row["a"]) == ("grouped_mm", "rows", "tf32")
        and (row["arch"] in served or (row["ptx"] and f"{row['arch']} (PTX)" in served))
    )


def _composed(
    op: str,
    input: Tensor,
    weight: Tensor,
    offs: Tensor,
    bias: Tensor | None,
    epilogue: str,
    in_halves: bool,
) -> Tensor:
    """The GEMM by a kernel, the activation by torch. Rows of no group stay zeros: an activation
    of 0 is 0."""
    kind, activation = epilogue.split("_", 1)
    _check_operands(op, input, weight)
    if kind == "gated" and weight.shape[1] % 2:
        wanted = "an even number of rows for each group, those of gate and up in turn"
        raise wrong_shape(op, "weight", weight, wanted)
    try:
        z = grouped.grouped_mm(input, weight.mT, offs=offs, bias=bias)
    except (TypeError, ValueError, RuntimeError) as error:
        raise_as(op, error, _MADE_OF)
    if kind == "gated" and in_halves:
        gate, up = z.chunk(2, dim=1)
        return ACTIVATIONS[activation](gate) * up
    if kind == "gated":
        return ACTIVATIONS[activation](z[:, 0::2]) * z[:, 1::2]
    return ACTIVATIONS[activation](z)


def afterwards(op: str, input: Tensor, activation: str | None) -> str:
    """Torch's part of the call, after the GEMM, for want of a kernel; "": nothing."""
    if activation is None:
        return ""
    table = _LINEAR if op == "grouped_linear" else _GATED
    plain = table[activation][0]
    return "" if is_served(input, plain) else f"torch: {plain.removeprefix('bias_')}"


def epilogue_of(
    op: str,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str | None,
    up: Tensor | None = None,
) -> str | None:
    """The epilogue of the GEMM for these arguments; None: grouped_mm's."""
    if op == "grouped_linear" and activation is None:
        return None
    table, known = (
        (_LINEAR, GROUPED_ACTIVATIONS) if op == "grouped_linear" else (_GATED, GATED_ACTIVATIONS)
    )
    check_activation(activation, known, op)
    plain, stores_z, _ = table[str(activation)]
    if not is_served(input, plain):
        return None
    needs_grad = is_grad_enabled() and any(
        tensor is not None and tensor.requires_grad for tensor in (input, weight, bias, up)
    )
    return stores_z if needs_grad and stores_z is not None else plain
