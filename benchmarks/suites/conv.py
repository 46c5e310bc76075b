"""Convolutions against cuDNN's, channels last in bfloat16.

`fprop`, `dgrad` and `wgrad` are the three directions of a convolution without a bias, `fused` is
relu(conv + bias + residual), `resnet50` a whole model, as examples/resnet50.py has it. torch's
`backends.cudnn.benchmark` is on. Nothing writes with ``out=``.
"""

from __future__ import annotations

import copy
import functools
import importlib.util
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

import cutwheel
from cutwheel.tuning.measure import Error, rotation

from ..compare import Case, HostCase, Limits, Reference, Run, Setting, Side
from ..shapes import Conv
from . import Suite, compiled, named
from .host import backward_of

ALLOWED = Error(1e-2, 1e-1)
# Of logits, behind 53 layers whose results are rounded to bfloat16, and in eager torch their parts.
ALLOWED_MODEL = Error(4e-2, 4e-1)
ELEMENT = 2  # bytes of bfloat16
CUDNN_FUSED = "cudnn_convolution_add_relu"
WIDTH = 64  # of ResNet's stem; tests take a smaller one

Tensor = torch.Tensor
Operands = tuple[Tensor, ...]


@contextmanager
def tuned_cudnn() -> Iterator[None]:
    """cuDNN measures its algorithms for each problem and takes the fastest."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


# ---- torch's sides
def torch_fprop(x: Tensor, w: Tensor, shape: Conv) -> Tensor:
    return functional.conv2d(x, w, None, shape.stride, shape.padding, shape.dilation)


def torch_dgrad(dy: Tensor, w: Tensor, shape: Conv, x: Tensor) -> Tensor:
    """x: any tensor of the input's size and strides; its values are not read"""
    return _backward(dy, x, w, shape, [True, False, False])[0]


def torch_wgrad(dy: Tensor, x: Tensor, shape: Conv, w: Tensor) -> Tensor:
    """w: any tensor of the filter's size and strides; its values are not read"""
    return _backward(dy, x, w, shape, [False, True, False])[1]


def _backward(dy: Tensor, x: Tensor, w: Tensor, shape: Conv, mask: list[bool]) -> Operands:
    """dgrad or wgrad, by `mask`, from the function that autograd calls."""
    stride, padding, dilation = _pairs(shape)
    found: Operands = torch.ops.aten.convolution_backward(
        dy, x, w, None, stride, padding, dilation, False, [0, 0], 1, mask
    )
    return found


def _pairs(shape: Conv) -> tuple[list[int], list[int], list[int]]:
    return [shape.stride] * 2, [shape.padding] * 2, [shape.dilation] * 2


def eager_fused(x: Tensor, w: Tensor, b: Tensor, r: Tensor, shape: Conv) -> Tensor:
    z = functional.conv2d(x, w, b, shape.stride, shape.padding, shape.dilation)
    return functional.relu(z + r)


def cudnn_fused(x: Tensor, w: Tensor, b: Tensor, r: Tensor, shape: Conv) -> Tensor:
    """relu(conv + b + r) in one call of cuDNN, where it has that"""
    result: Tensor = torch.cudnn_convolution_add_relu(x, w, r, 1.0, b, *_pairs(shape), 1)
    return result


# ---- ours; gradients have no function of their own: these ops are what backward calls
def our_fprop(x: Tensor, w: Tensor, shape: Conv) -> Tensor:
    result: Tensor = cutwheel.conv2d(x, w, None, shape.stride, shape.padding, shape.dilation)
    return result


def our_dgrad(dy: Tensor, w: Tensor, shape: Conv) -> Tensor:
    result: Tensor = torch.ops.cutwheel.conv2d_input_grad(dy, w, *shape.input[2:], *geometry(shape))
    return result


def our_wgrad(dy: Tensor, x: Tensor, shape: Conv) -> Tensor:
    result: Tensor = torch.ops.cutwheel.conv2d_weight_grad(
        dy, x, *shape.filter[2:], *geometry(shape)
    )
    return result


def our_fused(x: Tensor, w: Tensor, b: Tensor, r: Tensor, shape: Conv) -> Tensor:
    where = shape.stride, shape.padding, shape.dilation
    result: Tensor = cutwheel.conv2d(x, w, b, *where, activation="relu", residual=r)
    return result


def geometry(shape: Conv) -> list[int]:
    """Strides; padding at the top, bottom, left and right; dilations."""
    stride, padding, dilation = _pairs(shape)
    return [*stride, *padding, *padding, *dilation]


def _row_of(group: str, shape: Conv, operands: Operands) -> str | None:
    number = {"fprop": 0, "fused": 1, "dgrad": 3, "wgrad": 4}[group]  # as the library has them
    size = {"dgrad": shape.input, "wgrad": shape.filter}.get(group, ())[2:]
    given = [*operands, None] if group == "fprop" else [*operands]
    epilogue = "bias_residual_relu" if group == "fused" else ""
    text = torch.ops.cutwheel._explain_conv(
        number, given, *geometry(shape), None, False, epilogue, *size
    )
    plans = json.loads(text)["plans"]
    return str(plans[0]["row"]) if plans else None


# ---- groups
def _sets(setting: Setting, *sizes: Sequence[int], scale: float = 1.0) -> list[Operands]:
    """Operands of these sizes, as many times as L2 asks for; `scale` is of the second one."""
    make = setting.operands

    def one() -> Operands:
        return tuple(
            (make.channels_last if len(size) == 4 else make.normal)(
                *size, scale=scale if number == 1 else 1.0
            )
            for number, size in enumerate(sizes)
        )

    first = one()
    slots = rotation(sum(tensor.nbytes for tensor in first), make.l2_bytes)
    return [first, *(one() for _ in range(slots - 1))]


def _case(
    setting: Setting,
    sets: Sequence[Operands],
    baselines: Mapping[str, Callable[..., Tensor]],
    ours: Callable[..., Tensor],
    reference: Reference,
    more_bytes: int = 0,
) -> Case:
    """Calls take the operands of a set, then the shape."""
    shape = setting.shape

    def side(name: str, call: Callable[..., Tensor]) -> Side:
        return Side(name, lambda i: call(*sets[i], shape))

    return Case(
        [*(side(name, call) for name, call in baselines.items()), side("cutwheel", ours)],
        len(sets),
        reference,
        ALLOWED,
        shape.flops,
        ELEMENT * shape.elements + more_bytes,
        kernels={"cutwheel": named(lambda: _row_of(setting.problem.group, shape, sets[0]))},
    )


def exact(call: Callable[..., Tensor], *operands: Any) -> Tensor:
    """In float64 and without cuDNN, kept as float32."""
    wide = [each.double() if isinstance(each, Tensor) else each for each in operands]
    with torch.backends.cudnn.flags(enabled=False):
        return call(*wide).float()


def fprop(setting: Setting) -> Case:
    shape = setting.shape
    sets = _sets(setting, shape.input, shape.filter)
    expected = functools.partial(exact, torch_fprop)
    return _case(
        setting, sets, {"torch": torch_fprop}, our_fprop, lambda i: expected(*sets[i], shape)
    )


def dgrad(setting: Setting) -> Case:
    """The gradient of the input, of that of the result and the filter"""
    shape = setting.shape
    sets = _sets(setting, shape.output, shape.filter)
    x = setting.operands.channels_last(*shape.input)
    return _case(
        setting,
        sets,
        {"torch": lambda dy, w, shape: torch_dgrad(dy, w, shape, x)},
        our_dgrad,
        lambda i: exact(torch_dgrad, *sets[i], shape, x),
    )


def wgrad(setting: Setting) -> Case:
    """The gradient of the filter, of that of the result and the input"""
    shape = setting.shape
    sets = _sets(setting, shape.output, shape.input)
    w = setting.operands.channels_last(*shape.filter)
    return _case(
        setting,
        sets,
        {"torch": lambda dy, x, shape: torch_wgrad(dy, x, shape, w)},
        our_wgrad,
        lambda i: exact(torch_wgrad, *sets[i], shape, w),
    )


def fused(setting: Setting) -> Case:
    """relu(conv + bias + residual); filters are scaled so that the convolution is as the others"""
    shape = setting.shape
    scale = (shape.c * shape.r * shape.s) ** -0.5
    sets = _sets(setting, shape.input, shape.filter, (shape.k,), shape.output, scale=scale)

    def expected(i: int) -> Tensor:
        x, w, b, r = sets[i]
        z = exact(torch_fprop, x, w, shape)
        return functional.relu(z.add_(b.float()[:, None, None]).add_(r.float()))

    baselines = {"eager": eager_fused, CUDNN_FUSED: cudnn_fused}
    return _case(setting, sets, baselines, our_fused, expected, sets[0][3].nbytes)


# ---- ResNet-50
@functools.cache
def example() -> ModuleType:
    path = Path(__file__).parents[2] / "examples" / "resnet50.py"
    spec = importlib.util.spec_from_file_location("resnet50", path)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules["resnet50"] = found
    spec.loader.exec_module(found)
    return found


def resnet50(setting: Setting) -> Case:
    shape, device = setting.shape, str(setting.operands.device)
    made = example().make(device, torch.bfloat16, shape.h, WIDTH)
    x = [example().images(shape.n, shape.h, device, torch.bfloat16) for _ in range(2)]
    precise = copy.deepcopy(made).float()

    def reference(i: int) -> Tensor:
        # Without cuDNN: a convolution of float32 is then one of float32.
        with torch.no_grad(), torch.backends.cudnn.flags(enabled=False):
            logits: Tensor = precise(x[i].float())
        return logits

    def side(name: str, model: Any) -> Side:
        def call(i: int) -> Tensor:
            with torch.no_grad():
                logits: Tensor = model(x[i])
            return logits

        return Side(name, call)

    sides = [side("eager", made)]
    if setting.compiled:
        sides.append(side("compile", setting.compiled(made)))
    sides.append(side("cutwheel", cutwheel.fuse(made)))
    weights = sum(tensor.nbytes for tensor in made.state_dict().values())
    moved = x[0].nbytes + weights
    return Case(sides, len(x), reference, ALLOWED_MODEL, operations(shape), moved)


def operations(shape: Conv) -> int:
    with torch.device("meta"):
        model, x = example().ResNet50(width=WIDTH), torch.empty(shape.input)
    with FlopCounterMode(display=False) as counter:
        model.eval()(x)
    total: int = counter.get_total_flops()
    return total


# ---- CPU time
HOST_SHAPE = Conv(2, 64, 8, 8, 64, 3, 3, 1, 1, 1)
POINTWISE = HOST_SHAPE._replace(r=1, s=1, padding=0)


def host(device: str) -> list[HostCase]:
    shape = HOST_SHAPE

    def operand(size: tuple[int, ...], grad: bool = False) -> Tensor:
        made = torch.randn(size, dtype=torch.bfloat16, device=device)
        if len(size) == 4:
            made = made.contiguous(memory_format=torch.channels_last)
        return made.requires_grad_(grad)

    x, w, dy = operand(shape.input), operand(shape.filter), operand(shape.output)
    w1, b = operand(POINTWISE.filter), operand((shape.k,))
    xg, wg = operand(shape.input, grad=True), operand(shape.filter, grad=True)

    def pair(name: str, call: Callable[[Callable[..., Tensor]], Run]) -> HostCase:
        return HostCase(name, call(torch_fprop), call(our_fprop))

    return [
        pair("conv2d", lambda conv: lambda: conv(x, w, shape)),
        pair("conv2d, 1 x 1", lambda conv: lambda: conv(x, w1, POINTWISE)),
        HostCase(
            "conv2d, dgrad",
            lambda: torch_dgrad(dy, w, shape, x),
            lambda: our_dgrad(dy, w, shape),
        ),
        HostCase(
            "conv2d, wgrad",
            lambda: torch_wgrad(dy, x, shape, w),
            lambda: our_wgrad(dy, x, shape),
        ),
        pair("conv2d, with grad", lambda conv: lambda: conv(xg, wg, shape)),
        pair(
            "conv2d, forward + backward",
            lambda conv: backward_of(lambda: conv(xg, wg, shape), (xg, wg), dy),
        ),
        HostCase(
            "conv2d, bias + residual + relu, eager",
            lambda: eager_fused(x, w, b, dy, shape),
            lambda: our_fused(x, w, b, dy, shape),
        ),
    ]


SUITE = Suite(
    {"fprop": fprop, "dgrad": dgrad, "wgrad": wgrad, "fused": fused, "resnet50": resnet50},
    Limits(case_seconds=0.4, max_rounds=15),
    "bf16",
    host=host,
    context=lambda dtype: tuned_cudnn(),
    compiled=lambda function, mode: compiled(function, mode=mode),
)
