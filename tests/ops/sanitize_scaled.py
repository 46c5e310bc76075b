"""Scaled products and quantisation for compute-sanitizer: no read and no write beyond a tensor.

    compute-sanitizer --tool memcheck --error-exitcode 1 python3 tests/ops/sanitize_scaled.py
    python3 tests/ops/sanitize_scaled.py --list          # which kernels that runs
    python3 tests/ops/sanitize_scaled.py --every --seconds 600

No extent is a multiple of a tile, nor of 128: a scale that is read for a row behind the last one is
a read of memory that belongs to nobody, because torch's allocator is told to keep none
(PYTORCH_NO_CUDA_MEMORY_CACHING=1, which this sets itself). Results are compared with float64 on the
CPU. By default one kernel of each kind runs, those of different families, recipes and epilogues
first, and what `--seconds` leaves no time for is named. Needs a GPU and an installed wheel, or
CUTWHEEL_PACKAGE_DIR.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

# First: it tells torch's allocator what to do.
from sanitizing import WRONG, Row, main  # isort: skip

import torch
from gemm_cases import BRAIN, TORCH_DTYPE
from quantize_cases import compare, random_input, run
from scaled_cases import Call, calls_of_row, exact_integers, rows
from scaled_reference import (
    BY_128,
    BY_128_128,
    E4M3,
    INT8,
    ROW,
    TENSOR,
    Quantised,
    ScaledProblem,
    torch_quantize,
)

COARSE = ("family", "arch", "scales", "recipe", "epilogue", "fast_accum", "swap_ab")
FINE = (*COARSE, "tile", "cluster", "schedule", "a", "b", "d")


def on_cpu(x: Quantised) -> Quantised:
    azp = None if x.azp is None else x.azp.cpu()
    return replace(x, values=x.values.cpu(), scales=x.scales.cpu(), azp=azp)


def check(call: Call, result: torch.Tensor) -> None:
    bias = None if call.bias is None else call.bias.cpu()
    problem = ScaledProblem.of_operands(on_cpu(call.a), on_cpu(call.b), bias)
    error = problem.errors(result.cpu())[0]
    if not error <= WRONG:
        raise AssertionError(f"relative error {error:.3g}: {call}")


def run_product(cutwheel: Any, row: Row, device: str) -> None:
    if row["d"] == "s32":
        call = Call.random(67, 72, 208, device, (INT8, INT8))
        a, b, *_ = call.positional
        result = cutwheel.scaled_mm(a, b, output_dtype=torch.int32).cpu()
        if not torch.equal(result, exact_integers(call.a.values.cpu(), call.b.values.cpu())):
            raise AssertionError(f"integers are wrong: {call}")
        return
    for call in calls_of_row(row, device):
        check(call, call.run(cutwheel))


def run_quantize(cutwheel: Any, row: Row, device: str) -> None:
    recipe = row["recipe"].removesuffix("_asymmetric")
    kind = (recipe, TORCH_DTYPE[row["d"]], recipe == row["recipe"])
    for extents in ((67, 208), (3, 333)):
        x = random_input(*extents, TORCH_DTYPE[row["a"]], device)
        wanted = torch_quantize(x.cpu(), *kind)
        compare(on_cpu(run(cutwheel, x, kind)), x.cpu(), wanted, kind[2])


def run_dispatched(cutwheel: Any, device: str) -> None:
    """Without a kernel by name: copies of operands, biases of both dtypes, chains."""
    for recipes in ((TENSOR, TENSOR), (ROW, ROW), (BY_128, BY_128_128), (BY_128, BY_128)):
        for (m, n, k), bias in (
            ((1, 333, 77), "d"),
            ((130, 65, 272), "f32"),
            ((300, 264, 520), None),
        ):
            call = Call.random(m, n, k, device, (E4M3, E4M3), recipes, BRAIN, bias)
            check(call, call.run(cutwheel))
            call = replace(
                call, lay_a="row_offset", lay_b="row_padded_3", lay_scales="row_padded_3"
            )
            check(call, call.run(cutwheel))
    for azp in (None, "tensor", "row"):
        call = Call.random(130, 65, 272, device, (INT8, INT8), (ROW, ROW), BRAIN, "d", azp)
        check(call, call.run(cutwheel))


def run_row(cutwheel: Any, row: Row, device: str) -> None:
    work = run_quantize if row["family"] == "quantize" else run_product
    work(cutwheel, row, device)


def settings(row: Row) -> dict[str, str]:
    """Kernels that quantise are chosen by what they are: there is one for each architecture."""
    quantises = row["family"] == "quantize"
    return {
        "CUTWHEEL_ARCH": row["arch"] if quantises else "",
        "CUTWHEEL_KERNEL": "" if quantises else row["name"],
    }


if __name__ == "__main__":
    products, quantisers = rows()
    sys.exit(
        main(
            __doc__,
            [*quantisers, *products],
            (COARSE[:4], COARSE[:-1], COARSE, FINE[:-3], FINE),
            run_row,
            run_dispatched,
            seconds=45,
            settings=settings,
        )
    )
