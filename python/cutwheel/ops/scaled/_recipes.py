"""Recipes: which elements of an operand of scaled_mm share a scale, and what shape scales have."""

from __future__ import annotations

from typing import Any, NoReturn

from torch import Tensor

from ...errors import ArgumentError

TENSORWISE, ROWWISE, BLOCKWISE_1X128, BLOCKWISE_128X128 = range(4)
"""as the library numbers them"""
NAMES = ("tensorwise", "rowwise", "blockwise_1x128", "blockwise_128x128")
BLOCK = 128

# Ours, and those of the members of torch.nn.functional.ScalingType.
_CODES = {
    **{name: code for code, name in enumerate(NAMES)},
    "TensorWise": TENSORWISE,
    "RowWise": ROWWISE,
    "BlockWise1x128": BLOCKWISE_1X128,
    "BlockWise128x128": BLOCKWISE_128X128,
}
# Blocks of 32 elements with scales of 8 exponent bits, and of 16 with scales in e4m3.
_MICROSCALING = ("BlockWise1x32", "BlockWise1x16", "blockwise_1x32", "blockwise_1x16")


def code_of(op: str, name: str, recipe: Any) -> int:
    """The number of a recipe that is given as a string or as a member of ScalingType.

    Raises:
        ValueError: it is not known
        TypeError: it is a tensor
        NotImplementedError: it is one of mxfp8 or nvfp4
    """
    text = recipe if isinstance(recipe, str) else getattr(recipe, "name", None)
    code = _CODES.get(text)  # type: ignore[arg-type]
    if code is None:
        if type(recipe) is list:
            return code_of(op, name, only(op, name, recipe))
        if text in _MICROSCALING:
            refuse_microscaling(op, f"{name} is {text}")
        if isinstance(recipe, Tensor):
            raise TypeError(
                f"{op}: {name} is a Tensor; expected a recipe, or None: the order is torch's, "
                "scale_a, scale_recipe_a, scale_b, scale_recipe_b"
            )
        raise ArgumentError(
            f"{op}: {name} is {recipe!r}; expected one of {', '.join(NAMES)}, or a member of "
            "torch.nn.functional.ScalingType"
        )
    return code


def only(op: str, name: str, values: list[Any]) -> Any:
    """The one element of a list, as torch takes it; more are scales of several levels."""
    if len(values) != 1:
        refuse_microscaling(op, f"{name} has {len(values)} elements")
    return values[0]


def refuse_microscaling(op: str, what: str) -> NoReturn:
    raise NotImplementedError(
        f"{op}: {what}, which is of mxfp8, mxfp4 or nvfp4: they need a GPU of compute capability "
        "10.0 or newer (B200, GB200), and no kernel of this wheel has them; expected fp8 or int8 "
        f"operands with float32 scales, {', '.join(NAMES)}"
    )


def blocks(size: Any) -> Any:
    return (size + BLOCK - 1) // BLOCK
