"""explain's questions to the library, and the arguments of the functions that it knows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from ..ops._common import by_torch
from ..ops._common.errors import RAISED, reraise
from ..ops._common.precision import tf32_allowed


class Arguments(NamedTuple):
    """Names of a function's arguments."""

    positional: tuple[str, ...]
    tensors: tuple[str, ...]
    optional: tuple[str, ...] = ()
    """of the tensors"""
    others: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    """of the tensors, those that autocast leaves as they are"""

    def bind(self, op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Arguments by name."""
        if len(args) > len(self.positional):
            raise TypeError(
                f"explain: {op} takes at most {len(self.positional)} positional arguments"
            )
        given = dict(zip(self.positional, args, strict=False))
        known = {*self.positional, *self.tensors, *self.others}
        for key, value in kwargs.items():
            if key in given or key not in known:
                problem = "given twice" if key in given else f"no argument of {op}"
                raise TypeError(f"explain: {key} is {problem}")
            given[key] = value
        return given


class Request(NamedTuple):
    """A question to the library, in the order of its schema."""

    op: str
    """as the library calls it"""
    operands: list[Any]
    out_dtype: torch.dtype | None = None
    beta: float = 1
    allow_tf32: bool = False
    epilogue: str = ""
    recipe_a: int | None = None
    recipe_b: int | None = None
    use_fast_accum: bool = False
    geometry: Sequence[int] = ()
    """of a convolution"""
    afterwards: str = ""
    """what torch computes behind the kernel; empty: nothing"""

    def ask(self, op: str, optional: tuple[str, ...], tensors: dict[str, Any]) -> dict[str, Any]:
        """The library's answer about a call of the function `op`."""
        try:
            text = torch.ops.cutwheel._explain(*self[:-1])
        except RAISED as error:
            reraise(op, error, optional, **tensors)
        found: dict[str, Any] = json.loads(text)
        return found


class ByTorch(NamedTuple):
    """A call that torch computes, and why."""

    function: str
    because: str
    afterwards: str


def allows_tf32(operand: torch.Tensor) -> bool:
    return operand.dtype == torch.float32 and tf32_allowed()


def torch_text(*parts: str | None) -> str:
    """Names the parts that torch computes behind a kernel; empty: none."""
    text = ", ".join(part for part in parts if part is not None)
    return text and f"torch: {text}"


def served_by_torch(op: str, operand: torch.Tensor, *after: str | None) -> ByTorch | None:
    """None: torch does not compute the GEMM.

    Args:
        operand: its dtype is that of the GEMM
        after: what follows it
    """
    because = by_torch.why(operand)
    if because is None:
        return None
    return ByTorch(by_torch.FUNCTIONS[op], because, torch_text(*after))
