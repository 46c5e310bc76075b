"""out=, streams, threads, graphs, devices, memory, and what is refused."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from gemm_cases import BRAIN, DTYPES, HALF, SINGLE, dtype_id, operands, random_tensor
from reference import Problem, assert_as_good_as

pytestmark = pytest.mark.gpu


@pytest.fixture
def cuda(device: str) -> str:
    if torch.device(device).type != "cuda":
        pytest.skip("needs CUDA streams")
    return device


def nan_out(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> torch.Tensor:
    return torch.full(shape, float("nan"), dtype=dtype, device=device)


OUTS: dict[str, Callable[[int, int, torch.dtype, str], torch.Tensor]] = {
    "row": lambda m, n, dtype, device: nan_out((m, n), dtype, device),
    "column": lambda m, n, dtype, device: nan_out((n, m), dtype, device).t(),
    "padded": lambda m, n, dtype, device: nan_out((m, n + 8), dtype, device)[:, :n],
    "padded_to_16_bytes": lambda m, n, dtype, device: nan_out(
        (m, n // 16 * 16 + 32), dtype, device
    )[:, :n],
    "padded_oddly": lambda m, n, dtype, device: nan_out((m, n + 3), dtype, device)[:, 1 : n + 1],
    "every_second": lambda m, n, dtype, device: nan_out((m, 2 * n), dtype, device)[:, ::2],
    "every_second_row": lambda m, n, dtype, device: nan_out((2 * m, n), dtype, device)[::2],
    "column_padded": lambda m, n, dtype, device: nan_out((n, m + 5), dtype, device)[:, :m].t(),
}


@pytest.mark.parametrize("layout", OUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_out(cutwheel: ModuleType, device: str, dtype: torch.dtype, layout: str) -> None:
    for m, n, k in ((72, 88, 104), (33, 65, 77)):
        a, b = operands(m, n, k, dtype, device)
        c = random_tensor((n,), dtype, device)
        for given in {dtype, SINGLE}:
            out = OUTS[layout](m, n, given, device)
            strides, address, storage = out.stride(), out.data_ptr(), out.untyped_storage()
            untouched = storage.nbytes() // out.element_size() - out.numel()
            assert cutwheel.mm(a, b, out=out) is out
            assert (out.stride(), out.data_ptr()) == (strides, address)
            exact = Problem.of(a, b)
            assert_as_good_as(out, exact.value.to(given), exact)
            # What lies between the elements of a view is not written.
            whole = torch.empty(0, dtype=given, device=device).set_(storage)
            assert int(whole.isnan().sum()) == untouched
            assert cutwheel.addmm(c, a, b, beta=2, out=out) is out
            exact = Problem.of(a, b, c, beta=2)
            assert_as_good_as(out, exact.value.to(given), exact)


def test_out_of_batches(cutwheel: ModuleType, device: str) -> None:
    a, b = operands(40, 56, 72, HALF, device, batch=(3,))
    exact = Problem.of(a, b)
    for out in (
        nan_out((3, 40, 56), HALF, device),
        nan_out((3, 56, 40), HALF, device).mT,
        nan_out((40, 3, 56), HALF, device).transpose(0, 1),
    ):
        assert cutwheel.bmm(a, b, out=out) is out
        assert_as_good_as(out, exact.value.to(HALF), exact)
        out.fill_(float("nan"))
        assert cutwheel.baddbmm(a[:, :1, :56], a, b, beta=0, out=out) is out
        assert_as_good_as(out, exact.value.to(HALF), exact)


def test_out_may_be_the_addend(cutwheel: ModuleType, device: str) -> None:
    a, b = operands(72, 88, 104, BRAIN, device)
    c = random_tensor((72, 88), BRAIN, device)
    exact = Problem.of(a, b, c, beta=0.5)
    assert cutwheel.addmm(c, a, b, beta=0.5, out=c) is c
    assert_as_good_as(c, exact.value.to(BRAIN), exact)
    row = random_tensor((1, 88), BRAIN, device)  # a row addend that is also D
    exact = Problem.of(a[:1], b, row)
    assert cutwheel.addmm(row, a[:1], b, out=row) is row
    assert_as_good_as(row, exact.value.to(BRAIN), exact)


def test_out_tells_autograd_that_it_changed(cutwheel: ModuleType, device: str) -> None:
    a, b = operands(24, 40, 32, HALF, device)
    buffer = random_tensor((24, 40), HALF, device)
    weight = torch.ones_like(buffer, requires_grad=True)
    product = buffer * weight  # saves buffer for its backward
    cutwheel.mm(a, b, out=buffer)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


def test_explain_of_an_empty_product(cutwheel: ModuleType, cuda: str) -> None:
    explanation = cutwheel.explain(
        "mm",
        torch.empty(0, 64, device=cuda, dtype=HALF),
        torch.empty(64, 8, device=cuda, dtype=HALF),
    )
    assert explanation.row is None


def test_out_with_gradients_is_refused(cutwheel: ModuleType, device: str) -> None:
    a, b = operands(8, 16, 24, HALF, device)
    out = nan_out((8, 16), HALF, device)
    a.requires_grad_()
    with pytest.raises(RuntimeError, match="automatic differentiation"):
        cutwheel.mm(a, b, out=out)
    with torch.no_grad():
        cutwheel.mm(a, b, out=out)
    assert not out.isnan().any()


def test_stream_of_the_caller(cutwheel: ModuleType, cuda: str) -> None:
    a, b = operands(512, 512, 512, HALF, cuda)
    stream = torch.cuda.Stream()
    exact = Problem.of(a, b)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)  # work elsewhere would run before the operands are filled
        left, right = a.clone(), b.clone()
        result = cutwheel.addmm(left[:1], left, right, beta=0)
    stream.synchronize()
    assert_as_good_as(result, torch.mm(a, b), exact)


@pytest.mark.no_dispatch_mode
def test_cuda_graph(cutwheel: ModuleType, cuda: str) -> None:
    a, b = operands(136, 200, 264, BRAIN, cuda)
    odd, other = operands(33, 65, 77, BRAIN, cuda, "row_offset", "every_second")
    out = nan_out((200, 136), BRAIN, cuda).t()

    def work() -> tuple[torch.Tensor, ...]:
        cutwheel.mm(a, b, out=out)
        return (
            cutwheel.mm(a, b),
            cutwheel.linear(a, b.t(), b[0]),
            cutwheel.mm(odd, other),
            cutwheel.bmm(a[None], b[None])[0],
        )

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = work()
    for _ in range(2):
        for tensor in (a, b, odd, other):
            tensor.copy_(random_tensor(tuple(tensor.shape), BRAIN, cuda))
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        product = torch.mm(a, b)
        exact = Problem.of(a, b)
        for result in (captured[0], captured[3], out):
            assert_as_good_as(result, product, exact)
        expected = torch.nn.functional.linear(a, b.t(), b[0])
        assert_as_good_as(captured[1], expected, Problem.of(a, b, b[0]))
        assert_as_good_as(captured[2], torch.mm(odd, other), Problem.of(odd, other))


def in_threads(count: int, work: Callable[[int], None]) -> None:
    errors: list[BaseException] = []

    def guarded(index: int) -> None:
        try:
            work(index)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]


@pytest.mark.no_dispatch_mode
def test_second_thread(cutwheel: ModuleType, device: str) -> None:
    a, b = operands(72, 88, 104, HALF, device)
    a.requires_grad_()

    def work(_: int) -> None:
        result = cutwheel.mm(a, b)
        result.sum().backward()
        assert_as_good_as(result, torch.mm(a, b), Problem.of(a, b))

    in_threads(1, work)
    assert a.grad is not None


@pytest.mark.no_dispatch_mode
def test_two_threads_on_two_streams(cutwheel: ModuleType, cuda: str) -> None:
    shapes = ((256, 384, 512), (33, 4096, 1000))

    def work(index: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            a, b = operands(*shapes[index], BRAIN, cuda)
            expected, exact = torch.mm(a, b), Problem.of(a, b)
            for _ in range(50):
                result = cutwheel.mm(a, b)
            torch.cuda.current_stream().synchronize()
            assert_as_good_as(result, expected, exact)

    in_threads(2, work)


def test_device_that_is_not_current(cutwheel: ModuleType, cuda: str) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    a, b = operands(72, 88, 104, HALF, "cuda:1")
    with torch.cuda.device(0):
        result = cutwheel.mm(a, b)
        assert torch.cuda.current_device() == 0
    assert result.device == torch.device("cuda:1")
    assert_as_good_as(result, torch.mm(a, b), Problem.of(a, b))
    with pytest.raises(ValueError, match="mat2 is on cuda:0"):
        cutwheel.mm(a, b.to("cuda:0"))


@pytest.mark.no_dispatch_mode
def test_no_memory_is_kept(cutwheel: ModuleType, cuda: str) -> None:
    a, b = operands(129, 257, 1025, HALF, cuda, "row_offset", "every_second")
    small, wide = operands(256, 256, 65536, BRAIN, cuda)  # a workspace, where K is split

    def work() -> None:
        cutwheel.mm(a, b)
        cutwheel.mm(small, wide)
        left = a.detach().requires_grad_()
        cutwheel.mm(left, b).sum().backward()
        with pytest.raises(ValueError, match="mat2"):
            cutwheel.mm(a, b[:-1])

    work()
    gc.collect()
    before = torch.cuda.memory_allocated()
    for _ in range(10):
        work()
    gc.collect()
    assert torch.cuda.memory_allocated() == before


def _bad_calls(device: str) -> dict[str, tuple[type[Exception], str, Callable[[Any], object]]]:
    """name: (class, argument named in the message, call)"""
    a, b = operands(8, 16, 24, HALF, device)  # [8, 24], [24, 16]
    c = random_tensor((8, 16), HALF, device)
    batch_a, batch_b = operands(8, 16, 24, HALF, device, batch=(2,))
    full = random_tensor((40, 40), HALF, device)

    def empty(*shape: int, dtype: torch.dtype = HALF) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    calls: dict[str, tuple[type[Exception], str, Callable[[Any], object]]] = {
        "rank_of_input": (ValueError, "input", lambda w: w.mm(batch_a, b)),
        "rank_of_mat2": (ValueError, "mat2", lambda w: w.mm(a, b[0])),
        "rank_of_batch": (ValueError, "input", lambda w: w.bmm(a, batch_b)),
        "rank_of_weight": (ValueError, "weight", lambda w: w.linear(a, b[:, 0])),
        "scalar_input": (ValueError, "input", lambda w: w.linear(a[0, 0], b)),
        "inner_extent": (ValueError, "mat2", lambda w: w.mm(a, b[:-1])),
        "inner_extent_of_batches": (ValueError, "mat2", lambda w: w.bmm(batch_a, batch_b[:, 1:])),
        "batch_count": (ValueError, "mat2", lambda w: w.bmm(batch_a, batch_b[:1])),
        "batch_count_of_baddbmm": (
            ValueError,
            "batch2",
            lambda w: w.baddbmm(c, batch_a, batch_b[:1]),
        ),
        "inner_extent_of_linear": (ValueError, "weight", lambda w: w.linear(a, b)),
        "inner_extent_of_matmul": (ValueError, "other", lambda w: w.matmul(batch_a, b[:-1])),
        "batches_of_matmul": (
            ValueError,
            "input",
            lambda w: w.matmul(batch_a, batch_b[:1].expand(3, 24, 16)),
        ),
        "addend_too_wide": (ValueError, "input", lambda w: w.addmm(c[:, :5], a, b)),
        "addend_of_three_dims": (ValueError, "input", lambda w: w.addmm(c[None], a, b)),
        "bias_extent": (ValueError, "bias", lambda w: w.linear(a, b.t(), c[0, :5])),
        "bias_rank": (ValueError, "bias", lambda w: w.linear(a, b.t(), c)),
        "double": (TypeError, "input", lambda w: w.mm(a.double(), b.double())),
        "integer": (TypeError, "input", lambda w: w.mm(a.int(), b.int())),
        "complex": (TypeError, "input", lambda w: w.mm(a.cfloat(), b.cfloat())),
        "mixed_dtypes": (TypeError, "mat2", lambda w: w.mm(a, b.bfloat16())),
        "dtype_of_addend": (TypeError, "input", lambda w: w.addmm(c.bfloat16(), a, b)),
        "dtype_of_bias": (TypeError, "bias", lambda w: w.linear(a, b.t(), c[0].bfloat16())),
        "out_dtype": (TypeError, "out_dtype", lambda w: w.mm(a, b, torch.bfloat16)),
        "out_dtype_is_no_dtype": (TypeError, "out_dtype", lambda w: w.mm(a, b, "float32")),
        "not_a_tensor": (TypeError, "mat2", lambda w: w.mm(a, [[1.0]])),
        "none": (TypeError, "input", lambda w: w.mm(None, b)),
        "not_a_tensor_in_linear": (TypeError, "bias", lambda w: w.linear(a, b.t(), 1.0)),
        "alpha": (TypeError, "alpha", lambda w: w.addmm(c, a, b, alpha="2")),
        "out_shape": (ValueError, "out", lambda w: w.mm(a, b, out=empty(8, 15))),
        "out_transposed": (ValueError, "out", lambda w: w.mm(a, b, out=empty(16, 8))),
        "out_empty": (ValueError, "out", lambda w: w.mm(a, b, out=empty(0))),
        "out_of_other_dtype": (
            TypeError,
            "out",
            lambda w: w.mm(a, b, out=empty(8, 16, dtype=BRAIN)),
        ),
        "out_and_out_dtype": (
            TypeError,
            "out",
            lambda w: w.mm(a, b, torch.float32, out=empty(8, 16)),
        ),
        "out_is_no_tensor": (TypeError, "out", lambda w: w.mm(a, b, out=[1])),
        "out_expanded": (ValueError, "out", lambda w: w.mm(a, b, out=empty(8, 1).expand(8, 16))),
        "out_is_input": (
            ValueError,
            "out",
            lambda w: w.mm(full[:16, :16], full[:16, 16:32], out=full[:16, :16]),
        ),
        "out_overlaps_mat2": (
            ValueError,
            "out",
            lambda w: w.mm(full[:8, :8], full[8:16, 8:16], out=full[10:18, 10:18]),
        ),
        "out_overlaps_addend": (
            ValueError,
            "out",
            lambda w: w.addmm(full[1:9, :16], a, b, out=full[:8, :16]),
        ),
    }
    if device != "cpu":
        calls |= {
            "cpu_tensors": (NotImplementedError, "CPU", lambda w: w.mm(a.cpu(), b.cpu())),
            "cpu_mat2": (ValueError, "mat2", lambda w: w.mm(a, b.cpu())),
            "cpu_input": (ValueError, "input", lambda w: w.mm(a.cpu(), b)),
            "cpu_bias": (ValueError, "bias", lambda w: w.linear(a, b.t(), c[0].cpu())),
            "cpu_out": (ValueError, "out", lambda w: w.mm(a, b, out=empty(8, 16).cpu())),
        }
    return calls


@pytest.mark.parametrize("name", [*_bad_calls("meta")])
def test_bad_input(
    cutwheel: ModuleType, device: str, name: str, check_class: Callable[..., None]
) -> None:
    calls = _bad_calls(device)
    if name not in calls:
        pytest.skip("needs CUDA tensors")
    error, argument, call = calls[name]
    with pytest.raises(error, match=argument) as raised:
        call(cutwheel)
    check_class(raised.value, error)
    assert "cutwheel." not in str(raised.value), "the class prefix is not for people"
    # The context is alive, and nothing of the failed call is left.
    a, b = operands(40, 56, 72, HALF, device)
    assert_as_good_as(cutwheel.mm(a, b), torch.mm(a, b), Problem.of(a, b))


def test_a_call_that_no_row_serves_names_what_was_asked(
    cutwheel: ModuleType, cuda: str, environment: Any
) -> None:
    row = next(kernel for kernel in cutwheel.kernels() if kernel.a == "bf16" and kernel.tile[0] > 1)
    environment(CUTWHEEL_KERNEL=row.name)
    a, b = operands(40, 56, 72, HALF, cuda)
    with pytest.raises(NotImplementedError, match=r"(?s)mm: no kernel.*f16.*CUTWHEEL_KERNEL"):
        cutwheel.mm(a, b)


def test_explain(cutwheel: ModuleType, cuda: str) -> None:
    a, b = operands(256, 512, 1024, BRAIN, cuda)
    explanation = cutwheel.explain("mm", a, b)
    assert explanation.row in {kernel.name for kernel in cutwheel.kernels()}
    assert explanation.row in str(explanation)
    assert len(explanation.candidates) > 1
    assert explanation.parameters["request"]["m"] == 256
    assert cutwheel.explain(cutwheel.linear, a, b.t(), b[0]).row
    with pytest.raises(ValueError, match="mat2"):
        cutwheel.explain("mm", a, b[:-1])
