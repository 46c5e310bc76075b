"""Kernels of this wheel, and the one that a call would run."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch

from .. import _library  # noqa: F401  (registers torch.ops.cutwheel)
from ..ops import linear
from ..ops._common.epilogue import find, signature_of
from ..ops._common.errors import check_tensors, dtype_name, shape_text
from ..ops._common.precision import autocast_operands
from ..ops.gemm._epilogue import cast_operands, is_composed, positional_operands
from ..ops.linear._gated import epilogue_of as gated_epilogue_of
from ..ops.linear._gated import named_parts, packed_bias
from ._conv import CONV, conv_request
from ._grouped import GROUPED, SCALED_MM, grouped_request, scaled_request, take_scales
from ._request import (
    Arguments,
    ByTorch,
    Request,
    allows_tf32,
    served_by_torch,
    torch_text,
)

_SHOWN_CANDIDATES = 8


@dataclass(frozen=True)
class Kernel:
    """A row of the kernel table."""

    name: str
    op: str
    family: str
    arch: str
    """sm80, sm89 or sm90a"""
    ptx: bool
    """whether its PTX is in the wheel, too, for newer GPUs"""
    a: str
    b: str
    acc: str
    d: str
    layout: str | None
    """of A, B and D: t is row-major, n is column-major; None: images and filters, channels last"""
    epilogue: str | None
    """None: it sums the parts of a split-K product, or quantises"""
    tile: tuple[int, ...]
    """threadblock tile, M x N x K"""
    cluster: tuple[int, ...]
    stages: int | None
    """None: as many as shared memory holds"""
    schedule: str
    swap_ab: bool
    """of the operands, in elements"""
    shared_memory_bytes: int | None = None
    fast_accum: bool = False
    """of fp8: sums stay in the tensor cores, in their own precision"""
    scales: str | None = None
    """of A and B, if they differ along K: "1x128_128x128" or "1x128_1x128"; others are operands of
    the epilogue"""
    recipe: str | None = None
    """of a kernel that quantises; its d is what it makes"""
    grouping: str | None = None
    """of a grouped product: what is grouped, "rows" of A or "k" """
    direction: str | None = None
    """of a convolution: "fprop", "dgrad" (of the input) or "wgrad" (of the weight)"""
    summation: str | None = None
    """the order of its sums: kernels with one key, the same types and the same epilogue give the
    same bits (docs/determinism.md). None: it is no choice between several for a product"""

    def __str__(self) -> str:
        return self.name


_KERNEL_FIELDS = {field.name for field in fields(Kernel)}


def _kernel(row: dict[str, Any]) -> Kernel:
    known = {key: value for key, value in row.items() if key in _KERNEL_FIELDS}
    known["tile"], known["cluster"] = tuple(row["tile"]), tuple(row["cluster"])
    known["stages"] = row.get("stages") or None
    return Kernel(**known)


def kernels() -> list[Kernel]:
    """The kernels in this wheel, whatever GPU the machine has."""
    return [_kernel(row) for row in json.loads(torch.ops.cutwheel._kernels())]


def build_info() -> dict[str, Any]:
    """The parts that this wheel was built from: version, cutlass, nvcc, ptxas, compiler (of C++),
    torch_headers, cuda, cudart, archs, assembled (newer architectures, for which the PTX of some
    kernels is assembled), kernels.
    """
    info: dict[str, Any] = json.loads(torch.ops.cutwheel._build_info())
    for key in ("archs", "assembled"):
        info[key] = [arch for arch in str(info.get(key, "")).split(";") if arch]
    return info


@dataclass(frozen=True)
class Explanation:
    """Which kernel a call runs, with which parameters, and why not another.

    str() of it is meant to be read.
    """

    op: str
    row: str | None
    """name of the chosen kernel; None where none serves the call, or nothing is to be computed"""
    parameters: dict[str, Any]
    """of the launch: raster, swizzle, splits, ..., and of the request it serves. choice says what
    it rests on: "tuned (exact)" (predicted_us is measured then), "tuned (near MxNxK)", "cost model"
    or, of a GPU or a kernel that was never measured, "cost model (estimated)"; table, which
    table of measurements"""
    candidates: tuple[dict[str, Any], ...]
    """all plans that could run, best first, then each row that could not, with its `reason`"""
    device: str

    def __str__(self) -> str:
        request = self.parameters.get("request", {})
        lines = [f"{self.op} on {self.device}"]
        lines += [f"  {key}: {_plain(value)}" for key, value in request.items()]
        launch = {key: value for key, value in self.parameters.items() if key != "request"}
        lines.append(f"kernel: {self.row or 'none'}")
        lines += [f"  {key}: {_plain(value)}" for key, value in launch.items()]
        others = [plan for plan in self.candidates if "reason" not in plan][1:]
        if others:
            tuned = str(launch.get("choice", "")).startswith("tuned")
            lines.append(
                "slower, as measured or predicted:" if tuned else "slower by the cost model:"
            )
            lines += [f"  {_plan_text(plan)}" for plan in others[:_SHOWN_CANDIDATES]]
            lines += _more(len(others) - _SHOWN_CANDIDATES)
        reasons: dict[str, list[str]] = {}
        for plan in self.candidates:
            if "reason" in plan:
                reasons.setdefault(plan["reason"], []).append(plan["row"])
        if reasons:
            lines.append("cannot take this call:")
        for reason, rows in reasons.items():
            count = "1 row" if len(rows) == 1 else f"{len(rows)} rows"
            lines.append(f"  {count}: {reason} (such as {rows[0]})")
        return "\n".join(lines)


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _plan_text(plan: dict[str, Any]) -> str:
    rest = ", ".join(
        f"{key} {_plain(value)}"
        for key, value in plan.items()
        if key != "row" and value is not None
    )
    return f"{plan['row']} ({rest})" if rest else str(plan["row"])


def _more(count: int) -> list[str]:
    return [f"  ... and {count} more"] if count > 0 else []


def explain(op: str | Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """Tells which kernel a call would run, without running it.

    Args:
        op: "mm", "bmm", "addmm", "baddbmm", "linear", "gated_linear", "gemm", "scaled_mm",
            "grouped_mm", "grouped_linear", "grouped_gated_linear", "scaled_grouped_mm", "conv1d",
            "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d" or
            "scaled_conv2d", or the function itself
        args, kwargs: as for the op; CUDA tensors. alpha does not matter for mm to linear. out= is
            not looked at: a call with a column-major or unaligned one may run another kernel

    Returns:
        The forward GEMM or convolution of the call. Linear layers, grouped ones too, have the
        epilogue that stores what backward needs if a tensor requires grad. Where torch computes the
        call, row is None, and parameters say why

    Raises:
        ValueError: an unknown op, or arguments the op refuses
        TypeError: an argument of the op is missing or no tensor
    """
    name = op if isinstance(op, str) else getattr(op, "__name__", str(op))
    if name not in _OPS:
        raise ValueError(f"explain: op is {name!r}; expected one of {', '.join(_OPS)}")
    arguments, request_of = _OPS[name]
    if name == "gemm":  # operands of the epilogue by their names
        own = (*arguments.positional, *arguments.others)
        rest = {key: value for key, value in kwargs.items() if key not in own}
        given = arguments.bind(name, args, {k: v for k, v in kwargs.items() if k in own})
        given["operands"] = rest
    else:
        given = arguments.bind(name, args, kwargs)
    if name in ("scaled_mm", "scaled_grouped_mm"):
        take_scales(name, given)
    if name in ("gated_linear", "grouped_gated_linear"):
        _take_pair(name, given)
    tensors: dict[str, Any] = {key: given.get(key) for key in arguments.tensors}
    check_tensors(name, tensors, arguments.optional)
    if torch.is_autocast_enabled():
        cast = [key for key in tensors if key not in arguments.kept]
        values = autocast_operands(*(tensors[key] for key in cast)) if cast else ()
        tensors |= dict(zip(cast, values, strict=True))
    request = request_of(name, tensors, given)
    if isinstance(request, ByTorch):
        return _explained_by_torch(name, request, tensors)
    explanation = _explanation(name, request.ask(name, arguments.optional, tensors))
    if request.afterwards:
        explanation.parameters["afterwards"] = request.afterwards
    return explanation


def _take_pair(op: str, given: dict[str, Any]) -> None:
    """Makes `weight` and `up` of a gated unit's weights that do not alternate, and packs biases."""
    if "up" in given:
        raise TypeError(f"explain: up is no argument of {op}")
    weight, bias = given.get("weight"), given.get("bias")
    is_pair = isinstance(weight, (tuple, list))
    if not is_pair and given.get("interleaved", False):
        return
    parts = named_parts(op, weight, bias)
    check_tensors(op, parts, ("bias", "bias[0]", "bias[1]"))
    if is_pair:
        given["weight"], given["up"] = parts["weight[0]"], parts["weight[1]"]
    else:
        given["weight"], given["up"] = parts["weight"].chunk(2, parts["weight"].dim() - 2)
    given["bias"] = packed_bias(op, parts, given["weight"])


def _gemm_request(op: str, tensors: dict[str, Any], given: dict[str, Any]) -> Request | ByTorch:
    operands = list(tensors.values())
    rest = given.get("out_dtype"), given.get("beta", 1), allows_tf32(operands[-1])
    return served_by_torch(op, operands[-1]) or Request(op, operands, *rest)


def _linear_request(op: str, tensors: dict[str, Any], given: dict[str, Any]) -> Request | ByTorch:
    activation, is_last = given.get("activation"), given.get("residual_after_activation", False)
    input, weight, bias, residual = tensors.values()
    afterwards = ""
    if residual is not None and residual.dtype != input.dtype and torch.is_autocast_enabled():
        afterwards = torch_text(None if is_last else activation, "residual")
        activation, residual = activation if is_last else None, None
    fused = linear.epilogue_of(input, weight, bias, activation, residual, is_last)
    after = activation, None if residual is None else "residual"
    served = served_by_torch(op, input, *after)
    if served is not None:
        return served
    if fused is not None:
        request = _layer_request([input, weight, bias, residual], fused)
        return request._replace(afterwards=afterwards)
    operands = [tensor for tensor in (input, weight, bias) if tensor is not None]
    return Request(op, operands, allow_tf32=allows_tf32(input), afterwards=afterwards)


def _layer_request(operands: list[Any], fused: str) -> Request:
    """operands: input, weight, bias, residual"""
    input, weight, bias, _ = operands
    rest: dict[str, Any] = {"allow_tf32": allows_tf32(input), "epilogue": fused}
    if fused != "bias_leaky_relu" or input.dim() < 2 or weight.dim() != 2:
        return Request("linear_fused", operands, **rest)
    # The op for linear layers takes no slope: cutwheel.linear calls gemm.
    return Request("gemm", [input.flatten(0, -2), weight.t(), bias], **rest)


def _gated_request(op: str, tensors: dict[str, Any], given: dict[str, Any]) -> Request | ByTorch:
    input, weight, bias, up = tensors.values()
    activation = given.get("activation", "silu")
    fused = gated_epilogue_of(input, weight, bias, activation, up)
    served = served_by_torch(op, input, activation, "gate")
    if served is not None:
        return served
    operands = [input, weight, bias, None, *([] if up is None else [up])]
    return Request("linear_fused", operands, allow_tf32=allows_tf32(input), epilogue=fused)


def _named_request(op: str, tensors: dict[str, Any], given: dict[str, Any]) -> Request | ByTorch:
    name, out_dtype = given.get("epilogue", "plain"), given.get("out_dtype")
    signature = signature_of(name)
    positional, scalars = positional_operands(name, signature, given["operands"])
    a, b = tensors.values()
    if torch.is_autocast_enabled():
        a, b, positional = cast_operands(a, b, positional, signature, out_dtype)
    beta = dict(zip(signature.scalars, scalars, strict=True)).get("beta", 1)
    declared = find(name)
    expression = declared.expr if declared else None
    served = served_by_torch(op, a, expression)
    if served is not None:
        return served
    allow_tf32 = allows_tf32(a)
    if out_dtype == torch.float32 and is_composed(a, name):
        inner, after = "mm" if a.dim() == 2 else "bmm", torch_text(expression)
        return Request(inner, [a, b], out_dtype, allow_tf32=allow_tf32, afterwards=after)
    return Request(op, [a, b, *positional], out_dtype, beta, allow_tf32, name)


_RequestOf = Callable[[str, dict[str, Any], dict[str, Any]], "Request | ByTorch"]


def _of_torchs(*tensors: str) -> tuple[Arguments, _RequestOf]:
    others = ("out", "beta", "alpha")
    return Arguments((*tensors, "out_dtype"), tensors, (), others), _gemm_request


_LINEAR = ("input", "weight", "bias")
_OPS: dict[str, tuple[Arguments, _RequestOf]] = {
    "mm": _of_torchs("input", "mat2"),
    "bmm": _of_torchs("input", "mat2"),
    "addmm": _of_torchs("input", "mat1", "mat2"),
    "baddbmm": _of_torchs("input", "batch1", "batch2"),
    "linear": (
        Arguments(
            _LINEAR,
            (*_LINEAR, "residual"),
            ("bias", "residual"),
            ("activation", "residual_after_activation"),
            ("residual",),
        ),
        _linear_request,
    ),
    "gated_linear": (
        Arguments(
            ("input", "weight", "activation", "bias"),
            (*_LINEAR, "up"),
            ("bias", "up"),
            ("interleaved",),
        ),
        _gated_request,
    ),
    "gemm": (
        Arguments(("a", "b", "epilogue"), ("a", "b"), (), ("out_dtype", "out"), ("a", "b")),
        _named_request,
    ),
    "scaled_mm": (SCALED_MM, scaled_request),
    **{name: (arguments, grouped_request) for name, arguments in GROUPED.items()},
    **{name: (arguments, conv_request) for name, arguments in CONV.items()},
}


def _explained_by_torch(op: str, request: ByTorch, tensors: dict[str, Any]) -> Explanation:
    parameters: dict[str, Any] = {"served_by": request.function, "because": request.because}
    if request.afterwards:
        parameters["afterwards"] = request.afterwards
    given = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    parameters["request"] = {
        name: f"{dtype_name(tensor.dtype)} {shape_text(tensor.shape)}"
        for name, tensor in given.items()
    }
    device = next(iter(given.values())).device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
    return Explanation(op, None, parameters, (), name)


def _explanation(op: str, data: dict[str, Any]) -> Explanation:
    plans: list[dict[str, Any]] = data.get("plans", [])
    chosen = plans[0] if plans else {}
    parameters = {key: value for key, value in chosen.items() if key != "row"}
    for key in ("choice", "table", "route", "operand_copies", "output_copy"):
        if key in data:
            parameters[key] = data[key]
    parameters["request"] = data.get("request", {})
    return Explanation(
        op=op,
        row=chosen.get("row"),
        parameters=parameters,
        candidates=(*plans, *data.get("rejected", [])),
        device=data.get("device", "?"),
    )
