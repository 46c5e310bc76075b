"""torch.nn.Conv2d with activation and residual in the same kernel."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..ops._common.activations import check_activation
from ..ops.conv import conv2d
from ..ops.conv._convolve import CONV_ACTIVATIONS
from ._source import check_source, fused_options


class Conv2d(torch.nn.Conv2d):
    """torch.nn.Conv2d with the activation, and the residual, that follow it, in one kernel.

    Parameters, their initialisation and the state dict are those of torch.nn.Conv2d. As with that,
    the weight is contiguous until `to(memory_format=torch.channels_last)` of the layer, or of the
    model, makes it channels last. The kernels read that as it lies, and a copy otherwise, which
    each call makes.

    Args:
        in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, device,
            dtype: as in torch.nn.Conv2d
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
        check_source(
            *("Conv2d", "conv", conv, torch.nn.Conv2d),
            (torch.nn.Conv2d.forward, Conv2d.forward),
        )
        if type(conv)._conv_forward is not torch.nn.Conv2d._conv_forward:
            raise TypeError(
                f"Conv2d: conv is a {type(conv).__name__}, whose _conv_forward is not that of "
                "torch.nn.Conv2d and would be lost; expected a torch.nn.Conv2d"
            )
        for name in ("weight", "bias"):
            if name not in conv._parameters:
                raise ValueError(
                    f"Conv2d: conv.{name} is no parameter, but computed from others, and could not "
                    "be shared; expected a parameter: remove the parametrization, as with "
                    f'torch.nn.utils.parametrize.remove_parametrizations(conv, "{name}")'
                )
        if activation is not None and getattr(conv, "activation", None) is not None:
            raise ValueError(
                f"Conv2d: conv has the activation {conv.activation!r}; expected one without, as "
                f"activation is {activation!r}"
            )
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
