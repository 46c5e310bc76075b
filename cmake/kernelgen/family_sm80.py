"""Products by mma.sync, with operands that cp.async brings: the families that carry PTX."""

from __future__ import annotations

from collections.abc import Iterator

from kernelgen.family import (
    CONV_DTYPES,
    FP8_PRODUCTS,
    GEMM_DTYPES,
    GROUP_ENDS_BYTES,
    INT8_PRODUCTS,
    SCALE_BLOCK,
    Family,
    by_op,
    check_direction,
    check_grouping,
    check_product,
    check_warps,
    cpp_block_scales,
    cpp_bool,
    cpp_direction,
    cpp_dtypes,
    cpp_grouping,
    cpp_layouts,
    cpp_shape,
)
from kernelgen.kernel import DIRECTIONS, Kernel

# By addend: linear_combination of CUTLASS's 2.x epilogue has run-time scalars and strides.
_SERVED = {
    "none": "nothing; here linear_combination serves it, with beta = 0, at no cost",
    "row": "a row; here linear_combination serves it, with a row stride of 0, at no cost",
}


class Sm80Multistage(Family):
    """cp.async pipeline and mma.sync; also the family that carries PTX to newer GPUs."""

    name = "sm80_multistage"
    header = "sm80/multistage.cuh"
    archs = ("80", "89")
    dtypes = by_op(gemm=GEMM_DTYPES, scaled_mm=(*FP8_PRODUCTS, *INT8_PRODUCTS))
    tile_keys = ("tile", "warp", "stages")
    optional_tile_keys = ("fast_accum",)
    schedules = ("multistage",)

    def check(self, kernel: Kernel) -> Iterator[str]:
        yield from check_product(kernel)
        if kernel.op == "gemm" and kernel.epilogue and kernel.epilogue.addend in _SERVED:
            yield f"epilogue {kernel.epilogue.name} adds {_SERVED[kernel.epilogue.addend]}"
        yield from _check_fp8(kernel)
        yield from _check_mma(kernel)

    def shared_memory(self, kernel: Kernel) -> tuple[int, str]:
        return _stages(kernel)

    def cpp_type(self, kernel: Kernel) -> str:
        tile = kernel.tile
        assert tile.warp is not None
        assert kernel.epilogue is not None
        arguments = [
            f"Arch::{kernel.arch.sm}",
            *cpp_dtypes(kernel.dtypes),
            *cpp_layouts(kernel),
            cpp_shape(tile.shape),
            cpp_shape(tile.warp),
            f"/*stages=*/{tile.stages}",
            f"epilogue::{kernel.epilogue.name}",
        ]
        if kernel.op != "gemm":
            arguments.append(f"/*fast_accum=*/{cpp_bool(tile.fast_accum)}")
        return f"Sm80Multistage<{', '.join(arguments)}>"


class Sm80Grouped(Family):
    """Products of groups whose extents the kernel reads from the device."""

    name = "sm80_grouped"
    header = "sm80/grouped.cuh"
    archs = ("80", "89")
    dtypes = by_op(grouped_mm=(*GEMM_DTYPES, *FP8_PRODUCTS))
    layouts = ("tnt", "ttt", "ntt")
    lists = ("layouts", "grouping", "epilogue", "tiles")
    optional_lists = ("scales",)
    tile_keys = ("tile", "warp", "stages")
    optional_tile_keys = ("fast_accum",)
    schedules = ("multistage",)

    def check(self, kernel: Kernel) -> Iterator[str]:
        yield from check_product(kernel)
        yield from check_grouping(kernel)
        yield from _check_fp8(kernel)
        if not kernel.scales:
            yield from _check_mma(kernel)
            return
        if not kernel.is_fp8 or kernel.tile.fast_accum:
            yield (
                f"scales {kernel.scales} with fast_accum or other operands than fp8; they are"
                " applied when sums are promoted: leave one of the two out"
            )
        yield from _check_block_scaled_mma(kernel)

    def shared_memory(self, kernel: Kernel) -> tuple[int, str]:
        total, terms = _stages(kernel)
        both = total + GROUP_ENDS_BYTES
        product = terms.removesuffix(f" = {total} bytes")
        return both, f"{product} + {GROUP_ENDS_BYTES} for the ends of groups = {both} bytes"

    def cpp_type(self, kernel: Kernel) -> str:
        tile = kernel.tile
        assert tile.warp is not None
        assert kernel.epilogue is not None
        arguments = [
            f"Arch::{kernel.arch.sm}",
            *cpp_dtypes(kernel.dtypes),
            *cpp_layouts(kernel),
            cpp_shape(tile.shape),
            cpp_shape(tile.warp),
            f"/*stages=*/{tile.stages}",
            cpp_grouping(kernel),
            f"epilogue::{kernel.epilogue.name}",
        ]
        if kernel.is_fp8:
            arguments.append(f"/*fast_accum=*/{cpp_bool(kernel.tile.fast_accum)}")
        if kernel.scales:
            arguments.append(cpp_block_scales(kernel))
        return f"Sm80Grouped<{', '.join(arguments)}>"


class Sm80Conv(Family):
    """Convolutions as implicit GEMMs: threads find the elements of A and B in images."""

    name = "sm80_conv"
    header = "sm80/conv.cuh"
    archs = ("80", "89")
    dtypes = by_op(conv2d=CONV_DTYPES)
    layouts = tuple(DIRECTIONS.values())
    lists = ("direction", "epilogue", "tiles")
    tile_keys = ("tile", "warp", "stages")
    schedules = ("multistage",)

    def check(self, kernel: Kernel) -> Iterator[str]:
        yield from check_product(kernel)
        yield from check_direction(kernel)
        yield from _check_fp8(kernel)
        yield from _check_mma(kernel)
        yield from _check_warp_k(kernel)

    def shared_memory(self, kernel: Kernel) -> tuple[int, str]:
        return _stages(kernel)

    def cpp_type(self, kernel: Kernel) -> str:
        tile = kernel.tile
        assert tile.warp is not None
        assert kernel.epilogue is not None
        arguments = [
            f"Arch::{kernel.arch.sm}",
            *cpp_dtypes(kernel.dtypes),
            cpp_shape(tile.shape),
            cpp_shape(tile.warp),
            f"/*stages=*/{tile.stages}",
            cpp_direction(kernel),
            f"epilogue::{kernel.epilogue.name}",
        ]
        return f"Sm80Conv<{', '.join(arguments)}>"


class Sm89Blockwise(Family):
    """fp8 with scales that differ along K, on Ada and, as PTX, on what follows."""

    name = "sm89_blockwise"
    header = "sm80/sm89_blockwise.cuh"
    archs = ("89",)
    dtypes = by_op(scaled_mm=FP8_PRODUCTS)
    layouts = ("tnt",)
    lists = ("epilogue", "scales", "tiles")
    tile_keys = ("tile", "warp", "stages")
    schedules = ("multistage",)

    def check(self, kernel: Kernel) -> Iterator[str]:
        yield from check_product(kernel)
        yield from _check_block_scaled_mma(kernel)

    def shared_memory(self, kernel: Kernel) -> tuple[int, str]:
        # Scales go from global memory to registers.
        return _stages(kernel)

    def cpp_type(self, kernel: Kernel) -> str:
        tile = kernel.tile
        assert tile.warp is not None
        assert kernel.epilogue is not None
        arguments = [
            f"Arch::{kernel.arch.sm}",
            *cpp_dtypes(kernel.dtypes),
            cpp_shape(tile.shape),
            cpp_shape(tile.warp),
            f"/*stages=*/{tile.stages}",
            cpp_block_scales(kernel),
            f"epilogue::{kernel.epilogue.name}",
        ]
        return f"Sm89Blockwise<{', '.join(arguments)}>"


def _check_fp8(kernel: Kernel) -> Iterator[str]:
    if kernel.is_fp8 and kernel.arch.name == "80":
        yield (
            f"{kernel.dtypes.a} operands on architecture 80; tensor cores multiply fp8 from 89"
            " on: declare it for 89 alone"
        )


def _check_mma(kernel: Kernel) -> Iterator[str]:
    size = kernel.element_bytes
    # The warp-level pipeline is double-buffered.
    mma = f"mma 16x8x{32 // size}, an even number of them along K"
    yield from check_warps(kernel, (16, 8, 64 // size), mma)


def _check_block_scaled_mma(kernel: Kernel) -> Iterator[str]:
    """Rules of cuda/sm80/sm89_block_scaled_mma.cuh."""
    k, warp = kernel.tile.shape[2], kernel.tile.warp
    assert warp is not None
    yield from check_warps(kernel, (16, 16, 32), "pairs of mma 16x8x32")
    if k != SCALE_BLOCK:
        yield f"tile K = {k}; it is {SCALE_BLOCK}, one block of scales"
    else:
        yield from _check_warp_k(kernel)
    if SCALE_BLOCK % warp[1]:
        yield f"warp N = {warp[1]}; it must divide the {SCALE_BLOCK} columns that share a scale"


def _check_warp_k(kernel: Kernel) -> Iterator[str]:
    k, warp = kernel.tile.shape[2], kernel.tile.warp
    if warp is not None and k % warp[2] == 0 and k != warp[2]:
        yield f"warp K = {warp[2]}; warps share M and N of a tile, not K"


def _stages(kernel: Kernel) -> tuple[int, str]:
    m, n, k = kernel.tile.shape
    size, stages = kernel.element_bytes, kernel.tile.stages or 0
    total = (m + n) * k * size * stages
    return total, f"{stages} stages x ({m} + {n}) x {k} x {size} = {total} bytes"
