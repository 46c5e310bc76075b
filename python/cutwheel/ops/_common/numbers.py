"""Numbers that are none of Python's own: numpy's scalars, and tensors of no dimension."""

from __future__ import annotations

import operator
import sys
from typing import Any

import torch
from torch import Tensor

from ...errors import DtypeError


def number(op: str, name: str, value: Any) -> float:
    """A scalar of an epilogue, of what torch takes for a number.

    Raises:
        TypeError: it is none, or a tensor that requires grad or has dimensions
    """
    if isinstance(value, Tensor):
        if value.dim() != 0 or value.requires_grad:
            what = "requires grad" if value.requires_grad else f"has {value.dim()} dimensions"
            raise TypeError(f"{op}: {name} is a Tensor that {what}; expected a number")
        value = value.item()
    numpy = sys.modules.get("numpy")  # what is not imported has made no scalars
    real: tuple[Any, ...] = (int, float)
    others: tuple[Any, ...] = (complex,)
    if numpy is not None:
        real = (*real, numpy.integer, numpy.floating, numpy.bool_)
        others = (*others, numpy.complexfloating)
    if isinstance(value, real):
        return float(value)
    kind = DtypeError if isinstance(value, others) else TypeError
    raise kind(f"{op}: {name} is of type {type(value).__name__}; expected a number")


def integer(op: str, name: str, value: Any) -> int:
    """One of a stride, a padding or a dilation.

    Raises:
        TypeError: it is no whole number
    """
    if isinstance(value, (int, torch.SymInt)):
        return value  # type: ignore[return-value]
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(
            f"{op}: {name} is {value!r}; expected a number, or one for each dimension"
        ) from None
