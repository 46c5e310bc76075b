"""What enable() costs the host: time of a call with it and without, in turns in one process.

    python tools/tuning/enable_cost.py          # on a GPU: calls that are taken, and that go on
    python tools/tuning/enable_cost.py --cpu    # at the CPU's dispatch key, where all go on

Times are microseconds of the calling thread's CPU time for a call, the median of blocks; `more` is
the median of the differences between neighbouring blocks with enable() and without, and where four
of five lie.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F

import cutwheel
from cutwheel import interception

Tensor = torch.Tensor
BF16, E4M3 = torch.bfloat16, torch.float8_e4m3fn


class Case(NamedTuple):
    name: str
    call: Callable[[], object]
    op: str
    is_taken: bool


def cases(device: str) -> list[Case]:
    """Small problems, whose kernels take less time than their calls."""

    def made(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
        return torch.randn(shape, device=device).to(dtype)

    a, w, bias = made(16, 512), made(512, 512), made(512)
    f, g = made(16, 16, dtype=torch.float32), made(16, dtype=torch.float32)
    batch = made(2, 16, 16, dtype=torch.float32)
    q, qw = made(16, 512, dtype=E4M3), made(512, 512, dtype=E4M3)
    q0, qw0 = made(16, 32, dtype=E4M3), made(16, 32, dtype=E4M3)
    one = torch.ones((), device=device)
    rows, weights = made(128, 512), made(2, 512, 512)
    offs = torch.tensor([40, 128], device=device, dtype=torch.int32)
    last = torch.channels_last
    x = made(2, 64, 8, 8).contiguous(memory_format=last)
    k = made(64, 64, 3, 3).contiguous(memory_format=last)
    small, filters = made(1, 4, 6, 6, dtype=torch.float32), made(4, 4, 3, 3, dtype=torch.float32)
    backward = torch.ops.aten.convolution_backward
    where = [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False]

    on = [
        Case("mm, goes on", lambda: torch.mm(f, f), "mm", False),
        Case("bmm, goes on", lambda: torch.bmm(batch, batch), "bmm", False),
        Case(
            "_scaled_mm, goes on",
            lambda: torch._scaled_mm(q0, qw0.t(), one, one, out_dtype=torch.float32),
            "_scaled_mm",
            False,
        ),
        Case("conv2d, goes on", lambda: F.conv2d(small, filters, padding=1), "convolution", False),
        Case(
            "conv2d backward, goes on",
            lambda: backward(small, small, filters, None, *where),
            "convolution_backward",
            False,
        ),
        Case("addmm, goes on", lambda: torch.addmm(g, f, f), "addmm", False),
    ]
    if device == "cpu":
        return on
    return [
        *on,
        Case("mm, taken", lambda: torch.mm(a, w.t()), "mm", True),
        Case("addmm, taken", lambda: torch.addmm(bias, a, w.t()), "addmm", True),
        Case(
            "_scaled_mm, taken",
            lambda: torch._scaled_mm(q, qw.t(), one, one, out_dtype=BF16),
            "_scaled_mm",
            True,
        ),
        Case(
            "_grouped_mm, taken",
            lambda: torch._grouped_mm(rows, weights.mT, offs=offs),
            "_grouped_mm",
            True,
        ),
        Case("conv2d, taken", lambda: F.conv2d(x, k, padding=1), "convolution", True),
        Case(
            "conv2d backward, taken in part",
            lambda: backward(x, x, k, None, *where),
            "convolution_backward",
            True,
        ),
    ]


def block(call: Callable[[], object], calls: int, synchronize: Callable[[], None]) -> float:
    synchronize()
    start = time.thread_time()
    for _ in range(calls):
        call()
    spent = time.thread_time() - start
    synchronize()
    return spent / calls * 1e6


def measure(
    case: Case, synchronize: Callable[[], None], rounds: int, calls: int
) -> tuple[list[float], list[float]]:
    """Without and with, in turns; the one that begins changes from round to round."""
    times: dict[bool, list[float]] = {False: [], True: []}
    for number in range(-1, rounds):
        for is_on in (number % 2 == 0, number % 2 != 0):
            with cutwheel.enabled(ops=[case.op] if is_on else []):
                case.call()
                spent = block(case.call, calls, synchronize)
            if number >= 0:
                times[is_on].append(spent)
    return times[False], times[True]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cpu", action="store_true", help="without a GPU")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--calls", type=int, default=200, help="of a block")
    options = parser.parse_args()
    if options.cpu:
        interception._key = "CPU"
        torch.set_num_threads(1)
    synchronize = (lambda: None) if options.cpu else torch.cuda.synchronize
    print(f"{'':32}{'torch':>8}{'enabled':>9}{'more':>8}   four of five")
    with torch.no_grad():
        for case in cases("cpu" if options.cpu else "cuda"):
            cutwheel.report(clear=True)
            without, with_it = measure(case, synchronize, options.rounds, options.calls)
            found = cutwheel.report()
            more = sorted(b - a for a, b in zip(without, with_it, strict=True))
            tenth = len(more) // 10
            note = "" if (found.taken > 0) is case.is_taken else "  NOT AS NAMED:\n" + str(found)
            medians = (statistics.median(times) for times in (without, with_it, more))
            first, second, difference = medians
            print(
                f"{case.name:32}{first:8.2f}{second:9.2f}{difference:8.2f}"
                f"   {more[tenth]:.2f} to {more[-1 - tenth]:.2f}{note}",
                flush=True,
            )


if __name__ == "__main__":
    main()
