"""Fake kernels: shapes, dtypes and strides of the results, and the library's argument checks.

torch.compile, torch.export and meta tensors run these instead of the kernels. Results are
contiguous, as the library's are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ...errors import ArgumentError, DeviceError, DtypeError, ShapeError
from .epilogue import Epilogue, epilogues, find
from .errors import dtype_name, shape_text
from .precision import DTYPES
from .sizes import known

# Takes conditions on sizes that torch.export does not know, unlike `if`.
check_value: Callable[[Any, Callable[[], str]], None] = functools.partial(
    torch._check_with, ShapeError
)
# What torch has for an op, where it has another name; None: nothing.
_TORCH_NAMES = {
    "linear": "nn.functional.linear",
    "gated_linear": "nn.functional.linear",
    "gemm": "matmul",
    "elementwise": "nn.functional",
    "scaled_mm": "_scaled_mm",
    "quantize": None,
    "grouped_mm": "nn.functional.grouped_mm",
    "grouped_mm_accumulate": None,
    "grouped_linear": None,
    "grouped_gated_linear": None,
    "scaled_grouped_mm": None,
    "conv2d": "nn.functional.conv2d",
    "conv2d_input_grad": "nn.grad.conv2d_input",
    "conv2d_weight_grad": "nn.grad.conv2d_weight",
    "scaled_conv2d": None,
}
Names = tuple[str, str]
Shape = tuple[Any, ...]


def check_devices(op: str, tensors: Mapping[str, torch.Tensor | None]) -> None:
    """Of the tensors that are given: all on one device, and not on the CPU."""
    given = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    (first, reference), *others = given.items()
    if all(tensor.device.type == "cpu" for tensor in given.values()):
        instead = _TORCH_NAMES.get(op, op)
        raise NotImplementedError(
            f"{op}: the tensors are on the CPU; cutwheel's kernels run on CUDA devices: move them "
            f'with .to("cuda")' + (f", or use torch.{instead}" if instead else "")
        )
    for name, tensor in others:
        if tensor.device != reference.device:
            raise DeviceError(
                f"{op}: {name} is on {tensor.device} and {first} is on {reference.device}; "
                "all tensors must be on the same device"
            )


def check_shape(shape: Shape, expected: Shape, text: Callable[[], str]) -> None:
    check_value(len(shape) == len(expected), text)
    for size, wanted in zip(shape, expected, strict=True):
        check_value(size == wanted, text)


def check_dims(op: str, name: str, tensor: torch.Tensor, dims: int) -> None:
    if tensor.dim() != dims:
        raise ShapeError(
            f"{op}: {name} has {tensor.dim()} dimensions (shape {shape_text(tensor.shape)}); "
            f"expected {dims}"
        )


def result_dtype(
    op: str,
    names: Names,
    a: torch.Tensor,
    b: torch.Tensor,
    out_dtype: torch.dtype | None,
    allow_tf32: bool,
    out_name: str = "out_dtype is",
) -> torch.dtype:
    if a.dtype not in DTYPES:
        raise DtypeError(
            f"{op}: {names[0]} has dtype {dtype_name(a.dtype)}; expected float16, bfloat16 or "
            "float32"
        )
    if b.dtype != a.dtype:
        raise DtypeError(
            f"{op}: {names[1]} has dtype {dtype_name(b.dtype)}; expected {dtype_name(a.dtype)} as "
            f"{names[0]} has"
        )
    dtype = a.dtype if out_dtype is None else out_dtype
    if dtype not in (a.dtype, torch.float32):
        wanted = "float32" if a.dtype == torch.float32 else f"{dtype_name(a.dtype)} or float32"
        raise DtypeError(f"{op}: {out_name} {dtype_name(dtype)}; expected {wanted}")
    if a.dtype == torch.float32 and not allow_tf32:
        raise RuntimeError(
            f"{op}: float32 operands are multiplied on TF32 tensor cores only, and torch's setting "
            "forbids TF32; allow it with torch.backends.cuda.matmul.fp32_precision = "
            '"tf32" (or torch.set_float32_matmul_precision("high")), or pass float16 or bfloat16'
        )
    return dtype


def result_shape(op: str, names: Names, a: torch.Tensor, b: torch.Tensor, dims: int) -> Shape:
    check_dims(op, names[0], a, dims)
    check_dims(op, names[1], b, dims)
    batch = (a.shape[0],) if dims == 3 else ()
    for size, wanted in zip((*b.shape[:-2], b.shape[-2]), (*batch, a.shape[-1]), strict=True):
        check_value(
            size == wanted,
            lambda: (
                f"{op}: {names[1]} has shape {shape_text(b.shape)}; expected "
                f"{shape_text((*batch, a.shape[-1], 'N'))} as {names[0]} has shape "
                f"{shape_text(a.shape)}"
            ),
        )
    return (*batch, a.shape[-2], b.shape[-1])


def check_out(op: str, out: torch.Tensor, shape: Shape) -> None:
    """Of its shape and strides; its dtype is part of result_dtype."""
    check_shape(
        out.shape,
        shape,
        lambda: (
            f"{op}: out has shape {shape_text(out.shape)}; expected {shape_text(shape)} (out is "
            "never resized)"
        ),
    )
    places = zip(out.shape, out.stride(), strict=True)
    if any(known(stride == 0) and known(size > 1) for size, stride in places):
        raise ArgumentError(
            f"{op}: out overlaps itself (an expanded view?); expected memory of its own for each "
            "element"
        )


def declared_epilogue(op: str, name: str) -> Epilogue:
    found = find(name)
    if found is None:
        declared = ", ".join(epilogue.name for epilogue in epilogues())
        raise ArgumentError(
            f'{op}: epilogue "{name}" is not declared in this wheel; declared: {declared}'
        )
    return found


def result_width(epilogue: Epilogue, n: Any) -> Any:
    """Columns of D, where the product has `n`."""
    return {"same": n, "half": n // 2, "twice": 2 * n}[epilogue.width]


def check_even(op: str, epilogue: Epilogue, name: str, n: Any) -> None:
    if epilogue.width == "half":
        check_value(
            n % 2 == 0,
            lambda: (
                f"{op}: {name} makes {n} columns; expected an even number, as epilogue "
                f'"{epilogue.name}" takes them in pairs'
            ),
        )


def check_dtype(op: str, name: str, tensor: torch.Tensor, dtype: torch.dtype) -> None:
    if tensor.dtype != dtype:
        raise DtypeError(
            f"{op}: {name} has dtype {dtype_name(tensor.dtype)}; expected {dtype_name(dtype)}"
        )


def check_shapes(op: str, name: str, tensor: torch.Tensor, *allowed: Shape) -> None:
    """That it is one of the shapes, which are of different lengths."""
    expected = next((shape for shape in allowed if len(shape) == tensor.dim()), allowed[0])
    check_shape(
        tensor.shape,
        expected,
        lambda: (
            f"{op}: {name} has shape {shape_text(tensor.shape)}; expected "
            f"{' or '.join(shape_text(shape) for shape in allowed)}"
        ),
    )
