"""Families that read and write memory once, on every architecture, without a GEMM."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from kernelgen.families import rules
from kernelgen.families.family import Family
from kernelgen.kernel import ARCHS, DIRECTIONS, FP8_DTYPES, DTypes, Kernel

_FLOATS = ("bf16", "f16", "f32")


def _check_operands(kernel: Kernel) -> Iterator[str]:
    epilogue = kernel.epilogue
    if epilogue is None:
        return
    if epilogue.has_accum:
        yield f"epilogue {epilogue.name} uses accum; there is no product here"
    yield from rules.check_stores(kernel)
    for name, kind in epilogue.operands:
        if kind.enumerator in ("row", "col") or kind.dtype != "d":
            yield (
                f"epilogue {epilogue.name} reads {name}, {kind}; operands are scalar,"
                " matrix[M,N] or matrix[M,2N] here"
            )


def _check_sums(kernel: Kernel) -> Iterator[str]:
    epilogue = kernel.epilogue
    if epilogue is None:
        return
    if not epilogue.has_accum:
        yield f"epilogue {epilogue.name} does not use accum; there are sums of a product here"
    if epilogue.addend != "other":
        yield (
            f"epilogue {epilogue.name} is one of mm and addmm, with alpha or beta: the family"
            " splitk_reduce applies it"
        )


def _check_recipe(kernel: Kernel) -> Iterator[str]:
    recipe, d = kernel.recipe or "", kernel.dtypes.d
    if recipe.endswith("_asymmetric") and d != "s8":
        yield f"recipe {recipe} with {d}; only s8 has zero points: declare it for d = s8"
    if recipe.startswith("blockwise") and d == "s8":
        yield f"recipe {recipe} with s8; no product has block scales of s8: declare it for fp8"


def _check_dgrad(kernel: Kernel) -> Iterator[str]:
    if kernel.direction != "dgrad":
        yield f"direction {kernel.direction}; columns are summed to the gradient of an image: dgrad"


_untiled = partial(Family, archs=tuple(ARCHS), schedules=("none",))
_small = partial(_untiled, source="memory_bound")

# Sums float32 partial results of split-K kernels; the output type is the only choice.
SPLITK_REDUCE = _small(
    name="splitk_reduce",
    seconds=(3, 0.3),
    header="elementwise/splitk_reduce.cuh",
    template="SplitkReduce<arch, a, d>",
    layouts=("ttt",),
    dtypes={"gemm": tuple(DTypes("f32", "f32", "f32", d) for d in _FLOATS)},
    lists=(),
)

# The same, for epilogues that are more than alpha, beta and C.
SPLITK_EPILOGUE = _untiled(
    name="splitk_epilogue",
    seconds=(3, 0.07),
    kernels_per_source=128,
    header="elementwise/splitk_epilogue.cuh",
    template="SplitkEpilogue<arch, d, epilogue>",
    layouts=("ttt",),
    dtypes={"gemm": tuple(DTypes("f32", "f32", "f32", d) for d in _FLOATS)},
    lists=("epilogue",),
    checks=(_check_sums,),
)

# Copies rows of bytes that begin anywhere to rows on 16 bytes.
PAD_ROWS = _small(
    name="pad_rows",
    seconds=(3, 0.5),
    header="elementwise/pad_rows.cuh",
    template="PadRows<arch, a>",
    layouts=("ttt",),
    dtypes={"gemm": (DTypes("s8", "s8", "s32", "s8"),)},
    lists=(),
)

# Sorts the rows of a mixture of experts, and moves them.
ROUTE = _small(
    name="route",
    seconds=(3, 0.5),
    header="routing/route.cuh",
    template="Route<arch>",
    layouts=("ttt",),
    dtypes={"gemm": (DTypes("s8", "s8", "s32", "s8"),)},
    lists=(),
)
PERMUTE, UNPERMUTE, PERMUTE_DOTS = (
    _small(
        name=name,
        seconds=(3, 0.3),
        header="routing/permute.cuh",
        template=template,
        layouts=("ttt",),
        dtypes={"gemm": tuple(DTypes(x, x, "f32", x) for x in _FLOATS)},
        lists=(),
    )
    for name, template in (
        ("permute", "Permute<arch, d>"),
        ("unpermute", "Unpermute<arch, d>"),
        ("permute_dots", "PermuteDots<arch, d>"),
    )
)

# dgrad from products of positions by taps: 16-bit ones where no sums are left to do.
COL2IM = _untiled(
    name="col2im",
    seconds=(2.5, 0.2),
    header="elementwise/col2im.cuh",
    template="Col2im<arch, a, d>",
    dtypes={
        "conv2d": (
            *(DTypes("f32", "f32", "f32", d) for d in _FLOATS),
            *(DTypes(d, d, "f32", d) for d in ("bf16", "f16")),
        )
    },
    layouts=tuple(DIRECTIONS.values()),
    lists=("direction",),
    checks=(_check_dgrad,),
)

# An expression of matrices alone, with sums over its rows: the backward passes.
ELEMENTWISE = _untiled(
    name="elementwise",
    seconds=(3, 0.3),
    header="elementwise/elementwise.cuh",
    template="Elementwise<arch, d, epilogue>",
    layouts=("ttt",),
    dtypes={"gemm": tuple(DTypes(x, x, "f32", x) for x in _FLOATS)},
    lists=("epilogue",),
    checks=(_check_operands,),
)

# 8-bit values of a matrix, with their scales: A is read, D is written.
QUANTIZE = _untiled(
    name="quantize",
    seconds=(6, 0.2),
    header="elementwise/quantize.cuh",
    template="Quantize<arch, a, d, recipe>",
    layouts=("ttt",),
    dtypes={
        "scaled_mm": tuple(DTypes(x, x, "f32", d) for x in _FLOATS for d in (*FP8_DTYPES, "s8"))
    },
    lists=("recipes",),
    checks=(_check_recipe,),
)
