"""How values are spelled in C++."""

from __future__ import annotations

from kernelgen.kernel import BLOCK_SCALES, DTypes, Kernel, Shape3

LAYOUTS = {"t": "Layout::row", "n": "Layout::column"}


def boolean(value: bool) -> str:
    return str(value).lower()


def braces(shape: Shape3) -> str:
    return f"{{{', '.join(map(str, shape))}}}"


def shape(extents: Shape3) -> str:
    return f"Shape3<{', '.join(map(str, extents))}>"


def dtypes(combination: DTypes) -> str:
    return ", ".join(
        f"DType::{x}" for x in (combination.a, combination.b, combination.acc, combination.d)
    )


def layouts(kernel: Kernel) -> str:
    """Those of A and B; D is always row-major."""
    return ", ".join(LAYOUTS[letter] for letter in kernel.layout[:2])


def block_scales(kernel: Kernel) -> str:
    return f"BlockScales::{BLOCK_SCALES[kernel.scales] if kernel.scales else 'none'}"


def grouping(kernel: Kernel) -> str:
    return f"Grouping::{kernel.grouping or 'none'}"


def recipe(kernel: Kernel) -> str:
    return f"QuantizeRecipe::{kernel.recipe or 'none'}"


def direction(kernel: Kernel) -> str:
    return f"Direction::{kernel.direction or 'none'}"
