"""Convolutions against cuDNN's, channels last in bfloat16.

`fprop`, `dgrad` and `wgrad` are the three directions of a convolution without a bias, `fused` is
relu(conv + bias + residual), `resnet50` a whole model. torch's
`backends.cudnn.benchmark` is on. Nothing writes with ``out=``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from . import conv_resnet, harness, plan
from .conv_jobs import ConvShape, Job
from .conv_sides import (
    CUDNN_FUSED,
    Library,
    Operands,
    Tensor,
    cudnn_fused,
    eager_fused,
    library,
    torch_dgrad,
    torch_fprop,
    torch_wgrad,
)
from .session import Made, gpu, kernel_of

TOLERANCE = 1e-2
LIMITS = plan.Limits(case_seconds=0.4, max_rounds=15)
ELEMENT = 2  # bytes of bfloat16


@dataclass(frozen=True)
class Setting:
    """Of one case: what it measures, and where it runs."""

    job: Job
    device: torch.device
    l2_bytes: int
    library: Library
    compile_mode: str | None = None  # of ResNet-50; None: without torch.compile

    @property
    def shape(self) -> ConvShape:
        return self.job.shape

    def random(self, size: Sequence[int], scale: float = 1.0) -> Tensor:
        options: dict[str, Any] = {"dtype": torch.bfloat16, "device": self.device}
        if len(size) == 4:
            options["memory_format"] = torch.channels_last
        values = torch.empty(tuple(size), **options).normal_()
        return values.mul_(scale) if scale != 1.0 else values

    def sets(self, *sizes: Sequence[int], scale: float = 1.0) -> list[Operands]:
        """Operands of these sizes, as many times as L2 asks for; `scale` is of the second one."""
        scales = [scale if number == 1 else 1.0 for number in range(len(sizes))]
        first = self._set(sizes, scales)
        slots = plan.rotation(sum(tensor.nbytes for tensor in first), self.l2_bytes)
        return [first, *(self._set(sizes, scales) for _ in range(slots - 1))]

    def _set(self, sizes: Sequence[Sequence[int]], scales: Sequence[float]) -> Operands:
        return tuple(self.random(*each) for each in zip(sizes, scales, strict=True))


def exact(call: Callable[..., Tensor], *operands: Any) -> Tensor:
    """In float64 and without cuDNN, kept as float32."""
    wide = [each.double() if isinstance(each, Tensor) else each for each in operands]
    with torch.backends.cudnn.flags(enabled=False):
        return call(*wide).float()


def _case(
    setting: Setting,
    sets: Sequence[Operands],
    baselines: Mapping[str, Callable[..., Tensor]],
    ours: Callable[..., Tensor],
    reference: harness.Reference,
    more_bytes: int = 0,
) -> Made:
    """Calls take the operands of a set, then what `setting` has."""

    def side(name: str, call: Callable[..., Tensor]) -> harness.Side:
        return harness.Side(name, lambda i: call(*sets[i]))

    sides = [side(name, call) for name, call in baselines.items()]
    mine = setting.library
    sides.append(side(mine.name, ours))
    made = harness.Case(sides, len(sets), reference, TOLERANCE)
    moved = ELEMENT * setting.shape.elements + more_bytes
    kernel = kernel_of(mine.kernel, setting.job.group, setting.shape, sets[0])
    return Made(made, setting.shape.flops, moved, {mine.name: kernel})


# ---- groups
def fprop(setting: Setting) -> Made:
    shape, ours = setting.shape, setting.library
    sets = setting.sets(shape.input, shape.filter)
    return _case(
        setting,
        sets,
        {"torch": lambda x, w: torch_fprop(x, w, shape)},
        lambda x, w: ours.fprop(x, w, shape),
        lambda i: exact(torch_fprop, *sets[i], shape),
    )


def dgrad(setting: Setting) -> Made:
    """The gradient of the input, of that of the result and the filter"""
    shape, ours = setting.shape, setting.library
    sets, x = setting.sets(shape.output, shape.filter), setting.random(shape.input)
    return _case(
        setting,
        sets,
        {"torch": lambda dy, w: torch_dgrad(dy, w, shape, x)},
        lambda dy, w: ours.dgrad(dy, w, shape, x),
        lambda i: exact(torch_dgrad, *sets[i], shape, x),
    )


def wgrad(setting: Setting) -> Made:
    """The gradient of the filter, of that of the result and the input"""
    shape, ours = setting.shape, setting.library
    sets, w = setting.sets(shape.output, shape.input), setting.random(shape.filter)
    return _case(
        setting,
        sets,
        {"torch": lambda dy, x: torch_wgrad(dy, x, shape, w)},
        lambda dy, x: ours.wgrad(dy, x, shape, w),
        lambda i: exact(torch_wgrad, *sets[i], shape, w),
    )


def fused(setting: Setting) -> Made:
    """relu(conv + bias + residual); filters are scaled so that the convolution is as the others"""
    shape, ours = setting.shape, setting.library
    scale = (shape.c * shape.r * shape.s) ** -0.5
    sets = setting.sets(shape.input, shape.filter, (shape.k,), shape.output, scale=scale)

    def expected(i: int) -> Tensor:
        x, w, b, r = sets[i]
        z = exact(torch_fprop, x, w, shape)
        return functional.relu(z.add_(b.float()[:, None, None]).add_(r.float()))

    return _case(
        setting,
        sets,
        {
            "eager": lambda x, w, b, r: eager_fused(x, w, b, r, shape),
            CUDNN_FUSED: lambda x, w, b, r: cudnn_fused(x, w, b, r, shape),
        },
        lambda x, w, b, r: ours.fused(x, w, b, r, shape),
        expected,
        sets[0][3].nbytes,
    )


def resnet50(setting: Setting) -> Made:
    given = setting.shape, setting.device, setting.library, setting.compile_mode
    case, flops, moved = conv_resnet.case(*given)
    return Made(case, flops, moved)


GROUPS: dict[str, Callable[[Setting], Made]] = {
    "fprop": fprop,
    "dgrad": dgrad,
    "wgrad": wgrad,
    "fused": fused,
    "resnet50": resnet50,
}


def maker(side: str, compile_mode: str | None) -> Callable[[Job], Made]:
    """compile_mode: of ResNet-50; None: without torch.compile"""
    device, l2_bytes = gpu()
    ours = library(side)
    return lambda job: GROUPS[job.group](Setting(job, device, l2_bytes, ours, compile_mode))
