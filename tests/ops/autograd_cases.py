"""The table of differentiable ops: each with torch's functions in float64 and tensors to derive by.

Requirements on every one of them are tested over GRADIENTS, in test_autograd_gpu.py.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from conv_gradients import ODD as ODD_CONV
from conv_gradients import ONE_TAP, STRIDED
from conv_gradients import both as conv_both
from conv_gradients import leaves as conv_leaves
from conv_layouts import LAYOUTS as IMAGE_LAYOUTS
from conv_layouts import laid
from fused_cases import (
    PLACES,
    TRAINED,
    Tensors,
    compare_gradients,
    gated_of,
    inputs,
    keywords,
    leaves,
    present,
    subsets,
    torch_gated,
    torch_linear,
)
from gemm_cases import LAYOUTS, random_tensor
from grouped_cases import DRAWN, draw_ends, offsets
from grouped_reference import loop

Function = Callable[..., torch.Tensor]
Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Case:
    both: Callable[[Any, str], tuple[Function, Function]]
    """(cutwheel, device) -> (ours, torch's)"""
    variants: Callable[[torch.dtype, str], list[Tensors]]
    """(dtype, device) -> tensors that require grad, or None, in one size after the other"""
    lays: Mapping[str, Callable[[torch.Tensor], torch.Tensor]]
    rank: int = 2
    """dimensions of the tensors that can lie otherwise, at least"""
    keeps_residual: bool = False
    """under autocast, a float32 residual makes a float32 result"""
    casts: bool = True
    """False where what autocast rounds may change a derivative: relu's, of a sum near zero"""

    def lay(self, layout: str, x: torch.Tensor) -> torch.Tensor:
        return self.lays[layout](x) if x.dim() >= self.rank else x


def compare_any_gradients(case: Case, cutwheel: Any, device: str, dtype: torch.dtype) -> None:
    """Gradients of any of the tensors, and of all in other sizes."""
    for number, given in enumerate(case.variants(dtype, device)):
        count = len(present(given))
        for chosen in subsets(count) if number == 0 else [(True,) * count]:
            rest = iter(chosen)
            needed = [x is not None and next(rest) for x in given]
            compare_gradients(*case.both(cutwheel, device), leaves(given, needed), dtype)


MATRICES = {
    name: LAYOUTS[name] for name in ("column", "row_padded_3", "row_offset", "every_second")
}

IMAGES = {name: functools.partial(laid, name=name) for name in IMAGE_LAYOUTS}

# ---- matrix products: name of the op, shapes of its tensors, other arguments
PRODUCTS: list[tuple[str, Shapes, dict[str, Any]]] = [
    ("mm", ((24, 40), (40, 56)), {}),
    ("mm", ((23, 41), (41, 57)), {}),
    ("bmm", ((3, 24, 40), (3, 40, 56)), {}),
    ("addmm", ((24, 56), (24, 40), (40, 56)), {}),
    ("addmm", ((56,), (24, 40), (40, 56)), {"beta": 0.5, "alpha": -1.5}),
    ("addmm", ((24, 1), (24, 40), (40, 56)), {"beta": 2, "alpha": 0.25}),
    ("addmm", ((), (24, 40), (40, 56)), {"beta": 2}),
    ("baddbmm", ((3, 24, 56), (3, 24, 40), (3, 40, 56)), {"alpha": 0.5}),
    ("baddbmm", ((1, 56), (3, 24, 40), (3, 40, 56)), {"beta": -1}),
    ("linear", ((24, 40), (56, 40), (56,)), {}),
    ("linear", ((2, 3, 40), (56, 40), (56,)), {}),
    ("linear", ((2, 3, 40), (56, 40)), {}),
    ("linear", ((40,), (56, 40), (56,)), {}),
    ("matmul", ((2, 24, 40), (40, 56)), {}),
    ("matmul", ((2, 1, 24, 40), (3, 40, 56)), {}),
    ("matmul", ((24, 40), (3, 40, 56)), {}),
    ("matmul", ((23, 41), (3, 41, 500)), {}),
    ("matmul", ((5, 24, 40), (1, 40, 56)), {}),
    ("matmul", ((40,), (40, 56)), {}),
]


def torch_op(op: str) -> Function:
    return torch.nn.functional.linear if op == "linear" else getattr(torch, op)


def random_leaves(shapes: Sequence[Any], dtype: torch.dtype, device: str) -> list[torch.Tensor]:
    return [random_tensor(shape, dtype, device).requires_grad_() for shape in shapes]


def _product(op: str, shapes: Shapes, arguments: dict[str, Any]) -> Case:
    def both(cutwheel: Any, device: str) -> tuple[Function, Function]:
        ours = functools.partial(getattr(cutwheel, op), **arguments)
        return ours, functools.partial(torch_op(op), **arguments)

    return Case(both, lambda dtype, device: [[*random_leaves(shapes, dtype, device)]], MATRICES)


# ---- linear layers with an epilogue
IN_K = (40, 320)  # z is computed again in backward, and kept


def linear_of(op: Function, activation: str | None, place: str) -> Function:
    """(x, weight, bias, residual) -> result"""
    return lambda x, weight, bias, residual: op(
        x, weight, bias, activation=activation, **keywords(place, residual)
    )


def _linear(activation: str | None, place: str, k: int) -> Case:
    def variants(dtype: torch.dtype, device: str) -> list[Tensors]:
        return [
            leaves(inputs(leading, n, k, dtype, device, bias, place != "no_residual"))
            for leading, n in (((24,), 56), ((33,), 65), ((2, 3, 5), 56))
            for bias in (True, False)
        ]

    return Case(
        lambda cutwheel, device: (
            linear_of(cutwheel.linear, activation, place),
            linear_of(torch_linear, activation, place),
        ),
        variants,
        {},
        keeps_residual=place != "no_residual",
        casts=(activation, place) != ("relu", "before"),
    )


def _gated(activation: str) -> Case:
    def variants(dtype: torch.dtype, device: str) -> list[Tensors]:
        sizes = (((24,), 28, 40), ((33,), 65, 320), ((2, 3, 5), 56, 40), ((24,), 28, 320))
        return [
            leaves(inputs(rows, 2 * f, k, dtype, device, bias)[:3])
            for rows, f, k in sizes
            for bias in (True, False)
        ]

    return Case(
        lambda cutwheel, device: (
            gated_of(functools.partial(cutwheel.gated_linear, interleaved=True), activation),
            gated_of(torch_gated, activation),
        ),
        variants,
        {},
    )


# ---- groups: shapes of a and b with 5 groups, the extent that is grouped
GROUPS = 5
EVEN = {
    "rows": ((60, 40), (5, 40, 56), 60),
    "k": ((40, 60), (60, 56), 60),
    "columns": ((5, 24, 40), (40, 64), 64),
    "batched": ((5, 24, 40), (5, 40, 56), 0),
}
ODD = {
    "rows": ((61, 41), (5, 41, 57), 61),
    "k": ((41, 61), (61, 57), 61),
    "columns": ((5, 23, 41), (41, 61), 61),
    "batched": ((5, 23, 41), (5, 41, 57), 0),
}


def _grouped(kind: str, shapes: Any, how: str, bias: bool) -> Case:
    a, b, total = shapes[kind]
    ends = draw_ends(total, GROUPS, how) if total else None
    given = [a, b, (GROUPS, a[-2] if kind == "columns" else b[-1])]

    def both(cutwheel: Any, device: str) -> tuple[Function, Function]:
        keywords = {} if ends is None else {"offs": offsets(ends, device)}

        def ours(a: Any, b: Any, bias: Any = None) -> torch.Tensor:
            more = keywords if bias is None else {**keywords, "bias": bias}
            result: torch.Tensor = cutwheel.grouped_mm(a, b, **more)
            return result

        return ours, lambda a, b, bias=None: loop(a, b, ends, bias)

    def variants(dtype: torch.dtype, device: str) -> list[Tensors]:
        return [[*random_leaves(given if bias else given[:2], dtype, device)]]

    return Case(both, variants, MATRICES)


# ---- convolutions
def _conv(problem: Any, activation: str | None, place: str) -> Case:
    return Case(
        lambda cutwheel, device: conv_both(cutwheel, problem[2], activation, place),
        lambda dtype, device: [conv_leaves(problem, dtype, device, place=place)],
        {} if place != "no_residual" else IMAGES,
        rank=4,
        keeps_residual=place != "no_residual",
        casts=(activation, place) != ("relu", "before"),
    )


# ---- all of them
def _cases() -> Iterator[tuple[str, Case]]:
    for op, shapes, arguments in PRODUCTS:
        sizes = "-".join("x".join(map(str, shape)) or "0d" for shape in shapes)
        yield f"{op}-{sizes}", _product(op, shapes, arguments)
    for activation, place, k in itertools.product((None, *TRAINED), PLACES, IN_K):
        yield f"linear-{activation}-{place}-k{k}", _linear(activation, place, k)
    for name in TRAINED:
        yield f"gated_linear-{name}", _gated(name)
    for kind in EVEN:
        for how in DRAWN if kind != "batched" else ("batches",):
            yield f"grouped_mm-{kind}-{how}", _grouped(kind, EVEN, how, bias=False)
        yield f"grouped_mm-{kind}-odd", _grouped(kind, ODD, "random", bias=False)
        if kind != "k":
            for how in ("random", "short"):
                name = f"grouped_mm-{kind}-{how}-bias"
                yield name, _grouped(kind, EVEN, how, bias=True)
            yield f"grouped_mm-{kind}-odd-bias", _grouped(kind, ODD, "random", bias=True)
    problems = {"strided": STRIDED, "odd": ODD_CONV, "one_tap": ONE_TAP}
    for (name, problem), activation, place in itertools.product(
        problems.items(), (None, "relu", "silu"), PLACES
    ):
        yield f"conv2d-{name}-{activation}-{place}", _conv(problem, activation, place)


GRADIENTS = dict(_cases())
