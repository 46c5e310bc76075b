"""What is in this wheel, and which of its kernels a call would run."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch

from . import _library  # noqa: F401  (registers torch.ops.cutwheel)
from .ops._errors import RAISED, check_tensors, reraise
from .ops._precision import autocast_operands, tf32_allowed

# As the library numbers them, with the names of their tensor arguments.
_OPERANDS = {
    "mm": ("input", "mat2"),
    "bmm": ("input", "mat2"),
    "addmm": ("input", "mat1", "mat2"),
    "baddbmm": ("input", "batch1", "batch2"),
    "linear": ("input", "weight", "bias"),
}
_NUMBERS = {op: number for number, op in enumerate(_OPERANDS)}
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
    layout: str
    """of A, B and D: t is row-major, n is column-major"""
    epilogue: str
    tile: tuple[int, ...]
    """threadblock tile, M x N x K"""
    cluster: tuple[int, ...]
    stages: int | None
    """None: as many as shared memory holds"""
    schedule: str
    swap_ab: bool
    alignment: int
    """of the operands, in elements"""
    shared_memory_bytes: int | None = None

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
    """What this wheel was built from: version, cutlass, nvcc, cuda, cudart, archs, kernels."""
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
    """of the launch: raster, swizzle, splits, ..., and of the request it serves"""
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
            lines.append("slower by the cost model:")
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
        op: "mm", "bmm", "addmm", "baddbmm" or "linear", or the function itself
        args, kwargs: as for the op; CUDA tensors. alpha does not matter. out= is not looked at: a
            call with a column-major or unaligned one may run another kernel

    Raises:
        ValueError: an unknown op, or arguments the op refuses
        TypeError: an argument of the op is missing or no tensor
    """
    name = op if isinstance(op, str) else getattr(op, "__name__", str(op))
    if name not in _OPERANDS:
        raise ValueError(f"explain: op is {name!r}; expected one of {', '.join(_OPERANDS)}")
    names = (*_OPERANDS[name], *(("out_dtype",) if name != "linear" else ()))
    if len(args) > len(names):
        raise TypeError(f"explain: {name} takes at most {len(names)} positional arguments")
    given = dict(zip(names, args, strict=False))
    for key, value in kwargs.items():
        if key in given or key not in (*names, "out", "beta", "alpha"):
            problem = "given twice" if key in given else f"no argument of {name}"
            raise TypeError(f"explain: {key} is {problem}")
        given[key] = value
    optional = ("bias",)
    tensors = {key: given.get(key) for key in _OPERANDS[name]}
    check_tensors(name, tensors, optional)
    operands = [tensor for tensor in tensors.values() if tensor is not None]
    if torch.is_autocast_enabled():
        operands = list(autocast_operands(*operands))
    factor = operands[-1] if name != "linear" else operands[0]
    allow_tf32 = factor.dtype == torch.float32 and tf32_allowed()
    number, out_dtype = _NUMBERS[name], given.get("out_dtype")
    try:
        text = torch.ops.cutwheel._explain(
            number, operands, out_dtype, given.get("beta", 1), allow_tf32
        )
    except RAISED as error:
        reraise(name, error, optional, **tensors)
    return _explanation(name, json.loads(text))


def _explanation(op: str, data: dict[str, Any]) -> Explanation:
    plans: list[dict[str, Any]] = data.get("plans", [])
    chosen = plans[0] if plans else {}
    parameters = {key: value for key, value in chosen.items() if key != "row"}
    for key in ("operand_copies", "output_copy"):
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
