"""Scaled products of fp8 and int8, and quantisation, against what torch has for the same.

Scales are random powers of two and values come from 8 bits, so that the dequantised operands are
exact in bfloat16: torch's own bfloat16 product with a float32 result is the reference.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

import cutwheel
from cutwheel.tuning.measure import (
    BLOCK,
    E4M3,
    INT8,
    LARGEST,
    Error,
    blocks,
    outer_major,
    scaled,
)

from ..compare import Case, Function, Limits, Reference, Setting, Side
from . import Suite, compiled_for_any_shape, kernel

ALLOWED = Error(1e-2, 1e-1)
# Sums in the tensor cores' own precision are off by up to 0.3 of the root mean square at
# K = 28672, torch's as ours.
ALLOWED_FAST = Error(1e-2, 1.0)
# Eager torch multiplies by 1 / 448 where cutwheel divides. A scale that differs in its last bit
# moves all ties one way: 2 % of bfloat16 values where it is three times a power of two.
ALLOWED_QUANTIZED = Error(2e-2, 5e-1)
INT_MM_ROWS = 32  # torch._int_mm wants more than 16 rows

Tensor = torch.Tensor


# ---- torch's sides, and the reference
def exact_product(x: Tensor, w: Tensor) -> Tensor:
    """x [M, K] w [N, K]^T in float32 of operands that bfloat16 holds exactly"""
    x, w = x.bfloat16(), w.bfloat16()
    if x.is_cuda:
        return torch.mm(x, w.t(), out_dtype=torch.float32)
    return x.float() @ w.float().t()


def torch_scaled_mm(x: Tensor, w: Tensor, scale_x: Tensor, scale_w: Tensor, fast: bool) -> Tensor:
    """w [N, K]; scale_w as torch wants it"""
    return torch._scaled_mm(
        x, w.t(), scale_x, scale_w, out_dtype=torch.bfloat16, use_fast_accum=fast
    )


def our_scaled_mm(
    x: Tensor, w: Tensor, scale_x: Tensor, scale_w: Tensor, fast: bool = False
) -> Tensor:
    result: Tensor = cutwheel.scaled_mm(
        x, w.t(), scale_x, scale_b=scale_w, output_dtype=torch.bfloat16, use_fast_accum=fast
    )
    return result


def scaling(accum: Tensor, scale_x: Tensor, scale_w: Tensor) -> Tensor:
    return (accum.float() * scale_x * scale_w).to(torch.bfloat16)


def int_mm(x: Tensor, w: Tensor, scale_x: Tensor, scale_w: Tensor, scale: Function) -> Tensor:
    """x [at least INT_MM_ROWS, K]; rows beyond those of scale_x [M, 1] are padding."""
    result: Tensor = scale(torch._int_mm(x, w.t())[: scale_x.shape[0]], scale_x, scale_w)
    return result


def eager_quantize(x: Tensor, recipe: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """What is written by hand for x [M, K], M and K multiples of a block: a scale, then a cast."""
    largest, values = LARGEST[dtype], x.float()
    m, k = x.shape
    if recipe == "blockwise_1x128":
        values = values.view(m, -1, BLOCK)
        scale = values.abs().amax(-1, keepdim=True) / largest
    elif recipe == "blockwise_128x128":
        values = values.view(m // BLOCK, BLOCK, -1, BLOCK)
        scale = values.abs().amax((1, 3), keepdim=True) / largest
    elif recipe == "rowwise":
        scale = values.abs().amax(-1, keepdim=True) / largest
    else:
        scale = values.abs().amax() / largest
    values = values / scale
    if dtype == INT8:
        values = values.round()
    values = values.clamp(-largest, largest).to(dtype).view(m, k)
    if recipe == "blockwise_1x128":
        return values, outer_major(scale.squeeze(-1))
    if recipe == "blockwise_128x128":
        return values, scale.view(m // BLOCK, -1)
    return values, scale.view(-1, 1) if recipe == "rowwise" else scale.view(1)


@functools.cache
def quantizer(recipe: str, dtype: torch.dtype) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """One function for all shapes: it is compiled once."""
    return functools.partial(eager_quantize, recipe=recipe, dtype=dtype)


# ---- groups
def _operands(setting: Setting, dtype: torch.dtype) -> tuple[list[Tensor], list[Tensor]]:
    """x [M, K] and w [N, K]; as many rows of int8 as torch wants"""
    m, n, k = setting.shape
    slots = setting.slots(setting.shape.input_bytes(1), 2 * m * n, 4)
    values = functools.partial(setting.operands.eight_bits, dtype=dtype)
    rows = max(m, INT_MM_ROWS) if dtype == INT8 else m
    return [values(rows, k) for _ in range(slots)], [values(n, k) for _ in range(slots)]


def _case(
    setting: Setting,
    sides: Sequence[Side],
    reference: Reference,
    allowed: Error,
    pairs: Sequence[tuple[str, str]],
    **more: Any,
) -> Case:
    """What torch refuses is named; ours is measured all the same."""
    m, n, k = setting.shape
    slots = more.pop("slots")
    # Operands of 8 bits, a result of 16; scales are left out.
    moved = setting.shape.input_bytes(1) + 2 * m * n if n else 3 * m * k
    return Case(
        sides,
        slots,
        reference,
        allowed,
        setting.shape.flops,
        moved,
        pairs,
        stands_alone=True,
        **more,
    )


def fp8(setting: Setting, fast: bool) -> Case:
    """Scales of tensors and of rows; all sides share values, and none is fastest by its data."""
    m, n, _ = setting.shape
    recipes, scales = setting.problem.variant.split("+"), setting.operands.scales
    x, w = _operands(setting, E4M3)
    of = {
        "tensorwise": (scales(1), scales(1)),
        "rowwise": (scales(m, 1), scales(1, n)),
    }
    accum = functools.cache(lambda i: exact_product(x[i], w[i]))

    def side(name: str, recipe: str, call: Callable[..., Tensor]) -> Side:
        scale_x, scale_w = of[recipe]
        return Side(
            f"{name} {recipe}",
            lambda i: call(x[i], w[i], scale_x, scale_w, fast),
            lambda i: accum(i) * scale_x * scale_w,
        )

    theirs = [side("torch", recipe, torch_scaled_mm) for recipe in of]
    mine = [side("cutwheel", recipe, our_scaled_mm) for recipe in recipes]
    return _case(
        setting,
        [*theirs, *mine],
        accum,
        ALLOWED_FAST if fast else ALLOWED,
        [(other.name, baseline.name) for other in mine for baseline in theirs],
        slots=len(x),
        kernels={
            s.name: _kernel(x[0], w[0], *of[recipe], fast)
            for s, recipe in zip(mine, recipes, strict=True)
        },
    )


def _kernel(x: Tensor, w: Tensor, scale_x: Tensor, scale_w: Tensor, fast: bool) -> str | None:
    return kernel("scaled_mm", x, w.t(), scale_x, scale_b=scale_w, use_fast_accum=fast)


def blockwise(setting: Setting) -> Case:
    """1x128 of activations with 128x128, and with 1x128 of weights"""
    m, n, k = setting.shape
    kb, scales = blocks(k), setting.operands.scales
    x, w = _operands(setting, E4M3)
    slots = len(x)
    # A set for each slot, as values have: with the weights, they are read from device memory.
    scale_x = [outer_major(scales(m, kb)) for _ in range(slots)]
    scale_w = {
        "128x128": [scales(blocks(n), kb) for _ in range(slots)],
        "1x128": [outer_major(scales(n, kb)) for _ in range(slots)],
    }

    def reference(kind: str) -> Reference:
        return lambda i: exact_product(
            scaled(x[i], scale_x[i], torch.bfloat16),
            scaled(w[i], scale_w[kind][i], torch.bfloat16),
        )

    references = {kind: reference(kind) for kind in scale_w}

    def side(name: str, kind: str, call: Callable[..., Tensor]) -> Side:
        return Side(
            f"{name} 1x128 x {kind}",
            lambda i: call(x[i], w[i], scale_x[i], scale_w[kind][i].t(), False),
            references[kind],
        )

    sides: list[Side] = []
    pairs, kernels, left_out = [], {}, ""
    for kind in scale_w:
        theirs, mine = side("torch", kind, torch_scaled_mm), side("cutwheel", kind, our_scaled_mm)
        # cuBLAS reads these scales in fours along K, and torch lets others pass.
        if kind == "128x128" and kb % 4:
            left_out = f"{theirs.name}: K / 128 is {kb}, no multiple of 4"
        else:
            sides.append(theirs)
            pairs.append((mine.name, theirs.name))
        sides.append(mine)
        kernels[mine.name] = _kernel(x[0], w[0], scale_x[0], scale_w[kind][0].t(), False)
    return _case(
        setting,
        sides,
        references["1x128"],
        ALLOWED,
        pairs,
        slots=slots,
        kernels=kernels,
        left_out=left_out,
    )


def int8(setting: Setting) -> Case:
    """Scales of rows and columns; torch multiplies integers, then scales and rounds."""
    m, n, _ = setting.shape
    padded, w = _operands(setting, INT8)
    x = [values[:m] for values in padded]
    scale_x, scale_w = setting.operands.scales(m, 1), setting.operands.scales(1, n)

    def baseline(name: str, scale: Function) -> Side:
        return Side(name, lambda i: int_mm(padded[i], w[i], scale_x, scale_w, scale))

    theirs = [baseline("_int_mm + scaling", scaling)]
    if setting.compiled:
        theirs.append(baseline("_int_mm + compiled scaling", setting.compiled(scaling)))
    mine = Side("cutwheel", lambda i: our_scaled_mm(x[i], w[i], scale_x, scale_w))
    return _case(
        setting,
        [*theirs, mine],
        lambda i: exact_product(x[i], w[i]) * scale_x * scale_w,
        ALLOWED,
        [(mine.name, other.name) for other in theirs],
        slots=len(x),
        kernels={mine.name: _kernel(x[0], w[0], scale_x, scale_w, False)},
    )


QUANTIZE = {  # by the name that a problem has
    "tensorwise": ("tensorwise", E4M3),
    "rowwise": ("rowwise", E4M3),
    "blockwise_1x128": ("blockwise_1x128", E4M3),
    "blockwise_128x128": ("blockwise_128x128", E4M3),
    "rowwise_int8": ("rowwise", INT8),
}


def quantize(setting: Setting) -> Case:
    """x [M, K] in bfloat16; a result next to a tie may be the other neighbour."""
    recipe, dtype = QUANTIZE[setting.problem.variant]
    m, _, k = setting.shape
    slots = setting.slots(2 * m * k, m * k, 3)
    x = [setting.operands.normal(m, k) for _ in range(slots)]
    eager = quantizer(recipe, dtype)

    def expected(i: int) -> tuple[Tensor, ...]:
        values, scales = eager(x[i])
        return values.float(), scales

    theirs = [Side("eager", lambda i: eager(x[i]))]
    if setting.compiled:
        in_one = setting.compiled(eager)
        theirs.append(Side("compile", lambda i: in_one(x[i])))
    mine = Side("cutwheel", lambda i: tuple(cutwheel.quantize(x[i], recipe, dtype)))
    pairs = [(mine.name, other.name) for other in theirs]
    return _case(setting, [*theirs, mine], expected, ALLOWED_QUANTIZED, pairs, slots=slots)


SUITE = Suite(
    {
        "fp8_fast": functools.partial(fp8, fast=True),
        "fp8": functools.partial(fp8, fast=False),
        "blockwise": blockwise,
        "int8": int8,
        "quantize": quantize,
    },
    Limits(replay_seconds=1.5e-3, case_seconds=0.2, max_rounds=15),
    "e4m3, int8",
    compiled=lambda function, mode: compiled_for_any_shape(function),
    mode="dynamic=True",
)
