"""GEMMs of many rows by a weight in shared memory, whose rows go straight to registers."""

from __future__ import annotations

from collections.abc import Iterator

from kernelgen.families import rules
from kernelgen.families.family import Family
from kernelgen.families.thin import check_epilogue
from kernelgen.kernel import DTYPE_BYTES, Kernel

_TILE = (128, 64, 96)
_GROUP, _BLOCK = 32, 32


def _check_tile(kernel: Kernel) -> Iterator[str]:
    if kernel.tile.shape != _TILE:
        yield (
            f"tile {kernel.tile.shape}; eight warps take 16 rows each, 64 columns and a K of 96 at"
            f" once: {_TILE}"
        )


SM80_THIN = Family(
    name="sm80_thin",
    seconds=(3, 0.2),
    header="sm80/thin.cuh",
    template="Sm80Thin<arch, dtypes, layouts, tile, epilogue>",
    archs=("90a",),
    dtypes={"gemm": tuple(x for x in rules.GEMM_DTYPES if DTYPE_BYTES[x.d] == 2)},
    layouts=("tnt", "ttt"),
    tile_keys=("tile",),
    schedules=("persistent",),
    mode="registers",
    checks=(rules.check_gemm, rules.check_stores, _check_tile, check_epilogue),
    # What the smallest weight takes: how large it is, only a launch knows.
    memory=lambda kernel: f"{_GROUP} x {_BLOCK} x 2",
)
