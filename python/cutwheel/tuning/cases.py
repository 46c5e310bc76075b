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
from ..ops.linear import linear
from ..ops.scaled import code, scaled_mm
from .jobs import Family, Job

Tensor = torch.Tensor
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "tf32": torch.float32}
FP8 = torch.float8_e4m3fn
LARGEST = {FP8: 448.0, torch.int8: 127.0}
BLOCK = 128
MOST_SLOTS = 128


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

    def random(self, *extents: int) -> Tensor:
        kind = DTYPES[self.job.family.dtype]
        return torch.empty(extents, dtype=kind, device=self.device).normal_()

    def eight_bits(self, *extents: int) -> Tensor:
        """Normal, a standard deviation of 24. What is large repeats itself."""
        kind = FP8 if self.job.family.dtype == "fp8" else torch.int8
        out = torch.empty(extents, dtype=kind, device=self.device)
        flat = out.view(-1)
        some = torch.randn(min(flat.numel(), 1 << 24), device=self.device).mul_(24)
        some = (some.round_() if kind == torch.int8 else some).clamp_(-LARGEST[kind], LARGEST[kind])
        values = some.to(kind)
        for first in range(0, flat.numel(), values.numel()):
            flat[first : first + values.numel()] = values[: flat.numel() - first]
        return out

    def scales(self, *extents: int) -> Tensor:
        """Powers of two from 2^-8 to 2^-4"""
        return torch.exp2(torch.randint(-8, -3, extents, device=self.device).float())

    def slots(self, bytes_of_one: int) -> int:
        """So many sets that none is in L2 when its turn comes again; one if it fills L2 itself."""
        if bytes_of_one > 8 * self.l2_bytes:
            return 1
        return max(2, min(2 + 2 * self.l2_bytes // max(1, bytes_of_one), MOST_SLOTS))


def exact(function: Callable[..., Tensor], *operands: Tensor) -> Tensor:
    """In float32 without TF32."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = False
    try:
        return function(*(operand.float() for operand in operands))
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


def explained(number: int, operands: Sequence[Any], *rest: Any) -> dict[str, Any]:
    """rest: out_dtype, beta, allow_tf32, epilogue, recipes, use_fast_accum"""
    found: dict[str, Any] = json.loads(torch.ops.cutwheel._explain(number, list(operands), *rest))
    return found


# As the library numbers them for explanations.
_MM, _ADDMM, _LINEAR, _GEMM, _LINEAR_FUSED, _SCALED_MM = 0, 2, 4, 5, 6, 7


def make_mm(make: Maker) -> Case:
    m, n, k = make.job.shape
    x, w, slots = _factors(make, m, n, k)
    tf32 = make.job.family.dtype == "tf32"
    return Case(
        slots,
        lambda i: mm(x[i], w[i].t()),
        lambda: explained(_MM, [x[0], w[0].t()], None, 1, tf32),
        lambda: exact(torch.mm, x[0], w[0].t()),
        lambda: torch.mm(x[0], w[0].t()),
    )


def _factors(make: Maker, m: int, n: int, k: int) -> tuple[list[Tensor], list[Tensor], int]:
    """[M, K] and [N, K]"""
    itemsize = DTYPES[make.job.family.dtype].itemsize
    slots = make.slots((m * k + n * k) * itemsize)
    x = [make.random(m, k) for _ in range(slots)]
    w = [make.random(n, k) for _ in range(slots)]
    return x, w, slots


def make_addmm(make: Maker) -> Case:
    m, n, k = make.job.shape
    x, w, slots = _factors(make, m, n, k)
    c = make.random(n) if make.job.family.variant == "row" else make.random(m, n)
    tf32 = make.job.family.dtype == "tf32"
    return Case(
        slots,
        lambda i: addmm(c, x[i], w[i].t()),
        lambda: explained(_ADDMM, [c, x[0], w[0].t()], None, 1, tf32),
        lambda: exact(torch.addmm, c, x[0], w[0].t()),
        lambda: torch.addmm(c, x[0], w[0].t()),
    )


def make_linear(make: Maker) -> Case:
    m, n, k = make.job.shape
    x, w, slots = _factors(make, m, n, k)
    bias = make.random(n)
    variant, tf32 = make.job.family.variant, make.job.family.dtype == "tf32"
    activation: str | None = None if variant == "bias" else variant

    def explain() -> dict[str, Any]:
        if activation is None:
            return explained(_LINEAR, [x[0], w[0], bias], None, 1, tf32)
        operands = [x[0], w[0], bias, None]
        return explained(_LINEAR_FUSED, operands, None, 1, tf32, f"bias_{activation}")

    def composed(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
        z = functional.linear(x, w, bias)
        return z if activation is None else evaluate(f"{activation}(z)", {"z": z})

    return Case(
        slots,
        lambda i: linear(x[i], w[i], bias, activation=activation),
        explain,
        lambda: exact(composed, x[0], w[0], bias),
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
    name, tf32 = make.job.family.variant, make.job.family.dtype == "tf32"
    epilogue = find(name)
    if epilogue is None or not epilogue.has_accum:
        raise ValueError(f"{make.job}: gemm has no epilogue {name}")
    x, w, slots = _factors(make, m, n, k)
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
        wide = {key: v.float() if _is_tensor(v) else v for key, v in operands.items()}
        values = {"alpha": 1.0, "beta": 1.0, **wide, "accum": x @ w.t()}
        for key, text in expressions_of(name):
            values[key] = evaluate(text, values)
        result: Tensor = values[""]
        return result

    positional = list(given.values())
    return Case(
        slots,
        call,
        lambda: explained(_GEMM, [x[0], w[0].t(), *positional], None, 1, tf32, name),
        lambda: exact(composed, x[0], w[0]),
    )


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def blocks(extent: int) -> int:
    return -(-extent // BLOCK)


def outer_major(x: Tensor) -> Tensor:
    """Stride 1 along the first extent."""
    return x.t().contiguous().t()


def spread(values: Tensor, scales: Tensor) -> Tensor:
    """float32 values [rows, K] times scales of blocks of them, or of one of both."""
    for dim in (0, 1):
        if scales.shape[dim] not in (1, values.shape[dim]):
            scales = scales.repeat_interleave(BLOCK, dim).narrow(dim, 0, values.shape[dim])
    return values.float() * scales


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
    slots = make.slots(m * k + n * k)
    x = [make.eight_bits(m, k) for _ in range(slots)]
    w = [make.eight_bits(n, k) for _ in range(slots)]
    if recipe == "tensorwise":
        scale_x, scale_w = make.scales(1, 1), make.scales(1, 1)
    elif recipe == "rowwise":
        scale_x, scale_w = make.scales(m, 1), make.scales(n, 1)
    else:
        scale_x = outer_major(make.scales(m, blocks(k)))
        square = recipe == "blockwise"
        scale_w = make.scales(blocks(n) if square else n, blocks(k))
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
        slots,
        call,
        lambda: explained(_SCALED_MM, operands, torch.bfloat16, 1, False, "", *codes, fast),
        lambda: exact(torch.mm, spread(x[0], scale_x), spread(w[0], scale_w).t()),
        torchs if make.job.family.dtype == "fp8" else None,
    )
