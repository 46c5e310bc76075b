"""explain's questions to the library about grouped and scaled GEMMs."""

from __future__ import annotations

from typing import Any

import torch

from ..ops import scaled
from ..ops._common.errors import check_tensors
from ..ops.grouped import _linear as layers
from ..ops.grouped import with_row_major
from ..ops.scaled._grouped import code as scaled_code
from ..ops.scaled._torch_arguments import check_grouped_recipes, plain_scales
from ._request import Arguments, ByTorch, Request, allows_tf32, served_by_torch

_RECIPES = ("scale_recipe_a", "scale_recipe_b")
_OPERANDS = ("mat_a", "mat_b", "scale_a", _RECIPES[0], "scale_b", _RECIPES[1])
_SWIZZLES, _LAST = ("swizzle_a", "swizzle_b"), ("output_dtype", "contraction_dim", "use_fast_accum")
_ZERO_POINT = ("azp", "azp_adj")
_SCALES = ("scale_a", "scale_b", "bias")
SCALED_MM = Arguments(
    (*_OPERANDS, *_SWIZZLES, "bias", *_LAST),
    ("mat_a", "mat_b", *_SCALES, *_ZERO_POINT),
    (*_SCALES, *_ZERO_POINT),
    ("out",),
    ("mat_a", "mat_b", *_SCALES, *_ZERO_POINT),
)
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
        ("input", "weight"),
        ("input", "weight", "offs", "up"),
        ("up",),
        ("activation", "interleaved"),
    ),
    "scaled_grouped_mm": Arguments(
        (*_OPERANDS, *_SWIZZLES, "bias", "offs", *_LAST),
        ("mat_a", "mat_b", "scale_a", "scale_b", "offs", "bias"),
        ("bias",),
        (),
        ("mat_a", "mat_b", "scale_a", "scale_b", "offs", "bias"),
    ),
}


def take_scales(op: str, given: dict[str, Any]) -> None:
    """Checks the scaling arguments as the ops do, and replaces torch's lists by plain scales."""
    a: Any = given.get("mat_a")
    b: Any = given.get("mat_b")
    check_tensors(op, {"mat_a": a, "mat_b": b})
    scales = given.get("scale_a"), given.get("scale_b")
    rest = *(given.get(name) for name in _SWIZZLES), given.get("contraction_dim", ())
    given["scale_a"], given["scale_b"] = plain_scales(op, a, b, *scales, *rest)


def scaled_request(op: str, tensors: dict[str, Any], given: dict[str, Any]) -> Request:
    """Raises ValueError as the op."""
    return Request(
        op,
        scaled.operands(**tensors),
        given.get("output_dtype", torch.bfloat16),
        recipe_a=scaled.code("scale_recipe_a", given.get("scale_recipe_a")),
        recipe_b=scaled.code("scale_recipe_b", given.get("scale_recipe_b")),
        use_fast_accum=given.get("use_fast_accum", False),
    )


def grouped_request(op: str, tensors: dict[str, Any], given: dict[str, Any]) -> Request | ByTorch:
    """Raises ValueError as the op."""
    if op == "scaled_grouped_mm":
        codes = [scaled_code(name, given.get(name)) for name in _RECIPES]
        if codes != [None, None]:
            check_grouped_recipes(op, *list(tensors.values())[:4], *codes)
        out_dtype = given.get("output_dtype", torch.bfloat16)
        fast = given.get("use_fast_accum", False)
        return Request(op, [*tensors.values()], out_dtype, use_fast_accum=fast)
    if op == "grouped_mm":
        return _of_mm(tensors, given.get("out_dtype"))
    input, weight, offs = tensors["input"], tensors["weight"], tensors["offs"]
    bias, up, activation = tensors.get("bias"), tensors.get("up"), _activation(op, given)
    allow_tf32, after = allows_tf32(input), layers.afterwards(op, input, activation) or ""
    name = layers.epilogue_of(op, input, weight, bias, activation, up)
    if name is None:
        operands = [input, weight.mT, offs, bias]
        return Request("grouped_mm", operands, allow_tf32=allow_tf32, afterwards=after)
    return Request(
        "grouped_linear_fused",
        [input, weight, offs, bias, *([] if up is None else [up])],
        allow_tf32=allow_tf32,
        epilogue=name,
        afterwards=after,
    )


def _activation(op: str, given: dict[str, Any]) -> Any:
    return given.get("activation", "silu" if op == "grouped_gated_linear" else None)


def _of_mm(tensors: dict[str, Any], out_dtype: torch.dtype | None) -> Request | ByTorch:
    a, b, offs, bias, total = tensors.values()
    ranks, allow_tf32 = (a.dim(), b.dim()), allows_tf32(a)
    if ranks == (3, 3) and offs is None:  # nothing is grouped
        op, c = ("bmm", []) if bias is None else ("baddbmm", [bias.unsqueeze(1)])
        request = Request(op, [*c, a, b], out_dtype, allow_tf32=allow_tf32)
        return served_by_torch(op, b) or request
    if offs is None:
        raise ValueError("grouped_mm: offs is None; expected the end of each group, [G]")
    if total is not None and ranks == (2, 2):
        a, b, total = with_row_major(a, b, total)
        return Request("grouped_mm_accumulate", [a, b, offs, total], allow_tf32=allow_tf32)
    if ranks == (3, 2):
        a, b = b.mT, a.mT
    return Request("grouped_mm", [a, b, offs, bias], out_dtype, allow_tf32=allow_tf32)
