"""Arguments of torch's scaled matmuls to which these functions have one answer.

They are for formats with scales of several levels, or of 8 exponent bits, which need a B200.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ...errors import ArgumentError
from .._common.errors import shape_text, wrong_shape
from ._recipes import (
    BLOCKWISE_1X128,
    BLOCKWISE_128X128,
    NAMES,
    ROWWISE,
    blocks,
    only,
    refuse_microscaling,
)

# The pairs of recipes for grouped rows.
_PAIRS = ((ROWWISE, ROWWISE), (BLOCKWISE_1X128, BLOCKWISE_128X128))


def plain_scales(
    op: str,
    a: Tensor,
    b: Tensor,
    scale_a: Any,
    scale_b: Any,
    swizzle_a: Any,
    swizzle_b: Any,
    contraction_dim: Sequence[int],
) -> tuple[Any, Any]:
    """The two scales, out of lists of one; the other arguments say nothing new, or are refused.

    Raises:
        NotImplementedError: several scales, or swizzled ones
        ValueError: contraction_dim is not what K is
    """
    for name, given in (("swizzle_a", swizzle_a), ("swizzle_b", swizzle_b)):
        for swizzle in given if type(given) is list else (given,):
            text = getattr(swizzle, "name", swizzle)
            if text not in (None, "NO_SWIZZLE"):
                refuse_microscaling(op, f"{name} is {text}")
    dims = tuple(contraction_dim)
    k_first, k_second = (-1, a.dim() - 1), (-2, b.dim() - 2)
    if dims and (len(dims) != 2 or dims[0] not in k_first or dims[1] not in k_second):
        raise ArgumentError(
            f"{op}: contraction_dim is {dims}; expected (), or (-1, -2): K is the last dimension "
            "of mat_a and the last but one of mat_b"
        )
    if type(scale_a) is list:
        scale_a = only(op, "scale_a", scale_a)
    if type(scale_b) is list:
        scale_b = only(op, "scale_b", scale_b)
    return scale_a, scale_b


def check_grouped_recipes(
    op: str,
    a: Tensor,
    b: Tensor,
    scale_a: Any,
    scale_b: Any,
    recipe_a: int | None,
    recipe_b: int | None,
) -> None:
    """That the scales of [T, K] and [G, K, N] are of the recipes that are given.

    The library tells recipes from shapes, and checks T and G.

    Raises:
        ValueError: they are of others, or the two do not go together
    """
    pair = next((p for p in _PAIRS if recipe_a in (None, p[0]) and recipe_b in (None, p[1])), None)
    if pair is None:
        texts = [None if code is None else NAMES[code] for code in (recipe_a, recipe_b)]
        raise ArgumentError(
            f"{op}: scale_recipe_a is {texts[0]} and scale_recipe_b is {texts[1]}; expected "
            "rowwise for both, or blockwise_1x128 and blockwise_128x128"
        )
    if a.dim() != 2 or b.dim() != 3:
        return  # the library says so
    k, n = b.shape[1:]
    of_a: tuple[tuple[Any, ...], ...] = ((), (1,))
    of_b: tuple[tuple[Any, ...], ...] = ((n,), (1, n))
    if pair[0] == BLOCKWISE_1X128:
        of_a, of_b = ((blocks(k),),), ((blocks(k), blocks(n)),)
    for name, scale, first, shapes, code in (
        ("a", scale_a, a.shape[0], of_a, pair[0]),
        ("b", scale_b, b.shape[0], of_b, pair[1]),
    ):
        if tuple(scale.shape[1:]) not in shapes:
            expected = " or ".join(shape_text((first, *shape)) for shape in shapes)
            why = f" as the recipe is {NAMES[code]}"
            raise wrong_shape(op, f"scale_{name}", scale, expected, why)
