"""Products by wgmma, with operands that TMA brings: Hopper."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd, prod

from kernelgen import wgmma
from kernelgen.family import (
    FP8_PRODUCTS,
    GEMM_DTYPES,
    INT8_PRODUCTS,
    SCALE_BLOCK,
    Family,
    by_op,
    check_product,
    check_stores,
    cpp_block_scales,
    cpp_bool,
    cpp_dtypes,
    cpp_layouts,
    cpp_shape,
    dims,
)
from kernelgen.kernel import DTYPE_BYTES, DTypes, Kernel, Tile
from kernelgen.tree import Kind

# Of Sm90Persistent: bytes of K that TMA lays side by side, and the most of a row of D.
_SWIZZLE_BYTES = 128
_STAGED_ROW_BYTES = 512


class Sm90WarpSpecialized(Family):
    """TMA and wgmma, producer and consumer warpgroups."""

    name = "sm90_warpspecialized"
    archs = ("90a",)
    dtypes = by_op(gemm=GEMM_DTYPES, scaled_mm=(*FP8_PRODUCTS, *INT8_PRODUCTS))
    tile_keys = ("tile", "cluster", "schedule")
    optional_tile_keys = ("swap_ab", "alignment", "fast_accum")
    schedules = ("pingpong", "cooperative", "streamk", "warpspecialized")

    def check(self, kernel: Kernel) -> Iterator[str]:
        tile, k, size = kernel.tile, kernel.tile.shape[2], kernel.element_bytes
        yield from check_product(kernel)
        yield from _check_tile(kernel)
        if k * size % 64:
            yield (
                f"tile K = {k} of {size}-byte elements is {k * size} bytes;"
                " it must be a multiple of 64 bytes"
            )
        elif kernel.is_fp8 and not tile.fast_accum and k % SCALE_BLOCK:
            yield (
                f"tile K = {k}; sums of fp8 products are promoted to float32 every {SCALE_BLOCK} of"
                f" K, so tile K is a multiple of {SCALE_BLOCK} unless fast_accum = true"
            )
        if size == 4 and _own_layouts(kernel) == ("t", "t"):
            yield (
                f"layout {kernel.layout} {'with' if tile.swap_ab else 'without'} swap_ab has A"
                " K-major and B not; wgmma reads 32-bit operands K-major, and only A can go"
                f" through registers: set swap_ab = {cpp_bool(not tile.swap_ab)}"
            )
        if kernel.alignment * size != 16:
            yield (
                f"alignment of {kernel.alignment} elements is {kernel.alignment * size} bytes;"
                f" TMA needs exactly 16 bytes ({16 // size} elements)"
            )

    def shared_memory(self, kernel: Kernel) -> tuple[int, str]:
        m, n, k = kernel.tile.shape
        size = kernel.element_bytes
        epilogue, terms = _epilogue_memory(kernel)
        total = 2 * ((m + n) * k * size + 16) + epilogue
        return total, (
            f"2 stages x (({m} + {n}) x {k} x {size} + 16) + epilogue {terms} = {total} bytes"
        )

    def cpp_type(self, kernel: Kernel) -> str:
        tile = kernel.tile
        assert kernel.epilogue is not None
        arguments = [
            f"Arch::{kernel.arch.sm}",
            *cpp_dtypes(kernel.dtypes),
            *cpp_layouts(kernel),
            cpp_shape(tile.shape),
            cpp_shape(tile.cluster),
            f"Schedule::{tile.schedule}",
            f"/*swap_ab=*/{cpp_bool(tile.swap_ab)}",
            f"epilogue::{kernel.epilogue.name}",
        ]
        if kernel.op != "gemm":
            arguments.append(f"/*fast_accum=*/{cpp_bool(tile.fast_accum)}")
        return f"Sm90WarpSpecialized<{', '.join(arguments)}>"


class Sm90Blockwise(Family):
    """fp8 with scales that differ along K, which consumers apply to each block's sum."""

    name = "sm90_blockwise"
    home = "scaled_mm"
    archs = ("90a",)
    dtypes = by_op(scaled_mm=FP8_PRODUCTS)
    layouts = ("tnt",)
    lists = ("epilogue", "scales", "tiles")
    tile_keys = ("tile", "cluster", "schedule")
    optional_tile_keys = ("swap_ab",)
    schedules = ("pingpong", "cooperative")

    def check(self, kernel: Kernel) -> Iterator[str]:
        tile = kernel.tile
        yield from check_product(kernel)
        yield from _check_tile(kernel)
        if tile.shape[2] != SCALE_BLOCK:
            yield f"tile K = {tile.shape[2]}; it is {SCALE_BLOCK}, one block of scales"
        columns = tile.shape[0] if tile.swap_ab else tile.shape[1]
        if kernel.scales == "1x128_128x128" and columns % SCALE_BLOCK:
            yield (
                f"tile {'M, which swap_ab lays along N,' if tile.swap_ab else 'N'} = {columns};"
                f" scales of {SCALE_BLOCK} columns of B need a multiple of {SCALE_BLOCK}"
            )

    def shared_memory(self, kernel: Kernel) -> tuple[int, str]:
        m, n, k = kernel.tile.shape
        rows, columns = (n, m) if kernel.tile.swap_ab else (m, n)
        if kernel.scales == "1x128_128x128":
            columns //= SCALE_BLOCK
        epilogue, terms = _epilogue_memory(kernel)
        total = 2 * ((m + n) * k + (rows + columns) * 4 + 16) + epilogue
        return total, (
            f"2 stages x (({m} + {n}) x {k} + ({rows} + {columns}) x 4 + 16)"
            f" + epilogue {terms} = {total} bytes"
        )

    def cpp_type(self, kernel: Kernel) -> str:
        tile = kernel.tile
        assert kernel.epilogue is not None
        arguments = [
            f"Arch::{kernel.arch.sm}",
            *cpp_dtypes(kernel.dtypes),
            cpp_shape(tile.shape),
            cpp_shape(tile.cluster),
            f"Schedule::{tile.schedule}",
            f"/*swap_ab=*/{cpp_bool(tile.swap_ab)}",
            cpp_block_scales(kernel),
            f"epilogue::{kernel.epilogue.name}",
        ]
        return f"Sm90Blockwise<{', '.join(arguments)}>"


class Sm90Persistent(Family):
    """A kernel of our own: every warpgroup works off its rows of a tile to the end by itself."""

    name = "sm90_persistent"
    archs = ("90a",)
    dtypes = by_op(scaled_mm=FP8_PRODUCTS)
    layouts = ("tnt",)
    tile_keys = ("tile",)
    optional_tile_keys = ("fast_accum",)
    tiles_share_source = True
    schedules = ("persistent",)

    def check(self, kernel: Kernel) -> Iterator[str]:
        m, n, k = kernel.tile.shape
        dtypes, is_fast = kernel.dtypes, kernel.tile.fast_accum
        yield from check_product(kernel)
        yield from check_stores(kernel)
        if m not in (64, 128):
            yield f"tile M = {m}; one or two warpgroups take 64 rows each: 64 or 128"
        if n % 16 or n > 256:
            yield f"tile N = {n}; rows of D are made of 16 columns: a multiple of 16 up to 256"
        elif (width := _wgmma_columns(n, is_fast)) not in _wgmma_widths(dtypes):
            there = [
                x for x in range(16, 257, 16) if _wgmma_columns(x, is_fast) in _wgmma_widths(dtypes)
            ]
            yield (
                f"tile N = {n} is multiplied {width} columns at a time, and there is no wgmma of"
                f" {dtypes.a} and {dtypes.b} in that width here; N is one of"
                f" {', '.join(map(str, there))}"
            )
        elif kernel.epilogue and (row := _staged_row_bytes(kernel)) % 32:
            yield (
                f"tile N = {n}; with epilogue {kernel.epilogue.name} a row of D is {row} bytes, and"
                " TMA stores pieces of 32: N must be a multiple of 32"
            )
        if k != _SWIZZLE_BYTES:
            yield f"tile K = {k}; it is {_SWIZZLE_BYTES}, the bytes that one swizzle spans"

    def shared_memory(self, kernel: Kernel) -> tuple[int, str]:
        m, n, k = kernel.tile.shape
        row = _staged_row_bytes(kernel)
        total = 2 * ((m + n) * k + 16) + m * row
        terms = f"2 stages x (({m} + {n}) x {k} + 16) + rows of D {m} x {row}"
        lengths = {"row": n, "col": 64}
        vectors = [
            (lengths[kind.enumerator], _operand_bytes(kernel, kind))
            for _, kind in (kernel.epilogue.operands if kernel.epilogue else ())
            if kind.enumerator in lengths
        ]
        if vectors:
            # Each warpgroup has its own: no other one has to wait until they are read.
            total += m // 64 * sum(length * size for length, size in vectors)
            spelled = " + ".join(f"{length} x {size}" for length, size in vectors)
            terms += f" + vectors {m // 64} x ({spelled})"
        return total, f"{terms} = {total} bytes"

    def cpp_type(self, kernel: Kernel) -> str:
        assert kernel.epilogue is not None
        arguments = [
            f"Arch::{kernel.arch.sm}",
            *cpp_dtypes(kernel.dtypes),
            cpp_shape(kernel.tile.shape),
            f"epilogue::{kernel.epilogue.name}",
            f"/*fast_accum=*/{cpp_bool(kernel.tile.fast_accum)}",
        ]
        return f"Sm90Persistent<{', '.join(arguments)}>"


def _wgmma_columns(n: int, fast_accum: bool) -> int:
    """Columns of one wgmma of Sm90Persistent, for a tile of `n` columns."""
    if fast_accum:
        return n
    # sm90_promoted_columns(64, n) of sm90_promoted.cuh: two sets of sums under way and the sums of
    # the tile fit into 192 registers.
    return max(p for p in range(8, n + 1, 8) if n % p == 0 and n // 2 + p <= 192)


def _wgmma_widths(dtypes: DTypes) -> tuple[int, ...]:
    is_e4m3 = (dtypes.a, dtypes.b) == ("e4m3", "e4m3")
    return (*wgmma.PLAIN, *wgmma.EXTRA) if is_e4m3 else wgmma.PLAIN


def _staged_row_bytes(kernel: Kernel) -> int:
    """Of a row of D in shared memory: all columns of a tile, or an even part of them."""
    n, size = kernel.tile.shape[1], _result_bytes(kernel)
    parts = (x for x in range(16, n + 1, 16) if n % x == 0 and x * size <= _STAGED_ROW_BYTES)
    return max(parts, default=16) * size  # no part: N is refused


def _is_cooperative(tile: Tile) -> bool:
    """Two consumer warpgroups on one tile (stream-K is cooperative, too)."""
    return tile.schedule in ("cooperative", "streamk")


def _check_tile(kernel: Kernel) -> Iterator[str]:
    """Tile M and N, and the cluster that shares them."""
    tile = kernel.tile
    (m, n, _), cluster = tile.shape, tile.cluster
    step_m = 128 if _is_cooperative(tile) else 64
    if m % step_m:
        yield f"tile M = {m} is no multiple of {step_m}, as {tile.schedule} needs"
    if n % 8 or n > 256:
        yield f"tile N = {n}; wgmma takes multiples of 8 up to 256"
    elif kernel.dtypes.a == "s8" and n % 16 and n > 24:
        yield f"tile N = {n}; wgmma takes 8, 24 or a multiple of 16 for s8"
    elif n % (8 * cluster[0]):
        yield (
            f"tile N = {n} is multicast to cluster M = {cluster[0]} threadblocks;"
            f" each loads a multiple of 8 columns, so N must be a multiple of {8 * cluster[0]}"
        )
    if any(x not in (1, 2, 4) for x in cluster) or prod(cluster) > 8 or cluster[2] != 1:
        yield (
            f"cluster {dims(cluster)}; M and N are 1, 2 or 4, K is 1,"
            " and at most 8 threadblocks make a cluster"
        )


def _epilogue_memory(kernel: Kernel) -> tuple[int, str]:
    """Least bytes of an epilogue's tiles, and the arithmetic."""
    n, is_cooperative = kernel.tile.shape[1], _is_cooperative(kernel.tile)
    rows, columns = 128 if is_cooperative else 64, gcd(32, n)
    buffers = _epilogue_buffers(kernel)
    # CUTLASS takes a wider epilogue tile for elements of one byte.
    if buffers[0] == (2, 1) and not is_cooperative and n % 64 == 0:
        columns = 64
    terms = " + ".join(f"{count} x {rows} x {columns} x {width}" for count, width in buffers)
    return sum(count * rows * columns * width for count, width in buffers), terms


def _epilogue_buffers(kernel: Kernel) -> list[tuple[int, int]]:
    """Tiles of an epilogue in shared memory: how many, and bytes per column of the product.

    Those of D come first.
    """
    element = DTYPE_BYTES[kernel.dtypes.d]
    if kernel.epilogue is None:
        return [(2, element)]
    epilogue, d_bytes = kernel.epilogue, _result_bytes(kernel)
    buffers = [(2, d_bytes)]
    has_source = False
    for matrix in epilogue.matrices:
        dtype = kernel.dtypes.d if matrix.dtype == "d" else matrix.dtype
        width = _operand_bytes(kernel, matrix) * (2 if matrix.is_wide else 1)
        if not has_source and dtype == kernel.dtypes.d and width == d_bytes:
            # The C tile: it shares four buffers with D, so that loads run ahead of stores.
            buffers[0] = (4, d_bytes)
            has_source = True
        else:
            buffers.append((4, width))
    return [*buffers, *((2, element) for _ in epilogue.aux)]


def _result_bytes(kernel: Kernel) -> int:
    """Bytes of D for one column of the product.

    Where D is wider or narrower than the product, its elements are taken to be.
    """
    element = DTYPE_BYTES[kernel.dtypes.d]
    width = kernel.epilogue.width if kernel.epilogue else "same"
    return {"same": element, "half": element // 2, "twice": element * 2}[width]


def _operand_bytes(kernel: Kernel, kind: Kind) -> int:
    """Bytes of one element of an epilogue's operand."""
    return DTYPE_BYTES[kernel.dtypes.d if kind.dtype == "d" else kind.dtype]


def _own_layouts(kernel: Kernel) -> tuple[str, str]:
    """Layout letters of A and B in the kernel's own frame: swapped operands are transposed."""
    a, b = kernel.layout[0], kernel.layout[1]
    flip = {"t": "n", "n": "t"}
    return (flip[b], flip[a]) if kernel.tile.swap_ab else (a, b)
