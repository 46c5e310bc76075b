"""Problems for dense products by kernels whose threadblocks work off several tiles each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from epilogue_cases import CLASSIC
from gemm_cases import SINGLE, TORCH_DTYPE, canary, manifest_kernels, random_tensor, torch_product
from reference import Problem, assert_as_good_as

Row = dict[str, Any]
ALPHA = 0.75


def persistent_rows(is_fused: bool = False) -> list[Row]:
    """Those of mm and addmm, or those with an epilogue of its own."""
    return [
        row
        for row in manifest_kernels()
        if row["family"] in ("sm90_persistent", "sm90_unaligned")
        and (row["epilogue"] not in CLASSIC) == is_fused
    ]


def splits_of(row: Row) -> int:
    """Threadblocks of a cluster that share the K of a tile."""
    splits: int = row["cluster"][2]
    return splits


def shortest_k(row: Row) -> int:
    """Least K that this kernel takes: a tile of K for each threadblock that shares it."""
    return splits_of(row) * int(row["tile"][2])


@dataclass(frozen=True)
class Extents:
    m: int
    n: int
    k: int
    batch: tuple[int, ...] = ()


def extents_of(row: Row, sms: int) -> Iterator[Extents]:
    """M and N end within tiles throughout."""
    tile_m, tile_n, tile_k = row["tile"]
    if row["swap_ab"]:
        tile_m, tile_n = tile_n, tile_m
    splits = splits_of(row)
    # More than two tiles for each SM, so that every cluster goes around more than twice. K has a
    # tile more than there are threadblocks to share it, and the last one is not whole.
    across = 16
    down = 2 * sms // across + 2
    yield Extents(down * tile_m - tile_m // 2 - 3, across * tile_n - 8, (splits + 1) * tile_k - 24)
    # More of K than the stages hold; all extents are odd.
    yield Extents(tile_m + 1, 2 * tile_n - 3, (12 * splits + 1) * tile_k + 33)
    # Less than a tile of M and N, and no K to spare.
    yield Extents(max(tile_m // 2 - 1, 1), tile_n - 8, shortest_k(row))
    yield Extents(1, 8, shortest_k(row) + 8)
    yield Extents(2 * tile_m - 5, tile_n + 8, (2 * splits + 1) * tile_k - 8, (3,))
    yield Extents(tile_m + 3, 3 * tile_n - 1, shortest_k(row) + 1, (2,))


def inside(x: torch.Tensor, is_column: bool = False) -> torch.Tensor:
    """The same values within a larger tensor, as kernels take them without a copy: the first one
    and every pitch are multiples of 16 bytes, whatever the extents. NaN all around."""
    source = x.mT if is_column else x
    unit = 16 // x.element_size()
    rows, columns = source.shape[-2:]
    pitch = -(-columns // unit) * unit + 2 * unit
    wide = x.new_full((*source.shape[:-2], rows + 2, pitch), canary(x))
    view = wide[..., 1:-1, unit : unit + columns]
    view.copy_(source)
    return view.mT if is_column else view


def anywhere(x: torch.Tensor, is_column: bool = False) -> torch.Tensor:
    """The same values within a larger tensor whose rows begin anywhere: an odd pitch, and none of
    the first 16 bytes. NaN all around."""
    source = x.mT if is_column else x
    rows, columns = source.shape[-2:]
    wide = x.new_full((*source.shape[:-2], rows + 2, columns + 4 | 1), canary(x))
    view = wide[..., 1:-1, 2 : 2 + columns]
    view.copy_(source)
    return view.mT if is_column else view


def layer_of(row: Row) -> Callable[[torch.Tensor, bool], torch.Tensor]:
    """Lays operands so that this kernel takes them without a copy."""
    return anywhere if row["family"] == "sm90_unaligned" else inside


@dataclass(frozen=True)
class Product:
    """A call that takes one kernel, and what it should give: alpha * a @ b + beta * c.

    a [*B, M, K], b [*B, K, N], c [N] or [B, 1, N]. beta is 1, or 0 where the kernel adds nothing:
    then c is NaN.
    """

    a: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor
    beta: int
    d: torch.dtype

    @classmethod
    def random(
        cls,
        row: Row,
        extents: Extents,
        device: str,
        lay: Callable[[torch.Tensor, bool], torch.Tensor] | None = None,
    ) -> Product:
        lay = lay or layer_of(row)
        dtype, batch = TORCH_DTYPE[row["a"]], extents.batch
        is_column_a, is_column_b = (letter == "n" for letter in row["layout"][:2])
        m, n, k = extents.m, extents.n, extents.k
        a = lay(random_tensor((*batch, m, k), dtype, device), is_column_a)
        b = lay(random_tensor((*batch, k, n), dtype, device), is_column_b)
        return cls(a, b, *cls.addend(row, n, device, batch))

    @staticmethod
    def addend(
        row: Row, n: int, device: str, batch: tuple[int, ...] = ()
    ) -> tuple[torch.Tensor, int, torch.dtype]:
        """c, beta and the dtype of a product by this kernel."""
        c = random_tensor((*batch, 1, n) if batch else (n,), TORCH_DTYPE[row["a"]], device)
        d = TORCH_DTYPE[row["d"]]
        return (c, 1, d) if row["epilogue"] == "bias" else (c.fill_(canary(c)), 0, d)

    @property
    def _arguments(self) -> tuple[str, tuple[torch.Tensor, ...], dict[str, Any]]:
        op = "addmm" if self.a.dim() == 2 else "baddbmm"
        changed = {"out_dtype": self.d} if self.d != self.a.dtype else {}
        return op, (self.c, self.a, self.b), {"alpha": ALPHA, "beta": self.beta, **changed}

    def chosen(self, cutwheel: Any) -> str | None:
        op, tensors, scalars = self._arguments
        row: str | None = cutwheel.explain(op, *tensors, **scalars).row
        return row

    def run(self, cutwheel: Any, out: torch.Tensor | None = None) -> torch.Tensor:
        op, tensors, scalars = self._arguments
        result: torch.Tensor = getattr(cutwheel, op)(*tensors, **scalars, out=out)
        return result

    def problem(self) -> Problem:
        return Problem.of(self.a, self.b, self.c, alpha=ALPHA, beta=self.beta)

    def judge(self, result: torch.Tensor) -> None:
        torchs = ALPHA * torch_product(self.a, self.b, SINGLE)
        if self.beta:
            torchs = torchs + self.c.float()
        assert_as_good_as(result, torchs.to(self.d), self.problem())

    def __str__(self) -> str:
        return f"{tuple(self.a.shape)} @ {tuple(self.b.shape)} {self.a.dtype}"
