"""Which layers fuse takes, and why not others."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ..ops._common.errors import dtype_name
from ..ops._common.precision import conv_tf32_allowed, tf32_allowed
from ..ops.conv import _grouped as grouped
from ..ops.conv._geometry import geometry_of
from ..ops.conv._volume import why_not_encodable
from .opaque import why_opaque

CONVS = (
    *(torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d),
    *(torch.nn.ConvTranspose1d, torch.nn.ConvTranspose2d, torch.nn.ConvTranspose3d),
)
LAYERS = (*CONVS, torch.nn.Linear)
NORMS = (
    *(torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d),
    torch.nn.SyncBatchNorm,
)
FUNCTIONS = (
    *(torch.nn.functional.conv2d, torch.nn.functional.conv3d, torch.nn.functional.linear),
    *(torch.nn.functional.conv_transpose1d, torch.nn.functional.conv_transpose2d),
    torch.nn.functional.conv_transpose3d,
)


def is_layer(module: torch.nn.Module) -> bool:
    """Whether the report says what has become of it: those of cutwheel are what they should be."""
    is_ours = type(module).__module__.startswith("cutwheel.")
    return isinstance(module, LAYERS) and not is_ours


def dims_of(conv: Any) -> int:
    """Of the images, volumes or signals that it convolves."""
    return len(conv.kernel_size)


def why_not(layer: Any) -> str | None:
    """Why no module of cutwheel stands for this one; None: one does."""
    if why_opaque(layer):
        return why_opaque(layer)
    if isinstance(layer, torch.nn.Conv1d):
        return "fuse takes no convolutions of signals; call cutwheel.conv1d in its place"
    if type(layer) not in LAYERS:
        return f"it is a {type(layer).__name__}, whose class may do other things than torch's"
    dtype, is_conv = layer.weight.dtype, not isinstance(layer, torch.nn.Linear)
    is_autocast = torch.is_autocast_enabled()
    if is_conv:
        because = _why_not_convolved(layer, dtype, is_autocast)
        if because is not None:
            return because
    if dtype == torch.float32:
        if is_autocast or (conv_tf32_allowed() if is_conv else tf32_allowed()):
            return None
        setting = "cudnn.conv" if is_conv else "cuda.matmul"
        return (
            "weight has dtype float32, and torch's setting forbids TF32: convert the model to "
            f'bfloat16 or float16, or set torch.backends.{setting}.fp32_precision = "tf32"'
        )
    if dtype not in (torch.float16, torch.bfloat16):
        return f"weight has dtype {dtype_name(dtype)}; expected float16, bfloat16 or float32"
    return None


class _Image(NamedTuple):
    """A convolution as one of images: taps, stride and dilation along H and W."""

    taps: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]


def _as_image(conv: Any) -> _Image | None:
    """As cutwheel's functions see it; None: it needs kernels for volumes."""
    taps, stride, dilation = conv.kernel_size, conv.stride, conv.dilation
    if len(taps) == 1:
        return _Image((1, *taps), (1, *stride), (1, *dilation))
    if len(taps) == 2:
        return _Image(taps, stride, dilation)
    sides = _geometry(conv)[3:9]
    is_even = not conv.transposed or conv.output_padding[0] == 0
    if (taps[0], stride[0], *sides[:2]) == (1, 1, 0, 0) and is_even:
        return _Image(taps[1:], stride[1:], dilation[1:])
    if (*taps[1:], *stride[1:], *sides[2:]) == (1, 1, 1, 1, 0, 0, 0, 0) and not conv.transposed:
        return _Image((taps[0], 1), (stride[0], 1), (dilation[0], 1))
    return None


def _geometry(conv: Any) -> tuple[int, ...]:
    """Of one with zeros around its input; otherwise torch pads first."""
    padding = conv.padding if conv.padding_mode == "zeros" else 0
    dims = dims_of(conv)
    return geometry_of("fuse", conv.weight, conv.stride, padding, conv.dilation, dims)


def _why_not_convolved(conv: Any, dtype: torch.dtype, is_autocast: bool) -> str | None:
    """Why cutwheel has no kernels for a convolution, where that does not depend on its input."""
    image = _as_image(conv)
    is_single = dtype == torch.float32 and not is_autocast
    if conv.groups != 1:
        if conv.transposed or image is None:
            kind = "transposed convolutions" if conv.transposed else "convolutions of volumes"
            return f"groups is {conv.groups}; cutwheel's {kind} have one group"
        channels, filters = conv.in_channels // conv.groups, conv.out_channels // conv.groups
        where = (*image.stride, 0, 0, 0, 0, *image.dilation)
        because = grouped.why_not(channels, filters, conv.groups, image.taps, where)
        if because is None and is_single:
            because = (
                f"groups is {conv.groups} and weight has dtype float32; cutwheel's grouped "
                "convolutions take float16 and bfloat16"
            )
        return because
    if image is not None:
        return None
    if is_single:
        return (
            "weight has dtype float32; cutwheel's convolutions of volumes take float16 and bfloat16"
        )
    return why_not_encodable(conv.weight, _geometry(conv))
