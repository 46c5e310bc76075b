"""Meta functions: shape, dtype and strides of an op's results, for the ops of all families.

torch.compile, torch.export and meta tensors run these instead of the kernels. They refuse only what
leaves a result undefined, in the library's words; the library checks every argument at the call.
Sizes that must agree are conditions, also where a trace does not know them: what follows the op may
take them for one size then.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..._library import release_of
from ...errors import ArgumentError, ShapeError
from . import fallbacks
from .epilogue import Epilogue, epilogues, find
from .errors import check_dims, check_one_device, reraise, shape_text

Shape = tuple[Any, ...]


def register(functions: Mapping[str, Callable[..., Any] | None]) -> None:
    """Gives ops their meta functions, by name.

    A function has those parameters of its op that it needs, or `arguments` for all of them by name;
    None: the op returns nothing.
    """
    for name, infer in functions.items():
        packet, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops.cutwheel, packet), overload or "default")
        torch.library.register_fake(f"cutwheel::{name}", _of_named_arguments(op, infer))
        fallbacks.ops.append(op)


def _of_named_arguments(op: Any, infer: Callable[..., Any] | None) -> Callable[..., Any]:
    defaults = {argument.name: argument.default_value for argument in op._schema.arguments}
    wanted = tuple(inspect.signature(infer).parameters) if infer else ()

    def meta(*given: Any, **named: Any) -> Any:
        arguments = {**defaults, **dict(zip(defaults, given, strict=False)), **named}
        fallbacks.make_fallbacks()
        check_devices(op, arguments)
        if infer is None:
            return None
        return infer(*[arguments if n == "arguments" else arguments[n] for n in wanted])

    return meta


def check_devices(op: Any, arguments: dict[str, Any]) -> None:
    """Checks that the tensors are on one device, and not on the CPU."""
    tensors: dict[str, Any] = {}
    for name, value in arguments.items():
        several = isinstance(value, (list, tuple))
        tensors |= {f"{name}[{i}]": x for i, x in enumerate(value)} if several else {name: value}
    tensors = {name: value for name, value in tensors.items() if isinstance(value, Tensor)}
    public = op._schema.name.removeprefix("cutwheel::")
    for suffix in ("_aux", "_fused"):
        public = public.removesuffix(suffix)
    if public == "conv2d_grouped":
        public = "conv2d"
    if all(tensor.device.type == "cpu" for tensor in tensors.values()) and not _may_be_sharded():
        _refuse_cpu(public, op, arguments)
    check_one_device(public, tensors)


def _may_be_sharded() -> bool:
    """Whether fake tensors on the CPU may stand for those of a DTensor.

    Up to torch 2.12 it asks for shapes with them, whatever device its mesh has. The library refuses
    the CPU at the call.
    """
    is_there = torch.distributed.is_available() and torch.distributed.is_initialized()
    return is_there and release_of(torch.__version__) < (2, 13)


def _refuse_cpu(name: str, op: Any, arguments: dict[str, Any]) -> None:
    """Asks the library's CPU kernel, which refuses whatever it is given."""

    def real(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [real(each) for each in value]
        if isinstance(value, Tensor):
            return torch.empty(0)
        return 1 if isinstance(value, torch.SymInt) else value

    with torch.utils._python_dispatch._disable_current_modes():
        try:
            op(**{name: real(value) for name, value in arguments.items()})
        except RuntimeError as error:
            reraise(name, error)


def check_value(condition: Any, text: str) -> None:
    """Unlike `if`, takes conditions on sizes that torch.export does not know."""
    torch._check_with(ShapeError, condition, lambda: text)


def check_shape(op: str, name: str, tensor: Tensor, expected: Sequence[Any], why: str = "") -> None:
    """Checks the sizes that `expected` has as numbers; text in it stands for any size."""
    text = (
        f"{op}: {name} has shape {shape_text(tensor.shape)}; expected {shape_text(expected)}{why}"
    )
    check_value(tensor.dim() == len(expected), text)
    for size, wanted in zip(tensor.shape, expected, strict=True):
        if not isinstance(wanted, str):
            check_value(size == wanted, text)


def check_operand(op: str, names: tuple[str, str], a: Tensor, b: Tensor, *expected: Any) -> None:
    """Checks the sizes of B that are those of A, its batch and K."""
    check_dims(op, names[1], b, len(expected))
    check_shape(op, names[1], b, expected, f" as {names[0]} has shape {shape_text(a.shape)}")


def matmul_shape(op: str, names: tuple[str, str], a: Tensor, b: Tensor, dims: int) -> Shape:
    """Shape of a @ b, matrices or batches of matrices."""
    check_dims(op, names[0], a, dims)
    check_operand(op, names, a, b, *a.shape[:-2], a.shape[-1], "N")
    return (*a.shape[:-1], b.shape[-1])


def check_residual(op: str, residual: Tensor | None, shape: Sequence[Any]) -> None:
    if residual is not None:
        check_shape(op, "residual", residual, shape, ", the shape of the result")


def declared_epilogue(op: str, name: str) -> Epilogue:
    found = find(name)
    if found is None:
        declared = ", ".join(epilogue.name for epilogue in epilogues())
        raise ArgumentError(
            f'{op}: epilogue "{name}" is not declared in this wheel; declared: {declared}'
        )
    return found


def result_width(epilogue: Epilogue, n: Any) -> Any:
    """Columns of D, where the accumulator has `n`."""
    return {"same": n, "half": n // 2, "twice": 2 * n}[epilogue.width]
