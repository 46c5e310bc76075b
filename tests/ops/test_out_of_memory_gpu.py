"""Calls for which there is no memory: torch.OutOfMemoryError with the allocator's text, and nothing
is left behind."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from gemm_cases import BRAIN, HALF, operands, random_tensor
from reference import Problem, assert_as_good_as

pytestmark = pytest.mark.gpu

HUGE = 2**20
"""rows and columns of results of 2 TiB, whose operands have 16 MiB"""


def first_sentence(error: BaseException) -> str:
    return str(error).partition(". GPU")[0]


def _results(device: str) -> dict[str, Callable[[Any], object]]:
    """name: call whose result has 2 TiB"""
    a = random_tensor((HUGE, 8), HALF, device)
    b = a.t()
    offs = torch.tensor([HUGE], dtype=torch.int32, device=device)
    image, weight = a.view(1, 1024, 1024, 8).permute(0, 3, 1, 2), a.view(HUGE, 8, 1, 1)
    return {
        "mm": lambda w: w.mm(a, b),
        "bmm": lambda w: w.bmm(a[None], b[None]),
        "addmm": lambda w: w.addmm(a[:, 0], a, b),
        "matmul": lambda w: w.matmul(a, b),
        "linear": lambda w: w.linear(a, a, a[:, 0]),
        "linear_gelu": lambda w: w.linear(a, a, activation="gelu"),
        "grouped_mm": lambda w: w.grouped_mm(a, b[None], offs=offs),
        "conv2d": lambda w: w.conv2d(image, weight),
    }


NAMES = ("mm", "bmm", "addmm", "matmul", "linear", "linear_gelu", "grouped_mm", "conv2d")


@pytest.mark.no_dispatch_mode
@pytest.mark.parametrize("name", NAMES)
def test_results_that_do_not_fit(cutwheel: ModuleType, cuda: str, name: str) -> None:
    call = _results(cuda)[name]
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    with pytest.raises(torch.OutOfMemoryError) as raised:
        call(cutwheel)
    with pytest.raises(torch.OutOfMemoryError) as torchs:
        torch.empty(HUGE, HUGE, dtype=HALF, device=cuda)
    assert first_sentence(raised.value) == first_sentence(torchs.value)
    assert "total capacity" in str(raised.value)
    assert torch.cuda.memory_allocated() <= before
    a, b = operands(72, 88, 104, HALF, cuda)
    assert_as_good_as(cutwheel.mm(a, b), torch.mm(a, b), Problem.of(a, b))


def test_the_raw_op_says_it_in_its_own_words(cutwheel: ModuleType, cuda: str) -> None:
    a = random_tensor((HUGE, 8), HALF, cuda)
    with pytest.raises(RuntimeError, match=r"CUDA out of memory\. Tried to allocate"):
        torch.ops.cutwheel.mm(a, a.t(), None, False)


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """Leaves torch's allocator so many bytes."""
    gc.collect()  # what a test before has left in cycles would make room later
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    _, total = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + size) / total)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


MIB = 1 << 20


@pytest.mark.no_dispatch_mode
def test_copies_of_operands(cutwheel: ModuleType, cuda: str) -> None:
    torch.cuda.empty_cache()
    # Made at once: what a temporary leaves of its memory would be room for a copy.
    wide = torch.randn(16384, 8193, dtype=HALF, device=cuda)
    spread = torch.randn(16384, 16384, dtype=HALF, device=cuda)
    a, b = spread[:, ::2], random_tensor((8192, 8), HALF, cuda)  # a copy of 256 MiB
    images = torch.randn(64, 3, 512, 512, dtype=BRAIN, device=cuda)
    filters = random_tensor((8, 3, 1, 2), BRAIN, cuda)  # 3 channels are copied as 8
    with room_for(64 * MIB):
        for call in (
            lambda: cutwheel.mm(a, b),
            lambda: cutwheel.linear(a, b.t()),
            lambda: cutwheel.conv2d(images, filters),
            lambda: cutwheel.quantize(wide[:, :8192], "rowwise"),
        ):
            with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
                call()
    assert_as_good_as(cutwheel.mm(a, b), torch.mm(a, b), Problem.of(a, b))


@pytest.mark.no_dispatch_mode
@pytest.mark.parametrize("activation", [None, "relu", "gelu"])
def test_backward(cutwheel: ModuleType, cuda: str, activation: str | None) -> None:
    torch.cuda.empty_cache()
    # Made at once: what a temporary leaves of its memory would be room for the gradient.
    input = torch.randn(65536, 1024, dtype=BRAIN, device=cuda).requires_grad_()
    weight = random_tensor((64, 1024), BRAIN, cuda).requires_grad_()
    result = cutwheel.linear(input, weight, activation=activation)
    grad = torch.ones_like(result)
    with room_for(32 * MIB), pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
        result.backward(grad)  # the gradient of the input has 128 MiB
    del result
    cutwheel.linear(input, weight, activation=activation).backward(grad)
    assert input.grad is not None


@pytest.mark.no_dispatch_mode
def test_backward_of_a_convolution(cutwheel: ModuleType, cuda: str) -> None:
    torch.cuda.empty_cache()
    images = torch.randn(64, 128, 128, 64, dtype=BRAIN, device=cuda).permute(0, 3, 1, 2)
    images.requires_grad_()
    filters = random_tensor((8, 64, 3, 3), BRAIN, cuda).requires_grad_()
    result = cutwheel.conv2d(images, filters, padding=1)
    grad = torch.ones_like(result)
    with room_for(32 * MIB), pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
        result.backward(grad)  # the gradient of the images has 128 MiB


CAPTURE = """
import sys, torch, cutwheel
a = torch.ones(2**20, 8, dtype=torch.float16, device="cuda")
small = a[:64]
mm = cutwheel.mm if sys.argv[1] == "cutwheel" else torch.mm
mm(small, small.t())
try:
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        try:
            mm(a, a.t())
        except Exception as error:
            print("inside", type(error).__name__)
except Exception as error:
    print("outside", type(error).__name__)
torch.cuda.synchronize()
print("sum", float(mm(small, small.t()).sum()))
"""


@pytest.mark.no_dispatch_mode
def test_a_capture_fails_as_with_torch(cutwheel: ModuleType, cuda: str) -> None:
    assert cutwheel.__file__ is not None
    environment = {**os.environ, "PYTHONPATH": str(Path(cutwheel.__file__).parents[1])}
    said = []
    for library in ("cutwheel", "torch"):
        command = [sys.executable, "-c", CAPTURE, library]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        said.append((done.returncode, done.stdout))
    assert said[0] == said[1]
    assert "inside OutOfMemoryError" in said[0][1]
