"""torch.nn.Conv2d with what follows it in the same kernel."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ..ops.conv import CONV_ACTIVATIONS, conv2d
from ..ops.linear import check_activation


class Conv2d(torch.nn.Conv2d):
    """torch.nn.Conv2d with the activation, and the residual, that follow it, in one kernel.

    Parameters, their initialisation and the state dict are those of torch.nn.Conv2d. The weight is
    kept channels last, as the kernels read it; a state dict in any memory format can be loaded.

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
        _keep_channels_last(self)
        self.activation = activation
        self.residual_after_activation = residual_after_activation

    @classmethod
    def from_conv(
        cls,
        conv: torch.nn.Conv2d,
        activation: str | None = None,
        residual_after_activation: bool = False,
    ) -> Conv2d:
        """The layer with the parameters of `conv`, which are shared; its weight becomes channels
        last.

        Raises:
            TypeError: `conv` is no torch.nn.Conv2d
            ValueError: an activation that is not known, or `conv` has one itself
        """
        if not isinstance(conv, torch.nn.Conv2d):
            raise TypeError(
                f"Conv2d: conv is of type {type(conv).__name__}; expected a torch.nn.Conv2d"
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
        made.train(conv.training)
        _keep_channels_last(made)
        return made

    def forward(self, input: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
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
        if self.activation is not None:
            text += f", activation={self.activation!r}"
        if self.residual_after_activation:
            text += ", residual_after_activation=True"
        return text


def _keep_channels_last(conv: torch.nn.Conv2d) -> None:
    weight = conv.weight
    weight.data = weight.data.contiguous(memory_format=torch.channels_last)
