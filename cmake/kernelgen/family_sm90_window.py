"""Convolutions of few channels, whose taps read windows of a patch in shared memory: Hopper."""

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

# Of cuda/conv2d/window_shape.h.
_POSITIONS = 240
_BARRIERS = 2048  # and what alignment takes


class Sm90ConvWindow(Family):
    """M of a tile is filters, N positions in rows of a rectangle of pixels, K channels."""

    name = "sm90_conv_window"
    home = "conv2d"
    archs = ("90a",)
    dtypes = by_op(conv2d=tuple(x for x in GEMM_DTYPES if x.a == x.d))
    layouts = tuple(DIRECTIONS.values())
    lists = ("direction", "epilogue", "tiles")
    tile_keys = ("tile",)
    tiles_share_source = True
    schedules = ("persistent",)
    mode = "window"
    channels: tuple[int, ...] = (64,)
    stages = 3  # patches in shared memory
    lines = 352  # of a patch
    filter_k = 9 * 64  # channels of all taps of a filter
    template = "Sm90ConvWindow"

    def check(self, kernel: Kernel) -> Iterator[str]:
        yield from check_product(kernel)
        yield from check_direction(kernel)
        if kernel.direction == "wgrad":
            yield "direction wgrad; windows are of the input, for each pixel: fprop or dgrad"
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
                " the place of the patch that was read, and there is one of these"
            )

    def shared_memory(self, kernel: Kernel) -> tuple[int, str]:
        m, _, k = kernel.tile.shape
        size = kernel.element_bytes
        # The results of a tile take the place of its patch.
        patch = max(self.lines * k * size, (_POSITIONS + 1) * 128)
        total = self.stages * patch + m * self.filter_k * size + _BARRIERS
        return total, (
            f"{self.stages} patches x {patch} + filters {m} x {self.filter_k} x {size} +"
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


class Sm90ConvPhases(Sm90ConvWindow):
    """Gradients of inputs behind a stride: M of a tile is channels of all phases."""

    name = "sm90_conv_phases"
    mode = "phases"
    stages, filter_k = 2, 16 * 64
    template = "Sm90ConvPhases"

    def check(self, kernel: Kernel) -> Iterator[str]:
        yield from super().check(kernel)
        if kernel.direction == "fprop":
            yield "direction fprop; phases are those of gradients of inputs: dgrad"


class Sm90ConvBlocks(Sm90ConvWindow):
    """Lines of a patch are rows of blocks of pixels, as many as the stride: K is their channels."""

    name = "sm90_conv_blocks"
    mode = "blocks"
    channels = (16, 32)
    lines, filter_k = 704, 512
    template = "Sm90ConvBlocks"

    def check(self, kernel: Kernel) -> Iterator[str]:
        yield from super().check(kernel)
        if kernel.direction == "dgrad":
            yield "direction dgrad; blocks are those of inputs: fprop"
