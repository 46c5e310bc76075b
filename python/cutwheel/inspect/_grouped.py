"""What explain asks the library about grouped products."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ..ops._common.errors import check_tensors
from ..ops.grouped import _linear as layers
from ..ops.grouped import with_row_major
from ..ops.scaled._grouped import code as scaled_code
from ..ops.scaled._torch_arguments import check_grouped_recipes, plain_scales


class Arguments(NamedTuple):
    """Names of an op's arguments."""

    positional: tuple[str, ...]
    tensors: tuple[str, ...]
    optional: tuple[str, ...]
    """of the tensors"""
    others: tuple[str, ...]

    @property
    def keywords(self) -> tuple[str, ...]:
        named = (*self.tensors, *self.others)
        return tuple(name for name in named if name not in self.positional)


_RECIPES = ("scale_recipe_a", "scale_recipe_b")
_FACTORS = ("mat_a", "mat_b", "scale_a", _RECIPES[0], "scale_b", _RECIPES[1])
_SWIZZLES, _LAST = ("swizzle_a", "swizzle_b"), ("output_dtype", "contraction_dim", "use_fast_accum")
SCALED_MM = (*_FACTORS, *_SWIZZLES, "bias", *_LAST)
"""the arguments of scaled_mm that torch has, too"""
GROUPED = {
    "grouped_mm": Arguments(
        ("mat_a", "mat_b"),
        ("mat_a", "mat_b", "offs", "bias", "accumulate_into"),
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
        (*_FACTORS, *_SWIZZLES, "bias", "offs", *_LAST),
        ("mat_a", "mat_b", "scale_a", "scale_b", "offs", "bias"),
        ("bias",),
        (),
    ),
}

# As the library numbers them.
_MM, _ACCUMULATE, _LINEAR, _SCALED = 8, 9, 10, 11

Request = tuple[int, list[Any], "torch.dtype | None", str, bool]


def take_scales(op: str, given: dict[str, Any]) -> None:
    """Checks the scaling arguments as the ops do, and replaces torch's lists by plain scales."""
    a: Any = given.get("mat_a")
    b: Any = given.get("mat_b")
    check_tensors(op, {"mat_a": a, "mat_b": b})
    scales = given.get("scale_a"), given.get("scale_b")
    rest = *(given.get(name) for name in _SWIZZLES), given.get("contraction_dim", ())
    given["scale_a"], given["scale_b"] = plain_scales(op, a, b, *scales, *rest)


def grouped_request(op: str, tensors: dict[str, Any], given: dict[str, Any]) -> Request | None:
    """Number of the op, operands, out_dtype, epilogue and use_fast_accum; None: nothing is grouped.

    Raises:
        ValueError: as the op
    """
    if op == "scaled_grouped_mm":
        codes = [scaled_code(name, given.get(name)) for name in _RECIPES]
        if codes != [None, None]:
            check_grouped_recipes(op, *list(tensors.values())[:4], *codes)
        out_dtype = given.get("output_dtype", torch.bfloat16)
        return _SCALED, [*tensors.values()], out_dtype, "", given.get("use_fast_accum", False)
    if op == "grouped_mm":
        return _of_product(tensors, given.get("out_dtype"))
    input, weight, offs = tensors["input"], tensors["weight"], tensors["offs"]
    bias = tensors.get("bias")
    activation = _activation(op, given)
    name = layers.epilogue_of(op, input, weight, bias, activation)
    if name is None:
        return _MM, [input, weight.mT, offs, bias], None, "", False
    return _LINEAR, [input, weight, offs, bias], None, name, False


def grouped_afterwards(op: str, tensors: dict[str, Any], given: dict[str, Any]) -> dict[str, str]:
    """What torch computes behind the kernel, as a parameter of the explanation, if anything."""
    if op not in ("grouped_linear", "grouped_gated_linear"):
        return {}
    text = layers.afterwards(op, tensors["input"], _activation(op, given))
    return {"afterwards": text} if text else {}


def _activation(op: str, given: dict[str, Any]) -> Any:
    return given.get("activation", "silu" if op == "grouped_gated_linear" else None)


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
