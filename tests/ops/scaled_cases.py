"""Calls of cutwheel.scaled_mm, and which of them to run."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from gemm_cases import BRAIN, HALF, LAYOUTS, SINGLE, TORCH_DTYPE, manifest, manifest_kernels
from reference import assert_as_good_as, poison, told
from scaled_reference import (
    BY_128,
    BY_128_128,
    E4M3,
    E5M2,
    INT8,
    LARGEST,
    ROW,
    TENSOR,
    Quantised,
    ScaledProblem,
    exact_integers,
    scale_shape,
    torchs,
)

FP8_PAIRS = ((E4M3, E4M3), (E4M3, E5M2), (E5M2, E4M3))
OUT_DTYPES = (BRAIN, HALF, SINGLE)
SPREAD = ((TENSOR, TENSOR), (ROW, ROW), (TENSOR, ROW), (ROW, TENSOR))  # of the epilogue
BLOCKWISE = ((BY_128, BY_128_128), (BY_128, BY_128))
ARCHS_OF = {"fp8": ("sm89", "sm90a"), "int8": ("sm80", "sm90a")}

MS = (1, 3, 16, 17, 64, 127, 129, 300, 1000, 4097)
# (N, K): multiples of tiles, of 16 but not of 128, and neither.
NKS = (
    (128, 128),
    (256, 512),
    (1, 1),
    (7, 33),
    (72, 1000),
    (520, 640),
    (129, 127),
    (1024, 1031),
    (333, 384),
    (2112, 256),
    (64, 4112),
    (384, 7168),
)
DEVIATION = {E4M3: 20.0, E5M2: 20.0, INT8: 74.0}  # of the values below


# ---- operands
def random_values(rows: int, k: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    if dtype == INT8:
        return torch.randint(-128, 128, (rows, k), dtype=INT8, device=device)
    values = DEVIATION[dtype] * torch.randn(rows, k, device=device)
    return values.clamp(-LARGEST[dtype], LARGEST[dtype]).to(dtype)


def random_scales(shape: Sequence[int], unit: float, device: str) -> torch.Tensor:
    """A factor of 64 between them: one that belongs to another group shows."""
    return unit * torch.exp2(6 * torch.rand(*shape, device=device) - 3)


def random_operand(
    rows: int, k: int, dtype: torch.dtype, recipe: str, device: str, azp: str | None = None
) -> Quantised:
    """Scaled so that products of two of these have a standard deviation near 1.

    azp: "tensor" or "row", where values have a zero point
    """
    unit = 1 / (DEVIATION[dtype] * max(k, 1) ** 0.25)
    scales = random_scales(scale_shape(recipe, rows, k), unit, device)
    zero = None
    if azp is not None:
        shape = (1,) if azp == "tensor" else (rows, 1)
        zero = torch.randint(-128, 128, shape, dtype=torch.int32, device=device)
    return Quantised(random_values(rows, k, dtype, device), scales, recipe, zero)


def random_bias(n: int, kind: str | None, d: torch.dtype, device: str) -> torch.Tensor | None:
    """kind: "d" for the dtype of the result, "f32", or None"""
    if kind is None:
        return None
    return torch.randn(n, device=device).to(d if kind == "d" else SINGLE)


def laid(x: torch.Tensor, layout: str) -> torch.Tensor:
    """Other strides or another offset, NaN around; as bytes, where fills of 8-bit floats differ."""
    if x.element_size() > 1:
        return LAYOUTS[layout](x)
    return LAYOUTS[layout](x.view(torch.uint8)).view(x.dtype)  # 127 is NaN in e4m3 and e5m2


# ---- calls
@dataclass(frozen=True, eq=False)
class Call:
    """a [M, K], b [N, K] (see scaled_reference), and how they are handed over."""

    a: Quantised
    b: Quantised
    d: torch.dtype
    bias: torch.Tensor | None = None
    fast: bool = False
    named: bool = False  # recipes by name
    with_adj: bool = True  # sums of b are handed over where a has a zero point
    lay_a: str = "row"
    lay_b: str = "row"  # of the weight: column-major as b
    lay_scales: str = "row"

    @classmethod
    def random(
        cls,
        m: int,
        n: int,
        k: int,
        device: str,
        dtypes: tuple[torch.dtype, torch.dtype] = (E4M3, E4M3),
        recipes: tuple[str, str] = (ROW, ROW),
        d: torch.dtype = BRAIN,
        bias: str | None = None,
        azp: str | None = None,
        **options: Any,
    ) -> Call:
        a = random_operand(m, k, dtypes[0], recipes[0], device, azp)
        b = random_operand(n, k, dtypes[1], recipes[1], device)
        return cls(a, b, d, random_bias(n, bias, d, device), **options)

    @property
    def positional(self) -> tuple[torch.Tensor, ...]:
        def scales(of: Quantised) -> torch.Tensor:
            return of.scales if of.recipe == TENSOR else laid(of.scales, self.lay_scales)

        scale_b = scales(self.b)
        return (
            laid(self.a.values, self.lay_a),
            laid(self.b.values, self.lay_b).t(),
            scales(self.a),
            scale_b if self.b.recipe == TENSOR else scale_b.t(),
        )

    @property
    def keywords(self) -> dict[str, Any]:
        given: dict[str, Any] = {"output_dtype": self.d, "use_fast_accum": self.fast}
        if self.bias is not None:
            given["bias"] = self.bias
        if self.named:
            given |= {"scale_recipe_a": self.a.recipe, "scale_recipe_b": self.b.recipe}
        if self.a.azp is not None:
            given["azp"] = self.a.azp
            if self.with_adj:
                given["azp_adj"] = self.b.values.sum(1, dtype=torch.int32)
        return given

    def run(self, cutwheel: Any, **more: Any) -> torch.Tensor:
        a, b, scale_a, scale_b = self.positional
        keywords = {**self.keywords, **more}
        result: torch.Tensor = cutwheel.scaled_mm(a, b, scale_a, scale_b=scale_b, **keywords)
        return result

    def row(self, cutwheel: Any) -> str | None:
        """The kernel that it runs."""
        a, b, scale_a, scale_b = self.positional
        keywords = {**self.keywords, "scale_b": scale_b}
        name: str | None = cutwheel.explain("scaled_mm", a, b, scale_a, **keywords).row
        return name

    def judge(self, result: torch.Tensor) -> None:
        problem = ScaledProblem.of_operands(self.a, self.b, self.bias)
        theirs, problem = torchs(self.a, self.b, self.d, self.bias, self.fast, problem)
        with told(self):
            assert_as_good_as(result, theirs, problem)

    def check(self, cutwheel: Any) -> torch.Tensor:
        """Runs it and compares the result with float64."""
        m, n = self.a.values.shape[0], self.b.values.shape[0]
        poison((m, n), self.d, self.a.values.device)
        with told(self):
            result = self.run(cutwheel)
        assert result.is_contiguous(), f"{self}: strides {result.stride()}"
        self.judge(result)
        return result

    def __str__(self) -> str:
        (m, k), n = self.a.values.shape, self.b.values.shape[0]
        types = f"{self.a.values.dtype} x {self.b.values.dtype} -> {self.d}".replace("torch.", "")
        bias = "no" if self.bias is None else str(self.bias.dtype).removeprefix("torch.")
        azp = "" if self.a.azp is None else f", azp {tuple(self.a.azp.shape)}"
        return (
            f"M={m} N={n} K={k} {types}, {self.a.recipe} x {self.b.recipe}, {bias} bias{azp},"
            f" fast={self.fast}, named={self.named}, layouts a {self.lay_a}, b {self.lay_b},"
            f" scales {self.lay_scales}"
        )


def integers(call: Call, cutwheel: Any) -> torch.Tensor:
    """The int32 product of a call's values, without scales; it has to be exact."""
    a, b, *_ = call.positional
    result: torch.Tensor = cutwheel.scaled_mm(a, b, output_dtype=torch.int32)
    assert result.dtype == torch.int32
    wanted = exact_integers(call.a.values, call.b.values)
    assert result.shape == wanted.shape
    wrong = int((result != wanted).sum())
    assert wrong == 0, f"{wrong} of {wanted.numel()} sums are wrong: {call}"
    return result


# ---- which calls
def pairwise(axes: Mapping[str, Sequence[Any]], seed: int = 0) -> Iterator[dict[str, Any]]:
    """Few combinations in which any two values of two axes meet at least once."""
    rng = random.Random(seed)
    names = list(axes)
    open_pairs = {
        ((p, i), (q, j))
        for p, q in itertools.combinations(names, 2)
        for i in range(len(axes[p]))
        for j in range(len(axes[q]))
    }

    def covers(chosen: Mapping[str, int], name: str, index: int) -> int:
        order = names.index(name)
        return sum(
            (((p, i), (name, index)) if names.index(p) < order else ((name, index), (p, i)))
            in open_pairs
            for p, i in chosen.items()
        )

    while open_pairs:
        (p, i), (q, j) = min(open_pairs, key=str)
        chosen = {p: i, q: j}
        for name in rng.sample(names, len(names)):
            if name not in chosen:
                order = rng.sample(range(len(axes[name])), len(axes[name]))
                chosen[name] = max(order, key=lambda index: covers(chosen, name, index))
        open_pairs -= set(itertools.combinations([(name, chosen[name]) for name in names], 2))
        yield {name: axes[name][chosen[name]] for name in names}


_COMMON: dict[str, Sequence[Any]] = {
    "m": MS,
    "nk": NKS,
    "d": OUT_DTYPES,
    "bias": (None, "d", "f32"),
    "named": (False, True),
    "lay_a": ("row", "row", "row_padded_8", "row_offset"),
    "lay_b": ("row", "row", "row_padded_3", "column"),
    "lay_scales": ("row", "column", "row_padded_3"),
}
_FP8 = {"dtypes": FP8_PAIRS, "fast": (False, True)}
_INT8 = {"dtypes": ((INT8, INT8),), "azp": (None, None, "tensor", "row"), "with_adj": (True, False)}


def cases() -> dict[str, list[dict[str, Any]]]:
    """For each pair of recipes keywords of Call.random, with (N, K) as "nk".

    Every M meets every (N, K) once for each of fp8 and int8, and not for each pair of recipes.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    for kind, own, recipes in (("fp8", _FP8, (*SPREAD, *BLOCKWISE)), ("int8", _INT8, SPREAD)):
        for case in pairwise({**_COMMON, **own, "recipes": recipes}):
            left, right = (name.removeprefix("blockwise_") for name in case["recipes"])
            found.setdefault(f"{kind}-{left}-{right}", []).append(case)
    return found


def call_of(case: Mapping[str, Any], device: str) -> Call:
    (n, k), m = case["nk"], case["m"]
    rest = {key: value for key, value in case.items() if key not in ("m", "nk")}
    return Call.random(m, n, k, device, **rest)


# ---- rows of the kernel table
def rows() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(products, quantisation)"""
    found = manifest_kernels("scaled_mm")
    return (
        [row for row in found if row["family"] != "quantize"],
        [row for row in found if row["family"] == "quantize"],
    )


def calls_of_row(row: Mapping[str, Any], device: str) -> Iterator[Call]:
    """Calls that this row of the table serves: more than a tile, less than one, no multiples."""
    dtypes, d = (TORCH_DTYPE[row["a"]], TORCH_DTYPE[row["b"]]), TORCH_DTYPE[row["d"]]
    operands = manifest()["epilogues"][row["epilogue"]]["operands"]
    bias = "f32" if operands.get("bias", "").endswith(" f32") else "d"
    block = {"1x128_128x128": BLOCKWISE[:1], "1x128_1x128": BLOCKWISE[1:]}
    recipes = block.get(row.get("scales") or "none", SPREAD[:2])
    # The last of the pairs at every shape: a scale for each row is what can be read too far.
    # Where a cluster shares K, it has a tile for each threadblock.
    splits = row["cluster"][2]
    short_k = 80 if splits == 1 else splits * row["tile"][2] + 16
    problems = [((264, 328, 1168), pair) for pair in recipes]
    problems += [
        (shape, recipes[-1]) for shape in ((24, 40, short_k), (77, 333, max(296, short_k)))
    ]
    for (m, n, k), pair in problems:
        azp = None
        if "azp" in operands:
            azp = "tensor" if pair[0] == TENSOR else "row"
        yield Call.random(
            m,
            n,
            k,
            device,
            dtypes,
            pair,
            d,
            bias,
            azp,
            fast=bool(row.get("fast_accum")),
            named=bool(row.get("scales")),  # a K of one block could be meant row-wise
        )


def without_bias(call: Call) -> Call:
    return replace(call, bias=None)
