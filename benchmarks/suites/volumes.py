"""Convolutions of volumes and transposed convolutions against cuDNN's, channels last in bfloat16.

Forward, torch gets the volumes of a causal layer with zeros in front that were put there before
the clock ran; ours reads what lies outside as zeros. Gradients are those of the same layer with as
much padding at both ends, which both sides take as an argument. torch's `backends.cudnn.benchmark`
is on. Nothing writes with ``out=``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

import cutwheel
from cutwheel.tuning.case import Case, Provider, Reference, Setting, explained, first_kernel
from cutwheel.tuning.cases.conv import ALLOWED
from cutwheel.tuning.measure import exactly

from ..compare import Limits
from ..problems import Transposed, Volume
from . import Suite
from .conv import tuned_cudnn

Tensor = torch.Tensor
Operands = tuple[Tensor, ...]

ONES = (1, 1, 1)


# ---- both providers
def torch_fprop(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    """x: with zeros in front and behind"""
    return functional.conv3d(x, w, b, 1, (0, 1, 1))


def our_fprop(x: Tensor, w: Tensor, *b_and_shape: Any) -> Tensor:
    *b, shape = b_and_shape
    result: Tensor = cutwheel.conv3d(x, w, *(b or [None]), 1, (shape.ends, 1, 1))
    return result


def torch_gradient(dy: Tensor, x: Tensor, w: Tensor, which: int) -> Tensor:
    """Of the input (0) or the filter (1), from the function that autograd calls."""
    mask = [which == 0, which == 1, False]
    found: Operands = torch.ops.aten.convolution_backward(
        dy, x, w, None, ONES, ONES, ONES, False, (0, 0, 0), 1, mask
    )
    return found[which]


def in_float32(function: Callable[..., Tensor], *operands: Any) -> Tensor:
    """The reference: float64, without cuDNN, would take 27 times the volume in eight bytes each."""
    with torch.backends.cudnn.flags(
        enabled=torch.backends.cudnn.enabled, benchmark=False, allow_tf32=False
    ):
        return exactly(function, *operands, dtype=torch.float32)


def our_dgrad(dy: Tensor, w: Tensor, shape: Volume) -> Tensor:
    made = torch.ops.cutwheel.conv3d_input_grad(dy, w, *shape.input[2:], *_geometry((1, 1)))
    result: Tensor = made
    return result


def our_wgrad(dy: Tensor, x: Tensor, shape: Volume) -> Tensor:
    made = torch.ops.cutwheel.conv3d_weight_grad(dy, x, *shape.filter[2:], *_geometry((1, 1)))
    result: Tensor = made
    return result


def torch_transposed(x: Tensor, w: Tensor, b: Tensor, shape: Transposed) -> Tensor:
    return functional.conv_transpose2d(x, w, b, shape.stride, shape.padding, shape.more)


def our_transposed(x: Tensor, w: Tensor, b: Tensor, shape: Transposed) -> Tensor:
    result: Tensor = cutwheel.conv_transpose2d(x, w, b, shape.stride, shape.padding, shape.more)
    return result


def _geometry(ends: tuple[int, int]) -> list[int]:
    """Strides; padding in front, behind, at the top, bottom, left and right; dilations."""
    return [*ONES, *ends, 1, 1, 1, 1, *ONES]


# ---- cases
def _sets(setting: Setting, *sizes: Sequence[int], scale: float) -> list[Operands]:
    """Operands of these sizes, as many times as L2 asks for; `scale` is of the second one."""

    def one(size: Sequence[int], scale: float) -> Tensor:
        if len(size) == 1:
            return setting.operands.normal(*size)
        n, c, *extents = size
        made = setting.operands.normal(n, *extents, c, scale=scale)
        return made.movedim(-1, 1)

    def some() -> Operands:
        return tuple(one(size, scale if i == 1 else 1.0) for i, size in enumerate(sizes))

    first = some()
    return [first, *(some() for _ in range(setting.buffers(sum(t.nbytes for t in first)) - 1))]


def _case(
    setting: Setting,
    sets: Sequence[Operands],
    baseline: Callable[[int], Tensor],
    ours: Callable[..., Tensor],
    reference: Reference,
    explain: Callable[[], dict[str, Any]],
) -> Case:
    shape = setting.shape
    return Case(
        [
            Provider("torch", baseline),
            Provider("cutwheel", lambda i: ours(*sets[i], shape)),
        ],
        len(sets),
        reference,
        ALLOWED,
        shape.flops,
        setting.operands.dtype.itemsize * shape.elements,
        kernels={"cutwheel": first_kernel(explain)},
        explain=explain,
    )


def fprop(setting: Setting) -> Case:
    return _forward(setting)


def with_bias(setting: Setting) -> Case:
    """As layers have it; torch adds it in a pass of its own."""
    return _forward(setting, (setting.shape.k,))


def _forward(setting: Setting, *bias: Sequence[int]) -> Case:
    shape = setting.shape
    sets = _sets(setting, shape.input, shape.filter, *bias, scale=shape.scale)
    padded = [
        functional.pad(x, (0, 0, 0, 0, *shape.ends)).contiguous(
            memory_format=torch.channels_last_3d
        )
        for x, *_ in sets
    ]

    def explain() -> dict[str, Any]:
        given = sets[0] if bias else [*sets[0], None]
        return explained("conv3d", given, None, 1, False, "", *_rest(shape.ends))

    return _case(
        setting,
        sets,
        lambda i: torch_fprop(padded[i], *sets[i][1:]),
        our_fprop,
        lambda i: in_float32(torch_fprop, padded[i], *sets[i][1:]),
        explain,
    )


def dgrad(setting: Setting) -> Case:
    shape = setting.shape
    sets = _sets(setting, shape.centred, shape.filter, scale=shape.scale)
    x = _sets(setting, shape.input, scale=1.0)[0][0]

    def explain() -> dict[str, Any]:
        rest = _rest((1, 1), shape.input[2:])
        return explained("conv3d_input_grad", sets[0], None, 1, False, "", *rest)

    return _case(
        setting,
        sets,
        lambda i: torch_gradient(sets[i][0], x, sets[i][1], 0),
        our_dgrad,
        lambda i: in_float32(torch_gradient, sets[i][0], x, sets[i][1], 0),
        explain,
    )


def wgrad(setting: Setting) -> Case:
    shape = setting.shape
    sets = _sets(setting, shape.centred, shape.input, scale=1.0)
    w = _sets(setting, shape.filter, scale=1.0)[0][0]

    def explain() -> dict[str, Any]:
        rest = _rest((1, 1), shape.filter[2:])
        return explained("conv3d_weight_grad", sets[0], None, 1, False, "", *rest)

    return _case(
        setting,
        sets,
        lambda i: torch_gradient(*sets[i], w, 1),
        our_wgrad,
        lambda i: in_float32(torch_gradient, *sets[i], w, 1),
        explain,
    )


def transposed(setting: Setting) -> Case:
    """With a bias"""
    shape, exact = setting.shape, setting.operands.exact
    sets = _sets(setting, shape.input, shape.filter, (shape.k,), scale=shape.scale)

    def explain() -> dict[str, Any]:
        pads = [shape.padding] * 4
        geometry = [shape.stride, shape.stride, *pads, 1, 1, *shape.output[2:]]
        rest = None, 1, False, "bias", None, None, False, geometry
        return explained("conv_transpose2d", sets[0], *rest)

    return _case(
        setting,
        sets,
        lambda i: torch_transposed(*sets[i], shape),
        our_transposed,
        lambda i: exactly(torch_transposed, *sets[i], shape, dtype=exact),
        explain,
    )


def _rest(ends: tuple[int, int], size: Sequence[int] = ()) -> tuple[Any, ...]:
    """What an explanation takes behind the epilogue"""
    return None, None, False, [*_geometry(ends), *size]


SUITE = Suite(
    {
        "volume_fprop": fprop,
        "volume_bias": with_bias,
        "volume_dgrad": dgrad,
        "volume_wgrad": wgrad,
        "transposed": transposed,
    },
    Limits(case_seconds=0.4, max_rounds=11),
    "bf16",
    context=lambda dtype: tuned_cudnn(),
)
