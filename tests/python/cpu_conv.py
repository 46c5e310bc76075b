"""Reference kernels of the convolutions for CPU tensors, by torch's own functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

NAMES = (
    *("conv2d", "conv2d_fused", "conv2d_fused_aux", "conv2d_input_grad", "conv2d_weight_grad"),
    "scaled_conv2d",
    *("conv2d_grouped", "conv2d_grouped_input_grad", "conv2d_grouped_weight_grad"),
    *("conv3d", "conv3d_fused", "conv3d_fused_aux", "conv3d_input_grad", "conv3d_weight_grad"),
    *("conv_transpose2d", "conv_transpose3d"),
)
Tensor = torch.Tensor
Activation = Callable[[Tensor], Tensor]
Ints = Sequence[int]

ACTIVATIONS: dict[str, Activation] = {
    "relu": torch.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda z: F.gelu(z, approximate="tanh"),
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "hardswish": F.hardswish,
    "softplus": F.softplus,
}


def channels_last_strides(size: Ints) -> tuple[int, ...]:
    step, strides = size[1], []
    for extent in reversed(size[2:]):
        strides.insert(0, step)
        step *= extent
    return step, 1, *strides


def as_channels_last(x: Tensor) -> Tensor:
    """In exactly these strides, whatever the sizes; nothing of the caller's memory."""
    return torch.empty_strided(x.shape, channels_last_strides(x.shape), dtype=x.dtype).copy_(x)


def padded(x: Tensor, padding: Ints) -> Tensor:
    both = zip(padding[-2::-2], padding[::-2], strict=True)
    return F.pad(x, [side for pair in both for side in pair])


def split(given: Sequence[Any], *defaults: Any) -> tuple[tuple[Ints, Ints, Ints], tuple[Any, ...]]:
    """Stride, padding and dilation of the eight numbers, and what comes behind them."""
    rest = given[8:]
    return (given[:2], given[2:6], given[6:8]), (*rest, *defaults[len(rest) :])


def split_3d(
    given: Sequence[Any], *defaults: Any
) -> tuple[tuple[Ints, Ints, Ints], tuple[Any, ...]]:
    """The same of twelve numbers."""
    rest = given[12:]
    return (given[:3], given[3:9], given[9:12]), (*rest, *defaults[len(rest) :])


def is_channels_last(x: Tensor) -> bool:
    return x.is_contiguous(memory_format=torch.channels_last)


class ConvOps:
    calls: list[tuple[object, ...]]
    images: list[bool]

    def conv2d(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        *given: Any,
    ) -> Tensor:
        (stride, padding, dilation), (allow_tf32,) = split(given, False)
        self.calls.append(("conv2d", "plain" if bias is None else "bias"))
        self.images.append(is_channels_last(x))
        assert allow_tf32 == (x.dtype == torch.float32)
        z = F.conv2d(padded(x, padding), weight, bias, tuple(stride), 0, tuple(dilation))
        return as_channels_last(z)

    def conv2d_fused(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        residual: Tensor | None,
        *given: Any,
    ) -> Tensor:
        z, epilogue = self._before_epilogue("conv2d_fused", x, weight, bias, residual, given)
        return as_channels_last(_followed(z, epilogue, residual))

    def conv2d_fused_aux(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        residual: Tensor | None,
        *given: Any,
    ) -> tuple[Tensor, Tensor]:
        z, epilogue = self._before_epilogue("conv2d_fused_aux", x, weight, bias, residual, given)
        return _with_argument(z, epilogue, residual)

    def _before_epilogue(
        self,
        name: str,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        residual: Tensor | None,
        given: tuple[Any, ...],
    ) -> tuple[Tensor, str]:
        (stride, padding, dilation), (epilogue, _) = split(given, None, False)
        self.calls.append((name, epilogue))
        self.images += [is_channels_last(x), residual is None or is_channels_last(residual)]
        z = F.conv2d(padded(x, padding), weight, bias, tuple(stride), 0, tuple(dilation))
        return z, epilogue

    def conv2d_input_grad(
        self,
        grad: Tensor,
        weight: Tensor,
        h: int,
        w: int,
        *given: Any,
    ) -> Tensor:
        (stride, padding, dilation), _ = split(given, False)
        self.calls.append(("conv2d_input_grad", "plain"))
        self.images.append(is_channels_last(grad))
        top, bottom, left, right = padding
        x = grad.new_zeros(grad.shape[0], weight.shape[1], h + top + bottom, w + left + right)
        wanted = (True, False, False)
        dx = _backward(grad, x, weight, stride, dilation, wanted)[0]
        return as_channels_last(dx[:, :, top : top + h, left : left + w])

    def conv2d_weight_grad(
        self,
        grad: Tensor,
        x: Tensor,
        r: int,
        s: int,
        *given: Any,
    ) -> Tensor:
        (stride, padding, dilation), _ = split(given, False)
        self.calls.append(("conv2d_weight_grad", "plain"))
        self.images += [is_channels_last(grad), is_channels_last(x)]
        weight = grad.new_zeros(grad.shape[1], x.shape[1], r, s)
        wanted = (False, True, False)
        dw = _backward(grad, padded(x, padding), weight, stride, dilation, wanted)[1]
        return as_channels_last(dw)

    def conv3d(self, x: Tensor, weight: Tensor, bias: Tensor | None, *given: Any) -> Tensor:
        (stride, padding, dilation), _ = split_3d(given, False)
        self.calls.append(("conv3d", "plain" if bias is None else "bias"))
        z = F.conv3d(padded(x, padding), weight, bias, tuple(stride), 0, tuple(dilation))
        return as_channels_last(z)

    def conv3d_fused(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        residual: Tensor | None,
        *given: Any,
    ) -> Tensor:
        (stride, padding, dilation), (epilogue, _) = split_3d(given, None, False)
        self.calls.append(("conv3d_fused", epilogue))
        z = F.conv3d(padded(x, padding), weight, bias, tuple(stride), 0, tuple(dilation))
        return as_channels_last(_followed(z, epilogue, residual))

    def conv3d_fused_aux(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        residual: Tensor | None,
        *given: Any,
    ) -> tuple[Tensor, Tensor]:
        (stride, padding, dilation), (epilogue, _) = split_3d(given, None, False)
        self.calls.append(("conv3d_fused_aux", epilogue))
        z = F.conv3d(padded(x, padding), weight, bias, tuple(stride), 0, tuple(dilation))
        return _with_argument(z, epilogue, residual)

    def conv3d_input_grad(
        self, grad: Tensor, weight: Tensor, d: int, h: int, w: int, *given: Any
    ) -> Tensor:
        where, _ = split_3d(given, False)
        self.calls.append(("conv3d_input_grad", "plain"))
        return as_channels_last(_dgrad(grad, weight, (d, h, w), where))

    def conv3d_weight_grad(
        self, grad: Tensor, x: Tensor, t: int, r: int, s: int, *given: Any
    ) -> Tensor:
        (stride, padding, dilation), _ = split_3d(given, False)
        self.calls.append(("conv3d_weight_grad", "plain"))
        weight = grad.new_zeros(grad.shape[1], x.shape[1], t, r, s)
        wanted = (False, True, False)
        dw = _backward(grad, padded(x, padding), weight, stride, dilation, wanted)[1]
        return as_channels_last(dw)

    def conv_transpose2d(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, h: int, w: int, *given: Any
    ) -> Tensor:
        where, (epilogue, _) = split(given, None, False)
        self.calls.append(("conv_transpose2d", epilogue))
        return self._transposed(x, weight, bias, (h, w), where, epilogue)

    def conv_transpose3d(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, d: int, h: int, w: int, *given: Any
    ) -> Tensor:
        where, (epilogue, _) = split_3d(given, None, False)
        self.calls.append(("conv_transpose3d", epilogue))
        return self._transposed(x, weight, bias, (d, h, w), where, epilogue)

    def _transposed(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        size: Ints,
        where: tuple[Ints, Ints, Ints],
        epilogue: str,
    ) -> Tensor:
        z = _dgrad(x, weight, size, where)
        if bias is not None:
            assert epilogue.startswith("bias")
            z = z + bias.view(-1, *(1,) * len(size))
        return as_channels_last(_followed(z, epilogue, None))

    def scaled_conv2d(
        self,
        x: Tensor,
        weight: Tensor,
        scale_x: Tensor,
        scale_weight: Tensor,
        bias: Tensor | None,
        *given: Any,
    ) -> Tensor:
        (stride, padding, dilation), (out_dtype, residual, *scales, activation) = split(
            given, None, None, None, None, ""
        )
        scale_residual, scale_result = scales
        self.calls.append(("scaled_conv2d", scale_weight.numel()))
        filters = weight.double() * scale_weight.double().view(-1, 1, 1, 1)
        image = padded(x.double() * scale_x.double(), padding)
        added = None if bias is None else bias.double()
        z = F.conv2d(image, filters, added, tuple(stride), 0, tuple(dilation))
        if residual is not None:
            z = z + residual.double() * scale_residual.double()
        y = ACTIVATIONS[activation](z) if activation else z
        d = torch.bfloat16 if out_dtype is None else out_dtype
        if d.itemsize == 1:
            y = y / scale_result.double()
            y = y.round().clamp(-128, 127) if d == torch.int8 else y.clamp(-448, 448)
        return as_channels_last(y.to(d))

    def conv2d_grouped(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        residual: Tensor | None,
        *given: Any,
    ) -> Tensor:
        (stride, padding, dilation), (epilogue,) = split(given)
        self.calls.append(("conv2d_grouped", epilogue))
        image = padded(x, padding)
        groups = x.shape[1] // weight.shape[1]
        z = F.conv2d(image, weight, bias, tuple(stride), 0, tuple(dilation), groups)
        return as_channels_last(_followed(z, epilogue, residual))

    def conv2d_grouped_input_grad(
        self, grad: Tensor, weight: Tensor, h: int, w: int, *given: Any
    ) -> Tensor:
        (stride, padding, dilation), (groups,) = split(given)
        self.calls.append(("conv2d_grouped_input_grad", "plain"))
        top, bottom, left, right = padding
        channels = weight.shape[1] * groups
        x = grad.new_zeros(grad.shape[0], channels, h + top + bottom, w + left + right)
        wanted = (True, False, False)
        dx = _backward(grad, x, weight, stride, dilation, wanted, groups)[0]
        return as_channels_last(dx[:, :, top : top + h, left : left + w])

    def conv2d_grouped_weight_grad(
        self, grad: Tensor, x: Tensor, r: int, s: int, *given: Any
    ) -> Tensor:
        (stride, padding, dilation), (groups,) = split(given)
        self.calls.append(("conv2d_grouped_weight_grad", "plain"))
        weight = grad.new_zeros(grad.shape[1], x.shape[1] // groups, r, s)
        wanted = (False, True, False)
        image = padded(x, padding)
        dw = _backward(grad, image, weight, stride, dilation, wanted, groups)[1]
        return as_channels_last(dw)


def _followed(z: Tensor, epilogue: str, residual: Tensor | None) -> Tensor:
    """What a named epilogue makes of a convolution with its bias."""
    assert ("residual" in epilogue) == (residual is not None)
    assert residual is None or residual.shape == z.shape
    parts = epilogue.replace("gelu_tanh", "gelu-tanh").split("_")
    for part in parts:
        if part == "residual":
            assert residual is not None
            z = z + residual
        elif part not in ("plain", "bias"):
            z = ACTIVATIONS[part.replace("-", "_")](z)
    return z


def _with_argument(z: Tensor, epilogue: str, residual: Tensor | None) -> tuple[Tensor, Tensor]:
    """The same of an epilogue that ends in its activation, and what that is applied to."""
    before, _, stored = epilogue.replace("gelu_tanh", "gelu-tanh").rpartition("_")
    before, _, activation = before.rpartition("_")
    assert stored == "aux"
    argument = _followed(z, before, residual)
    result = ACTIVATIONS[activation.replace("-", "_")](argument)
    return as_channels_last(result), as_channels_last(argument)


def _dgrad(grad: Tensor, weight: Tensor, size: Ints, where: tuple[Ints, Ints, Ints]) -> Tensor:
    stride, padding, dilation = where
    before = padding[::2]
    extents = [sum(x) for x in zip(size, before, padding[1::2], strict=True)]
    x = grad.new_zeros(grad.shape[0], weight.shape[1], *extents)
    dx = _backward(grad, x, weight, stride, dilation, (True, False, False))[0]
    for dim, (first, length) in enumerate(zip(before, size, strict=True), 2):
        dx = dx.narrow(dim, first, length)
    return dx


def _backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: Ints,
    dilation: Ints,
    wanted: tuple[bool, bool, bool],
    groups: int = 1,
) -> tuple[Tensor, Tensor, Tensor]:
    none = [0] * len(stride)
    rest = (list(stride), none, list(dilation), False, none, groups, wanted)
    return torch.ops.aten.convolution_backward.default(grad, x, weight, None, *rest)
