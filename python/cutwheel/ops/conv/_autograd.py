"""Gradients of convolutions, each by the op that is made for it, so that they nest.

With z = conv(X, W) + b (+ R), Y = act(z) and G the gradient of Y:

    dz = G * act'(z), db = dz summed over images and pixels, dR = dz
    dX = dgrad(dz, W), dW = wgrad(dz, X)

conv, dgrad and wgrad are linear in each of their two operands, and the gradients of each
are the other two:

    of dgrad(G, W):  dG = conv(V, W),  dW = wgrad(G, V)
    of wgrad(G, X): dG = conv(X, V),  dX = dgrad(G, V)

with V the gradient of their result. The result of relu tells what backward needs. gelu, gelu_tanh
and silu need z, which their kernels store: it is an output of the forward's node, as in
cutwheel.ops.linear, so that the second derivative flows through it. Other activations are torch's,
behind a convolution without one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, is_grad_enabled

from .._common.call import Op, fast_apply, is_tracing, overloads
from .._common.elementwise import Gradient, derivative, sum_rows
from .._common.errors import out_of_memory
from .._common.sizes import known
from .._common.transforms import is_transformed
from ._geometry import Geometry, parts


def _of_images_and_volumes(direction: str) -> dict[tuple[int, bool], Op]:
    """Ops by the length of a geometry and whether torch.compile traces."""
    found: dict[tuple[int, bool], Op] = {}
    for length, op in ((8, "conv2d"), (12, "conv3d")):
        found[length, True], found[length, False] = overloads(op + direction)
    return found


_FPROP, _FUSED = _of_images_and_volumes(""), _of_images_and_volumes("_fused")
_FUSED_AUX = _of_images_and_volumes("_fused_aux")
_DGRAD, _WGRAD = _of_images_and_volumes("_input_grad"), _of_images_and_volumes("_weight_grad")
_BY_TORCH: dict[int, Op] = {8: F.conv2d, 12: F.conv3d}


def channels_last(tensor: Tensor) -> Tensor:
    """[N, C, ...] seen as [N, ..., C]."""
    return tensor.movedim(1, -1)


def channels_first(tensor: Tensor) -> Tensor:
    """[N, ..., C] seen as [N, C, ...]."""
    return tensor.movedim(-1, 1)


def pixels_of(image: Tensor) -> Tensor:
    """channels_last, of an image at two thirds of the cost."""
    return image.permute(0, 2, 3, 1) if image.dim() == 4 else channels_last(image)


# ---- by torch, inside of transforms --------------------------------------------------------------
def padded(input: Tensor, geometry: Geometry) -> Tensor:
    sides = parts(geometry)[1]
    # F.pad begins with the last dimension.
    both = zip(sides[-2::-2], sides[::-2], strict=True)
    return F.pad(input, [side for pair in both for side in pair])


def backward_by_torch(
    grad: Tensor,
    input: Tensor,
    weight: Tensor,
    geometry: Geometry,
    wanted: tuple[bool, bool, bool],
    groups: int = 1,
) -> tuple[Tensor, ...]:
    """Gradients by torch of a convolution whose input is padded already."""
    strides, _, dilations = map(list, parts(geometry))
    none = [0] * len(strides)
    result: tuple[Tensor, ...] = torch.ops.aten.convolution_backward.default(
        *(grad, input, weight, None, strides, none, dilations, False, none, groups, wanted)
    )
    return result


def _dgrad_by_torch(
    grad: Tensor, weight: Tensor, size: Sequence[int], geometry: Geometry
) -> Tensor:
    sides = parts(geometry)[1]
    before = sides[::2]
    extents = [sum(x) for x in zip(size[2:], before, sides[1::2], strict=True)]
    image = grad.new_zeros(*size[:2], *extents)
    of_padded = backward_by_torch(grad, image, weight, geometry, (True, False, False))[0]
    for dim, (first, length) in enumerate(zip(before, size[2:], strict=True), 2):
        of_padded = of_padded.narrow(dim, first, length)
    return of_padded


def _wgrad_by_torch(grad: Tensor, input: Tensor, size: Sequence[int], geometry: Geometry) -> Tensor:
    weight = grad.new_zeros(tuple(size))
    wanted = False, True, False
    return backward_by_torch(grad, padded(input, geometry), weight, geometry, wanted)[1]


# --------------------------------------------------------------------------------------------------


def _conv(input: Tensor, weight: Tensor, geometry: Geometry, allow_tf32: bool) -> Tensor:
    if is_transformed():
        strides, _, dilations = parts(geometry)
        by_torch = _BY_TORCH[len(geometry)]
        return by_torch(padded(input, geometry), weight, None, strides, 0, dilations)
    if is_grad_enabled() and (input.requires_grad or weight.requires_grad):
        return _conv_with_grad(input, weight, None, None, geometry, None, allow_tf32)
    call = _FPROP[len(geometry), is_tracing()]
    try:
        return call(input, weight, None, *geometry, allow_tf32)
    except RuntimeError as error:
        raise out_of_memory(error) from None


def _dgrad(
    grad: Tensor, weight: Tensor, size: Sequence[int], geometry: Geometry, allow_tf32: bool
) -> Tensor:
    if is_transformed():
        return _dgrad_by_torch(grad, weight, size, geometry)
    if is_grad_enabled() and (grad.requires_grad or weight.requires_grad):
        return _dgrad_with_grad(grad, weight, size, geometry, allow_tf32)
    call = _DGRAD[len(geometry), is_tracing()]
    try:
        return call(grad, weight, *size[2:], *geometry, allow_tf32)
    except RuntimeError as error:
        raise out_of_memory(error) from None


def _wgrad(
    grad: Tensor, input: Tensor, size: Sequence[int], geometry: Geometry, allow_tf32: bool
) -> Tensor:
    if is_transformed():
        return _wgrad_by_torch(grad, input, size, geometry)
    if is_grad_enabled() and (grad.requires_grad or input.requires_grad):
        return _wgrad_with_grad(grad, input, size, geometry, allow_tf32)
    call = _WGRAD[len(geometry), is_tracing()]
    try:
        return call(grad, input, *size[2:], *geometry, allow_tf32)
    except RuntimeError as error:
        raise out_of_memory(error) from None


def in_order(image: Tensor) -> Tensor:
    """With contiguous channels: each op would make that copy for itself. In a graph it is written
    so by what computes the image, if that is a kernel of Inductor's."""
    if is_tracing():
        is_in_order = known(image.stride()[1] == 1) or known(image.shape[1] == 1)
    else:
        is_in_order = image.stride()[1] == 1 or image.shape[1] == 1
    if is_in_order:
        return image
    order = torch.channels_last if image.dim() == 4 else torch.channels_last_3d
    return image.contiguous(memory_format=order)


def gradients(
    grad: Tensor, input: Tensor, weight: Tensor, geometry: Geometry, wanted: Sequence[bool]
) -> tuple[Gradient, Gradient, Gradient]:
    """Those of input, weight and bias that are wanted; they can be differentiated."""
    dz = in_order(grad)
    return (
        _dgrad(dz, weight, input.shape, geometry, False) if wanted[0] else None,
        _wgrad(dz, input, weight.shape, geometry, False) if wanted[1] else None,
        sum_rows(pixels_of(dz)) if wanted[2] else None,
    )


class Conv(torch.autograd.Function):
    """conv2d, or conv2d_fused if there is an epilogue; of volumes conv3d.

    Returns the result, or (result, z) if the epilogue stores z and torch.compile does not trace:
    that knows no second derivatives, and would keep another output alive.
    """

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        residual: Tensor | None,
        geometry: Geometry,
        epilogue: str | None,
        allow_tf32: bool,
    ) -> Tensor | tuple[Tensor, Tensor]:
        tracing = is_tracing()
        z: Tensor | None = None
        result: Tensor
        if epilogue is None:
            result = _FPROP[len(geometry), tracing](input, weight, bias, *geometry, allow_tf32)
        else:
            given = input, weight, bias, residual, *geometry, epilogue, allow_tf32
            if epilogue.endswith("_aux"):
                result, z = _FUSED_AUX[len(geometry), tracing](*given)
            else:
                result = _FUSED[len(geometry), tracing](*given)
        activation = _activation_of(epilogue)
        needs_input, needs_weight, *_ = ctx.needs_input_grad
        ctx.save_for_backward(
            input if needs_weight else None,
            weight if needs_input else None,
            result if activation == "relu" else z,
        )
        # Sizes of the gradients that backward makes.
        ctx.input_size = input.shape if needs_input else None
        ctx.weight_size = weight.shape if needs_weight else None
        ctx.geometry, ctx.activation, ctx.allow_tf32 = geometry, activation, allow_tf32
        if z is None or tracing:
            return result
        # Without this, a first backward pass would add zeros as the gradient of z.
        ctx.set_materialize_grads(False)
        return result, z

    @staticmethod
    def backward(ctx: Any, grad: Gradient, grad_z: Gradient = None) -> tuple[Gradient, ...]:
        input, weight, z = ctx.saved_tensors
        needs_input, needs_weight, needs_bias, needs_residual, *_ = ctx.needs_input_grad
        needs_dz = needs_input or needs_weight or needs_residual
        dz, grad_bias = _before_activation(grad, grad_z, z, ctx.activation, needs_dz, needs_bias)
        if dz is None:
            return None, None, grad_bias, None, None, None, None
        given = ctx.geometry, ctx.allow_tf32
        grad_input = _dgrad(dz, weight, ctx.input_size, *given) if needs_input else None
        grad_weight = _wgrad(dz, input, ctx.weight_size, *given) if needs_weight else None
        grad_residual = dz if needs_residual else None
        return grad_input, grad_weight, grad_bias, grad_residual, None, None, None


def _activation_of(epilogue: str | None) -> str | None:
    """The activation whose derivative backward takes: of an epilogue that training has."""
    if epilogue is None or epilogue in ("bias", "plain", "bias_residual"):
        return None
    return epilogue.removesuffix("_aux").removeprefix("bias_").removeprefix("residual_")


def _gradient_op(
    ops: dict[tuple[int, bool], Op], of_other: Op, is_dgrad: bool
) -> type[torch.autograd.Function]:
    """dgrad, or wgrad: V goes in the place of its result, an image or a filter.

    Args:
        of_other: gives the gradient of the second operand, W or X
    """

    class GradientOp(torch.autograd.Function):
        @staticmethod
        def forward(
            ctx: Any,
            grad: Tensor,
            other: Tensor,
            size: Sequence[int],
            geometry: Geometry,
            allow_tf32: bool,
        ) -> Tensor:
            needs = ctx.needs_input_grad
            ctx.save_for_backward(grad if needs[1] else None, other if needs[0] else None)
            ctx.other_size, ctx.geometry, ctx.allow_tf32 = other.shape, geometry, allow_tf32
            call = ops[len(geometry), is_tracing()]
            return call(grad, other, *size[2:], *geometry, allow_tf32)

        @staticmethod
        def backward(ctx: Any, v: Tensor) -> tuple[Gradient, ...]:
            grad, other = ctx.saved_tensors
            given = ctx.geometry, ctx.allow_tf32
            grad_grad: Gradient = None
            grad_other: Gradient = None
            if other is not None:
                grad_grad = _conv(v, other, *given) if is_dgrad else _conv(other, v, *given)
            if grad is not None:
                grad_other = of_other(grad, v, ctx.other_size, *given)
            return grad_grad, grad_other, None, None, None

    return GradientOp


_conv_with_grad: Op = fast_apply(Conv, 4)
_dgrad_with_grad: Op = fast_apply(_gradient_op(_DGRAD, _wgrad, True), 2)
_wgrad_with_grad: Op = fast_apply(_gradient_op(_WGRAD, _dgrad, False), 2)


_TRANSPOSED = {
    (length, is_traced): call
    for length, op in ((8, "conv_transpose2d"), (12, "conv_transpose3d"))
    for is_traced, call in zip((True, False), overloads(op), strict=True)
}


class ConvTranspose(torch.autograd.Function):
    """conv_transpose2d or conv_transpose3d: dgrad of X and W, and its gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        size: Sequence[int],
        geometry: Geometry,
        epilogue: str,
        allow_tf32: bool,
    ) -> Tensor:
        call = _TRANSPOSED[len(geometry), is_tracing()]
        result = call(input, weight, bias, *size, *geometry, epilogue, allow_tf32)
        needs_input, needs_weight, *_ = ctx.needs_input_grad
        ctx.save_for_backward(
            input if needs_weight else None,
            weight if needs_input else None,
            result if epilogue.endswith("relu") else None,
        )
        ctx.weight_size = weight.shape if needs_weight else None
        ctx.geometry, ctx.allow_tf32 = geometry, allow_tf32
        ctx.activation = _activation_of(epilogue)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Gradient, ...]:
        input, weight, result = ctx.saved_tensors
        needs_input, needs_weight, needs_bias, *_ = ctx.needs_input_grad
        needs_dz = needs_input or needs_weight
        dz, grad_bias = _before_activation(grad, None, result, ctx.activation, needs_dz, needs_bias)
        if dz is None:
            return None, None, grad_bias, None, None, None, None
        given = ctx.geometry, ctx.allow_tf32
        grad_input = _conv(dz, weight, *given) if needs_input else None
        grad_weight = _wgrad(input, dz, ctx.weight_size, *given) if needs_weight else None
        return grad_input, grad_weight, grad_bias, None, None, None, None


def _before_activation(
    grad: Gradient,
    grad_z: Gradient,
    z: Tensor | None,
    activation: str | None,
    needs_dz: bool,
    needs_bias: bool,
) -> tuple[Gradient, Gradient]:
    """dz and its sum over images and pixels, those that are needed.

    Args:
        grad, grad_z: of the result and, in a second backward pass, of z
        z: the activation's argument; of relu, its result; not read without an activation
    """
    dz = grad_z
    if grad is not None and activation is None:
        dz = in_order(grad)
    elif grad is not None and z is not None:
        is_only = grad_z is None
        of_pixels = pixels_of(grad), pixels_of(z), f"{activation}_backward"
        pixels, sums = derivative(*of_pixels, needs_dz or not is_only, needs_bias and is_only)
        if grad_z is None:
            return channels_first(pixels) if needs_dz else None, sums if needs_bias else None
        dz = channels_first(pixels) + grad_z
    return dz, sum_rows(pixels_of(dz)) if needs_bias and dz is not None else None


transposed_with_grad: Op = fast_apply(ConvTranspose, 3)
