"""Threads whose current CUDA context is not the device's primary one, or that have none.

Kernels have to run in the context that is current, or they would not follow what the caller has
enqueued in it; and it has to stay current.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from gemm_cases import BRAIN, HALF, operands
from reference import Problem, assert_as_good_as
from runtime import in_threads

driver = pytest.importorskip("cuda.bindings.driver", reason="needs cuda-bindings")

pytestmark = pytest.mark.gpu

SMS = 16
SLEEP = 100_000_000
"""cycles: tens of milliseconds, in which work that is not ordered behind them overtakes"""
# Tiles for all SMs; few tiles and a long K, which threadblocks of a cluster share; odd extents.
SHAPES = ((1024, 1024, 512), (64, 512, 16384), (33, 65, 77))


def ok(answer: tuple[Any, ...]) -> Any:
    code, *values = answer
    assert code == driver.CUresult.CUDA_SUCCESS, code
    return values[0] if len(values) == 1 else values


def current_context() -> int:
    return int(ok(driver.cuCtxGetCurrent()))


@dataclass(frozen=True)
class Green:
    handle: Any
    context: Any

    def make_current(self) -> None:
        ok(driver.cuCtxSetCurrent(self.context))


def make_green(device: int) -> Green:
    ordinal = ok(driver.cuDeviceGet(device))
    sms = driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
    code, resource = driver.cuDeviceGetDevResource(ordinal, sms)
    if code == driver.CUresult.CUDA_ERROR_NOT_SUPPORTED:
        pytest.skip("the driver has no green contexts")
    assert code == driver.CUresult.CUDA_SUCCESS, code
    groups, _, _ = ok(driver.cuDevSmResourceSplitByCount(1, resource, 0, SMS))
    description = ok(driver.cuDevResourceGenerateDesc(groups, 1))
    flags = driver.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM
    handle = ok(driver.cuGreenCtxCreate(description, ordinal, int(flags)))
    return Green(handle, ok(driver.cuCtxFromGreenCtx(handle)))


@pytest.fixture
def green(cuda: str) -> Iterator[Green]:
    torch.zeros(1, device=cuda)  # there is a primary context
    index = torch.device(cuda).index
    made = make_green(torch.cuda.current_device() if index is None else index)
    yield made
    torch.cuda.synchronize()
    ok(driver.cuGreenCtxDestroy(made.handle))


def in_a_thread(work: Callable[[], Any]) -> Any:
    """Result of `work` on a new thread, which has no context."""

    def without_context(_: int) -> Any:
        assert current_context() == 0
        return work()

    return in_threads(1, without_context)[0]


@dataclass
class Late:
    """A product whose operand is written behind a kernel that takes long."""

    a: torch.Tensor
    b: torch.Tensor
    torchs: torch.Tensor
    exact: Problem
    given: torch.Tensor

    @classmethod
    def of(cls, cutwheel: ModuleType, shape: tuple[int, int, int], device: str) -> Late:
        a, b = operands(*shape, BRAIN, device)
        torchs, exact = torch.mm(a, b), Problem.of(a, b)
        late = cls(a, b, torchs, exact, torch.full_like(a, float("nan")))
        # All kernels are loaded: loading one would wait for the others.
        late.check(late.enqueue(cutwheel))
        torch.cuda.synchronize()
        return late

    def enqueue(self, cutwheel: ModuleType) -> torch.Tensor:
        self.given.fill_(float("nan"))
        torch.cuda._sleep(SLEEP)
        self.given.copy_(self.a)
        result: torch.Tensor = cutwheel.mm(self.given, self.b)
        return result

    def check(self, result: torch.Tensor) -> None:
        torch.cuda.synchronize()
        assert_as_good_as(result, self.torchs, self.exact)


@pytest.mark.no_dispatch_mode
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_green_context_stays_current_and_orders_the_call(
    cutwheel: ModuleType, cuda: str, green: Green, shape: tuple[int, int, int]
) -> None:
    late = Late.of(cutwheel, shape, cuda)

    def work() -> list[torch.Tensor]:
        green.make_current()
        found = []
        for _ in range(3):  # the first call of the thread, and later ones
            found.append(late.enqueue(cutwheel))
            assert current_context() == int(green.context)
            torch.cuda.current_stream().synchronize()
        return found

    for result in in_a_thread(work):
        late.check(result)


@pytest.mark.no_dispatch_mode
@pytest.mark.parametrize("is_current", [True, False], ids=["current", "not_current"])
def test_a_stream_of_a_green_context(
    cutwheel: ModuleType, cuda: str, green: Green, is_current: bool
) -> None:
    late = Late.of(cutwheel, SHAPES[0], cuda)
    flags = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
    handle = ok(driver.cuGreenCtxStreamCreate(green.handle, int(flags), 0))
    stream = torch.cuda.ExternalStream(int(handle), device=late.a.device)

    def work() -> list[torch.Tensor]:
        if is_current:
            green.make_current()
        else:
            torch.zeros(1, device=cuda).fill_(1)  # the thread has the primary context
        before = current_context()
        found = []
        with torch.cuda.stream(stream):
            for _ in range(3):
                found.append(late.enqueue(cutwheel))
                assert current_context() == before
        stream.synchronize()
        return found

    for result in in_a_thread(work):
        late.check(result)
    torch.cuda.synchronize()


@pytest.mark.no_dispatch_mode
def test_a_thread_that_changes_its_context(cutwheel: ModuleType, cuda: str, green: Green) -> None:
    late = Late.of(cutwheel, SHAPES[0], cuda)
    primary = ok(driver.cuCtxGetCurrent())
    assert int(primary) != int(green.context)

    def work() -> list[torch.Tensor]:
        found = []
        for context in (primary, green.context, green.context, primary, green.context):
            ok(driver.cuCtxSetCurrent(context))
            found.append(late.enqueue(cutwheel))
            assert current_context() == int(context)
            torch.cuda.current_stream().synchronize()
        return found

    for result in in_a_thread(work):
        late.check(result)


@pytest.mark.no_dispatch_mode
def test_a_thread_without_a_context(cutwheel: ModuleType, cuda: str) -> None:
    a, b = operands(72, 88, 104, HALF, cuda)
    torchs, exact = torch.mm(a, b), Problem.of(a, b)
    torch.cuda.synchronize()

    def work() -> tuple[list[torch.Tensor], int]:
        found = [cutwheel.mm(a, b) for _ in range(3)]
        torch.cuda.current_stream().synchronize()
        return found, current_context()

    results, ours = in_a_thread(work)
    for result in results:
        assert_as_good_as(result, torchs, exact)

    def of_torch() -> int:
        torch.mm(a, b)
        return current_context()

    assert ours == in_a_thread(of_torch)


@pytest.mark.no_dispatch_mode
def test_an_error_leaves_the_context(cutwheel: ModuleType, cuda: str, green: Green) -> None:
    a, b = operands(72, 88, 104, HALF, cuda)

    def work() -> None:
        green.make_current()
        with pytest.raises((ValueError, RuntimeError), match="mat2"):
            cutwheel.mm(a, b[:-1])
        with pytest.raises(torch.OutOfMemoryError):
            cutwheel.mm(a[:, :1].repeat(2**14, 1), b[:1].repeat(1, 2**14))
        assert current_context() == int(green.context)

    in_a_thread(work)


@pytest.mark.no_dispatch_mode
def test_the_green_context_of_another_device(cutwheel: ModuleType, cuda: str) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    green = make_green(0)
    a, b = operands(72, 88, 104, HALF, "cuda:1")
    offs = torch.tensor([30, 72], dtype=torch.int32, device="cuda:1")
    groups = torch.stack((b, b))
    torchs, exact = torch.mm(a, b), Problem.of(a, b)
    torch.cuda.synchronize(1)

    def work() -> list[torch.Tensor]:
        green.make_current()
        found = []
        for call in (
            lambda: cutwheel.mm(a, b),
            lambda: cutwheel.grouped_mm(a, groups, offs=offs),
        ):
            found.append(call())
            assert current_context() == int(green.context)
            assert torch.cuda.current_device() == 0
        torch.cuda.synchronize(1)
        return found

    for result in in_a_thread(work):
        assert_as_good_as(result, torchs, exact)
    ok(driver.cuGreenCtxDestroy(green.handle))


# Kernels that the process has not used before: what is done once for each of them is done here.
FRESH = f"""
import sys
sys.path[:0] = [{str(Path(__file__).parent)!r}]
import torch, cutwheel
from gemm_cases import BRAIN, operands
from reference import Problem, assert_as_good_as
from test_context_gpu import current_context, driver, make_green, ok
torch.manual_seed(20)
shape, order = tuple(map(int, sys.argv[1:4])), sys.argv[4].split(",")
a, b = operands(*shape, BRAIN, "cuda")
torchs, exact = torch.mm(a, b), Problem.of(a, b)
green = make_green(torch.cuda.current_device())
contexts = {{"primary": ok(driver.cuCtxGetCurrent()), "green": green.context}}
for name in order:
    torch.cuda.synchronize()
    ok(driver.cuCtxSetCurrent(contexts[name]))
    result = cutwheel.mm(a, b)
    torch.cuda.current_stream().synchronize()
    assert current_context() == int(contexts[name])
    ok(driver.cuCtxSetCurrent(contexts["primary"]))
    assert_as_good_as(result, torchs, exact)
start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
for event in (start, end):
    event.record()
    for _ in range(50):
        cutwheel.mm(a, b)
end.record()
torch.cuda.synchronize()
print("us", start.elapsed_time(end) * 10)
"""


def fresh(package: ModuleType, shape: tuple[int, int, int], order: str) -> float:
    """Microseconds of the product in the primary context, after first calls in this order."""
    assert package.__file__ is not None
    environment = {**os.environ, "PYTHONPATH": str(Path(package.__file__).parents[1])}
    command = [sys.executable, "-c", FRESH, *map(str, shape), order]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return float(done.stdout.split()[-1])


@pytest.mark.no_dispatch_mode
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_kernels_serve_every_context_in_any_order(
    cutwheel: ModuleType, cuda: str, green: Green, shape: tuple[int, int, int]
) -> None:
    primary_first = fresh(cutwheel, shape, "primary,green,green,primary")
    green_first = fresh(cutwheel, shape, "green,green,primary")
    # A grid that fits 16 SMs would take several times as long on all of them.
    assert green_first <= 2 * primary_first + 20
