"""Direct convolutions of few channels on Hopper: all taps read one halo tile in shared memory."""

from __future__ import annotations

from collections.abc import Iterator

from kernelgen.family import (
    GEMM_DTYPES,
    Family,
    by_op,
    check_direction,
    check_product,
    cpp_direction,
    cpp_dtypes,
    cpp_shape,
    dims,
)
from kernelgen.kernel import DIRECTIONS, Kernel

# As in cuda/sm90/direct_conv/shape.h.
_POSITIONS = 240
_BARRIERS = 2048  # and what alignment takes


class Sm90DirectConv(Family):
    """M of a tile is filters, N positions in rows of an output tile, K channels."""

    name = "sm90_direct_conv"
    header = "sm90/direct_conv/kernel.cuh"
    archs = ("90a",)
    dtypes = by_op(conv2d=tuple(x for x in GEMM_DTYPES if x.a == x.d))
    layouts = tuple(DIRECTIONS.values())
    lists = ("direction", "epilogue", "tiles")
    tile_keys = ("tile",)
    tiles_share_source = True
    schedules = ("persistent",)
    mode = "direct"
    channels: tuple[int, ...] = (64,)
    stages = 3  # halo tiles in shared memory
    lines = 352  # of a halo tile
    filter_k = 9 * 64  # channels of all taps of a filter
    template = "Sm90DirectConv"

    def check(self, kernel: Kernel) -> Iterator[str]:
        yield from check_product(kernel)
        yield from check_direction(kernel)
        if kernel.direction == "wgrad":
            yield "direction wgrad; direct convolutions compute fprop or dgrad"
        allowed = [(64, _POSITIONS, k) for k in self.channels]
        if kernel.tile.shape not in allowed:
            names = " or ".join(map(dims, allowed))
            yield f"tile {dims(kernel.tile.shape)}; it is {names}, which shared memory holds"
        matrices = [
            name
            for name, kind in (kernel.epilogue.operands if kernel.epilogue else ())
            if kind.enumerator == "matrix"
        ]
        if kernel.epilogue and len(matrices) > 1:
            yield (
                f"epilogue {kernel.epilogue.name} reads {' and '.join(matrices)}; a matrix takes"
                " the place of the halo tile that was read, and there is one of these"
            )

    def shared_memory(self, kernel: Kernel) -> tuple[int, str]:
        m, _, k = kernel.tile.shape
        size = kernel.element_bytes
        # The results of a tile take the place of its halo tile.
        halo = max(self.lines * k * size, (_POSITIONS + 1) * 128)
        total = self.stages * halo + m * self.filter_k * size + _BARRIERS
        return total, (
            f"{self.stages} halo tiles x {halo} + filters {m} x {self.filter_k} x {size} +"
            f" {_BARRIERS} = {total} bytes"
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
        return f"{self.template}<{', '.join(arguments)}>"


class Sm90StridedDgrad(Sm90DirectConv):
    """dgrad behind a stride: M of a tile is the channels of all residue classes."""

    name = "sm90_strided_dgrad"
    header = "sm90/direct_conv/strided_dgrad.cuh"
    mode = "strided"
    stages, filter_k = 2, 16 * 64
    template = "Sm90StridedDgrad"

    def check(self, kernel: Kernel) -> Iterator[str]:
        yield from super().check(kernel)
        if kernel.direction == "fprop":
            yield "direction fprop; residue classes of a stride are those of dgrad: dgrad"


class Sm90SpaceToDepth(Sm90DirectConv):
    """Space-to-depth: a line of a halo tile is one row of a stride x stride block of pixels.

    K is the channels of such a row.
    """

    name = "sm90_space_to_depth"
    header = "sm90/direct_conv/space_to_depth.cuh"
    mode = "space_to_depth"
    channels = (16, 32)
    lines, filter_k = 704, 512
    template = "Sm90SpaceToDepth"

    def check(self, kernel: Kernel) -> Iterator[str]:
        yield from super().check(kernel)
        if kernel.direction == "dgrad":
            yield "direction dgrad; space-to-depth rearranges inputs: fprop"
