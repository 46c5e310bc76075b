"""GEMMs of many rows by a weight that fits into shared memory: memory is what they wait for."""

from __future__ import annotations

from collections.abc import Iterator

from kernelgen.families import rules
from kernelgen.families.family import Family
from kernelgen.kernel import DTYPE_BYTES, Kernel

_ROWS, _GROUP, _BLOCK = 128, 32, 32
_MOST_COLUMNS, _LONGEST_K = 64, 160


def _check_tile(kernel: Kernel) -> Iterator[str]:
    m, n, k = kernel.tile.shape
    if m != _ROWS:
        yield f"tile M = {m}; eight warps take 16 rows each: {_ROWS}"
    if n not in range(_GROUP, _MOST_COLUMNS + 1, _GROUP):
        yield f"tile N = {n}; groups of {_GROUP} columns are multiplied at once: 32 or 64"
    if k not in range(_BLOCK, _LONGEST_K + 1, _BLOCK):
        yield (
            f"tile K = {k}; registers hold rows of up to {_LONGEST_K}, in blocks of {_BLOCK}: a"
            f" multiple of {_BLOCK} up to {_LONGEST_K}"
        )


def _check_epilogue(kernel: Kernel) -> Iterator[str]:
    epilogue = kernel.epilogue
    if epilogue is None:
        return
    if epilogue.width != "same":
        yield f"epilogue {epilogue.name} gives D {epilogue.width} the columns of the product"
    for name, kind in epilogue.operands:
        is_row = kind.enumerator == "row" and not kind.may_be_one
        is_matrix = kind.enumerator == "matrix" and kind.dtype == "d"
        if kind.enumerator != "scalar" and not is_row and not is_matrix:
            yield (
                f"epilogue {epilogue.name} reads {name}, {kind}; operands are scalar, row[N] or"
                " matrix[M,N] of D's type here"
            )


THIN = Family(
    name="thin",
    seconds=(3, 0.2),
    header="sm80/thin.cuh",
    template="Thin<arch, dtypes, layouts, tile, epilogue>",
    archs=("80", "89", "90a"),
    dtypes={"gemm": tuple(x for x in rules.GEMM_DTYPES if DTYPE_BYTES[x.d] == 2)},
    layouts=("tnt", "ttt"),
    tile_keys=("tile",),
    schedules=("persistent",),
    mode="thin",
    checks=(rules.check_gemm, rules.check_stores, _check_tile, _check_epilogue),
    # Of the smallest weight; a larger one takes more.
    memory=lambda kernel: f"{_GROUP} x {_BLOCK} x 2",
)
