"""Allocations that fail inside the library: torch.OutOfMemoryError with the allocator's text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NoReturn

import pytest
import torch
from cpu_reference import CpuOps
from selection import H200, explain, needs_all

# Text that cuda/torch/tensor/shim_errors.cpp throws, with a backtrace that torch may add.
SILENT = "CUDA out of memory. Tried to allocate 2147483648 bytes on GPU 0"
TOLD = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 1.00 GiB"
BACKTRACE = "\nException raised from mm at a.cpp:3 (most recent call first):\nframe #0: ..."


def thrown(text: str) -> Callable[..., NoReturn]:
    """An op that finds no memory."""

    def op(*args: Any, **kwargs: Any) -> NoReturn:
        raise RuntimeError(f"cutwheel.OutOfMemoryError: {text}{BACKTRACE}")

    return op


class Allocator:
    """In place of torch.empty."""

    def __init__(self, error: Exception | None) -> None:
        self.asked: list[tuple[int, torch.dtype, str]] = []
        self._error = error

    def empty(self, size: int, *, dtype: torch.dtype, device: str) -> None:
        self.asked.append((size, dtype, device))
        if self._error is not None:
            raise self._error


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Allocator]:
    def replace(error: Exception | None, is_capturing: bool = False) -> Allocator:
        made = Allocator(error)
        monkeypatch.setattr(torch, "empty", made.empty)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: is_capturing)
        return made

    return replace


@pytest.fixture
def product(cutwheel: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """mm, whose allocation fails with this text."""
    a = torch.ones(4, 4).half()

    def call(text: str) -> Any:
        monkeypatch.setattr(cutwheel.ops.gemm, "_mm_direct", thrown(text))
        return cutwheel.mm(a, a)

    return call


def test_the_allocators_text_is_asked_for(
    product: Callable[[str], Any], allocator: Callable[..., Allocator]
) -> None:
    error = torch.OutOfMemoryError(TOLD)
    asked = allocator(error).asked
    with pytest.raises(torch.OutOfMemoryError) as raised:
        product(SILENT)
    assert raised.value is error
    assert raised.value.__suppress_context__
    assert asked == [(2147483648, torch.uint8, "cuda:0")]


def test_a_text_that_torch_told_is_taken_as_it_is(
    product: Callable[[str], Any], allocator: Callable[..., Allocator]
) -> None:
    asked = allocator(torch.OutOfMemoryError("another one")).asked
    with pytest.raises(torch.OutOfMemoryError) as raised:
        product(TOLD)
    assert str(raised.value) == TOLD
    assert not asked


def test_memory_that_is_free_again_hides_nothing(
    product: Callable[[str], Any], allocator: Callable[..., Allocator]
) -> None:
    asked = allocator(None).asked
    with pytest.raises(torch.OutOfMemoryError) as raised:
        product(SILENT)
    assert str(raised.value) == SILENT
    assert len(asked) == 1


def test_a_captured_graph_gets_no_other_allocation(
    product: Callable[[str], Any], allocator: Callable[..., Allocator]
) -> None:
    asked = allocator(torch.OutOfMemoryError(TOLD), is_capturing=True).asked
    with pytest.raises(torch.OutOfMemoryError) as raised:
        product(SILENT)
    assert str(raised.value) == SILENT
    assert not asked


def test_a_broken_device_is_not_taken_for_a_full_one(
    product: Callable[[str], Any], allocator: Callable[..., Allocator]
) -> None:
    error = RuntimeError("CUDA error: an illegal memory access was encountered")
    allocator(error)
    with pytest.raises(RuntimeError) as raised:
        product(SILENT)
    assert raised.value is error


def differentiated(cutwheel: ModuleType, op: str) -> torch.Tensor:
    """A sum whose backward needs the op."""
    a = torch.ones(8, 8).requires_grad_()
    image = torch.ones(1, 8, 4, 4).requires_grad_()
    weight = torch.ones(8, 8, 3, 3).requires_grad_()
    offs = torch.tensor([3, 8], dtype=torch.int32)
    match op:
        case "elementwise":
            return cutwheel.linear(a, a, a[0], activation="relu").sum()
        case "gemm":
            return cutwheel.linear(a, a, a[0], activation="gelu").sum()
        case "grouped_mm":
            groups, bias = torch.stack((a, a)), torch.ones(2, 8).requires_grad_()
            return cutwheel.grouped_linear(a.detach(), groups, offs=offs, bias=bias).sum()
        case _:
            return cutwheel.conv2d(image, weight).sum()


RAW = [
    ("elementwise", "_common.elementwise", "_overload_direct"),
    ("gemm", "linear._autograd", "_gemm_direct"),
    ("grouped_mm", "grouped._group_sums", "_grouped_mm_direct"),
    ("conv2d_input_grad", "conv._autograd", "_DGRAD"),
    ("conv2d_weight_grad", "conv._autograd", "_WGRAD"),
]


@pytest.mark.parametrize(("op", "module", "name"), RAW, ids=[raw[0] for raw in RAW])
def test_backward_runs_out_of_memory_like_forward(
    cutwheel: ModuleType,
    cpu_ops: CpuOps,
    monkeypatch: pytest.MonkeyPatch,
    op: str,
    module: str,
    name: str,
) -> None:
    result = differentiated(cutwheel, op)
    # Those of convolutions by the length of a geometry, and whether they are traced.
    by_length = {(8, False): thrown(TOLD)}
    raises: Any = by_length if name.isupper() else thrown(TOLD)
    monkeypatch.setattr(f"cutwheel.ops.{module}.{name}", raises)
    with pytest.raises(torch.OutOfMemoryError) as raised:
        result.backward()
    assert str(raised.value) == TOLD


@pytest.fixture
def _released(cutwheel: ModuleType) -> Iterator[None]:
    yield
    cutwheel.clear_tuning()


@needs_all
@pytest.mark.usefixtures("_released")
def test_the_tuner_knows_it_from_a_refusal(product: Callable[[str], Any]) -> None:
    from cutwheel.tuning import search
    from cutwheel.tuning.case import Case, Provider
    from cutwheel.tuning.measure import Error
    from cutwheel.tuning.table import Gpu

    class Clock:
        def warm_up(self, call: Callable[[int], torch.Tensor], buffers: int) -> None:
            call(0)

        def record(self, call: Callable[[int], torch.Tensor], buffers: int, calls: int) -> NoReturn:
            raise AssertionError("the call found memory")

    extents = (4096, 4096, 4096)
    provider = Provider("cutwheel", lambda i: product(TOLD))
    asked = lambda: explain(H200, *extents)  # noqa: E731
    case = Case([provider], 2, lambda i: None, Error(0.0, 0.0), explain=asked)
    forcing = search.TableForcing(Gpu("described", (9, 0), H200.sms, H200.bandwidth, 1.7, 50 << 20))
    searching = search.Search(case, Clock(), forcing, case.explain(), search.Effort())  # type: ignore[arg-type]
    try:
        with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 2\.00 GiB"):
            searching.run(H200.sms)
    finally:
        forcing.release()
