"""The value types every other module speaks: architecture, data types, tile, kernel."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from kernelgen.epilogues.epilogue import Epilogue

Shape3 = tuple[int, int, int]


def dims(shape: Shape3) -> str:
    return "x".join(map(str, shape))


@dataclass(frozen=True)
class Arch:
    """A GPU architecture that sources are compiled for."""

    name: str  # as in manifests and CMake: "90a"
    shared_memory: int  # bytes one threadblock may use (opt-in)
    ptx: bool  # PTX of a suffixed architecture would run nowhere else: cubin only

    @property
    def sm(self) -> str:
        return f"sm{self.name}"


ARCHS = {
    arch.name: arch
    for arch in (
        Arch("80", 163 * 1024, ptx=True),
        Arch("89", 99 * 1024, ptx=True),
        Arch("90a", 227 * 1024, ptx=False),
    )
}

# Newer GPUs, of no kernel's own architecture, that PTX may be assembled for: the first of a major
# version each, whose cubins serve the others. C++ has the major versions.
NEWER_ARCHS = ("100", "120")

# Bytes of one element in memory. tf32 is float32 storage fed to TF32 tensor cores.
DTYPE_BYTES = {"f16": 2, "bf16": 2, "f32": 4, "tf32": 4, "e4m3": 1, "e5m2": 1, "s8": 1, "s32": 4}
FP8_DTYPES = ("e4m3", "e5m2")

# Scales that the mainloop applies, those of A and those of B: as manifests and names have them,
# and C++'s BlockScales.
BLOCK_SCALES = {"1x128_128x128": "a1x128_b128x128", "1x128_1x128": "a1x128_b1x128"}

# C++'s Grouping: the groups of a grouped GEMM share out the rows of A and D, or K.
GROUPINGS = ("rows", "k")

# C++'s Direction: of a convolution, with the layout in which A, B and D lie in it. A filter is
# [K_out, R, S, C], an activation or its gradient has channels last.
DIRECTIONS = {"fprop": "tnt", "dgrad": "ttt", "wgrad": "ntt"}

# C++'s QuantizeRecipe.
QUANTIZE_RECIPES = (
    "tensorwise",
    "rowwise",
    "blockwise_1x128",
    "blockwise_128x128",
    "tensorwise_asymmetric",
    "rowwise_asymmetric",
)

# Lists of manifests that some families have, with the names in them; in the order of Kernel's
# fields.
CHOICES: dict[str, Collection[str]] = {
    "scales": BLOCK_SCALES,
    "recipes": QUANTIZE_RECIPES,
    "grouping": GROUPINGS,
    "direction": DIRECTIONS,
}


@dataclass(frozen=True)
class DTypes:
    """Operand types of D = epilogue(A x B); C has the type of D."""

    a: str
    b: str
    acc: str
    d: str

    def __str__(self) -> str:
        return f"{self.a}_{self.b}_{self.acc}_{self.d}"


@dataclass(frozen=True)
class Tile:
    """How one kernel cuts the problem, as the kernel sees it (after `swap_ab`)."""

    shape: Shape3  # threadblock tile M, N, K
    schedule: str
    cluster: Shape3 = (1, 1, 1)
    warp: Shape3 | None = None  # warp tile, for families that let the manifest choose it
    stages: int | None = None  # None: the collective fills shared memory by itself
    swap_ab: bool = False  # computes D^T = B^T A^T: tile M spans the user's N
    fast_accum: bool = False  # fp8: sums stay in the tensor cores, which keep fewer bits of them


@dataclass(frozen=True)
class Kernel:
    """One kernel to build: a manifest entry with every axis fixed."""

    op: str
    family: str
    arch: Arch
    dtypes: DTypes
    layout: str  # of A, B, D as the caller sees them: t row-major, n column-major
    epilogue: Epilogue | None  # None: the family has no epilogue to choose
    tile: Tile
    scales: str | None = None  # one of BLOCK_SCALES
    recipe: str | None = None  # one of QUANTIZE_RECIPES
    grouping: str | None = None  # one of GROUPINGS; None: no groups
    direction: str | None = None  # one of DIRECTIONS; None: no convolution
    file: str = ""  # where it was declared, for error texts
    entry: str = ""
    epilogues: tuple[Epilogue, ...] = ()  # that it chooses from at run time, where it has several
    assembled: tuple[str, ...] = ()  # of NEWER_ARCHS: its PTX is assembled for them at build time

    @property
    def is_tiled(self) -> bool:
        """Whether the manifest chose how the problem is cut."""
        return self.tile.schedule != "none"

    @property
    def is_fp8(self) -> bool:
        return self.dtypes.a in FP8_DTYPES

    @property
    def element_bytes(self) -> int:
        """Bytes of one element of A (and B: no family mixes widths)."""
        return DTYPE_BYTES[self.dtypes.a]
