"""Problems to measure: groups of shapes, narrowed by options.

Needs neither torch nor a GPU.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from . import held_out, shapes
from .shapes import Conv, Gemm, Grouped, Table

Options = argparse.Namespace

DTYPES = ("bf16", "f16", "tf32")  # of mm and addmm
LAYERS = ("bias_gelu", "bias_residual", "gated_silu", "training_gelu", "overhead")
RECIPES = ("rowwise", "tensorwise", "blockwise", "int8", "quantize")
ACCUMULATION = {"fast": "fp8_fast", "promoted": "fp8"}  # use_fast_accum: group
QUANTIZE = ("tensorwise", "rowwise", "blockwise_1x128", "blockwise_128x128", "rowwise_int8")
EXPERTS = ("forward", "dgrad", "wgrad", "fp8", "fp8_fast", "gated")
SKEWS = ("uniform", "skewed")
DIRECTIONS = ("fprop", "dgrad", "wgrad", "fused", "resnet50")
# Groups for which torch.compile is one more baseline, by section.
COMPILED = {
    "fused": ("bias_gelu", "bias_residual", "gated_silu"),
    "scaled": ("int8", "quantize"),
    "conv": ("resnet50",),
}


RESNET = Conv(64, 3, 224, 224, 64, 7, 7, 2, 3, 1)
"""what ResNet-50 begins with"""


class Problem(NamedTuple):
    group: str
    """what is computed of the shape"""
    shape: Gemm | Grouped | Conv
    variant: str = ""
    """recipes, joined by "+", or the skew of groups"""

    def fields(self) -> dict[str, Any]:
        """The fields that identify the problem in its row of results."""
        return {"group": self.group} | self.shape.fields(self.variant)

    def __str__(self) -> str:
        if self.group == "resnet50":
            return f"resnet50 {' x '.join(map(str, self.shape[:4]))}"
        return " ".join(filter(None, (self.group, self.variant, str(self.shape))))


# ---- what is computed of which shapes: one group after another
def scaled_problems(
    table: Table,
    wanted: Sequence[Gemm],
    recipes: Sequence[str],
    accumulation: Sequence[str] = tuple(ACCUMULATION),
    limit: int | None = None,
) -> list[Problem]:
    """limit: the most shapes of each group, spread over the list"""
    found: list[Problem] = []
    chosen = spread_out(wanted, limit)
    of_epilogue = "+".join(name for name in ("tensorwise", "rowwise") if name in recipes)
    if of_epilogue:
        for kind, group in ACCUMULATION.items():
            if kind in accumulation:
                found += [Problem(group, shape, of_epilogue) for shape in chosen]
    for group in ("blockwise", "int8"):
        if group in recipes:
            found += [Problem(group, shape, group) for shape in chosen]
    if "quantize" in recipes:
        listed = table["scaled"]["quantize"]
        for name in QUANTIZE:
            both = listed["w" if name == "blockwise_128x128" else "x"]
            for m, k in spread_out(both, limit):
                found.append(Problem("quantize", Gemm(m, 0, k), name))
    return found


def spread_out(items: Sequence[Any], limit: int | None) -> list[Any]:
    """In their order, drawn at random: every n-th of them might all have the same M."""
    if limit is None or limit >= len(items):
        return list(items)
    return [items[i] for i in sorted(random.Random(0).sample(range(len(items)), limit))]


def grouped_problems(
    wanted: Sequence[Grouped], groups: Sequence[str] = EXPERTS, skews: Sequence[str] = SKEWS
) -> list[Problem]:
    chosen = [group for group in EXPERTS if group in groups]
    kinds = [skew for skew in SKEWS if skew in skews]
    return [Problem(group, shape, skew) for group in chosen for shape in wanted for skew in kinds]


def conv_problems(wanted: Sequence[Conv], groups: Sequence[str] = DIRECTIONS) -> list[Problem]:
    """The whole model last, once."""
    return [
        Problem(group, shape)
        for group in DIRECTIONS
        if group in groups
        for shape in ([RESNET] if group == "resnet50" else wanted)
    ]


# ---- by options
@dataclass(frozen=True)
class Problems:
    """The problems of one section: listed ones, then held-out ones."""

    listed: Sequence[Problem]
    aside: Sequence[Problem] = ()

    @property
    def all(self) -> list[Problem]:
        return [*self.listed, *self.aside]


def of_section(name: str, given: Options) -> Problems:
    """None for `host`, whose operands have one size."""
    op = name.partition("_")[0]
    kinds: dict[str, Callable[[str, Options, Table], Problems]] = {
        "mm": _dense,
        "addmm": _dense,
        "fused": _fused,
        "scaled": _scaled,
        "grouped": _grouped,
        "conv": _conv,
        "host": lambda *_: Problems([]),
    }
    return kinds[op](op, given, shapes.load())


def _dense(op: str, given: Options, table: Table) -> Problems:
    sizes = {"m": given.m, "nk": given.nk, "square": getattr(given, "square", None)}
    listed = shapes.gemm_shapes(table, quick=given.quick, **sizes)
    aside = held_out.products(table, given.held_out, given.seed)
    return Problems(*([Problem(op, shape) for shape in some] for some in (listed, aside)))


def _fused(_: str, given: Options, table: Table) -> Problems:
    wanted = shapes.layer_shapes(table, quick=given.quick, m=given.m, nk=given.nk)
    groups = given.groups or LAYERS
    aside = held_out.products(table, given.held_out * 2 // 3, given.seed, least_m=64)
    kept_aside = [group for group in COMPILED["fused"] if group in groups]
    return Problems(
        [Problem(group, shape) for group in groups for shape in wanted],
        [Problem(group, shape) for group in kept_aside for shape in aside],
    )


def _scaled(_: str, given: Options, table: Table) -> Problems:
    products = shapes.gemm_shapes(table, quick=given.quick, m=given.m, nk=given.nk)
    recipes = [name for names in given.recipes or [RECIPES] for name in names]
    accumulation = given.accumulation or tuple(ACCUMULATION)
    aside = held_out.products(table, given.held_out, given.seed)
    of_aside = [name for name in recipes if name != "quantize"]
    return Problems(
        scaled_problems(table, products, recipes, accumulation, given.limit),
        scaled_problems(table, aside, of_aside, accumulation),
    )


def _grouped(_: str, given: Options, table: Table) -> Problems:
    wanted = shapes.grouped_shapes(table, quick=given.quick, cases=given.cases)
    aside = held_out.groups(table, given.held_out // 3, given.seed)
    groups = given.products or EXPERTS
    return Problems(
        grouped_problems(wanted, groups, given.skew or SKEWS),
        grouped_problems(aside, groups, ["skewed"]),
    )


def _conv(_: str, given: Options, table: Table) -> Problems:
    wanted = shapes.conv_shapes(table, quick=given.quick, cases=given.convs)
    aside = held_out.convolutions(table, given.held_out // 2, given.seed)
    directions = given.directions or DIRECTIONS
    layers = [group for group in directions if group != "resnet50"]
    return Problems(conv_problems(wanted, directions), conv_problems(aside, layers))
