"""Calls of cutwheel.grouped_mm and of what is built on it, and which of them to run."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from epilogue_cases import Call as EpilogueCall
from epilogue_reference import Epilogue
from gemm_cases import (
    LAYOUTS,
    SINGLE,
    TORCH_DTYPE,
    manifest,
    manifest_kernels,
    random_tensor,
)
from grouped_reference import loop, problem, spans, torchs
from reference import assert_as_good_as, told

# ---- groups
# How ends are drawn: with many empty groups; even; at the borders; not all of the rows; none.
DRAWN = ("random", "uniform", "ends_empty", "one_has_all", "short", "all_empty")


def draw_ends(total: int, groups: int, how: str, seed: int = 0) -> list[int]:
    """The last row + 1 of each group."""
    rng = random.Random(seed)
    covered = {"short": total * 2 // 3, "all_empty": 0}.get(how, total)
    weights = [rng.expovariate(1.0) * (rng.random() < 0.6) for _ in range(groups)]
    if how == "uniform":
        weights = [1.0] * groups
    elif how == "ends_empty":
        weights = [float(0 < g < groups - 1 or groups < 3) for g in range(groups)]
    elif how == "one_has_all":
        chosen = rng.randrange(groups)
        weights = [float(g == chosen) for g in range(groups)]
    if not any(weights):
        weights[rng.randrange(groups)] = 1.0
    ends, before = [], 0.0
    for weight in weights:
        before += weight
        ends.append(round(covered * before / sum(weights)))
    ends[-1] = covered
    return ends


def offsets(ends: Sequence[int], device: str, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.tensor(list(ends), dtype=dtype, device=device)


# ---- what this wheel has kernels for
def archs() -> tuple[str, ...]:
    """Those with grouped kernels of operands that need no scale: sm89 has the others alone."""
    rows = manifest_kernels("grouped_mm")
    return tuple(dict.fromkeys(row["arch"] for row in rows if TORCH_DTYPE[row["a"]].itemsize > 1))


def _archs_here() -> set[str]:
    """Whose kernels are candidates on this GPU."""
    if os.environ.get("CUTWHEEL_ARCH"):
        return {os.environ["CUTWHEEL_ARCH"]}
    if not torch.cuda.is_available():
        return {"sm80", "sm89", "sm90a"}
    capability = torch.cuda.get_device_capability()
    if capability == (9, 0):
        return {"sm90a"}
    return {"sm80", "sm89"} if capability >= (8, 9) else {"sm80"}


def serves(
    grouping: str,
    a: torch.dtype,
    d: torch.dtype,
    epilogue: str = "plain",
    b: torch.dtype | None = None,
    scales: str | None = None,
) -> bool:
    """Whether a row of the table does: not every epilogue is there for every dtype."""
    found, here = manifest_kernels("grouped_mm"), _archs_here()
    names = {epilogue, "linear_combination"} if epilogue == "plain" else {epilogue}
    return not found or any(
        row["arch"] in here
        and row["grouping"] == grouping
        and (TORCH_DTYPE[row["a"]], TORCH_DTYPE[row["b"]]) == (a, b or a)
        and TORCH_DTYPE[row["d"]] == d
        and row["epilogue"] in names
        and row.get("scales") == scales
        for row in found
    )


# ---- calls of grouped_mm
@dataclass(frozen=True, eq=False)
class Call:
    """a, b and the ends of the groups (None: 3-D operands both), and how they are handed over."""

    a: torch.Tensor
    b: torch.Tensor
    ends: Sequence[int] | None
    d: torch.dtype
    bias: torch.Tensor | None = None  # [G, N]; [G, M] of grouped columns
    offs_dtype: torch.dtype = torch.int32
    lay_a: str = "row"
    lay_b: str = "row"

    @classmethod
    def random(
        cls,
        kind: str,
        m: int,
        n: int,
        k: int,
        groups: int,
        dtype: torch.dtype,
        device: str,
        d: torch.dtype | None = None,
        how: str = "random",
        seed: int = 0,
        bias: bool = False,
        **options: Any,
    ) -> Call:
        """The extent that `kind` groups is that of all groups; what no group covers is NaN."""
        total = {"rows": m, "k": k, "columns": n}.get(kind, 0)
        ends = None if kind == "batched" else draw_ends(total, groups, how, seed)
        a_groups = (groups,) if kind in ("columns", "batched") else ()
        b_groups = (groups,) if kind in ("rows", "batched") else ()
        a = random_tensor((*a_groups, m, k), dtype, device)
        b = random_tensor((*b_groups, k, n), dtype, device)
        if ends is not None:
            nan = float("nan")
            if kind == "rows":
                a[ends[-1] :] = nan
            elif kind == "columns":
                b[:, ends[-1] :] = nan
            else:
                a[:, ends[-1] :], b[ends[-1] :] = nan, nan
        d = d or dtype
        width = m if kind == "columns" else n
        row = random_tensor((groups, width), d, device) if bias else None
        return cls(a, b, ends, d, row, **options)

    @property
    def kind(self) -> str:
        return {(2, 3): "rows", (2, 2): "k", (3, 2): "columns"}.get(
            (self.a.dim(), self.b.dim()), "batched"
        )

    @property
    def is_served(self) -> bool:
        """Batches are those of bmm."""
        grouping = {"columns": "rows"}.get(self.kind, self.kind)
        epilogue = "plain" if self.bias is None else "bias"
        return grouping == "batched" or serves(grouping, self.a.dtype, self.d, epilogue)

    @property
    def positional(self) -> tuple[torch.Tensor, torch.Tensor]:
        return LAYOUTS[self.lay_a](self.a), LAYOUTS[self.lay_b](self.b)

    @property
    def offs(self) -> torch.Tensor | None:
        if self.ends is None:
            return None
        return offsets(self.ends, str(self.a.device), self.offs_dtype)

    @property
    def keywords(self) -> dict[str, Any]:
        given: dict[str, Any] = {}
        if self.ends is not None:
            given["offs"] = self.offs
        if self.bias is not None:
            given["bias"] = self.bias
        if self.d != self.a.dtype:
            given["out_dtype"] = self.d
        return given

    def run(self, cutwheel: Any, **changed: Any) -> torch.Tensor:
        result: torch.Tensor = cutwheel.grouped_mm(*self.positional, **{**self.keywords, **changed})
        return result

    def row(self, cutwheel: Any) -> str | None:
        """The kernel that it runs."""
        name: str | None = cutwheel.explain("grouped_mm", *self.positional, **self.keywords).row
        return name

    def judge(self, result: torch.Tensor, addend: torch.Tensor | None = None) -> None:
        theirs = torchs(self.a, self.b, self.ends, self.d, self.bias, addend)
        exact = problem(self.a, self.b, self.ends, self.bias, addend)
        with told(self):
            assert_as_good_as(result, theirs, exact)

    def check(self, cutwheel: Any, **changed: Any) -> torch.Tensor:
        """Runs it and compares the result with float64."""
        poisoned = torch.full_like(torchs(self.a, self.b, self.ends, self.d), float("nan"))
        del poisoned  # the allocator gives the result this memory
        with told(self):
            result = self.run(cutwheel, **changed)
        assert result.is_contiguous(), f"{self}: strides {result.stride()}"
        self.judge(result)
        return result

    def accumulate(self, cutwheel: Any) -> torch.Tensor:
        """Accumulation with grouped K onto a float32 matrix per group, inside larger memory."""
        groups, m, n = len(self.ends or ()), self.a.shape[0], self.b.shape[1]
        before = torch.randn(groups, m, n, device=self.a.device)
        whole = torch.full((groups + 2, m, n), float("nan"), device=self.a.device)
        out = whole[1:-1]
        out.copy_(before)
        assert self.run(cutwheel, accumulate_into=out, out_dtype=None) is out
        assert whole[0].isnan().all(), f"{self}: written before the result"
        assert whole[-1].isnan().all(), f"{self}: written behind the result"
        replace(self, d=SINGLE).judge(out, before)
        for g, (first, last) in enumerate(spans(self.ends or (), self.a.shape[1])):
            assert first < last or torch.equal(out[g], before[g]), f"{self}: group {g} is empty"
        return out

    def __str__(self) -> str:
        types = f"{self.a.dtype} -> {self.d}".replace("torch.", "")
        ends = list(self.ends or ())
        shown = str(ends) if len(ends) <= 20 else f"{ends[:20]}... ({len(ends)})"
        return (
            f"{self.kind} {tuple(self.a.shape)} @ {tuple(self.b.shape)} {types}, ends {shown},"
            f" {'no ' * (self.bias is None)}bias, layouts a {self.lay_a}, b {self.lay_b}"
        )


# ---- linear layers with an epilogue, for each group
@dataclass(frozen=True, eq=False)
class FusedCall:
    """x [T, K], weight [G, N, K]; the epilogue is one of the manifest's."""

    epilogue: Epilogue
    x: torch.Tensor
    weight: torch.Tensor
    ends: Sequence[int]
    bias: torch.Tensor | None = None  # [G, N]
    lay_weight: str = "row"

    @classmethod
    def random(
        cls,
        name: str,
        total: int,
        n: int,
        k: int,
        groups: int,
        dtype: torch.dtype,
        device: str,
        how: str = "random",
        seed: int = 0,
        **options: Any,
    ) -> FusedCall:
        """The product has a standard deviation of 2, where activations bend."""
        epilogue = Epilogue.of(name, manifest()["epilogues"][name])
        ends = draw_ends(total, groups, how, seed)
        x = random_tensor((total, k), dtype, device)
        x[ends[-1] :] = float("nan")
        scale = 2 * max(k, 1) ** -0.5
        weight = (scale * torch.randn(groups, n, k, device=device)).to(dtype)
        bias = None
        if "bias" in epilogue.operands:
            bias = random_tensor((groups, n), dtype, device)
        return cls(epilogue, x, weight, ends, bias, **options)

    def run(self) -> list[torch.Tensor]:
        """[D, aux...]"""
        ops = torch.ops.cutwheel
        op = ops.grouped_linear_fused_aux if self.epilogue.aux else ops.grouped_linear_fused
        result = op(
            self.x,
            LAYOUTS[self.lay_weight](self.weight),
            offsets(self.ends, str(self.x.device)),
            self.bias,
            self.epilogue.name,
            self.x.dtype == SINGLE,
        )
        return list(result) if isinstance(result, tuple) else [result]

    def check(self) -> list[torch.Tensor]:
        """Runs it and compares each group with float64."""
        total, n = self.x.shape[0], self.weight.shape[1]
        widths = [self.epilogue.columns(n), *(n for _ in self.epilogue.aux)]
        poisoned = [self.x.new_full((total, width), float("nan")) for width in widths]
        del poisoned
        results = self.run()
        assert [tuple(result.shape) for result in results] == [(total, w) for w in widths]
        found = spans(self.ends, total)
        for g, (first, last) in enumerate(found):
            if first == last:
                continue
            operands = {"bias": None if self.bias is None else self.bias[g]}
            kept = {name: operands[name] for name in self.epilogue.tensors}
            call = EpilogueCall(
                self.epilogue, self.x[first:last], self.weight[g].t(), self.x.dtype, kept, {}
            )
            call.judge([result[first:last] for result in results])
        for result in results:
            assert not result[found[-1][1] :].any(), f"{self}: rows of no group"
        return results

    def __str__(self) -> str:
        sizes = f"{tuple(self.x.shape)} @ {tuple(self.weight.shape)}"
        return f"{self.epilogue.name} of {sizes} {self.x.dtype}, ends {list(self.ends)}"


# ---- rows of the kernel table
def rows() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(of float operands, of 8-bit ones)"""
    found = manifest_kernels("grouped_mm")
    scaled = [row for row in found if TORCH_DTYPE[row["a"]].itemsize == 1]
    return [row for row in found if row not in scaled], scaled


# Total rows (or K), N, K (or M) and groups: several tiles of some groups; less than one of any.
PROBLEMS = ((1100, 328, 296, 7), (40, 40, 72, 5), (300, 264, 128, 20))


def calls_of_row(row: Mapping[str, Any], device: str) -> Iterator[Call | FusedCall]:
    """Calls that this row of the table serves; no extent is a multiple of a tile."""
    dtype, d = TORCH_DTYPE[row["a"]], TORCH_DTYPE[row["d"]]
    for seed, ((total, n, k, groups), how) in enumerate(
        zip(PROBLEMS, ("random", "short", "random"), strict=True)
    ):
        if row["grouping"] == "k":
            lay_a, lay_b = (_LAYOUT[letter] for letter in row["layout"][:2])
            yield Call.random(
                "k", k, n, total, groups, dtype, device, d, how, seed, lay_a=lay_a, lay_b=lay_b
            )
        elif row["epilogue"] in ("plain", "bias"):
            bias = row["epilogue"] == "bias"
            lay_b = _LAYOUT[row["layout"][1]]
            yield Call.random(
                "rows", total, n, k, groups, dtype, device, d, how, seed, bias, lay_b=lay_b
            )
        else:
            lay = {"n": "row", "t": "column"}[row["layout"][1]]  # of the weight, B transposed
            yield FusedCall.random(
                row["epilogue"], total, n, k, groups, dtype, device, how, seed, lay_weight=lay
            )


_LAYOUT = {"t": "row", "n": "column"}


# ---- gated layers
def torch_gated(
    x: torch.Tensor, weight: torch.Tensor, ends: Sequence[int], activation: Any
) -> torch.Tensor:
    """weight [G, 2F, K], gate and up alternating"""
    z = loop(x, weight.mT, ends)
    result: torch.Tensor = activation(z[..., 0::2]) * z[..., 1::2]
    return result
