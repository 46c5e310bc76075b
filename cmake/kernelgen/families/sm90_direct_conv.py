"""Direct convolutions of few channels on Hopper: all taps read one halo tile in shared memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from kernelgen.families import rules
from kernelgen.families.family import Check, Family
from kernelgen.kernel import DIRECTIONS, Kernel, dims

# As in cuda/sm90/direct_conv/shape.h.
_POSITIONS = 240
_BARRIERS = 2048  # and what alignment takes


def _check_tile(*channels: int) -> Check:
    allowed = [(64, _POSITIONS, k) for k in channels]

    def check(kernel: Kernel) -> Iterator[str]:
        if kernel.tile.shape not in allowed:
            names = " or ".join(map(dims, allowed))
            yield f"tile {dims(kernel.tile.shape)}; it is {names}, which shared memory holds"

    return check


def _check_matrices(kernel: Kernel) -> Iterator[str]:
    operands = kernel.epilogue.operands if kernel.epilogue else ()
    matrices = [name for name, kind in operands if kind.enumerator == "matrix"]
    if kernel.epilogue and len(matrices) > 1:
        yield (
            f"epilogue {kernel.epilogue.name} reads {' and '.join(matrices)}; a matrix takes"
            " the place of the halo tile that was read, and there is one of these"
        )


def _refuse(direction: str, reason: str) -> Check:
    def check(kernel: Kernel) -> Iterator[str]:
        if kernel.direction == direction:
            yield f"direction {direction}; {reason}"

    return check


def _halo_tiles(count: int, lines: int, filter_k: int) -> Callable[[Kernel], str]:
    """`count` halo tiles of so many lines, and filters with so many channels of all taps."""

    def memory(kernel: Kernel) -> str:
        (m, _, k), size = kernel.tile.shape, kernel.element_bytes
        # The results of a tile take the place of its halo tile.
        halo = max(lines * k * size, (_POSITIONS + 1) * 128)
        return f"{count} halo tiles x {halo} + filters {m} x {filter_k} x {size} + {_BARRIERS}"

    return memory


_CHECKS = (
    *(rules.check_gemm, rules.check_direction),
    _refuse("wgrad", "direct convolutions compute fprop or dgrad"),
)

# M of a tile is filters, N positions in rows of an output tile, K channels.
SM90_DIRECT_CONV = Family(
    name="sm90_direct_conv",
    seconds=(8, 0.8),
    header="sm90/direct_conv/kernel.cuh",
    template="Sm90DirectConv<arch, dtypes, tile, direction, epilogue>",
    archs=("90a",),
    dtypes={"conv2d": tuple(x for x in rules.GEMM_DTYPES if x.a == x.d)},
    layouts=tuple(DIRECTIONS.values()),
    lists=("direction", "epilogue", "tiles"),
    tile_keys=("tile",),
    schedules=("persistent",),
    mode="direct",
    checks=(*_CHECKS, _check_tile(64), _check_matrices),
    memory=_halo_tiles(3, lines=352, filter_k=9 * 64),
)

# dgrad behind a stride: M of a tile is the channels of all residue classes.
SM90_STRIDED_DGRAD = replace(
    SM90_DIRECT_CONV,
    name="sm90_strided_dgrad",
    seconds=(10, 1),
    header="sm90/direct_conv/strided_dgrad.cuh",
    template="Sm90StridedDgrad<arch, dtypes, tile, direction, epilogue>",
    mode="strided",
    checks=(
        *(*_CHECKS, _check_tile(64), _check_matrices),
        _refuse("fprop", "residue classes of a stride are those of dgrad: dgrad"),
    ),
    memory=_halo_tiles(2, lines=352, filter_k=16 * 64),
)

# A line of a halo tile is one row of a stride x stride block of pixels; K is its channels.
SM90_SPACE_TO_DEPTH = replace(
    SM90_DIRECT_CONV,
    name="sm90_space_to_depth",
    seconds=(7, 0.8),
    header="sm90/direct_conv/space_to_depth.cuh",
    template="Sm90SpaceToDepth<arch, dtypes, tile, direction, epilogue>",
    mode="space_to_depth",
    checks=(
        *(*_CHECKS, _check_tile(16, 32), _check_matrices),
        _refuse("dgrad", "space-to-depth rearranges inputs: fprop"),
    ),
    memory=_halo_tiles(3, lines=704, filter_k=512),
)

# A line of a halo tile is a block of 2 x 2 pixels of four channels each, which threads gather.
SM90_FEW_CHANNELS = replace(
    SM90_SPACE_TO_DEPTH,
    name="sm90_few_channels",
    header="sm90/direct_conv/few_channels.cuh",
    template="Sm90FewChannels<arch, dtypes, tile, direction, epilogue>",
    mode="few_channels",
    checks=(
        *(*_CHECKS, _check_tile(16), _check_matrices),
        _refuse("dgrad", "the channels of the input are few: fprop"),
    ),
)
