"""wgmma, with operands that TMA loads, by CUTLASS's collectives: Hopper."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import gcd, prod

from kernelgen import cpp
from kernelgen.families import rules
from kernelgen.families.family import Family
from kernelgen.families.rules import FP8_GEMMS, GEMM_DTYPES, INT8_GEMMS, SCALE_BLOCK
from kernelgen.kernel import DTYPE_BYTES, Kernel, dims


def _check_tile(kernel: Kernel) -> Iterator[str]:
    """Tile M and N, and the cluster that shares them."""
    tile = kernel.tile
    (m, n, _), cluster = tile.shape, tile.cluster
    step_m = 128 if tile.schedule == "cooperative" else 64
    if m % step_m:
        yield f"tile M = {m} is no multiple of {step_m}, as {tile.schedule} needs"
    if n % 8 or n > 256:
        yield f"tile N = {n}; wgmma takes multiples of 8 up to 256"
    elif kernel.dtypes.acc == "s32" and n % 16 and n > 24:
        yield f"tile N = {n}; wgmma takes 8, 24 or a multiple of 16 for {kernel.dtypes.a}"
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


def _check_k(kernel: Kernel) -> Iterator[str]:
    tile, k, size = kernel.tile, kernel.tile.shape[2], kernel.element_bytes
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
    if size == 4 and rules.own_layouts(kernel) == ("t", "t"):
        yield (
            f"layout {kernel.layout} {'with' if tile.swap_ab else 'without'} swap_ab has A"
            " K-major and B not; wgmma reads 32-bit operands K-major, and only A can go"
            f" through registers: set swap_ab = {cpp.boolean(not tile.swap_ab)}"
        )


def _check_scaled_tile(kernel: Kernel) -> Iterator[str]:
    tile = kernel.tile
    if tile.shape[2] != SCALE_BLOCK:
        yield f"tile K = {tile.shape[2]}; it is {SCALE_BLOCK}, one block of scales"
    columns = tile.shape[0] if tile.swap_ab else tile.shape[1]
    if kernel.scales == "1x128_128x128" and columns % SCALE_BLOCK:
        yield (
            f"tile {'M, which swap_ab lays along N,' if tile.swap_ab else 'N'} = {columns};"
            f" scales of {SCALE_BLOCK} columns of B need a multiple of {SCALE_BLOCK}"
        )


def _two_stages(kernel: Kernel) -> str:
    m, n, k = kernel.tile.shape
    operands = f"({m} + {n}) x {k} x {kernel.element_bytes}"
    return f"2 stages x ({operands} + 16) + epilogue {_epilogue_memory(kernel)}"


def _two_scaled_stages(kernel: Kernel) -> str:
    m, n, k = kernel.tile.shape
    rows, columns = (n, m) if kernel.tile.swap_ab else (m, n)
    if kernel.scales == "1x128_128x128":
        columns //= SCALE_BLOCK
    operands = f"({m} + {n}) x {k} + ({rows} + {columns}) x 4"
    return f"2 stages x ({operands} + 16) + epilogue {_epilogue_memory(kernel)}"


def _epilogue_memory(kernel: Kernel) -> str:
    """Least bytes of an epilogue's tiles."""
    n, is_cooperative = kernel.tile.shape[1], kernel.tile.schedule == "cooperative"
    rows, columns = 128 if is_cooperative else 64, gcd(32, n)
    buffers = _epilogue_buffers(kernel)
    # CUTLASS takes a wider epilogue tile for elements of one byte.
    if buffers[0] == (2, 1) and not is_cooperative and n % 64 == 0:
        columns = 64
    return " + ".join(f"{count} x {rows} x {columns} x {width}" for count, width in buffers)


def _epilogue_buffers(kernel: Kernel) -> list[tuple[int, int]]:
    """Tiles of an epilogue in shared memory: how many, and bytes per accumulator column.

    Those of D come first.
    """
    element = DTYPE_BYTES[kernel.dtypes.d]
    if kernel.epilogue is None:
        return [(2, element)]
    epilogue, d_bytes = kernel.epilogue, rules.result_bytes(kernel)
    buffers = [(2, d_bytes)]
    has_source = False
    for matrix in epilogue.matrices:
        dtype = kernel.dtypes.d if matrix.dtype == "d" else matrix.dtype
        width = rules.operand_bytes(kernel, matrix) * (2 if matrix.is_wide else 1)
        if not has_source and dtype == kernel.dtypes.d and width == d_bytes:
            # The C tile: it shares four buffers with D, so that loads run ahead of stores.
            buffers[0] = (4, d_bytes)
            has_source = True
        else:
            buffers.append((4, width))
    return [*buffers, *((2, element) for _ in epilogue.aux)]


_collective = partial(
    Family,
    archs=("90a",),
    tile_keys=("tile", "cluster", "schedule"),
    schedules=("pingpong", "cooperative"),
    kernels_per_source=32,
)

SM90_WARPSPECIALIZED = _collective(
    name="sm90_warpspecialized",
    seconds=(40, 10),  # three of two tiles: 63 s and 4.6 GB, each tile alone 94 s and 4
    header="sm90/cutlass/warpspecialized.cuh",
    template=(
        "Sm90WarpSpecialized<arch, dtypes, layouts, tile, cluster, schedule, swap_ab, epilogue,"
        " fast_accum?>"
    ),
    dtypes={"gemm": GEMM_DTYPES, "scaled_mm": (*FP8_GEMMS, *INT8_GEMMS)},
    optional_tile_keys=("swap_ab", "fast_accum"),
    checks=(rules.check_gemm, _check_tile, _check_k),
    memory=_two_stages,
)

# fp8 with scales that differ along K, which consumers apply to each block's sum.
SM90_BLOCKWISE = _collective(
    name="sm90_blockwise",
    seconds=(42, 4.5),
    tiles_share_source=False,  # six of two tiles: 101 s and 3.6 GB, in one source 85 s and 5.4
    header="sm90/cutlass/blockwise.cuh",
    template="Sm90Blockwise<arch, dtypes, tile, cluster, schedule, swap_ab, scales, epilogue>",
    dtypes={"scaled_mm": FP8_GEMMS},
    layouts=("tnt",),
    lists=("epilogue", "scales", "tiles"),
    optional_tile_keys=("swap_ab",),
    checks=(rules.check_gemm, _check_tile, _check_scaled_tile),
    memory=_two_scaled_stages,
)
