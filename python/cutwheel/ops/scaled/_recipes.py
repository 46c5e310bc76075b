"""Recipes: which elements of an operand of scaled_mm share a scale, and what shape scales have."""

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn

import torch

from ...errors import ArgumentError, ScaledDtypeError
from .._common.errors import dtype_name, shape_text
from .._common.meta import check_shape, check_value
from .._common.sizes import fits

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

# The pairs that have kernels, in the order in which they are tried.
_PAIRS = (
    *((a, b) for a in (TENSORWISE, ROWWISE) for b in (TENSORWISE, ROWWISE)),
    (BLOCKWISE_1X128, BLOCKWISE_128X128),
    (BLOCKWISE_1X128, BLOCKWISE_1X128),
)


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
        if isinstance(recipe, torch.Tensor):
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


class Scales(NamedTuple):
    """Those of one operand."""

    name: str
    tensor: torch.Tensor
    recipe: int | None
    shapes: tuple[tuple[Any, ...], ...]
    """by recipe; (): it is none for this operand"""

    def wanted(self, recipe: int) -> str:
        return "one element" if recipe == TENSORWISE else shape_text(self.shapes[recipe])

    def sizes(self) -> tuple[Any, ...]:
        """The tensor's shape, where rowwise scales that are called so may have one dimension."""
        shape = tuple(self.tensor.shape)
        if self.recipe == ROWWISE and len(shape) == 1:
            return (*shape, 1) if self.name == "scale_a" else (1, *shape)
        return shape

    def check_given(self, op: str) -> None:
        """That the shape is that of the recipe, if that was given."""
        recipe = self.recipe
        if recipe is None:
            return
        if not self.shapes[recipe]:
            raise ArgumentError(
                f"{op}: scale_recipe_a is {NAMES[recipe]}, which is for mat_b; mat_a takes "
                f"blockwise_1x128 (scale_a {self.wanted(BLOCKWISE_1X128)}), rowwise or tensorwise"
            )

        def text() -> str:
            return (
                f"{op}: {self.name} has shape {shape_text(self.tensor.shape)}; expected "
                f"{self.wanted(recipe)} as scale_recipe_{self.name[-1]} is {NAMES[recipe]}"
            )

        if recipe == TENSORWISE:
            check_value(self.tensor.numel() == 1, text)
            return
        check_shape(self.sizes(), self.shapes[recipe], text)

    def fits(self, recipe: int) -> Any:
        """As a condition for check_value."""
        if self.recipe is not None:
            return recipe == self.recipe
        if recipe == TENSORWISE:
            return self.tensor.numel() == 1
        return fits(self.tensor.shape, self.shapes[recipe])


def check_scales(
    op: str,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    recipe_a: int | None,
    recipe_b: int | None,
    m: Any,
    n: Any,
    k: Any,
    is_int8: bool,
) -> None:
    """That the scales have the shapes of recipes that go together.

    Raises:
        ValueError: they have not; the message has the shapes that would do
    """
    k_blocks, n_blocks = blocks(k), blocks(n)
    a = Scales("scale_a", scale_a, recipe_a, ((1,), (m, 1), (m, k_blocks), ()))
    b = Scales("scale_b", scale_b, recipe_b, ((1,), (1, n), (k_blocks, n), (k_blocks, n_blocks)))
    a.check_given(op)
    b.check_given(op)
    pairs = _PAIRS[:4] if is_int8 else _PAIRS
    found: Any = False
    for of_a, of_b in pairs:
        found = found | (a.fits(of_a) & b.fits(of_b))
    check_value(found, lambda: _text(op, a, b, m, n, k, is_int8))


def _text(op: str, a: Scales, b: Scales, m: Any, n: Any, k: Any, is_int8: bool) -> str:
    """Of scales that fit no pair of recipes."""
    problem = (
        f"scale_a has shape {shape_text(a.tensor.shape)} and scale_b has shape "
        f"{shape_text(b.tensor.shape)} where M={m}, N={n}, K={k}"
    )
    if a.recipe is not None and b.recipe is not None:
        problem = (
            f"scale_recipe_a is {NAMES[a.recipe]} and scale_recipe_b is {NAMES[b.recipe]}, which "
            "do not combine"
        )
    lines = [
        f"{op}: {problem}; expected",
        f"  tensorwise or rowwise: scale_a of one element or {a.wanted(ROWWISE)}, scale_b of one "
        f"element or {b.wanted(ROWWISE)}",
    ]
    if is_int8:
        lines.append("(blockwise scales are for fp8)")
    else:
        for recipe in (BLOCKWISE_128X128, BLOCKWISE_1X128):
            lines.append(
                f"  blockwise_1x128 for mat_a and {NAMES[recipe]} for mat_b: scale_a "
                f"{a.wanted(BLOCKWISE_1X128)}, scale_b {b.wanted(recipe)}"
            )
        lines.append(
            "(scale_b has the orientation of mat_b, [K, N]: transpose the scales of a weight "
            "[N, K])"
        )
    return "\n".join(lines)


def check_scale_dtype(op: str, name: str, scale: torch.Tensor) -> None:
    """Of float32; nvfp4 has scales in e4m3."""
    if scale.dtype == torch.float32:
        return
    text = dtype_name(scale.dtype)
    if text in ("float8_e8m0fnu", "float8_e4m3fn"):
        refuse_microscaling(op, f"{name} has dtype {text}")
    raise ScaledDtypeError(f"{op}: {name} has dtype {text}; expected float32")
