"""What explain asks the library about convolutions, and when torch serves one."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import is_autocast_enabled, is_grad_enabled

from ..ops._common.activations import check_activation
from ..ops._common.errors import dtype_name, shape_text
from ..ops.conv import _convolve as conv
from ..ops.conv._geometry import Geometry, check_rank, geometry
from ..ops.conv._nd import Folded, fold_signal, fold_volume
from ._grouped import Arguments

_WHERE = ("stride", "padding", "dilation")
_CONV = Arguments(
    ("input", "weight", "bias", *_WHERE, "groups"),
    ("input", "weight", "bias", "residual"),
    ("bias", "residual"),
    ("activation", "residual_after_activation"),
)
CONV = {
    "conv1d": _CONV,
    "conv2d": _CONV,
    "conv3d": _CONV,
    "scaled_conv2d": Arguments(
        ("input", "weight", "scale_input", "scale_weight", "bias", *_WHERE),
        ("input", "weight", "scale_input", "scale_weight", "bias"),
        ("bias",),
        ("out_dtype",),
    ),
}
# As the library numbers them.
_PLAIN, _FUSED, _SCALED = 0, 1, 2


class Request(NamedTuple):
    """What the library is asked."""

    number: int
    operands: list[torch.Tensor | None]
    where: Geometry
    out_dtype: torch.dtype | None
    allow_tf32: bool
    epilogue: str
    afterwards: str
    """what torch computes behind the kernel; empty: nothing"""


class ByTorch(NamedTuple):
    """What torch computes, and why."""

    function: str
    because: str
    afterwards: str


def conv_request(op: str, tensors: dict[str, Any], given: dict[str, Any]) -> Request | ByTorch:
    """The request of a call with these tensors, already autocast, and these arguments.

    Raises:
        ValueError, TypeError: as the op
    """
    input, weight, bias = tensors["input"], tensors["weight"], tensors["bias"]
    stride, padding, dilation = (given.get(k, d) for k, d in zip(_WHERE, (1, 0, 1), strict=True))
    if op == "scaled_conv2d":
        check_rank(op, "input", input, "[N, C, H, W]", "[C, H, W]")
        where = geometry(op, weight, stride, padding, dilation)
        operands = [_batch(input, 4), *(tensors[k] for k in list(tensors)[1:])]
        out_dtype = given.get("out_dtype", torch.bfloat16)
        return Request(_SCALED, operands, where, out_dtype, False, "", "")
    activation, residual = given.get("activation"), tensors["residual"]
    if activation is not None:
        check_activation(activation, conv.CONV_ACTIVATIONS, op)
    needs_grad = is_grad_enabled() and any(
        tensor is not None and tensor.requires_grad for tensor in tensors.values()
    )
    dims, groups = int(op[4]), given.get("groups", 1)
    input, residual = _batch(input, dims + 2), _batch(residual, dims + 2)
    composed = by_torch_text(activation, residual is not None)
    if dims != 2:
        fold = fold_signal if dims == 1 else fold_volume
        folded: Folded | str = fold(op, input, weight, stride, padding, dilation, residual)
        if isinstance(folded, str):
            conv.check_torch_dtype(op, input)
            return ByTorch("torch.nn.functional.conv3d", folded, composed)
        input, weight, residual, stride, padding, dilation, _ = folded
    check_rank(op, "input", input, "[N, C, H, W]", "[C, H, W]")
    where = geometry(op, weight, stride, padding, dilation)
    because = conv.why_torch(input, groups)
    if because is not None:
        conv.check_torch_dtype(op, input)
        return ByTorch("torch.nn.functional.conv2d", because, composed)
    is_last = given.get("residual_after_activation", False)
    is_wide = residual is not None and residual.dtype != input.dtype and is_autocast_enabled()
    behind = activation if is_wide and not is_last else None
    if is_wide:  # torch adds it
        activation, residual = activation if is_last else None, None
    how = activation, residual is not None, is_last, needs_grad
    plan = conv.plan_of(*how, conv.is_served_by(input))
    allow_tf32 = input.dtype == torch.float32
    afterwards = by_torch_text(plan.activation or behind, plan.adds_residual or is_wide)
    if plan.epilogue is None:
        return Request(_PLAIN, [input, weight, bias], where, None, allow_tf32, "", afterwards)
    operands = [input, weight, bias, None if plan.adds_residual else residual]
    return Request(_FUSED, operands, where, None, allow_tf32, plan.epilogue, afterwards)


def _batch(tensor: Any, dims: int) -> Any:
    """With a batch of one, if there is none."""
    return tensor.unsqueeze(0) if tensor is not None and tensor.dim() == dims - 1 else tensor


def by_torch_text(activation: str | None, has_residual: bool) -> str:
    """What torch computes behind the convolution."""
    parts = [activation] if activation is not None else []
    if has_residual:
        parts.append("residual")
    return f"torch: {', '.join(parts)}" if parts else ""


def answer_of(request: Request) -> str:
    """The library's, JSON."""
    number, operands, where, out_dtype, allow_tf32, epilogue, _ = request
    text: str = torch.ops.cutwheel._explain_conv(
        number, operands, *where, out_dtype, allow_tf32, epilogue
    )
    return text


def by_torch_parameters(request: ByTorch, tensors: dict[str, Any]) -> dict[str, Any]:
    """The parameters of an explanation."""
    parameters: dict[str, Any] = {"served_by": request.function, "because": request.because}
    if request.afterwards:
        parameters["afterwards"] = request.afterwards
    parameters["request"] = {
        name: f"{dtype_name(tensor.dtype)} {shape_text(tensor.shape)}"
        for name, tensor in tensors.items()
        if tensor is not None
    }
    return parameters


def device_name(tensor: torch.Tensor) -> str:
    device = tensor.device
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
