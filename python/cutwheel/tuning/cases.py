"""Jobs as calls on rotated operands, with what the library and torch say of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn import functional

from ..ops._common.epilogue import expressions_of, find
from ..ops._common.expressions import evaluate
from ..ops.gemm import addmm, mm
from ..ops.gemm._epilogue import gemm
from ..ops.grouped import grouped_mm
from ..ops.linear import linear
from ..ops.scaled import code, scaled_mm
from ..ops.scaled._grouped import scaled_grouped_mm
from .jobs import Family, Job
from .measure import (
    CHUNK_BYTES,
    E4M3,
    INT8,
    Operands,
    Tensor,
    blocks,
    in_float32,
    outer_major,
    rotation,
    scaled,
    spans,
)

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "tf32": torch.float32}
DTYPES |= {"fp8": E4M3, "int8": INT8}
_MOST_SLOTS = 128
_CHECKED_BYTES = 4 * CHUNK_BYTES  # of a float32 reference of groups along K


@dataclass(frozen=True)
class Case:
    """A job's operands, in `slots` independent sets."""

    slots: int
    call: Callable[[int], Tensor]
    """on the operands of a slot"""
    explain: Callable[[], dict[str, Any]]
    """what the library says of the call on slot 0"""
    reference: Callable[[], Tensor]
    """the result of slot 0 in float32, or the part of it that `part` has"""
    baseline: Callable[[], Tensor] | None = None
    """torch's own op on slot 0: it says how large errors may be"""
    part: Callable[[Tensor], Tensor] = lambda result: result


@dataclass(frozen=True)
class Maker:
    """Makes operands of one job on one device."""

    job: Job
    device: torch.device
    l2_bytes: int

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.job.family.dtype]

    @property
    def is_tf32(self) -> bool:
        return self.job.family.dtype == "tf32"

    @property
    def operands(self) -> Operands:
        return Operands(self.device, self.l2_bytes, self.dtype)

    def random(self, *extents: int) -> Tensor:
        if self.dtype in (E4M3, INT8):
            return self.operands.eight_bits(*extents, dtype=self.dtype)
        return self.operands.normal(*extents)

    def slots(self, bytes_of_one: int) -> int:
        """One if it fills L2 itself."""
        if bytes_of_one > 8 * self.l2_bytes:
            return 1
        return rotation(max(1, bytes_of_one), self.l2_bytes, _MOST_SLOTS)

    def pair(self, left: Sequence[int], right: Sequence[int]) -> tuple[list[Tensor], list[Tensor]]:
        """Two operands of these extents for each slot"""
        elements = torch.Size(left).numel() + torch.Size(right).numel()
        slots = self.slots(elements * self.dtype.itemsize)
        return [self.random(*left) for _ in range(slots)], [
            self.random(*right) for _ in range(slots)
        ]


def explained(op: int, operands: Sequence[Any], *rest: Any) -> dict[str, Any]:
    """rest: out_dtype, beta, allow_tf32, epilogue, recipes, use_fast_accum"""
    found: dict[str, Any] = json.loads(torch.ops.cutwheel._explain(op, list(operands), *rest))
    return found


# As the library numbers ops for explanations.
_MM, _ADDMM, _LINEAR, _GEMM, _LINEAR_FUSED, _SCALED_MM = 0, 2, 4, 5, 6, 7
_GROUPED_MM, _SCALED_GROUPED_MM = 8, 11
_CONV = {"fprop": 0, "dgrad": 3, "wgrad": 4}


# ---- dense
def make_mm(make: Maker) -> Case:
    m, n, k = make.job.shape
    x, w = make.pair((m, k), (n, k))
    return Case(
        len(x),
        lambda i: mm(x[i], w[i].t()),
        lambda: explained(_MM, [x[0], w[0].t()], None, 1, make.is_tf32),
        lambda: in_float32(torch.mm, x[0], w[0].t()),
        lambda: torch.mm(x[0], w[0].t()),
    )


def make_addmm(make: Maker) -> Case:
    m, n, k = make.job.shape
    x, w = make.pair((m, k), (n, k))
    c = make.random(n) if make.job.family.variant == "row" else make.random(m, n)
    return Case(
        len(x),
        lambda i: addmm(c, x[i], w[i].t()),
        lambda: explained(_ADDMM, [c, x[0], w[0].t()], None, 1, make.is_tf32),
        lambda: in_float32(torch.addmm, c, x[0], w[0].t()),
        lambda: torch.addmm(c, x[0], w[0].t()),
    )


def make_linear(make: Maker) -> Case:
    m, n, k = make.job.shape
    x, w = make.pair((m, k), (n, k))
    bias, variant = make.random(n), make.job.family.variant
    activation: str | None = None if variant == "bias" else variant

    def explain() -> dict[str, Any]:
        if activation is None:
            return explained(_LINEAR, [x[0], w[0], bias], None, 1, make.is_tf32)
        operands = [x[0], w[0], bias, None]
        return explained(_LINEAR_FUSED, operands, None, 1, make.is_tf32, f"bias_{activation}")

    def composed(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
        z = functional.linear(x, w, bias)
        return z if activation is None else evaluate(f"{activation}(z)", {"z": z})

    return Case(
        len(x),
        lambda i: linear(x[i], w[i], bias, activation=activation),
        explain,
        lambda: in_float32(composed, x[0], w[0], bias),
        lambda: composed(x[0], w[0], bias),
    )


def make_gated(make: Maker) -> Case:
    """N is that of the result: half the columns of the product."""
    job = make.job
    m, n, k = job.shape
    family = Family("gemm", job.family.dtype, f"gated_{job.family.variant}")
    return make_gemm(replace(make, job=Job(family, (m, 2 * n, k))))


def make_gemm(make: Maker) -> Case:
    """With any named epilogue; what it stores besides the result is not looked at."""
    m, n, k = make.job.shape
    name = make.job.family.variant
    epilogue = find(name)
    if epilogue is None or not epilogue.has_accum:
        raise ValueError(f"{make.job}: gemm has no epilogue {name}")
    x, w = make.pair((m, k), (n, k))
    extents = {"row[N]": (n,), "col[M]": (m, 1), "matrix[M,N]": (m, n), "matrix[M,2N]": (m, 2 * n)}
    operands: dict[str, Any] = {}
    for key, kind in epilogue.operands.items():
        if kind == "scalar":
            operands[key] = 1.0 if key in ("alpha", "beta") else 0.5
        else:
            value = make.random(*extents[kind.split()[0]])
            operands[key] = value.float() if kind.endswith(" f32") else value
    given = {k: v.view(m) if v.shape == (m, 1) else v for k, v in operands.items() if _is_tensor(v)}
    scalars = {key: v for key, v in operands.items() if not _is_tensor(v)}

    def call(i: int) -> Tensor:
        result = gemm(x[i], w[i].t(), name, **given, **scalars)
        return result[0] if isinstance(result, tuple) else result

    def composed(x: Tensor, w: Tensor) -> Tensor:
        floats = {key: v.float() if _is_tensor(v) else v for key, v in operands.items()}
        values = {"alpha": 1.0, "beta": 1.0, **floats, "accum": x @ w.t()}
        for key, text in expressions_of(name):
            values[key] = evaluate(text, values)
        result: Tensor = values[""]
        return result

    positional = list(given.values())
    return Case(
        len(x),
        call,
        lambda: explained(_GEMM, [x[0], w[0].t(), *positional], None, 1, make.is_tf32, name),
        lambda: in_float32(composed, x[0], w[0]),
    )


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


# ---- scaled
_RECIPES = {
    "blockwise": ("blockwise_1x128", "blockwise_128x128"),
    "blockwise_1x128": ("blockwise_1x128", "blockwise_1x128"),
}


def make_scaled(make: Maker) -> Case:
    m, n, k = make.job.shape
    recipe, _, speed = make.job.family.variant.partition("+")
    fast = speed == "fast"
    # Told, since a K of one block makes scales of blocks look like those of rows.
    recipe_x, recipe_w = _RECIPES.get(recipe, (recipe, recipe))
    codes = code("scale_recipe_a", recipe_x), code("scale_recipe_b", recipe_w)
    x, w = make.pair((m, k), (n, k))
    scales = make.operands.scales
    if recipe == "tensorwise":
        scale_x, scale_w = scales(1, 1), scales(1, 1)
    elif recipe == "rowwise":
        scale_x, scale_w = scales(m, 1), scales(n, 1)
    else:
        scale_x = outer_major(scales(m, blocks(k)))
        square = recipe == "blockwise"
        scale_w = scales(blocks(n) if square else n, blocks(k))
        scale_w = scale_w if square else outer_major(scale_w)

    def call(i: int) -> Tensor:
        return scaled_mm(
            x[i], w[i].t(), scale_x, recipe_x, scale_w.t(), recipe_w, use_fast_accum=fast
        )

    def torchs() -> Tensor:
        of_x, of_w = (s.view(()) if recipe == "tensorwise" else s for s in (scale_x, scale_w.t()))
        return torch._scaled_mm(
            x[0], w[0].t(), of_x, of_w, out_dtype=torch.bfloat16, use_fast_accum=fast
        )

    operands = [x[0], w[0].t(), scale_x, scale_w.t(), None, None, None]
    return Case(
        len(x),
        call,
        lambda: explained(_SCALED_MM, operands, torch.bfloat16, 1, False, "", *codes, fast),
        lambda: in_float32(torch.mm, scaled(x[0], scale_x), scaled(w[0], scale_w).t()),
        torchs if make.dtype == E4M3 else None,
    )


# ---- grouped
def _equal_spans(groups: int, total: int) -> list[tuple[int, int]]:
    """Groups as equal as can be: the library knows their mean alone."""
    return spans([total * (g + 1) // groups for g in range(groups)])


def make_grouped(make: Maker) -> Case:
    if make.job.family.variant == "k":
        return _make_grouped_k(make)
    groups, total, n, k = make.job.shape
    rows_of = _equal_spans(groups, total)
    offs = make.operands.ends([last for _, last in rows_of])
    x, w = make.pair((total, k), (groups, n, k))
    columns = make.job.family.variant == "columns"

    def call(i: int) -> Tensor:
        if columns:  # [G, N, K] [K, T]
            return grouped_mm(w[i], x[i].t(), offs=offs)
        return grouped_mm(x[i], w[i].mT, offs=offs)

    def reference() -> Tensor:
        parts = [in_float32(torch.mm, x[0][a:b], w[0][g].t()) for g, (a, b) in enumerate(rows_of)]
        rows = torch.cat(parts)
        return rows.t() if columns else rows

    def torchs() -> Tensor:
        rows = torch._grouped_mm(x[0], w[0].mT, offs=offs)
        return rows.t() if columns else rows

    return Case(
        len(x),
        call,
        lambda: explained(_GROUPED_MM, [x[0], w[0].mT, offs, None], None, 1, False),
        reference,
        torchs,
    )


def _make_grouped_k(make: Maker) -> Case:
    """[T, N]^T [T, K] of each group"""
    groups, total, n, k = make.job.shape
    rows_of = [slice(*span) for span in _equal_spans(groups, total)]
    offs = make.operands.ends([rows.stop for rows in rows_of])
    x, dy = make.pair((total, k), (total, n))
    most = max(1, _CHECKED_BYTES // (4 * n * k))
    chosen = list(range(0, groups, -(-groups // most)))

    def reference() -> Tensor:
        return torch.stack(
            [in_float32(torch.mm, dy[0][rows_of[g]].t(), x[0][rows_of[g]]) for g in chosen]
        )

    return Case(
        len(x),
        lambda i: grouped_mm(dy[i].t(), x[i], offs=offs),
        lambda: explained(_GROUPED_MM, [dy[0].t(), x[0], offs, None], None, 1, False),
        reference,
        lambda: torch._grouped_mm(dy[0].t(), x[0], offs=offs),
        lambda result: result[chosen] if len(chosen) < groups else result,
    )


def make_scaled_grouped(make: Maker) -> Case:
    groups, total, n, k = make.job.shape
    recipe, _, speed = make.job.family.variant.partition("+")
    fast, rows_of = speed == "fast", _equal_spans(groups, total)
    offs = make.operands.ends([last for _, last in rows_of])
    x, w = make.pair((total, k), (groups, n, k))
    scales = make.operands.scales
    if recipe == "rowwise":
        scale_x, scale_w = scales(total, 1), scales(groups, n, 1)
        given = scale_x.view(total), scale_w.view(groups, n)
    else:
        scale_x, scale_w = scales(total, blocks(k)), scales(groups, blocks(n), blocks(k))
        given = outer_major(scale_x), scale_w.mT

    def reference() -> Tensor:
        return torch.cat(
            [
                in_float32(
                    torch.mm, scaled(x[0][a:b], scale_x[a:b]), scaled(w[0][g], scale_w[g]).t()
                )
                for g, (a, b) in enumerate(rows_of)
            ]
        )

    def torchs() -> Tensor:
        return torch._scaled_grouped_mm(
            x[0], w[0].mT, *given, offs=offs, out_dtype=torch.bfloat16, use_fast_accum=fast
        )

    rest = torch.bfloat16, 1, False, "", None, None, fast
    operands = [x[0], w[0].mT, *given, offs, None]
    return Case(
        len(x),
        lambda i: scaled_grouped_mm(
            x[i], w[i].mT, given[0], scale_b=given[1], offs=offs, use_fast_accum=fast
        ),
        lambda: explained(_SCALED_GROUPED_MM, operands, *rest),
        reference,
        torchs if recipe == "rowwise" else None,
    )


# ---- convolutions
def make_conv(make: Maker) -> Case:
    images, c, h, w, filters, r, s, stride, padding, dilation = make.job.shape
    variant = make.job.family.variant
    p = (h + 2 * padding - dilation * (r - 1) - 1) // stride + 1
    q = (w + 2 * padding - dilation * (s - 1) - 1) // stride + 1
    if p < 1 or q < 1:
        raise ValueError(f"{make.job}: the filter is larger than the padded image")
    image, weight, result = (images, c, h, w), (filters, c, r, s), (images, filters, p, q)
    left, right = {
        "fprop": (image, weight),
        "dgrad": (result, weight),
        "wgrad": (result, image),
    }[variant]
    slots = make.slots((torch.Size(left).numel() + torch.Size(right).numel()) * make.dtype.itemsize)
    a = [make.operands.channels_last(*left) for _ in range(slots)]
    b = [make.operands.channels_last(*right) for _ in range(slots)]
    # Of its sizes alone.
    other = make.operands.channels_last(*(image if variant == "dgrad" else weight))
    ops = torch.ops.cutwheel
    pairs = [stride] * 2, [padding] * 2, [dilation] * 2
    where = *[stride] * 2, *[padding] * 4, *[dilation] * 2

    def torchs(x: Tensor, y: Tensor) -> Tensor:
        if variant == "fprop":
            return functional.conv2d(x, y, None, stride, padding, dilation)
        is_dgrad = variant == "dgrad"
        third = other.to(x.dtype)
        mask = [is_dgrad, not is_dgrad, False]
        operands = (x, third, y) if is_dgrad else (x, y, third)
        found: Any = torch.ops.aten.convolution_backward(
            *operands, None, *pairs, False, [0, 0], 1, mask
        )
        gradient: Tensor = found[0 if is_dgrad else 1]
        return gradient

    def call(i: int) -> Tensor:
        result: Tensor
        if variant == "fprop":
            result = ops.conv2d(a[i], b[i], None, *where, make.is_tf32)
        elif variant == "dgrad":
            result = ops.conv2d_input_grad(a[i], b[i], h, w, *where, make.is_tf32)
        else:
            result = ops.conv2d_weight_grad(a[i], b[i], r, s, *where, make.is_tf32)
        return result

    def explain() -> dict[str, Any]:
        size, last = {"fprop": ((0, 0), [None]), "dgrad": ((h, w), []), "wgrad": ((r, s), [])}[
            variant
        ]
        text = ops._explain_conv(
            _CONV[variant], [a[0], b[0], *last], *where, None, make.is_tf32, "", *size
        )
        found: dict[str, Any] = json.loads(text)
        return found

    return Case(
        slots,
        call,
        explain,
        lambda: in_float32(torchs, a[0], b[0]),
        lambda: torchs(a[0], b[0]),
    )


MAKERS: dict[str, Callable[[Maker], Case]] = {
    "mm": make_mm,
    "addmm": make_addmm,
    "linear": make_linear,
    "gated_linear": make_gated,
    "gemm": make_gemm,
    "scaled_mm": make_scaled,
    "grouped_mm": make_grouped,
    "scaled_grouped_mm": make_scaled_grouped,
    "conv2d": make_conv,
}


def make_case(make: Maker) -> Case:
    """Raises ValueError for a job that means nothing."""
    return MAKERS[make.job.family.op](make)
