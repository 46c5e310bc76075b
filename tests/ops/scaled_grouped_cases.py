"""Calls of cutwheel.scaled_grouped_mm, and which of them a row of the kernel table serves."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from gemm_cases import BRAIN, SINGLE, TORCH_DTYPE, manifest
from grouped_cases import draw_ends, offsets, serves
from grouped_reference import spans
from reference import poison, told
from scaled_cases import Call, laid, random_bias, random_operand
from scaled_reference import BY_128, BY_128_128, E4M3, ROW, Quantised

RECIPES = ((ROW, ROW), (BY_128, BY_128_128))


def is_served(
    recipes: tuple[str, str],
    dtypes: tuple[torch.dtype, torch.dtype] = (E4M3, E4M3),
    d: torch.dtype = BRAIN,
) -> bool:
    """Whether a row of the table is for these; results may be written in float32 and converted."""
    scales = None if recipes == (ROW, ROW) else "1x128_128x128"
    epilogue = "scaled" if scales is None else "block_bias"
    return any(serves("rows", dtypes[0], of, epilogue, dtypes[1], scales) for of in {d, SINGLE})


@dataclass(frozen=True, eq=False)
class Grouped:
    """a [T, K], for each group b [N, K] (see scaled_reference), and how they are handed over."""

    a: Quantised
    b: list[Quantised]
    ends: list[int]
    d: torch.dtype = BRAIN
    bias: torch.Tensor | None = None  # [G, N]
    fast: bool = False
    offs_dtype: torch.dtype = torch.int32
    lay_a: str = "row"
    lay_b: str = "row"
    lay_scales: str = "row"
    flat: bool = True  # scales of rows and columns without an extent of 1

    @classmethod
    def random(
        cls,
        total: int,
        n: int,
        k: int,
        groups: int,
        device: str,
        dtypes: tuple[torch.dtype, torch.dtype] = (E4M3, E4M3),
        recipes: tuple[str, str] = (ROW, ROW),
        d: torch.dtype = BRAIN,
        bias: str | None = None,
        how: str = "random",
        seed: int = 0,
        **options: Any,
    ) -> Grouped:
        """Rows that no group covers are NaN, values and scales; empty groups have NaN, too."""
        ends = draw_ends(total, groups, how, seed)
        a = random_operand(total, k, dtypes[0], recipes[0], device)
        b = [random_operand(n, k, dtypes[1], recipes[1], device) for _ in range(groups)]
        a.values.view(torch.uint8)[ends[-1] :] = 0x7F
        a.scales[ends[-1] :] = float("nan")
        for (first, last), weight in zip(spans(ends, total), b, strict=True):
            if first == last:
                weight.values.view(torch.uint8).fill_(0x7F)
        rows = [random_bias(n, bias, d, device) for _ in range(groups)]
        stacked = torch.stack([row for row in rows if row is not None]) if bias else None
        return cls(a, b, ends, d, stacked, **options)

    @property
    def positional(self) -> tuple[torch.Tensor, ...]:
        values = torch.stack([b.values.view(torch.uint8) for b in self.b]).view(
            self.b[0].values.dtype
        )
        scale_a, scale_b = self.a.scales, torch.stack([b.scales for b in self.b])
        if self.a.recipe == ROW and self.flat:
            scale_a, scale_b = scale_a[:, 0], scale_b[..., 0]
            return laid(self.a.values, self.lay_a), laid(values, self.lay_b).mT, scale_a, scale_b
        return (
            laid(self.a.values, self.lay_a),
            laid(values, self.lay_b).mT,
            laid(scale_a, self.lay_scales),
            laid(scale_b, self.lay_scales).mT,
        )

    @property
    def given(self) -> dict[str, torch.Tensor]:
        return dict(zip(("mat_a", "mat_b", "scale_a", "scale_b"), self.positional, strict=True))

    @property
    def keywords(self) -> dict[str, Any]:
        given: dict[str, Any] = {"output_dtype": self.d, "use_fast_accum": self.fast}
        given["offs"] = offsets(self.ends, str(self.a.values.device), self.offs_dtype)
        if self.bias is not None:
            given["bias"] = self.bias
        return given

    def run(self, cutwheel: Any, **changed: Any) -> torch.Tensor:
        result: torch.Tensor = cutwheel.scaled_grouped_mm(
            **self.given, **{**self.keywords, **changed}
        )
        return result

    def judge(self, result: torch.Tensor) -> None:
        total, n = self.a.values.shape[0], self.b[0].values.shape[0]
        assert (result.dtype, result.shape) == (self.d, (total, n)), str(self)
        found = spans(self.ends, total)
        for g, (first, last) in enumerate(found):
            if first == last:
                continue
            a = replace(self.a, values=self.a.values[first:last], scales=self.a.scales[first:last])
            bias = None if self.bias is None else self.bias[g]
            one = Call(a, self.b[g], self.d, bias, self.fast)
            try:
                one.judge(result[first:last])
            except AssertionError as error:
                raise AssertionError(f"{self}, group {g}: {error}") from error
        assert not result[found[-1][1] :].any(), f"{self}: rows of no group"

    def check(self, cutwheel: Any) -> torch.Tensor:
        """Runs it and compares each group with float64."""
        total, n = self.a.values.shape[0], self.b[0].values.shape[0]
        poison((total, n), self.d, self.a.values.device)
        with told(self):
            result = self.run(cutwheel)
        assert result.is_contiguous(), f"{self}: strides {result.stride()}"
        self.judge(result)
        return result

    def __str__(self) -> str:
        (total, k), n = self.a.values.shape, self.b[0].values.shape[0]
        kinds = (self.a.values.dtype, self.b[0].values.dtype, self.d)
        types = " ".join(str(dtype).removeprefix("torch.") for dtype in kinds)
        return (
            f"T={total} N={n} K={k} {types}, {self.a.recipe}, ends {self.ends},"
            f" {'no ' * (self.bias is None)}bias, fast={self.fast}, layouts a {self.lay_a},"
            f" b {self.lay_b}, scales {self.lay_scales}"
        )


def grouped_of_row(row: dict[str, Any], device: str) -> list[Grouped]:
    """Calls that this row of the table serves; no extent is a multiple of a tile."""
    dtypes, d = (TORCH_DTYPE[row["a"]], TORCH_DTYPE[row["b"]]), TORCH_DTYPE[row["d"]]
    operands = manifest()["epilogues"][row["epilogue"]]["operands"]
    bias = "f32" if operands.get("bias", "").endswith(" f32") else "d"
    recipes = RECIPES[(row.get("scales") or "none") != "none"]
    fast = bool(row.get("fast_accum"))
    return [
        Grouped.random(*extents, device, dtypes, recipes, d, bias, how, seed, fast=fast)
        for seed, (extents, how) in enumerate(
            (
                ((900, 328, 1168, 7), "random"),
                ((40, 40, 80, 5), "short"),
                ((300, 336, 272, 20), "random"),
            )
        )
    ]
