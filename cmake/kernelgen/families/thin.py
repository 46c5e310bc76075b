"""GEMMs of many rows by a weight that fits into shared memory: memory is what they wait for."""

from __future__ import annotations

from collections.abc import Iterator

from kernelgen.families import rules
from kernelgen.families.family import Family
from kernelgen.kernel import DTYPE_BYTES, Kernel

_ROWS, _GROUP, _LINE = 64, 32, 64
_MOST_COLUMNS = 128  # as far as the registers of four warpgroups go


def _check_tile(kernel: Kernel) -> Iterator[str]:
    m, n, k = kernel.tile.shape
    if m != _ROWS:
        yield f"tile M = {m}; a warpgroup takes strips of {_ROWS} rows"
    if n not in (_GROUP, 2 * _GROUP, _MOST_COLUMNS):
        yield f"tile N = {n}; columns that are multiplied at once: 32, 64 or {_MOST_COLUMNS}"
    if k not in (_LINE // 2, _LINE):
        yield f"tile K = {k}; elements of K that are multiplied at once: {_LINE // 2} or {_LINE}"


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
    header="sm90/thin/kernel.cuh",
    template="Thin<arch, dtypes, layouts, tile, epilogue>",
    archs=("90a",),
    dtypes={"gemm": tuple(x for x in rules.GEMM_DTYPES if DTYPE_BYTES[x.d] == 2)},
    layouts=("tnt", "ttt"),
    tile_keys=("tile",),
    schedules=("persistent",),
    mode="thin",
    checks=(rules.check_gemm, rules.check_stores, _check_tile, _check_epilogue),
    # The smallest weight and the barriers: the weight and the strips have a size at a launch alone.
    memory=lambda kernel: f"{kernel.tile.shape[1]} x {_LINE} x 2 + 4 x 4 x 8",
)
