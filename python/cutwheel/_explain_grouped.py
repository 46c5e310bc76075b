"""What explain asks the library about grouped products."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from .ops import grouped_linear as layers
from .ops.grouped import with_row_major


class Arguments(NamedTuple):
    """Of an op, by name."""

    positional: tuple[str, ...]
    tensors: tuple[str, ...]
    optional: tuple[str, ...]
    """of the tensors"""
    others: tuple[str, ...]

    @property
    def keywords(self) -> tuple[str, ...]:
        named = (*self.tensors, *self.others)
        return tuple(name for name in named if name not in self.positional)


GROUPED = {
    "grouped_mm": Arguments(
        ("a", "b"),
        ("a", "b", "offs", "bias", "accumulate_into"),
        ("offs", "bias", "accumulate_into"),
        ("out_dtype",),
    ),
    "grouped_linear": Arguments(
        ("input", "weight"), ("input", "weight", "offs", "bias"), ("bias",), ("activation",)
    ),
    "grouped_gated_linear": Arguments(
        ("input", "weight"), ("input", "weight", "offs"), (), ("activation",)
    ),
    "scaled_grouped_mm": Arguments(
        ("a", "b", "scale_a", "scale_b"),
        ("a", "b", "scale_a", "scale_b", "offs", "bias"),
        ("bias",),
        ("out_dtype", "use_fast_accum"),
    ),
}

# As the library numbers them.
_MM, _ACCUMULATE, _LINEAR, _SCALED = 8, 9, 10, 11

Request = tuple[int, list[Any], "torch.dtype | None", str, bool]


def grouped_request(op: str, tensors: dict[str, Any], given: dict[str, Any]) -> Request | None:
    """Number of the op, operands, out_dtype, epilogue and use_fast_accum; None: nothing is grouped.

    Raises:
        ValueError: as the op
    """
    if op == "scaled_grouped_mm":
        out_dtype = given.get("out_dtype", torch.bfloat16)
        return _SCALED, [*tensors.values()], out_dtype, "", given.get("use_fast_accum", False)
    if op == "grouped_mm":
        return _of_product(tensors, given.get("out_dtype"))
    input, weight, offs = tensors["input"], tensors["weight"], tensors["offs"]
    bias = tensors.get("bias")
    activation = given.get("activation", "silu" if op == "grouped_gated_linear" else None)
    name = layers.epilogue_of(op, input, weight, bias, activation)
    if name is None:
        return _MM, [input, weight.mT, offs, bias], None, "", False
    return _LINEAR, [input, weight, offs, bias], None, name, False


def _of_product(tensors: dict[str, Any], out_dtype: torch.dtype | None) -> Request | None:
    a, b, offs, bias, total = tensors.values()
    ranks = a.dim(), b.dim()
    if ranks == (3, 3) and offs is None:
        return None
    if offs is None:
        raise ValueError("grouped_mm: offs is None; expected the end of each group, [G]")
    if total is not None and ranks == (2, 2):
        a, b, total = with_row_major(a, b, total)
        return _ACCUMULATE, [a, b, offs, total], None, "", False
    if ranks == (3, 2):
        a, b = b.mT, a.mT
    return _MM, [a, b, offs, bias], out_dtype, "", False
