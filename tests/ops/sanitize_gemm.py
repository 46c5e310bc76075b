"""Dense products of 16-bit operands for compute-sanitizer: no read and no write beyond a tensor.

    compute-sanitizer --tool memcheck --error-exitcode 1 python3 tests/ops/sanitize_gemm.py
    python3 tests/ops/sanitize_gemm.py --list          # which kernels that runs
    python3 tests/ops/sanitize_gemm.py --every --seconds 900

Hopper's kernels, with every epilogue. No extent is a multiple of a tile, and operands end where
their memory does: torch's allocator is told to keep none (PYTORCH_NO_CUDA_MEMORY_CACHING=1, which
this sets itself), so that what lies beyond a tensor belongs to nobody. Results are compared with
float64 on the CPU. By default one kernel of each tile, cluster and kind of epilogue runs, and what
`--seconds` leaves no time for is named. With `--tool racecheck` or `synccheck` the same products
show whether threads of a threadblock wait for each other. Needs a GPU and an installed wheel, or
CUTWHEEL_PACKAGE_DIR.
"""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

# First: it tells torch's allocator what to do.
from sanitizing import WRONG, Row, main  # isort: skip

import torch
from epilogue_cases import Call, declared
from gemm_cases import BRAIN, HALF, LAYOUTS, TORCH_DTYPE, manifest_kernels
from persistent_cases import shortest_k

OWN = ("sm90_persistent", "sm90_unaligned")
COARSE = ("family", "schedule", "swap_ab", "cluster", "layout")
TILES = (*COARSE, "tile")
FINE = (*TILES, "epilogue", "a", "d")


def rows() -> list[Row]:
    found = [
        row
        for row in manifest_kernels()
        if row["arch"] == "sm90a"
        and row["family"] not in ("elementwise", "splitk_reduce", "splitk_epilogue", "pad_rows")
        and TORCH_DTYPE[row["a"]].itemsize == 2
    ]
    # Those of our own first.
    return sorted(found, key=lambda row: row["family"] not in OWN)


def check(call: Call, results: list[torch.Tensor]) -> None:
    operands = {name: None if x is None else x.cpu() for name, x in call.operands.items()}
    wanted = replace(call, a=call.a.cpu(), b=call.b.cpu(), operands=operands).weighed()
    for result, exact in zip(results, wanted, strict=True):
        norm = exact.value.norm().item() or 1.0
        error = (result.cpu().double() - exact.value).norm().item() / norm
        if not error <= WRONG:
            raise AssertionError(f"relative error {error:.3g}: {call}")


def calls_of_row(row: Row, device: str) -> list[Call]:
    """More than a tile with a K that the threadblocks of a cluster share unevenly, and less."""
    epilogue = declared()[row["epilogue"]]
    dtype, d = TORCH_DTYPE[row["a"]], TORCH_DTYPE[row["d"]]
    # As a kernel takes them without a copy.
    names = {"t": "row_padded_3", "n": "column_padded_1"}
    if row["family"] != "sm90_unaligned":
        names = {"t": "row", "n": "column"}
    lay_a, lay_b = (LAYOUTS[names[x]] for x in row["layout"][:2])
    m, n, k = row["tile"]
    if row["swap_ab"]:
        m, n = n, m
    # Multiples of 16 bytes, which all families take.
    problems = ((m + 8, 2 * n - 8, shortest_k(row) + k - 8), (8, 24, shortest_k(row)))
    return [
        Call.random(epilogue, *extents, dtype, device, d, lay_a=lay_a, lay_b=lay_b)
        for extents in problems
    ]


def run_row(cutwheel: Any, row: Row, device: str) -> None:
    for call in calls_of_row(row, device):
        if (chosen := call.explain(cutwheel).row) != row["name"]:
            raise AssertionError(f"{chosen} runs: {call}")
        check(call, call.run(cutwheel))


def run_two_weights(cutwheel: Any, device: str) -> None:
    """Gate and up in memory of their own, in either order, and what backward makes of them."""
    for (m, f, k), dtype in itertools.product(((300, 136, 264), (9, 1000, 72)), (BRAIN, HALF)):
        x, first, second = (torch.randn(n, k).to(dtype) for n in (m, f, f))
        at = [each.to(device) for each in (x, first, second)]
        grad = torch.randn(m, 128).to(dtype)
        products = [x.double() @ each.double().t() for each in (first, second)]
        for swapped in (False, True):
            (gate, up), (z, u) = at[1:], products
            if swapped:
                gate, up, z, u = up, gate, u, z
            result = cutwheel.gated_linear(at[0], (gate, up))
            close(result, torch.nn.functional.silu(z) * u, f"gated_linear {m}x{f}x{k}")
            parts = [each[:64].clone() for each in (gate, up)]
            result = torch.ops.cutwheel.gated_input_gradient(grad.to(device), *parts)
            whole = torch.cat([each.cpu().double() for each in parts])
            close(result, grad.double() @ whole, f"gated_input_gradient {m}x{k}")


def close(result: torch.Tensor, exact: torch.Tensor, what: str) -> None:
    error = (result.cpu().double() - exact).norm().item() / exact.norm().item()
    if not error <= WRONG:
        raise AssertionError(f"relative error {error:.3g}: {what}")


def run_dispatched(cutwheel: Any, device: str) -> None:
    """Without a kernel by name: copies of operands, a long K, batches, a row for each of them."""
    run_two_weights(cutwheel, device)
    lays = [LAYOUTS[name] for name in ("row_offset", "every_second", "column_padded_1", "column")]
    problems = (((1, 333, 77), ()), ((130, 65, 4097), ()), ((300, 264, 520), (2,)))
    for number, (extents, batch) in enumerate(problems):
        for dtype in (BRAIN, HALF):
            for name in ("plain", "bias"):
                call = Call.random(
                    declared()[name],
                    *extents,
                    dtype,
                    device,
                    batch=batch,
                    row_batch=batch,
                    lay_a=lays[number],
                    lay_b=lays[number + 1],
                )
                check(call, call.run(cutwheel))


if __name__ == "__main__":
    sys.exit(main(__doc__, rows(), (COARSE, TILES, FINE), run_row, run_dispatched, seconds=60))
