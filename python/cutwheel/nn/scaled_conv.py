"""Convolutions with a quantised weight, whose results may be quantised for the next layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from ..ops._common.activations import check_activation
from ..ops._common.errors import check_tensors, dtype_name
from ..ops.scaled import quantize, scaled_conv2d
from ..ops.scaled._conv import SCALED_CONV_ACTIVATIONS
from ._frozen import keep_dtypes
from .conv import Conv2d, check_conv

LARGEST = {torch.float8_e4m3fn: 448.0, torch.int8: 127.0}
"""the value that the largest magnitude is scaled to"""


class ScaledConv2d(torch.nn.Module):
    """cutwheel.scaled_conv2d of a quantised weight: a convolution in fp8 or int8.

    The weight is quantised once, by from_conv, with a scale for each filter, and is a buffer: it is
    not trained. Inputs of `dtype` are taken as they are, with `input_scale`; others are quantised
    at each call, with a scale of their own. Where there is a `result_scale`, results have `dtype`,
    and the next layer takes them as they are: its `input_scale` is this layer's `result_scale`.
    activation_scales() finds it.

    The state dict has `weight` [Ko, C, R, S] in `dtype`, `weight_scale` [Ko], `input_scale` [1] and
    `bias` [Ko] in float32, and `result_scale` [1] if there is one. half(), bfloat16(), to(dtype)
    and the like change none of them.

    A new layer's weight is 0, its scales are 1: fill them by load_state_dict, or take from_conv.

    Args:
        in_channels, out_channels, kernel_size, stride, padding, dilation: as in torch.nn.Conv2d
        bias: whether there is one
        dtype: float8_e4m3fn or int8
        activation: None, "relu" or "silu"
        quantize_result: whether there is a result_scale
        device: of the buffers

    Raises:
        ValueError: an activation that is not known
        TypeError: another dtype
    """

    weight: Tensor
    weight_scale: Tensor
    input_scale: Tensor
    result_scale: Tensor | None
    bias: Tensor | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: str | int | tuple[int, int] = 0,
        dilation: int | tuple[int, int] = 1,
        bias: bool = True,
        dtype: torch.dtype = torch.float8_e4m3fn,
        *,
        activation: str | None = None,
        quantize_result: bool = False,
        device: torch.device | str | int | None = None,
    ) -> None:
        if dtype not in LARGEST:
            raise TypeError(f"ScaledConv2d: dtype is {dtype}; expected float8_e4m3fn or int8")
        if activation is not None:
            check_activation(activation, SCALED_CONV_ACTIVATIONS, "ScaledConv2d")
        super().__init__()
        self.stride, self.dilation = _pair(stride), _pair(dilation)
        self.padding = padding if isinstance(padding, str) else _pair(padding)
        self.activation = activation
        shape = out_channels, *_pair(kernel_size), in_channels
        filters = torch.zeros(shape, dtype=dtype, device=device)
        self.register_buffer("weight", filters.permute(0, 3, 1, 2))

        def scale(count: int) -> Tensor:
            return torch.ones(count, dtype=torch.float32, device=device)

        self.register_buffer("weight_scale", scale(out_channels))
        self.register_buffer("input_scale", scale(1))
        self.register_buffer("result_scale", scale(1) if quantize_result else None)
        self.register_buffer("bias", torch.zeros_like(scale(out_channels)) if bias else None)

    @classmethod
    def from_conv(
        cls,
        conv: torch.nn.Conv2d,
        activation: str | None = None,
        *,
        dtype: torch.dtype = torch.float8_e4m3fn,
        input_scale: Tensor | None = None,
        result_scale: Tensor | None = None,
    ) -> ScaledConv2d:
        """The layer with the quantised weight of `conv`, and a copy of its bias.

        Args:
            conv: its weight is float16, bfloat16 or float32, on a GPU
            activation: as in the constructor; None: that of a cutwheel.nn.Conv2d
            dtype: float8_e4m3fn or int8
            input_scale: one value, of inputs of `dtype`; None: 1
            result_scale: one value; None: results are not quantised

        Raises:
            TypeError: `conv` is no torch.nn.Conv2d, or of a subclass with a forward of its own; its
                weight has another dtype
            ValueError: `conv` has groups, a padding_mode other than "zeros", hooks, a residual
                behind its activation or an activation that is not known; a weight or bias that is
                computed (a parametrization)
            NotImplementedError: its weight is on the CPU
        """
        check_conv("ScaledConv2d", conv, torch.nn.Conv2d, Conv2d, activation)
        for name, wanted in (("groups", 1), ("padding_mode", "zeros")):
            if getattr(conv, name) != wanted:
                raise ValueError(
                    f"ScaledConv2d: conv has {name}={getattr(conv, name)!r}; expected {wanted!r}: "
                    "quantised convolutions have no other kernels"
                )
        if getattr(conv, "residual_after_activation", False):
            raise ValueError(
                "ScaledConv2d: conv has residual_after_activation=True; expected False: kernels add"
                " a residual before the activation"
            )
        layer = cls(
            *(conv.in_channels, conv.out_channels, conv.kernel_size, conv.stride),  # type: ignore[arg-type]
            *(conv.padding, conv.dilation, False, dtype),  # type: ignore[arg-type]
            activation=activation or getattr(conv, "activation", None),
            device="meta",
        )
        filters = conv.weight.detach().permute(0, 2, 3, 1)
        values, scales = quantize(filters.flatten(1), "rowwise", dtype)
        layer.weight = values.view(filters.shape).permute(0, 3, 1, 2)
        layer.weight_scale = scales.view(-1)
        one = torch.ones(1, dtype=torch.float32, device=filters.device)
        layer.input_scale = one if input_scale is None else _one_value("input_scale", input_scale)
        if result_scale is not None:
            layer.result_scale = _one_value("result_scale", result_scale)
        if conv.bias is not None:
            layer.bias = conv.bias.detach().float().clone()
        return layer.train(conv.training)

    def forward(
        self,
        input: Tensor,
        residual: Tensor | None = None,
        residual_scale: Tensor | None = None,
        input_scale: Tensor | None = None,
    ) -> Tensor:
        """act(conv(input) + bias + residual_scale * residual).

        Args:
            input: [N, C, H, W] or [C, H, W], in the dtype of the weight, or float16, bfloat16 or
                float32
            residual: exactly the shape of the result, in the dtype of the weight; of a layer with a
                result_scale
            residual_scale: one value, float32
            input_scale: of an input in the dtype of the weight, one value, float32; None: the
                layer's

        Returns:
            [N, Ko, P, Q] or [Ko, P, Q]: with a result_scale in the dtype of the weight, divided by
            it; else in the dtype of a float input, or bfloat16

        Raises:
            ValueError, TypeError, RuntimeError, NotImplementedError: as scaled_conv2d and quantize
        """
        check_tensors("ScaledConv2d", {"input": input})
        weight, result_scale = self.weight, self.result_scale
        out_dtype = torch.bfloat16
        if input.dtype != weight.dtype:
            out_dtype = input.dtype
            input, input_scale = _quantized(input, weight.dtype)
        elif input_scale is None:
            input_scale = self.input_scale
        bias = self.bias
        if result_scale is not None:
            out_dtype = weight.dtype
        elif bias is not None:
            bias = bias.to(out_dtype)  # kernels that store 16 bits read a bias of these
        return scaled_conv2d(
            *(input, weight, input_scale, self.weight_scale, bias),
            *(self.stride, self.padding, self.dilation),
            out_dtype=out_dtype,
            activation=self.activation,
            residual=residual,
            scale_residual=residual_scale,
            scale_result=result_scale,
        )

    def extra_repr(self) -> str:
        ko, c, *taps = self.weight.shape
        text = (
            f"{c}, {ko}, kernel_size={tuple(taps)}, stride={self.stride}, padding={self.padding}, "
            f"bias={self.bias is not None}, dtype={dtype_name(self.weight.dtype)}"
        )
        if self.activation is not None:
            text += f", activation={self.activation!r}"
        return text + ", quantize_result=True" * (self.result_scale is not None)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        return super()._apply(keep_dtypes(self, fn), recurse)  # type: ignore[no-untyped-call]


def activation_scales(
    model: torch.nn.Module,
    batches: Iterable[Any],
    layers: Iterable[str],
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> dict[str, Tensor]:
    """Scales with which results of layers are quantised: a calibration after training.

    The model is called with each batch, without gradients, and in the mode that it is in.

    Args:
        model: takes a batch as its only argument
        batches: at least one
        layers: names of modules, as named_modules() has them, whose results are tensors
        dtype: float8_e4m3fn or int8

    Returns:
        for each layer one float32 value, [1]: the largest magnitude in all of its results over that
        of dtype (448 or 127); 1 where all of them were 0

    Raises:
        ValueError: no batches; a layer that the model has not called
        TypeError: another dtype
        AttributeError: a name that is none of the model's
    """
    if dtype not in LARGEST:
        raise TypeError(f"activation_scales: dtype is {dtype}; expected float8_e4m3fn or int8")
    names = list(layers)
    largest: dict[str, Tensor] = {}

    def watch(name: str) -> Callable[..., None]:
        def see(module: torch.nn.Module, arguments: Any, result: Tensor) -> None:
            found = result.detach().abs().amax().float().view(1)
            largest[name] = torch.maximum(largest.get(name, found), found)

        return see

    hooks = [model.get_submodule(name).register_forward_hook(watch(name)) for name in names]
    try:
        with torch.no_grad():
            for batch in batches:
                model(batch)
    finally:
        for hook in hooks:
            hook.remove()
    if missing := [name for name in names if name not in largest]:
        raise ValueError(
            f"activation_scales: nothing has called {', '.join(missing)}; expected batches for "
            "which the model calls each of the layers"
        )
    return {
        name: torch.where(found == 0, 1.0, found / LARGEST[dtype])
        for name, found in largest.items()
    }


def _pair(numbers: int | tuple[int, int]) -> tuple[int, int]:
    return (numbers, numbers) if isinstance(numbers, int) else numbers


def _one_value(name: str, scale: Tensor) -> Tensor:
    if scale.numel() != 1:
        raise ValueError(
            f"ScaledConv2d: {name} has {scale.numel()} elements; expected one: activations have one"
            " scale"
        )
    return scale.detach().float().reshape(1).clone()


def _quantized(images: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """[..., C, H, W] and one scale."""
    pixels = images.movedim(-3, -1)
    values, scale = quantize(pixels.flatten(0, -2), "tensorwise", dtype)
    return values.view(pixels.shape).movedim(-1, -3), scale
