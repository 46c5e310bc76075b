"""Fake kernels: shapes, dtypes and strides of the results, and the library's argument checks.

torch.compile, torch.export and meta tensors run these instead of the kernels. Results are
contiguous, as the library's are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..errors import ArgumentError, DeviceError, DtypeError, ShapeError
from ._sizes import known

# Takes conditions on sizes that torch.export does not know, unlike `if`.
check_value: Callable[[Any, Callable[[], str]], None] = functools.partial(
    torch._check_with, ShapeError
)
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
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


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def shape_text(shape: Any) -> str:
    return f"[{', '.join(str(size) for size in shape)}]"


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


def _check_addend(
    op: str, c: torch.Tensor, shape: Shape, operand: torch.dtype, result: torch.dtype
) -> None:
    if c.dtype not in (operand, result):
        raise DtypeError(
            f"{op}: input has dtype {dtype_name(c.dtype)}; expected {dtype_name(operand)}"
        )

    def text() -> str:
        return (
            f"{op}: input has shape {shape_text(c.shape)}; expected one that broadcasts to "
            f"{shape_text(shape)}"
        )

    check_value(c.dim() <= len(shape), text)
    for size, wanted in zip(reversed(c.shape), reversed(shape), strict=False):
        # As torch's own ops do, this takes a size that is not known for none of 1.
        if not known(size == 1):
            check_value(size == wanted, text)


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


def _product(op: str, dims: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
    names = ("input", "mat2")

    def functional(
        input: torch.Tensor,
        mat2: torch.Tensor,
        out_dtype: torch.dtype | None = None,
        allow_tf32: bool = False,
    ) -> torch.Tensor:
        check_devices(op, {"input": input, "mat2": mat2})
        shape = result_shape(op, names, input, mat2, dims)
        dtype = result_dtype(op, names, input, mat2, out_dtype, allow_tf32)
        return input.new_empty(shape, dtype=dtype)

    def out_variant(
        input: torch.Tensor, mat2: torch.Tensor, allow_tf32: bool = False, *, out: torch.Tensor
    ) -> None:
        check_devices(op, {"input": input, "mat2": mat2, "out": out})
        shape = result_shape(op, names, input, mat2, dims)
        result_dtype(op, names, input, mat2, out.dtype, allow_tf32, "out has dtype")
        check_out(op, out, shape)

    return functional, out_variant


def _product_with_addend(
    op: str, dims: int, names: Names
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def functional(
        input: torch.Tensor,
        a: torch.Tensor,
        b: torch.Tensor,
        out_dtype: torch.dtype | None = None,
        beta: float = 1,
        alpha: float = 1,
        allow_tf32: bool = False,
    ) -> torch.Tensor:
        check_devices(op, {names[0]: a, names[1]: b, "input": input})
        shape = result_shape(op, names, a, b, dims)
        dtype = result_dtype(op, names, a, b, out_dtype, allow_tf32)
        _check_addend(op, input, shape, a.dtype, dtype)
        return a.new_empty(shape, dtype=dtype)

    def out_variant(
        input: torch.Tensor,
        a: torch.Tensor,
        b: torch.Tensor,
        beta: float = 1,
        alpha: float = 1,
        allow_tf32: bool = False,
        *,
        out: torch.Tensor,
    ) -> None:
        check_devices(op, {names[0]: a, names[1]: b, "input": input, "out": out})
        shape = result_shape(op, names, a, b, dims)
        dtype = result_dtype(op, names, a, b, out.dtype, allow_tf32, "out has dtype")
        _check_addend(op, input, shape, a.dtype, dtype)
        check_out(op, out, shape)

    return functional, out_variant


def check_linear(
    op: str,
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    allow_tf32: bool,
) -> tuple[torch.dtype, Shape]:
    """Dtype and shape of input @ weight.T + bias."""
    if input.dim() < 1:
        raise ShapeError(f"{op}: input has no dimensions; expected [..., K]")
    check_dims(op, "weight", weight, 2)
    dtype = result_dtype(op, ("input", "weight"), input, weight, None, allow_tf32)
    n, k = weight.shape
    check_value(
        k == input.shape[-1],
        lambda: (
            f"{op}: weight has shape {shape_text(weight.shape)}; expected [N, {input.shape[-1]}] "
            f"as input has shape {shape_text(input.shape)}"
        ),
    )
    if bias is not None:
        if bias.dtype != dtype:
            raise DtypeError(
                f"{op}: bias has dtype {dtype_name(bias.dtype)}; expected {dtype_name(dtype)}"
            )
        check_shape(
            bias.shape,
            (n,),
            lambda: f"{op}: bias has shape {shape_text(bias.shape)}; expected [{n}]",
        )
    return dtype, (*input.shape[:-1], n)


def _linear(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    allow_tf32: bool = False,
) -> torch.Tensor:
    check_devices("linear", {"input": input, "weight": weight, "bias": bias})
    dtype, shape = check_linear("linear", input, weight, bias, allow_tf32)
    return input.new_empty(shape, dtype=dtype)


def register() -> None:
    """Gives every op of the library its fake kernel."""
    pairs = {
        "mm": _product("mm", 2),
        "bmm": _product("bmm", 3),
        "addmm": _product_with_addend("addmm", 2, ("mat1", "mat2")),
        "baddbmm": _product_with_addend("baddbmm", 3, ("batch1", "batch2")),
    }
    for op, (functional, out_variant) in pairs.items():
        torch.library.register_fake(f"cutwheel::{op}", functional)
        torch.library.register_fake(f"cutwheel::{op}.out", out_variant)
    torch.library.register_fake("cutwheel::linear", _linear)
