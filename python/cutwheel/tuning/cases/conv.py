"""Convolutions without a bias, channels last: fprop, dgrad and wgrad."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional

from ..case import Case, Provider, Reference, Setting, explained, first_kernel
from ..measure import Error, Tensor, exactly
from ..shapes import Conv

ALLOWED = Error(1e-2, 1e-1)
OPS = {
    "fprop": "conv2d",
    "fused": "conv2d_fused",
    "dgrad": "conv2d_input_grad",
    "wgrad": "conv2d_weight_grad",
}

Operands = tuple[Tensor, ...]


# ---- torch's providers
def torch_fprop(x: Tensor, w: Tensor, shape: Conv) -> Tensor:
    return functional.conv2d(x, w, None, shape.stride, shape.padding, shape.dilation, shape.groups)


def torch_dgrad(dy: Tensor, w: Tensor, shape: Conv, x: Tensor) -> Tensor:
    """x: any tensor of the input's size and strides; its values are not read"""
    return _backward(dy, x, w, shape, [True, False, False])[0]


def torch_wgrad(dy: Tensor, x: Tensor, shape: Conv, w: Tensor) -> Tensor:
    """w: any tensor of the filter's size and strides; its values are not read"""
    return _backward(dy, x, w, shape, [False, True, False])[1]


def _backward(dy: Tensor, x: Tensor, w: Tensor, shape: Conv, mask: list[bool]) -> Operands:
    """dgrad or wgrad, by `mask`, from the function that autograd calls."""
    stride, padding, dilation = pairs(shape)
    found: Operands = torch.ops.aten.convolution_backward(
        dy, x, w, None, stride, padding, dilation, False, [0, 0], shape.groups, mask
    )
    return found


def pairs(shape: Conv) -> tuple[list[int], list[int], list[int]]:
    return [shape.stride] * 2, [shape.padding] * 2, [shape.dilation] * 2


# ---- ours; gradients have no function of their own: these ops are what backward calls
def our_fprop(x: Tensor, w: Tensor, shape: Conv, tf32: bool = False) -> Tensor:
    """The op itself: the function of the package may leave a convolution to torch."""
    result: Tensor = torch.ops.cutwheel.conv2d(x, w, None, *geometry(shape), tf32)
    return result


def our_dgrad(dy: Tensor, w: Tensor, shape: Conv, tf32: bool = False) -> Tensor:
    given = dy, w, *shape.input[2:], *geometry(shape)
    if shape.groups > 1:
        result: Tensor = torch.ops.cutwheel.conv2d_grouped_input_grad(*given, shape.groups)
    else:
        result = torch.ops.cutwheel.conv2d_input_grad(*given, tf32)
    return result


def our_wgrad(dy: Tensor, x: Tensor, shape: Conv, tf32: bool = False) -> Tensor:
    given = dy, x, *shape.filter[2:], *geometry(shape)
    if shape.groups > 1:
        result: Tensor = torch.ops.cutwheel.conv2d_grouped_weight_grad(*given, shape.groups)
    else:
        result = torch.ops.cutwheel.conv2d_weight_grad(*given, tf32)
    return result


def geometry(shape: Conv) -> list[int]:
    """Strides; padding at the top, bottom, left and right; dilations."""
    stride, padding, dilation = pairs(shape)
    return [*stride, *padding, *padding, *dilation]


def explained_conv(direction: str, shape: Conv, operands: Operands, tf32: bool) -> dict[str, Any]:
    size = {"dgrad": shape.input, "wgrad": shape.filter}.get(direction, ())[2:]
    op = OPS[direction]
    given: list[Tensor | None] = list(operands)
    epilogue = "bias_residual_relu" if direction == "fused" else ""
    if shape.groups > 1:
        op = op.replace("conv2d", "conv2d_grouped")
        epilogue = "plain" if direction == "fprop" else ""
    if direction == "fprop":
        given += [None, None] if shape.groups > 1 else [None]
    groups = [shape.groups] if shape.groups > 1 and size else []
    rest = None, 1, tf32, epilogue, None, None, False, [*geometry(shape), *size, *groups]
    return explained(op, given, *rest)


# ---- cases
def sets_of(setting: Setting, *sizes: Sequence[int], scale: float = 1.0) -> list[Operands]:
    """Operands of these sizes, as many times as L2 asks for; `scale` is of the second one."""
    make = setting.operands

    def one() -> Operands:
        return tuple(
            (make.channels_last if len(size) > 1 else make.normal)(
                *size, scale=scale if number == 1 else 1.0
            )
            for number, size in enumerate(sizes)
        )

    first = one()
    return [first, *(one() for _ in range(setting.buffers(sum(t.nbytes for t in first)) - 1))]


def case_of(
    setting: Setting,
    direction: str,
    sets: Sequence[Operands],
    baselines: Mapping[str, Callable[..., Tensor]],
    ours: Callable[..., Tensor],
    reference: Reference,
    more_bytes: int = 0,
) -> Case:
    """Calls take the operands of a set, then the shape."""
    shape = setting.shape

    def provider(name: str, call: Callable[..., Tensor]) -> Provider:
        return Provider(name, lambda i: call(*sets[i], shape))

    def explain() -> dict[str, Any]:
        return explained_conv(direction, shape, sets[0], setting.is_tf32)

    return Case(
        [*(provider(name, call) for name, call in baselines.items()), provider("cutwheel", ours)],
        len(sets),
        reference,
        ALLOWED,
        shape.flops,
        setting.operands.dtype.itemsize * shape.elements + more_bytes,
        kernels={"cutwheel": first_kernel(explain)},
        explain=explain,
    )


def fprop(setting: Setting, ours: Callable[..., Tensor] | None = None) -> Case:
    """ours: what is measured (default: the op itself)"""
    shape, exact = setting.shape, setting.operands.exact
    sets = sets_of(setting, shape.input, shape.filter)
    return case_of(
        setting,
        "fprop",
        sets,
        {"torch": torch_fprop},
        ours or (lambda x, w, shape: our_fprop(x, w, shape, setting.is_tf32)),
        lambda i: exactly(torch_fprop, *sets[i], shape, dtype=exact),
    )


def dgrad(setting: Setting) -> Case:
    """The gradient of the input, of that of the result and the filter"""
    shape, make = setting.shape, setting.operands
    sets = sets_of(setting, shape.output, shape.filter)
    x = make.channels_last(*shape.input)
    return case_of(
        setting,
        "dgrad",
        sets,
        {"torch": lambda dy, w, shape: torch_dgrad(dy, w, shape, x)},
        lambda dy, w, shape: our_dgrad(dy, w, shape, setting.is_tf32),
        lambda i: exactly(torch_dgrad, *sets[i], shape, x, dtype=make.exact),
    )


def wgrad(setting: Setting) -> Case:
    """The gradient of the filter, of that of the result and the input"""
    shape, make = setting.shape, setting.operands
    sets = sets_of(setting, shape.output, shape.input)
    w = make.channels_last(*shape.filter)
    return case_of(
        setting,
        "wgrad",
        sets,
        {"torch": lambda dy, x, shape: torch_wgrad(dy, x, shape, w)},
        lambda dy, x, shape: our_wgrad(dy, x, shape, setting.is_tf32),
        lambda i: exactly(torch_wgrad, *sets[i], shape, w, dtype=make.exact),
    )
