"""CPU time of one call: what Python, the dispatcher, checks, selection and the launch cost.

Operands are so small and calls between two synchronizations so few that the launch queue never
fills: the GPU is not what is waited for.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from . import gemm, harness
from .stats import Spread

SIZE = 64  # rows and columns of every operand
CALLS = 40  # between two synchronizations; launches of backward passes included, far below 1024

Run = Callable[[], Any]


@dataclass(frozen=True)
class HostCase:
    name: str
    baseline: Run  # torch
    other: Run  # cutwheel; the same result


def backward_of(forward: Run, inputs: tuple[torch.Tensor, ...], grad: torch.Tensor) -> Run:
    # autograd.grad, not .backward(): nothing is accumulated into .grad between calls.
    return lambda: torch.autograd.grad(forward(), inputs, grad)


def make_cases(side: str) -> list[HostCase]:
    """`side`: "cutwheel", or "torch" to see what the harness calls a difference."""
    if side == "cutwheel":
        import cutwheel  # a torch-only run needs no cutwheel

        ours, linear = cutwheel, cutwheel.linear
    else:
        ours, linear = torch, functional.linear

    def operand(*shape: int, grad: bool = False) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.bfloat16, device="cuda").requires_grad_(grad)

    x, w, out = operand(SIZE, SIZE), operand(SIZE, SIZE), operand(SIZE, SIZE)
    xg, wg = operand(SIZE, SIZE, grad=True), operand(SIZE, SIZE, grad=True)
    bias, bias_g, grad = operand(SIZE), operand(SIZE, grad=True), operand(SIZE, SIZE)
    xb, wb, cb = (operand(4, SIZE, SIZE) for _ in range(3))

    def pair(name: str, call: Callable[[Any, Any], Run]) -> HostCase:
        return HostCase(name, call(torch, functional.linear), call(ours, linear))

    return [
        pair("mm", lambda lib, _: lambda: lib.mm(x, w)),
        pair("mm, transposed weight", lambda lib, _: lambda: lib.mm(x, w.t())),
        pair("mm, out=", lambda lib, _: lambda: lib.mm(x, w, out=out)),
        pair("mm, with grad", lambda lib, _: lambda: lib.mm(xg, wg)),
        pair(
            "mm, forward + backward",
            lambda lib, _: backward_of(lambda: lib.mm(xg, wg), (xg, wg), grad),
        ),
        pair("linear", lambda _, lin: lambda: lin(x, w)),
        pair("linear, bias", lambda _, lin: lambda: lin(x, w, bias)),
        pair(
            "linear, bias, forward + backward",
            lambda _, lin: backward_of(lambda: lin(xg, wg, bias_g), (xg, wg, bias_g), grad),
        ),
        pair("addmm", lambda lib, _: lambda: lib.addmm(bias, x, w)),
        pair("bmm", lambda lib, _: lambda: lib.bmm(xb, wb)),
        pair("baddbmm", lambda lib, _: lambda: lib.baddbmm(cb, xb, wb)),
    ]


def disagreement(case: HostCase) -> float:
    """The largest relative error of the other side's results against the baseline's."""
    expected = [t.detach().clone() for t in harness.tensors_of(case.baseline())]
    found = [t.detach().clone() for t in harness.tensors_of(case.other())]
    pairs = zip(found, expected, strict=True)
    return harness.Error.largest([harness.measure_error(f, e) for f, e in pairs]).relative


def time_calls(
    run: Run,
    calls: int,
    synchronize: Callable[[], None],
    now: Callable[[], float] = time.perf_counter,
) -> float:
    """Seconds for one call; the queue is empty at the start, and waiting for it is not counted."""
    synchronize()
    start = now()
    for _ in range(calls):
        run()
    return (now() - start) / calls


def time_pair(
    case: HostCase,
    repeats: int,
    synchronize: Callable[[], None],
    now: Callable[[], float] = time.perf_counter,
) -> tuple[Spread, Spread]:
    """Alternating repeats of both sides, garbage collection off as timeit does it."""
    for run in (case.baseline, case.other):
        time_calls(run, CALLS, synchronize, now)  # warm up
    baseline, other = [], []
    collecting = gc.isenabled()
    gc.disable()
    try:
        for _ in range(repeats):
            baseline.append(time_calls(case.baseline, CALLS, synchronize, now))
            other.append(time_calls(case.other, CALLS, synchronize, now))
    finally:
        if collecting:
            gc.enable()
    return Spread.of(baseline), Spread.of(other)


def measure(
    repeats: int,
    side: str = "cutwheel",
    make: Callable[[str], Sequence[HostCase]] = make_cases,
) -> list[dict[str, Any]]:
    """One row a case; times in microseconds for one call, ratio = torch's time / cutwheel's."""
    rows = []
    name = "cutwheel" if side == "cutwheel" else "torch (again)"
    for case in make(side):
        row: dict[str, Any] = {"case": case.name, "status": "ok", "reason": "", "ratio": None}
        try:
            error = disagreement(case)
            if not error <= 2 * gemm.TOLERANCES["bf16"]:
                raise ValueError(f"results differ from torch's, relative error {error:.1e}")
            baseline, other = time_pair(case, repeats, torch.cuda.synchronize)
            row["ratio"] = baseline.median / other.median
            row["us"] = {
                "torch": gemm.spread(baseline.scaled(1e6)),
                name: gemm.spread(other.scaled(1e6)),
            }
        except (RuntimeError, TypeError, ValueError) as failure:
            row |= {"status": "failed", "reason": harness.describe(failure)}
        rows.append(row)
    return rows
