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

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")
sys.path.insert(0, str(Path(__file__).parent))
if os.environ.get("CUTWHEEL_PACKAGE_DIR"):
    sys.path.insert(0, os.environ["CUTWHEEL_PACKAGE_DIR"])

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

WRONG = 0.02  # relative error of a result; a right one of 16 bits has less than a quarter of it
Row = dict[str, Any]


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
        result = cutwheel.scaled_mm(a, b, None, None, out_dtype=torch.int32).cpu()
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


def runs_here(row: Row) -> bool:
    capability = torch.cuda.get_device_capability()
    return {
        "sm80": capability >= (8, 0),
        "sm89": capability >= (8, 9),
        "sm90a": capability == (9, 0),
    }[row["arch"]]


def ordered(found: Iterable[Row], every: bool) -> list[Row]:
    """One for each kind, the most different first; with `every` the others behind them."""
    coarse = ("family", "arch", "scales", "recipe", "epilogue", "fast_accum", "swap_ab")
    fine = (*coarse, "tile", "cluster", "schedule", "a", "b", "d")
    chosen: list[Row] = []
    for keys in (("family", "arch", "scales", "recipe"), coarse[:-1], coarse, fine[:-3], fine):
        if keys == fine and not every:
            break
        seen = {str([row.get(key) for key in keys]) for row in chosen}
        for row in found:
            kind = str([row.get(key) for key in keys])
            if kind not in seen and row not in chosen:
                seen.add(kind)
                chosen.append(row)
    return chosen


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--every", action="store_true", help="every kernel, not one of each kind")
    parser.add_argument("--seconds", type=float, default=45.0, help="start no kernel after this")
    parser.add_argument("--list", action="store_true", help="name the kernels and run none")
    parser.add_argument("--device", default="cuda", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    products, quantisers = rows()
    if options.list:
        print("\n".join(row["name"] for row in ordered([*quantisers, *products], options.every)))
        return 0
    import cutwheel

    torch.manual_seed(20)
    end = time.monotonic() + options.seconds
    wrong = 0

    def guarded(name: str, work: Callable[[], None]) -> None:
        nonlocal wrong
        try:
            work()
            if options.device == "cuda":
                torch.cuda.synchronize()
        except (AssertionError, RuntimeError, TypeError, ValueError) as error:
            wrong += 1
            print(f"FAILED {name}: {error}", flush=True)

    guarded("dispatched", lambda: run_dispatched(cutwheel, options.device))
    found = [row for row in (*quantisers, *products) if options.device != "cuda" or runs_here(row)]
    wanted = ordered(found, options.every)
    done = 0
    for row in wanted:
        if time.monotonic() > end:
            break
        # Kernels that quantise are chosen by what they are: there is one for each architecture.
        quantises = row["family"] == "quantize"
        os.environ["CUTWHEEL_ARCH"] = row["arch"] if quantises else ""
        os.environ["CUTWHEEL_KERNEL"] = "" if quantises else row["name"]
        torch.ops.cutwheel._reload_env()
        work = run_quantize if row["family"] == "quantize" else run_product
        guarded(row["name"], lambda work=work, row=row: work(cutwheel, row, options.device))  # type: ignore[misc]
        done += 1
    late = [row["name"] for row in wanted[done:]]
    print(f"{done} of {len(wanted)} kernels ran, {wrong} failed; {len(found)} are in the wheel")
    if late:
        print(f"no time was left for {len(late)}, such as {late[0]}: raise --seconds")
    return 1 if wrong or not done else 0


if __name__ == "__main__":
    sys.exit(main())
