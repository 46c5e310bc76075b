"""mma.sync, with operands that cp.async loads: the families that carry PTX to newer GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from kernelgen.families import rules
from kernelgen.families.family import Family
from kernelgen.families.rules import FP8_GEMMS, GEMM_DTYPES, INT8_GEMMS, SCALE_BLOCK
from kernelgen.kernel import DIRECTIONS, Kernel

# By addend: the scalars and strides of linear_combination are known at run time.
_SERVED = {
    "none": "nothing; here linear_combination serves it, with beta = 0, at no cost",
    "row": "a row; here linear_combination serves it, with a row stride of 0, at no cost",
}


def _check_addend(kernel: Kernel) -> Iterator[str]:
    if kernel.op == "gemm" and kernel.epilogue and kernel.epilogue.addend in _SERVED:
        yield f"epilogue {kernel.epilogue.name} adds {_SERVED[kernel.epilogue.addend]}"


def _check_fp8(kernel: Kernel) -> Iterator[str]:
    if kernel.is_fp8 and kernel.arch.name == "80":
        yield (
            f"{kernel.dtypes.a} operands on architecture 80; tensor cores multiply fp8 from 89"
            " on: declare it for 89 alone"
        )


def _check_mma(kernel: Kernel) -> Iterator[str]:
    """Rules of cuda/sm80/mainloop.cuh."""
    size = kernel.element_bytes
    # Fragments alternate between two sets of registers; ldmatrix loads columns in pairs of eight.
    mma = f"pairs of mma 16x8x{32 // size}, an even number of them along K"
    found = [*rules.check_warps(kernel, (16, 16, 64 // size), mma)]
    yield from found or _check_warp_k(kernel)
    if not found:
        yield from _check_copies(kernel)


def _check_copies(kernel: Kernel) -> Iterator[str]:
    """Rules of cuda/sm80/operand_tile.cuh: who copies what, and how it lies in shared memory."""
    (m, n, k), warp = kernel.tile.shape, kernel.tile.warp
    assert warp is not None
    size, threads = kernel.element_bytes, 32 * (m // warp[0]) * (n // warp[1])
    for name, extent, warp_extent, is_k_contiguous in (
        ("A", m, warp[0], kernel.layout[0] == "t"),
        ("B", n, warp[1], kernel.layout[1] == "n"),
    ):
        row, rows = (k, extent) if is_k_contiguous else (extent, k)
        row_bytes, least = row * size, 64 if is_k_contiguous or size == 2 else 128
        if row_bytes < least or row_bytes & (row_bytes - 1):
            yield f"rows of {name}'s tile take {row_bytes} bytes; a power of two from {least} on"
        elif not is_k_contiguous and warp_extent & (warp_extent - 1):
            yield f"warps take {warp_extent} of {name}, which is contiguous; a power of two"
        else:
            vectors = row_bytes // 16
            across = vectors if is_k_contiguous else min(vectors, max(8, threads // rows))
            if threads < across or rows % (threads // across):
                yield (
                    f"{threads} threads copy {threads // across} of the {rows} rows of {name}'s"
                    " tile at once; a divisor of these"
                )


def _check_block_scaled_mma(kernel: Kernel) -> Iterator[str]:
    """Rules of cuda/sm80/sm89_block_scales.cuh."""
    k, warp = kernel.tile.shape[2], kernel.tile.warp
    assert warp is not None
    if k != SCALE_BLOCK:
        yield f"tile K = {k}; it is {SCALE_BLOCK}, one block of scales"
    else:
        yield from _check_mma(kernel)
    if SCALE_BLOCK % warp[1]:
        yield f"warp N = {warp[1]}; it must divide the {SCALE_BLOCK} columns that share a scale"


def _check_grouped_mma(kernel: Kernel) -> Iterator[str]:
    yield from rules.check_promoted_scales(kernel)
    yield from _check_block_scaled_mma(kernel) if kernel.scales else _check_mma(kernel)


def _check_warp_k(kernel: Kernel) -> Iterator[str]:
    k, warp = kernel.tile.shape[2], kernel.tile.warp
    if warp is not None and k % warp[2] == 0 and k != warp[2]:
        yield f"warp K = {warp[2]}; warps share M and N of a tile, not K"


def _stages(kernel: Kernel) -> str:
    m, n, k = kernel.tile.shape
    return f"{kernel.tile.stages} stages x ({m} + {n}) x {k} x {kernel.element_bytes}"


def _stages_and_groups(kernel: Kernel) -> str:
    return f"{_stages(kernel)} + {rules.GROUP_ENDS_BYTES} for the ends of groups"


_multistage = partial(
    Family,
    archs=("80", "89"),
    tile_keys=("tile", "warp", "stages"),
    schedules=("multistage",),
)

SM80_MULTISTAGE = _multistage(
    name="sm80_multistage",
    seconds=(5, 0.6),
    header="sm80/multistage.cuh",
    template="Sm80Multistage<arch, dtypes, layouts, tile, warp, stages, epilogue, fast_accum?>",
    dtypes={"gemm": GEMM_DTYPES, "scaled_mm": (*FP8_GEMMS, *INT8_GEMMS)},
    optional_tile_keys=("fast_accum",),
    checks=(rules.check_gemm, _check_addend, _check_fp8, _check_mma),
    memory=_stages,
)

SM80_GROUPED = _multistage(
    name="sm80_grouped",
    seconds=(5, 0.6),
    header="sm80/grouped.cuh",
    template=(
        "Sm80Grouped<arch, dtypes, layouts, tile, warp, stages, grouping, epilogue, fast_accum?,"
        " scales?>"
    ),
    dtypes={"grouped_mm": (*GEMM_DTYPES, *FP8_GEMMS)},
    layouts=("tnt", "ttt", "ntt"),
    lists=("layouts", "grouping", "epilogue", "tiles"),
    optional_lists=("scales",),
    optional_tile_keys=("fast_accum",),
    checks=(rules.check_gemm, rules.check_grouping, _check_fp8, _check_grouped_mma),
    memory=_stages_and_groups,
)

# Implicit GEMMs: threads find the elements of A and B in images.
SM80_CONV = _multistage(
    name="sm80_conv",
    seconds=(5, 0.4),
    header="sm80/conv.cuh",
    template="Sm80Conv<arch, dtypes, tile, warp, stages, direction, epilogue>",
    dtypes={"conv2d": rules.CONV_DTYPES},
    layouts=tuple(DIRECTIONS.values()),
    lists=("direction", "epilogue", "tiles"),
    checks=(rules.check_gemm, rules.check_direction, _check_fp8, _check_mma),
    memory=_stages,
)

# fp8 with scales that differ along K, which go from global memory to registers.
SM89_BLOCKWISE = _multistage(
    name="sm89_blockwise",
    seconds=(5, 0.5),
    header="sm80/sm89_blockwise.cuh",
    template="Sm89Blockwise<arch, dtypes, tile, warp, stages, scales, epilogue>",
    archs=("89",),
    dtypes={"scaled_mm": FP8_GEMMS},
    layouts=("tnt",),
    lists=("epilogue", "scales", "tiles"),
    checks=(rules.check_gemm, _check_block_scaled_mma),
    memory=_stages,
)
