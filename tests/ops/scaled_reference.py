"""Scaled products and quantisation by torch alone, and how far from float64 a result may be.

Operands lie as rows of K values: a as [M, K], b as the weight it is made of, [N, K]. Recipes
are defined here a second time, from the documentation and not from the package.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from reference import Problem

from cutwheel.tuning.measure import BLOCK, blocks, outer_major, wide

E4M3, E5M2, INT8 = torch.float8_e4m3fn, torch.float8_e5m2, torch.int8
LARGEST = {E4M3: 448.0, E5M2: 57344.0, INT8: 127.0}
TENSOR, ROW = "tensorwise", "rowwise"
BY_128, BY_128_128 = "blockwise_1x128", "blockwise_128x128"
RECIPES = (TENSOR, ROW, BY_128, BY_128_128)

# Tensor cores add fp8 products with about 13 bits behind the largest of them. torch's op does, too,
# and what it loses is in its own error; a result rounded once from float64 has lost nothing.
FP8_STEP = 2.0**-11
FP8_STEP_ALONE = 2.0**-9
# Without promotion to float32 the sum itself is cut in every step of 32 products.
FP8_FAST = 2.0**-14
# torch's op does not count where it is this far off: then it has refused the problem silently.
TORCH_WORST = 0.05


def scale_shape(recipe: str, rows: int, k: int) -> tuple[int, ...]:
    return {
        TENSOR: (1,),
        ROW: (rows, 1),
        BY_128: (rows, blocks(k)),
        BY_128_128: (blocks(rows), blocks(k)),
    }[recipe]


def per_element(x: torch.Tensor, recipe: str, rows: int, k: int) -> torch.Tensor:
    """One value for each group (see scale_shape) -> [rows, K]"""
    if recipe in (BY_128, BY_128_128):
        x = x.repeat_interleave(BLOCK, 1)[:, :k]
    if recipe == BY_128_128:
        x = x.repeat_interleave(BLOCK, 0)[:rows]
    return (x.reshape(1, 1) if recipe == TENSOR else x).expand(rows, k)


@dataclass(frozen=True, eq=False)
class Quantised:
    """Rows of K values with their scales, and the zero point of asymmetric int8."""

    values: torch.Tensor  # [rows, K]
    scales: torch.Tensor  # float32, see scale_shape
    recipe: str
    azp: torch.Tensor | None = None  # int32, [1] or [rows, 1]

    def _scale(self) -> torch.Tensor:
        return per_element(wide(self.scales), self.recipe, *self.values.shape)

    def exact(self) -> torch.Tensor:
        """Dequantised values, [rows, K]"""
        values = wide(self.values)
        return self._scale() * (values if self.azp is None else values - wide(self.azp))

    def size(self) -> torch.Tensor:
        """The weight of its elements in the errors of a sum; a zero point adds to it."""
        values = wide(self.values).abs()
        zero = 0 if self.azp is None else wide(self.azp).abs()
        return self._scale().abs() * (values + zero)


# ---- products
@dataclass(frozen=True)
class ScaledProblem(Problem):
    slack: float = 0.0

    def floor(self, result: torch.dtype) -> float:
        return super().floor(result) + self.slack

    @classmethod
    def of_operands(
        cls, a: Quantised, b: Quantised, bias: torch.Tensor | None = None
    ) -> ScaledProblem:
        value = a.exact() @ b.exact().t()
        magnitude = a.size() @ b.size().t()
        if bias is not None:
            value, magnitude = value + bias.double(), magnitude + bias.double().abs()
        return cls(value, magnitude, a.values.shape[1], a.values.dtype)


def exact_integers(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """int8 a [M, K] times b [N, K]; float64 holds every such sum exactly."""
    return (a.double() @ b.double().t()).to(torch.int32)


def padded(x: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Zeros to multiples of these extents; as bytes, where copies of 8-bit floats might not do."""
    m, k = x.shape
    m_padded, k_padded = max(-(-m // rows), 1) * rows, max(-(-k // columns), 1) * columns
    if (m_padded, k_padded) == (m, k) and x.is_contiguous():
        return x
    kind = torch.uint8 if x.element_size() == 1 else x.dtype
    whole = torch.zeros(m_padded, k_padded, dtype=kind, device=x.device)
    whole[:m, :k] = x.view(kind)
    return whole.view(x.dtype)


def torch_scaled_mm(
    a: Quantised, b: Quantised, d: torch.dtype, bias: torch.Tensor | None, fast: bool
) -> torch.Tensor:
    """torch's own op, with zeros in the operands to make them as long as it needs them.

    Raises what torch raises where it has no such product.
    """
    m, n = a.values.shape[0], b.values.shape[0]
    if a.values.dtype == INT8:
        return _torch_int8(a, b, d, bias)
    is_block = a.recipe == BY_128
    # cuBLAS: 1x128 scales lie at 16 bytes for each block of K, those of 128x128 in fours along K.
    fours = 4 if b.recipe == BY_128_128 else 1
    values_a = padded(a.values, 16, fours * BLOCK if is_block else 16)
    values_b = padded(b.values, BLOCK if is_block else 16, fours * BLOCK if is_block else 16)
    rows, columns = values_a.shape[0], values_b.shape[0]
    if is_block:
        scale_a = outer_major(padded(a.scales, rows, fours))
        if b.recipe == BY_128:
            scale_b = outer_major(padded(b.scales, columns, 1)).t()
        else:
            scale_b = padded(b.scales, 1, fours).t()
    elif (a.recipe, b.recipe) == (TENSOR, TENSOR):
        scale_a, scale_b = a.scales.reshape(()), b.scales.reshape(())
    else:  # torch has no product of mixed recipes
        scale_a = padded(a.scales.reshape(-1, 1).expand(m, 1).contiguous(), rows, 1)
        scale_b = padded(b.scales.reshape(-1, 1).expand(n, 1).contiguous(), columns, 1).t()
    # Its bias is of the result's dtype, and there is none for float32.
    fits = bias is not None and bias.dtype == d != torch.float32
    row = padded(bias.reshape(1, -1), 1, columns)[0] if bias is not None and fits else None
    result = torch._scaled_mm(
        values_a,
        values_b.t(),
        scale_a,
        scale_b,
        bias=row,
        out_dtype=torch.float32 if bias is not None and not fits else d,
        use_fast_accum=fast,
    )[:m, :n]
    return (result + bias.float()).to(d) if bias is not None and not fits else result


def _torch_int8(
    a: Quantised, b: Quantised, d: torch.dtype, bias: torch.Tensor | None
) -> torch.Tensor:
    m, n = a.values.shape[0], b.values.shape[0]
    accum = torch._int_mm(padded(a.values, 32, 16), padded(b.values, 16, 16).t())[:m, :n]
    if d == torch.int32:
        return accum
    if a.azp is not None:
        accum = accum - a.azp * b.values.sum(1, dtype=torch.int32)
    scaled = accum.float() * a.scales.reshape(-1, 1) * b.scales.reshape(1, -1)
    return (scaled if bias is None else scaled + bias.float()).to(d)


def torchs(
    a: Quantised,
    b: Quantised,
    d: torch.dtype,
    bias: torch.Tensor | None,
    fast: bool,
    problem: ScaledProblem,
) -> tuple[torch.Tensor, ScaledProblem]:
    """torch's result, and what may be forgiven beside its error.

    Where torch has no such product: float64, rounded once.
    """
    is_fp8 = a.values.dtype != INT8
    alone = FP8_STEP_ALONE + (FP8_FAST * a.values.shape[1] / 32 if fast else 0)
    # On the CPU torch's op computes in other ways than the tensor cores do.
    if a.values.is_cuda and min(*a.values.shape, b.values.shape[0]) > 0:
        try:
            result = torch_scaled_mm(a, b, d, bias, fast)
        except (RuntimeError, ValueError, TypeError):  # NotImplementedError is a RuntimeError
            pass
        else:
            if problem.errors(result)[0] < TORCH_WORST:
                return result, replace(problem, slack=FP8_STEP if is_fp8 else 0.0)
    return problem.value.to(d), replace(problem, slack=alone if is_fp8 else 0.0)


# ---- quantisation
def group_reduce(x: torch.Tensor, recipe: str, largest: bool) -> torch.Tensor:
    """The largest (smallest) element of each group of x [rows, K], at least (at most) 0."""
    rows, k = x.shape
    if not largest:
        return -group_reduce(-x, recipe, True)
    x = x.clamp_min(0)  # keeps NaN
    if recipe == TENSOR:
        return x.amax().reshape(1) if x.numel() else x.new_zeros(1)
    if recipe == ROW:
        return x.amax(1, keepdim=True) if k else x.new_zeros(rows, 1)
    down = BLOCK if recipe == BY_128_128 else 1
    if not x.numel():
        return x.new_zeros(scale_shape(recipe, rows, k))
    whole = padded(x, down, BLOCK)
    return whole.view(whole.shape[0] // down, down, -1, BLOCK).amax((1, 3))


def torch_quantize(
    x: torch.Tensor, recipe: str, dtype: torch.dtype, symmetric: bool = True
) -> Quantised:
    """x [rows, K] in float32 arithmetic; groups that hold NaN or infinities get a scale of NaN."""
    x = x.float()
    rows, k = x.shape
    high = group_reduce(x if not symmetric else x.abs(), recipe, True)
    low = high.new_zeros(high.shape) if symmetric else group_reduce(x, recipe, False)
    spread = high - low
    steps = LARGEST[dtype] if symmetric else 255.0
    # A tensor: on GPUs torch multiplies by the reciprocal of a number.
    scales = torch.where(
        spread == 0, torch.ones_like(spread), spread / torch.full_like(spread, steps)
    )
    scales = scales.masked_fill(~spread.isfinite(), float("nan"))
    ratio = x / per_element(scales, recipe, rows, k)
    azp = None
    if symmetric:
        values = ratio.clamp(-LARGEST[dtype], LARGEST[dtype])
        values = values.nan_to_num(0.0).round() if dtype == INT8 else values.nan_to_num(0.0)
    else:
        azp = torch.where(spread == 0, spread, (-128 - (low / scales).round()).clamp(-128, 127))
        azp = azp.nan_to_num(0.0)
        zero = per_element(azp, recipe, rows, k)
        values = (ratio.nan_to_num(0.0).round() + zero).clamp(-128, 127)
        azp = azp.to(torch.int32)
    return Quantised(values.to(dtype), scales, recipe, azp)
