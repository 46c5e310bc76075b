"""A convolution of images: a kernel, and torch behind it where the kernel lacks a part."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, is_autocast_enabled, is_grad_enabled

from .._common import by_torch, node
from .._common.activations import ACTIVATIONS, ALL_ACTIVATIONS, check_activation
from .._common.batch_invariance import refuse_torch
from .._common.call import Op, distinct, fast_apply, is_tracing, overloads
from .._common.errors import check_one_device, dtype_name, wrong_dtype, wrong_shape
from .._common.precision import DTYPES, autocast_operands, conv_tf32_allowed
from .._common.sizes import shapes_differ
from .._common.transforms import is_transformed
from . import _grouped as grouped
from ._autograd import Conv, channels_first, channels_last, in_order, padded
from ._geometry import Geometry, Padding, Sizes, check_rank, geometry, parts

_conv2d, _conv2d_direct = overloads("conv2d")
_conv2d_fused, _conv2d_fused_direct = overloads("conv2d_fused")
_conv3d, _conv3d_direct = overloads("conv3d")
_conv3d_fused, _conv3d_fused_direct = overloads("conv3d_fused")
_with_grad: Op = fast_apply(Conv, 4)
_conv_served: Callable[..., int] = torch.ops.cutwheel._conv_served.default
_FPROP = 1  # as the library numbers directions
_bfloat16, _float16 = torch.bfloat16, torch.float16

CONV_ACTIVATIONS = tuple(ALL_ACTIVATIONS)

_NO_RESIDUAL, _RESIDUAL_FIRST, _RESIDUAL_LAST = 0, 1, 2
# The epilogue of one kernel.
_EPILOGUES: dict[tuple[str | None, int], str] = {
    **{(name, _NO_RESIDUAL): f"bias_{name}" for name in ACTIVATIONS},
    **{(name, _NO_RESIDUAL): f"bias_{name}" for name in grouped.COMPOSED_IN_KERNEL},
    (None, _RESIDUAL_FIRST): "bias_residual",
    **{(name, _RESIDUAL_FIRST): f"bias_residual_{name}" for name in ACTIVATIONS},
    **{(name, _RESIDUAL_LAST): f"bias_{name}_residual" for name in ACTIVATIONS},
}
# Of which backward needs only the result.
_GROUPED_TRAINED: dict[tuple[str | None, int], str] = {
    ("relu", _NO_RESIDUAL): "bias_relu",
    (None, _RESIDUAL_FIRST): "bias_residual",
    ("relu", _RESIDUAL_FIRST): "bias_residual_relu",
}
# Others store what the activation is applied to; where no kernel stores both, the op has one for
# each.
_STORING = tuple(name for name in ACTIVATIONS if name != "relu")
_TRAINED: dict[tuple[str | None, int], str] = {
    **_GROUPED_TRAINED,
    **{(name, _NO_RESIDUAL): f"bias_{name}_aux" for name in _STORING},
    **{(name, _RESIDUAL_FIRST): f"bias_residual_{name}_aux" for name in _STORING},
}
# Of one group, not on GPUs of compute capability 8.
_OF_HOPPER = frozenset(
    (
        *(f"bias_{name}" for name in grouped.COMPOSED_IN_KERNEL),
        *(f"bias_residual_{name}" for name in ("gelu", "gelu_tanh")),
        *(f"bias_{name}_residual" for name in ("gelu", "gelu_tanh")),
    )
)


class Plan(NamedTuple):
    """The kernel's part of a call, and torch's part behind it."""

    epilogue: str | None
    """None: of the convolution and its bias alone"""
    activation: str | None = None
    """by torch"""
    adds_residual: bool = False
    """by torch"""


_PLAIN = Plan(None)


def plan_of(
    activation: str | None,
    has_residual: bool,
    residual_after_activation: bool,
    needs_grad: bool,
    is_served: Callable[[str], bool] = lambda epilogue: True,
    is_grouped: bool = False,
) -> Plan:
    """As much as possible in the kernel.

    Args:
        is_served: whether there is a kernel with an epilogue
        is_grouped: a convolution of several groups
    """
    epilogues = _EPILOGUES
    if needs_grad:
        epilogues = _GROUPED_TRAINED if is_grouped else _TRAINED
    if activation is None and not has_residual:
        return _PLAIN
    placement = _NO_RESIDUAL
    if has_residual:
        is_last = residual_after_activation and activation is not None
        placement = _RESIDUAL_LAST if is_last else _RESIDUAL_FIRST
    choices = [(activation, placement, _PLAIN)]
    if placement == _RESIDUAL_FIRST:
        choices.append((None, placement, Plan(None, activation)))
    elif placement == _RESIDUAL_LAST:
        choices.append((activation, _NO_RESIDUAL, Plan(None, None, True)))
    for inside, where, rest in choices:
        epilogue = epilogues.get((inside, where))
        if epilogue is not None and is_served(epilogue):
            return rest._replace(epilogue=epilogue)
    return Plan(None, activation, has_residual)


# By the arguments of plan_of, where a kernel has every epilogue.
_GIVEN = tuple(itertools.product((None, *CONV_ACTIVATIONS), *((False, True),) * 3))
PLANS = {given: plan_of(*given) for given in _GIVEN}
_GROUPED_PLANS = {given: plan_of(*given, is_grouped=True) for given in _GIVEN}


def plan_for(
    input: Tensor,
    activation: str | None,
    has_residual: bool,
    residual_after_activation: bool,
    needs_grad: bool,
) -> Plan:
    """plan_of for the input's dtype and GPU, of one group."""
    how = activation, has_residual, residual_after_activation, needs_grad
    if input.dtype is _bfloat16 or input.dtype is _float16:
        plan = PLANS[how]
        if plan.epilogue not in _OF_HOPPER:
            return plan
    return plan_of(*how, is_served_by(input))


def is_served_by(input: Tensor) -> Callable[[str], bool]:
    """Whether this wheel has kernels for an epilogue, the input's dtype and its GPU.

    In 16 bits Hopper has every epilogue, in float32 no GPU does.
    """
    if not input.is_cuda or not torch.cuda.is_available():
        return lambda epilogue: True
    device, dtype = input.get_device(), input.dtype
    if dtype == torch.float32:
        return lambda epilogue: _has_kernel(device, dtype, epilogue)
    return lambda epilogue: epilogue not in _OF_HOPPER or _has_kernel(device, dtype, epilogue)


def _has_kernel(device: int, dtype: torch.dtype, epilogue: str) -> bool:
    if epilogue.endswith("_aux"):
        epilogue = "bias_residual" if "residual" in epilogue else "bias"
    return _conv_served(_FPROP, device, dtype, dtype, epilogue, True) > 0


# torch.compile takes the answer at trace time as a constant.
_has_kernel._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _is_on_cpu(input: Tensor) -> bool:
    return input.device.type == "cpu"


def why_torch(input: Tensor, weight: Tensor, groups: int, where: Geometry) -> str | None:
    """Why no kernel serves the call, so that torch does; None: one does."""
    if groups != 1:
        because = grouped.why_not_call(input, weight, groups, where)
        if because is not None:
            return because
        if input.dtype not in (_float16, _bfloat16):
            return (
                f"groups is {groups} and input has dtype {dtype_name(input.dtype)}; cutwheel's "
                "grouped convolutions take float16 and bfloat16"
            )
        if _is_on_cpu(input):
            return f"groups is {groups} and the tensors are on the CPU"
    if input.dtype not in DTYPES:
        return f"input has dtype {dtype_name(input.dtype)}; expected float16, bfloat16 or float32"
    return by_torch.why_convolution(input)


def check_torch_dtype(op: str, input: Tensor) -> None:
    """That torch convolves the input's dtype: on GPUs no integers, and nowhere bool or fp8."""
    dtype = input.dtype
    if dtype.is_floating_point or dtype.is_complex:
        if dtype.itemsize > 1:
            return
    elif dtype != torch.bool and not input.is_cuda:
        return
    is_quantised = dtype in (torch.int8, torch.float8_e4m3fn)
    hint = " (scaled_conv2d convolves int8 and float8_e4m3fn with scales)" if is_quantised else ""
    wanted = "float16, bfloat16, float32, float64 or a complex dtype"
    raise wrong_dtype(op, "input", dtype, wanted, hint)


def convolve(
    op: str,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sizes,
    padding: Padding,
    dilation: Sizes,
    groups: int,
    activation: str | None,
    residual: Tensor | None,
    residual_after_activation: bool,
) -> Tensor:
    """conv2d in the name of `op`; its errors are the library's."""
    if activation is not None:
        check_activation(activation, CONV_ACTIVATIONS, op)
    dims = input.dim()
    if dims == 3:
        batch = input.unsqueeze(0)
        added = residual if residual is None else residual.unsqueeze(0)
        rest = (stride, padding, dilation, groups, activation, added, residual_after_activation)
        return convolve(op, batch, weight, bias, *rest).squeeze(0)
    if dims != 4:
        check_rank(op, "input", input, "[N, C, H, W]", "[C, H, W]")
    if is_autocast_enabled():
        input, weight, bias = autocast_operands(input, weight, bias)
        if residual is not None and residual.dtype != input.dtype:
            # The residual keeps its dtype, and the sum is promoted, as that of torch's functions.
            is_last = residual_after_activation
            first, last = (activation, None) if is_last else (None, activation)
            given = (stride, padding, dilation, groups, first, None, False)
            z = convolve(op, input, weight, bias, *given)
            return finish(op, z, last, residual, False)
    where = geometry(op, weight, stride, padding, dilation)
    dtype = input.dtype
    is_16_bit = dtype is _bfloat16 or dtype is _float16
    is_dense = groups == 1
    if (not is_dense or not is_16_bit or is_transformed()) and (
        because := why_torch(input, weight, groups, where)
    ) is not None:
        check_torch_dtype(op, input)
        refuse_torch(op, because)
        by_torch.tell_choice(op, because, input, weight)
        if is_dense and dtype == torch.float32 and not conv_tf32_allowed():
            by_torch.tell(op, by_torch.ALLOW_CONV_TF32)
        if not isinstance(padding, str):
            input, padding = evenly_padded(input, where)
        z = F.conv2d(input, weight, bias, where[:2], padding, where[6:], groups)
        z = in_channels_last_order(z)
        return finish(op, z, activation, residual, residual_after_activation)
    allow_tf32 = not is_16_bit and dtype == torch.float32
    needs_grad = is_grad_enabled() and (
        input.requires_grad
        or weight.requires_grad
        or (bias is not None and bias.requires_grad)
        or (residual is not None and residual.requires_grad)
    )
    if activation is None and residual is None and is_dense:
        return run(input, weight, bias, None, where, None, allow_tf32, needs_grad)
    how = activation, residual is not None, bool(residual_after_activation), needs_grad
    plan = plan_for(input, *how) if is_dense else _GROUPED_PLANS[how]
    inside, behind = (None, residual) if plan.adds_residual else (residual, None)
    if is_dense:
        z = run(input, weight, bias, inside, where, plan.epilogue, allow_tf32, needs_grad)
    else:
        z = grouped.run(input, weight, bias, inside, where, plan.epilogue, needs_grad)
    if plan.activation is None and behind is None:
        return z
    return finish(op, z, plan.activation, behind, residual_after_activation)


def run(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    where: Geometry,
    epilogue: str | None,
    allow_tf32: bool,
    needs_grad: bool,
) -> Tensor:
    """The kernel's part of a call."""
    if is_tracing():
        input = in_order(input)
        residual = residual if residual is None else in_order(residual)
    if needs_grad:
        if (
            epilogue is None
            and not allow_tf32
            and node.is_even(where)
            and node.serves(input, weight)
        ):
            return node.convolution(input, weight, bias, where, 1)
        if is_tracing():
            input, weight, bias, residual = distinct(input, weight, bias, residual)
        made = _with_grad(input, weight, bias, residual, where, epilogue, allow_tf32)
        result: Tensor = made[0] if isinstance(made, tuple) else made
        return result
    # Defaults are left out: each argument costs a tenth of a microsecond.
    if len(where) == 12:
        if epilogue is None:
            return (_conv3d if is_tracing() else _conv3d_direct)(input, weight, bias, *where)
        call = _conv3d_fused if is_tracing() else _conv3d_fused_direct
        return call(input, weight, bias, residual, *where, epilogue)
    if epilogue is None:
        call = _conv2d if is_tracing() else _conv2d_direct
        if allow_tf32:
            return call(input, weight, bias, *where, True)
        return call(input, weight, bias, *where)
    call = _conv2d_fused if is_tracing() else _conv2d_fused_direct
    if allow_tf32:
        return call(input, weight, bias, residual, *where, epilogue, True)
    return call(input, weight, bias, residual, *where, epilogue)


def evenly_padded(input: Tensor, where: Geometry) -> tuple[Tensor, tuple[int, ...]]:
    """Input and padding for torch's functions, which have one number for both ends."""
    sides = parts(where)[1]
    if sides[::2] == sides[1::2]:
        return input, sides[::2]
    return padded(input, where), (0,) * (len(sides) // 2)


def _contiguous(tensor: Tensor) -> Tensor:
    """With strides that follow from the sizes, also where a size is 1 and others would do."""
    return tensor.reshape(-1).view(tensor.shape)


def in_channels_last_order(z: Tensor) -> Tensor:
    """[N, Ko, ...] in the strides of channels last, for images of any size: torch's own results
    have them or not, by the kernel that it took."""
    return channels_first(_contiguous(channels_last(z)))


def finish(
    op: str,
    z: Tensor,
    activation: str | None,
    residual: Tensor | None,
    residual_after_activation: bool,
) -> Tensor:
    """Activation and residual by torch, behind a convolution [N, Ko, ...]."""
    if activation is None and residual is None:
        return z
    # As a contiguous tensor, which has one order for images of any size.
    result, added = channels_last(z), None
    if residual is not None:
        _check_residual(op, residual, z)
        added = channels_last(residual)
    if added is not None and not (residual_after_activation and activation):
        result, added = _contiguous(result + added), None
    if activation is not None:
        # Autocast has float32 rules for some of these.
        result = ALL_ACTIVATIONS[activation](result).to(result.dtype)
    if added is not None:
        result = _contiguous(result + added)
    return channels_first(result)


def _check_residual(op: str, residual: Tensor, z: Tensor) -> None:
    """Checks a residual that torch adds as the library checks one that is its operand."""
    check_one_device(op, {"input": z, "residual": residual})
    if residual.dtype != z.dtype and not is_autocast_enabled():
        raise wrong_dtype(op, "residual", residual.dtype, z.dtype)
    if shapes_differ(residual.shape, z.shape):
        raise wrong_shape(op, "residual", residual, z.shape, ", the shape of the result")
