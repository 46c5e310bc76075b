"""Calls of cutwheel.gemm for any epilogue that the manifest declares, and what they should give."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from epilogue_reference import BOUND_FUNCTIONS, Bound, Epilogue, evaluate, placed
from gemm_cases import (
    ARCHS,
    SINGLE,
    TORCH_DTYPE,
    manifest,
    manifest_kernels,
    random_tensor,
    torch_product,
)
from reference import Weighed

CLASSIC = ("plain", "bias", "linear_combination")  # mm and addmm run these; tested with them
SCALARS = {"alpha": 0.75, "beta": -0.5}
SLOPE = 0.125  # any other scalar; exact in every dtype


@functools.cache
def declared() -> dict[str, Epilogue]:
    """Those of cutwheel.gemm; scaled products have others."""
    entries = manifest().get("epilogues", {})
    used = {row["epilogue"] for row in manifest_kernels()}
    return {name: Epilogue.of(name, entry) for name, entry in entries.items() if name in used}


def products() -> list[Epilogue]:
    return [epilogue for epilogue in declared().values() if epilogue.has_accum]


def elementwise() -> list[Epilogue]:
    return [epilogue for epilogue in declared().values() if not epilogue.has_accum]


@dataclass(frozen=True)
class Served:
    """An epilogue with an architecture and dtypes for which the manifest has a kernel."""

    epilogue: Epilogue
    arch: str
    dtype: torch.dtype  # of the operands of the product (elementwise: of everything)
    d: torch.dtype

    def __str__(self) -> str:
        names = [str(dtype).removeprefix("torch.") for dtype in dict.fromkeys((self.dtype, self.d))]
        return "-".join((self.epilogue.name, self.arch, *names))


def served(epilogues: list[Epilogue], dtype: torch.dtype | None = None) -> list[Served]:
    """All of them for which there are kernels; with `dtype`, those of this dtype throughout."""
    rows = {
        (row["epilogue"], row["arch"], TORCH_DTYPE[row["a"]], TORCH_DTYPE[row["d"]])
        for row in manifest_kernels()
        if row["family"] not in ("splitk_reduce", "splitk_epilogue", "pad_rows")
    }
    found = []
    for epilogue in epilogues:
        # linear_combination stands in for the other two.
        names = {epilogue.name} | ({"linear_combination"} if epilogue.name in CLASSIC else set())
        for arch in ARCHS:
            pairs = {row[2:] for row in rows if row[0] in names and row[1] == arch}
            if dtype is not None:
                pairs &= {(dtype, dtype)}
            found += [Served(epilogue, arch, *pair) for pair in sorted(pairs, key=str)]
    return found


def representatives(epilogues: list[Epilogue] | None = None) -> list[Epilogue]:
    """One epilogue for each combination of width, operands and auxiliary stores."""
    found: dict[Any, Epilogue] = {}
    for epilogue in products() if epilogues is None else epilogues:
        kinds = tuple(epilogue.operands.values())
        found.setdefault((epilogue.width, kinds, len(epilogue.aux)), epilogue)
    return list(found.values())


Lay = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Call:
    """a [M, K], b [K, N], or of one batch extent more, and the operands by name."""

    epilogue: Epilogue
    a: torch.Tensor
    b: torch.Tensor
    d: torch.dtype
    operands: Mapping[str, torch.Tensor | None]
    scalars: Mapping[str, float]
    exact: bool = False  # every sum of products is exact, also of TF32 operands
    out: Any = field(default=None, compare=False)

    @classmethod
    def random(
        cls,
        epilogue: Epilogue,
        m: int,
        n: int,
        k: int,
        dtype: torch.dtype,
        device: str,
        d: torch.dtype | None = None,
        batch: tuple[int, ...] = (),
        row_batch: tuple[int, ...] = (),
        lay_a: Lay = lambda x: x,
        lay_b: Lay = lambda x: x,
    ) -> Call:
        """Mixed signs; the product has a standard deviation of 2, where activations bend."""
        n += n % 2 if epilogue.width == "half" else 0
        d = d or dtype
        a = lay_a(random_tensor((*batch, m, k), dtype, device))
        scale = 2 * max(k, 1) ** -0.5
        b = lay_b((scale * torch.randn((*batch, k, n), device=device)).to(dtype))
        operands: dict[str, torch.Tensor | None] = {}
        for name, kind in epilogue.tensors.items():
            shape = {"row[N]": (*row_batch, n), "col[M]": (*row_batch, m)}.get(
                kind, (*batch, m, 2 * n if kind == "matrix[M,2N]" else n)
            )
            of = torch.float32 if epilogue.is_float32(name) else d
            operands[name] = random_tensor(shape, of, device)
        scalars = {name: SCALARS.get(name, SLOPE) for name in epilogue.scalars}
        return cls(epilogue, a, b, d, operands, scalars)

    def with_operands(self, **operands: torch.Tensor | None) -> Call:
        return replace(self, operands={**self.operands, **operands})

    @property
    def _positional(self) -> tuple[Any, ...]:
        return self.a, self.b, self.epilogue.name

    @property
    def _keywords(self) -> dict[str, Any]:
        given = {name: x for name, x in self.operands.items() if x is not None}
        is_implied = self.d == self.a.dtype or self.out is not None
        return {"out_dtype": None if is_implied else self.d, **given, **self.scalars}

    def explain(self, cutwheel: Any) -> Any:
        return cutwheel.explain("gemm", *self._positional, **self._keywords)

    def run(self, cutwheel: Any) -> list[torch.Tensor]:
        """[D, aux...]"""
        result = cutwheel.gemm(*self._positional, **self._keywords, out=self.out)
        assert isinstance(result, tuple) == bool(self.epilogue.aux)
        return list(result) if isinstance(result, tuple) else [result]

    def _values(self, kind: Callable[[torch.Tensor], Any]) -> dict[str, Any]:
        tensors = {
            name: placed(shape, None if x is None else kind(x))
            for name, shape in self.epilogue.tensors.items()
            for x in (self.operands[name],)
        }
        return {**tensors, **self.scalars}

    def torchs(self, dtype: torch.dtype | None = None) -> list[torch.Tensor]:
        """torch's own sequence of ops, each rounding to D's dtype; in `dtype` if that is given."""
        if dtype is None:
            accum = torch_product(self.a, self.b, self.d)
            results = evaluate(self.epilogue, {"accum": accum, **self._values(lambda x: x)})
            return [result.to(self.d) for result in results]
        accum = self.a.to(dtype) @ self.b.to(dtype)
        return evaluate(self.epilogue, {"accum": accum, **self._values(lambda x: x.to(dtype))})

    def weighed(self) -> list[Weighed]:
        a, b = self.a.double(), self.b.double()
        accum = Bound.of(a @ b, a.abs() @ b.abs())
        values = {
            name: Bound.of(x) if isinstance(x, torch.Tensor) else x
            for name, x in self._values(lambda x: x.double()).items()
        }
        found = evaluate(self.epilogue, {"accum": accum, **values}, BOUND_FUNCTIONS)
        tf32 = self.a.dtype == torch.float32 and not self.exact
        return [
            Weighed(
                result.value,
                torch.as_tensor(result.approx, device=a.device).expand_as(result.value),
                torch.as_tensor(result.wide, device=a.device).expand_as(result.value),
                self.a.shape[-1],
                tf32,
            )
            for result in found
        ]

    def check(self, cutwheel: Any) -> list[torch.Tensor]:
        """Runs it and compares every result with float64."""
        torchs = self.torchs()
        # The allocator gives the results this memory: an element that is not written is NaN.
        poisoned = [torch.full_like(result, float("nan")) for result in torchs]
        del poisoned
        results = self.run(cutwheel)
        self.judge(results, torchs)
        return results

    def judge(
        self,
        results: list[torch.Tensor],
        torchs: list[torch.Tensor] | None = None,
        fused: bool = True,
    ) -> None:
        names = ["D", *self.epilogue.aux]
        torchs = self.torchs() if torchs is None else torchs
        for name, result, of_torch, weighed in zip(
            names, results, torchs, self.weighed(), strict=True
        ):
            if self.out is None:
                assert result.is_contiguous(), f"{name} has strides {result.stride()}"
            try:
                weighed.assert_as_good(result, of_torch, name, fused)
            except AssertionError as error:
                raise AssertionError(f"{self}: {error}") from error

    def __str__(self) -> str:
        left_out = [name for name, x in self.operands.items() if x is None]
        sizes = f"{tuple(self.a.shape)} @ {tuple(self.b.shape)}"
        missing = f" without {', '.join(left_out)}" if left_out else ""
        return f"{self.epilogue.name} of {sizes} {self.a.dtype}{missing}"


def check_kernel(
    cutwheel: Any, device: str, environment: Callable[..., None], row: Mapping[str, Any]
) -> None:
    """One row of the kernel table that has an epilogue of its own."""
    epilogue = declared()[row["epilogue"]]
    environment(CUTWHEEL_KERNEL=row["name"])
    lays: list[Lay] = [lambda x: x, lambda x: x.mT.contiguous().mT]
    lay_a, lay_b = (lays["tn".index(letter)] for letter in row["layout"][:2])
    dtype, d = TORCH_DTYPE[row["a"]], TORCH_DTYPE[row["d"]]
    # Where a cluster shares K, it has a tile for each threadblock.
    short_k = 72 if row["cluster"][2] == 1 else row["cluster"][2] * row["tile"][2] + 8
    # Two problems: more than a tile and less than one, with no extent a multiple of a tile.
    # A thin one has the whole weight in shared memory beside rows of A and D, and no batches.
    is_thin = row["family"] == "thin"
    large = (264, 168, 72) if is_thin else (264, 328, max(296, short_k))
    for m, n, k in (large, (24, 40, short_k)):
        call = Call.random(epilogue, m, n, k, dtype, device, d, lay_a=lay_a, lay_b=lay_b)
        assert call.explain(cutwheel).row == row["name"]
        call.check(cutwheel)
        call.with_operands(**dict.fromkeys(call.operands)).check(cutwheel)
    if is_thin:
        return
    # A row for each of a batch, and an N that ends within a vector.
    call = Call.random(
        epilogue, 136, 326, short_k, dtype, device, d, (2,), (2,), lay_a=lay_a, lay_b=lay_b
    )
    call.check(cutwheel)


def check_splitk_epilogue(
    cutwheel: Any, device: str, environment: Callable[..., None], row: Mapping[str, Any]
) -> None:
    """An epilogue behind the sums of split-K, whose slices are of any length."""
    d = TORCH_DTYPE[row["d"]]
    operand = "tf32" if d == SINGLE else row["d"]
    epilogue = declared()[row["epilogue"]]
    # It stores float32 without an epilogue: what is left to it are partial sums.
    partial = next(
        x["name"]
        for x in manifest_kernels()
        if (x["arch"], x["family"], x["epilogue"]) == (row["arch"], "sm90_persistent", "plain")
        and (x["layout"], x["a"], x["d"], x["schedule"]) == ("tnt", operand, "f32", "persistent")
    )
    environment(CUTWHEEL_KERNEL=partial)
    lay_b: Lay = lambda x: x.mT.contiguous().mT  # noqa: E731
    # The last are problems of a batch with operands of their own, which only a long K splits.
    problems: tuple[tuple[int, int, int, tuple[int, ...]], ...] = (
        *((1, 136, 4096, ()), (24, 328, 4104, ()), (264, 72, 8192, ())),
        (5, 16, 2**18 + 72, (2,)),
    )
    for m, n, k, batch in problems:
        call = Call.random(epilogue, m, n, k, d, device, d, batch, batch, lay_b=lay_b)
        parameters = call.explain(cutwheel).parameters
        assert (parameters["reduce"], parameters["splits"] > 1) == (row["name"], True)
        call.check(cutwheel)
        call.with_operands(**dict.fromkeys(call.operands)).check(cutwheel)


def nan_outs(call: Call, lay: Lay = lambda x: x) -> list[torch.Tensor]:
    """Outputs of a call's shapes, filled with NaN."""
    return [lay(torch.full_like(result, float("nan"))) for result in call.torchs()]
