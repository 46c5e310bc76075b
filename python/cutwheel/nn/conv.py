"""Convolutions of torch.nn with activation and residual in the same kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ..ops._common.activations import check_activation
from ..ops.conv import (
    conv2d,
    conv3d,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
)
from ..ops.conv._convolve import CONV_ACTIVATIONS
from ._source import check_source, fused_options

if TYPE_CHECKING:
    from typing_extensions import Self


def check_conv(
    name: str, conv: Any, torchs: type[Any], ours: type[Any], activation: str | None
) -> None:
    """Checks that nothing of a layer is lost that one of the class `name` is made of."""
    check_source(name, "conv", conv, torchs, (torchs.forward, ours.forward))
    forward = getattr(torchs, "_conv_forward", None)
    if forward is not None and type(conv)._conv_forward is not forward:
        raise TypeError(
            f"{name}: conv is a {type(conv).__name__}, whose _conv_forward is not that of "
            f"torch.nn.{torchs.__name__} and would be lost; expected a torch.nn.{torchs.__name__}"
        )
    for parameter in ("weight", "bias"):
        if parameter not in conv._parameters:
            raise ValueError(
                f"{name}: conv.{parameter} is no parameter, but computed from others, and could "
                "not be shared; expected a parameter: remove the parametrization, as with "
                "torch.nn.utils.parametrize.remove_parametrizations(conv, "
                f'"{parameter}")'
            )
    if activation is not None and getattr(conv, "activation", None) is not None:
        raise ValueError(
            f"{name}: conv has the activation {conv.activation!r}; expected one without, as "
            f"activation is {activation!r}"
        )


class Conv2d(torch.nn.Conv2d):
    """torch.nn.Conv2d with the activation, and the residual, that follow it, in one kernel.

    Parameters, their initialisation and the state dict are those of torch.nn.Conv2d. As with that,
    the weight is contiguous until `to(memory_format=torch.channels_last)` of the layer, or of the
    model, makes it channels last. The kernels read that as it lies, and a copy otherwise, which
    each call makes.

    Args:
        in_channels, out_channels, kernel_size, stride, padding: as in torch.nn.Conv2d
        dilation, groups, bias, device, dtype: as in torch.nn.Conv2d
        padding_mode: as in torch.nn.Conv2d; of another one than "zeros", torch pads the input first
        activation: as in cutwheel.conv2d
        residual_after_activation: as in cutwheel.conv2d

    Raises:
        ValueError: an activation that is not known; as torch.nn.Conv2d
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: str | int | tuple[int, int] = 0,
        dilation: int | tuple[int, int] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        activation: str | None = None,
        residual_after_activation: bool = False,
    ) -> None:
        if activation is not None:
            check_activation(activation, CONV_ACTIVATIONS, "Conv2d")
        super().__init__(
            *(in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias),
            padding_mode=padding_mode,  # type: ignore[arg-type]
            device=device,
            dtype=dtype,
        )
        self.activation = activation
        self.residual_after_activation = residual_after_activation

    @classmethod
    def from_conv(
        cls,
        conv: torch.nn.Conv2d,
        activation: str | None = None,
        residual_after_activation: bool = False,
    ) -> Conv2d:
        """The layer with the parameters of `conv`, which are shared, and left as they lie.

        Raises:
            TypeError: `conv` is no torch.nn.Conv2d, or of a subclass with a forward of its own
            ValueError: an activation that is not known, or `conv` has one itself; it has hooks, a
                forward set on the object, or a weight or bias that is computed (a parametrization)
        """
        check_conv("Conv2d", conv, torch.nn.Conv2d, Conv2d, activation)
        made = cls(
            *(conv.in_channels, conv.out_channels, conv.kernel_size, conv.stride),  # type: ignore[arg-type]
            conv.padding,  # type: ignore[arg-type]
            conv.dilation,  # type: ignore[arg-type]
            conv.groups,
            conv.bias is not None,
            conv.padding_mode,
            "meta",
            activation=activation or getattr(conv, "activation", None),
            residual_after_activation=residual_after_activation
            or getattr(conv, "residual_after_activation", False),
        )
        made.weight, made.bias = conv.weight, conv.bias
        return made.train(conv.training)

    def forward(self, input: Tensor, residual: Tensor | None = None) -> Tensor:
        """cutwheel.conv2d of this module's weight and bias.

        Args:
            input: [N, C, H, W] or [C, H, W]
            residual: exactly the shape of the result, dtype of input

        Returns:
            [N, Ko, P, Q] or [Ko, P, Q]
        """
        padding: str | tuple[int, ...] = self.padding
        if self.padding_mode != "zeros":
            input = F.pad(input, self._reversed_padding_repeated_twice, mode=self.padding_mode)
            padding = (0, 0)
        return conv2d(
            *(input, self.weight, self.bias, self.stride, padding, self.dilation, self.groups),
            activation=self.activation,
            residual=residual,
            residual_after_activation=self.residual_after_activation,
        )

    def extra_repr(self) -> str:
        text: str = super().extra_repr()  # type: ignore[no-untyped-call]
        return text + fused_options(self)


class _Fused:
    """What follows the convolution of a class of torch.nn, in front of which this one stands."""

    activation: str | None
    residual_after_activation: bool
    _torchs: ClassVar[type[Any]]

    def __init__(
        self,
        *args: Any,
        activation: str | None = None,
        residual_after_activation: bool = False,
        **kwargs: Any,
    ) -> None:
        if activation is not None:
            check_activation(activation, CONV_ACTIVATIONS, type(self).__name__)
        super().__init__(*args, **kwargs)
        self.activation = activation
        self.residual_after_activation = residual_after_activation

    @classmethod
    def from_conv(
        cls, conv: Any, activation: str | None = None, residual_after_activation: bool = False
    ) -> Self:
        """The layer with the parameters of `conv`, which are shared, and left as they lie.

        Raises:
            TypeError, ValueError: as Conv2d.from_conv
        """
        check_conv(cls.__name__, conv, cls._torchs, cls, activation)
        of_torch = ("stride", "padding", "dilation", "groups", "padding_mode")
        given = {name: getattr(conv, name) for name in of_torch}
        if conv.transposed:
            given["output_padding"] = conv.output_padding
        made: Any = cls(
            *(conv.in_channels, conv.out_channels, conv.kernel_size),
            bias=conv.bias is not None,
            device="meta",
            activation=activation or getattr(conv, "activation", None),
            residual_after_activation=residual_after_activation
            or getattr(conv, "residual_after_activation", False),
            **given,
        )
        made.weight, made.bias = conv.weight, conv.bias
        found: Self = made.train(conv.training)
        return found

    def extra_repr(self) -> str:
        text: str = super().extra_repr()  # type: ignore[misc]
        return text + fused_options(self)


class Conv3d(_Fused, torch.nn.Conv3d):
    """torch.nn.Conv3d with activation and residual, as Conv2d.

    Args:
        padding: as in torch.nn.Conv3d; of each dimension also two numbers, in front and behind:
            ((2, 0), 1, 1) is causal along the depth
        activation, residual_after_activation: as in cutwheel.conv3d
        others: as in torch.nn.Conv3d

    Raises:
        ValueError: an activation that is not known; as torch.nn.Conv3d
    """

    _torchs = torch.nn.Conv3d

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int, int],
        stride: int | tuple[int, int, int] = 1,
        padding: str | int | tuple[int | tuple[int, int], ...] = 0,
        dilation: int | tuple[int, int, int] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        activation: str | None = None,
        residual_after_activation: bool = False,
    ) -> None:
        super().__init__(
            *(in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias),
            *(padding_mode, device, dtype),
            activation=activation,
            residual_after_activation=residual_after_activation,
        )

    def forward(self, input: Tensor, residual: Tensor | None = None) -> Tensor:
        """cutwheel.conv3d of this module's weight and bias.

        Args:
            input: [N, C, D, H, W] or [C, D, H, W]
            residual: exactly the shape of the result, dtype of input

        Returns:
            [N, Ko, D', P, Q] or [Ko, D', P, Q]
        """
        padding: Any = self.padding
        if self.padding_mode != "zeros":
            input = F.pad(input, self._reversed_padding_repeated_twice, mode=self.padding_mode)
            padding = 0
        return conv3d(
            *(input, self.weight, self.bias, self.stride, padding, self.dilation, self.groups),
            activation=self.activation,
            residual=residual,
            residual_after_activation=self.residual_after_activation,
        )


class _Transposed(_Fused):
    _function: ClassVar[Callable[..., Tensor]]

    def forward(
        self,
        input: Tensor,
        output_size: list[int] | None = None,
        residual: Tensor | None = None,
    ) -> Tensor:
        """cutwheel's function of this module's weight and bias.

        Args:
            input: with a batch or without one
            output_size: of the result, as in torch's module: in place of output_padding
            residual: exactly the shape of the result, dtype of input
        """
        layer: Any = self
        more = layer.output_padding
        if output_size is not None:
            dims = len(layer.kernel_size)
            sizes = (layer.stride, layer.padding, layer.kernel_size, dims, layer.dilation)
            more = layer._output_padding(input, output_size, *sizes)
        where = (layer.stride, layer.padding, more, layer.groups, layer.dilation)
        return type(self)._function(
            *(input, layer.weight, layer.bias, *where),
            activation=self.activation,
            residual=residual,
            residual_after_activation=self.residual_after_activation,
        )


class ConvTranspose1d(_Transposed, torch.nn.ConvTranspose1d):
    """torch.nn.ConvTranspose1d with activation and residual, as ConvTranspose2d."""

    _torchs = torch.nn.ConvTranspose1d
    _function = staticmethod(conv_transpose1d)

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int],
        stride: int | tuple[int] = 1,
        padding: int | tuple[int] = 0,
        output_padding: int | tuple[int] = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: int | tuple[int] = 1,
        padding_mode: str = "zeros",
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        activation: str | None = None,
        residual_after_activation: bool = False,
    ) -> None:
        super().__init__(
            *(in_channels, out_channels, kernel_size, stride, padding, output_padding, groups),
            *(bias, dilation, padding_mode, device, dtype),
            activation=activation,
            residual_after_activation=residual_after_activation,
        )


class ConvTranspose2d(_Transposed, torch.nn.ConvTranspose2d):
    """torch.nn.ConvTranspose2d with the activation, and the residual, that follow it.

    Args:
        activation, residual_after_activation: as in cutwheel.conv_transpose2d
        others: as in torch.nn.ConvTranspose2d

    Raises:
        ValueError: an activation that is not known; as torch.nn.ConvTranspose2d
    """

    _torchs = torch.nn.ConvTranspose2d
    _function = staticmethod(conv_transpose2d)

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] = 0,
        output_padding: int | tuple[int, int] = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: int | tuple[int, int] = 1,
        padding_mode: str = "zeros",
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        activation: str | None = None,
        residual_after_activation: bool = False,
    ) -> None:
        super().__init__(
            *(in_channels, out_channels, kernel_size, stride, padding, output_padding, groups),
            *(bias, dilation, padding_mode, device, dtype),
            activation=activation,
            residual_after_activation=residual_after_activation,
        )


class ConvTranspose3d(_Transposed, torch.nn.ConvTranspose3d):
    """torch.nn.ConvTranspose3d with activation and residual, as ConvTranspose2d."""

    _torchs = torch.nn.ConvTranspose3d
    _function = staticmethod(conv_transpose3d)

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int, int],
        stride: int | tuple[int, int, int] = 1,
        padding: int | tuple[int, int, int] = 0,
        output_padding: int | tuple[int, int, int] = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: int | tuple[int, int, int] = 1,
        padding_mode: str = "zeros",
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        activation: str | None = None,
        residual_after_activation: bool = False,
    ) -> None:
        super().__init__(
            *(in_channels, out_channels, kernel_size, stride, padding, output_padding, groups),
            *(bias, dilation, padding_mode, device, dtype),
            activation=activation,
            residual_after_activation=residual_after_activation,
        )
