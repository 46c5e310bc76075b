"""explain's questions to the library about convolutions, and those that torch serves."""

from __future__ import annotations

from typing import Any

import torch
from torch import is_autocast_enabled, is_grad_enabled

from ..ops._common.activations import check_activation
from ..ops.conv import _convolve as conv
from ..ops.conv import _transposed as transposed
from ..ops.conv import _volume as volume
from ..ops.conv._geometry import check_rank, geometry, geometry_of
from ..ops.conv._nd import Folded, fold_signal, fold_volume
from ..ops.scaled._conv import SCALED_CONV_ACTIVATIONS, fused_activation
from ._request import Arguments, ByTorch, Request, torch_text

_WHERE = ("stride", "padding", "dilation")
_CONV = Arguments(
    ("input", "weight", "bias", *_WHERE, "groups"),
    ("input", "weight", "bias", "residual"),
    ("bias", "residual"),
    ("activation", "residual_after_activation"),
    ("residual",),
)
_SCALED_TENSORS = (
    *("input", "weight", "scale_input", "scale_weight"),
    *("bias", "residual", "scale_residual", "scale_result"),
)
TRANSPOSED = tuple(f"conv_transpose{dims}d" for dims in (1, 2, 3))
_TRANSPOSED = _CONV._replace(
    positional=(
        *("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation"),
    )
)
CONV = {
    "conv1d": _CONV,
    "conv2d": _CONV,
    "conv3d": _CONV,
    **dict.fromkeys(TRANSPOSED, _TRANSPOSED),
    "scaled_conv2d": Arguments(
        ("input", "weight", "scale_input", "scale_weight", "bias", *_WHERE),
        _SCALED_TENSORS,
        _SCALED_TENSORS[4:],
        ("out_dtype", "activation"),
        _SCALED_TENSORS,
    ),
}


def conv_request(op: str, tensors: dict[str, Any], given: dict[str, Any]) -> Request | ByTorch:
    """The request of a call with these tensors, already autocast, and these arguments.

    Raises:
        ValueError, TypeError: as the op
    """
    if op in TRANSPOSED:
        return _transposed_request(op, tensors, given)
    input, weight, bias = tensors["input"], tensors["weight"], tensors["bias"]
    stride, padding, dilation = (given.get(k, d) for k, d in zip(_WHERE, (1, 0, 1), strict=True))
    if op == "scaled_conv2d":
        check_rank(op, "input", input, "[N, C, H, W]", "[C, H, W]")
        where = geometry(op, weight, stride, padding, dilation)
        operands = [_batch(tensors[k], 4) for k in _SCALED_TENSORS]
        out_dtype, act = given.get("out_dtype", torch.bfloat16), given.get("activation")
        if act is not None:
            check_activation(act, SCALED_CONV_ACTIVATIONS, op)
        fused, behind = fused_activation(act, out_dtype)
        return Request(
            op, operands, out_dtype, epilogue=fused, geometry=where, afterwards=_text(behind, False)
        )
    activation, residual = given.get("activation"), tensors["residual"]
    if activation is not None:
        check_activation(activation, conv.CONV_ACTIVATIONS, op)
    needs_grad = is_grad_enabled() and any(
        tensor is not None and tensor.requires_grad for tensor in tensors.values()
    )
    dims, groups = int(op[4]), given.get("groups", 1)
    input, residual = _batch(input, dims + 2), _batch(residual, dims + 2)
    composed = _text(activation, residual is not None)
    if dims != 2:
        fold = fold_signal if dims == 1 else fold_volume
        folded: Folded | None = fold(op, input, weight, stride, padding, dilation, residual)
        if folded is not None:
            input, weight, residual, stride, padding, dilation, _ = folded
    if input.dim() == 5:
        where = geometry_of(op, weight, stride, padding, dilation, 3)
        because = volume.why_torch(input, weight, groups, where)
    else:
        check_rank(op, "input", input, "[N, C, H, W]", "[C, H, W]")
        where = geometry(op, weight, stride, padding, dilation)
        because = conv.why_torch(input, weight, groups, where)
    function = f"conv{input.dim() - 2}d"
    if because is not None:
        conv.check_torch_dtype(op, input)
        return ByTorch(f"torch.nn.functional.{function}", because, composed)
    is_last = given.get("residual_after_activation", False)
    is_wide = residual is not None and residual.dtype != input.dtype and is_autocast_enabled()
    behind = activation if is_wide and not is_last else None
    if is_wide:  # torch adds it
        activation, residual = activation if is_last else None, None
    how = activation, residual is not None, is_last, needs_grad
    plan = conv.plan_of(*how, conv.is_served_by(input), groups != 1)
    allow_tf32 = input.dtype == torch.float32
    afterwards = _text(plan.activation or behind, plan.adds_residual or is_wide)
    rest = {"allow_tf32": allow_tf32, "geometry": where, "afterwards": afterwards}
    if groups != 1:
        epilogue = plan.epilogue or ("plain" if bias is None else "bias")
        operands = [input, weight, bias, None if plan.adds_residual else residual]
        return Request("conv2d_grouped", operands, epilogue=epilogue, **rest)
    if plan.epilogue is None:
        return Request(function, [input, weight, bias], **rest)
    operands = [input, weight, bias, None if plan.adds_residual else residual]
    return Request(f"{function}_fused", operands, epilogue=plan.epilogue, **rest)


def _transposed_request(
    op: str, tensors: dict[str, Any], given: dict[str, Any]
) -> Request | ByTorch:
    input, weight, bias, residual = tensors.values()
    activation = given.get("activation")
    if activation is not None:
        check_activation(activation, conv.CONV_ACTIVATIONS, op)
    names = ("stride", "padding", "output_padding", "groups", "dilation")
    where = [given.get(name, 0 if "padding" in name else 1) for name in names]
    call = transposed.transpose(op, _batch(input, int(op[-2]) + 2), weight, *where)
    if call.because is not None:
        conv.check_torch_dtype(op, input)
        composed = _text(activation, residual is not None)
        return ByTorch(f"torch.nn.functional.{op}", call.because, composed)
    is_last = given.get("residual_after_activation", False) and activation is not None
    before = residual is not None and not is_last
    serves_bias = transposed.serves_bias(call.input)
    plan = transposed.plan_of(activation, bias is not None, before, serves_bias)
    parts = "bias" if plan.adds_bias else None, plan.activation
    return Request(
        "conv_transpose3d" if len(call.where) == 12 else "conv_transpose2d",
        [call.input, call.weight, None if plan.adds_bias else bias],
        epilogue=plan.epilogue,
        allow_tf32=input.dtype == torch.float32,
        geometry=(*call.where, *call.size),
        afterwards=torch_text(*parts, None if residual is None else "residual"),
    )


def _batch(tensor: Any, dims: int) -> Any:
    """With a batch of one, if there is none."""
    return tensor.unsqueeze(0) if tensor is not None and tensor.dim() == dims - 1 else tensor


def _text(activation: str | None, has_residual: bool) -> str:
    """Names the parts that torch computes behind the convolution."""
    return torch_text(activation, "residual" if has_residual else None)
