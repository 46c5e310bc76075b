"""The modules that a fused model has, and the batch norm that is folded into their weights."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import nn
from ..ops._common.activations import ACTIVATIONS, ALL_ACTIVATIONS
from ..ops.conv._convolve import plan_of
from ..ops.conv._geometry import output_size, sides_of
from ..ops.linear import linear
from .padding import padded_more


class _ResidualConv:
    """A convolution whose residual may be whatever torch can add to it.

    A trace does not know shapes and dtypes. Where the residual has those of the result, it is added
    in the kernel. One number for each channel of each image, as diffusion models add the embedding
    of a step, is added by torch to the kernel's result. Else torch computes all of it, as the
    unfused model did.
    """

    sum_is_in_place = False
    """z += residual, of the convolution's result z: the sum has z's dtype"""
    sum_is_reversed = False
    """residual + z, whose strides are those of the residual"""

    def forward(self, input: Tensor, residual: Any) -> Any:
        layer: Any = self
        shape = self.result_shape(input)
        if _is_like_result(residual, input, shape):
            return super().forward(input, residual)  # type: ignore[misc]
        dims = len(layer.kernel_size)
        of_channels = (*shape[:-dims], *[1] * dims)
        if layer.activation is None and _is_like_result(residual, input, of_channels):
            return _sum(layer, super().forward(input), residual)  # type: ignore[misc]
        return _by_torch(layer, _convolved_by_torch(layer, input), residual)

    def result_shape(self, input: Tensor) -> tuple[int, ...]:
        layer: Any = self
        dims = len(layer.kernel_size)
        before, extents = input.shape[: -dims - 1], input.shape[-dims:]
        if layer.padding == "same":
            return (*before, layer.out_channels, *extents)
        padding = 0 if isinstance(layer.padding, str) else layer.padding
        sides = sides_of("fuse", padding, dims)
        each = zip(
            *(extents, sides[::2], sides[1::2], layer.kernel_size, layer.stride, layer.dilation),
            strict=True,
        )
        return (*before, layer.out_channels, *(output_size(*given) for given in each))


class ResidualConv2d(_ResidualConv, nn.Conv2d):  # type: ignore[misc]
    """cutwheel.nn.Conv2d with any residual."""


class ResidualConv3d(_ResidualConv, nn.Conv3d):  # type: ignore[misc]
    """cutwheel.nn.Conv3d, likewise."""


def _convolved_by_torch(layer: Any, input: Tensor) -> Tensor:
    """By the function of the layer's base class, which has one number for both ends."""
    dims = len(layer.kernel_size)
    if not any(isinstance(each, tuple) for each in layer.padding):
        z: Tensor = (torch.nn.Conv2d if dims == 2 else torch.nn.Conv3d).forward(layer, input)
        return z
    sides = sides_of("fuse", layer.padding, dims)
    both = zip(sides[-2::-2], sides[::-2], strict=True)
    padded = F.pad(input, [side for pair in both for side in pair])
    function: Any = F.conv2d if dims == 2 else F.conv3d
    rest = (layer.stride, 0, layer.dilation, layer.groups)
    found: Tensor = function(padded, layer.weight, layer.bias, *rest)
    return found


class ResidualLinear(nn.Linear):
    """cutwheel.nn.Linear, likewise."""

    sum_is_in_place = False
    sum_is_reversed = False
    is_channels_first = False
    """the result is permuted from [N, ..., C] to [N, C, ...], as the residual lies"""

    def forward(self, input: Tensor, residual: Any) -> Any:  # type: ignore[override]
        shape, is_first = (*input.shape[:-1], self.out_features), self.is_channels_first
        if _is_like_result(residual, input, _channels_first(shape) if is_first else shape):
            added = residual.movedim(1, -1) if is_first else residual
            if not self.sum_is_reversed or added.is_contiguous():
                result = super().forward(input, added)
                return result.movedim(-1, 1) if is_first else result
        z = torch.nn.Linear.forward(self, input)
        return _by_torch(self, z.movedim(-1, 1) if is_first else z, residual)


class ChannelsFirstLinear(nn.Linear):
    """cutwheel.nn.Linear whose result is permuted from [N, ..., C] to [N, C, ...]."""

    def forward(self, input: Tensor, residual: Tensor | None = None) -> Tensor:
        return super().forward(input, residual).movedim(-1, 1)


def _channels_first(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (shape[0], shape[-1], *shape[1:-1])


class PointwiseConv2d(nn.Conv2d):
    """cutwheel.nn.Conv2d of one tap as a linear layer of pixels, whose kernels have more
    activations."""

    def forward(self, input: Tensor, residual: Tensor | None = None) -> Tensor:
        pixels, weight = input.movedim(-3, -1), self.weight.flatten(1)
        result = linear(pixels, weight, self.bias, activation=self.activation, residual=residual)
        return result.movedim(-1, -3)


class CastingLinear(nn.Linear):
    """cutwheel.nn.Linear whose result is float32 under autocast, as that of torch's activation."""

    def forward(self, input: Tensor, residual: Tensor | None = None) -> Tensor:
        assert self.activation is not None
        if not torch.is_autocast_enabled():
            return super().forward(input, residual)
        return ALL_ACTIVATIONS[self.activation](linear(input, self.weight, self.bias))


_IN_FLOAT32 = ("softplus",)
"""activations that torch computes in float32 under autocast"""


def _is_like_result(residual: Any, input: Tensor, shape: tuple[int, ...]) -> bool:
    if not isinstance(residual, Tensor):
        return False
    dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled() else input.dtype
    return residual.shape == shape and residual.dtype == dtype and residual.device == input.device


def _by_torch(layer: Any, z: Tensor, residual: Any) -> Any:
    activation = None if layer.activation is None else ALL_ACTIVATIONS[layer.activation]
    if activation is None:
        return _sum(layer, z, residual)
    if layer.residual_after_activation:
        return _sum(layer, activation(z), residual)
    return activation(_sum(layer, z, residual))


def _sum(layer: Any, z: Tensor, residual: Any) -> Any:
    if layer.sum_is_in_place:
        z += residual
        return z
    return residual + z if layer.sum_is_reversed else z + residual


def can_fuse(
    layer: torch.nn.Module, activation: str | None, has_residual: bool, is_last: bool
) -> bool:
    """Whether all of it is one kernel, as long as no gradient is needed."""
    if isinstance(layer, torch.nn.Linear):
        return activation in ACTIVATIONS or activation is None or not has_residual
    conv: Any = layer
    if _is_pointwise(conv, activation):
        return not has_residual
    if activation in _IN_FLOAT32 or (_is_first(conv) and not _serves_first(conv, activation)):
        return False
    if conv.transposed:  # of which dgrad kernels have one epilogue besides the bias
        return activation in (None, "relu") and not has_residual
    plan = plan_of(activation, has_residual, is_last, False, is_grouped=conv.groups != 1)
    return plan.activation is None and not plan.adds_residual


def _is_first(conv: Any) -> bool:
    """Whether a convolution is that of images' colours, which has kernels of its own."""
    return not conv.transposed and conv.in_channels <= 4 and max(conv.stride) > 1


def _serves_first(conv: Any, activation: str | None) -> bool:
    """Whether these kernels have the activation.

    Others take longer than a convolution and an activation apart: 64 images of 224 x 224 pixels, 32
    filters of 3 x 3, stride 2, 292 us with SiLU in one of them and 61 in one of these (H200).
    """
    if activation in (None, "relu"):
        return True
    is_gathered = conv.stride == (2, 2) and conv.out_channels % 8 == 0
    return is_gathered and activation in ("silu", "hardswish")


_OF_PIXELS = ("sigmoid", "tanh", "hardswish", "leaky_relu")
"""activations that kernels of linear layers have, on more GPUs than those of convolutions; and
softplus, which torch computes in float32 under autocast"""


def _is_pointwise(conv: Any, activation: str | None) -> bool:
    """Whether a convolution is to be a linear layer of pixels. In float32 torch has settings for
    these of their own."""
    return (
        activation in _OF_PIXELS
        and type(conv) is torch.nn.Conv2d
        and (conv.kernel_size, conv.stride, conv.groups) == ((1, 1), (1, 1), 1)
        and conv.padding in ((0, 0), "same", "valid")
        and conv.weight.dtype in (torch.float16, torch.bfloat16)
    )


def fused_module(
    layer: torch.nn.Module,
    norm: torch.nn.Module | None,
    activation: str | None,
    has_residual: bool,
    residual_after_activation: bool,
    zeros: tuple[int, ...] = (),
    scale: Tensor | None = None,
    is_channels_first: bool = False,
) -> torch.nn.Module:
    """The layer with what follows it. Its parameters are the layer's own, unless there is a norm or
    a scale.

    Args:
        zeros: around the input of a convolution, besides its padding
        scale: that the result is multiplied by, one number for each channel
        is_channels_first: the result of a linear layer is permuted to [N, C, ...]

    Raises:
        FoldError: the folded weights cannot be had
    """
    parameters = None
    if norm is not None or scale is not None:
        parameters = fold(layer, norm, scale)
    result: Any
    if isinstance(layer, torch.nn.Linear):
        kind = CastingLinear if activation in _IN_FLOAT32 else nn.Linear
        kind = (
            ResidualLinear if has_residual else ChannelsFirstLinear if is_channels_first else kind
        )
        result = kind(
            *(layer.in_features, layer.out_features, layer.bias is not None, "meta"),
            activation=activation,
            residual_after_activation=residual_after_activation,
        )
        result.weight, result.bias = parameters or (layer.weight, layer.bias)
        if has_residual:
            result.is_channels_first = is_channels_first
        made: torch.nn.Module = result.train(layer.training)
        return made
    conv: Any = layer
    kind_of_conv = (_RESIDUAL if has_residual else _PLAIN)[type(layer)]
    if _is_pointwise(conv, activation):
        kind_of_conv = PointwiseConv2d
    result = kind_of_conv.from_conv(conv, activation, residual_after_activation)
    if parameters is not None:
        result.weight, result.bias = parameters
    if zeros:
        result.padding = padded_more(conv, zeros)
    # The layer is the copy's own, so its weight may lie as the kernels read it.
    result.weight.data = _channels_last(result.weight.data)
    made_of: torch.nn.Module = result
    return made_of


_PLAIN: dict[type[torch.nn.Module], Any] = {
    torch.nn.Conv2d: nn.Conv2d,
    torch.nn.Conv3d: nn.Conv3d,
    torch.nn.ConvTranspose1d: nn.ConvTranspose1d,
    torch.nn.ConvTranspose2d: nn.ConvTranspose2d,
    torch.nn.ConvTranspose3d: nn.ConvTranspose3d,
}
_RESIDUAL: dict[type[torch.nn.Module], Any] = {
    torch.nn.Conv2d: ResidualConv2d,
    torch.nn.Conv3d: ResidualConv3d,
}


def _channels_last(weight: Tensor) -> Tensor:
    """Of any number of dimensions."""
    return weight.movedim(1, -1).contiguous().movedim(-1, 1)


class FoldError(Exception):
    """Why a batch norm or a scale is not folded."""


def fold(
    layer: Any, norm: Any, factors: Tensor | None = None
) -> tuple[torch.nn.Parameter, torch.nn.Parameter | None]:
    """Weight and bias of a layer that does what `layer`, then `norm` and the factors do.

    Computed in float64, so that there is no rounding but that to the weight's dtype.

    Args:
        norm: a batch norm, or None
        factors: one for each channel of the result
    """
    of_norm = ("running_mean", "running_var", "weight", "bias") if norm is not None else ()
    tensors = (layer.weight, layer.bias, factors, *(getattr(norm, name) for name in of_norm))
    devices = {tensor.device for tensor in tensors if tensor is not None}
    if torch.device("meta") in devices:
        raise FoldError("its weights are on the device meta: load them first")
    if len(devices) > 1:
        kind = "linear layer" if isinstance(layer, torch.nn.Linear) else "convolution"
        raise FoldError(f"it is on another device than the {kind}")
    with torch.no_grad():
        scale = layer.weight.new_ones((), dtype=torch.double)
        shift = None if layer.bias is None else layer.bias.double()
        if norm is not None:
            scale = (norm.running_var.double() + norm.eps).rsqrt()
            if norm.weight is not None:
                scale = scale * norm.weight.double()
            mean = norm.running_mean.double()
            shift = (-mean if shift is None else shift - mean) * scale
            if norm.bias is not None:
                shift = shift + norm.bias.double()
        if factors is not None:
            scale = scale * factors.double()
            shift = None if shift is None else shift * factors.double()
        filters = 1 if getattr(layer, "transposed", False) else 0  # which dimension they are
        around = [-1 if dim == filters else 1 for dim in range(layer.weight.dim())]
        wide = layer.weight.double() * scale.view(around)
        dtype, needs_grad = layer.weight.dtype, layer.weight.requires_grad
        weight = _rounded("weight", wide, dtype)
        bias = None if shift is None else _rounded("bias", shift, dtype)
    if not isinstance(layer, torch.nn.Linear):
        weight = _channels_last(weight)
    made = None if bias is None else torch.nn.Parameter(bias, needs_grad)
    return torch.nn.Parameter(weight, needs_grad), made


def _rounded(name: str, wide: Tensor, dtype: torch.dtype) -> Tensor:
    value = wide.to(dtype)
    if not torch.equal(value.isfinite(), wide.isfinite()):
        kind = str(dtype).removeprefix("torch.")
        raise FoldError(f"the folded {name} exceeds the range of {kind}")
    return value
