"""The op library's errors, which arrive as RuntimeError, as the exception classes they name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor

from ...errors import ArgumentError, DeviceError, DtypeError, ScaledDtypeError, ShapeError

_CLASSES: dict[str, type[Exception]] = {
    "TypeError": DtypeError,
    "ValueError": ArgumentError,
    "ShapeError": ShapeError,
    "DeviceError": DeviceError,
    "RuntimeError": RuntimeError,
    "NotImplementedError": NotImplementedError,
}
# The library throws "cutwheel.<class>: <text>"; torch may add a C++ backtrace after it.
_PREFIX = re.compile(
    rf"cutwheel\.({'|'.join(_CLASSES)}): (.*?)(?=\nException raised from |\Z)", re.DOTALL
)
# Where torch raises ValueError for a dtype.
_SCALED = ("scaled_mm", "scaled_grouped_mm")
# Some functions are made of ops that do not know for whom they work.
_OP_NAME = re.compile(
    r"^(?:linear|gemm|grouped_linear|grouped_mm(?:_accumulate)?|conv[23]d(?:_fused)?"
    r"|conv_transpose[23]d|moe_\w+): "
)
# The advice to callers on the CPU, in ops that serve another function than torch's namesake.
_INSTEAD = re.compile(r"or use torch\.[\w.]+")
_TORCH_NAMES = {
    "linear": "torch.nn.functional.linear",
    "matmul": "torch.matmul",
    "grouped_mm": "torch.nn.functional.grouped_mm",
    "conv1d": "torch.nn.functional.conv1d",
    "conv3d": "torch.nn.functional.conv3d",
    **{f"conv_transpose{n}d": f"torch.nn.functional.conv_transpose{n}d" for n in (1, 3)},
}
# The dispatcher says so when a value does not fit the schema.
_SCHEMA_MISMATCH = "Expected a value of type"

# The library's words for a None that the dispatcher took for a tensor.
_NO_TENSOR = " is None; expected a Tensor"

_DTYPE_ARGUMENT = re.compile(r"'(?:Optional\[int\]|int)' for argument '((?:out_|output_)?dtype)'")

# A call of an op may raise these before the error is put into words: the library's own, and the
# AttributeError of an argument that is no tensor, which the fast path does not look for.
RAISED = (RuntimeError, AttributeError)

_NO_MEMORY = re.compile(
    r"cutwheel\.OutOfMemoryError: (.*?)(?=\nException raised from |\Z)", re.DOTALL
)
# Instead of the allocator's text, which torch tells the library from 2.13 on.
_ALLOCATION = re.compile(r"Tried to allocate (\d+) bytes on GPU (\d+)")


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def shape_text(shape: Any) -> str:
    return f"[{', '.join(str(size) for size in shape)}]"


def wrong_dtype(op: str, name: str, given: torch.dtype, wanted: Any, why: str = "") -> DtypeError:
    """The error of an argument whose dtype is not `wanted`, a dtype or text."""
    return DtypeError(
        f"{op}: {name} has dtype {dtype_name(given)}; expected {dtype_name(wanted)}{why}"
    )


def wrong_shape(op: str, name: str, tensor: Tensor, wanted: Any, why: str = "") -> ShapeError:
    """The error of an argument whose shape is not `wanted`, sizes or text."""
    wanted = wanted if isinstance(wanted, str) else shape_text(wanted)
    return ShapeError(f"{op}: {name} has shape {shape_text(tensor.shape)}; expected {wanted}{why}")


def check_dims(op: str, name: str, tensor: Tensor, *dims: int) -> None:
    if tensor.dim() not in dims:
        raise ShapeError(
            f"{op}: {name} has {tensor.dim()} dimensions (shape {shape_text(tensor.shape)}); "
            f"expected {' or '.join(map(str, dims))}"
        )


def check_one_device(op: str, tensors: Mapping[str, Tensor]) -> None:
    (first, reference), *others = tensors.items()
    for name, tensor in others:
        if tensor.device != reference.device:
            raise DeviceError(
                f"{op}: {name} is on {tensor.device} and {first} is on {reference.device}; "
                "all tensors must be on the same device"
            )


def _in_the_name_of(op: str, text: str, named: re.Pattern[str]) -> str:
    text = named.sub(f"{op}: ", text)
    if op in _TORCH_NAMES:
        text = _INSTEAD.sub(f"or use {_TORCH_NAMES[op]}", text)
    return text


def raise_as(op: str, error: Exception, of: dict[str, dict[str, str]]) -> NoReturn:
    """Raises the error of a public op in the name of the function that is made of it.

    Args:
        op: name of the function
        error: what one of the ops that it called has raised
        of: for each of them, the arguments that the caller knows by another name, and that name
    """
    text = str(error)
    inner = text.partition(":")[0]
    if inner not in of:
        raise error
    names = of[inner]
    text = text.removeprefix(f"{inner}: ")
    if names:
        text = re.sub(rf"\b(?:{'|'.join(names)})\b", lambda found: names[found[0]], text)
    raise type(error)(_in_the_name_of(op, text, re.compile(r"^"))) from None


def check_tensors(op: str, arguments: dict[str, Any], optional: tuple[str, ...] = ()) -> None:
    """Raises TypeError for the first of the arguments that is not a Tensor."""
    for name, value in arguments.items():
        if not isinstance(value, Tensor) and not (value is None and name in optional):
            kind = "None" if value is None else f"of type {type(value).__name__}"
            raise TypeError(f"{op}: {name} is {kind}; expected a Tensor") from None


def out_of_memory(error: Exception) -> Exception:
    """torch.OutOfMemoryError with the allocator's text, if `error` stands for one; else `error`.

    Where torch did not tell that text, the allocator is asked for the same memory once more; but
    not while a graph is captured, which would keep it.
    """
    found = _NO_MEMORY.search(str(error))
    if found is None:
        return error
    allocation = _ALLOCATION.search(found[1])
    if allocation and not torch.cuda.is_current_stream_capturing():
        try:
            torch.empty(int(allocation[1]), dtype=torch.uint8, device=f"cuda:{allocation[2]}")
        except RuntimeError as again:
            return again
    return torch.OutOfMemoryError(found[1])  # there is memory by now, which there was not


def reraise(op: str, error: Exception, optional: tuple[str, ...] = (), **tensors: Any) -> NoReturn:
    """Raises `error` as the class it stands for.

    Args:
        op: name of the function that was called
        error: what it raised
        optional: names of tensor arguments that may be None
        tensors: the tensor arguments by name
    """
    text = str(error)
    if _NO_MEMORY.search(text):
        raise out_of_memory(error) from None
    found = _PREFIX.search(text)
    if found:
        kind = _CLASSES[found[1]]
        if _NO_TENSOR in found[2]:
            kind = TypeError
        elif kind is DtypeError and op in _SCALED:
            kind = ScaledDtypeError
        raise kind(_in_the_name_of(op, found[2], _OP_NAME)) from None
    if isinstance(error, AttributeError) or _SCHEMA_MISMATCH in text:
        check_tensors(op, tensors, optional)
    if _SCHEMA_MISMATCH in text:
        # "cutwheel::mm() Expected a value of type 'float' for argument 'alpha' but ..."
        sentence = text.partition(_SCHEMA_MISMATCH)[2].partition("\n")[0]
        # The schema's name of a dtype means nothing to the caller.
        sentence = _DTYPE_ARGUMENT.sub(r"torch.dtype for argument '\1'", sentence)
        # torch takes a complex number for a number, of a dtype that does not fit.
        kind = DtypeError if "found type 'complex'" in sentence else TypeError
        raise kind(f"{op}: expected a value of type{sentence}") from None
    inner = _OP_NAME.match(text)
    if (
        inner
        and inner[0] != f"{op}: "
        and isinstance(error, (ArgumentError, DtypeError, NotImplementedError))
    ):
        raise type(error)(_in_the_name_of(op, text, _OP_NAME)) from None  # of a meta function
    raise error
