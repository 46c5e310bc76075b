"""GEMMs of fp8 and int8 operands with scales, bfloat16 results.

Scales are random powers of two and values come from 8 bits, so that the dequantised operands are
exact in bfloat16: torch's own bfloat16 GEMM with a float32 result is the reference.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import cutwheel

from ...ops.scaled import code
from ..case import Case, Function, Provider, Setting, explained
from ..measure import INT8, Error, Tensor, blocks, outer_major, scaled

ALLOWED = Error(1e-2, 1e-1)
# Sums in the tensor cores' own precision are off by up to 0.3 of the root mean square at
# K = 28672, torch's as ours.
ALLOWED_FAST = Error(1e-2, 1.0)
INT_MM_ROWS = 32  # torch._int_mm wants more than 16 rows
# By the recipe of both operands: that of each.
RECIPES = {
    "tensorwise": ("tensorwise", "tensorwise"),
    "rowwise": ("rowwise", "rowwise"),
    "blockwise": ("blockwise_1x128", "blockwise_128x128"),
    "blockwise_1x128": ("blockwise_1x128", "blockwise_1x128"),
}


def exact_matmul(x: Tensor, w: Tensor) -> Tensor:
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


def scaling(accum: Tensor, scale_x: Tensor, scale_w: Tensor) -> Tensor:
    return (accum.float() * scale_x * scale_w).to(torch.bfloat16)


def operands(setting: Setting, dtype: torch.dtype) -> tuple[list[Tensor], list[Tensor]]:
    """x [M, K] and w [N, K]; as many rows of int8 as torch wants"""
    m, n, k = setting.shape
    buffers = setting.buffers(setting.shape.input_bytes(1), 2 * m * n, 4)
    values = functools.partial(setting.operands.eight_bits, dtype=dtype)
    rows = max(m, INT_MM_ROWS) if dtype == INT8 else m
    return [values(rows, k) for _ in range(buffers)], [values(n, k) for _ in range(buffers)]


@dataclass(frozen=True)
class Scaled:
    """Operands of one recipe: x [M, K] times w [N, K] transposed."""

    recipe: str
    padded: Sequence[Tensor]
    """x, with the rows that torch wants"""
    w: Sequence[Tensor]
    scale_x: Sequence[Tensor]
    scale_w: Sequence[Tensor]
    """as torch and cutwheel take them"""
    accum: Callable[[int], Tensor]
    """slot -> the GEMM without its scales, for recipes whose scales come behind it"""
    rows: int
    fast: bool = False

    @classmethod
    def of(
        cls,
        setting: Setting,
        recipe: str,
        given: tuple[list[Tensor], list[Tensor]],
        fast: bool = False,
        accum: Callable[[int], Tensor] | None = None,
    ) -> Scaled:
        (m, n, k), scales = setting.shape, setting.operands.scales
        x, w = given
        if recipe in ("tensorwise", "rowwise"):
            one = recipe == "tensorwise"
            scale_x = [scales(1) if one else scales(m, 1)] * len(x)
            scale_w = [scales(1) if one else scales(1, n)] * len(x)
        else:
            # A set for each buffer, as values have: with the weights, they are read from device
            # memory.
            scale_x = [outer_major(scales(m, blocks(k))) for _ in x]
            rows = blocks(n) if recipe == "blockwise" else n
            scale_w = [scales(rows, blocks(k)) for _ in x]
            scale_w = [(s if recipe == "blockwise" else outer_major(s)).t() for s in scale_w]
        accum = accum or (lambda i: exact_matmul(x[i][:m], w[i]))
        return cls(recipe, x, w, scale_x, scale_w, accum, m, fast)

    def x(self, i: int) -> Tensor:
        return self.padded[i][: self.rows]

    def expected(self, i: int) -> Tensor:
        scale_x, scale_w = self.scale_x[i], self.scale_w[i]
        if self.recipe in ("tensorwise", "rowwise"):
            return self.accum(i) * scale_x * scale_w
        return exact_matmul(
            scaled(self.x(i), scale_x, torch.bfloat16),
            scaled(self.w[i], scale_w.t(), torch.bfloat16),
        )

    def by_torch(self, i: int) -> Tensor:
        return torch_scaled_mm(self.x(i), self.w[i], self.scale_x[i], self.scale_w[i], self.fast)

    def by_int_mm(self, i: int, scale: Function = scaling) -> Tensor:
        """Integers are multiplied, then scaled and rounded."""
        accum = torch._int_mm(self.padded[i], self.w[i].t())[: self.rows]
        result: Tensor = scale(accum, self.scale_x[i], self.scale_w[i])
        return result

    def ours(self, i: int) -> Tensor:
        # Recipes are told, since a K of one block makes scales of blocks look like those of rows.
        recipe_x, recipe_w = RECIPES[self.recipe]
        return cutwheel.scaled_mm(
            self.x(i),
            self.w[i].t(),
            self.scale_x[i],
            recipe_x,
            self.scale_w[i],
            recipe_w,
            output_dtype=torch.bfloat16,
            use_fast_accum=self.fast,
        )

    def explain(self) -> dict[str, Any]:
        recipe_x, recipe_w = RECIPES[self.recipe]
        codes = code("scale_recipe_a", recipe_x), code("scale_recipe_b", recipe_w)
        tensors = [self.x(0), self.w[0].t(), self.scale_x[0], self.scale_w[0], None, None, None]
        return explained("scaled_mm", tensors, torch.bfloat16, 1, False, "", *codes, self.fast)

    @property
    def left_out(self) -> str:
        """Why torch has no right result; empty: it may have one."""
        kb = blocks(self.w[0].shape[1])
        # cuBLAS reads these scales in fours along K, and torch lets others pass.
        return f"K / 128 is {kb}, no multiple of 4" if self.recipe == "blockwise" and kb % 4 else ""


def scaled_mm(setting: Setting) -> Case:
    """The variant is a recipe, with "+fast" for sums in the tensor cores' own precision."""
    recipe, _, speed = setting.variant.partition("+")
    dtype = setting.operands.dtype
    one = Scaled.of(setting, recipe, operands(setting, dtype), speed == "fast")
    by_torch: list[Provider] = []
    if dtype != INT8 and not one.left_out:
        by_torch = [Provider("torch", one.by_torch)]
    elif dtype == INT8 and recipe in ("tensorwise", "rowwise"):
        by_torch = [Provider("_int_mm + scaling", one.by_int_mm)]
    return Case(
        [*by_torch, Provider("cutwheel", one.ours)],
        len(one.w),
        one.expected,
        ALLOWED_FAST if one.fast else ALLOWED,
        setting.shape.flops,
        explain=one.explain,
    )
