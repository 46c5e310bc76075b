"""Grouped products for compute-sanitizer: no read and no write beyond a tensor.

    compute-sanitizer --tool memcheck --error-exitcode 1 python3 tests/ops/sanitize_grouped.py
    python3 tests/ops/sanitize_grouped.py --list          # which kernels that runs
    python3 tests/ops/sanitize_grouped.py --every --seconds 600

No extent is a multiple of a tile, groups are of any size, and some offsets decrease or lie far
outside: torch's allocator is told to keep no memory (PYTORCH_NO_CUDA_MEMORY_CACHING=1, which this
sets itself), so that what lies beyond a tensor belongs to nobody. Results of good offsets are
compared with float64. By default one kernel of each kind runs, and what `--seconds` leaves no time
for is named. Needs a GPU and an installed wheel, or CUTWHEEL_PACKAGE_DIR.
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
from gemm_cases import BRAIN, SINGLE
from grouped_cases import Call, FusedCall, calls_of_row, rows
from grouped_reference import problem
from scaled_grouped_cases import RECIPES, Grouped, grouped_of_row, is_served

BAD_ENDS = ([200, 100, 150, 50, 300], [-5, 301, -(2**31), 2**31 - 1, 0], [2**31 - 1] * 5)
COARSE = ("family", "arch", "grouping", "scales", "fast_accum", "epilogue")
FINE = (*COARSE, "tile", "layout", "a", "b", "d")


def check(call: Call, result: torch.Tensor) -> None:
    exact = problem(*(x.cpu() for x in (call.a, call.b)), call.ends, _on_cpu(call.bias))
    error = exact.errors(result.cpu())[0]
    if not error <= WRONG:
        raise AssertionError(f"relative error {error:.3g}: {call}")


def _on_cpu(x: torch.Tensor | None) -> torch.Tensor | None:
    return None if x is None else x.cpu()


def bad(call: Any) -> list[Any]:
    """The same call with offsets that no one should give."""
    return [
        replace(call, ends=ends, offs_dtype=dtype)
        for ends in BAD_ENDS
        for dtype in (torch.int32, torch.int64)
    ]


def run_row(cutwheel: Any, row: Row, device: str) -> None:
    work = run_scaled if row["epilogue"] in ("scaled", "block_bias") else run_float
    work(cutwheel, row, device)


def run_float(cutwheel: Any, row: Row, device: str) -> None:
    for call in calls_of_row(row, device):
        if isinstance(call, FusedCall):
            call.check()
        elif row["epilogue"] == "linear_combination":
            call.accumulate(cutwheel)
        else:
            check(call, call.run(cutwheel))
    if isinstance(call, FusedCall):
        for ends in BAD_ENDS:
            odd = FusedCall.random(call.epilogue.name, 300, 264, 136, 5, call.x.dtype, device)
            replace(odd, ends=ends, lay_weight=call.lay_weight).run()
        return
    for ends in bad(_with_five_groups(call, device)):
        if row["epilogue"] == "linear_combination":
            out = torch.zeros(5, ends.a.shape[0], ends.b.shape[1], device=device)
            ends.run(cutwheel, accumulate_into=out, out_dtype=None)
        else:
            ends.run(cutwheel)


def _with_five_groups(call: Call, device: str) -> Call:
    extents = (136, 264, 300) if call.kind == "k" else (300, 264, 136)
    keep = {"bias": call.bias is not None, "lay_a": call.lay_a, "lay_b": call.lay_b}
    return Call.random(call.kind, *extents, 5, call.a.dtype, device, call.d, **keep)


def run_scaled(cutwheel: Any, row: Row, device: str) -> None:
    for call in grouped_of_row(row, device):
        call.check(cutwheel)
    five = replace(call, b=call.b[:5], bias=None if call.bias is None else call.bias[:5])
    for other in bad(five):
        other.run(cutwheel)


def run_experts(device: str) -> None:
    """Rows sorted, moved, and found by the GEMM; places and sources that are nowhere, too."""
    ops = torch.ops.cutwheel
    for dtype, tokens, columns in ((BRAIN, 333, 72), (BRAIN, 7, 77), (SINGLE, 50, 65)):
        ids = torch.randint(-2, 7, (tokens, 3), device=device)
        places, sources, offs = ops.moe_route(ids, 5)
        x, weights = (
            torch.randn(tokens, columns, device=device).to(dtype),
            torch.rand_like(ids, dtype=SINGLE),
        )
        rows = ops.moe_permute(x, places, weights, offs)
        ops.moe_permute_dots(rows, x, places, offs)
        if not torch.equal(ops.moe_permute(x, places), x[sources.long()]):
            raise AssertionError(f"rows of {tokens} tokens are not in place")
        wrong = torch.randint(-(2**31), 2**31 - 1, (tokens, 3), device=device).int()
        for other in (places, wrong, places + tokens):
            ops.moe_permute(x, other, weights, offs)
            ops.moe_unpermute(rows, other, weights, offs)
            ops.moe_permute_dots(rows, x, other, offs)
        if dtype == BRAIN:
            weight = torch.randn(5, 48, columns, device=device).to(dtype)
            for other in (sources, wrong.flatten(), sources + tokens - 1):
                ops.grouped_linear_gathered(x, places, other, weight, offs, "gated_silu")


def run_dispatched(cutwheel: Any, device: str) -> None:
    """Without a kernel by name: copies of operands, all kinds, sizes of groups, offsets."""
    for kind, (m, n, k), how in (
        ("rows", (333, 77, 65), "random"),
        ("k", (77, 65, 333), "short"),
        ("columns", (65, 333, 77), "random"),
        ("batched", (33, 65, 77), "random"),
        ("rows", (333, 264, 136), "all_empty"),
        ("k", (136, 264, 333), "all_empty"),
    ):
        for dtype, layout in ((BRAIN, "row"), (SINGLE, "row_offset"), (BRAIN, "row_padded_3")):
            call = Call.random(kind, m, n, k, 5, dtype, device, how=how, lay_a=layout, lay_b=layout)
            check(call, call.run(cutwheel))
            for other in bad(call) if kind != "batched" else ():
                other.run(cutwheel)
    run_experts(device)
    for recipes in filter(is_served, RECIPES):
        call = Grouped.random(333, 77, 333, 5, device, recipes=recipes, bias="f32")
        call.check(cutwheel)
        for other in bad(call):
            other.run(cutwheel)


if __name__ == "__main__":
    floats, scaled = rows()
    sys.exit(
        main(
            __doc__,
            [*floats, *scaled],
            (COARSE[:3], COARSE[:-1], COARSE, FINE),
            run_row,
            run_dispatched,
            seconds=60,
        )
    )
