"""What is computed without a product: sums of partial results, elementwise, quantisation."""

from __future__ import annotations

from collections.abc import Iterator

from kernelgen.family import Family, by_op, check_stores
from kernelgen.kernel import FP8_DTYPES, DTypes, Kernel

_FLOATS = ("bf16", "f16", "f32")


class _WithoutTiles(Family):
    """Reads and writes memory once, on every architecture, in one way."""

    archs = ("80", "89", "90a")
    layouts = ("ttt",)
    schedules = ("none",)

    def shared_memory(self, kernel: Kernel) -> tuple[int, str]:
        return 0, "0 bytes"


class SplitkReduce(_WithoutTiles):
    """Sums float32 partial results of split-K kernels; nothing to choose but the output type."""

    name = "splitk_reduce"
    header = "elementwise/splitk_reduce.cuh"
    dtypes = by_op(gemm=tuple(DTypes("f32", "f32", "f32", d) for d in _FLOATS))
    lists = ()

    def check(self, kernel: Kernel) -> Iterator[str]:
        return iter(())

    def cpp_type(self, kernel: Kernel) -> str:
        arguments = [f"Arch::{kernel.arch.sm}", "DType::f32", f"DType::{kernel.dtypes.d}"]
        return f"SplitkReduce<{', '.join(arguments)}>"


class Elementwise(_WithoutTiles):
    """An expression of matrices alone, with sums over its rows: the backward passes."""

    name = "elementwise"
    header = "elementwise/elementwise.cuh"
    dtypes = by_op(gemm=tuple(DTypes(x, x, "f32", x) for x in _FLOATS))
    lists = ("epilogue",)

    def check(self, kernel: Kernel) -> Iterator[str]:
        epilogue = kernel.epilogue
        if epilogue is None:
            return
        if epilogue.has_accum:
            yield f"epilogue {epilogue.name} uses accum; there is no product here"
        yield from check_stores(kernel)
        for name, kind in epilogue.operands:
            if kind.enumerator in ("row", "col") or kind.dtype != "d":
                yield (
                    f"epilogue {epilogue.name} reads {name}, {kind}; operands are scalar,"
                    " matrix[M,N] or matrix[M,2N] here"
                )

    def cpp_type(self, kernel: Kernel) -> str:
        assert kernel.epilogue is not None
        d, epilogue = f"DType::{kernel.dtypes.d}", f"epilogue::{kernel.epilogue.name}"
        return f"Elementwise<Arch::{kernel.arch.sm}, {d}, {epilogue}>"


class Quantize(_WithoutTiles):
    """8-bit values of a matrix, with their scales: A is read, D is written."""

    name = "quantize"
    header = "elementwise/quantize.cuh"
    dtypes = by_op(
        scaled_mm=tuple(DTypes(x, x, "f32", d) for x in _FLOATS for d in (*FP8_DTYPES, "s8"))
    )
    lists = ("recipes",)

    def check(self, kernel: Kernel) -> Iterator[str]:
        recipe, d = kernel.recipe or "", kernel.dtypes.d
        if recipe.endswith("_asymmetric") and d != "s8":
            yield f"recipe {recipe} with {d}; only s8 has zero points: declare it for d = s8"
        if recipe.startswith("blockwise") and d == "s8":
            yield f"recipe {recipe} with s8; no product has block scales of s8: declare it for fp8"

    def cpp_type(self, kernel: Kernel) -> str:
        arguments = [
            f"Arch::{kernel.arch.sm}",
            f"DType::{kernel.dtypes.a}",
            f"DType::{kernel.dtypes.d}",
            f"QuantizeRecipe::{kernel.recipe}",
        ]
        return f"Quantize<{', '.join(arguments)}>"
