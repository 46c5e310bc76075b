"""Every op among other work: graphs, streams, threads, devices, memory, explanations."""

from __future__ import annotations

import gc
import time
from types import ModuleType
from typing import Any

import pytest
import torch
from gemm_cases import BRAIN, HALF, SINGLE, require_arch
from op_calls import OPS, OpCall
from runtime import capture, in_threads, no_waiting

pytestmark = pytest.mark.gpu

BOTH = (BRAIN, SINGLE)
SLEEP = 20_000_000
"""cycles, in which work that is not ordered behind them overtakes"""
ops = pytest.mark.parametrize("op", OPS)


def calls_of(
    op: str, cutwheel: Any, device: str, dtypes: tuple[torch.dtype, ...] = BOTH, seed: int = 0
) -> list[OpCall]:
    if "fp8" in op or "float8" in op or op in ("scaled_mm", "scaled_grouped_mm"):
        require_arch("sm89")
    found = list(OPS[op].calls(cutwheel, device, dtypes, seed))
    if not found:
        pytest.skip("this wheel has no kernel for it")
    return found


# ---- graphs, and a host that does not wait
@pytest.mark.no_dispatch_mode
@pytest.mark.parametrize(
    ("op", "arch"),
    [
        pytest.param(name, arch, id="-".join(filter(None, (name, arch))))
        for name, op in OPS.items()
        for arch in op.archs
    ],
)
def test_cuda_graph_replays_with_other_values(
    cutwheel: ModuleType, cuda: str, environment: Any, op: str, arch: str | None
) -> None:
    """Groups end elsewhere, too."""
    if arch:
        require_arch(arch)
        environment(CUTWHEEL_ARCH=arch)
    held = calls_of(op, cutwheel, cuda)
    graph, captures = capture(lambda: [call() for call in held])
    for seed in range(1, 7):
        fresh = calls_of(op, cutwheel, cuda, seed=seed)
        for call, other, results in zip(held, fresh, captures, strict=True):
            for target, source in zip(call.tensors, other.tensors, strict=True):
                target.copy_(source)
            for result in results:
                result.fill_(float("nan") if result.is_floating_point() else -128)
        graph.replay()
        graph.replay()  # nothing piles up
        torch.cuda.synchronize()
        for other, results in zip(fresh, captures, strict=True):
            other.judge(results)


@ops
def test_nothing_waits_for_the_device(cutwheel: ModuleType, cuda: str, op: str) -> None:
    calls = calls_of(op, cutwheel, cuda, (BRAIN, HALF, SINGLE))
    step = OPS[op].step
    once = step(cutwheel, cuda) if step else None

    def work() -> list[Any]:
        results = [call() for call in calls]
        if once:
            once()
        return results

    work()
    with no_waiting():
        # Values that do not exist yet: whoever reads them on the host gets others, or waits.
        torch.cuda._sleep(SLEEP)
        results = work()
    torch.cuda.synchronize()
    for call, result in zip(calls, results, strict=True):
        call.judge(result)


# ---- streams, threads, devices
@ops
def test_stream_of_the_caller(cutwheel: ModuleType, cuda: str, op: str) -> None:
    for call in calls_of(op, cutwheel, cuda, (HALF,)):
        stream = torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(SLEEP)  # work elsewhere would run before the operands are filled
            results = call.run(*(tensor.clone() for tensor in call.tensors))
        stream.synchronize()
        call.judge(results)


@pytest.mark.no_dispatch_mode
@ops
def test_two_threads_on_two_streams(cutwheel: ModuleType, cuda: str, op: str) -> None:
    def work(index: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for seed in range(10):
                calls = calls_of(op, cutwheel, cuda, (BRAIN,), 10 * index + seed)
                results = [[call() for _ in range(5)] for call in calls]
            torch.cuda.current_stream().synchronize()
            for call, found in zip(calls, results, strict=True):
                for result in found:
                    call.judge(result)

    in_threads(2, work)


@ops
def test_device_that_is_not_current(cutwheel: ModuleType, cuda: str, op: str) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    for call in calls_of(op, cutwheel, "cuda:1", (HALF,)):
        with torch.cuda.device(0):
            results = call()
            assert torch.cuda.current_device() == 0
        assert all(result.device == torch.device("cuda:1") for result in results)
        with torch.cuda.device(1):
            call.judge(results)
        if len(call.tensors) == 1:
            continue  # it says itself where the op runs
        # An operand of another device is refused; which, its name tells.
        wrong = [*call.tensors[:-1], call.tensors[-1].to("cuda:0")]
        with pytest.raises((ValueError, RuntimeError), match="cuda:0"):
            call.run(*wrong)


# ---- memory, bits, explanations
def bytes_in_use() -> int:
    """The least of a fifth of a second: autograd's threads let go of tensors after the call."""
    gc.collect()
    found = [torch.cuda.memory_allocated()]
    for _ in range(10):
        time.sleep(0.02)
        found.append(torch.cuda.memory_allocated())
    return min(found)


@pytest.mark.no_dispatch_mode
@ops
def test_no_memory_is_kept(cutwheel: ModuleType, cuda: str, op: str) -> None:
    calls = calls_of(op, cutwheel, cuda)
    argument, refused = OPS[op].refused(cutwheel, cuda)
    step = OPS[op].step
    once = step(cutwheel, cuda) if step else None

    def work() -> None:
        for call in calls:
            call()
        if once:
            once()
        with pytest.raises((ValueError, RuntimeError), match=argument):
            refused()

    work()
    before = bytes_in_use()
    for _ in range(5):
        work()
    assert bytes_in_use() == before


@ops
def test_two_runs_give_the_same_bits(cutwheel: ModuleType, device: str, op: str) -> None:
    for call in calls_of(op, cutwheel, device):
        first = [result.clone() for result in call()]
        for result, again in zip(first, call(), strict=True):
            assert torch.equal(result, again)


@pytest.mark.parametrize("op", [name for name, op in OPS.items() if op.explained])
def test_explain(cutwheel: ModuleType, cuda: str, op: str) -> None:
    explained = OPS[op].explained
    assert explained is not None
    kernels = {kernel.name: kernel for kernel in cutwheel.kernels()}
    for name, given, keywords, kernel_op in explained(cuda):
        explanation = cutwheel.explain(name, *given, **keywords)
        assert kernels[explanation.row].op == kernel_op
        assert kernels[explanation.row].direction in (None, "fprop")
        assert explanation.row in str(explanation)
        function = getattr(cutwheel, name)
        assert cutwheel.explain(function, *given, **keywords).row == explanation.row
