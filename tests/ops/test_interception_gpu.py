"""enable() on a GPU: torch's results whoever computes them, and torch's kernels come back."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

pytestmark = [pytest.mark.gpu, pytest.mark.no_dispatch_mode]

BF16 = torch.bfloat16


@pytest.fixture(autouse=True)
def fresh(cutwheel: ModuleType, cuda: str) -> Iterator[None]:
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("the measurements that decide are of compute capability 9.0")
    cutwheel.report(clear=True)
    yield
    cutwheel.disable()
    cutwheel.report(clear=True)


def operands(
    m: int, n: int, k: int, dtype: torch.dtype = BF16
) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(m, k, device="cuda", dtype=dtype), torch.randn(
        n, k, device="cuda", dtype=dtype
    ).t()


def close(found: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    want = a.double() @ b.double()
    torch.testing.assert_close(found.double(), want, rtol=2e-2, atol=2e-2 * a.shape[-1] ** 0.5)


@pytest.mark.skipif(not importlib.util.find_spec("expecttest"), reason="torch's samples need it")
@pytest.mark.parametrize("op", ["mm", "bmm", "matmul", "nn.functional.linear"])
@pytest.mark.parametrize("dtype", [torch.float16, BF16, torch.float32, torch.complex64], ids=str)
def test_samples_of_torch(cutwheel: ModuleType, op: str, dtype: torch.dtype) -> None:
    from torch.testing._internal.common_methods_invocations import op_db

    info = next(info for info in op_db if info.name == op)
    for sample in info.sample_inputs("cuda", dtype, requires_grad=True):
        arguments = sample.input, *sample.args
        want = info(*arguments, **sample.kwargs)
        with cutwheel.enabled():
            got = info(*arguments, **sample.kwargs)
        torch.testing.assert_close(got, want)
        assert got.stride() == want.stride()
        if not want.numel():
            continue
        inputs = [x for x in arguments if isinstance(x, torch.Tensor) and x.requires_grad]
        wanted = torch.autograd.grad(want, inputs, torch.ones_like(want), allow_unused=True)
        with cutwheel.enabled():
            found = torch.autograd.grad(got, inputs, torch.ones_like(got), allow_unused=True)
        for one, other in zip(found, wanted, strict=True):
            assert (one is None) is (other is None)
            if one is not None:
                torch.testing.assert_close(one, other)


@pytest.mark.parametrize("dtype", [torch.float16, BF16], ids=str)
@pytest.mark.parametrize("m", [1, 8, 48, 100, 300, 1500, 5000])
def test_mm_is_taken(cutwheel: ModuleType, m: int, dtype: torch.dtype) -> None:
    a, b = operands(m, 4096 + 8, 2048 + 8, dtype)
    with cutwheel.enabled():
        found = torch.mm(a, b)
        out = torch.full_like(found, float("nan"))
        assert torch.mm(a, b, out=out) is out
    close(found, a, b)
    assert torch.equal(found, out)
    report = cutwheel.report()
    assert (report.taken, report.passed_on) == (2, 0), str(report)


def test_bmm_is_taken(cutwheel: ModuleType) -> None:
    a = torch.randn(12, 400, 64, device="cuda", dtype=BF16)
    b = torch.randn(12, 512, 64, device="cuda", dtype=BF16).mT
    with cutwheel.enabled():
        found = torch.bmm(a, b)
    close(found, a, b)
    assert cutwheel.report().taken == 1, str(cutwheel.report())


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda a, b: a[:, 1:] @ b[1:], "16 bytes"),
        (lambda a, b: a.float() @ b.float(), "float16 and bfloat16"),
        (lambda a, b: a[:0] @ b, "empty"),
        (
            lambda a, b: torch.mm(
                a, b, out=torch.empty(b.shape[1], a.shape[0], device="cuda", dtype=BF16).t()
            ),
            "out=",
        ),
        (lambda a, b: a.cpu() @ b.cpu(), None),
    ],
)
def test_what_goes_on_to_torch(cutwheel: ModuleType, call: Any, reason: str | None) -> None:
    a, b = operands(8, 512, 256)
    want = call(a, b)
    with cutwheel.enabled():
        found = call(a, b)
    assert torch.equal(found, want)
    report = cutwheel.report()
    assert report.taken == 0
    assert [reason in entry.reason for entry in report.calls] == ([True] if reason else [])


def test_narrowing_and_disabling(cutwheel: ModuleType) -> None:
    a, b = operands(8, 512, 256)
    dump = torch._C._dispatch_dump("aten::mm")
    with cutwheel.enabled(dtypes=[torch.float16]):
        a @ b
    assert "dtypes=" in cutwheel.report().calls[0].reason
    with cutwheel.enabled(ops=["bmm"]):
        assert torch._C._dispatch_dump("aten::mm") == dump
    assert torch._C._dispatch_dump("aten::mm") == dump
    calls = cutwheel.report().passed_on
    a @ b
    assert cutwheel.report().passed_on == calls


def test_errors_are_torchs_own(cutwheel: ModuleType) -> None:
    a, _ = operands(8, 512, 256)
    with pytest.raises(RuntimeError) as want:
        torch.mm(a, a)
    with cutwheel.enabled(), pytest.raises(RuntimeError) as got:
        torch.mm(a, a)
    assert str(got.value) == str(want.value)


def test_short_memory_is_told_by_torch(cutwheel: ModuleType) -> None:
    tall = torch.zeros(2**21, 8, device="cuda", dtype=BF16)
    with cutwheel.enabled(), pytest.raises(torch.OutOfMemoryError):
        torch.mm(tall, tall.t())
    assert "no memory" in cutwheel.report().calls[0].reason


def test_autograd_autocast_and_compile(cutwheel: ModuleType) -> None:
    layer = torch.nn.Linear(2048, 4096, bias=False, device="cuda")
    x = torch.randn(48, 2048, device="cuda", requires_grad=True)

    def step(function: Any) -> tuple[torch.Tensor, ...]:
        with torch.autocast("cuda", BF16):
            y = function(x)
        return y, *torch.autograd.grad(y.float().square().mean(), [x, layer.weight])

    want = step(layer)
    with cutwheel.enabled():
        found = step(layer)
        assert cutwheel.report(clear=True).taken >= 1
        compiled = step(torch.compile(layer, fullgraph=True))
        assert cutwheel.report().taken >= 1, str(cutwheel.report())
    for got in (found, compiled):
        for one, other in zip(got, want, strict=True):
            torch.testing.assert_close(one, other, rtol=2e-2, atol=1e-2)


def test_graphs_and_streams(cutwheel: ModuleType) -> None:
    a, b = operands(48, 4096, 2048)
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with cutwheel.enabled():
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            torch.mm(a, b)
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(graph):
            found = torch.mm(a, b)
    assert cutwheel.report().taken == 2
    a.normal_()
    graph.replay()  # after the block: what was captured is replayed
    close(found, a, b)


def test_first_call_may_be_in_a_graph(cutwheel: ModuleType) -> None:
    a, b = operands(40, 4096, 2048)
    graph = torch.cuda.CUDAGraph()
    with cutwheel.enabled(), torch.cuda.graph(graph):
        found = torch.mm(a, b)
    graph.replay()
    close(found, a, b)


def test_batch_invariant_mode_takes_all_rows(cutwheel: ModuleType) -> None:
    a, b = operands(5000, 1112, 3080)
    with cutwheel.enabled(), cutwheel.batch_invariant():
        whole = torch.mm(a, b)
        for rows in (1, 16, 300):
            assert torch.equal(torch.mm(a[:rows], b), whole[:rows])
    assert cutwheel.report().passed_on == 0
