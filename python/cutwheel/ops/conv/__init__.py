"""Convolutions with the bias, activation and residual that follow them: conv1d, conv2d, conv3d,
and conv_transpose1d, conv_transpose2d, conv_transpose3d.

Kernels work on channels-last images (NHWC) and filters. Tensors have torch's shapes and any strides
and memory format; what does not lie channels last is copied first. A result is channels last.

The kernels take float16, bfloat16, and float32 where torch allows TF32 for convolutions. Other
calls (another dtype, float32 in full precision, torch.func's transforms) are computed by
torch.nn.functional.conv2d, on any device, and explain says so; for float32 a message, too. Where
there are groups, other kernels take float16 and bfloat16 (_grouped), of most widths of groups.

Autocast, torch.compile and errors are those of cutwheel.ops.gemm.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from .._common.activations import check_activation
from .._common.errors import RAISED, reraise
from ._convolve import CONV_ACTIVATIONS, convolve
from ._nd import convolve_folded, fold_signal, fold_volume
from ._transposed import convolve_transposed
from ._volume import convolve_volume

__all__ = [
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
]


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int | Sequence[int]] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    *,
    activation: str | None = None,
    residual: Tensor | None = None,
    residual_after_activation: bool = False,
) -> Tensor:
    """Convolution, as torch.nn.functional.conv2d, then an activation and a residual.

    Args:
        input: [N, C, H, W] or [C, H, W], any strides; channels last is read without a copy
        weight: [Ko, C / groups, R, S], dtype of input
        bias: [Ko], dtype of input
        stride, dilation: a number, or two
        padding: a number, two, "valid" (none) or "same" (the result has the input's size; stride
            1). In place of each of two numbers there may be two: in front and behind
        groups: kernels have 1, as many as channels and filters, and groups of 4 or of multiples of
            8 channels and filters, up to 128; torch computes others
        activation: None, "relu", "gelu" (of erf), "gelu_tanh" or "silu"; or "sigmoid", "tanh",
            "hardswish" or "softplus", which take a second kernel where a gradient or a residual in
            front of them is asked for; or "leaky_relu" (slope 0.01), which always does. With
            groups, all but "relu" do where a gradient is needed
        residual: [N, Ko, P, Q], exactly the shape of the result, dtype of input, any strides. Under
            autocast of any dtype: one that is not autocast's is not cast, and added by torch
        residual_after_activation: where the residual is added; means nothing without both

    Returns:
        act(conv + bias + residual), or act(conv + bias) + residual if residual_after_activation,
        [N, Ko, P, Q] in channels-last strides, or [Ko, P, Q]; what is computed in one kernel is
        rounded once. With a float32 residual under autocast it is float32

    Raises:
        ValueError: an activation that is not known, or shapes that do not fit
        TypeError: a weight, bias or residual of another dtype than input; an input of bool or fp8,
            and of integers on a GPU, which torch does not convolve either
        RuntimeError, NotImplementedError: as mm; as torch's conv2d where that serves the call
    """
    op = "conv2d"
    try:
        last = residual_after_activation
        return convolve(
            op, input, weight, bias, stride, padding, dilation, groups, activation, residual, last
        )
    except RAISED as error:
        tensors = {"input": input, "weight": weight, "bias": bias, "residual": residual}
        reraise(op, error, ("bias", "residual"), **tensors)


def conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int | Sequence[int]] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    *,
    activation: str | None = None,
    residual: Tensor | None = None,
    residual_after_activation: bool = False,
) -> Tensor:
    """Convolution of signals, as torch.nn.functional.conv1d: conv2d of images of height 1.

    Args:
        input: [N, C, L] or [C, L], any strides; one whose channels are contiguous is not copied
        weight: [Ko, C / groups, S], dtype of input
        residual: [N, Ko, Q], exactly the shape of the result
        others: as in conv2d

    Returns:
        [N, Ko, Q], of which the channels are contiguous, or [Ko, Q]

    Errors are those of conv2d.
    """
    op = "conv1d"
    try:
        is_batch = input.dim() != 2
        if not is_batch:
            input = input.unsqueeze(0)
            residual = residual if residual is None else residual.unsqueeze(0)
        folded = fold_signal(op, input, weight, stride, padding, dilation, residual)
        last = residual_after_activation
        result = convolve_folded(op, folded, bias, groups, activation, last)
        return result if is_batch else result.squeeze(0)
    except RAISED as error:
        tensors = {"input": input, "weight": weight, "bias": bias, "residual": residual}
        reraise(op, error, ("bias", "residual"), **tensors)


def conv3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int | Sequence[int]] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    *,
    activation: str | None = None,
    residual: Tensor | None = None,
    residual_after_activation: bool = False,
) -> Tensor:
    """Convolution of volumes, as torch.nn.functional.conv3d.

    Kernels for taps along the depth take float16 and bfloat16 on compute capability 9.0. Where the
    filter has one tap along the depth, or taps along the depth alone, it is a conv2d, of all slices
    or of rows that are slices. Other calls are computed by torch.

    Args:
        input: [N, C, D, H, W] or [C, D, H, W], any strides; channels last is read without a copy
        weight: [Ko, C / groups, T, R, S], dtype of input
        residual: [N, Ko, D', P, Q], exactly the shape of the result
        others: as in conv2d, with three numbers for stride, padding and dilation. Causal along the
            depth is padding=((2, 0), 1, 1), for three taps

    Returns:
        [N, Ko, D', P, Q] in channels-last strides, or [Ko, D', P, Q]

    Errors are those of conv2d, or of torch.nn.functional.conv3d where that serves the call.
    """
    op = "conv3d"
    try:
        last, is_batch = residual_after_activation, input.dim() != 4
        if not is_batch:
            input = input.unsqueeze(0)
            residual = residual if residual is None else residual.unsqueeze(0)
        if activation is not None:
            check_activation(activation, CONV_ACTIVATIONS, op)
        folded = fold_volume(op, input, weight, stride, padding, dilation, residual)
        if folded is not None:
            result = convolve_folded(op, folded, bias, groups, activation, last)
        else:
            where = (stride, padding, dilation, groups)
            result = convolve_volume(op, input, weight, bias, *where, activation, residual, last)
        return result if is_batch else result.squeeze(0)
    except RAISED as error:
        tensors = {"input": input, "weight": weight, "bias": bias, "residual": residual}
        reraise(op, error, ("bias", "residual"), **tensors)


def conv_transpose1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
    *,
    activation: str | None = None,
    residual: Tensor | None = None,
    residual_after_activation: bool = False,
) -> Tensor:
    """Transposed convolution, as torch.nn.functional.conv_transpose1d, then an activation and a
    residual.

    As conv_transpose2d, of images of height 1.

    Args:
        input: [N, C, L] or [C, L], any strides; channels last is read without a copy
        weight: [C, Ko / groups, S], dtype of input
        bias: [Ko], dtype of input
        stride, padding, output_padding, dilation: a number, with torch's meaning
        groups: other than 1 torch computes the convolution
        activation, residual_after_activation: as in conv2d
        residual: [N, Ko, Q], exactly the shape of the result

    Returns:
        [N, Ko, Q] in channels-last strides, or [Ko, Q]

    Errors are those of conv2d, or of torch.nn.functional.conv_transpose1d where that serves the
    call.
    """
    op = "conv_transpose1d"
    try:
        where = (stride, padding, output_padding, groups, dilation)
        rest = (activation, residual, residual_after_activation)
        return convolve_transposed(op, input, weight, bias, *where, *rest)
    except RAISED as error:
        tensors = {"input": input, "weight": weight, "bias": bias, "residual": residual}
        reraise(op, error, ("bias", "residual"), **tensors)


def conv_transpose2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
    *,
    activation: str | None = None,
    residual: Tensor | None = None,
    residual_after_activation: bool = False,
) -> Tensor:
    """Transposed convolution, as torch.nn.functional.conv_transpose2d, then an activation and a
    residual.

    Computed by the kernels of dgrad, which is what it is. On compute capability 9.0 they add the
    bias and apply "relu"; other activations, and residuals, are torch's.

    Args:
        input: [N, C, H, W] or [C, H, W], any strides; channels last is read without a copy
        weight: [C, Ko / groups, R, S], dtype of input
        bias: [Ko], dtype of input
        stride, padding, output_padding, dilation: a number, or two, with torch's meaning
        groups: other than 1 torch computes the convolution
        activation, residual_after_activation: as in conv2d
        residual: [N, Ko, P, Q], exactly the shape of the result

    Returns:
        [N, Ko, P, Q] in channels-last strides, or [Ko, P, Q]

    Errors are those of conv2d, or of torch.nn.functional.conv_transpose2d where that serves the
    call.
    """
    op = "conv_transpose2d"
    try:
        where = (stride, padding, output_padding, groups, dilation)
        rest = (activation, residual, residual_after_activation)
        return convolve_transposed(op, input, weight, bias, *where, *rest)
    except RAISED as error:
        tensors = {"input": input, "weight": weight, "bias": bias, "residual": residual}
        reraise(op, error, ("bias", "residual"), **tensors)


def conv_transpose3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
    *,
    activation: str | None = None,
    residual: Tensor | None = None,
    residual_after_activation: bool = False,
) -> Tensor:
    """Transposed convolution, as torch.nn.functional.conv_transpose3d, then an activation and a
    residual.

    As conv_transpose2d; for volumes there are kernels as for conv3d.

    Args:
        input: [N, C, D, H, W] or [C, D, H, W], any strides; channels last is read without a copy
        weight: [C, Ko / groups, T, R, S], dtype of input
        bias: [Ko], dtype of input
        stride, padding, output_padding, dilation: a number, or three, with torch's meaning
        groups: other than 1 torch computes the convolution
        activation, residual_after_activation: as in conv2d
        residual: [N, Ko, D', P, Q], exactly the shape of the result

    Returns:
        [N, Ko, D', P, Q] in channels-last strides, or [Ko, D', P, Q]

    Errors are those of conv2d, or of torch.nn.functional.conv_transpose3d where that serves the
    call.
    """
    op = "conv_transpose3d"
    try:
        where = (stride, padding, output_padding, groups, dilation)
        rest = (activation, residual, residual_after_activation)
        return convolve_transposed(op, input, weight, bias, *where, *rest)
    except RAISED as error:
        tensors = {"input": input, "weight": weight, "bias": bias, "residual": residual}
        reraise(op, error, ("bias", "residual"), **tensors)
