"""What each kernel family accepts, how much shared memory it takes and how its C++ is spelled.

A family is one header `cuda/<op>/<family>.cuh` with one class template. The rules here repeat
what the template and the hardware demand, so that a wrong manifest entry stops the configure
with a sentence instead of the compiler with a page.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from math import gcd, prod

from kernelgen.kernel import DTYPE_BYTES, DTypes, Kernel, Shape3, Tile

GEMM_LAYOUTS = ("tnt", "ttt", "nnt", "ntt")
TENSOR_CORE_DTYPES = (
    *(DTypes(x, x, "f32", d) for x in ("f16", "bf16") for d in (x, "f32")),
    DTypes("tf32", "tf32", "f32", "f32"),
)
_LAYOUTS = {"t": "Layout::row", "n": "Layout::column"}


class Family(ABC):
    """One class template.

    The manifest chooses architectures, data types and what `lists` names.
    """

    name: str
    op = "gemm"
    archs: tuple[str, ...]
    dtypes: tuple[DTypes, ...]
    layouts: tuple[str, ...] = GEMM_LAYOUTS
    lists: tuple[str, ...] = ("layouts", "epilogue", "tiles")
    tile_keys: tuple[str, ...] = ()
    optional_tile_keys: tuple[str, ...] = ()
    schedules: tuple[str, ...]

    @abstractmethod
    def check(self, kernel: Kernel) -> Iterator[str]:
        """Yields every reason why the family cannot build `kernel`, shared memory aside."""

    @abstractmethod
    def shared_memory(self, kernel: Kernel) -> tuple[int, str]:
        """Least bytes of shared memory that `kernel` runs with, and the arithmetic."""

    @abstractmethod
    def cpp_type(self, kernel: Kernel) -> str:
        """The class template with its arguments.

        The architecture is always the first one: instantiations for two architectures must never
        merge into one weak symbol.
        """


class Sm90WarpSpecialized(Family):
    """TMA and wgmma, producer and consumer warpgroups."""

    name = "sm90_warpspecialized"
    archs = ("90a",)
    dtypes = TENSOR_CORE_DTYPES
    tile_keys = ("tile", "cluster", "schedule")
    optional_tile_keys = ("swap_ab", "alignment")
    schedules = ("pingpong", "cooperative", "streamk", "warpspecialized")

    @staticmethod
    def _is_cooperative(tile: Tile) -> bool:
        """Two consumer warpgroups on one tile (stream-K is cooperative, too)."""
        return tile.schedule in ("cooperative", "streamk")

    def check(self, kernel: Kernel) -> Iterator[str]:
        tile = kernel.tile
        (m, n, k), cluster, size = tile.shape, tile.cluster, kernel.element_bytes
        yield from _check_product(kernel)
        step_m = 128 if self._is_cooperative(tile) else 64
        if m % step_m:
            yield f"tile M = {m} is no multiple of {step_m}, as {tile.schedule} needs"
        if n % 8 or n > 256:
            yield f"tile N = {n}; wgmma takes multiples of 8 up to 256"
        elif n % (8 * cluster[0]):
            yield (
                f"tile N = {n} is multicast to cluster M = {cluster[0]} threadblocks;"
                f" each loads a multiple of 8 columns, so N must be a multiple of {8 * cluster[0]}"
            )
        if k * size % 64:
            yield (
                f"tile K = {k} of {size}-byte elements is {k * size} bytes;"
                " it must be a multiple of 64 bytes"
            )
        if any(x not in (1, 2, 4) for x in cluster) or prod(cluster) > 8 or cluster[2] != 1:
            yield (
                f"cluster {_dims(cluster)}; M and N are 1, 2 or 4, K is 1,"
                " and at most 8 threadblocks make a cluster"
            )
        if size == 4 and _own_layouts(kernel) == ("t", "t"):
            yield (
                f"layout {kernel.layout} {'with' if tile.swap_ab else 'without'} swap_ab has A"
                " K-major and B not; wgmma reads 32-bit operands K-major, and only A can go"
                f" through registers: set swap_ab = {str(not tile.swap_ab).lower()}"
            )
        if kernel.alignment * size != 16:
            yield (
                f"alignment of {kernel.alignment} elements is {kernel.alignment * size} bytes;"
                f" TMA needs exactly 16 bytes ({16 // size} elements)"
            )

    def shared_memory(self, kernel: Kernel) -> tuple[int, str]:
        m, n, k = kernel.tile.shape
        size = kernel.element_bytes
        is_cooperative = self._is_cooperative(kernel.tile)
        rows, columns = 128 if is_cooperative else 64, gcd(32, n)
        buffers = _epilogue_buffers(kernel)
        # CUTLASS takes a wider epilogue tile for elements of one byte.
        if buffers[0] == (2, 1) and not is_cooperative and n % 64 == 0:
            columns = 64
        total = 2 * ((m + n) * k * size + 16)
        total += sum(count * rows * columns * width for count, width in buffers)
        terms = " + ".join(f"{count} x {rows} x {columns} x {width}" for count, width in buffers)
        return total, (
            f"2 stages x (({m} + {n}) x {k} x {size} + 16) + epilogue {terms} = {total} bytes"
        )

    def cpp_type(self, kernel: Kernel) -> str:
        tile = kernel.tile
        assert kernel.epilogue is not None
        arguments = [
            f"Arch::{kernel.arch.sm}",
            *_dtypes(kernel.dtypes),
            *cpp_layouts(kernel),
            _shape(tile.shape),
            _shape(tile.cluster),
            f"Schedule::{tile.schedule}",
            f"/*swap_ab=*/{str(tile.swap_ab).lower()}",
            f"epilogue::{kernel.epilogue.name}",
        ]
        return f"Sm90WarpSpecialized<{', '.join(arguments)}>"


# By addend: linear_combination of CUTLASS's 2.x epilogue has run-time scalars and strides.
_SERVED = {
    "none": "nothing; here linear_combination serves it, with beta = 0, at no cost",
    "row": "a row; here linear_combination serves it, with a row stride of 0, at no cost",
}


class Sm80Multistage(Family):
    """cp.async pipeline and mma.sync; also the family that carries PTX to newer GPUs."""

    name = "sm80_multistage"
    archs = ("80", "89")
    dtypes = TENSOR_CORE_DTYPES
    tile_keys = ("tile", "warp", "stages")
    optional_tile_keys = ("alignment",)
    schedules = ("multistage",)

    def check(self, kernel: Kernel) -> Iterator[str]:
        tile, size = kernel.tile, kernel.element_bytes
        warp = tile.warp
        assert warp is not None
        assert tile.stages is not None
        yield from _check_product(kernel)
        if kernel.epilogue is not None and kernel.epilogue.addend in _SERVED:
            yield f"epilogue {kernel.epilogue.name} adds {_SERVED[kernel.epilogue.addend]}"
        # The warp-level pipeline is double-buffered: an even number of mma steps along K.
        step = (16, 8, 64 // size)
        if any(w % s for w, s in zip(warp, step, strict=True)):
            yield (
                f"warp {_dims(warp)}; {8 * size}-bit operands need multiples of {_dims(step)}"
                f" (mma 16x8x{32 // size}, an even number of them along K)"
            )
        if any(t % w for t, w in zip(tile.shape, warp, strict=True)):
            yield f"tile {_dims(tile.shape)} is not divisible by warp {_dims(warp)}"
        elif (warps := prod(tile.shape) // prod(warp)) > 16:
            yield f"tile {_dims(tile.shape)} takes {warps} warps of {_dims(warp)}; at most 16"
        if not 2 <= tile.stages <= 8:
            yield f"stages = {tile.stages}; 2 to 8 are supported"
        if kernel.alignment * size not in (4, 8, 16):
            yield (
                f"alignment of {kernel.alignment} elements is {kernel.alignment * size} bytes;"
                " cp.async moves 4, 8 or 16 bytes"
                f" ({', '.join(str(b // size) for b in (4, 8, 16))} elements)"
            )

    def shared_memory(self, kernel: Kernel) -> tuple[int, str]:
        m, n, k = kernel.tile.shape
        size, stages = kernel.element_bytes, kernel.tile.stages or 0
        total = (m + n) * k * size * stages
        return total, f"{stages} stages x ({m} + {n}) x {k} x {size} = {total} bytes"

    def cpp_type(self, kernel: Kernel) -> str:
        tile = kernel.tile
        assert tile.warp is not None
        assert kernel.epilogue is not None
        arguments = [
            f"Arch::{kernel.arch.sm}",
            *_dtypes(kernel.dtypes),
            *cpp_layouts(kernel),
            _shape(tile.shape),
            _shape(tile.warp),
            f"/*stages=*/{tile.stages}",
            f"epilogue::{kernel.epilogue.name}",
        ]
        if kernel.alignment != kernel.default_alignment:
            arguments.append(f"/*alignment=*/{kernel.alignment}")
        return f"Sm80Multistage<{', '.join(arguments)}>"


class SplitkReduce(Family):
    """Sums float32 partial results of split-K kernels; nothing to choose but the output type."""

    name = "splitk_reduce"
    archs = ("80", "89", "90a")
    dtypes = tuple(DTypes("f32", "f32", "f32", d) for d in ("bf16", "f16", "f32"))
    lists = ()
    layouts = ("ttt",)
    schedules = ("none",)

    def check(self, kernel: Kernel) -> Iterator[str]:
        return iter(())

    def shared_memory(self, kernel: Kernel) -> tuple[int, str]:
        return 0, "0 bytes"

    def cpp_type(self, kernel: Kernel) -> str:
        arguments = [f"Arch::{kernel.arch.sm}", "DType::f32", f"DType::{kernel.dtypes.d}"]
        return f"SplitkReduce<{', '.join(arguments)}>"


class Elementwise(Family):
    """An expression of matrices alone, with sums over its rows: the backward passes."""

    name = "elementwise"
    archs = ("80", "89", "90a")
    dtypes = tuple(DTypes(x, x, "f32", x) for x in ("bf16", "f16", "f32"))
    lists = ("epilogue",)
    layouts = ("ttt",)
    schedules = ("none",)

    def check(self, kernel: Kernel) -> Iterator[str]:
        epilogue = kernel.epilogue
        if epilogue is None:
            return
        if epilogue.has_accum:
            yield f"epilogue {epilogue.name} uses accum; there is no product here"
        if epilogue.aux:
            names = ", ".join(name for name, _ in epilogue.aux)
            yield f"epilogue {epilogue.name} stores {names}; nothing but D can be stored here"
        for name, kind in epilogue.operands:
            if kind.extents in ("row[N]", "col[M]") or kind.is_float32:
                yield (
                    f"epilogue {epilogue.name} reads {name}, {kind}; operands are scalar,"
                    " matrix[M,N] or matrix[M,2N] here"
                )

    def shared_memory(self, kernel: Kernel) -> tuple[int, str]:
        return 0, "0 bytes"

    def cpp_type(self, kernel: Kernel) -> str:
        assert kernel.epilogue is not None
        d, epilogue = f"DType::{kernel.dtypes.d}", f"epilogue::{kernel.epilogue.name}"
        return f"Elementwise<Arch::{kernel.arch.sm}, {d}, {epilogue}>"


FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (Sm80Multistage(), Sm90WarpSpecialized(), SplitkReduce(), Elementwise())
}


def cpp_layouts(kernel: Kernel) -> tuple[str, str]:
    """C++ layouts of A and B; D is always row-major."""
    return _LAYOUTS[kernel.layout[0]], _LAYOUTS[kernel.layout[1]]


def _check_product(kernel: Kernel) -> Iterator[str]:
    epilogue = kernel.epilogue
    if epilogue is not None and not epilogue.has_accum:
        yield f"epilogue {epilogue.name} does not use accum; it is for the family elementwise"
    if epilogue is None or DTYPE_BYTES[kernel.dtypes.d] == 2:
        return
    wide = ["its result"] if epilogue.width == "twice" else []
    wide += [name for name, kind in epilogue.operands if kind.is_wide]
    if wide:
        yield (
            f"epilogue {epilogue.name}: {', '.join(wide)} has 2N columns; two of them travel as one"
            " 32-bit element, so D must be f16 or bf16"
        )


def _epilogue_buffers(kernel: Kernel) -> list[tuple[int, int]]:
    """Tiles of an sm90 epilogue in shared memory: how many, and bytes per column of the product.

    Those of D come first.
    """
    element = DTYPE_BYTES[kernel.dtypes.d]
    if kernel.epilogue is None:
        return [(2, element)]
    epilogue = kernel.epilogue
    # Where D is wider or narrower than the product, its elements are taken to be.
    d_bytes = {"same": element, "half": element // 2, "twice": element * 2}[epilogue.width]
    buffers = [(2, d_bytes)]
    has_source = False
    for matrix in epilogue.matrices:
        dtype = "f32" if matrix.is_float32 else kernel.dtypes.d
        width = DTYPE_BYTES[dtype] * (2 if matrix.is_wide else 1)
        if not has_source and dtype == kernel.dtypes.d and width == d_bytes:
            # The C tile: it shares four buffers with D, so that loads run ahead of stores.
            buffers[0] = (4, d_bytes)
            has_source = True
        else:
            buffers.append((4, width))
    return [*buffers, *((2, element) for _ in epilogue.aux)]


def _own_layouts(kernel: Kernel) -> tuple[str, str]:
    """Layout letters of A and B in the kernel's own frame: swapped operands are transposed."""
    a, b = kernel.layout[0], kernel.layout[1]
    flip = {"t": "n", "n": "t"}
    return (flip[b], flip[a]) if kernel.tile.swap_ab else (a, b)


def _dtypes(dtypes: DTypes) -> list[str]:
    return [f"DType::{x}" for x in (dtypes.a, dtypes.b, dtypes.acc, dtypes.d)]


def _shape(shape: Shape3) -> str:
    return f"Shape3<{', '.join(map(str, shape))}>"


def _dims(shape: Shape3) -> str:
    return "x".join(map(str, shape))
