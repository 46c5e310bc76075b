"""GEMMs of fp8 and int8, and quantisation, against what torch has for the same.

cutwheel.tuning.cases.scaled has the operands and the calls.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

import cutwheel
from cutwheel.tuning.case import Case, Provider, Reference, Setting, first_kernel
from cutwheel.tuning.cases.scaled import (
    ALLOWED,
    ALLOWED_FAST,
    Scaled,
    exact_matmul,
    operands,
    scaling,
)
from cutwheel.tuning.measure import BLOCK, E4M3, INT8, LARGEST, Error, outer_major

from ..compare import Limits
from . import Suite, compiled_for_any_shape

# Eager torch multiplies by 1 / 448 where cutwheel divides. A scale that differs in its last bit
# moves all ties one way: 2 % of bfloat16 values where it is three times a power of two.
ALLOWED_QUANTIZED = Error(2e-2, 5e-1)
KINDS = {"blockwise": "1x128 x 128x128", "blockwise_1x128": "1x128 x 1x128"}

Tensor = torch.Tensor


# ---- torch's quantisation
def eager_quantize(x: Tensor, recipe: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Quantises x [M, K] as by hand: a scale, then a cast. M and K are multiples of a block."""
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
def _case(
    setting: Setting,
    providers: Sequence[Provider],
    reference: Reference,
    allowed: Error,
    pairs: Sequence[tuple[str, str]],
    *,
    buffers: int,
    **more: Any,
) -> Case:
    """Names what torch refuses; ours is measured all the same."""
    m, n, k = setting.shape
    # Operands of 8 bits, a result of 16; scales are left out.
    moved = setting.shape.input_bytes(1) + 2 * m * n if n else 3 * m * k
    return Case(
        providers,
        buffers,
        reference,
        allowed,
        setting.shape.flops,
        moved,
        pairs,
        stands_alone=True,
        **more,
    )


def fp8(setting: Setting, fast: bool) -> Case:
    """Scales of tensors and of rows; all providers share values: none is fast by its data."""
    given = operands(setting, E4M3)
    x, w = given
    accum = functools.cache(lambda i: exact_matmul(x[i], w[i]))
    of = {
        recipe: Scaled.of(setting, recipe, given, fast, accum)
        for recipe in ("tensorwise", "rowwise")
    }
    theirs = [Provider(f"torch {name}", one.by_torch, one.expected) for name, one in of.items()]
    recipes = setting.variant.split("+")
    mine = [Provider(f"cutwheel {name}", of[name].ours, of[name].expected) for name in recipes]
    return _case(
        setting,
        [*theirs, *mine],
        accum,
        ALLOWED_FAST if fast else ALLOWED,
        [(other.name, baseline.name) for other in mine for baseline in theirs],
        buffers=len(x),
        kernels={f"cutwheel {name}": first_kernel(of[name].explain) for name in recipes},
    )


def blockwise(setting: Setting) -> Case:
    """1x128 of activations with 128x128, and with 1x128 of weights"""
    given = operands(setting, E4M3)
    providers: list[Provider] = []
    pairs, kernels, left_out = [], {}, ""
    for recipe, kind in KINDS.items():
        one = Scaled.of(setting, recipe, given)
        theirs = Provider(f"torch {kind}", one.by_torch, one.expected)
        mine = Provider(f"cutwheel {kind}", one.ours, theirs.reference)
        if one.left_out:
            left_out = f"{theirs.name}: {one.left_out}"
        else:
            providers.append(theirs)
            pairs.append((mine.name, theirs.name))
        providers.append(mine)
        kernels[mine.name] = first_kernel(one.explain)
    return _case(
        setting,
        providers,
        one.expected,
        ALLOWED,
        pairs,
        buffers=len(given[0]),
        kernels=kernels,
        left_out=left_out,
    )


def int8(setting: Setting) -> Case:
    """Scales of rows and columns; torch multiplies integers, then scales and rounds."""
    one = Scaled.of(setting, "rowwise", operands(setting, INT8))
    theirs = [Provider("_int_mm + scaling", one.by_int_mm)]
    if setting.compiled:
        scale = setting.compiled(scaling)
        theirs.append(Provider("_int_mm + compiled scaling", lambda i: one.by_int_mm(i, scale)))
    mine = Provider("cutwheel", one.ours)
    return _case(
        setting,
        [*theirs, mine],
        one.expected,
        ALLOWED,
        [(mine.name, other.name) for other in theirs],
        buffers=len(one.w),
        kernels={mine.name: first_kernel(one.explain)},
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
    recipe, dtype = QUANTIZE[setting.variant]
    m, _, k = setting.shape
    buffers = setting.buffers(2 * m * k, m * k, 3)
    x = [setting.operands.normal(m, k) for _ in range(buffers)]
    eager = quantizer(recipe, dtype)

    def expected(i: int) -> tuple[Tensor, ...]:
        values, scales = eager(x[i])
        return values.float(), scales

    theirs = [Provider("eager", lambda i: eager(x[i]))]
    if setting.compiled:
        in_one = setting.compiled(eager)
        theirs.append(Provider("compile", lambda i: in_one(x[i])))
    mine = Provider("cutwheel", lambda i: tuple(cutwheel.quantize(x[i], recipe, dtype)))
    pairs = [(mine.name, other.name) for other in theirs]
    return _case(setting, [*theirs, mine], expected, ALLOWED_QUANTIZED, pairs, buffers=buffers)


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
