"""What is in this wheel, and which of its kernels a call would run."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch

from .. import _library  # noqa: F401  (registers torch.ops.cutwheel)
from ..ops import linear, scaled
from ..ops._common import by_torch
from ..ops._common.epilogue import find, signature_of
from ..ops._common.errors import RAISED, check_tensors, reraise
from ..ops._common.precision import autocast_operands, tf32_allowed
from ..ops.gemm._epilogue import cast_operands, is_composed, positional_operands
from ..ops.linear._gated import epilogue_of as gated_epilogue_of
from ._conv import (
    CONV,
    ByTorch,
    answer_of,
    by_torch_parameters,
    by_torch_text,
    conv_request,
    device_name,
)
from ._grouped import GROUPED, SCALED_MM, grouped_afterwards, grouped_request, take_scales

# As the library numbers them, with the names of their tensor arguments.
_OPERANDS = {
    "mm": ("input", "mat2"),
    "bmm": ("input", "mat2"),
    "addmm": ("input", "mat1", "mat2"),
    "baddbmm": ("input", "batch1", "batch2"),
    "linear": ("input", "weight", "bias"),
}
_NUMBERS = {op: number for number, op in enumerate(_OPERANDS)}
# These take the name of an epilogue; "linear" with an activation or a residual is one of them.
_GEMM, _LINEAR_FUSED = 5, 6
_SCALED_MM = 7
_OPS = (*_OPERANDS, "gated_linear", "gemm", "scaled_mm", *GROUPED, *CONV)
_KEYWORDS = {
    **{name: arguments.keywords for name, arguments in {**GROUPED, **CONV}.items()},
    "linear": ("activation", "residual", "residual_after_activation"),
    "gated_linear": (),
    "gemm": ("out_dtype", "out"),
    "scaled_mm": ("azp", "azp_adj", "out"),
}
_GEMM_ARGUMENTS = ("a", "b", "epilogue", *_KEYWORDS["gemm"])
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
    """What this wheel was built from: version, cutlass, nvcc, ptxas, compiler (of C++),
    torch_headers, cuda, cudart, archs, kernels.
    """
    info: dict[str, Any] = json.loads(torch.ops.cutwheel._build_info())
    info["archs"] = [arch for arch in str(info.get("archs", "")).split(";") if arch]
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
            "conv2d", "conv3d" or "scaled_conv2d", or the function itself
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
    if name == "gemm":
        return _explain_gemm(args, kwargs)
    if name == "gated_linear":
        return _explain_gated_linear(args, kwargs)
    if name == "scaled_mm":
        return _explain_scaled_mm(args, kwargs)
    if name in GROUPED:
        return _explain_grouped(name, args, kwargs)
    if name in CONV:
        return _explain_conv(name, args, kwargs)
    given = _bind(
        name, (*_OPERANDS[name], *(("out_dtype",) if name != "linear" else ())), args, kwargs
    )
    optional = ("bias", "residual")
    tensors = {key: given.get(key) for key in _OPERANDS[name]}
    if name == "linear":
        tensors["residual"] = given.get("residual")
    check_tensors(name, tensors, optional)
    if name == "linear":
        return _explain_linear_layer(given, tensors)
    operands, beta = _autocast(list(tensors.values())), given.get("beta", 1)
    out_dtype, factor = given.get("out_dtype"), operands[-1]
    served = _of_torch(name, factor, tensors)
    return served or _ask(name, _NUMBERS[name], operands, factor, out_dtype, beta, "", tensors)


def _bind(
    op: str, names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Arguments by name."""
    if len(args) > len(names):
        raise TypeError(f"explain: {op} takes at most {len(names)} positional arguments")
    given = dict(zip(names, args, strict=False))
    keywords = _KEYWORDS.get(op, ("out", "beta", "alpha"))
    for key, value in kwargs.items():
        if key in given or key not in (*names, *keywords):
            problem = "given twice" if key in given else f"no argument of {op}"
            raise TypeError(f"explain: {key} is {problem}")
        given[key] = value
    return given


def _autocast(operands: list[Any]) -> list[Any]:
    return list(autocast_operands(*operands)) if torch.is_autocast_enabled() else operands


def _explain_linear_layer(given: dict[str, Any], tensors: dict[str, Any]) -> Explanation:
    activation, is_last = given.get("activation"), given.get("residual_after_activation", False)
    input, weight, bias = _autocast(list(tensors.values())[:3])
    residual, afterwards = tensors["residual"], ""
    if residual is not None and residual.dtype != input.dtype and torch.is_autocast_enabled():
        afterwards = by_torch_text(None if is_last else activation, True)
        activation, residual = activation if is_last else None, None
    fused = linear.epilogue_of(input, weight, bias, activation, residual, is_last)
    served = _of_torch(
        "linear", input, tensors, activation, None if residual is None else "residual"
    )
    if served is not None:
        return served
    if fused is None:
        operands = [tensor for tensor in (input, weight, bias) if tensor is not None]
        explanation = _ask("linear", _NUMBERS["linear"], operands, input, None, 1, "", tensors)
    else:
        operands = [input, weight, bias, residual]
        explanation = _explain_linear("linear", operands, fused, tensors)
    if afterwards:
        explanation.parameters["afterwards"] = afterwards
    return explanation


def _explain_linear(
    op: str, operands: list[Any], fused: str, tensors: dict[str, Any]
) -> Explanation:
    """operands: input, weight, bias, residual"""
    input, weight, bias, _ = operands
    if fused != "bias_leaky_relu" or input.dim() < 2 or weight.dim() != 2:
        return _ask(op, _LINEAR_FUSED, operands, input, None, 1, fused, tensors)
    # The op for linear layers takes no slope: cutwheel.linear calls gemm.
    matrices = [input.flatten(0, -2), weight.t(), bias]
    return _ask(op, _GEMM, matrices, input, None, 1, fused, tensors)


def _explain_gated_linear(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Explanation:
    op = "gated_linear"
    given = _bind(op, ("input", "weight", "activation"), args, kwargs)
    tensors = {key: given.get(key) for key in ("input", "weight")}
    check_tensors(op, tensors)
    input, weight = _autocast(list(tensors.values()))
    activation = given.get("activation", "silu")
    fused = gated_epilogue_of(input, weight, activation)
    served = _of_torch(op, input, tensors, activation, "gate")
    return served or _explain_linear(op, [input, weight, None, None], fused, tensors)


def _explain_gemm(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Explanation:
    own = {key: value for key, value in kwargs.items() if key in _GEMM_ARGUMENTS}
    given = _bind("gemm", ("a", "b", "epilogue"), args, own)
    tensors: dict[str, Any] = {key: given.get(key) for key in ("a", "b")}
    check_tensors("gemm", tensors)
    name, out_dtype = given.get("epilogue", "plain"), given.get("out_dtype")
    signature = signature_of(name)
    operands = {key: value for key, value in kwargs.items() if key not in own}
    positional, scalars = positional_operands(name, signature, operands)
    a, b = tensors.values()
    if torch.is_autocast_enabled():
        a, b, positional = cast_operands(a, b, positional, signature, out_dtype)
    beta = dict(zip(signature.scalars, scalars, strict=True)).get("beta", 1)
    declared = find(name)
    expression = declared.expr if declared else None
    served = _of_torch("gemm", a, tensors, expression)
    if served is None and out_dtype == torch.float32 and is_composed(a, name):
        product = _NUMBERS["mm" if a.dim() == 2 else "bmm"]
        explanation = _ask("gemm", product, [a, b], a, out_dtype, 1, "", tensors)
        explanation.parameters["afterwards"] = f"torch: {expression}"
        return explanation
    request = (_GEMM, [a, b, *positional], a, out_dtype, beta, name, tensors)
    return served or _ask("gemm", *request)


def _explain_scaled_mm(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Explanation:
    op = "scaled_mm"
    given = _bind(op, SCALED_MM, args, kwargs)
    take_scales(op, given)
    optional = ("scale_a", "scale_b", "bias", "azp", "azp_adj")
    tensors: dict[str, Any] = {key: given.get(key) for key in ("mat_a", "mat_b", *optional)}
    check_tensors(op, tensors, optional)
    return _ask(
        op,
        _SCALED_MM,
        scaled.operands(**tensors),
        tensors["mat_a"],
        given.get("output_dtype", torch.bfloat16),
        1,
        "",
        tensors,
        scaled.code("scale_recipe_a", given.get("scale_recipe_a")),
        scaled.code("scale_recipe_b", given.get("scale_recipe_b")),
        given.get("use_fast_accum", False),
    )


def _explain_grouped(op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Explanation:
    arguments = GROUPED[op]
    given = _bind(op, arguments.positional, args, kwargs)
    if op == "scaled_grouped_mm":
        take_scales(op, given)
    tensors: dict[str, Any] = {key: given.get(key) for key in arguments.tensors}
    check_tensors(op, tensors, arguments.optional)
    if op != "scaled_grouped_mm":
        tensors = dict(zip(tensors, _autocast(list(tensors.values())), strict=True))
    request = grouped_request(op, tensors, given)
    if request is None:  # grouped_mm of two batches
        a, b, bias = tensors["mat_a"], tensors["mat_b"], tensors["bias"]
        if bias is None:
            return explain("bmm", a, b, out_dtype=given.get("out_dtype"))
        return explain("baddbmm", bias.unsqueeze(1), a, b, out_dtype=given.get("out_dtype"))
    number, operands, out_dtype, epilogue_name, use_fast_accum = request
    scaling = (None, None, use_fast_accum)
    asked = (number, operands, operands[0], out_dtype, 1, epilogue_name, tensors)
    explanation = _ask(op, *asked, *scaling)
    explanation.parameters.update(grouped_afterwards(op, tensors, given))
    return explanation


def _explain_conv(op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Explanation:
    arguments = CONV[op]
    given = _bind(op, arguments.positional, args, kwargs)
    tensors: dict[str, Any] = {key: given.get(key) for key in arguments.tensors}
    check_tensors(op, tensors, arguments.optional)
    if op != "scaled_conv2d":
        of_product = {key: value for key, value in tensors.items() if key != "residual"}
        cast = dict(zip(of_product, _autocast(list(of_product.values())), strict=True))
        tensors = {**cast, "residual": tensors["residual"]}
    request = conv_request(op, tensors, given)
    if isinstance(request, ByTorch):
        return Explanation(
            op, None, by_torch_parameters(request, tensors), (), device_name(tensors["input"])
        )
    try:
        text = answer_of(request)
    except RAISED as error:
        reraise(op, error, arguments.optional, **tensors)
    explanation = _explanation(op, json.loads(text))
    if request.afterwards:
        explanation.parameters["afterwards"] = request.afterwards
    return explanation


def _ask(
    op: str,
    number: int,
    operands: list[Any],
    factor: torch.Tensor,
    out_dtype: torch.dtype | None,
    beta: float,
    epilogue_name: str,
    tensors: dict[str, Any],
    *scaling: Any,
) -> Explanation:
    """The library's answer.

    Args:
        factor: an operand whose dtype is that of the product
        scaling: of scaled_mm, recipe_a, recipe_b and use_fast_accum
    """
    allow_tf32 = factor.dtype == torch.float32 and tf32_allowed()
    try:
        text = torch.ops.cutwheel._explain(
            number, operands, out_dtype, beta, allow_tf32, epilogue_name, *scaling
        )
    except RAISED as error:
        reraise(op, error, tuple(tensors), **tensors)
    return _explanation(op, json.loads(text))


def _of_torch(
    op: str, factor: torch.Tensor, tensors: dict[str, Any], *after: str | None
) -> Explanation | None:
    """None: torch does not compute the product.

    Args:
        after: what follows the product
    """
    because = by_torch.why(factor)
    if because is None:
        return None
    afterwards = ", ".join(each for each in after if each is not None)
    request = ByTorch(by_torch.FUNCTIONS[op], because, afterwards and f"torch: {afterwards}")
    return Explanation(op, None, by_torch_parameters(request, tensors), (), device_name(factor))


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
