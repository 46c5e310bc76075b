"""The modules that a fused model has, and the batch norm that is folded into their weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import nn
from ..ops._common.activations import ACTIVATIONS, ALL_ACTIVATIONS
from ..ops.conv._convolve import plan_of
from ..ops.conv._geometry import output_size
from ..ops.linear import linear


class ResidualConv2d(nn.Conv2d):
    """cutwheel.nn.Conv2d whose residual may be whatever torch can add to the convolution.

    A trace does not know shapes and dtypes. Where the residual has those of the result, it is added
    in the kernel; else torch computes all of it, as the unfused model did.
    """

    sum_is_in_place = False
    """z += residual, of the convolution's result z: the sum has z's dtype"""
    sum_is_reversed = False
    """residual + z, whose strides are those of the residual"""

    def forward(self, input: Tensor, residual: Any) -> Any:  # type: ignore[override]
        if _is_like_result(residual, input, self.result_shape(input)):
            return super().forward(input, residual)
        return _by_torch(self, torch.nn.Conv2d.forward(self, input), residual)

    def result_shape(self, input: Tensor) -> tuple[int, ...]:
        if self.padding == "same":
            return (*input.shape[:-3], self.out_channels, *input.shape[-2:])
        padding: Any = (0, 0) if isinstance(self.padding, str) else self.padding
        each = zip(
            *(input.shape[-2:], padding, self.kernel_size, self.stride, self.dilation), strict=True
        )
        image = [output_size(size, pad, pad, *others) for size, pad, *others in each]
        return (*input.shape[:-3], self.out_channels, *image)


class ResidualLinear(nn.Linear):
    """cutwheel.nn.Linear, likewise."""

    sum_is_in_place = False
    sum_is_reversed = False

    def forward(self, input: Tensor, residual: Any) -> Any:  # type: ignore[override]
        shape = (*input.shape[:-1], self.out_features)
        if _is_like_result(residual, input, shape) and (
            not self.sum_is_reversed or residual.is_contiguous()
        ):
            return super().forward(input, residual)
        return _by_torch(self, torch.nn.Linear.forward(self, input), residual)


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


def _by_torch(layer: ResidualConv2d | ResidualLinear, z: Tensor, residual: Any) -> Any:
    activation = None if layer.activation is None else ALL_ACTIVATIONS[layer.activation]
    if activation is None:
        return _sum(layer, z, residual)
    if layer.residual_after_activation:
        return _sum(layer, activation(z), residual)
    return activation(_sum(layer, z, residual))


def _sum(layer: ResidualConv2d | ResidualLinear, z: Tensor, residual: Any) -> Any:
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
    is_grouped = isinstance(layer, torch.nn.Conv2d) and layer.groups != 1
    plan = plan_of(activation, has_residual, is_last, False, is_grouped=is_grouped)
    return plan.activation is None and not plan.adds_residual


def fused_module(
    layer: torch.nn.Module,
    norm: torch.nn.Module | None,
    activation: str | None,
    has_residual: bool,
    residual_after_activation: bool,
) -> torch.nn.Module:
    """The layer with what follows it. Its parameters are the layer's own, unless there is a norm.

    Raises:
        FoldError: the folded weights cannot be had
    """
    if isinstance(layer, torch.nn.Linear):
        kind = CastingLinear if activation in _IN_FLOAT32 else nn.Linear
        made = (ResidualLinear if has_residual else kind)(
            *(layer.in_features, layer.out_features, layer.bias is not None, "meta"),
            activation=activation,
            residual_after_activation=residual_after_activation,
        )
        made.weight, made.bias = layer.weight, layer.bias
        return made.train(layer.training)
    assert isinstance(layer, torch.nn.Conv2d)
    parameters = None if norm is None else fold(layer, norm)
    conv = ResidualConv2d if has_residual else nn.Conv2d
    result = conv.from_conv(layer, activation, residual_after_activation)
    if parameters is not None:
        result.weight, result.bias = parameters
    # The layer is the copy's own, so its weight may lie as the kernels read it.
    result.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return result


class FoldError(Exception):
    """Why a batch norm is not folded."""


def fold(conv: torch.nn.Conv2d, norm: Any) -> tuple[torch.nn.Parameter, torch.nn.Parameter]:
    """Weight and bias of a convolution that does what `conv` and then `norm` do.

    Computed in float64, so that there is no rounding but that to the weight's dtype.
    """
    tensors = (conv.weight, conv.bias, norm.running_mean, norm.running_var, norm.weight, norm.bias)
    devices = {tensor.device for tensor in tensors if tensor is not None}
    if torch.device("meta") in devices:
        raise FoldError("its weights are on the device meta: load them first")
    if len(devices) > 1:
        raise FoldError("it is on another device than the convolution")
    with torch.no_grad():
        scale = (norm.running_var.double() + norm.eps).rsqrt()
        if norm.weight is not None:
            scale = scale * norm.weight.double()
        shift = -norm.running_mean.double()
        if conv.bias is not None:
            shift = shift + conv.bias.double()
        shift = shift * scale
        if norm.bias is not None:
            shift = shift + norm.bias.double()
        wide = conv.weight.double() * scale.view(-1, 1, 1, 1)
        weight = wide.to(conv.weight.dtype).contiguous(memory_format=torch.channels_last)
        bias = shift.to(conv.weight.dtype)
        for name, value, before in (("weight", weight, wide), ("bias", bias, shift)):
            if not torch.equal(value.isfinite(), before.isfinite()):
                dtype = str(value.dtype).removeprefix("torch.")
                raise FoldError(f"the folded {name} exceeds the range of {dtype}")
    needs_grad = conv.weight.requires_grad
    return torch.nn.Parameter(weight, needs_grad), torch.nn.Parameter(bias, needs_grad)
