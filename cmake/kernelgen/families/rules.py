"""Rules that families share: data types of each op, how operands lie, what epilogues may do."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from kernelgen.epilogues.tree import Accum, Kind
from kernelgen.kernel import DTYPE_BYTES, DTypes, Kernel, Shape3, dims

GEMM_LAYOUTS = ("tnt", "ttt", "nnt", "ntt")
GEMM_DTYPES = (
    *(DTypes(x, x, "f32", d) for x in ("f16", "bf16") for d in (x, "f32")),
    DTypes("tf32", "tf32", "f32", "f32"),
)
# Groups of rows need a row-major A and D. Groups along K take A and B as the backward pass of a
# linear layer has them, where K is the outer extent.
GROUPED_LAYOUTS = {"rows": ("tnt", "ttt"), "k": ("ntt",)}
FP8_GEMMS = tuple(
    DTypes(a, b, "f32", d)
    for a, b in (("e4m3", "e4m3"), ("e4m3", "e5m2"), ("e5m2", "e4m3"))
    for d in ("bf16", "f16", "f32")
)
INT8_GEMMS = tuple(DTypes("s8", "s8", "s32", d) for d in ("bf16", "f16", "f32", "s32"))
# Both operands of a convolution have one type.
CONV_DTYPES = (
    *GEMM_DTYPES,
    *(x for x in (*FP8_GEMMS, *INT8_GEMMS) if x.a == x.b and x.d != "s32"),
    # Quantised again, for the next layer.
    *(DTypes("e4m3", "e4m3", "f32", "e4m3"), DTypes("s8", "s8", "s32", "s8")),
)
GROUP_ENDS_BYTES = 2 * 1025 * 4  # of the table in cuda/core/group_ends.cuh
SCALE_BLOCK = 128  # of K, and of B's columns where its scales are 128x128


def check_gemm(kernel: Kernel) -> Iterator[str]:
    """Rules of every family that multiplies: layouts, fast_accum, epilogues."""
    if kernel.element_bytes == 1 and kernel.layout != "tnt":
        yield (
            f"{operands_lie(kernel)}; tensor cores read 8-bit operands K-major only, from"
            f" row-major A and column-major B: {'fprop' if kernel.direction else 'tnt'}"
        )
    if kernel.tile.fast_accum and not kernel.is_fp8:
        yield (
            f"fast_accum with {kernel.dtypes.a} operands; only sums of fp8 products can stay in the"
            " tensor cores: leave it out"
        )
    epilogue = kernel.epilogue
    if epilogue is None:
        return
    if not epilogue.has_accum:
        yield f"epilogue {epilogue.name} does not use accum; it is for the family elementwise"
    if kernel.element_bytes == 1 and epilogue.addend != "other":
        yield (
            f"epilogue {epilogue.name} is one of mm and addmm, with alpha or beta; products of"
            " 8-bit operands have neither: declare one without them"
        )
    if kernel.dtypes.d == "s32" and (epilogue.tree != Accum() or epilogue.aux):
        yield (
            f"epilogue {epilogue.name} computes in float32, which does not hold every s32; with"
            ' D = s32 the sums are stored as they are: use an epilogue with expr = "accum"'
        )
    if DTYPE_BYTES[kernel.dtypes.d] == 2:
        return
    wide = ["its result"] if epilogue.width == "twice" else []
    wide += [name for name, kind in epilogue.operands if kind.is_wide]
    if wide:
        yield (
            f"epilogue {epilogue.name}: {', '.join(wide)} has 2N columns; two of them travel as one"
            " 32-bit element, so D must be f16 or bf16"
        )


def check_stores(kernel: Kernel) -> Iterator[str]:
    """Refuses aux, for families that write D alone."""
    if kernel.epilogue is not None and kernel.epilogue.aux:
        names = ", ".join(name for name, _ in kernel.epilogue.aux)
        yield f"epilogue {kernel.epilogue.name} stores {names}; nothing but D can be stored here"


def check_grouping(kernel: Kernel) -> Iterator[str]:
    """Layouts that each grouping has."""
    grouping, a = kernel.grouping, kernel.dtypes.a
    if grouping is None:
        return
    if kernel.is_fp8 and grouping == "k":
        yield f"grouping k with {a} operands; scaled products have groups of rows only: rows"
        return
    if kernel.element_bytes == 1:
        return  # check_gemm knows the one layout
    # Operands that tensor cores read from one layout alone are copied to it, on any architecture.
    layouts = GROUPED_LAYOUTS[grouping] if kernel.element_bytes == 2 else ("tnt",)
    if kernel.layout not in layouts:
        yield (
            f"layout {kernel.layout} with grouping {grouping}; {a} operands have"
            f" {' or '.join(layouts)} there"
        )


def check_direction(kernel: Kernel) -> Iterator[str]:
    """Data types and epilogues that each direction of a convolution has."""
    dtypes, direction, epilogue = kernel.dtypes, kernel.direction, kernel.epilogue
    if direction is None:
        return
    if kernel.element_bytes == 2 and dtypes.d == "f32" and direction != "wgrad":
        yield (
            f"d = f32 with direction {direction}; of {dtypes.a} operands wgrad alone is stored in"
            f" float32, as partial sums of split-K: d = {dtypes.a}"
        )
    if epilogue is None:
        return
    if kernel.family != "sm90_conv" or direction != "fprop":
        yield from check_stores(kernel)
    # Rows of dgrad are permuted in D, its columns are not: a transposed convolution may add a bias.
    kinds = {kind.enumerator for _, kind in epilogue.operands}
    takes_bias = kernel.family == "sm90_conv" and direction == "dgrad"
    takes_bias = takes_bias and epilogue.addend != "matrix" and kinds <= {"scalar", "row"}
    if direction != "fprop" and epilogue.addend != "none" and not takes_bias:
        yield (
            f"epilogue {epilogue.name} with direction {direction}; gradients are stored as they"
            ' are: use an epilogue with expr = "alpha * accum"'
        )
    elif epilogue.addend == "matrix":
        yield (
            f"epilogue {epilogue.name} has beta and C, and convolutions have neither; declare one"
            " with an operand for what is added"
        )
    if epilogue.width != "same":
        yield (
            f"epilogue {epilogue.name} gives D {epilogue.width} the columns of the product; a"
            " convolution's D has as many as the product"
        )


def check_promoted_scales(kernel: Kernel) -> Iterator[str]:
    """Block-wise scales are applied at accumulator promotion, which only fp8 has."""
    if kernel.scales and (not kernel.is_fp8 or kernel.tile.fast_accum):
        yield (
            f"scales {kernel.scales} with fast_accum or other operands than fp8; they are"
            " applied when sums are promoted: leave one of the two out"
        )


def check_warps(kernel: Kernel, step: Shape3, why: str) -> Iterator[str]:
    """Warps share a threadblock tile, and each takes a multiple of `step`."""
    shape, warp = kernel.tile.shape, kernel.tile.warp
    assert warp is not None
    if any(w % s for w, s in zip(warp, step, strict=True)):
        bits = 8 * kernel.element_bytes
        yield f"warp {dims(warp)}; {bits}-bit operands need multiples of {dims(step)} ({why})"
    if any(t % w for t, w in zip(shape, warp, strict=True)):
        yield f"tile {dims(shape)} is not divisible by warp {dims(warp)}"
    elif (warps := prod(shape) // prod(warp)) > 16:
        yield f"tile {dims(shape)} takes {warps} warps of {dims(warp)}; at most 16"
    if not 2 <= (kernel.tile.stages or 0) <= 8:
        yield f"stages = {kernel.tile.stages}; 2 to 8 are supported"


def result_bytes(kernel: Kernel) -> int:
    """Bytes of D for one column of the accumulator, be it a part of an element or two."""
    element = DTYPE_BYTES[kernel.dtypes.d]
    width = kernel.epilogue.width if kernel.epilogue else "same"
    return {"same": element, "half": element // 2, "twice": element * 2}[width]


def operand_bytes(kernel: Kernel, kind: Kind) -> int:
    """Bytes of one element of an epilogue's operand."""
    return DTYPE_BYTES[kernel.dtypes.d if kind.dtype == "d" else kind.dtype]


def operands_lie(kernel: Kernel) -> str:
    """The key of the manifest that says how they lie, with its value."""
    if kernel.direction:
        return f"direction {kernel.direction}"
    return f"layout {kernel.layout}"


def own_layouts(kernel: Kernel) -> tuple[str, str]:
    """Layout letters of A and B as the kernel sees them: swap_ab transposes both."""
    a, b = kernel.layout[0], kernel.layout[1]
    flip = {"t": "n", "n": "t"}
    return (flip[b], flip[a]) if kernel.tile.swap_ab else (a, b)
