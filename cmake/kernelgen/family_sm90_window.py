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
_TILE = (64, 240, 64)
_LINES, _LINE_BYTES = 352, 128
_BARRIERS = 1024  # and what alignment takes


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
    stages, taps = 3, 9  # the patches and the filter's taps that shared memory holds
    template = "Sm90ConvWindow"

    def check(self, kernel: Kernel) -> Iterator[str]:
        yield from check_product(kernel)
        yield from check_direction(kernel)
        if kernel.direction == "wgrad":
            yield "direction wgrad; windows are of the input, for each pixel: fprop or dgrad"
        if kernel.tile.shape != _TILE:
            yield f"tile {dims(kernel.tile.shape)}; it is {dims(_TILE)}, which shared memory holds"
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
        filters = self.taps * m * k * kernel.element_bytes
        total = self.stages * _LINES * _LINE_BYTES + filters + _BARRIERS
        return total, (
            f"{self.stages} patches x {_LINES} x {_LINE_BYTES} + filters {self.taps} x {m} x {k} x"
            f" {kernel.element_bytes} + {_BARRIERS} = {total} bytes"
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
    stages, taps = 2, 16
    template = "Sm90ConvPhases"

    def check(self, kernel: Kernel) -> Iterator[str]:
        yield from super().check(kernel)
        if kernel.direction == "fprop":
            yield "direction fprop; phases are those of gradients of inputs: dgrad"
