"""enable() on a GPU: torch's results whoever computes them, and torch's kernels come back."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F

pytestmark = [pytest.mark.gpu, pytest.mark.no_dispatch_mode]

BF16, E4M3 = torch.bfloat16, torch.float8_e4m3fn


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


@pytest.mark.parametrize(
    "op",
    [
        *("mm", "bmm", "matmul", "addmm", "nn.functional.linear"),
        *("nn.functional.conv1d", "nn.functional.conv2d", "nn.functional.conv_transpose2d"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float16, BF16, torch.float32, torch.complex64], ids=str)
def test_samples_of_torch(
    cutwheel: ModuleType, torchs_samples: Callable[[str], Any], op: str, dtype: torch.dtype
) -> None:
    info = torchs_samples(op)
    for sample in info.sample_inputs("cuda", dtype, requires_grad=True):
        arguments = sample.input, *sample.args
        want = info(*arguments, **sample.kwargs)
        every = [*cutwheel.interception.OPS, *cutwheel.interception.BY_NAME]
        with cutwheel.enabled(ops=every):
            got = info(*arguments, **sample.kwargs)
        torch.testing.assert_close(got, want)
        assert got.stride() == want.stride()
        if not want.numel():
            continue
        inputs = [x for x in arguments if isinstance(x, torch.Tensor) and x.requires_grad]
        wanted = torch.autograd.grad(want, inputs, torch.ones_like(want), allow_unused=True)
        with cutwheel.enabled(ops=every):
            found = torch.autograd.grad(got, inputs, torch.ones_like(got), allow_unused=True)
        for one, other in zip(found, wanted, strict=True):
            assert (one is None) is (other is None)
            if one is not None:
                torch.testing.assert_close(one, other)


@pytest.mark.parametrize("dtype", [torch.float16, BF16], ids=str)
@pytest.mark.parametrize("m", [1, 8, 48, 100, 300, 1500, 5000])
def test_mm_is_taken_where_it_was_measured_faster(
    cutwheel: ModuleType, m: int, dtype: torch.dtype
) -> None:
    a, b = operands(m, 4096 + 8, 2048 + 8, dtype)
    with cutwheel.enabled():
        found = torch.mm(a, b)
        out = torch.full_like(found, float("nan"))
        assert torch.mm(a, b, out=out) is out
    close(found, a, b)
    assert torch.equal(found, out)
    report = cutwheel.report()
    # With few rows. With more, what was measured differs from class to class.
    assert report.taken == 2 or m > 128, str(report)
    assert report.taken + report.passed_on == 2, str(report)
    assert all(entry.taken or "was measured" in entry.reason for entry in report.calls), str(report)


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
        (lambda a, b: a.float() @ b.float(), "dtypes that stay"),
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


def nearly(found: torch.Tensor, want: torch.Tensor) -> None:
    """Both are rounded to 16 bits, and sum up in orders of their own."""
    assert found.shape == want.shape
    assert found.dtype == want.dtype
    if not want.numel():
        return
    scale = want.double().square().mean().sqrt().item()
    torch.testing.assert_close(found.double(), want.double(), rtol=2e-2, atol=2e-2 * scale)


def as_good(found: torch.Tensor, torchs: torch.Tensor, exact: torch.Tensor) -> None:
    """No further from float64 than twice what torch is, and a rounding. torch is no reference for a
    sum over pixels: where it adds the bias behind the product, it rounds each of them twice."""
    error, allowed = ((each.double() - exact).abs().max() for each in (found, torchs))
    rounding = torch.finfo(found.dtype).eps * exact.abs().max()
    assert float(error) <= 2 * float(allowed) + float(rounding)


def compare(cutwheel: ModuleType, call: Callable[[], Any], *, taken: int, **narrowed: Any) -> None:
    """A call has torch's result, shape and strides, and so many kernels of ours compute it."""
    want = call()
    cutwheel.report(clear=True)
    with cutwheel.enabled(**narrowed):
        found = call()
    assert cutwheel.report().taken == taken, str(cutwheel.report())
    pairs = [(found, want)] if isinstance(want, torch.Tensor) else zip(found, want, strict=True)
    for one, other in pairs:
        assert (one is None) is (other is None)
        if one is not None:
            nearly(one, other)
            assert one.stride() == other.stride()


def scaled_operands(
    recipe: str, m: int = 48, n: int = 4096, k: int = 2048
) -> tuple[torch.Tensor, ...]:
    def outer_major(scales: torch.Tensor) -> torch.Tensor:
        return scales.t().contiguous().t()

    a = torch.randn(m, k, device="cuda").to(E4M3)
    b = torch.randn(n, k, device="cuda").to(E4M3).t()

    def scales(*shape: int) -> torch.Tensor:
        return torch.rand(shape, device="cuda") + 0.5

    if recipe == "tensorwise":
        return a, b, scales(1), scales(1)
    if recipe == "rowwise":
        return a, b, scales(m, 1), scales(1, n)
    if recipe == "1x128 x 128x128":
        return a, b, outer_major(scales(m, k // 128)), scales(n // 128, k // 128).t()
    return a, b, outer_major(scales(m, k // 128)), outer_major(scales(n, k // 128)).t()


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise"])
def test_scaled_mm_is_taken(cutwheel: ModuleType, recipe: str, fast: bool) -> None:
    given = scaled_operands(recipe)
    bias = torch.randn(4096, device="cuda", dtype=BF16)
    for more in ({}, {"bias": bias}):
        rest = {"out_dtype": BF16, "use_fast_accum": fast, **more}
        compare(cutwheel, lambda rest=rest: torch._scaled_mm(*given, **rest), taken=1)
        out = torch.full((48, 4096), float("nan"), device="cuda", dtype=BF16)
        with cutwheel.enabled():
            assert torch._scaled_mm(*given, **rest, out=out) is out
        nearly(out, torch._scaled_mm(*given, **rest))
        assert cutwheel.report().passed_on == 0, str(cutwheel.report())


@pytest.mark.parametrize("recipe", ["1x128 x 128x128", "1x128 x 1x128"])
def test_scaled_mm_of_blocks_is_taken(cutwheel: ModuleType, recipe: str) -> None:
    given = scaled_operands(recipe)
    try:
        torch._scaled_mm(*given, out_dtype=BF16)
    except (RuntimeError, ValueError) as error:
        pytest.skip(f"torch has none: {error}")
    with cutwheel.batch_invariant():  # takes them whatever was measured
        compare(cutwheel, lambda: torch._scaled_mm(*given, out_dtype=BF16), taken=1)


def test_what_of_scaled_mm_goes_on_to_torch(cutwheel: ModuleType) -> None:
    a, b, scale_a, scale_b = scaled_operands("tensorwise")
    want = torch._scaled_mm(a, b, scale_a, scale_b, out_dtype=torch.float32)
    with cutwheel.enabled():
        found = torch._scaled_mm(a, b, scale_a, scale_b, out_dtype=torch.float32)
    assert torch.equal(found, want)
    (entry,) = cutwheel.report().calls
    assert "dtypes" in entry.reason
    with pytest.raises((RuntimeError, ValueError)) as want:
        torch._scaled_mm(a, b.t().contiguous(), scale_a, scale_b, out_dtype=BF16)
    with cutwheel.enabled(), pytest.raises(type(want.value)) as got:
        torch._scaled_mm(a, b.t().contiguous(), scale_a, scale_b, out_dtype=BF16)
    assert str(got.value) == str(want.value)


def ends(*values: int) -> torch.Tensor:
    return torch.tensor(values, device="cuda", dtype=torch.int32)


def test_grouped_mm_and_its_gradients_are_taken(cutwheel: ModuleType) -> None:
    x = torch.randn(128, 1024, device="cuda", dtype=BF16, requires_grad=True)
    w = torch.randn(4, 2048, 1024, device="cuda", dtype=BF16, requires_grad=True)
    grad, offs = torch.randn(128, 2048, device="cuda", dtype=BF16), ends(20, 64, 70, 128)

    def step() -> tuple[torch.Tensor, ...]:
        y = torch._grouped_mm(x, w.mT, offs=offs)
        return y, *torch.autograd.grad(y, [x, w], grad)

    compare(cutwheel, step, taken=3)


@pytest.mark.parametrize("fast", [False, True])
def test_scaled_grouped_mm_is_taken(cutwheel: ModuleType, fast: bool) -> None:
    x = torch.randn(128, 1024, device="cuda").to(E4M3)
    w = torch.randn(4, 2048, 1024, device="cuda").to(E4M3).mT
    scales = torch.rand(128, device="cuda"), torch.rand(4, 2048, device="cuda")
    rest = {"offs": ends(20, 64, 70, 128), "out_dtype": BF16, "use_fast_accum": fast}
    compare(cutwheel, lambda: torch._scaled_grouped_mm(x, w, *scales, **rest), taken=1)


def image(*size: int, dtype: torch.dtype = BF16, grad: bool = True) -> torch.Tensor:
    made = torch.randn(size, device="cuda", dtype=dtype)
    return made.contiguous(memory_format=torch.channels_last).requires_grad_(grad)


def strides_of(x: torch.Tensor) -> list[int]:
    """Those that mean something"""
    return [stride for stride, size in zip(x.stride(), x.shape, strict=True) if size > 1]


CONVOLUTIONS = {
    # input, filters, arguments
    "dense": ((3, 72, 33, 20), (136, 72, 3, 3), {"padding": 1}),
    "pointwise": ((3, 72, 33, 20), (136, 72, 1, 1), {}),
    "few channels": ((5, 3, 65, 40), (64, 3, 7, 7), {"stride": 2, "padding": 3}),
    "depthwise": ((5, 72, 30, 22), (72, 1, 3, 3), {"padding": 1, "groups": 72}),
    "grouped": ((5, 64, 30, 22), (64, 16, 3, 3), {"padding": 1, "groups": 4}),
    "two of each": ((3, 72, 33, 20), (136, 72, 3, 1), {"padding": (1, 0), "dilation": (1, 2)}),
}


@pytest.mark.parametrize("dtype", [torch.float16, BF16], ids=str)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_are_taken(cutwheel: ModuleType, name: str, dtype: torch.dtype) -> None:
    size, filters, rest = CONVOLUTIONS[name]
    x, w = image(*size, dtype=dtype), image(*filters, dtype=dtype)
    bias = torch.randn(filters[0], device="cuda", dtype=dtype, requires_grad=True)

    def step(*operands: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = F.conv2d(*operands, **rest)
        return y, *torch.autograd.grad(y.square().sum(), operands)

    want = step(x, w, bias)
    exact = step(*(each.detach().double().requires_grad_() for each in (x, w, bias)))
    with cutwheel.enabled():
        found = step(x, w, bias)
    report = cutwheel.report()
    # In this mode, whatever kernels can take; sums in another order.
    with cutwheel.batch_invariant(), cutwheel.enabled():
        all_found = step(x, w, bias)
    # Which direction was measured faster differs from kind to kind.
    assert any(entry.taken for entry in report.calls), str(report)
    for got in (found, all_found):
        for one, other, true in zip(got, want, exact, strict=True):
            as_good(one, other, true)
        for one, other in zip(got[:3], want[:3], strict=True):
            assert one.is_contiguous(memory_format=torch.channels_last)
            assert strides_of(one) == strides_of(other)
    # Each direction is told by itself.
    directions = {entry.kind.split()[1] for entry in report.calls if entry.kind}
    assert directions == {"fprop", "dgrad", "wgrad"}


@pytest.mark.parametrize("call", [F.conv2d, torch.convolution], ids=["conv2d", "convolution"])
def test_no_bias(cutwheel: ModuleType, call: Any) -> None:
    """conv2d hands None on as an undefined tensor."""
    x, w = image(2, 64, 14, 14, grad=False), image(64, 64, 3, 3, grad=False)
    rest: tuple[Any, ...] = ([1, 1], [1, 1], [1, 1])
    if call is torch.convolution:
        rest = (*rest, False, [0, 0], 1)
    with cutwheel.batch_invariant():
        compare(cutwheel, lambda: call(x, w, None, *rest), taken=1)


def test_each_gradient_goes_its_own_way(cutwheel: ModuleType) -> None:
    x, w, grad = image(2, 64, 14, 14), image(64, 64, 3, 3), image(2, 64, 14, 14)
    with cutwheel.batch_invariant():
        for mask in itertools.product((False, True), repeat=3):
            call = lambda mask=mask: torch.ops.aten.convolution_backward(  # noqa: E731
                *(grad, x, w, [64], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, mask)
            )
            compare(cutwheel, call, taken=mask[0] + mask[1])


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda x, w: F.conv2d(x.contiguous(), w.contiguous()), "as they lie"),
        (lambda x, w: F.conv2d(x.float(), w.float()), "dtypes"),
        (lambda x, w: F.conv2d(x[:0], w), "empty"),
        (lambda x, w: F.conv_transpose2d(x, w), "arguments"),
        (lambda x, w: F.conv1d(x[:, :, 0], w[:, :, 0]), "shapes"),
    ],
)
def test_convolutions_that_go_on(cutwheel: ModuleType, call: Any, reason: str) -> None:
    x, w = image(4, 64, 14, 14, grad=False), image(64, 64, 3, 3, grad=False)
    want = call(x, w)
    with cutwheel.enabled():
        found = call(x, w)
    assert found.stride() == want.stride()
    nearly(found, want)
    (entry,) = cutwheel.report().calls
    assert not entry.taken
    assert reason in entry.reason


def test_a_convolutional_network(cutwheel: ModuleType) -> None:
    layers = torch.nn.Sequential(
        torch.nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        torch.nn.BatchNorm2d(64),
        torch.nn.ReLU(),
        torch.nn.Conv2d(64, 128, 3, padding=1),
    ).to(device="cuda", memory_format=torch.channels_last)
    x = image(8, 3, 64, 64, dtype=torch.float32)

    def step(function: Any) -> tuple[torch.Tensor, ...]:
        with torch.autocast("cuda", BF16):
            y = function(x)
        return y, *torch.autograd.grad(y.float().square().mean(), [x, *layers.parameters()])

    want = step(layers)
    with cutwheel.enabled():
        found = step(layers)
        assert cutwheel.report(clear=True).taken >= 2
        compiled = step(torch.compile(layers, fullgraph=True))
        assert cutwheel.report().taken >= 2, str(cutwheel.report())
    for got in (found, compiled):
        for one, other in zip(got, want, strict=True):
            scale = other.double().square().mean().sqrt().item()
            torch.testing.assert_close(one, other, rtol=5e-2, atol=5e-2 * scale)


def test_addmm_by_its_name(cutwheel: ModuleType) -> None:
    layer = torch.nn.Linear(2048, 4096, device="cuda", dtype=BF16)
    x = torch.randn(8, 2048, device="cuda", dtype=BF16)
    want = layer(x)
    with cutwheel.enabled():
        layer(x)
        assert "addmm" not in {entry.op for entry in cutwheel.report(clear=True).calls}
    with cutwheel.enabled(ops=["addmm"]):
        found = layer(x)
        out = torch.full_like(want, float("nan"))
        with torch.no_grad():
            torch.addmm(layer.bias, x, layer.weight.t(), out=out)
        assert cutwheel.report(clear=True).taken == 2
        torch.addmm(layer.bias, x, layer.weight.t(), beta=0.5)
        torch.addmm(want, x, layer.weight.t())
        report = cutwheel.report(clear=True)
        assert (report.taken, report.passed_on) == (0, 2)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = layer(x)
        assert cutwheel.report().taken == 1
    nearly(found, want)
    nearly(out, want)
    x.normal_()
    graph.replay()
    nearly(captured, layer(x))


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
    # In this mode, whatever was measured.
    with cutwheel.enabled(), cutwheel.batch_invariant(), pytest.raises(torch.OutOfMemoryError):
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
