"""Products by wgmma, with operands that TMA brings, by kernels of our own: Hopper.

One warp loads, and every warpgroup works off its rows of a tile to the end by itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from kernelgen import wgmma
from kernelgen.family import (
    CONV_DTYPES,
    FP8_PRODUCTS,
    GEMM_DTYPES,
    SCALE_BLOCK,
    Family,
    by_op,
    check_direction,
    check_grouping,
    check_product,
    check_stores,
    cpp_block_scales,
    cpp_bool,
    cpp_direction,
    cpp_dtypes,
    cpp_grouping,
    cpp_layouts,
    cpp_shape,
    dims,
    operand_bytes,
    operands_lie,
    own_layouts,
    result_bytes,
)
from kernelgen.kernel import DIRECTIONS, DTYPE_BYTES, DTypes, Kernel

# Bytes that TMA lays side by side in shared memory, and the most of a staged row of results.
_SWIZZLE_BYTES = 128
_STAGED_ROW_BYTES = 512
# 16-bit elements in a swizzle.
_MN_COLUMNS = 64
# Tiles of K whose block-wise scales are copied together.
_SCALE_CHUNK = 8


class _Persistent(Family):
    """Tiles without cluster and schedule; the number of stages is what fits."""

    archs = ("90a",)
    tile_keys = ("tile",)
    optional_tile_keys: tuple[str, ...] = ("fast_accum",)
    tiles_share_source = True
    schedules = ("persistent",)
    swizzles: tuple[int, ...] = (1,)  # of a tile of K

    def check(self, kernel: Kernel) -> Iterator[str]:
        m, n, k = kernel.tile.shape
        dtypes, size = kernel.dtypes, kernel.element_bytes
        is_promoted = kernel.is_fp8 and not kernel.tile.fast_accum
        yield from check_product(kernel)
        if kernel.scales and not is_promoted:
            yield (
                f"scales {kernel.scales} with fast_accum or other operands than fp8; they are"
                " applied when sums are promoted: leave one of the two out"
            )
        if m not in (64, 128):
            yield f"tile M = {m}; one or two warpgroups take 64 rows each: 64 or 128"
        if n % 16 or n > 256:
            yield f"tile N = {n}; rows of D are made of 16 columns: a multiple of 16 up to 256"
        elif (width := _wgmma_columns(n, is_promoted)) not in _wgmma_widths(dtypes):
            widths = _wgmma_widths(dtypes)
            there = [x for x in range(16, 257, 16) if _wgmma_columns(x, is_promoted) in widths]
            yield (
                f"tile N = {n} is multiplied {width} columns at a time, and there is no wgmma of"
                f" {dtypes.a} and {dtypes.b} in that width here; N is one of"
                f" {', '.join(map(str, there))}"
            )
        elif kernel.scales == "1x128_128x128" and not kernel.tile.swap_ab and SCALE_BLOCK % width:
            yield (
                f"tile N = {n} is multiplied {width} columns at a time, which must divide the"
                f" {SCALE_BLOCK} columns that share a scale"
            )
        elif kernel.epilogue and (row := _row_bytes(kernel)) % 32:
            yield (
                f"tile N = {n}; with epilogue {kernel.epilogue.name} a row of D is {row} bytes, and"
                " TMA stores pieces of 32: N must be a multiple of 32"
            )
        swizzles = (1,) if kernel.scales else self.swizzles  # they are those of one swizzle
        allowed = [_SWIZZLE_BYTES // size * x for x in swizzles]
        if k not in allowed:
            numbers = " or ".join(map(str, allowed))
            yield f"tile K = {k}; it is {numbers}: one swizzle spans {_SWIZZLE_BYTES} bytes"

    def shared_memory(self, kernel: Kernel) -> tuple[int, str]:
        m, n, k = kernel.tile.shape
        warpgroups, operands = m // 64, kernel.element_bytes * k
        own_n = n // kernel.tile.cluster[2]
        row = own_n * result_bytes(kernel)
        if not kernel.tile.swap_ab:
            row = _staged_columns(kernel) * _staged_bytes(kernel)
        total = 2 * ((m + n) * operands + 16) + m * row
        terms = f"2 stages x (({m} + {n}) x {operands} + 16) + staged rows {m} x {row}"
        # Each warpgroup has its own vectors and scales: no other has to wait until they are read.
        of_d = (own_n, 64) if kernel.tile.swap_ab else (64, own_n)
        lengths = {"col": of_d[0], "row": of_d[1]}
        vectors = [
            (lengths[kind.enumerator], operand_bytes(kernel, kind))
            for _, kind in (kernel.epilogue.operands if kernel.epilogue else ())
            if kind.enumerator in lengths
        ]
        if vectors:
            total += warpgroups * sum(length * size for length, size in vectors)
            spelled = " + ".join(f"{length} x {size}" for length, size in vectors)
            terms += f" + vectors {warpgroups} x ({spelled})"
        if (splits := kernel.tile.cluster[2]) > 1:
            total += (splits - 1) * m * n // splits * 4
            terms += f" + sums of others {splits - 1} x {m} x {n // splits} x 4"
        if kernel.scales:
            rows, columns = of_d
            if kernel.scales == "1x128_128x128":
                columns = -(-columns // SCALE_BLOCK)
            total += warpgroups * 2 * _SCALE_CHUNK * (rows + columns) * 4
            terms += f" + scales {warpgroups} x 2 x {_SCALE_CHUNK} x ({rows} + {columns}) x 4"
        return total, f"{terms} = {total} bytes"


class Sm90Persistent(_Persistent):
    """Products of two matrices. A cluster along K shares out the K of a tile."""

    name = "sm90_persistent"
    header = "sm90/native/dense.cuh"
    dtypes = by_op(gemm=GEMM_DTYPES, scaled_mm=FP8_PRODUCTS)
    optional_lists = ("scales",)
    optional_tile_keys = ("swap_ab", "fast_accum", "cluster")
    swizzles = (1, 2)

    def check(self, kernel: Kernel) -> Iterator[str]:
        yield from super().check(kernel)
        yield from check_stores(kernel)
        yield from _check_cluster(kernel)
        own = own_layouts(kernel)
        if kernel.element_bytes == 4 and own != ("t", "n"):
            yield (
                f"layout {kernel.layout}; wgmma reads 32-bit operands K-major only, as they lie in"
                " tnt: sm90_warpspecialized has the other layouts"
            )
        if kernel.element_bytes == 2 and own[1] == "t" and kernel.tile.shape[1] % _MN_COLUMNS:
            yield (
                f"tile N = {kernel.tile.shape[1]} with layout {kernel.layout}; where K is not"
                f" contiguous one swizzle spans {_MN_COLUMNS} columns: N must be a multiple of"
                f" {_MN_COLUMNS}"
            )
        epilogue = kernel.epilogue
        if kernel.tile.swap_ab and epilogue and epilogue.width != "same":
            yield (
                f"epilogue {epilogue.name} pairs columns, which are rows of a swapped tile: leave"
                " swap_ab out"
            )

    def cpp_type(self, kernel: Kernel) -> str:
        assert kernel.epilogue is not None
        arguments = [
            f"Arch::{kernel.arch.sm}",
            *cpp_dtypes(kernel.dtypes),
            *cpp_layouts(kernel),
            cpp_shape(kernel.tile.shape),
            f"/*swap_ab=*/{cpp_bool(kernel.tile.swap_ab)}",
            f"/*splits=*/{kernel.tile.cluster[2]}",
            f"epilogue::{kernel.epilogue.name}",
        ]
        if kernel.op != "gemm":
            arguments.append(f"/*fast_accum=*/{cpp_bool(kernel.tile.fast_accum)}")
        if kernel.scales:
            arguments.append(cpp_block_scales(kernel))
        return f"Sm90Persistent<{', '.join(arguments)}>"


class Sm90Grouped(_Persistent):
    """Products of groups whose extents the kernel reads from the device."""

    name = "sm90_grouped"
    header = "sm90/native/grouped.cuh"
    dtypes = by_op(grouped_mm=(*GEMM_DTYPES, *FP8_PRODUCTS))
    layouts = ("tnt", "ttt", "ntt")
    lists = ("layouts", "grouping", "epilogue", "tiles")
    optional_lists = ("scales",)

    def check(self, kernel: Kernel) -> Iterator[str]:
        yield from super().check(kernel)
        yield from check_grouping(kernel)
        yield from _check_swizzled_columns(kernel)

    def cpp_type(self, kernel: Kernel) -> str:
        assert kernel.epilogue is not None
        arguments = [
            f"Arch::{kernel.arch.sm}",
            *cpp_dtypes(kernel.dtypes),
            *cpp_layouts(kernel),
            cpp_shape(kernel.tile.shape),
            cpp_grouping(kernel),
            f"epilogue::{kernel.epilogue.name}",
            f"/*fast_accum=*/{cpp_bool(kernel.tile.fast_accum)}",
            *([cpp_block_scales(kernel)] if kernel.scales else []),
        ]
        return f"Sm90Grouped<{', '.join(arguments)}>"


class Sm90Conv(_Persistent):
    """Convolutions as implicit GEMMs: TMA finds the elements of A and B in images."""

    name = "sm90_conv"
    header = "sm90/native/conv.cuh"
    dtypes = by_op(conv2d=CONV_DTYPES)
    layouts = tuple(DIRECTIONS.values())
    lists = ("direction", "epilogue", "tiles")
    optional_tile_keys = ()

    def check(self, kernel: Kernel) -> Iterator[str]:
        yield from super().check(kernel)
        yield from check_direction(kernel)
        yield from _check_swizzled_columns(kernel)
        if kernel.element_bytes == 4 and kernel.direction in ("dgrad", "wgrad"):
            yield (
                f"direction {kernel.direction} with {kernel.dtypes.a} operands; wgmma reads 32-bit"
                " operands K-major only, as they lie in fprop: sm80_conv has all directions"
            )

    def cpp_type(self, kernel: Kernel) -> str:
        assert kernel.epilogue is not None
        arguments = [
            f"Arch::{kernel.arch.sm}",
            *cpp_dtypes(kernel.dtypes),
            cpp_shape(kernel.tile.shape),
            cpp_direction(kernel),
            f"epilogue::{kernel.epilogue.name}",
        ]
        return f"Sm90Conv<{', '.join(arguments)}>"


def _check_cluster(kernel: Kernel) -> Iterator[str]:
    """The threadblocks that share the K of a tile; each finishes a part of its columns."""
    cluster, n = kernel.tile.cluster, kernel.tile.shape[1]
    splits = cluster[2]
    if cluster[:2] != (1, 1) or splits not in (1, 2, 4, 8):
        yield f"cluster {dims(cluster)}; it shares K alone: [1, 1, 2], 4 or 8 at the end"
    elif splits == 1:
        return
    elif n % (16 * splits):
        yield (
            f"tile N = {n} with cluster {dims(cluster)}; each of {splits} threadblocks finishes a"
            f" multiple of 16 columns: N must be a multiple of {16 * splits}"
        )
    elif kernel.scales:
        yield f"cluster {dims(cluster)} with scales {kernel.scales}; leave one of the two out"


def _check_swizzled_columns(kernel: Kernel) -> Iterator[str]:
    """Where K is not contiguous a swizzle spans columns of B: other operands are refused there.

    In a column-major A it spans rows: 64 or 128 are whole swizzles.
    """
    n, columns = kernel.tile.shape[1], _SWIZZLE_BYTES // 2
    if kernel.element_bytes == 2 and kernel.layout[1] == "t" and n % columns:
        yield (
            f"tile N = {n} with {operands_lie(kernel)}; of a row-major B one swizzle spans"
            f" {columns} columns: N must be a multiple of {columns}"
        )


def _wgmma_columns(n: int, is_promoted: bool) -> int:
    """Columns of one wgmma, for a tile of `n` columns."""
    if not is_promoted:
        return n
    # sm90_promotion_columns(64, n) of mainloop_fp8.cuh: two sets of sums under way and the sums of
    # the tile fit into 192 registers.
    return max(p for p in range(8, n + 1, 8) if n % p == 0 and n // 2 + p <= 192)


def _wgmma_widths(dtypes: DTypes) -> tuple[int, ...]:
    is_there = dtypes.a == dtypes.b and dtypes.a in wgmma.OPERANDS
    return (*wgmma.PLAIN, *wgmma.EXTRA) if is_there else wgmma.PLAIN


def _staged_bytes(kernel: Kernel) -> int:
    """For one column of the product, in shared memory: D and what is stored besides take turns."""
    stored = DTYPE_BYTES[kernel.dtypes.d] if kernel.epilogue and kernel.epilogue.aux else 0
    return max(result_bytes(kernel), stored)


def _row_bytes(kernel: Kernel) -> int:
    """Of a row of D that is stored at once."""
    if kernel.tile.swap_ab:
        return 64 * result_bytes(kernel)
    return _staged_columns(kernel) * result_bytes(kernel)


def _staged_columns(kernel: Kernel) -> int:
    """Of a row of results in shared memory: all columns of a tile, or an even part of them."""
    n, size = kernel.tile.shape[1] // kernel.tile.cluster[2], _staged_bytes(kernel)
    parts = (x for x in range(16, n + 1, 16) if n % x == 0 and x * size <= _STAGED_ROW_BYTES)
    return max(parts, default=16)  # no part: N is refused
